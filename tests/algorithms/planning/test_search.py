"""Search where the rules are known: in tic-tac-toe it must find what minimax knows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.planning.shared.search import search, simulator
from jaxrl.core import random, trees
from jaxrl.exact import tic_tac_toe

SIMULATIONS = 100
COUNT = 64


def reach(env, position):
    """The state and time step of a position [18], by playing some moves that lead there."""
    mine, theirs = (np.flatnonzero(position[s]) for s in (slice(9), slice(9, 18)))
    first, second = (mine, theirs) if len(mine) == len(theirs) else (theirs, mine)
    moves = [m for pair in zip(first, [*second, None], strict=False) for m in pair if m is not None]
    return moves


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["puct", "gumbel"])
def test_search_with_the_rules_plays_tic_tac_toe_as_minimax_does(kind):
    """Search loses no point from positions with at most four free fields, and the root's value has
    the mover's sign where a win is certain."""
    env = envs.make("tic_tac_toe")
    every = tic_tac_toe.positions()
    few = every[every.sum(1) >= 5]
    chosen = few[np.random.default_rng(0).choice(len(few), COUNT, replace=False)]
    root, model = simulator(env)

    @jax.jit
    def plan(moves, count, key):
        state, timestep = jax.vmap(lambda key: env.reset(key, env.params))(
            jax.random.split(key, COUNT)
        )

        def play(carry, i):
            played = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                jax.random.split(key, COUNT), carry[0], moves[:, i], env.params
            )
            return trees.where(i < count, played, carry), None

        (state, timestep), _ = jax.lax.scan(play, (state, timestep), jnp.arange(8))
        found = search(
            kind, model, env.params, root(state, timestep), timestep.legal_actions, key,
            SIMULATIONS, greedy=True,
        )  # fmt: skip
        return timestep.observation, found

    sequences = [reach(env, position) for position in chosen]
    moves = np.asarray([s + [0] * (8 - len(s)) for s in sequences], np.int32)
    observation, found = plan(moves, np.asarray([len(s) for s in sequences]), random.key(0))
    worth = tic_tac_toe.move_values()[np.asarray(tic_tac_toe.code(observation))]
    legal = worth > tic_tac_toe.ILLEGAL
    assert np.all(np.asarray(found.policy)[~legal] == 0)
    best = worth.max(1)
    np.testing.assert_array_equal(worth[np.arange(COUNT), found.action], best)
    if kind == "puct":  # Gumbel's is a mean over actions that it tries whether they are good or not
        assert np.all(np.asarray(found.value)[best == 1] > 0)
        assert np.all(np.asarray(found.value)[best == -1] < 0)


def test_a_leaf_is_worth_what_a_random_rollout_brings():
    """Three steps of cart-pole bring 1 each, and nobody falls that soon."""
    env = envs.make("cartpole")
    root, model = simulator(env, 0.5, rollout=3)

    @jax.jit
    def expand(key):
        start = jax.vmap(lambda key: env.reset(key, env.params))(jax.random.split(key, 2))
        return model(env.params, key, jnp.array([0, 1]), root(*start).embedding)[0]

    output = expand(random.key(0))
    np.testing.assert_allclose(output.value, 1 + 0.5 + 0.25)
    np.testing.assert_allclose(output.reward, 1)


@pytest.mark.slow
def test_a_rollout_counts_for_the_mover_and_stops_at_the_end():
    """A rollout of any length is worth -1, discounted once, where two fields are free and the mover
    loses by the other's last move whatever he does."""
    env = envs.make("tic_tac_toe")
    two_free = [p for p in tic_tac_toe.positions() if p.sum() == 7]
    worth = [tic_tac_toe.move_values()[int(tic_tac_toe.code(p))] for p in two_free]
    lost = [
        p for p, w in zip(two_free, worth, strict=True) if (w[w > tic_tac_toe.ILLEGAL] < 0).all()
    ]
    moves = jnp.asarray([reach(env, position) for position in lost], jnp.int32)
    assert len(lost) > 3
    root, model = simulator(env, 0.5, rollout=4)

    @jax.jit
    @jax.vmap
    def expand(moves, key):
        position = env.reset(key, env.params)
        for move in moves[:-1]:
            position = env.step(key, position[0], move, env.params)
        one = jax.tree.map(lambda x: x[None], position)
        return model(env.params, key, moves[-1:], root(*one).embedding)[0].value[0]

    values = expand(moves, jax.random.split(random.key(0), len(lost)))
    np.testing.assert_allclose(values, -0.5)
