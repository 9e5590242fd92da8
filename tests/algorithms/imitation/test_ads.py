"""ADS: alignments and transport by brute force, progress, and the discount that PPO learns with."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import ads
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.wrappers import time_limit
from tests.algorithms.imitation.test_gail import start_agent

ENV = envs.make("catch", rows=5, columns=3)
SETTINGS = {k: v for k, v in ads.TINY.items() if k not in ("env", "env_params")}
RNG = np.random.default_rng(0)
T = 6


def longest(positions):
    """The longest strictly increasing subsequence, of all subsequences."""
    for n in range(len(positions), 0, -1):
        for chosen in itertools.combinations(positions, n):
            if all(a < b for a, b in itertools.pairwise(chosen)):
                return n
    return 0


def brute_alignment(cost, length, shown, progress):
    return longest(cost[: min(length, progress), : min(shown, progress)].argmin(1))


def test_only_the_first_steps_that_exist_are_aligned():
    align = jax.jit(ads.alignment)
    for progress, length, shown in itertools.product((1, 3, T), (2, T), (4, T)):
        for cost in RNG.normal(size=(4, T, T)).astype(np.float32):
            found = align(cost, jnp.int32(length), jnp.int32(shown), jnp.int32(progress))
            assert found == brute_alignment(cost, length, shown, progress)


@pytest.mark.parametrize("count", [1, 3])
def test_demonstrations_are_compared_with_each_other(count):
    x = RNG.normal(size=(T, count, 2)).astype(np.float32)
    cost = np.linalg.norm(x[:, None, :, None] - x[None, :, None], axis=-1)  # [T, T, M, M]
    cost = cost.transpose(2, 3, 0, 1)
    np.testing.assert_allclose(ads.costs(x, x), cost, atol=1e-5)
    pairs = [(i, j) for i, j in np.ndindex(count, count) if i != j] or [(0, 0)]
    expected = [
        np.percentile([brute_alignment(cost[pair], T, T, n) for pair in pairs], 50)
        for n in range(1, T + 1)
    ]
    found = ads.reference_alignments(cost, jnp.full(count, T), 50.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if count == 1:
        np.testing.assert_array_equal(found, np.arange(1, T + 1))


def test_rewards_are_what_transport_to_the_nearest_demonstration_costs():
    x, y = (RNG.normal(size=(T, n, 2)).astype(np.float32) for n in (2, 3))
    y[:, 1] = x[::-1, 1]  # in any order: transport does not see time
    cost = np.asarray(ads.costs(x, y))
    reward = ads.transport_rewards(cost, np.ones((T, 2)), np.ones((T, 3)), 0.01, 1_000)
    best = []
    for i in range(2):
        plans = [(cost[i, j, np.arange(T), list(order)], j) for j in range(3)
                 for order in itertools.permutations(range(T))]  # fmt: skip
        each, _ = min(plans, key=lambda plan: plan[0].sum())
        best.append(-each / T)
    np.testing.assert_allclose(reward.T, best, atol=0.03)  # almost as cheap plans are mixed
    np.testing.assert_allclose(reward.sum(0), np.sum(best, 1), atol=5e-3)
    np.testing.assert_allclose(reward[:, 1], 0.0, atol=2e-3)
    assert reward[:, 0].sum() < -0.1


def test_steps_after_an_episodes_end_have_no_part_in_the_transport():
    x, y = (RNG.normal(size=(T, 1, 2)).astype(np.float32) for _ in range(2))
    exists, shown = (np.arange(T)[:, None] < n for n in (3, 3))
    far = x + 1e3 * ~exists[..., None]
    one, other = (
        ads.transport_rewards(ads.costs(a, y), exists, shown, 0.1, 50)[:3] for a in (x, far)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)
    alone = ads.transport_rewards(ads.costs(x[:3], y[:3]), exists[:3], shown[:3], 0.1, 50)
    np.testing.assert_allclose(one, alone, rtol=1e-4)


def test_progress_grows_by_what_is_mastered():
    reference = jnp.float32([1, 2, 3, 3.5])
    advance = lambda p, match: int(ads.advance(jnp.int32(p), match, reference, jnp.float32(0.9)))
    assert advance(1, 0.0) == 2  # the whole part of 0.9 is none
    assert advance(2, 0.5) == 2 and advance(2, 1.0) == 3
    assert advance(3, 1.9) == 3 and advance(3, 2.0) == 4
    assert advance(4, 9.0) == 4  # the whole episode
    assert advance(3, np.float32(2.0 - 1e-6)) == 4  # rounded


@pytest.mark.slow
def test_a_policy_that_does_as_the_expert_is_soon_given_the_whole_episode():
    """The discount follows progress, and neither rewards nor actions are read of the expert."""
    changes = {"normalization.observation": False, "schedule.largest_step": 2}
    changes |= {"schedule.start": 0.3, "shown.episodes": 1, "memory.recurrent": 0}
    agent, state, batch = start_agent(ads.ads, ENV, SETTINGS | changes)
    config = ads.ads.complete_config(SETTINGS | changes)
    shown = ads.show(ENV, config.shown.episodes, config.shown.seed)
    x = batch.transitions
    update = jax.jit(agent.update)
    like = jax.tree.map(lambda a: jnp.repeat(a, 8, 1), shown.observation)
    copied = dataclasses.replace(x.next_timestep, observation=like)
    good = dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=copied))
    still = jax.tree.map(lambda a: jnp.broadcast_to(a[-1:], a.shape), like)
    stuck = dataclasses.replace(x.next_timestep, observation=still)
    bad = dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=stuck))
    results = {}
    for name, each in {"good": good, "bad": bad}.items():
        now, found = state, []
        for i in range(3):
            now, info = update(now, each, random.key(i))
            found.append({k: float(v) for k, v in info.metrics.items() if jnp.ndim(v) == 0})
        results[name] = found
    assert [m["progress"] for m in results["good"]] == [3, 4, 4]
    assert [m["progress"] for m in results["bad"]] == [3, 3, 3]
    for m in (*results["good"], *results["bad"]):
        np.testing.assert_allclose(m["scheduled_discount"], 0.2 ** (1 / m["progress"]), rtol=1e-5)
    assert results["good"][-1]["imitation_reward"] > results["bad"][-1]["imitation_reward"]
    np.testing.assert_allclose(results["bad"][0]["imitation_reward"], -10.0, rtol=1e-4)
    other = dataclasses.replace(x.next_timestep, reward=5.0 - 3 * x.reward)
    changed = dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=other))
    new, same = (update(state, b, random.key(3))[0] for b in (batch, changed))
    for a, b in zip(jax.tree.leaves(new.parts), jax.tree.leaves(same.parts), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_rewards_are_scaled_in_the_units_that_they_are_paid_in():
    """The first batch is not normalized yet, and pendulum's velocities are no standardized ones."""
    env = time_limit(envs.make("pendulum"), SETTINGS["num_steps"])
    agent, state, batch = start_agent(ads.ads, env, SETTINGS)
    update, paid = jax.jit(agent.update), []
    for i in range(3):
        state, info = update(state, batch, random.key(i))
        paid.append(float(info.metrics["imitation_reward"]))
    np.testing.assert_allclose(paid, -10.0, rtol=1e-3)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        (ENV, {"num_steps": 3}, "both must be equal"),
        (ENV, {"reset_pool": 8}, "reset_pool is 8; ads learns from whole episodes"),
        (envs.make("hopper"), {}, "has none"),
        (ENV, {"normalization.reward": True}, "normalization.reward is on"),
    ],
)
def test_what_does_not_fit_is_refused(env, changes, message):
    with pytest.raises(UserError, match=message):
        ads.ads.agent(env, SETTINGS | changes)
