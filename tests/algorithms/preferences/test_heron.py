"""HERON: comparisons by ranked factors, the scales of factors, and what PPO learns from."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences import heron as of_heron
from jaxrl.algorithms.preferences.heron import (
    compare_segments,
    cut_segments,
    factors_of,
    heron,
    ranked_factors,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import Transition
from jaxrl.envs.wrappers import reward_components
from jaxrl.kit import Minibatch
from tests.kit.stub import losses_of, stub

FRUIT = envs.make("fruit_collection")
SIZES = {
    "num_envs": 8,
    "num_steps": 16,
    "passes.epochs": 1,
    "passes.minibatches": 1,
    "reward.passes.minibatches": 4,
    "torso.hidden": (8,),
    "reward.torso.hidden": (8,),
}
RNG = np.random.default_rng(0)


def angle(timestep):
    cos, sin, _ = timestep.observation
    return jnp.arctan2(sin, cos)


MEASURES = {
    "torque": lambda before, action, after: -jnp.square(action[0]),
    "upright": lambda before, action, after: -jnp.square(angle(after)),
    "velocity": lambda before, action, after: -jnp.square(after.observation[2]),
}


def pendulum(torque_scale=1.0):
    """The pendulum, whose factors are known and whose own reward is theirs in another mixture."""
    measures = MEASURES | {"torque": lambda *x: torque_scale * MEASURES["torque"](*x)}
    return reward_components(envs.make("pendulum"), measures)


# ---------------------------------------------------------------------------------- comparisons


def test_the_first_factor_that_differs_by_more_than_its_margin_decides():
    factors = RNG.normal(size=(3, 64, 2)).round(1).astype(np.float32)
    done = RNG.random((3, 64)) < 0.1
    margins, order = np.array([1.2, 0.6]), RNG.permutation(64)
    columns, known = compare_segments(
        jnp.asarray(factors), jnp.asarray(done), jnp.asarray(margins), jnp.asarray(order)
    )
    total = factors.sum(0)
    width, seen = margins * total.std(0), set()
    for i, (a, b) in enumerate(order.reshape(-1, 2)):
        counts = not done[:2, a].any() and not done[:2, b].any()
        apart = total[a] - total[b]
        decisive = [k for k in range(2) if abs(apart[k]) > width[k]]
        assert known[i] == (counts and bool(decisive))
        seen.add(decisive[0] if decisive else None)
        if decisive:
            expected = [a, b] if apart[decisive[0]] > 0 else [b, a]
            np.testing.assert_array_equal(columns[2 * i : 2 * i + 2], expected)
    assert seen == {0, 1, None}


def test_segments_are_neighboring_steps_of_one_environment():
    window = jnp.arange(6 * 2).reshape(6, 2)  # [T, B]
    found = np.asarray(cut_segments(window, 3))
    assert sorted(found.T.tolist()) == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_factors_are_in_the_order_of_the_ranking():
    example = jax.eval_shape(lambda: FRUIT.reset(random.key(0), FRUIT.params))[1]
    names = factors_of(FRUIT)
    values = {name: jnp.full(4, float(i)) for i, name in enumerate(names)}
    after = dataclasses.replace(example, reward_components=values)
    t = Transition(example, 0, after, (), {})
    found = ranked_factors(t, [names[i] for i in (3, 1, 4)])
    np.testing.assert_array_equal(found, np.tile([3.0, 1.0, 4.0], (4, 1)))


def test_the_loss_compares_sums_of_rewards():
    config = Static(heron.complete_config(SIZES | {"reward.length": 3}))
    loss = losses_of(of_heron.recipe(FRUIT, config))["reward_loss"]
    paid = RNG.normal(size=(3, 8)).astype(np.float32)
    net = stub(reward=lambda timestep, action: jnp.asarray(paid)[..., None])
    found = loss(net, Minibatch(Transition(None, None, None, (), {})))  # type: ignore[arg-type]
    lead = paid.sum(0)[::2] - paid.sum(0)[1::2]
    np.testing.assert_allclose(found.value, np.log1p(np.exp(-lead)), rtol=1e-5)


# -------------------------------------------------------------------------------------- updates


def params_after(env, config, updates=2):
    algorithm = heron(env, config)
    run = start(algorithm, random.key(0))
    for _ in range(updates):
        run, metrics = advance(algorithm, run)
    return jax.tree.leaves({k: p.params for k, p in run.state.agent.parts.items()}), metrics


def test_scales_of_factors_and_the_environments_reward_change_nothing():
    """Powers of two, so that no rounding differs; a margin is in standard deviations."""
    config = SIZES | {"reward.order": (1, 2, 0), "reward.margins": (1.0, 1.0, 0.1)}
    plain, metrics = params_after(pendulum(), config)
    assert 0 < metrics["decided"].value() < 1
    scaled, _ = params_after(pendulum(2.0**10), config)
    paid = reward_components(
        envs.make("pendulum"), MEASURES, {"torque": -8.0, "upright": 0.0, "velocity": 3.0}
    )
    other, _ = params_after(paid, config)
    assert all(map(np.array_equal, plain, scaled))
    assert all(map(np.array_equal, plain, other))
    ranked, _ = params_after(pendulum(), config | {"reward.order": (0, 2, 1)})
    assert not all(map(np.array_equal, plain, ranked))


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"'cartpole' has no components, which heron ranks"):
        heron(envs.make("cartpole"), SIZES)
    with pytest.raises(UserError, match=r"reward\.order is \[1, 1\]; it must name different"):
        heron(FRUIT, SIZES | {"reward.order": (1, 1)})
    with pytest.raises(UserError, match=r"reward\.order is \[0, 99\]; it must name different"):
        heron(FRUIT, SIZES | {"reward.order": (0, 99)})
    with pytest.raises(UserError, match=r"reward\.margins has 2 entries; it must have 1, or 1"):
        heron(FRUIT, SIZES | {"reward.order": (0, 1, 2), "reward.margins": (0.0, 0.1)})
    with pytest.raises(UserError, match=r"16 steps do not divide into segments of reward\.length"):
        heron(FRUIT, SIZES | {"reward.length": 3})


# ------------------------------------------------------------------------------------- learning


@pytest.mark.slow
def test_a_ranking_is_enough_to_swing_a_pendulum_up():
    config = {
        "num_envs": 16,
        "num_steps": 128,
        "passes.epochs": 8,
        "passes.minibatches": 8,
        "optimizer.learning_rate": 1e-3,
        "reward.order": (1, 2, 0),
        "reward.margins": (0.2,),
        "normalization.observation": True,
        "discount": 0.9,
    }
    algorithm = heron(pendulum(), config)
    run = jax.jit(functools.partial(start, algorithm))(random.key(0))
    learn = jax.jit(lambda run: train(algorithm, run, 25))
    returns = []
    for _ in range(4):
        run, metrics = learn(run)
        returns.append(float(metrics["episode_return"].value()))
    assert returns[0] < -900 and returns[-1] > -450, returns
