"""What a network predicts of an action's return: its mean, or its distribution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import schedules
from jaxrl.core.types import Array, TimeStep, Transition
from jaxrl.kit import Net
from jaxrl.kit.acting import mask_illegal
from jaxrl.networks.heads import ILLEGAL


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """What is predicted of each action: outputs [..., A, num_outputs].

    values(net, outputs, timestep) -> action values [..., A], of illegal ones far below all others
    target(net, transition [B], discount, evaluated, selector) -> [B, ...], what the outputs of the
        action taken should be, given those of all next actions by who values and by who chooses
    error(net, outputs of the action taken [B, num_outputs], target) -> (loss [B], priority [B])
    """

    num_outputs: int
    values: Callable[[Net, Array, TimeStep], Array]
    target: Callable[[Net, Transition, Array, Array, Array], Array]
    error: Callable[[Net, Array, Array], tuple[Array, Array]]


def _mean() -> Head:
    def values(net, outputs, timestep):
        return mask_illegal(outputs[..., 0], timestep)

    def target(net, x, discount, evaluated, selector):
        q, chooser = (values(net, outputs, x.next_timestep) for outputs in (evaluated, selector))
        return losses.double_q_target(x.reward, x.terminated, discount, q, chooser)

    def error(net, outputs, target):
        q = outputs[..., 0]
        return losses.huber(q, target, net.hyper.huber), jnp.abs(q - target)

    return Head(1, values, target, error)


# The mean, with Huber's error; `huber` is the size from which an error counts linearly.
MEAN = _mean()


def categorical(num_atoms: int) -> Head:
    """A distribution over atoms from `lowest_return` to `highest_return` (Bellemare et al., 2017,
    arXiv:1707.06887, algorithm 1), with the divergence from its target as the priority."""

    def atoms(net):
        fraction = jnp.linspace(0.0, 1.0, num_atoms)
        return schedules.linear(net.hyper.lowest_return, net.hyper.highest_return, fraction)

    def values(net, logits, timestep):
        return mask_illegal(losses.categorical_mean(logits, atoms(net)), timestep)

    def target(net, x, discount, evaluated, selector):
        # What is illegal has all its mass at the lowest return, so that it is never chosen before
        # what is legal.
        selector = _lowest(selector, x.next_timestep.legal_actions)
        return losses.categorical_double_q_target(
            x.reward, x.terminated, discount, evaluated, selector, atoms(net)
        )

    def error(net, logits, target):
        cross_entropy = losses.categorical_cross_entropy(logits, target)
        entropy = -jax.scipy.special.xlogy(target, target).sum(-1)
        return cross_entropy, jnp.maximum(cross_entropy - entropy, 0.0)

    return Head(num_atoms, values, target, error)


def quantile(num_quantiles: int) -> Head:
    """The quantiles at the middles of as many equal parts of [0, 1] (Dabney et al., 2018,
    arXiv:1710.10044, algorithm 1), with their loss as the priority."""
    middles = (jnp.arange(num_quantiles) + 0.5) / num_quantiles

    def values(net, quantiles, timestep):
        return mask_illegal(quantiles.mean(-1), timestep)

    def target(net, x, discount, evaluated, selector):
        best = values(net, selector, x.next_timestep).argmax(-1)
        return quantile_target(x, discount, evaluated, best)

    def error(net, quantiles, target):
        size = net.hyper.huber
        loss = size * losses.quantile_huber(quantiles, middles, target, size)
        return loss, loss

    return Head(num_quantiles, values, target, error)


def quantile_target(x: Transition, discount: Array, quantiles: Array, best: Array) -> Array:
    """r + gamma Z(s', best) [B, N], from the quantiles [B, A, N] of all next actions."""
    backup = jax.vmap(losses.td_target, in_axes=(None, None, None, -1), out_axes=-1)
    return backup(x.reward, x.terminated, discount, of_action(quantiles, best))


def of_action(outputs: Array, action: Array) -> Array:
    """The row of an action: [B, A, N], [B] -> [B, N]."""
    return jax.vmap(lambda row, action: row[action])(outputs, action)


def _lowest(logits: Array, legal_actions: Array | None) -> Array:
    """Logits [..., actions, atoms], those of an illegal action all at the first atom."""
    if legal_actions is None:
        return logits
    first = jnp.where(jnp.arange(logits.shape[-1]) == 0, 0.0, ILLEGAL)
    return jnp.where(legal_actions[..., None], logits, first)
