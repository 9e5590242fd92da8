import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hyper
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Agent, Batch, Environment, Info, TimeStep, Transition
from jaxrl.kit.learner import learner
from jaxrl.kit.normalization import (
    add,
    no_moments,
    normalize_observation,
    normalize_reward,
    statistics_of,
)
from jaxrl.kit.recipe import Recipe

T, B = 6, 4
SPACE = {"real": Box(-9.0, 9.0, (2,)), "which": Discrete(3), "pixels": Box(0, 255, (2,), jnp.uint8)}
ENV = Environment("none", None, None, (), SPACE, Discrete(2))


def recorder(hyper=None):
    """An agent whose state is what it saw last, when acting and when learning."""

    def update(state, batch, key):
        return batch, Info({})

    def act(state, timestep, memory, key, greedy):
        return timestep, memory, {}

    defaults = {"discount": np.float32(0.9)} if hyper is None else hyper
    return Agent("recorder", lambda key, hyper: (), act, update, hyper=defaults)


def timesteps(seed, shape=(T, B)):
    rng = np.random.default_rng(seed)
    real = (rng.normal(size=(*shape, 2)) * [1, 50] + [3, -200]).astype(np.float32)
    flags = jnp.asarray(rng.random((3, *shape)) < 0.2)
    return TimeStep(
        {
            "real": jnp.asarray(real),
            "which": jnp.asarray(rng.integers(0, 3, shape), jnp.int32),
            "pixels": jnp.asarray(rng.integers(0, 255, (*shape, 2)), jnp.uint8),
        },
        jnp.asarray(rng.normal(size=shape) + 1, jnp.float32),
        flags[0],
        flags[1],
        flags[2],
    )


def batch(seed):
    return Batch(
        Transition(timesteps(seed), (), timesteps(seed + 100), (), {}),
        jnp.float32(0),
        tail=(timesteps(seed + 200, (B,)), ()),
    )


@pytest.mark.slow
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.floats(-1e3, 1e3))
def test_moments_are_those_of_all_values(sizes, offset):
    rng = np.random.default_rng(len(sizes))
    chunks = [(rng.normal(size=(n, 2, 3)) + offset).astype(np.float32) for n in sizes]
    moments = no_moments((3,))
    np.testing.assert_array_equal(moments.deviation, 1)
    for chunk in chunks:
        moments = add(moments, jnp.asarray(chunk))
    values = np.concatenate(chunks).reshape(-1, 3).astype(np.float64)
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.deviation, values.std(0), rtol=2e-3, atol=1e-3)


def test_moments_of_scalars_and_of_one_value():
    moments = add(no_moments(()), jnp.array([2.0]))
    assert moments.mean == 2 and moments.count == 1 and jnp.isfinite(moments.deviation)
    np.testing.assert_allclose(add(moments, jnp.array([4.0])).deviation, 1, rtol=1e-5)


def test_padding_is_not_counted():
    rng = np.random.default_rng(3)
    values, mask = rng.normal(size=(4, 5, 3)).astype(np.float32), rng.random((4, 5)) < 0.6
    garbage = np.where(mask[..., None], values, np.inf).astype(np.float32)
    moments = add(add(no_moments((3,)), jnp.asarray(values[:2])), garbage[2:], mask[2:])
    expected = np.concatenate([values[:2].reshape(-1, 3), values[2:][mask[2:]]])
    assert moments.count == len(expected)
    np.testing.assert_allclose(moments.mean, expected.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.deviation, expected.std(0), rtol=1e-3)
    nothing = add(no_moments((3,)), garbage, np.zeros((4, 5), bool))
    assert nothing.count == 0 and np.isfinite(nothing.mean).all()


def standardize(x, seen):
    if len(seen) == 0:
        return np.clip(x, -10, 10)
    seen = np.concatenate([s.reshape(-1, 2) for s in seen])
    return np.clip((x - seen.mean(0)) / seen.std(0), -10, 10)


