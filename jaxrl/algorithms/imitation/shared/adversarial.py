"""Rewards of a discriminator, which tells the policy's steps from an expert's, around the update of
any recipe that learns from rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Transition, Tree, struct
from jaxrl.kit import Loss, LossOutput, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.composing import around, with_rewards
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks.critics import ActionValues

Logits = Callable[[Net, Transition], Array]
"""A function of the net and of transitions [...]: the log-odds [...] that each is the expert's."""


@group
class Discriminator:
    """Discriminator of the policy's steps and an expert's."""

    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the discriminator."""
    penalized: bool = False
    """Penalize slopes of the discriminator between the expert's steps and the policy's."""
    slope: float = hyper(1.0, low=0, high=INF)
    """Norm of the gradient with respect to observation and action that `penalized` aims for."""
    penalty_weight: float = hyper(10.0, low=0, high=INF)
    """Weight of the gradient penalty."""
    one_sided: bool = False
    """Penalize slopes above `slope` alone."""


@struct
class Beside:
    """Steps of the policy and as many of an expert, [...]."""

    played: Transition
    shown: Transition


def compare(net: Net, env: Environment, batch: Batch) -> Beside:
    """Return the steps of a batch and the expert's beside them as a discriminator is to see both:
    actions within their bounds, observations on one scale, and nothing else that tells them
    apart."""
    x = batch.transitions
    shown = x.extras["expert"]
    strip = lambda t: dataclasses.replace(
        t, action=spaces.clip(env.action_space, t.action), task=(), extras={}
    )
    shown = dataclasses.replace(
        shown,
        timestep=net.normalize(shown.timestep),
        next_timestep=net.normalize(shown.next_timestep),
    )
    return Beside(strip(x), strip(shown))


def step_discriminator(env: Environment, settings: Discriminator) -> Part:
    """Return the discriminator of observation and action, the part of `log_odds`."""
    torso, space = settings.torso, env.action_space
    more = (torso.activation, torso.initializer)
    network = ActionValues(env.observation_space, space, torso.hidden, 1, *more)
    inputs = (example_timestep(env), spaces.example(space)[None])
    return Part(network, inputs, settings.optimizer)


def log_odds(net: Net, x: Transition) -> Array:
    """Return the log-odds [...] that steps are the expert's, of the part `discriminator`."""
    return net.discriminator(x.timestep, x.action)[..., 0]


def interpolate(x: Beside, share: Array) -> Transition:
    """Return `share` [...] of the expert's observations and actions and the rest of the policy's.
    What is no real number is the expert's."""

    def between(a, b):
        if not jnp.issubdtype(jnp.result_type(a), jnp.floating):
            return a
        weight = share.reshape(*share.shape, *(1,) * (a.ndim - share.ndim))
        return weight * a + (1 - weight) * b

    middle = lambda a, b: jax.tree.map(between, a, b)
    before, after = (
        dataclasses.replace(a, observation=middle(a.observation, b.observation))
        for a, b in (
            (x.shown.timestep, x.played.timestep),
            (x.shown.next_timestep, x.played.next_timestep),
        )
    )
    action = middle(x.shown.action, x.played.action)
    return dataclasses.replace(x.shown, timestep=before, action=action, next_timestep=after)


def gradient_of(logits: Logits, net: Net, x: Transition) -> Array:
    """Return the gradient [..., D] of the logits with respect to the real numbers of observations,
    next observations and actions."""

    def total(inputs):
        before, action, after = inputs
        seen = dataclasses.replace(
            x,
            timestep=dataclasses.replace(x.timestep, observation=before),
            action=action,
            next_timestep=dataclasses.replace(x.next_timestep, observation=after),
        )
        return logits(net, seen).sum()

    inputs = (x.timestep.observation, x.action, x.next_timestep.observation)
    gradient = jax.grad(total, allow_int=True)(inputs)
    real = [g for g in jax.tree.leaves(gradient) if jnp.issubdtype(g.dtype, jnp.floating)]
    return jnp.concatenate([g.reshape(*x.reward.shape, -1) for g in real], -1)


def discriminator_loss(parts: tuple[str, ...], logits: Logits, settings: Discriminator) -> Loss:
    """Return the loss of a discriminator: binary cross-entropy of the expert's steps as 1 and the
    policy's as 0, and a gradient penalty between them if the settings want one."""

    @loss(*parts, name="discriminator_loss")
    def function(net: Net, x: Beside) -> LossOutput:
        shown, played = logits(net, x.shown), logits(net, x.played)
        value = losses.binary_cross_entropy(shown, jnp.ones_like(shown))
        value += losses.binary_cross_entropy(played, jnp.zeros_like(played))
        metrics: dict[str, Array] = {"expert_accuracy": shown > 0, "policy_accuracy": played <= 0}
        if settings.penalized:
            h = net.hyper.discriminator
            share = jax.random.uniform(net.key("share"), shown.shape)
            slope = gradient_of(logits, net, interpolate(x, share))
            penalty = losses.gradient_penalty(slope, h.slope, settings.one_sided)
            value += h.penalty_weight * penalty
            metrics["gradient_penalty"] = penalty
        return LossOutput(value, metrics)

    return function


def adversarial(
    recipe: Recipe,
    env: Environment,
    parts: Mapping[str, Part],
    trained: Loss,
    train: Callable[[Net, Loss, Beside, Batch], Net],
    reward: Callable[[Net, Transition], Array],
    annotate: Callable[[Net, Transition], Transition] = lambda net, x: x,
    more_parts: Mapping[str, Part] = {},
    more_losses: Sequence[Loss] = (),
    extra: Tree = (),
) -> Recipe:
    """Let a recipe learn from the reward of a discriminator that is trained before each update.

    parts: of the discriminator. trained: its loss, of steps `Beside` each other.
    train: function of the net, that loss, the steps to tell apart and the batch that they are from;
        returns the net after the discriminator's gradient steps.
    reward: what the policy learns from, of its own transitions, after these steps.
    annotate: adds to transitions whatever else loss and reward read, once for each update.
    more_parts, more_losses, extra: whatever else `train` learns and `reward` reads.
    """

    def before(net, batch):
        x = compare(net, env, batch)
        x = Beside(annotate(net, x.played), annotate(net, x.shown))
        net = train(net, trained, x, batch)
        paid = jax.lax.stop_gradient(reward(net, x.played))
        batch = with_rewards(batch, paid)
        own = {k: v for k, v in batch.transitions.extras.items() if k != "expert"}
        transitions = dataclasses.replace(batch.transitions, extras=own)
        net = net.report(imitation_reward=paid.mean())
        return net, dataclasses.replace(batch, transitions=transitions), None

    return around(
        recipe,
        parts={**parts, **more_parts},
        losses=(trained, *more_losses),
        extra=extra,
        before=before,
        needs=("transitions.extras.expert",),
    )


def refuse_reward_scaling(config: Any, name: str) -> None:
    """Raise `UserError` where rewards are normalized: those of the environment, beside which or in
    whose place others are learned from."""
    if config.normalization.reward:
        raise UserError(
            f"normalization.reward is on, but {name} computes rewards of its own from what it "
            "observes, which would not be scaled; turn it off."
        )
