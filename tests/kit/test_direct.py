"""Algorithms without agent and source, on a counter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import replace_hyper
from jaxrl.core.train import start, train
from jaxrl.core.types import Policy
from jaxrl.kit import Direct, DirectBuilder, group, hyper, static

ENV = envs.make("bandit")


@group
class Config:
    factor: int = static(2, low=1)
    rate: float = hyper(1.0)
    limit: float = hyper(np.inf, above=0, high=np.inf)


def build(env, config):
    def init(key, hyper):
        return {"sum": jnp.float32(0)}

    def step(state, key, hyper):
        new = state["sum"] + config.factor * hyper.rate
        new = jnp.where(new > hyper.limit, jnp.nan, new)
        return {"sum": new}, {"total": m.mean(new)}

    act = lambda state, timestep, memory, key, greedy: (jnp.zeros(1, int), memory, {})
    policy = lambda state: Policy(act, lambda n: (), state)
    return Direct(init, step, policy, env_steps=3, scores={"total": "total"},
                  measure=lambda state, key: {"twice": 2 * state["sum"]})  # fmt: skip


def check(env, config, name):
    if config.factor == 7:
        raise UserError(f"{name} has no factor 7.")


counting = DirectBuilder("counting", Config, build, check)


def test_steps_add_up_and_the_builder_keeps_what_it_built():
    algorithm = counting(ENV, {"factor": 3})
    assert counting(ENV, Config(factor=3)) is algorithm
    run, row = train(algorithm, start(algorithm, random.key(0)), 4)
    assert (int(run.state.steps), float(run.state.own["sum"])) == (4, 12)
    assert m.values(row)["total"] == np.mean([3, 6, 9, 12])
    assert algorithm.measure(run.state, run.key) == {"twice": 24}
    assert (algorithm.name, algorithm.env_steps) == ("counting on bandit", 3)


def test_hyperparameters_are_vmapped_and_an_infinite_one_is_healthy():
    algorithm = counting(ENV)
    begin = jax.vmap(lambda rate: start(algorithm, random.key(0), {"rate": rate}))
    runs, row = jax.vmap(lambda run: train(algorithm, run, 2))(begin(jnp.asarray([1.0, 5.0])))
    np.testing.assert_array_equal(runs.state.own["sum"], [4, 20])
    assert (row["diverged"].step == m.NEVER).all()


def test_the_state_stays_as_it_was_before_a_number_was_not_finite():
    algorithm = counting(ENV)
    run = start(algorithm, random.key(0), {"limit": 5.0})
    run, row = train(algorithm, run, 4)
    assert float(run.state.own["sum"]) == 4 and int(row["diverged"].step) == 2
    assert float(replace_hyper(run.state, {"rate": 9.0}).hyper["rate"]) == 9


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="counting has no factor 7"):
        counting(ENV, {"factor": 7})
    with pytest.raises(UserError, match="factor"):
        counting(ENV, {"factor": 0})
