"""Cloning of the agent's own earlier behavior: the part of CLEAR (Rolnick et al., 2019,
arXiv:1811.11682, section 3) that prevents forgetting.

On replayed steps it keeps the policy near the behavior policy that took them, KL(mu || pi), and the
value near its value at that time, |V_mu - V|^2. CLEAR also learns from replayed rewards, by
V-trace; here the agent, which can be any, learns from the fresh steps alone, and cloning takes
separate gradient steps, with a separate Adam, after each of the agent's updates.
"""

from __future__ import annotations

import dataclasses

import jax

from jaxrl import losses
from jaxrl.core.settings import Values
from jaxrl.core.types import Agent, Batch, Info
from jaxrl.kit.groups import plain_optimizer
from jaxrl.kit.optimization import descend
from jaxrl.kit.wrapping import params_of, with_params, wrap


def clone(
    agent: Agent,
    num_envs: int,
    rate: float = 1e-3,
    value_weight: float = 0.5,
    steps: int = 4,
    path: str = "clone.",
) -> Agent:
    """Wrap `agent` to learn from the first `num_envs` (B) columns of each window and clone its
    recorded outputs in the others (see `sources.rehearsal`). Its policy must record `logits` and
    `value`.

    rate: step size of cloning; 0 switches it off exactly.
    value_weight: weight of the value's squared error relative to the policy's divergence.
    steps: gradient steps after each update, each on all replayed steps. Each replayed step is
        treated as the start of an episode, so this suits policies with memory poorly.
    path: prefix of the names of the hyperparameters `rate` and `value_weight`.
    """
    optimizer = plain_optimizer("adam")

    def update(state, batch, key):
        hyper = Values(state.hyper, path)
        key, clone_key = jax.random.split(key)
        inner, info = agent.update(state.agent, columns(batch, slice(0, num_envs)), key)
        replayed = columns(batch, slice(num_envs, None)).transitions
        old = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), replayed)
        memory = agent.memory(old.reward.shape[0])

        def loss(params):
            now = agent.act(with_params(inner, params), old.timestep, memory, clone_key, True)[2]
            policy = losses.categorical_kl(old.extras["logits"], now["logits"]).mean()
            value = losses.squared_error(now["value"], old.extras["value"]).mean()
            return policy + hyper.value_weight * value, policy

        def step(carry, _):
            params, optimizer_state = carry
            gradient, policy = jax.grad(loss, has_aux=True)(params)
            *carry, _ = descend(optimizer, gradient, optimizer_state, params, hyper.rate, 1.0)
            return tuple(carry), policy

        (params, optimizer_state), policy = jax.lax.scan(
            step, (params_of(inner), state.own), None, steps
        )
        metrics = info.metrics | {"clone_divergence": policy[0]}
        return with_params(inner, params), optimizer_state, Info(metrics, info.feedback)

    return wrap(
        agent,
        "clone",
        lambda state: optimizer.init(params_of(state)),
        update,
        hyper={f"{path}rate": rate, f"{path}value_weight": value_weight},
        needs=("transitions.extras.logits", "transitions.extras.value"),
    )


def columns(batch: Batch, chosen: slice) -> Batch:
    """Select streams of a window: transitions [T, B] and memory [B], without the tail."""
    pick = lambda tree: jax.tree.map(lambda x: x[:, chosen], tree)
    return dataclasses.replace(
        batch,
        transitions=pick(batch.transitions),
        memory=jax.tree.map(lambda x: x[chosen], batch.memory),
        tail=None,
        mask=pick(batch.mask),
        weight=pick(batch.weight),
        index=None,
    )
