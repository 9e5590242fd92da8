"""Dreamer 4's first phase: a world model, and a policy cloned on its features (see `dreamer4`)."""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array, Batch, Environment, Transition, struct
from jaxrl.kit import Loss, Net, Recipe, System, group, hyper
from jaxrl.networks.imagination import symexp_atoms
from jaxrl.networks.shortcut_world_model import ShortcutWorldModel, frame_loss
from jaxrl.systems.planning import dreamer4


@group
class Config(dreamer4.Config):
    """Settings of Dreamer 4's first phase."""

    bootstrap: float = hyper(1.0, low=0, high=1)
    """1: shortcut forcing. 0: steps of every size learn the clean frame (an ablation)."""


@struct
class Episodes:
    """Whole episodes of T steps, and what the mean over these makes the means over others."""

    frames: Array  # [T + 1, B, D]
    led: Array  # int32 [T + 1, B]: the action that led to each, as far as the model is told
    transitions: Transition  # [T, B]
    frame_weight: Array  # scalar: steps for each frame
    cloning_weight: Array  # [T, B]: steps for each labelled one, 0 where an action is not told


def prepared(net: Net, batch: Batch, env: Environment, scale: float) -> Batch:
    """The whole episodes of a batch. Each has a first step."""
    frames, led, exists = dreamer4.told_episodes(net, env, batch, scale)
    labelled = batch.mask & batch.transitions.extras["labelled"]
    steps = batch.mask.sum()  # type: ignore[union-attr]
    cloning_weight = labelled * (steps / jnp.maximum(labelled.sum(), 1))
    x = Episodes(frames, led, batch.transitions, steps / exists.sum(), cloning_weight)
    return dataclasses.replace(batch, transitions=x)


def model_loss(
    net: Net, x: Episodes, network: ShortcutWorldModel, atoms: Array
) -> tuple[Array, dict[str, Array]]:
    """Of each step [T, B]: shortcut forcing (equation 7) of the frame that it led to (and of
    the frame before an episode's first); the reward and the end there; and cloning of its action.

    Frames count as much as steps in total, and so do labelled steps: the weights make their means
    terms of the mean over steps.
    """
    t = x.transitions
    error, features = frame_loss(
        network, net.model, x.frames, x.led, net.key(), net.hyper.bootstrap
    )
    reward, continue_logit = net.model(features[1:], method="outcome")
    cloning = -net.prior(features[:-1]).log_prob(t.action)
    parts = {
        "frame_loss": x.frame_weight * error[1:].at[0].add(error[0]),
        "reward_loss": losses.two_hot_cross_entropy(reward, t.reward, atoms),
        "continue_loss": losses.binary_cross_entropy(continue_logit, ~t.terminated),
        "cloning_loss": x.cloning_weight * cloning,
    }
    return sum(parts.values()), parts  # type: ignore[return-value]


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net, batch):
        net = net.descend("model_loss", prepared(net, batch, env, config.scale))
        # The policy that acts is the one that was cloned.
        policy = dataclasses.replace(net.parts["policy"], params=net.parts["prior"].params)
        return net.replace(parts=net.parts | {"policy": policy})

    atoms = symexp_atoms(config.bins, config.symlog_range)
    loss = functools.partial(model_loss, network=dreamer4.network(env, config), atoms=atoms)
    descents = {"model_loss": Loss(loss, ("model", "prior"))}
    return dreamer4.on_recorded(env, config, descents, update)


dreamer4_world_model = System("dreamer4_world_model", Config, recipe, check=dreamer4.check)

TINY = {"env": "catch", "env_params": {"rows": 4, "columns": 3}, "episodes": 8}
TINY |= {"data.batch_size": 4, "width": 8, "layers": 1, "hidden": (4,), "levels": 4, "context": 3}
TINY |= {"horizon": 2, "bins": 5, "num_shards": 4}
