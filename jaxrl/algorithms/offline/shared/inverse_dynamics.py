"""Learning from episodes most of which show observations and rewards and no actions: an inverse
dynamics model learns from the labeled ones, then labels all others, and the algorithm around which
it is put learns from both.

The recorded actions of unlabeled episodes lie in the batches, since datasets have them. They are
read for a metric alone: `label_error`, how far labels are from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.offline.shared.sequences import action_error, features_of
from jaxrl.core import trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Batch, Environment, Source, Transition, Tree, struct
from jaxrl.datasets.transitions import returns, spans
from jaxrl.kit import Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks.heads import Distribution, PolicyHead
from jaxrl.networks.sequence_policy import is_bounded_box
from jaxrl.networks.torsos import MLP
from jaxrl.sources.surroundings import surroundings


@group
class Inverse:
    """Inverse dynamics model, which tells the action of a step from the observations around it."""

    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the inverse dynamics model. Adam, 1e-4: code of SS-ORL."""
    past: int = static(1, low=0)
    """Number of observations before the step's own that the model sees."""
    future: int = static(0, low=0)
    """Number of observations after the step's successor that the model sees."""
    steps: float = hyper(2_000.0, low=1)
    """Gradient steps of the model, before which nothing else learns and after which it is
    frozen."""
    labeled: float = static(0.1, above=0, high=1)
    """Share of the dataset's episodes that are labeled with actions."""
    labeled_below: float = static(0.5, above=0, high=1)
    """Labeled episodes are drawn from this share of all, those with the lowest returns."""


@struct
class Seen:
    """Input and target of the inverse dynamics model, [n].

    features: observations around the step, [n, D]. action: its action.
    """

    features: Array
    action: Tree


class InverseDynamics(nn.Module):
    """A policy head on features [..., D]; a bounded box has a normal distribution whose mean lies
    within the bounds, and whose deviation depends on the features."""

    action_space: Space
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, features: Array) -> Distribution:
        x = MLP(self.widths, self.activation, self.initializer)(features)
        bounded = is_bounded_box(self.action_space)
        return PolicyHead(
            self.action_space, self.initializer, bounded_mean=bounded, deviation="of_state"
        )(x)


def labeled_rows(x: Transition, share: float, below: float, seed: int) -> np.ndarray:
    """Return which steps [N] of a dataset belong to labeled episodes, at least one of them.

    share, below: as in `Inverse`. seed: of the choice.

    Source: code of Zheng et al., 2023 (`setup_action_label`).
    """
    episodes = spans(x)
    order = np.argsort(returns(x), kind="stable")
    lowest = order[: max(1, int(len(episodes) * below))]
    count = min(max(1, int(len(episodes) * share)), len(lowest))
    known = np.zeros(len(x.reward), bool)
    for i in np.random.default_rng(seed).choice(lowest, count, replace=False):
        known[episodes[i]] = True
    return known


def source(env: Environment, data: Data, inverse: Inverse) -> Source:
    """Return steps of the dataset with those around them, of which some are labeled."""
    view = surroundings(inverse.past, inverse.future)
    known = lambda x: {
        "labeled": labeled_rows(x, inverse.labeled, inverse.labeled_below, data.seed)
    }
    return data.view_source(env, view, known)


def see(env: Environment, x: Transition, past: int) -> Seen:
    """Return what the inverse dynamics model sees of windows [past + 1 + future, n]: observations
    up to the step, and after it, and no action but the step's own as the target."""
    before = features_of(env, jax.tree.map(lambda a: a[: past + 1], x.timestep))
    after = features_of(env, jax.tree.map(lambda a: a[past:], x.next_timestep))
    flat = jnp.moveaxis(jnp.concatenate([before, after]), 0, 1)
    return Seen(flat.reshape(flat.shape[0], -1), at_center(x, past).action)


def at_center(x: Transition, past: int) -> Transition:
    """Return the steps [n] that windows [past + 1 + future, n] are around."""
    return jax.tree.map(lambda a: a[past], x)


def learn_from_labels(
    recipe: Recipe, env: Environment, inverse: Inverse, steps: Callable[[Net], Array]
) -> Recipe:
    """Wrap a recipe that learns from transitions [n]: an inverse dynamics model, the part
    `inverse`, learns first, and then gives it the actions that are not known.

    Batches are those of `source`. The model learns in the first `steps` updates, in which no part
    of the recipe moves, and is frozen afterward, so that a step has the same label each time. A
    label is the model's mode.

    steps: net -> number of the model's updates.
    """
    space, past = env.action_space, inverse.past

    @loss("inverse")
    def inverse_loss(net: Net, x: Seen) -> Array:
        """Compute -log p(a | observations around the step) of labeled steps."""
        return losses.behavior_cloning(net.inverse(x.features).log_prob(x.action))

    def update(net: Net, batch: Batch) -> Net:
        x = batch.transitions
        shown = x.extras["shown"]
        shown = dataclasses.replace(
            shown,
            timestep=net.normalize(shown.timestep),
            next_timestep=net.normalize(shown.next_timestep),
        )
        first = net.updates < steps(net)
        begun = net
        net = net.descend(inverse_loss, see(env, shown, past))
        net = keep(net, begun, ("inverse",), ~first)
        plain = dataclasses.replace(x, extras={"labeled": x.extras["labeled"]})
        center = at_center(plain, past)
        guess: Any = net.inverse(see(env, plain, past).features)
        label = jax.lax.stop_gradient(guess.mode())
        known = center.extras["labeled"]
        hidden = (~known).astype(jnp.float32)
        error = (action_error(space, guess, center.action) * hidden).sum()
        net = net.report(label_error=error / jnp.maximum(hidden.sum(), 1))
        action = trees.where(known, center.action, label.astype(space.dtype))
        center = dataclasses.replace(center, action=action, extras={})
        learned = recipe.update(net, Batch(center, batch.env_steps))
        return keep(learned, net, tuple(recipe.parts), first)

    example = example_timestep(env)
    size = features_of(env, example).shape[-1] * (past + 2 + inverse.future)
    torso = inverse.torso
    network = InverseDynamics(space, torso.hidden, torso.activation, torso.initializer)
    part = Part(network, (jnp.zeros((1, size)),), inverse.optimizer)
    return dataclasses.replace(
        recipe,
        parts={**recipe.parts, "inverse": part},
        losses=(*recipe.losses, inverse_loss),
        update=update,
        needs=(*recipe.needs, "transitions.extras.shown", "transitions.extras.labeled"),
    )


def keep(net: Net, old: Net, parts: tuple[str, ...], unchanged: Array) -> Net:
    """Return `net` with the named parts of `old` where `unchanged` (bool [])."""
    kept = {name: trees.where(unchanged, old.parts[name], net.parts[name]) for name in parts}
    return net.replace(parts=net.parts | kept)
