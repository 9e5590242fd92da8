"""GMAH: when subgoals end, what the low level is paid, and the team's target."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import gmah
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("trash_grid", size=4)
AGENTS, SUBGOALS, ACTIONS, ROWS = ENV.agents, 3, 8, 7
RNG = np.random.default_rng(3)
PATIENCE = 4


def _recipe(double=True):
    config = dataclasses.replace(gmah.Config(), patience=PATIENCE, double=double)
    return gmah.recipe(ENV, Static(config))


def _transitions():
    """Transitions [ROWS] of both agents, with random events."""
    x = transitions(ROWS)
    events = lambda: {
        "reached": RNG.random((ROWS, 2, SUBGOALS)) < 0.3,
        "possible": RNG.random((ROWS, 2, SUBGOALS)) < 0.7,
        "state": np.zeros((ROWS, 1), np.float32),
    }

    def both(timestep):
        told = events()
        told["possible"][..., 0] |= ~told["possible"].any(-1)
        observation = dict.fromkeys(AGENTS, timestep.observation)
        return dataclasses.replace(timestep, observation=observation, privileged=told)

    # An agent follows subgoals that are possible.
    now, told = both(x.timestep), RNG.integers(0, SUBGOALS, (ROWS, 2))
    np.put_along_axis(now.privileged["possible"], told[..., None], True, -1)
    action = {a: RNG.integers(0, ACTIONS, ROWS) for a in AGENTS}
    extras = {
        "subgoal": told,
        "age": RNG.integers(0, PATIENCE, (ROWS, 2)),
    }
    return dataclasses.replace(
        x,
        timestep=now,
        next_timestep=both(x.next_timestep),
        action=action,
        extras=extras,
    )


def _net(high, low):
    """Networks that are tables: high [2, 2N, G] and low [2, 2N, G, A], each also for targets."""
    table = lambda t: lambda timestep: jnp.asarray(t)[timestep.observation][..., None]

    def of_goal(t):
        def values(timestep):
            rows = jnp.asarray(t)[timestep.observation]
            return jnp.einsum("bga,bg->ba", rows, timestep.goal)[..., None]

        return values

    def parts(k):
        highs = {f"{a}_high": table(high[k, i]) for i, a in enumerate(AGENTS)}
        lows = {f"{a}_low": of_goal(low[k, i]) for i, a in enumerate(AGENTS)}
        return highs | lows | {"mixer": lambda state, values: values[..., 0] + 2 * values[..., 1]}

    exploration = {"exploration.start": 0.0, "exploration.end": 0.0, "exploration.steps": 1.0}
    hyper = {"discount": 0.9, "low_discount": 0.8, "decay": 0.5} | exploration
    return stub(target=parts(1), hyper=hyper, env_steps=0.0, **parts(0))


def ends_of(x):
    """Return reached, impossible and out of patience of each row and agent, by loops."""
    events = np.zeros((3, ROWS, 2), bool)
    for b in range(ROWS):
        for i in range(2):
            g = x.extras["subgoal"][b, i]
            events[0, b, i] = x.next_timestep.privileged["reached"][b, i, g]
            events[1, b, i] = not x.next_timestep.privileged["possible"][b, i, g]
            events[2, b, i] = x.extras["age"][b, i] + 1 >= PATIENCE
    return events


@pytest.fixture(scope="module", params=[True, False], ids=["double", "single"])
def double(request):
    return request.param


@pytest.fixture(scope="module")
def losses(double):
    return losses_of(_recipe(double))


def test_a_subgoal_ends_when_it_is_reached_or_impossible_or_too_old():
    x = _transitions()
    over = gmah.is_over(
        x.next_timestep, jnp.asarray(x.extras["subgoal"]), x.extras["age"] + 1, PATIENCE
    )
    np.testing.assert_array_equal(over, ends_of(x).any(0))


def test_the_low_level_is_paid_for_being_soon():
    paid = gmah.low_reward(jnp.array([True, True, True, False]), jnp.array([1, 2, 4, 4]), 4, 0.5)
    np.testing.assert_allclose(paid, [1 - 0.125, 0.75, 0.5, 0])


def test_the_team_learns_the_value_of_subgoals_that_go_on_or_are_chosen_anew(losses, double):
    x, high = _transitions(), RNG.normal(size=(2, 2, 2 * ROWS, SUBGOALS)).astype(np.float32)
    low = np.zeros((2, 2, 2 * ROWS, SUBGOALS, ACTIONS), np.float32)
    value = losses["high_loss"](_net(high, low), x).value
    over = ends_of(x).any(0)
    expected = []
    for b in range(ROWS):
        now, later = 0.0, 0.0
        for i, share in enumerate((1, 2)):
            g = x.extras["subgoal"][b, i]
            now += share * high[0, i, b, g]
            possible = x.next_timestep.privileged["possible"][b, i]
            best = np.where(possible, high[0 if double else 1, i, ROWS + b], -np.inf).argmax()
            following = best if over[b, i] else g
            later += share * high[1, i, ROWS + b, following]
        target = x.reward[b] + 0.9 * later * (not x.terminated[b])
        expected.append((now - target) ** 2 / 2)
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_the_low_level_learns_from_its_own_reward_alone(losses, double):
    x, low = _transitions(), RNG.normal(size=(2, 2, 2 * ROWS, SUBGOALS, ACTIONS)).astype("f")
    high = np.zeros((2, 2, 2 * ROWS, SUBGOALS), np.float32)
    net = _net(high, low)
    value = losses["low_loss"](net, x).value
    reached, impossible, _ = ends_of(x)
    expected = np.zeros(ROWS)
    for b in range(ROWS):
        for i, agent in enumerate(AGENTS):
            g, age = x.extras["subgoal"][b, i], x.extras["age"][b, i] + 1
            best = low[0 if double else 1, i, ROWS + b, g].argmax()
            ends = reached[b, i] or impossible[b, i] or x.terminated[b]
            target = reached[b, i] * (1 - 0.5 * age / PATIENCE)
            target += 0.8 * low[1, i, ROWS + b, g, best] * (not ends)
            expected[b] += (low[0, i, b, g, x.action[agent][b]] - target) ** 2 / 2
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    paid = dataclasses.replace(x.next_timestep, reward=x.reward + 5)
    other = losses["low_loss"](net, dataclasses.replace(x, next_timestep=paid)).value
    np.testing.assert_array_equal(value, other)


def test_agents_keep_their_subgoals_until_they_end():
    recipe = _recipe()
    x = _transitions()
    high = RNG.normal(size=(2, 2, 2 * ROWS, SUBGOALS)).astype(np.float32)
    low = RNG.normal(size=(2, 2, 2 * ROWS, SUBGOALS, ACTIONS)).astype(np.float32)
    net = _net(high, low)
    memory = gmah.Kept(jnp.asarray(x.extras["subgoal"]), jnp.asarray(x.extras["age"] + 1))
    step = dataclasses.replace(x.next_timestep, first=np.arange(ROWS) == 0)
    action, kept, extras = recipe.act(net, step, memory, jax.random.key(0), True)
    over = ends_of(x).any(0) | (np.arange(ROWS) == 0)[:, None]
    for b in range(ROWS):
        for i, agent in enumerate(AGENTS):
            possible = step.privileged["possible"][b, i]
            best = np.where(possible, high[0, i, ROWS + b], -np.inf).argmax()
            g = best if over[b, i] else x.extras["subgoal"][b, i]
            assert extras["subgoal"][b, i] == kept.subgoal[b, i] == g
            assert extras["age"][b, i] == (0 if over[b, i] else x.extras["age"][b, i] + 1)
            assert kept.age[b, i] == extras["age"][b, i] + 1
            assert action[agent][b] == low[0, i, ROWS + b, g].argmax()


def test_environments_without_subgoals_are_refused():
    with pytest.raises(UserError, match="needs subgoals"):
        gmah.gmah(envs.make("speaker_listener", size=3), {})