def test_observations_are_seen_with_the_old_statistics_which_are_updated_after():
    agent = normalize_observation(recorder(), ENV)
    state, seen = agent.init(random.key(0), {}), []
    for i in range(3):
        data = batch(i)
        acted_on, _, _ = agent.act(state, data.tail[0], (), None, False)
        expected = standardize(np.asarray(data.tail[0].observation["real"]), seen)
        np.testing.assert_allclose(acted_on.observation["real"], expected, rtol=1e-3, atol=1e-3)
        state, _ = agent.update(state, data, random.key(0))
        learned_from = state.agent
        for got, given_ in (
            (learned_from.transitions.timestep, data.transitions.timestep),
            (learned_from.transitions.next_timestep, data.transitions.next_timestep),
            (learned_from.tail[0], data.tail[0]),
        ):
            expected = standardize(np.asarray(given_.observation["real"]), seen)
            np.testing.assert_allclose(got.observation["real"], expected, rtol=1e-3, atol=1e-3)
            # Integers stay as they are, and so does everything but the observation.
            for part in ("which", "pixels"):
                np.testing.assert_array_equal(got.observation[part], given_.observation[part])
                assert got.observation[part].dtype == given_.observation[part].dtype
            np.testing.assert_array_equal(got.reward, given_.reward)
        seen.append(np.asarray(data.transitions.observation["real"]))
    assert state.own[0] is None or state.own[1] is None  # "pixels" and "which"


def test_observations_are_clipped():
    agent = normalize_observation(recorder(), ENV, clip=2.0)
    state, _ = agent.update(agent.init(random.key(0), {}), batch(0), random.key(0))
    step = batch(1).tail[0]
    far = dataclasses.replace(step, observation=step.observation | {"real": jnp.full((B, 2), 1e9)})
    assert (agent.act(state, far, (), None, False)[0].observation["real"] == 2).all()


@pytest.mark.parametrize("discount", [0.9, 0.0])
def test_rewards_are_divided_by_the_deviation_of_the_running_return(discount):
    agent = normalize_reward(recorder(), B)
    state = agent.init(random.key(0), {"discount": discount})
    running, seen = np.zeros(B), []
    for i in range(4):
        data = batch(i)
        state, _ = agent.update(state, data, random.key(0))
        got = state.agent.transitions.next_timestep
        deviation = np.std(seen) if seen else 1.0
        reward = np.asarray(data.transitions.reward, np.float64)
        np.testing.assert_allclose(got.reward, np.clip(reward / deviation, -10, 10), rtol=1e-3)
        np.testing.assert_array_equal(got.done, data.transitions.done)
        np.testing.assert_array_equal(
            state.agent.transitions.timestep.reward, data.transitions.timestep.reward
        )
        for t in range(T):
            running = discount * running + reward[t]
            seen.extend(running)
            running = np.where(data.transitions.done[t], 0.0, running)
        np.testing.assert_allclose(state.own.running, running, rtol=1e-4, atol=1e-5)
    assert (np.asarray(state.own.running) != 0).any()


def test_rewards_are_clipped():
    agent = normalize_reward(recorder(), B, clip=0.5)
    state, _ = agent.update(agent.init(random.key(0), {"discount": 0.9}), batch(0), random.key(0))
    reward = np.asarray(state.agent.transitions.reward)
    assert np.abs(reward).max() == 0.5 and np.abs(reward).min() < 0.5


def test_returns_of_steps_that_do_not_count_are_not_counted():
    """Such as those of an agent that has died, whose every step ends an episode."""
    agent, data = normalize_reward(recorder(), B), batch(0)
    mask = np.arange(T)[:, None] < 1 + np.arange(B) % 4
    data = dataclasses.replace(data, mask=jnp.asarray(mask))
    state, _ = agent.update(agent.init(random.key(0), {"discount": 0.0}), data, random.key(0))
    counted = np.asarray(data.transitions.reward)[mask]
    assert float(state.own.moments.count) == mask.sum()
    np.testing.assert_allclose(state.own.moments.mean, counted.mean(), rtol=1e-5)
    np.testing.assert_allclose(state.own.moments.deviation, counted.std(), rtol=1e-4)


def test_windows_of_another_number_of_streams():
    agent = normalize_reward(recorder(), B + 1)
    state = agent.init(random.key(0), {"discount": 0.9})
    with pytest.raises(UserError, match=r"returns of 5 streams.*\[6, 4\]"):
        agent.update(state, batch(0), random.key(0))


