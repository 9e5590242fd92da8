"""Both phases of Dreamer 4 on the kit are what they were."""

import dataclasses

import jax

from jaxrl import envs
from jaxrl.agents.planning import dreamer4 as old_dreamer4
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy
from jaxrl.envs.wrappers import time_limit
from jaxrl.kit.net import Net
from jaxrl.sources import recorded
from jaxrl.systems.planning import dreamer4_imagination as imagination
from jaxrl.systems.planning import dreamer4_world_model as world
from tests.ports.equal import drawn, follow, precise
from tests.ports.test_dreamer import assert_acts_alike, jolted

SIZES = {"width": 8, "layers": 1, "hidden": (8,), "levels": 4, "context": 3, "horizon": 2}
SIZES |= {"bins": 5}
ENV = time_limit(envs.make("cartpole"), 12)
SHORTEST = {"model.max_grad_norm": 0.3, "behaviour.max_grad_norm": 0.3}
MOSTLY_RIGHT = Policy(
    lambda state, timestep, memory, key, greedy: (
        jax.random.bernoulli(key, 0.9, timestep.reward.shape).astype(int),
        memory,
        {},
    ),
    lambda n: (),
)


def batches(agent):
    """Episodes of which some end, and some are cut; some say what was done in them."""
    found = drawn(recorded(ENV, MOSTLY_RIGHT, 32, 6, 0.3), agent, 4, random.key(3))
    assert not all(b.mask.all() for b in found)
    assert any(b.transitions.truncated.any() for b in found)
    assert any((b.transitions.terminated & b.mask).any() for b in found)
    return found


def trained(s):
    """Adam's averages are vectors: of model and clone, and of policy and value."""
    first, second = s.optimisers
    runs = first.count.size
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree)) // runs
    cut = lambda o, part: jax.tree.map(lambda x: x[..., part] if x.size > runs else x, o)
    model, policy = size(s.model), size(s.policy)
    return {
        "model": (s.model, cut(first, slice(model)), None),
        "prior": (s.prior, cut(first, slice(model, None)), None),
        "policy": (s.policy, cut(second, slice(policy)), None),
        "value": (s.value, cut(second, slice(policy, None)), None),
    }


def begun_with(agent, *names):
    """`agent`, of whose first state these parts are jolted: heads begin at 0."""

    def init(key, hyper):
        state = agent.init(key, hyper)
        return dataclasses.replace(state, **{n: jolted(getattr(state, n)) for n in names})

    return dataclasses.replace(agent, init=init)


def compared(old, new, keys, names, monkeypatch):
    monkeypatch.setattr(Net, "key", lambda net, name="": keys(net.seed())[name])
    renamed = {"model.learning_rate": "learning_rate", "return_lambda": "trace"}
    renamed |= {"behaviour.learning_rate": "behaviour_learning_rate"}
    renamed |= {"model.max_grad_norm": "max_grad_norm", "behaviour.max_grad_norm": "max_grad_norm"}
    episodes = batches(new)
    first = jax.tree.map(lambda x: x[0], episodes[0].transitions.timestep)
    assert_acts_alike(old, new, trained, first)
    with jax.enable_x64(True):
        return follow(
            old,
            new,
            trained,
            episodes,
            names,
            jax.random.split(random.key(5), 4),
            rename=renamed,
            cast=precise,
        )


def test_the_world_model_and_the_clone(monkeypatch):
    old = old_dreamer4.agents(ENV, old_dreamer4.Config(**SIZES, steps=2, max_grad_norm=0.3))[0]
    new = world.dreamer4_world_model.agent(ENV, replace(world.Config(), SIZES | SHORTEST))
    keys = lambda seed: {"model_loss": seed, "": seed}
    names = {n: n for n in ("frame_loss", "reward_loss", "cloning_loss")}
    names |= {"continue_loss": "going_on_loss"}
    worst = compared(begun_with(old, "model"), new, keys, names, monkeypatch)
    assert worst < 1e-9


def test_imagination(monkeypatch):
    old = old_dreamer4.agents(ENV, old_dreamer4.Config(**SIZES, steps=2, max_grad_norm=0.3))[1]
    config = replace(imagination.Config(), SIZES | SHORTEST | {"steps": 2})
    new = imagination.dreamer4_imagination.agent(ENV, config)

    def keys(seed):
        dream, end = jax.random.split(seed)
        context, dream = jax.random.split(dream)
        noise, time = jax.random.split(context)
        return {"noise": noise, "time": time, "dream": dream, "end": end, "behaviour_loss": seed}

    names = {n: n for n in ("policy_loss", "value_loss", "prior_kl", "imagined_return")}
    old = begun_with(old, "model", "policy", "value")
    worst = compared(old, new, keys, names, monkeypatch)
    assert worst < 1e-9
