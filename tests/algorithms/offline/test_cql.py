"""CQL and Cal-QL: the soft maximum against an integral, the multiplier, and the bound."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import cal_ql, cql
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.networks.heads import squashed_normal
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N, E = 8, 2
RNG = np.random.default_rng(8)
SLOPE, OFFSET = RNG.normal(size=(2, 2 * N, E)).astype(np.float32)
MEAN = 0.3 * RNG.normal(size=2 * N).astype(np.float32)
SPREAD = 1.2  # about that of uniform actions before the tanh, so that no sample counts too much
HYPER = {"discount": 0.9, "reward_scale": 2.0, "alpha": 1.5, "threshold": 0.4}
RETURN = RNG.normal(size=N).astype(np.float32)
X = transitions(N, actions=0, **{"return": RETURN})
X = dataclasses.replace(X, action=X.action[:, None])


def policy(s):
    mean = jnp.asarray(MEAN)[s.observation][:, None]
    return squashed_normal(ENV.action_space, mean, jnp.full_like(mean, SPREAD))


def key(name=""):
    return jax.random.fold_in(random.key(3), zlib.crc32(name.encode()))


def values(s, a):
    """Values between -1 and 1 times a slope, and an offset, by the action's half-widths."""
    return OFFSET[s.observation] + SLOPE[s.observation] * jnp.tanh(a)


def net(**more):
    known = {"actor": policy, "critic": values, "target": {"critic": values}}
    known |= {"temperature": lambda: jnp.float32(0.3), "key": key, "hyper": HYPER}
    return stub(**known | more)


def critic_loss(module=cql, net=net(), **settings):
    config = replace(module.Config(), {"num_samples": 4, "next_samples": 1} | settings)
    return losses_of(module.recipe(ENV, Static(config)))["critic_loss"](net, X)


def integral_gap():
    """The log integral of exp Q over actions in half-widths, minus Q of the data's action."""
    a = np.linspace(-2, 2, 20_001)
    q = OFFSET[:N, :, None] + SLOPE[:N, :, None] * np.tanh(a)
    soft = np.log(np.exp(q).mean(-1) * 2)
    return soft - (OFFSET[:N] + SLOPE[:N] * np.tanh(X.action))


@pytest.fixture(scope="module")
def many():
    return jax.jit(lambda: critic_loss(num_samples=20_000).metrics["gap"])()


def test_the_samples_estimate_an_integral(many):
    """Uniform actions and those of the policy count by their densities, in half-widths, so that all
    three kinds estimate the same integral."""
    np.testing.assert_allclose(many, integral_gap().mean(-1), atol=0.02)


def test_the_weighted_gap_is_added_for_each_critic():
    with_alpha, without = critic_loss(), critic_loss(net=net(hyper=HYPER | {"alpha": 0.0}))
    added = 1.5 * E * with_alpha.metrics["gap"]
    np.testing.assert_allclose(with_alpha.value - without.value, added, rtol=1e-3, atol=1e-4)


def test_the_target_has_the_best_of_some_actions_and_no_entropy():
    """Many actions reach the best of the least critic's values that the policy allows."""
    output = critic_loss(net=net(hyper=HYPER | {"alpha": 0.0}), next_samples=500)
    q = values(X.timestep, X.action)
    a = np.linspace(-2, 2, 2001)
    least = (OFFSET[N:, :, None] + SLOPE[N:, :, None] * np.tanh(a)).min(1)
    likely = np.abs(np.arctanh(np.clip(a / 2, -0.999999, 0.999999)) - MEAN[N:, None]) < 3 * SPREAD
    following = np.where(likely, least, -np.inf).max(-1)
    target = 2 * X.reward + 0.9 * ~X.terminated * following
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(output.value, expected, atol=0.06, rtol=0.02)
    one = critic_loss(net=net(hyper=HYPER | {"alpha": 0.0}))
    drawn = jax.vmap(lambda k: policy(X.next_timestep).sample(seed=k))(jax.random.split(key(), 1))
    target = 2 * X.reward + 0.9 * ~X.terminated * values(X.next_timestep, drawn[0]).min(-1)
    np.testing.assert_allclose(one.value, 0.5 * ((q - target[:, None]) ** 2).sum(-1), rtol=1e-4)