def test_a_warm_start_takes_moments_of_rewards_over_and_begins_to_sum_anew():
    """The other agent may have other environments, or no moments."""
    agent, other = (normalize_reward(recorder(), n) for n in (B, 2 * B))
    mine = agent.init(random.key(0), agent.hyper)
    theirs = other.init(random.key(0), other.hyper)
    moments = add(no_moments(()), jnp.float32([1, 5]))
    seen = dataclasses.replace(theirs.own, running=jnp.ones(2 * B), moments=moments)
    begun = agent.adopt(mine, dataclasses.replace(theirs, agent="learned", own=seen))
    assert begun.agent == "learned" and begun.own.moments is seen.moments
    np.testing.assert_array_equal(begun.own.running, np.zeros(B))
    begun = agent.adopt(mine, "learned")
    assert begun.agent == "learned" and begun.own is mine.own


def test_an_agent_without_a_discount():
    with pytest.raises(UserError, match="'recorder' has none"):
        normalize_reward(recorder(hyper={}), B)


def test_what_the_agent_says_of_itself_is_kept():
    inner = dataclasses.replace(recorder(), needs=("tail",), config="config", memory=lambda n: 7)
    for outer in (normalize_observation(inner, ENV), normalize_reward(inner, B)):
        assert outer.needs == ("tail",) and outer.config == "config" and outer.memory(1) == 7
        assert outer.hyper == inner.hyper
        assert "recorder" in outer.name and outer.name != "recorder"


# ------------------------------------------------------------------------------- any observation


@dataclasses.dataclass(frozen=True)
class Config:
    discount: float = hyper(0.9)


DEFAULTS = {"discount": jnp.float32(0.9)}


def recipe_agent():
    """A learner that normalizes raw time steps itself: its `extra` is what came out."""
    raw = timesteps(7)

    def update(net, batch):
        return net.replace(extra=(net.normalize(raw), net.normalize(raw.observation)))

    def act(net, timestep, memory, key, greedy):
        return (timestep, net.normalize(raw)), memory, {}

    recipe = Recipe({}, act, (), update, extra=(raw, raw.observation))
    return learner("raw", Config(), recipe), raw


@pytest.mark.parametrize("rewards", [False, True])
def test_recipes_put_any_observation_on_the_scale_of_a_batch(rewards):
    inner, raw = recipe_agent()
    if rewards:  # between the normalization and the learner
        inner = normalize_reward(inner, B)
    agent = normalize_observation(inner, ENV, clip=2.0)
    state = agent.init(random.key(0), DEFAULTS)
    for i in (0, 7):  # the second batch is the raw time steps themselves
        before = state
        state, _ = agent.update(state, batch(i), random.key(0))
    learner_state = state.agent.agent if rewards else state.agent
    seen = normalize_observation(recorder(), ENV, clip=2.0)
    expected, _ = seen.update(dataclasses.replace(before, agent=()), batch(7), random.key(0))
    expected = expected.agent.transitions.timestep
    for found in (learner_state.extra[0].observation, learner_state.extra[1]):
        for name in SPACE:
            np.testing.assert_array_equal(found[name], expected.observation[name])
    assert (np.asarray(found["real"]) != np.asarray(raw.observation["real"])).all()
    (acted_on, by_hand), _, _ = agent.act(state, raw, (), random.key(0), True)
    for name in SPACE:
        np.testing.assert_array_equal(acted_on.observation[name], by_hand.observation[name])
    # What is stored holds the statistics once.
    assert jax.tree.structure(state) == jax.tree.structure(before)
    assert learner_state.normalizer is None


def test_nothing_is_normalized_where_normalization_is_off():
    agent, raw = recipe_agent()
    state, _ = agent.update(agent.init(random.key(0), DEFAULTS), batch(0), random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state.extra[0], raw)


def test_fixed_statistics_are_those_of_the_dataset_and_stay():
    data = timesteps(3, (50,)).observation
    fixed = statistics_of(ENV, jax.tree.map(np.asarray, data), clip=2.0)
    agent = normalize_observation(recorder(), ENV, statistics=fixed)
    state = agent.init(random.key(0), {})
    real = np.asarray(data["real"], np.float64)
    for i in range(2):
        state, _ = agent.update(state, batch(i), random.key(0))
        given_ = np.asarray(batch(i).transitions.observation["real"])
        expected = np.clip((given_ - real.mean(0)) / real.std(0), -2, 2)
        found = state.agent.transitions.observation["real"]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
