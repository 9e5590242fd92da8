"""H2O: discriminators, weights and the regularizer against NumPy, and dynamics of batches."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import h2o, sac_n
from jaxrl.algorithms.offline.shared.variation import Variation, make_variant
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from tests.datasets.stand_in import no_training
from tests.kit.stub import losses_of, stub, transitions

__all__ = ["no_training"]

ENV = envs.make("pendulum")  # actions in [-2, 2]
N, E, K = 8, 2, 3
RNG = np.random.default_rng(4)
REAL = np.array([True, False, False, True, False, False, True, False])
SEEN = RNG.normal(size=(2 * N, 2)).astype(np.float32)
X = transitions(N, actions=0, real=REAL)
X = dataclasses.replace(
    X,
    timestep=dataclasses.replace(X.timestep, observation=SEEN[:N]),
    next_timestep=dataclasses.replace(X.next_timestep, observation=SEEN[N:]),
    action=X.action[:, None],
)
HYPER = {"discount": 0.9, "reward_scale": 2.0, "beta": 0.3, "softness": 0.7, "spread": 0.8}
HYPER |= {"lowest_ratio": 0.2, "discriminators.noise": 0.0}


def key(name=""):
    return jax.random.fold_in(random.key(5), zlib.crc32(name.encode()))


def pair_logit(s, a):
    return s[..., 0] - a[..., 0]


def more_logit(s, a, after):
    return 1.5 * s[..., 1] + 2.0 * a[..., 0] - after[..., 0]


def value(s, a):
    return jnp.sin(s[..., :1]) * jnp.array([1.0, -2.0]) + a


class Policy:
    def __init__(self, s):
        self.mean = s[..., 1:]

    def sample_and_log_prob(self, seed):
        return self.mean, jnp.full(len(self.mean), 7.0)  # a log-probability that nothing may use


def net(**hyper):
    critic = lambda s, a: value(s.observation, a)
    return stub(
        actor=lambda timestep: Policy(timestep.observation),
        critic=critic,
        target={"critic": critic},
        temperature=lambda: jnp.float32(0.3),
        pairs=lambda s, a: pair_logit(s.observation, a)[..., None],
        transitions=lambda s, a: more_logit(s.observation, a, s.goal[1])[..., None],
        key=key,
        hyper=HYPER | hyper,
    )


def output(name, **hyper):
    config = replace(h2o.Config(), {"next_samples": K})
    return losses_of(h2o.recipe(ENV, Static(config)))[name](net(**hyper), X)


def limit(x):
    return 4 * np.tanh(np.asarray(x) / 4)


def odds(after):
    """Log-odds of pairs, and of transitions to the observations `after`."""
    pairs = limit(pair_logit(SEEN[:N], X.action))
    return pairs, pairs + limit(more_logit(SEEN[:N], X.action, after))


def test_the_discriminators_tell_both_sources_apart_in_equal_shares():
    found = output("discriminator_loss")
    each = 0.0
    for logit in odds(SEEN[N:]):
        each = each + np.where(REAL, np.log1p(np.exp(-logit)), np.log1p(np.exp(logit)))
    expected = each[REAL].mean() + each[~REAL].mean()
    np.testing.assert_allclose(found.value.mean(), expected, rtol=1e-5)
    right = (odds(SEEN[N:])[0] > 0) == REAL
    balanced = (right[REAL].mean() + right[~REAL].mean()) / 2
    np.testing.assert_allclose(found.metrics["pairs_accuracy"].mean(), balanced, rtol=1e-5)
    noisy = output("discriminator_loss", **{"discriminators.noise": 0.5})
    assert abs(float(noisy.value.mean() - found.value.mean())) > 1e-3


def test_simulated_errors_count_by_the_ratio_of_probabilities_and_real_ones_fully():
    q = np.asarray(value(SEEN[:N], X.action))
    following = np.asarray(value(SEEN[N:], SEEN[N:, 1:])).min(-1)
    target = 2 * X.reward + 0.9 * ~X.terminated * following
    error = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    pairs, all_three = odds(SEEN[N:])
    ratio = np.clip(np.exp(all_three - pairs), 0.2, 1.0)
    assert (ratio < 1).any() and (ratio == 1).any()
    expected = error[REAL].mean() + (ratio * error)[~REAL].mean()
    np.testing.assert_allclose(output("critic_loss", beta=0.0).value.mean(), expected, rtol=1e-4)


def test_values_fall_where_the_simulator_is_wrong_and_rise_on_data():
    spread = 0.8 * SEEN[:N][REAL].std(0)
    keys = jax.random.split(key("next_states"), K)
    noise = [spread * np.asarray(jax.random.normal(k, (N, 2))) for k in keys]
    gaps = [np.subtract(*odds(SEEN[N:] + offset)) for offset in noise]
    gap = np.clip(np.mean(gaps, 0), 0, 10)
    omega = gap[~REAL] / gap[~REAL].sum()
    q = np.asarray(value(SEEN[:N], X.action))
    soft = 0.7 * np.log((np.exp(q[~REAL] / 0.7) * omega[:, None] ** (1 / 0.7)).sum(0))
    expected = 0.3 * (soft - q[REAL].mean(0)).sum()
    found, plain = output("critic_loss"), output("critic_loss", beta=0.0)
    np.testing.assert_allclose((found.value - plain.value).mean(), expected, rtol=1e-4)
    mean = found.metrics["simulated_gap"].mean()
    np.testing.assert_allclose(mean, gap[~REAL].mean(), rtol=1e-4)


def test_the_policys_loss_is_that_of_sac():
    plain = losses_of(sac_n.recipe(ENV, Static(sac_n.Config())))["actor_loss"](net(), X)
    np.testing.assert_allclose(output("actor_loss").value, plain.value)


@pytest.mark.slow
def test_batches_have_data_of_the_environment_and_steps_of_the_simulator(no_training):
    settings = {k: v for k, v in h2o.TINY.items() if k != "env"}
    algorithm = h2o.h2o(ENV, settings | {"simulator.value": 30.0})
    source = algorithm.source

    @jax.jit
    def draw(key):
        policy = algorithm.policy(algorithm.init(key, algorithm.hyper))
        state, fresh, _ = source.collect(source.init(key, algorithm.hyper, policy), policy, key)
        return source.sample(state, fresh, key).transitions

    x = draw(random.key(0))
    assert x.extras["real"].sum() == 4 and len(x.reward) == 8
    states = jax.vmap(ENV.state_of)(x.timestep)
    simulator = make_variant(ENV, Variation("gravity", 30.0))
    for env, own in ((ENV, x.extras["real"]), (simulator, ~x.extras["real"])):
        step = jax.vmap(env.step, in_axes=(None, 0, 0, None))
        after = step(random.key(0), states, x.action, env.params)[1].observation
        near = np.abs(after - x.next_timestep.observation).max(-1) < 1e-3
        assert near[own].all() and not near[~own].all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data.num_envs": 0}, r"^h2o learns from real data and in a simulator: name a dataset"),
        ({"data.name": ""}, r"^h2o learns from real data and in a simulator"),
        ({"simulator.vary": "weather"}, r"weather"),
    ],
)
def test_a_missing_source_or_parameter_is_refused(settings, said):
    with pytest.raises(UserError, match=said):
        h2o.h2o.agent(ENV, replace(h2o.Config(), settings))
