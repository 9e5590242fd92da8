"""The adapter of pgx against pgx itself."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from tests.envs.adapters.training import trains

pgx = pytest.importorskip("pgx", reason="pgx is not installed (the suites extra)")


def legal(key, timestep):
    return jax.random.categorical(key, jnp.where(timestep.legal_actions, 0.0, -jnp.inf))


@functools.cache
def compile_env(name, **settings):
    env = envs.make(name, **settings)
    return env, jax.jit(env.reset), jax.jit(env.step)


@pytest.mark.parametrize("settings", [{}, {"opponent": "random"}])
def test_it_is_an_environment(settings):
    envs.check_environment(envs.make("pgx/tic_tac_toe", **settings), 24)


@pytest.mark.parametrize("name", ["tic_tac_toe", "2048", "kuhn_poker", "minatar-breakout"])
def test_the_same_keys_give_what_pgx_gives(name):
    _, reset, step = compile_env(f"pgx/{name}")
    theirs = pgx.make(name)
    raw_step = jax.jit(theirs.step)
    first, *rest = jax.random.split(jax.random.key(5), 30)
    (state, timestep), raw = reset(first, ()), jax.jit(theirs.init)(first)
    for key in rest:
        np.testing.assert_array_equal(timestep.observation, raw.observation)
        np.testing.assert_array_equal(timestep.legal_actions, raw.legal_action_mask)
        action = legal(jax.random.fold_in(key, 1), timestep)
        if theirs.num_players > 1:
            assert timestep.role == raw.current_player
        state, timestep = step(key, state, action, ())
        raw = raw_step(raw, action, key)
        reward = raw.rewards if theirs.num_players > 1 else raw.rewards[0]
        np.testing.assert_array_equal(timestep.reward, reward)
        assert bool(timestep.terminated) == bool(raw.terminated)
        if raw.terminated:
            break


def test_against_an_opponent_it_is_always_the_agents_turn():
    env, _, _ = compile_env("pgx/tic_tac_toe", opponent="random")

    def play(key):
        state, timestep = env.reset(key, ())

        def step(carry, key):
            state, timestep, total, done = carry
            act, chance = jax.random.split(key)
            turn = done | (state.inner.game.current_player == timestep.role)
            stones = state.inner.game.observation.sum()
            state, following = env.step(chance, state, legal(act, timestep), ())
            total += jnp.where(done, 0.0, following.reward)
            done |= following.done
            return (state, following, total, done), (turn, stones, following.role)

        carry = (state, timestep, jnp.float32(0), jnp.bool_(False))
        (_, _, total, done), seen = jax.lax.scan(step, carry, jax.random.split(key, 5))
        return total, done, timestep.role, seen

    keys = jax.random.split(jax.random.key(0), 400)
    total, done, role, (turn, stones, roles) = jax.jit(jax.vmap(play))(keys)
    assert done.all() and turn.all()
    assert (roles == role[:, None]).all()  # one side during a whole episode
    assert set(np.unique(total)) == {-1.0, 0.0, 1.0}
    assert 150 < (role == 1).sum() < 250
    # The agent moves first (an empty board) in about half of the episodes, second in the others.
    assert 150 < (stones[:, 0] == 0).sum() < 250 and set(np.unique(stones[:, 0])) == {0, 1}
    # Two random players: the first wins 58 %, the second 29 % (exhaustive enumeration).
    opens = np.asarray(stones[:, 0] == 0)
    wins = np.asarray(total == 1)
    assert abs(wins[opens].mean() - 0.585) < 0.12 and abs(wins[~opens].mean() - 0.288) < 0.12


def test_the_game_itself_pays_both_players():
    _, reset, step = compile_env("pgx/tic_tac_toe")
    state, timestep = reset(jax.random.key(0), ())
    player = int(timestep.role)
    for action in (0, 3, 1, 4, 2):  # the first player completes a row
        assert not timestep.done
        state, timestep = step(jax.random.key(1), state, jnp.int32(action), ())
    assert timestep.terminated and not timestep.truncated
    assert timestep.reward[player] == 1 and timestep.reward[1 - player] == -1


def test_an_unknown_opponent_is_an_error():
    with pytest.raises(UserError, match="opponent 'radom'; did you mean 'random'"):
        envs.make("pgx/tic_tac_toe", opponent="radom")


@pytest.mark.parametrize(
    "name,settings", [("pgx/tic_tac_toe", {"opponent": "random"}), ("pgx/minatar-breakout", {})]
)
def test_an_agent_trains_in_it(name, settings):
    trains(envs.make(name, **settings))