def test_the_multiplier_grows_where_the_gap_is_too_large():
    def total(multiplier, shift):
        """`shift` raises the values of the data's action alone."""
        shifted = lambda s, a: values(s, a) + (shift if a is X.action else 0.0)
        learned = net(critic=shifted, multiplier=lambda: multiplier)
        output = critic_loss(net=learned, lagrange=True)
        without = critic_loss(net=net(critic=shifted, hyper=HYPER | {"alpha": 0.0}))
        return (output.value - without.value).sum(), output.metrics["gap"]

    slopes, gap = jax.grad(total, (0, 1), has_aux=True)(jnp.float32(1.7), jnp.float32(0.0))
    np.testing.assert_allclose(slopes[0], -E * (gap - 0.4).sum(), rtol=1e-4)
    np.testing.assert_allclose(slopes[1], -1.7 * E * N, rtol=1e-4)
    names = losses_of(cql.recipe(ENV, Static(replace(cql.Config(), {"lagrange": True}))))
    assert names["critic_loss"].parts == ("critic", "multiplier")


# ------------------------------------------------------------------------------------------ Cal-QL


def gap_of(module, returns):
    x = dataclasses.replace(X, extras={"return": returns})
    config = replace(module.Config(), {"num_samples": 3, "next_samples": 1})
    return losses_of(module.recipe(ENV, Static(config)))["critic_loss"](net(), x).metrics["gap"]


def test_values_of_the_policy_count_as_the_datas_return_at_least():
    low = np.full(N, -100.0, np.float32)
    np.testing.assert_array_equal(gap_of(cal_ql, low), gap_of(cql, low))
    # Uniform actions have no bound; the others, of both states, count as twice the return.
    unit = np.asarray(jax.random.uniform(key("uniform"), (3, N, 1)))
    drawn = lambda s, name: jax.vmap(lambda k: policy(s).sample_and_log_prob(seed=k))(
        jax.random.split(key(name), 3)
    )
    (here, p), (after, q) = drawn(X.timestep, "here"), drawn(X.next_timestep, "after")
    floor = 2 * RETURN[:, None]
    bounded = lambda actions: [np.maximum(values(X.timestep, a), floor) for a in actions]
    sampled = [*[values(X.timestep, a) for a in -2 + 4 * unit], *bounded(here), *bounded(after)]
    width = np.log(2.0)
    density = np.concatenate([np.full((3, N), -width), p + width, q + width])
    soft = np.log(np.exp(np.stack(sampled) - density[..., None]).mean(0))
    expected = (soft - values(X.timestep, X.action)).mean(-1)
    np.testing.assert_allclose(gap_of(cal_ql, RETURN), expected, rtol=1e-4, atol=1e-5)
    assert (gap_of(cal_ql, RETURN) > gap_of(cql, RETURN) + 1e-3).any()


def test_the_bound_holds_the_values_that_are_below_it():
    """No gradient lowers a value of the policy's actions that is below the return."""

    def slope(module, height):
        shifted = lambda s, a: values(s, a) + (height if a is not X.action else 0.0)
        x = dataclasses.replace(X, extras={"return": np.full(N, 50.0, np.float32)})
        config = replace(module.Config(), {"num_samples": 3, "next_samples": 1})
        loss = losses_of(module.recipe(ENV, Static(config)))["critic_loss"]
        return loss(net(critic=shifted), x).metrics["gap"].sum()

    height = jnp.float32(0.0)
    assert float(jax.grad(lambda h: slope(cql, h))(height)) == pytest.approx(N, rel=1e-4)
    assert abs(float(jax.grad(lambda h: slope(cal_ql, h))(height))) < 1e-6


def test_an_environment_beside_the_data_is_refused():
    with pytest.raises(UserError, match=r"^cal_ql learns from a dataset alone, since it needs"):
        cal_ql.cal_ql.agent(ENV, replace(cal_ql.Config(), {"num_envs": 4}))
