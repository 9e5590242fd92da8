"""Places at which an algorithm changes the losses of SAC or TD3 without writing them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from jaxrl.core.types import Array
from jaxrl.kit import LossOutput
from jaxrl.kit.parts import as_output


class Quantity(Protocol):
    """A number of each transition, such as the reward that is learned from."""

    def __call__(self, net: Any, x: Any, /) -> Array:
        """Return the number of each transition, [B].

        net: the `Net`. x: transitions [B].
        """
        ...


class Term(Protocol):
    """A term that is added to a loss. Its random keys have names (`net.key("noise")`), since the
    one without a name belongs to the loss."""

    def __call__(self, net: Any, x: Any, /) -> Array | LossOutput:
        """Return the value of each transition, [B], with metrics if it is a `LossOutput`.

        net: the `Net`. x: transitions [B].
        """
        ...


class ActionPenalty(Protocol):
    """A penalty on the actions that values are bootstrapped from."""

    def __call__(self, net: Any, x: Any, next_action: Array, /) -> Array:
        """Return what is subtracted from the value of each next action, [B].

        net: the `Net`. x: transitions [B]. next_action: [B, *shape].
        """
        ...


def plain_reward(net: Any, x: Any) -> Array:
    """Return the reward of each transition, [B]."""
    return x.reward


def scaled_reward(net: Any, x: Any) -> Array:
    """Return the reward of each transition times the hyperparameter `reward_scale`, [B]."""
    return net.hyper.reward_scale * x.reward


def add_terms(
    output: Array | LossOutput, net: Any, x: Any, terms: Sequence[Term]
) -> Array | LossOutput:
    """Return a loss with the values and metrics of `terms` added; as it is without terms."""
    for term in terms:
        first, more = as_output(output), as_output(term(net, x))
        value: Any = first.value + more.value  # type: ignore[operator]
        metrics = {**first.metrics, **more.metrics}
        output = dataclasses.replace(first, value=value, metrics=metrics)
    return output
