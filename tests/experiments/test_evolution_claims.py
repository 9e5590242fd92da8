"""Environment steps in claims about evolution."""

import jax
import numpy as np

from experiments.claims.evolution import linear_es
from experiments.evidence.declare import Arena, Side, Trial
from jaxrl import envs
from jaxrl.algorithms.evolution.evolution_strategy import Config, evolution_strategy
from jaxrl.core import random
from jaxrl.core.train import advance, start
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers import time_limit


def short_cartpole() -> Environment:
    return time_limit(envs.make("cartpole"), 40)


def test_a_strategy_learns_from_the_generations_whose_steps_were_played_within_the_budget():
    algorithm = evolution_strategy(short_cartpole(), Config(strategy="cma", population=8))
    keys, budget = jax.random.split(random.key(0), 2), 700
    side = Side(linear_es.ES, {"strategy": "cma", "population": 8})
    arena = Arena(f"{__name__}:short_cartpole", budget, 0.0, 40.0, points=1, episodes=2)
    assert linear_es.CLAIM.measure
    found = linear_es.CLAIM.measure(Trial("CMA-ES", side, arena, budget), keys, {})
    step = jax.jit(lambda run: advance(algorithm, run))
    for i, key in enumerate(keys):
        run, played = start(algorithm, jax.random.split(key, 3)[0]), 0
        while True:
            run, row = step(run)
            played += int(row["env_steps"].value())
            if played > budget:
                break
        assert int(found["generations"][i]) == int(run.step) - 1
        assert budget // algorithm.env_steps < int(run.step) - 1  # episodes end early
    np.testing.assert_array_equal(found["env_steps"], [budget] * 2)
