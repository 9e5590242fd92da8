"""Agents of the claim about ALE that do not learn: without skill, and by planning."""

import jax
import numpy as np
import pytest

from experiments.claims.evaluation import ale
from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.train import start

CATCH = envs.make("catch")


@pytest.mark.parametrize(("action", "played"), [(2.0, {2}), (0.0, {0}), (-1.0, {0, 1, 2})])
def test_playing_without_skill_is_one_action_or_any(action, played):
    run = start(ale.without_skill(CATCH), random.key(0), {"action": action})
    policy = ale.without_skill(CATCH).policy(run.state)
    reset = jax.vmap(CATCH.reset, in_axes=(0, None))
    _, timestep = reset(jax.random.split(random.key(1), 64), CATCH.params)
    actions, _, _ = policy.act(policy.state, timestep, (), random.key(2), True)
    assert set(np.asarray(actions).tolist()) == played


@pytest.mark.slow
def test_uct_catches_what_falls():
    assert jax.jit(lambda key: ale.play_uct(CATCH, key, 8, CATCH.max_steps))(random.key(0)) == 1.0
