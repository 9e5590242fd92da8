"""Elastic weight consolidation, online (Kirkpatrick et al., 2017, arXiv:1612.00796; Schwarz et
al., 2018, arXiv:1805.06370, section 3).

The penalty weight / 2 * sum_i F_i (theta_i - theta*_i)^2 holds the parameters that earlier tasks'
policies depend on near their values at the end of the last task. F is the diagonal of the policy's
Fisher information: at the end of a task, F <- decay * F + the finished task's. As in Continual
Environment (Wolczyk et al., 2021), only parameters that the policy depends on are held; the value's
own parameters have F = 0.

Unlike in the papers, the penalty is not part of the agent's loss. After each of the agent's updates
its proximal operator is applied, theta <- (theta + weight F theta*) / (1 + weight F), which is
exact for a quadratic. So it works with any agent and optimizer, is stable however large F is, and
is not rescaled by Adam (like the decoupled weight decay of AdamW, Loshchilov and Hutter, 2019). The
Fisher information is a running mean over the task's windows, weighted toward the last ones, because
the end of a task is only known once the next has begun.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.types import Agent, Array, Batch, Info, Key, Tree, struct
from jaxrl.kit.wrapping import Wrapped, params_of, with_params, wrap

RATE = 0.2  # of the running Fisher information, a mean over about the last five windows


@struct
class Consolidated:
    """State of elastic weight consolidation."""

    anchor: Tree  # the parameters when the last task ended
    fisher: Tree  # of all finished tasks; 0 before the first ended
    running: Tree  # Fisher information of the current task
    windows: Array  # int32: of the current task
    task: Array  # int32: id of the current task, -1 before the first window


def ewc(
    agent: Agent,
    weight: float = 1.0,
    decay: float = 1.0,
    samples: int = 64,
    path: str = "ewc.",
) -> Agent:
    """Wrap `agent` to keep the parameters that earlier tasks need. A task begins where the id in
    `transitions.task` (of the first stream, at a window's last step) changes.

    weight: strength of the pull after each update; 0 switches it off exactly.
    decay: at most 1; below 1, old tasks may slowly be forgotten.
    samples: number of steps per window for estimating the Fisher information. Each is treated as
        the start of an episode, so this suits policies with memory poorly.
    path: prefix of the names of the hyperparameters `weight` and `decay`.

    Raises `UserError` if tasks have no id, and if the policy records no `log_prob`.
    """

    def nothing(state):
        params = params_of(state)
        zero = jax.tree.map(jnp.zeros_like, params)
        return Consolidated(params, zero, zero, jnp.int32(0), jnp.int32(-1))

    def update(state, batch, key):
        key, fisher_key = jax.random.split(key)
        hyper = Values(state.hyper, path)
        own = _consolidate(state, _current_task(batch), hyper.decay)
        inner, info = agent.update(state.agent, batch, key)
        squares = squared_scores(agent, inner, batch, fisher_key, samples)
        rate = jnp.maximum(RATE, 1.0 / (own.windows + 1))
        running = jax.tree.map(lambda r, g: r + rate * (g - r), own.running, squares)
        pulled = jax.tree.map(
            lambda p, a, f: (p + hyper.weight * f * a) / (1.0 + hyper.weight * f),
            params_of(inner),
            own.anchor,
            own.fisher,
        )
        pairs = zip(*map(jax.tree.leaves, (pulled, own.anchor, own.fisher)), strict=True)
        penalty = jnp.stack([losses.ewc(p, a, f).sum() for p, a, f in pairs]).sum()
        own = dataclasses.replace(own, running=running, windows=own.windows + 1)
        info = Info(info.metrics | {"ewc_penalty": penalty}, info.feedback)
        return with_params(inner, pulled), own, info

    defaults = {f"{path}weight": weight, f"{path}decay": decay}
    return wrap(agent, "ewc", nothing, update, hyper=defaults)


def _current_task(batch: Batch) -> Array:
    ids = jax.tree.leaves(batch.transitions.task)
    if len(ids) != 1 or ids[0].ndim != 2 or not jnp.issubdtype(ids[0].dtype, jnp.integer):
        raise UserError(
            "ewc must know when a task ends: it needs windows [T, B] of tasks with integer ids "
            "(see tasks.schedule)."
        )
    return ids[0][-1, 0].astype(jnp.int32)


def _consolidate(state: Wrapped, task: Array, decay: Array) -> Consolidated:
    """Return the consolidated state for a window of `task`; if that is a new task, the last one is
    consolidated."""
    own = state.own
    began = task != own.task
    ended = began & (own.task >= 0)
    held = jax.tree.map(lambda f, r: decay * f + r, own.fisher, own.running)
    return Consolidated(
        anchor=trees.where(ended, params_of(state.agent), own.anchor),
        fisher=trees.where(ended, held, own.fisher),
        running=trees.where(began, jax.tree.map(jnp.zeros_like, held), own.running),
        windows=jnp.where(began, 0, own.windows),
        task=task,
    )


def squared_scores(agent: Agent, state: Tree, batch: Batch, key: Key, samples: int) -> Tree:
    """Estimate the diagonal of the policy's Fisher information, shaped like the parameters: the
    mean over `samples` random steps of the window [T, B] of the squared gradient of log pi(a | s),
    with actions drawn from the policy itself."""
    pick_key, act_key = jax.random.split(key)
    steps, streams = batch.transitions.reward.shape
    index = jax.random.randint(pick_key, (samples,), 0, steps * streams)
    chosen = jax.tree.map(
        lambda x: x.reshape(steps * streams, *x.shape[2:])[index][:, None],
        batch.transitions.timestep,
    )

    def log_prob(params, timestep, key):
        extras = agent.act(with_params(state, params), timestep, agent.memory(1), key, False)[2]
        if "log_prob" not in extras:
            raise UserError(f"ewc needs the log_prob of actions; '{agent.name}' records none.")
        return extras["log_prob"].sum()

    scores = jax.vmap(jax.grad(log_prob), in_axes=(None, 0, 0))(
        params_of(state), chosen, jax.random.split(act_key, samples)
    )
    last = lambda g: jnp.moveaxis(g, 0, -1)  # examples are the last axis of `online_fisher`
    return jax.tree.map(lambda g: losses.online_fisher(jnp.zeros_like(g[0]), last(g)), scores)
