"""MACTAS: messages, the team's value, parameters for any number of agents, and what they earn."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.mactas import AGENTS, mactas
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.core.types import Transition
from jaxrl.evaluation.evaluate import evaluate
from tests.kit.stub import losses_of, stub

SETTINGS = {
    "num_envs": 64, "num_steps": 1, "updates": 1, "batch_size": 256, "capacity": 20_000,
    "warmup": 2048, "learning_rate": 2e-3, "exploration.steps": 20_000,
}  # fmt: skip


def count(agents, **settings):
    env = envs.make("signals", agents=agents)
    parts = mactas.recipe(env, mactas(env, settings).config).parts
    init = lambda key: parts[AGENTS].init(key)
    return sum(x.size for x in jax.tree.leaves(jax.eval_shape(init, random.key(0))))


def test_three_agents_have_as_many_parameters_as_ten():
    assert count(3) == count(10) > count(3, layers=0)


@pytest.mark.parametrize("decomposition", ["vdn", "qmix"])
def test_the_team_regresses_on_its_living_agents(decomposition):
    """Compares the loss with the closed form for a table of values, and changes the dead's."""
    env = envs.make("skirmish", agents=2, enemies=1, size=5)
    config = mactas(env, {"decomposition": decomposition, "discount": 0.9}).config
    recipe = mactas.recipe(env, config)
    keys = jax.random.split(random.key(0), 16)
    step = lambda key: env.step(
        key, *env.reset(key, env.params)[:1], {n: jnp.int32(0) for n in env.agents}, env.params
    )[1]
    first = jax.vmap(lambda key: env.reset(key, env.params)[1])(keys)
    after = jax.vmap(step)(keys)
    dead = jnp.arange(16) % 2 == 0
    alive = jnp.stack([jnp.ones(16, bool), ~dead], -1)
    first, after = (dataclasses.replace(x, alive=alive) for x in (first, after))
    after = dataclasses.replace(after, reward=jnp.arange(16.0))
    x = Transition(first, {n: jnp.zeros(16, jnp.int32) for n in env.agents}, after, (), {})
    table = np.random.default_rng(0).normal(size=(16, 2, 6)).astype(np.float32)

    def loss(table):
        network = lambda timestep: jnp.asarray(table)
        mixer = lambda state, values: (values * jnp.array([1.0, 2.0])).sum(-1)
        net = stub(
            {AGENTS: network, "mixer": mixer}, {"discount": 0.9}, agents=network, mixer=mixer
        )
        return np.asarray(losses_of(recipe)["team_loss"](net, x).value)

    each = np.where(np.asarray(alive)[..., None], table, 0)
    weight = np.array([1.0, 2.0]) if decomposition == "qmix" else np.ones(2)
    legal = np.stack([np.asarray(after.legal_actions[n]) for n in env.agents], 1)
    best = np.where(legal, table, -np.inf).argmax(-1)
    following = np.take_along_axis(each, best[..., None], -1)[..., 0] @ weight
    target = np.arange(16.0) + 0.9 * following
    np.testing.assert_allclose(loss(table), 0.5 * (each[..., 0] @ weight - target) ** 2, rtol=1e-4)
    moved = table.copy()
    moved[::2, 1] += 5
    np.testing.assert_allclose(loss(moved), loss(table), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "earned"), [(1, 1.0), (0, 0.5)])
def test_agents_that_talk_name_all_signals_and_others_name_half(layers, earned):
    env = envs.make("signals", agents=3, signals=2)
    algorithm = mactas(env, SETTINGS | {"layers": layers})
    run = start(algorithm, random.key(0))
    run, _ = jax.jit(lambda run: train(algorithm, run, 500))(run)
    # All of 512 episodes: the chance of 0.06 more or less than a half is below 1 in 10,000.
    found = evaluate(env, algorithm.policy(run.state), random.key(1), 512).returns.mean()
    assert abs(float(found) - earned) < (0.01 if layers else 0.06)


@pytest.mark.parametrize(
    ("env", "settings", "match"),
    [
        (("speaker_listener",), {}, "their spaces differ"),
        (("signals",), {"heads": 3}, "cannot be 64 wide"),
        (("cartpole",), {}, "needs agents that act at the same time"),
    ],
)
def test_what_does_not_fit_is_refused(env, settings, match):
    with pytest.raises(UserError, match=match):
        mactas(envs.make(*env), settings)
