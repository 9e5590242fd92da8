"""Distances of mazes: a loop of one-way doors, the expert's steps, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.grids import paths
from jaxrl.exact.mazes import maze_distances


def test_a_loop_of_one_way_doors():
    """Four rooms of one cell and four doors: there and back are once around the loop, except
    from a door, which may be left on either side."""
    env = envs.make("one_way_doors", rows=2, columns=2, room_size=3, observe="position", maze=1)
    found = maze_distances(env)
    assert found.steps.shape == (8, 8) and (np.diag(found.steps) == 0).all()
    assert np.isfinite(found.steps).all() and found.steps.max() == 7
    forth, back = found.steps, found.steps.T
    neighbors = forth == 1
    assert set((forth + back)[~np.eye(8, dtype=bool)]) == {2, 8}
    assert neighbors.sum() == 12  # from 4 rooms one way, from 4 doors both ways


def test_distances_are_those_of_the_expert():
    env = envs.make("one_way_doors", observe="position", maze=3)
    found = maze_distances(env)
    state, timestep = env.reset(random.key(0), env.params)
    grid = jnp.asarray(state.inner.grid)
    enter = paths.entering(grid)

    @jax.vmap
    def relax(place):
        rows, columns = (jnp.arange(size) for size in grid.shape)
        target = (rows[:, None] == place[0]) & (columns == place[1])
        return paths.by_compass(enter, target)

    to = np.asarray(relax(found.place))[:, found.place[:, 0], found.place[:, 1]]
    np.testing.assert_array_equal(found.steps.T, to)
    # The next places are those of the environment, and goals are what it calls achieved.
    here = found.place.tolist().index(state.inner.position.tolist())
    np.testing.assert_allclose(found.goal[here], env.goals.achieved(timestep.observation))
    for action in range(4):
        after = env.step(random.key(0), state, jnp.int32(action), env.params)[0].inner.position
        assert found.place[found.next[here, action]].tolist() == after.tolist()


def test_other_environments_are_refused():
    for env, what in (
        (envs.make("one_way_doors"), "changes with the episode"),
        (envs.make("point_maze"), "not a grid"),
    ):
        with pytest.raises(UserError, match=what):
            maze_distances(env)
