"""SPEAR (Qin et al., 2025, "Learn the ropes, then trust the wins: self-imitation with progressive
exploration for agentic reinforcement learning", arXiv:2509.22601 and the authors' code): group
policy gradients for agents that call tools, with a curriculum. At first calls are paid for; later
promising trajectories of the past are imitated.

    r = r_outcome + mu(k) min(0.1 calls, 1),   mu falls from 1 to 0 over the first updates k
    A = r - mean(r) in its group,              of the groups whose rewards vary most
    loss = -min(rho A, clip(rho) A) + kappa(k) (-min(rho A', clip(rho) A')),   kappa rises to 1

A' is the recalibrated advantage of a trajectory from the replay buffer: its reward less the median
of the mean rewards of recent groups. Trajectories with a positive advantage and a call enter the
buffer; once it is full, some of those that still exceed the median are imitated, by a gradient step
of their own, and the buffer is emptied (`sources.with_promising`). In both losses some tokens with
a high covariance of log-probability and advantage lose their gradient, which keeps entropy up. The
ratio rho is to the policy that wrote a trajectory. Both schedules are half a cosine.

The other parts are those of the authors' baseline: a higher upper clip, no divergence, advantages
not divided by deviations, a constant length in the mean. Their filters of answers that are
incomplete, repetitive or unreadable are left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.pairs import check_whole
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    answer_output,
    decisions,
    evaluate,
    on_answers,
    returns_of,
)
from jaxrl.algorithms.tokens.shared.outcomes import check_metrics, metric_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher, Groups
from jaxrl.core import schedules, trees
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import INF, Optimizer
from jaxrl.sources import with_promising


@group
class Replayed(Groups):
    """Groups of trajectories, and a replay buffer of promising ones."""

    prompts: int = static(32, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one group of answers."""
    answers: int = static(16, low=1, high=MANY)
    """Number of answers (G) to each prompt."""
    imitated: int = static(32, low=1, high=MANY)
    """Number of promising trajectories that are imitated at once."""
    windows: int = static(5, low=1, high=MANY)
    """Number of updates after which a trajectory is forgotten."""
    history: int = static(16, low=1, high=MANY)
    """Number of updates whose groups' mean rewards the median is of. (The authors count groups.)"""

    def source(self, env: Environment) -> Source:
        """Return a source of groups with promising trajectories behind them."""
        sizes = self.answers, self.imitated, self.windows, self.history
        return with_promising(self.episodes(env), *sizes)


@group
class Config(ClippedHigher):
    """Settings of SPEAR: self-imitation with a curriculum, for agents that call tools
    (arXiv:2509.22601). The defaults are those of the authors' code."""

    groups: Replayed = Replayed()
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    keep: float = static(0.75, above=0, high=1)
    """Share of the groups that are learned from, those whose rewards vary most."""
    call_reward: float = hyper(0.1, low=0)
    """Reward of a call at the start, at most 1 for all calls of a trajectory."""
    call_updates: float = hyper(200.0, above=0, high=INF)
    """Number of updates over which the reward of calls falls to 0."""
    imitation: float = hyper(1.0, low=0)
    """Weight of the imitation of promising trajectories at the end."""
    imitation_updates: float = hyper(300.0, above=0, high=INF)
    """Number of updates over which that weight rises from 0."""
    clipped_share: float = hyper(0.02, low=0, high=1)
    """Share of the tokens that lose their gradient for a high covariance."""
    covariance_low: float = hyper(1.0, low=0)
    """Covariance above which a token may lose its gradient."""
    covariance_high: float = hyper(40.0, low=0, high=INF)
    """Covariance below which a token may lose its gradient."""


def falling(updates: Array, length: Array) -> Array:
    """Return half a cosine from 1 to 0 over `length` updates, 0 afterwards."""
    one = jnp.float32(1)
    return schedules.cosine(one, 0 * one, schedules.progress(updates, length))


def calls_of(batch: Batch) -> Array:
    """Return the number of calls in each trajectory, [B]."""
    return metric_at_end(batch, "calls")


def shaped_returns(net: Net, batch: Batch) -> Array:
    """Return the reward of each trajectory with that of its calls, [B]."""
    h = net.hyper
    paid = jnp.minimum(h.call_reward * calls_of(batch), 1.0)
    return returns_of(batch) + falling(net.updates, h.call_updates) * paid


