"""MinAtar's five games, transition by transition against the published package `minatar`."""

from __future__ import annotations

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import registry
from jaxrl.envs.pixels import minatar

pytest.importorskip("minatar")
from tests.envs.pixels import published

GAMES = tuple(published.RULES)
POSITIONS = 1500


@functools.cache
def _programs(name):
    """Compile the rules once: a batch of draws, and a batch of steps with screens."""
    rules = published.RULES[name]

    def step(state, action, draws, params):
        after, reward, terminated = rules.transition(state, action, draws, params)
        return after, reward, terminated, rules.observe(after, params), rules.observe(state, params)

    chance = jax.vmap(rules.chance, in_axes=(0, None))
    return jax.jit(chance), jax.jit(jax.vmap(step, in_axes=(0, 0, 0, None)))


def _draws(name, rng, n):
    words = rng.integers(0, 2**32, (n, published.RULES[name].step_words), dtype=np.uint32)
    draws = _programs(name)[0](words, published.RULES[name].params)
    return draws, jax.tree.map(np.asarray, draws)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_every_transition_is_the_packages(name):
    """Compare from random positions; every number that the package asks for is what ours drew."""
    params = published.RULES[name].params
    settings = [True, False] if hasattr(params, "ramping") else [True]
    for ramping in settings:
        rng = np.random.default_rng(ramping)
        positions = [published.random_position(name, rng) for _ in range(POSITIONS)]
        actions = rng.integers(0, 6, POSITIONS).astype(np.int32)
        draws, drawn = _draws(name, rng, POSITIONS)
        states = published.stack([published.state(name, p) for p in positions])
        if hasattr(params, "ramping"):
            params = dataclasses.replace(params, ramping=ramping)
        ours = jax.tree.map(np.asarray, _programs(name)[1](states, actions, draws, params))

        env = published.game(name, ramping)
        happened = []
        for i, before in enumerate(positions):
            draw, (after, reward, terminated, screen, screen_before) = jax.tree.map(
                lambda x: x[i],  # noqa: B023
                (drawn, ours),
            )
            vars(env).update(copy.deepcopy(before), terminal=False)
            env.random = published.Scripted(published.script(name, draw, before))
            where = lambda: f"{before} action {actions[i]} draws {draw}"  # noqa: B023
            assert np.array_equal(screen_before, env.state()), where()
            theirs = env.act(actions[i])
            assert (float(reward), bool(terminated)) == (float(theirs[0]), theirs[1]), where()
            expected = published.state(name, published.position(env, before))
            assert published.comparable(name, after) == published.comparable(name, expected), (
                where()
            )
            assert np.array_equal(screen, env.state()), where()
            happened.append((theirs[0] > 0, theirs[1]))
        rewarded, ended = np.mean(happened, axis=0)
        assert 0.02 < rewarded < 0.9
        assert (0.02 < ended < 0.8) or name == "freeway"  # which ends only by its clock


@pytest.mark.parametrize("name", GAMES)
def test_episodes_start_as_the_packages(name):
    rules = published.RULES[name]
    env = published.game(name)
    words = np.random.default_rng(0).integers(0, 2**32, (64, rules.start_words), dtype=np.uint32)
    starts = jax.jit(jax.vmap(rules.start, in_axes=(0, None)))(words, rules.params)
    starts = jax.tree.map(np.asarray, starts)
    seen = set()
    for i in range(64):
        start = jax.tree.map(lambda x: x[i], starts)  # noqa: B023
        said = [int(start.x > 0)] if name == "breakout" else []
        if name == "freeway":
            said = published.script(name, start.speed, {})
        env.random = published.Scripted(said)
        env.reset()
        expected = published.comparable(name, published.state(name, vars(env)))
        assert published.comparable(name, start) == expected
        seen.add(str(expected))
    assert len(seen) == {"breakout": 2, "freeway": 64}.get(name, 1)


def _uniform(*columns):
    """Check that the rows of integer `columns` take each combination equally often."""
    values = np.stack(columns, 1)
    values = values - values.min(0)
    sizes = values.max(0) + 1
    counts = np.bincount(np.ravel_multi_index(values.T, sizes), minlength=np.prod(sizes))
    return stats.chisquare(counts).pvalue > 1e-4


