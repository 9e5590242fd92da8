"""KTO (Ethayarajh et al., 2024, "KTO: model alignment as prospect theoretic optimization",
arXiv:2402.01306): each answer alone is good or bad, and gains or loses against a reference point,
the divergence from the reference policy. That is estimated in each minibatch by answers to other
prompts. Here the good and the bad answers are the chosen and the rejected ones of pairs, which the
loss does not compare."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.pairs import (
    PAIR,
    Sample,
    answers_of,
    check_whole,
    on_pairs,
    pair_metrics,
)
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, ReferencePolicy
from jaxrl.algorithms.tokens.shared.answers import unroll
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Minibatch, Net, Recipe, group, hyper, loss
from jaxrl.kit.groups import Optimizer


@group
class Config(ReferencePolicy):
    """Settings of KTO: good and bad answers against the divergence from the reference
    (arXiv:2402.01306)."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-6, max_grad_norm=1.0)
    """Optimizer settings. 5e-6, as its authors advise. (Small networks need larger steps.)"""
    desirable_weight: float = hyper(1.0, low=0)
    """Weight of good answers (lambda_D)."""
    undesirable_weight: float = hyper(1.0, low=0)
    """Weight of bad answers (lambda_U)."""


def swap_answers(x: Minibatch) -> Minibatch:
    """Return the answers of each pair as if they were given to the prompt of the pair before.

    Prompts must be equally long: an episode is read up to its first decision, and goes on with the
    other's answer.
    """
    timestep = x.x.timestep
    decision = timestep.tokens["decision"]
    decided = jnp.cumsum(decision, 0)  # also where the text has ended and the other goes on
    roll = lambda y: jnp.roll(y, -2, axis=1)

    def splice(own: Array, keep: Array) -> Array:
        return jnp.where(keep.reshape(*keep.shape, *(1,) * (own.ndim - 2)), own, roll(own))

    spliced = jax.tree.map(lambda y: splice(y, decided - decision == 0), timestep)
    action = jax.tree.map(lambda y: splice(y, decided == 0), x.x.action)
    return Minibatch(Sample(spliced, action), roll(x.mask))


def reference_point(net: Net, x: Minibatch) -> Array:
    """Return the estimate of KL(policy || reference) by answers to other prompts, a scalar."""
    other = swap_answers(x)
    sample = other.x
    now, frozen = (
        losses.sequence_log_prob(
            unroll(part, net, sample.timestep)[0].log_prob(sample.action), other.mask
        )
        for part in (net.actor_critic, net.target.actor_critic)
    )
    return jax.lax.stop_gradient((now - frozen).mean())


@loss("actor_critic", name="loss", unit=PAIR)
def kto_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the losses of both answers of each pair, their mean."""
    (chosen, rejected), h, point = answers_of(net, x), net.hyper, reference_point(net, x)
    good, bad = (
        losses.kto(
            answer.log_prob,
            answer.reference,
            jnp.full(answer.log_prob.shape, desirable),
            point,
            h.beta,
            h.desirable_weight,
            h.undesirable_weight,
        )
        for answer, desirable in ((chosen, True), (rejected, False))
    )
    metrics = pair_metrics(chosen, rejected)
    point = jnp.broadcast_to(jnp.maximum(point, 0), good.shape)
    return LossOutput((good + bad) / 2, metrics | {"reference_point": point})


def recipe(env: Environment, config: Config) -> Recipe:
    return on_pairs(env, config, kto_loss)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `pairs.check`, for chunks, and for minibatches of a single pair, which
    have no answers to other prompts."""
    pairs.check(env, config, name)
    check_whole(config, name)
    if config.pairs.batch_size // config.passes.minibatches < 2:
        raise UserError(
            f"{name} estimates a divergence by answers to other prompts, so a minibatch needs at "
            "least 2 pairs."
        )


kto = AlgorithmBuilder("kto", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_PAIRS | {"chunk_rows": 0}
