"""Games as one agent's task: the reward and the last step are right on either side."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.games.opponents import Params, against
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate

BATCH = 64


def _caller(state, timestep, memory, key, greedy):
    """Bet with probability `state`, and count the moves."""
    bet = jax.random.uniform(key, timestep.role.shape) < state
    return bet.astype(jnp.int32), memory + 1, {}


CALLER = Policy(_caller, lambda n: jnp.zeros(n, jnp.int32), jnp.float32(0.5))


@functools.cache
def play_games():
    """Play Kuhn poker [side, opponent's habit, B]: the agent bets first and passes later."""
    env = against(envs.make("kuhn_poker"), CALLER)

    def game(key, side, habit):
        params = Params((), habit, side)
        state, timestep = env.reset(key, params)
        first = timestep

        def move(carry, key):
            state, timestep, over = carry
            action = jnp.int32(0)
            state, following = env.step(key, state, action, params)
            out = (state.inner.game, state.memory[0], following, timestep.role, over)
            return (state, following, over | following.done), out

        _, out = jax.lax.scan(move, (state, timestep, False), jax.random.split(key, 2))
        return first, state, out

    keys = jax.random.split(jax.random.key(0), BATCH)
    games = jax.vmap(jax.vmap(jax.vmap(game, (0, None, None)), (None, None, 0)), (None, 0, None))
    return jax.device_get(jax.jit(games)(keys, jnp.arange(2), jnp.asarray([0.0, 1.0])))


@pytest.mark.slow
def test_an_agent_that_always_passes_gets_the_right_reward_on_either_side():
    _, _, (game, moves, timestep, role, _) = play_games()
    cards = game.cards[..., 0, :]
    for side in (0, 1):
        wins = cards[side, ..., side] > cards[side, ..., 1 - side]
        showdown = np.where(wins, 1, -1)
        # The opponent passes: a showdown. It bets: the agent folds and loses its ante.
        passed, raised = timestep.reward[side, 0], timestep.reward[side, 1]
        np.testing.assert_array_equal(passed[..., 0], showdown[0])
        if side == 0:  # its pass is answered by a bet, and it folds with its second move
            assert not raised[..., 0].any() and (raised[..., 1] == -1).all()
            assert not timestep.terminated[0, 1, :, 0].any()
            assert timestep.terminated[0, 1, :, 1].all()
        else:  # the bet came first
            assert (raised[..., 0] == -1).all() and timestep.terminated[1, 1, :, 0].all()
        # The game ended on the opponent's move if the agent was first and the opponent passed.
        assert (moves[side, 0, :, 0] == 1).all() and timestep.terminated[side, 0, :, 0].all()
    lost = timestep.metrics["won"][0, 0, :, 0]
    np.testing.assert_array_equal(lost, (timestep.metrics["outcome"][0, 0, :, 0] > 0) * 1.0)
    assert (role == np.arange(2)[:, None, None, None]).all()


def test_an_episode_opens_with_the_agents_turn_and_no_reward():
    first, _, _ = play_games()
    assert first.first.all() and not first.done.any() and not first.reward.any()
    place = first.observation[..., 3:].argmax(-1)
    assert (place[0] == 0).all() and (place[1, 0] == 1).all() and (place[1, 1] == 2).all()


def test_the_side_is_drawn_by_default():
    env = against(envs.make("kuhn_poker"), CALLER)
    keys = jax.random.split(jax.random.key(3), 128)
    _, timestep = jax.jit(jax.vmap(env.reset, (0, None)))(keys, env.params)
    assert 0.3 < np.asarray(timestep.role).mean() < 0.7


def test_environments_that_are_not_games_have_no_opponent():
    with pytest.raises(UserError, match="game for two"):
        against(envs.make("cartpole"), CALLER)


@pytest.mark.slow
def test_a_game_against_random_moves_is_made_by_name():
    env = envs.make("jaxrl.envs.games.opponents:against_random", game="negotiation")
    assert env.name == "against(negotiation)"
    played = evaluate(env, random_policy(env), random.key(0), 400).metrics
    assert abs(float(played["won"].mean()) - 0.5) < 0.1 and 0.05 < played["lost"].mean() < 0.3
