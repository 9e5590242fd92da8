"""Token policies on the kit are what they were."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.agents.tokens import agent as old_agent
from jaxrl.agents.tokens import methods as old_methods
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.kit.net import Net
from jaxrl.systems.tokens.gpg import gpg
from jaxrl.systems.tokens.grpo import grpo
from jaxrl.systems.tokens.pass_at_k import pass_at_k
from jaxrl.systems.tokens.rloo import rloo
from jaxrl.systems.tokens.rpg import rpg
from jaxrl.systems.tokens.rpg_clipped import rpg_clipped
from jaxrl.systems.tokens.token_ppo import token_ppo
from jaxrl.systems.tokens.token_reinforce import token_reinforce
from jaxrl.systems.tokens.token_supervised import token_supervised
from tests.ports.equal import drawn, follow, precise

ENV = envs.make("addition", digits=1)
METHODS = {
    "supervised": token_supervised,
    "reinforce": token_reinforce,
    "rloo": rloo,
    "gpg": gpg,
    "grpo": grpo,
    "pass_at_k": pass_at_k,
    "ppo": token_ppo,
    "rpg": rpg,
    "rpg_clipped": rpg_clipped,
}
RENAMED = {
    "optimizer.learning_rate": "learning_rate",
    "optimizer.max_grad_norm": "max_grad_norm",
    "kl.weight": "kl_weight",
    "gae_lambda": "trace",
}
OPTIONS = {  # new name -> old
    "recurrent": "width",
    "transformer": "layers",
    "prompts": "prompts",
    "answers": "answers",
    "epochs": "epochs",
    "minibatches": "minibatches",
    "average": "average",
    "kl.weight": "kl_weight",
    "estimate": "kl_estimate",
    "direction": "rpg_kl",
    "normalized": "rpg_normalized",
    "reinforce": "rpg_reinforce",
    "entropy_weight": "entropy_weight",
    "clip": "clip",
    "k": "k",
}
UPDATES = 4
GRU = {"recurrent": 8, "transformer": 0, "epochs": 2, "minibatches": 2, "entropy_weight": 0.01}
TRANSFORMER = GRU | {"transformer": 1}
KL = {"kl.weight": 0.3}
OWN = {
    "supervised": {},
    "pass_at_k": KL | {"k": 2, "clip": 0.05},
    **dict.fromkeys(("reinforce", "rloo", "gpg", "rpg"), KL),
    **{name: KL | {"clip": 0.05} for name in ("grpo", "ppo", "rpg_clipped")},
}
CASES = {f"{name}, GRU": (name, GRU | OWN[name]) for name in METHODS}
CASES |= {f"{name}, transformer": (name, TRANSFORMER | OWN[name]) for name in METHODS}
CASES |= {
    f"grpo, {average}, {estimate}": (
        "grpo",
        GRU | OWN["grpo"] | {"average": average, "estimate": estimate},
    )
    for average, estimate in (("token", "k2"), ("constant", "k3"))
}
CHUNKS = {"chunk_rows": 4 * (ENV.max_steps or 0)}  # half a minibatch
CASES["ppo, chunks"] = "ppo", GRU | OWN["ppo"] | CHUNKS
CASES |= {
    f"{method}, {direction}, {normalized}, {style}": (
        method,
        GRU | OWN[method] | {"direction": direction, "normalized": normalized} | style,
    )
    for method, styles in (("rpg", ({}, {"reinforce": True})), ("rpg_clipped", ({},)))
    for direction in ("forward", "reverse")
    for normalized in (False, True)
    for style in styles
}


def answered(system, config):
    """Batches, in which chance rewards answers: an untrained policy's are never right."""
    agent = system.agent(ENV, config)
    batches = drawn(system.source(ENV, config), agent, UPDATES, random.key(3))
    for i, batch in enumerate(batches):
        step = batch.transitions.next_timestep
        right = jax.random.bernoulli(jax.random.key(i), 0.4, step.reward.shape)
        step = dataclasses.replace(step, reward=jnp.where(step.done & right, 1.0, 0.0))
        x = dataclasses.replace(batch.transitions, next_timestep=step)
        yield dataclasses.replace(batch, transitions=x)


def elsewhere(agent):
    """The agent, whose reference is another policy than its own from the start."""

    def init(key, hyper):
        state = agent.init(key, hyper)
        return dataclasses.replace(state, reference=jax.tree.map(lambda x: 0.9 * x, state.params))

    return dataclasses.replace(agent, init=init)


@pytest.mark.parametrize("name", CASES)
def test_it_learns_as_before(name, monkeypatch):
    method, options = CASES[name]
    system = METHODS[method]
    supervised = method == "supervised"
    # The old one rounded these to single precision, whatever the rest.
    mean = losses.masked_mean
    monkeypatch.setattr(losses, "masked_mean", lambda x, mask: mean(precise(x), mask))
    judge = lambda returns, k: losses.pass_at_k_advantage(returns > 0, k)
    was = dataclasses.replace(old_methods.METHODS["pass_at_k"], advantage=judge)
    monkeypatch.setitem(old_methods.METHODS, "pass_at_k", was)
    # The old one had no other use for its key than the order.
    monkeypatch.setattr(Net, "key", lambda net, name="": net.seed())

    old_config: dict[str, Any] = {OPTIONS[n]: v for n, v in options.items() if n in OPTIONS}
    old_config |= {"prompts": 4, "answers": 4}
    sizes = {"num_envs": 16} if supervised else {"prompts": 4, "answers": 4}
    config = replace(system.Config(), options | sizes)
    old = elsewhere(old_agent.agent(ENV, old_agent.Config(method=method, **old_config)))
    batches = list(answered(system, config))
    lengths = np.concatenate([np.asarray(batch.mask).sum(0) for batch in batches])
    assert len(set(lengths)) > 1  # else all averages would be alike

    names = {n: n for n in ("policy_loss", "entropy")}
    names |= {"actor_critic_grad_norm": "grad_norm", "actor_critic_norm": "weight_norm"}
    names |= {"token_accuracy" if supervised else "kl_to_reference": ""}
    names |= {"value_loss": ""} if method == "ppo" else {}
    with jax.enable_x64(True):
        worst = follow(
            old,
            system.agent(ENV, config),
            lambda s: {"actor_critic": (s.params, s.optimiser, s.reference)},
            batches,
            {new: before or new for new, before in names.items()},
            jax.random.split(random.key(5), UPDATES),
            rename=RENAMED,
            cast=precise,
            fixed=("reference.rate", "discount"),
        )
    assert worst < 1e-9
