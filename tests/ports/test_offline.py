"""IQL and TD3+BC on the kit are what they were."""

import dataclasses

import jax
import pytest

from jaxrl import envs
from jaxrl.agents.offline import iql as old_iql
from jaxrl.agents.offline import td3_bc as old_td3
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.kit.net import Net
from jaxrl.sources import replay, rollouts
from jaxrl.systems.offline.iql import iql
from jaxrl.systems.offline.td3_bc import td3_bc
from tests.ports.equal import drawn, follow, precise

SIZES = {"hidden": (16, 16)}
KEYS = jax.random.split(random.key(5), 8)


def experience(env, agent):
    """Batches in which episodes end and are cut, from a replay that wraps."""
    source = replay(rollouts(env, 8, 64), 2048, 64, warmup=1024)
    return drawn(source, agent, 8, random.key(3))


@pytest.mark.parametrize("world", ["cartpole", "pendulum"])
def test_iql(world):
    env = envs.make(world)
    config = replace(iql.Config(), SIZES | {"actor.learning_rate_steps": 100.0})
    old = old_iql.agent(env, old_iql.Config(**SIZES, actor_learning_rate_steps=100.0))
    new = iql.agent(env, config)
    # The old one read the frames of its batch, the new one those of the last update.
    batches = [
        dataclasses.replace(b, frames=b.frames * 0 + 10.0 * (i + 1))
        for i, b in enumerate(experience(env, new))
    ]

    def trained(s):
        c = s.critics
        return {
            "value": (c.value, c.value_optimiser, None),
            "critic": (c.critic, c.critic_optimiser, c.target),
            "actor": (s.actor, s.actor_optimiser, None),
        }

    same = ("value_loss", "critic_loss", "critic_grad_norm", "critic_norm", "actor_loss")
    names = {n: n for n in (*same, "advantage", "actor_norm")} | {"mean_value": "value"}
    renamed = {
        "actor.learning_rate": "actor_learning_rate",
        "actor.learning_rate_steps": "actor_learning_rate_steps",
        "critic.learning_rate": "learning_rate",
        "target.rate": "target_rate",
    }
    earlier = lambda batch: dataclasses.replace(batch, frames=batch.frames - 10.0)
    with jax.enable_x64(True):
        worst = follow(
            old, new, trained, batches, names, KEYS, earlier, rename=renamed, cast=precise
        )
    assert worst < 1e-9


@pytest.mark.parametrize("alpha", [2.5, float("inf")])
def test_td3_bc(alpha, monkeypatch):
    env = envs.make("pendulum")
    config = replace(td3_bc.Config(), SIZES | {"alpha": alpha})
    old = old_td3.agent(env, old_td3.Config(**SIZES, alpha=alpha))
    new = td3_bc.agent(env, config)

    def trained(s):
        return {
            "actor": (s.actor, s.actor_optimiser, s.target_actor),
            "critic": (s.critic, s.critic_optimiser, s.target_critic),
        }

    monkeypatch.setattr(Net, "key", lambda net, name="": net.seed())
    same = ("critic_loss", "value", "actor_loss", "critic_grad_norm", "critic_norm", "actor_norm")
    renamed = {"optimizer.learning_rate": "learning_rate", "target.rate": "target_rate"}
    with jax.enable_x64(True):
        worst = follow(
            old,
            new,
            trained,
            experience(env, new),
            {n: n for n in same},
            KEYS,
            rename=renamed,
            cast=precise,
        )
    assert worst < 1e-9
