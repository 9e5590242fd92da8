"""Dreamer on the kit is what it was."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxrl import envs
from jaxrl.agents.planning import dreamer as old_dreamer
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.envs.wrappers import time_limit
from jaxrl.kit.net import Net
from jaxrl.systems.planning.dreamer import dreamer
from tests.ports.equal import difference, drawn, follow, precise, put

SIZES = {"num_envs": 4, "num_steps": 4, "updates": 1, "capacity": 64, "warmup": 32}
SIZES |= {"batch_size": 3, "length": 5, "horizon": 3, "deterministic": 5, "groups": 2}
SIZES |= {"classes": 3, "hidden": (8,), "bins": 5, "range_decay": 0.1}


def jolted(tree):
    """`tree` with no two numbers alike."""
    move = lambda x: x + 0.3 * jnp.sin(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    return jax.tree.map(move, tree)


def old_agent(env):
    """The old agent, with the share that enters its slow critic for the share that does not."""
    old = old_dreamer.agent(env, old_dreamer.Config(**SIZES, max_grad_norm=0.3))

    def init(key, hyper):
        state = old.init(key, {**hyper, "slow_decay": 1 - hyper["slow_rate"]})
        names = ("model", "behaviour", "slow")  # heads begin at 0
        return dataclasses.replace(state, **{n: jolted(getattr(state, n)) for n in names})

    return dataclasses.replace(old, init=init, hyper={**old.hyper, "slow_rate": 0.25})


def trained(s):
    model, behaviour = s.optimisers
    # Adam's averages of the behaviour are one vector: those of the actor, then the critic's.
    runs = model.count.size
    actor = sum(x.size for x in jax.tree.leaves(s.behaviour["actor"])) // runs
    split = lambda part: jax.tree.map(lambda x: x[..., part] if x.size > runs else x, behaviour)
    return {
        "model": (s.model, model, None),
        "actor": (s.behaviour["actor"], split(slice(actor)), None),
        "critic": (s.behaviour["critic"], split(slice(actor, None)), s.slow),
    }


def assert_acts_alike(old, new, trained, timestep):
    """Three steps of an episode, drawn and greedy, from the same parameters and keys."""
    key = random.key(7)
    states = {"old": old.init(key, old.hyper)}
    states["new"] = put(new.init(key, new.hyper), trained(states["old"]))
    for greedy in (False, True):

        def actions(agent, name, greedy=greedy):
            def step(carry, key):
                timestep, memory = carry
                action, memory, _ = agent.act(states[name], timestep, memory, key, greedy)
                later = dataclasses.replace(timestep, first=jnp.zeros_like(timestep.first))
                return (later, memory), (action, memory)

            start = timestep, agent.memory(len(timestep.reward))
            return jax.jit(lambda: jax.lax.scan(step, start, jax.random.split(key, 3))[1])()

        assert difference(actions(new, "new"), actions(old, "old")) == 0


@pytest.mark.parametrize(
    "env",
    [envs.make("catch", rows=3, columns=3), time_limit(envs.make("pendulum"), 3)],
    ids=["ends, cells", "cuts, reals"],
)
def test_the_same_numbers(env, monkeypatch):
    shortest = {"model.max_grad_norm": 0.3, "behaviour.max_grad_norm": 0.3, "slow.rate": 0.25}
    config = replace(dreamer.Config(), SIZES | shortest)
    old, new = old_agent(env), dreamer.agent(env, config)
    batches = drawn(dreamer.source(env, config), new, 6, random.key(3))

    def key(net, name=""):  # as the old one drew them
        model, dream = jax.random.split(net.seed())
        return {"model_loss": model, "dream": dream, "": net.seed()}[name]

    monkeypatch.setattr(Net, "key", key)

    first = jax.tree.map(lambda x: x[0], batches[0].transitions.timestep)
    first = dataclasses.replace(first, first=jnp.ones_like(first.first))
    assert_acts_alike(old, new, trained, first)
    names = ("observation_loss", "latent_loss", "reward_loss", "continue_loss", "actor_loss")
    names += ("critic_loss", "entropy", "imagined_return", "return_range", "model_grad_norm")
    renamed = {"model.learning_rate": "learning_rate", "slow.rate": "slow_rate"}
    renamed |= {"behaviour.learning_rate": "behaviour_learning_rate", "return_lambda": "trace"}
    renamed |= {"model.max_grad_norm": "max_grad_norm", "behaviour.max_grad_norm": "max_grad_norm"}
    with jax.enable_x64(True):
        worst = follow(
            old,
            new,
            trained,
            batches,
            {name: name for name in names},
            jax.random.split(random.key(5), 6),
            rename=renamed,
            cast=precise,
        )
    assert worst < 1e-9