def trajectory_loss(net: Net, minibatch: Minibatch) -> LossOutput:
    """Compute the surrogate of whole trajectories [B], without the tokens that lose their
    gradient."""
    x, mask, h = minibatch.x, minibatch.mask, net.hyper
    assert mask is not None
    now = evaluate(net, x)
    each = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, h.clip, h.clip_high)
    ratio = jnp.exp(now.log_prob - x.log_prob)
    outside = jnp.where(x.advantage > 0, ratio > 1 + h.clip_high, ratio < 1 - h.clip)
    noise = jax.random.uniform(net.key("covariance"), mask.shape)
    bounds = h.clipped_share, h.covariance_low, h.covariance_high
    held = jax.lax.stop_gradient(now.log_prob)
    free = losses.covariance_clip_mask(held, x.advantage, noise, *bounds, mask, ~outside)
    total = jnp.where(mask & (free | outside), each, 0.0).sum(0) / len(mask)
    return answer_output(net, minibatch, now, total)


@loss("actor_critic", name="loss", unit=SEQUENCE)
def fresh_loss(net: Net, minibatch: Minibatch) -> LossOutput:
    """Compute the loss of fresh trajectories."""
    return trajectory_loss(net, minibatch)


@loss("actor_critic", name="imitation_loss", unit=SEQUENCE)
def imitation_loss(net: Net, minibatch: Minibatch) -> Array:
    """Compute the loss of promising trajectories of the past, by its weight in the curriculum."""
    h = net.hyper
    weight = h.imitation * (1 - falling(net.updates, h.imitation_updates))
    value = trajectory_loss(net, minibatch).value
    assert isinstance(value, jax.Array)
    return weight * value


def recipe(env: Environment, config: Any) -> Recipe:
    size, fresh_count = config.groups.answers, config.groups.num_envs
    answers.check_groups(size)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        reward = shaped_returns(net, batch)
        each = losses.group_relative(reward.reshape(-1, size), normalize=False).reshape(-1)
        return {"advantage": jnp.broadcast_to(each, batch.transitions.reward.shape)}

    whole = on_answers(env, config, judge, (fresh_loss,))

    def update(net: Net, batch: Batch) -> Net:
        assert batch.mask is not None  # `Recipe.needs`
        split = lambda cut: jax.tree.map(lambda x: x[:, cut], (batch.transitions, batch.mask))
        (t, mask), (old, old_mask) = split(slice(fresh_count)), split(slice(fresh_count, None))
        fresh = dataclasses.replace(batch, transitions=t, mask=mask)
        reward = shaped_returns(net, fresh)
        groups = reward.reshape(-1, size)
        better = losses.group_relative(groups, normalize=False).reshape(-1) > 0
        kept = jnp.repeat(losses.high_variance_groups(groups, config.keep), size)
        new = whole.update(net, dataclasses.replace(fresh, mask=mask & kept))
        due, said = old_mask.any(), decisions(old.timestep, old_mask)
        log_prob, excess = old.extras["log_prob"], old.extras["recalibrated"]
        allowed = old.extras.get("allowed")
        x = Sample(old.timestep, old.action, log_prob, log_prob, excess, allowed=allowed)
        imitated = new.descend(imitation_loss, x, mask=said)
        new = imitated.replace(parts=trees.where(due, imitated.parts, new.parts))
        promising = better & (calls_of(fresh) > 0)
        new = new.report(promising=promising.mean(), imitates=due.astype(jnp.float32))
        return new.feed(returns=reward, promising=promising)

    needs = (*whole.needs, "transitions.extras.recalibrated")
    both = (*whole.losses, imitation_loss)
    return dataclasses.replace(whole, losses=both, update=update, needs=needs)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for chunks, since covariances are those of a whole
    minibatch, and if `env` does not report its calls."""
    check_whole(config, name, "tokens")
    answers.check(env, config, name)
    check_metrics(env, name, "calls")


spear = AlgorithmBuilder("spear", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"env": "lookup", "env_params": {"keys": 2, "hops": 1}}
TINY |= {"imitated": 2, "windows": 2, "history": 2}