def test_random_events_are_as_frequent_as_in_the_package():
    rng, n = np.random.default_rng(1), 200_000
    thirds = lambda happens: abs(happens.mean() - 1 / 3) < 0.005
    _, draws = _draws("asterix", rng, n)
    eighth = np.floor(8 * draws.place).astype(int)
    assert thirds(draws.gold)
    for part in (draws.gold, ~draws.gold):  # jointly, and whatever else is drawn
        assert _uniform(draws.right[part].astype(int), eighth[part])

    _, draws = _draws("seaquest", rng, n)
    assert thirds(draws.submarine)
    assert draws.lane.min() == 1 and draws.lane.max() == 8
    lanes = draws.lane.astype(int), draws.diver_lane.astype(int)
    for part in (draws.submarine, ~draws.submarine):
        assert _uniform(*(x[part] for x in (draws.right.astype(int), lanes[0], lanes[1])))
    assert _uniform(draws.diver_right.astype(int), lanes[1], draws.right.astype(int))

    _, speeds = _draws("freeway", rng, n)
    assert set(np.unique(speeds)) == {-5, -4, -3, -2, -1, 1, 2, 3, 4, 5}
    index = np.where(speeds > 0, speeds + 4, speeds + 5)
    for i in range(8):
        assert _uniform(index[:, i], index[:, (i + 1) % 8])
        assert _uniform(index[:, i], index[:, (i + 3) % 8])


def test_actions_stick_with_their_probability():
    env = registry.make("minatar_breakout", time_limit=0)
    state, _ = env.reset(random.key(0), env.params)
    state = dataclasses.replace(state, last_action=jnp.int32(minatar.LEFT))
    step = jax.jit(jax.vmap(env.step, in_axes=(0, None, None, None)))
    keys = jax.random.split(random.key(1), 20_000)
    for probability in (0.1, 0.0, 1.0):
        params = dataclasses.replace(env.params, sticky_probability=probability)
        after, _ = step(keys, state, jnp.int32(minatar.RIGHT), params)
        stuck = np.asarray(after.game.paddle == state.game.paddle - 1)
        moved = np.asarray(after.game.paddle == state.game.paddle + 1)
        assert np.all(stuck ^ moved)
        assert abs(stuck.mean() - probability) < 0.01 * (0 < probability < 1) + 1e-9
        # The action that was played sticks next, not the one that was chosen.
        did = np.where(stuck, minatar.LEFT, minatar.RIGHT)
        np.testing.assert_array_equal(after.last_action, did)


def test_minimal_actions_are_the_packages():
    for name in GAMES:
        env = registry.make(f"minatar_{name}", minimal_actions=True)
        expected = published.game(name).minimal_action_set()
        assert list(published.RULES[name].actions) == expected
        assert env.action_space.n == len(expected)
        assert registry.make(f"minatar_{name}").action_space.n == 6
    env = registry.make("minatar_breakout", minimal_actions=True, sticky_probability=0.0)
    state, _ = env.reset(random.key(0), env.params)
    step = jax.jit(env.step)
    paddles = [
        int(step(random.key(1), state, jnp.int32(i), env.params)[0].inner.game.paddle)
        for i in range(3)
    ]
    assert paddles == [4, 3, 5]


def test_time_limits():
    game = published.game("freeway")
    steps = 0
    while not game.terminal:
        game.act(0)
        steps += 1
    assert registry.make("minatar_freeway").max_steps == steps
    assert registry.make("minatar_asterix").max_steps == 10_000
    assert registry.make("minatar_asterix", time_limit=0).max_steps is None
    with pytest.raises(UserError, match="-1; it must be a positive integer"):
        registry.make("minatar_asterix", time_limit=-1)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_the_expert_beats_random_actions(name):
    env = registry.make(f"minatar_{name}")
    copies, steps = 64, 200
    act = env.expert
    assert act is not None

    def total(key, expert, params):
        reset_key, step_key = jax.random.split(key)

        def step(carry, key):
            state, alive = carry
            action_key, key = jax.random.split(key)
            choice = jax.random.randint(action_key, (), 0, env.action_space.n)
            action = jnp.where(expert, act(state, params), choice)
            state, timestep = env.step(key, state, action, params)
            return (state, alive & ~timestep.terminated), timestep.reward * alive

        state, _ = env.reset(reset_key, params)
        keys = jax.random.split(step_key, steps)
        return jax.lax.scan(step, (state, jnp.array(True)), keys)[1].sum()

    keys = jax.random.split(random.key(0), copies)
    run = jax.jit(jax.vmap(total, in_axes=(0, None, None)))
    gain = np.asarray(run(keys, True, env.params)) - np.asarray(run(keys, False, env.params))
    assert gain.mean() > 2.0 + 4 * gain.std() / copies**0.5
