"""A maze in words, against dynamic programming in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.text_maze import carve, distances
from tests.envs.language.play import follow_expert, player, reset, until_end

SIZE, TURNS = 4, 8
AFTER = carve(SIZE, openings=2, seed=0)


def values(weights):
    """Return the probability [turns + 1, cell, goal] of reaching each goal in the turns left.

    weights: None for the best moves, or those of random moves [5], the last that of staying.
    """
    cells = len(AFTER)
    found = [np.eye(cells)]
    for _ in range(TURNS):
        later = found[-1]
        if weights is None:
            new = later[AFTER].max(1)
        else:
            new = np.einsum("k,ikg->ig", weights[:4], later[AFTER]) + weights[4] * later
        found.append(np.where(np.eye(cells, dtype=bool), 1, new))
    return np.stack(found)


def pairs(state):
    text = np.asarray(state.text)
    return text[:, 0] * SIZE + text[:, 1], text[:, 2] * SIZE + text[:, 3]


def test_a_maze_is_connected_and_its_ways_go_both_ways():
    for size, openings in ((2, 0), (4, 0), (5, 3)):
        after = carve(size, openings, seed=1)
        away = distances(after)
        assert away.max() < size * size
        np.testing.assert_array_equal(away, away.T)
        doors = int((after != np.arange(size * size)[:, None]).sum()) // 2
        walls = (size - 1) ** 2  # of a spanning tree
        assert doors == size * size - 1 + min(openings, walls)
        step = np.array([-size, 1, size, -1])
        moved = after - np.arange(size * size)[:, None]
        assert ((moved == step) | (moved == 0)).all()


def test_the_best_policy_always_succeeds_and_the_expert_is_it():
    best = values(None)
    for held_out in (False, True):
        env = envs.make("text_maze", held_out=held_out)
        state, t = follow_expert(env, 256)
        start, goal = pairs(state)
        assert (best[TURNS, start, goal] == 1).all() and (start != goal).all()
        running = until_end(t)
        np.testing.assert_array_equal(jnp.where(running, t.reward, 0).sum(1), 1)
        # It takes a shortest way: a word, and two digits after all words but the last.
        moves = distances(AFTER)[start, goal]
        np.testing.assert_array_equal(running.sum(1), 3 + 3 * moves - 2)
        shorter = np.maximum(moves - 1, 0)
        assert (best[shorter, start, goal] == 0).all()


def test_random_words_succeed_as_often_as_dynamic_programming_says():
    env = envs.make("text_maze")
    number = 4096
    state, _ = reset(env, number)
    words = np.random.default_rng(0).integers(0, SIZE + 5, (number, env.max_steps or 0))
    t = player(env)(state, jnp.asarray(words))
    running = until_end(t)
    success = np.asarray(jnp.where(running, t.metrics["success"], 0).sum(1))
    weights = np.full(5, 1 / (SIZE + 5))
    weights[4] = 1 - weights[:4].sum()
    expected = values(weights)[TURNS][pairs(state)]
    error = np.sqrt((expected * (1 - expected)).mean() / number)
    assert abs(success.mean() - expected.mean()) < 4 * error
    assert 0.02 < expected.mean() < 0.3
    # Where the words lead is what is said.
    cell = np.asarray(pairs(state)[0])
    said = np.asarray(t.observation)
    moves = said[:, 3] - SIZE
    led = np.where((moves >= 0) & (moves < 4), AFTER[cell, np.clip(moves, 0, 3)], cell)
    going = ~np.asarray(t.done)[:, 3]
    np.testing.assert_array_equal((said[:, 4] * SIZE + said[:, 5])[going], led[going])
    assert (np.asarray(t.reward)[np.asarray(~t.done & running)] == 0).all()  # delayed


def test_sizes_are_checked():
    with pytest.raises(UserError, match="size is 1"):
        envs.make("text_maze", size=1)
