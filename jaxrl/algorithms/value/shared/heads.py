"""Heads of Q-networks: predictions about each action, their targets and their errors."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array, TimeStep, Transition
from jaxrl.kit import Net
from jaxrl.kit.acting import mask_illegal


class HeadValues(Protocol):
    """Action values as a function of a network's outputs."""

    def __call__(self, net: Net, outputs: Array, timestep: TimeStep, /) -> Array:
        """Return action values [..., A], those of illegal actions far below all others.

        net: parts and hyperparameters.
        outputs: network outputs of all actions, [..., A, num_outputs].
        timestep: time steps [...], whose legal actions count.
        """
        ...


class HeadTarget(Protocol):
    """Target of a prediction as a function of the outputs of the next actions."""

    def __call__(
        self, net: Net, x: Transition, /, *, discount: Array, evaluated: Array, selector: Array
    ) -> Array:
        """Return what the outputs of the taken actions should be, [B, ...].

        net: parts and hyperparameters.
        x: transitions [B].
        discount: discount of what follows each transition, a scalar or [B].
        evaluated: outputs of all next actions by the network that evaluates them, the target
            network, [B, A, num_outputs].
        selector: outputs of all next actions by the network that selects one of them, [B, A,
            num_outputs]: the online network in double Q-learning, else the target network too.
        """
        ...


class HeadError(Protocol):
    """Loss and priority of a prediction, given its target."""

    def __call__(self, net: Net, outputs: Array, target: Array, /) -> tuple[Array, Array]:
        """Return the loss [B] and the priority [B] of each prediction.

        net: parts and hyperparameters.
        outputs: outputs of the taken actions, [B, num_outputs].
        target: their targets, [B, ...], as `HeadTarget` returns them; no gradient flows into them.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """Prediction about each action, in `num_outputs` numbers, and how it is learned."""

    num_outputs: int
    values: HeadValues
    target: HeadTarget
    error: HeadError


def legal_values(outputs: Array, timestep: TimeStep) -> Array:
    """Return action values [..., A] that are the outputs themselves, [..., A, 1]; those of illegal
    actions are far below all others."""
    return mask_illegal(outputs[..., 0], timestep)


def action_outputs(outputs: Array, action: Array) -> Array:
    """Return the outputs of the taken actions: [B, A, N], [B] -> [B, N]."""
    return jax.vmap(lambda row, action: row[action])(outputs, action)


def summed_huber_error(net: Net, outputs: Array, target: Array) -> tuple[Array, Array]:
    """Return the sums of the Huber errors and of the absolute errors over all outputs, [B] each.

    A `HeadError`; `net.hyper.huber` is the size from which an error counts linearly.
    """
    loss = losses.huber(outputs, target, net.hyper.huber)
    return loss.sum(-1), jnp.abs(outputs - target).sum(-1)
