"""Uni-O4's two phases on the kit are what they were."""

import dataclasses

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.agents.offline import uni_o4 as old_uni_o4
from jaxrl.agents.offline.experience import Experience
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.kit.net import Net
from jaxrl.sources import replay, rollouts
from jaxrl.systems.offline.uni_o4 import uni_o4
from jaxrl.systems.offline.uni_o4_improvement import uni_o4_improvement
from tests.ports.equal import drawn, follow, precise

ENV = envs.make("pendulum")
UPDATES, ROWS = 2, 16  # gradient steps of a round, transitions of each
SIZES = {"hidden": (8,), "model_hidden": (8,)}
OLD = {"policies": 3, "models": 2, "starts": 8, "horizon": 4, "learning_rate": 0.01}
NEW = {"num_policies": 3, "num_models": 2, "optimizer.learning_rate": 0.01}
RENAMED = {
    "optimizer.learning_rate": "learning_rate",
    "improvement.learning_rate": "policy_learning_rate",
    "improvement.learning_rate_steps": "improvement_steps",
    "improvement.max_grad_norm": "max_grad_norm",
    "target.rate": "target_rate",
}
KEYS = jax.random.split(random.key(5), 6)


def rounds(agent):
    """Batches in which episodes end and are cut, as of a data set that counts gradient steps."""
    source = replay(rollouts(ENV, 8, 64), 2048, UPDATES * ROWS, warmup=1024)
    return [
        dataclasses.replace(b, frames=jnp.float32(UPDATES * (i + 1)))
        for i, b in enumerate(drawn(source, agent, len(KEYS), random.key(3)))
    ]


def old_agent(phase, **settings):
    x = Experience(batch_size=ROWS, updates=UPDATES)
    return old_uni_o4.agent(
        ENV, old_uni_o4.Config(experience=x, phase=phase, **SIZES, **OLD, **settings)
    )


def new_agent(system, **settings):
    sizes = SIZES | NEW | {"batch_size": ROWS, "updates": UPDATES}
    return system.agent(ENV, replace(system.Config(), sizes | settings))


def trained(s):
    """Adam's count of the clones is each one's own now."""
    c = s.critics
    count = jnp.broadcast_to(s.cloning.count[..., None], s.improvement.count.shape)
    return {
        "policies": (s.policies, s.improvement, None),
        "behaviours": (s.behaviours, s.cloning._replace(count=count), None),
        "value": (c.value, c.value_optimiser, None),
        "critic": (c.critic, c.critic_optimiser, c.target),
        "model": (s.model, s.modelling, None),
    }


def test_the_supervised_phase():
    old, new = old_agent("supervised"), new_agent(uni_o4)
    # The norms of parameters were means over a round and are those after it.
    same = ("value_loss", "critic_loss", "critic_grad_norm", "model_loss", "cloning_loss")
    names = {n: n for n in (*same, "disagreement")} | {"mean_value": "value"}
    with jax.enable_x64(True):
        worst = follow(old, new, trained, rounds(new), names, KEYS, rename=RENAMED, cast=precise)
    assert worst < 1e-9


def noise(policy, key, n):
    """In the place of random numbers: the two draw those of an ensemble with other keys."""
    mean, deviation = policy.mean(), policy.stddev()
    wave = jnp.sin(2.0 * jnp.arange(mean.shape[-2]))[:, None]
    return (mean + deviation * wave)[None]


def test_the_improvement(monkeypatch):
    settings = {"entropy_weight": 0.01, "max_grad_norm": 0.1}
    old = old_agent("improvement", policy_learning_rate=0.01, improvement_steps=8.0, **settings)
    new = new_agent(
        uni_o4_improvement,
        **{"starts": 8, "horizon": 4, "entropy_weight": 0.01},
        **{"improvement.learning_rate": 0.01, "improvement.learning_rate_steps": 8.0},
        **{"improvement.max_grad_norm": 0.1},
    )
    batches, share = rounds(new), []

    def told(state, batch, key):
        state, info = new.update(state, batch, key)
        jax.debug.callback(lambda x: share.append(float(x)), info.metrics["replaced"])
        return state, info

    # The old one split its key in two: one for the steps and one for the rollouts.
    monkeypatch.setattr(Net, "key", lambda net, name="": jax.random.split(net.seed())[1])
    monkeypatch.setattr(distrax.Normal, "_sample_n", noise)
    same = ("policy_loss", "approximate_kl", "score", "score_gain", "replaced")
    names = {n: n for n in same} | {"policies_norm": "policy_norm"}
    with jax.enable_x64(True):
        worst = follow(
            old,
            dataclasses.replace(new, update=told),
            trained,
            batches,
            names,
            KEYS,
            rename=RENAMED,
            cast=precise,
        )
    assert worst < 1e-9
    # Of the first variant of `follow`, alone: rounds with and without a member that is replaced.
    alone = np.array(share[: len(KEYS)])
    assert (alone == 0).any() and (alone > 0).any(), share
