"""Rules of an environment, for each of the pixel games."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.envs import registry
from jaxrl.envs.check_structure import check_structure

GAMES = [n for n in registry.names() if n.startswith("minatar_")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["catch", "minatar_breakout"])
def test_the_environment_keeps_every_rule(name):
    envs.check_environment(registry.make(name), steps=24)


@pytest.mark.parametrize("name", [n for n in GAMES if n != "minatar_breakout"])
def test_the_other_games_have_one_structure_and_a_picture(name):
    """Check structures only: the code around their rules is Breakout's, and the rules are compared
    with the package's."""
    env = registry.make(name)
    check_structure(env)
    state, timestep = jax.jit(env.reset)(random.key(0), env.params)
    assert env.render is not None
    frame = env.render(state, env.params)
    assert frame.shape == (320, 320, 3) and frame.dtype == np.uint8
    shown = (frame[16::32, 16::32] != frame[16, 16]).any(-1)
    assert np.array_equal(shown, np.asarray(timestep.observation).any(-1))
