"""Dreamer 4's first phase: learn a world model, and clone a policy on its features (see
`shared/dreamer4.py`)."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.planning.shared import dreamer4
from jaxrl.algorithms.planning.shared.shortcut_forcing import frame_loss
from jaxrl.core.types import Array, Batch, Environment, Transition, struct
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Recipe, group, hyper, static
from jaxrl.networks.imagination import symexp_atoms
from jaxrl.networks.shortcut_world_model import ShortcutWorldModel


@group
class Config(dreamer4.Config):
    """Settings of Dreamer 4's first phase: learn a world model by shortcut forcing (equation 7),
    and a policy on its features by cloning (arXiv:2509.24527)."""

    bootstrap: float = hyper(1.0, low=0, high=1)
    """Shortcut forcing: 1 for the paper's targets; 0 to learn the clean frame at every step size
    (an ablation)."""
    relevant: float | None = static(None)
    """Lowest return of an episode that is cloned; None for all. (The paper clones episodes that
    accomplish a task, and learns frames from all.)"""
    loss_decay: float = hyper(0.99, low=0, below=1)
    """Decay per update of the running mean squares that normalize the losses. (Our choice: the
    paper does not say.)"""


@struct
class Episodes:
    """Whole episodes of T steps, with weights that turn the mean over steps into means over frames
    and over cloned steps."""

    frames: Array  # [T + 1, B, D]
    led: Array  # int32 [T + 1, B]: the action that led to each frame, if the model may see it
    transitions: Transition  # [T, B]
    frame_weight: Array  # scalar: steps per frame
    cloning_weight: Array  # [T, B]: steps per cloned step; 0 for steps that are not cloned


def prepare_episodes(
    net: Net, batch: Batch, env: Environment, scale: float, relevant: float | None = None
) -> Episodes:
    """Return the whole episodes of a batch; each must have a first step."""
    frames, led, exists = dreamer4.visible_episodes(net, env, batch, scale)
    cloned = batch.mask & batch.transitions.extras["labeled"]
    if relevant is not None:
        reward = batch.mask * batch.transitions.reward  # type: ignore[reportOptionalOperand]
        cloned &= reward.sum(0) >= relevant
    steps = batch.mask.sum()  # type: ignore[union-attr]
    cloning_weight = cloned * (steps / jnp.maximum(cloned.sum(), 1))
    return Episodes(frames, led, batch.transitions, steps / exists.sum(), cloning_weight)


def model_loss(net: Net, x: Episodes, network: ShortcutWorldModel, atoms: Array) -> LossOutput:
    """Compute the loss of each step [T, B]: shortcut forcing (equation 7) of the frame that it led
    to (and, for an episode's first step, of the frame before it), the reward and termination there,
    and cloning of its action.

    Frames, and likewise cloned steps, weigh as much in total as all steps do, so that a mean over
    steps contains their own means. Each term is divided by its running root mean square; its metric
    is the undivided term.
    """
    t = x.transitions
    error, features = frame_loss(
        network, net.model, x.frames, x.led, net.key(), net.hyper.bootstrap
    )
    reward, continue_logit = net.model(features[1:], method="outcome")
    cloning = -net.prior(features[:-1]).log_prob(t.action)
    terms = jnp.stack(
        [
            x.frame_weight * error[1:].at[0].add(error[0]),
            losses.two_hot_cross_entropy(reward, t.reward, atoms),
            losses.binary_cross_entropy(continue_logit, ~t.terminated),
            x.cloning_weight * cloning,
        ],
        -1,
    )
    metrics = {name: terms[..., i] for i, name in enumerate(dreamer4.TERMS)}
    return LossOutput((terms / net.extra.root).sum(-1), metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net, batch):
        x = prepare_episodes(net, batch, env, config.scale, config.relevant)
        net = net.descend(loss, x, mask=batch.mask, weight=batch.weight)
        terms = jnp.stack([net.metrics[name] for name in dreamer4.TERMS])
        net = net.replace(extra=net.extra.add(terms, net.hyper.loss_decay))
        # The cloned policy is the one that acts.
        return net.with_params(policy=net.parts["prior"].params)

    atoms = symexp_atoms(config.bins, config.symlog_range)
    network = dreamer4.network(env, config)
    function = functools.partial(model_loss, network=network, atoms=atoms)
    loss = Loss(function, ("model", "prior"), "model_loss")
    return dreamer4.make_recipe(env, config, (loss,), update)


dreamer4_world_model = AlgorithmBuilder(
    "dreamer4_world_model", Config, recipe, check=dreamer4.check
)

TINY = {"env": "catch", "env_params": {"rows": 4, "columns": 3}, "episodes": 8}
TINY |= {"data.batch_size": 4, "width": 8, "layers": 1, "hidden": (4,), "levels": 4, "context": 3}
TINY |= {"horizon": 2, "bins": 5, "num_shards": 4}
