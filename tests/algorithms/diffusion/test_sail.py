"""SAIL: which goals are whose, how models are composed, and what is learned from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion.sail import (
    FOREIGN,
    PLAYED,
    SHOWN,
    TINY,
    compose,
    sail,
    split_goals,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.envs import make

SETTINGS = {k: v for k, v in TINY.items() if k not in ("env", "env_params")}


@pytest.fixture(scope="module")
def env():
    return make(TINY["env"], **TINY["env_params"])


def _goals(env):
    return set(np.asarray(env.params.goals)[: int(env.params.num_goals)].tolist())


def test_goals_on_the_left_are_demonstrated_and_the_others_played(env):
    left, right = split_goals(env)
    assert _goals(left) | _goals(right) == _goals(env) and not _goals(left) & _goals(right)
    width = env.params.walls.shape[1]
    assert max(g % width for g in _goals(left)) <= min(g % width for g in _goals(right))


def test_the_general_model_leads_and_the_own_one_is_mixed_in():
    general, blank, own = jnp.float32([1.0, 2.0]), jnp.float32([0.5, 0.0]), jnp.float32([4.0, -1.0])
    found = compose(general, blank, own, 0.5, 2.0)
    mix = np.array([(1 + 0.5 * 4) / 1.5, (2 - 0.5) / 1.5])
    np.testing.assert_allclose(
        found, np.array([0.5, 0]) + 2 * (mix - np.array([0.5, 0])), rtol=1e-6
    )
    np.testing.assert_allclose(compose(general, blank, own, 0.0, 1.0), general)


def test_a_batch_has_windows_of_all_origins_with_their_goals_and_forces(env):
    algorithm = sail(env, SETTINGS | {"data.num_shards": 1})
    run = start(algorithm, random.key(0))
    source, policy = algorithm.source, algorithm.policy(run.state)
    assert source is not None
    state = run.state.source
    _, fresh, _ = source.collect(state, policy, random.key(1))
    x = source.sample(state, fresh, random.key(2)).transitions
    origin = np.asarray(x.extras["origin"])
    assert (origin == np.repeat([FOREIGN, SHOWN, PLAYED], 8)).all()
    half = np.asarray(split_goals(env)[0].params.goals)[0] % env.params.walls.shape[1]
    assert half < env.params.walls.shape[1] / 2
    # Speed changes half as much by the same force.
    change = np.linalg.norm(x.next_observation[..., 2:] - x.observation[..., 2:], axis=-1)
    assert change[origin == FOREIGN].max() < change[origin == SHOWN].max()


def test_the_general_model_learns_first_and_is_frozen_then(env):
    """The running averages, which plan, follow in every update."""
    algorithm = sail(env, SETTINGS | {"data.updates": 1})
    run, changed = start(algorithm, random.key(0)), []
    average = replace(sail.Config(), SETTINGS).average.rate
    for _ in range(2):
        before = run.state.agent.parts
        run, _ = train(algorithm, run, 1)
        after = run.state.agent.parts
        same = lambda a, b: all(
            (x == y).all() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
        )
        changed.append({n for n in after if not same(before[n].params, after[n].params)})
        for n in ("denoiser", "inverse"):
            moved = jax.tree.map(
                lambda old, new: old + average * (new - old), before[n].target, after[n].params
            )
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after[n].target, moved
            )
    assert changed == [{"general", "denoiser", "inverse"}, {"denoiser", "inverse"}]


def test_it_needs_a_maze_with_goals():
    with pytest.raises(UserError, match="point maze"):
        sail.agent(make("pendulum"))
