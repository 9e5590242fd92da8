"""PPO and A2C on the kit are what they were."""

import dataclasses

import jax
import pytest

from jaxrl import envs
from jaxrl.agents.games import spiral as old_spiral
from jaxrl.agents.policy_gradient import a2c as old_a2c
from jaxrl.agents.policy_gradient import ppo as old_ppo
from jaxrl.agents.policy_gradient import reinforce as old_reinforce
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.envs.wrappers import time_limit
from jaxrl.kit.net import Net
from jaxrl.systems.games.spiral import spiral
from jaxrl.systems.policy_gradient.a2c import a2c
from jaxrl.systems.policy_gradient.ppo import ppo
from jaxrl.systems.policy_gradient.reinforce import reinforce
from tests.ports.equal import drawn, follow, precise

NAMES = ("policy_loss", "value_loss", "entropy", "explained_variance", "learning_rate")
RENAMED = {
    "optimizer.learning_rate": "learning_rate",
    "optimizer.learning_rate_end": "learning_rate_end",
    "optimizer.learning_rate_steps": "learning_rate_steps",
    "optimizer.max_grad_norm": "max_grad_norm",
    "passes.target_kl": "target_kl",
    "gae_lambda": "trace",
}
SIZES = {"num_envs": 16, "num_steps": 8, "hidden": (16,), "learning_rate_steps": 2000.0}
CASES = {
    "plain": ("cartpole", {}),
    "continuous": ("pendulum", {}),
    "chunks": ("cartpole", {"chunk_rows": 8}),
    "early stop": ("cartpole", {"early_stop": True, "target_kl": 1e-3, "learning_rate": 1e-2}),
    "recurrent": ("cartpole", {"recurrent": 8, "chunk_rows": 16}),
    "transformer": ("catch", {"recurrent": 8, "transformer": 1}),
    "two shards": ("cartpole", {"num_shards": 2, "value_clip": 0.2, "entropy_weight": 0.01}),
    "exact": ("cartpole", {"shuffle": "exact", "normalize_advantage": False}),
}


def trained(s):
    return {"actor_critic": (s.params, s.optimiser, None)}


@pytest.mark.parametrize("name", CASES)
def test_ppo(name, monkeypatch):
    world, options = CASES[name]
    env = envs.make(world)
    config = replace(ppo.Config(), SIZES | options)
    old = old_ppo.agent(env, old_ppo.Config(**SIZES | options))
    new = ppo.agent(env, config)
    batches = drawn(ppo.source(env, config), new, 12, random.key(3))
    # The old one had no other use for its key than the order.
    monkeypatch.setattr(Net, "key", lambda net, name="": net.seed())
    names = {n: n for n in (*NAMES, "approximate_kl", "clip_fraction", "stopped_early")}
    names |= {"actor_critic_grad_norm": "grad_norm", "actor_critic_norm": "weight_norm"}
    keys = jax.random.split(random.key(5), 12)
    with jax.enable_x64(True):
        assert follow(old, new, trained, batches, names, keys, rename=RENAMED, cast=precise) < 1e-9


@pytest.mark.parametrize("recurrent", [0, 8])
def test_a2c(recurrent):
    env = envs.make("cartpole")
    options = {"num_envs": 16, "num_steps": 5, "hidden": (16,), "recurrent": recurrent}
    config = replace(a2c.Config(), options)
    old = old_a2c.agent(env, dataclasses.replace(old_a2c.Config(), **options))
    new = a2c.agent(env, config)
    batches = drawn(a2c.source(env, config), new, 12, random.key(3))
    names = {n: n for n in NAMES}
    names |= {"actor_critic_grad_norm": "grad_norm", "actor_critic_norm": "weight_norm"}
    keys = jax.random.split(random.key(5), 12)
    with jax.enable_x64(True):
        assert follow(old, new, trained, batches, names, keys, rename=RENAMED, cast=precise) < 1e-9


@pytest.mark.parametrize("baseline", [True, False])
def test_reinforce(baseline):
    env = time_limit(envs.make("cartpole"), 30)
    options = {"num_envs": 8, "hidden": (16,), "entropy_weight": 0.01, "baseline": baseline}
    config = replace(reinforce.Config(), options)
    old, new = (
        old_reinforce.agent(env, old_reinforce.Config(**options)),
        reinforce.agent(env, config),
    )
    compare(old, new, reinforce.source(env, config), ("policy_loss", "entropy"))


@pytest.mark.parametrize("world", ["kuhn_poker", "three_games"])
@pytest.mark.parametrize("baseline", ["role", "shared", "none"])
def test_spiral(world, baseline):
    env = envs.make(world)
    options = {"num_envs": 16, "hidden": (16,), "baseline": baseline}
    config = replace(spiral.Config(), options)
    old, new = old_spiral.agent(env, old_spiral.Config(**options)), spiral.agent(env, config)
    same = ("policy_loss", "entropy", "advantage_square", "baseline_0", "baseline_1")
    compare(old, new, spiral.source(env, config), same)


def compare(old, new, source, same):
    batches = drawn(source, new, 8, random.key(3))
    names = {n: n for n in same} | {"policy_grad_norm": "grad_norm", "policy_norm": "weight_norm"}
    keys = jax.random.split(random.key(5), 8)
    parts = lambda s: {"policy": (s.params, s.optimiser, None)}
    with jax.enable_x64(True):
        assert follow(old, new, parts, batches, names, keys, rename=RENAMED, cast=precise) < 1e-9
