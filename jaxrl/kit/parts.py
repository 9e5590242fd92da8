"""Parts and losses: what a recipe declares, and `net` uses by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl.core import metrics as m
from jaxrl.core.devices import gather
from jaxrl.core.shared import is_shared
from jaxrl.core.types import Array, Key, Tree
from jaxrl.kit.groups import Optimizer, Target
from jaxrl.kit.minibatches import STEP, Unit


def vmap_members(function: Callable[..., Any], members: int) -> Callable[..., Any]:
    """Vmap `function` over ensemble members; return it unchanged if `members` is 0."""
    return jax.vmap(function) if members else function


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Trainable parameters of an agent.

    network: flax module, or anything with `init(key, *inputs)` and `apply(params, ...)`. Whole
        collections of its parameters may be `core.shared.Shared`, which freezes them.
    inputs: an example of each of its inputs.
    optimizer: group of the Config that has its `Optimizer` settings (`config.critic`), or an optax
        optimizer used as it is, step size and sign included. Parts that share a group and descend
        the same loss have their gradients clipped together. None for a part that no loss descends:
        the update sets its parameters itself (`Net.with_params`).
    target: group of the Config that has the `Target` settings of its target network; None for none.
    members: size of an ensemble whose members have their own initial weights, optimizer states and
        clipped gradients along the first axis of every leaf; outputs are [members, ...]. 0 for a
        single network without that axis.
    own_inputs: whether each member has inputs of its own, along their first axis too.
    begins_as: another part whose first parameters this part copies, as a reference policy does.
    """

    network: Any
    inputs: tuple[Tree, ...]
    optimizer: Optimizer | optax.GradientTransformation | None = None
    target: Target | None = None
    members: int = 0
    own_inputs: bool = False
    begins_as: str = ""

    def init(self, key: Key) -> Tree:
        """Draw initial parameters."""
        keys = jax.random.split(key, self.members) if self.members else key
        inputs = jax.tree.map(jnp.asarray, self.inputs)
        return vmap_members(lambda key: self.network.init(key, *inputs), self.members)(keys)

    def apply(self, params: Tree, *args: Any, **options: Any) -> Any:
        """Apply the network, or every member of the ensemble."""

        def apply_one(params, args):
            if state := collections_of(params):
                params = {**params, **jax.lax.stop_gradient(state)}
            return self.network.apply(params, *args, **options)

        params = gather(params)
        if self.own_inputs:
            return jax.vmap(apply_one)(params, args)
        return vmap_members(lambda params: apply_one(params, args), self.members)(params)


def trainable(variables: Tree) -> Tree:
    """Return parameters without those that are `core.shared.Shared`, such as the frozen weights of
    a language model with adapters: no loss descends these, and they have no optimizer state, no
    target and no norm."""
    if not isinstance(variables, Mapping) or not any(map(is_shared, variables.values())):
        return variables
    return {name: value for name, value in variables.items() if not is_shared(value)}


def with_shared(variables: Tree, whole: Tree) -> Tree:
    """Return what `trainable` returned with the shared parameters of `whole`."""
    if not isinstance(whole, Mapping):
        return variables
    kept = {name: value for name, value in whole.items() if is_shared(value)}
    return {**variables, **kept} if kept else variables


def copy(variables: Tree) -> Tree:
    """Copy parameters, except shared ones."""
    once = lambda x: x if is_shared(x) else jnp.copy(x)
    return jax.tree.map(once, variables, is_leaf=is_shared)


def collections_of(variables: Tree) -> dict[str, Tree]:
    """Return flax collections besides `params`, such as `batch_stats`: what no loss descends."""
    if not isinstance(variables, Mapping) or "params" not in variables:
        return {}
    return {name: value for name, value in variables.items() if name != "params"}


@dataclasses.dataclass(frozen=True, eq=False)
class LossOutput:
    """Result of a loss function.

    value: loss of each element or unit (`Loss.unit`), averaged by the mask and the weight given to
        `Net.descend`; or a total with its own weight (`core.metrics.Mean`), for a sum with a count
        of its own.
    metrics: values to log, by name, shaped as `value`: averaged over the mask.
    aux: anything that the rest of the update needs, in `net.aux[loss]` after the descent.
    state: part -> flax collections (such as `batch_stats`) to store with its new parameters. No
        gradient flows into them.
    terms: terms of the loss that are no mean over elements, by name, scalars or `Mean`s: weight
        decay, a regularizer. Added to the averaged value, and logged.
    priority: new priorities of the elements, fed back to the source and logged.
    drift: estimated divergence of the policy from the one that collected each element, [...]; its
        mean is what `Net.epochs` compares with `max_drift` to stop early.
    """

    value: Array | m.Mean
    metrics: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    aux: Tree = None
    state: Mapping[str, Tree] | None = None
    terms: Mapping[str, Array | m.Mean] = dataclasses.field(default_factory=dict)
    priority: Array | None = None
    drift: Array | None = None


class LossFunction(Protocol):
    """A differentiable function of the parts of a net."""

    def __call__(self, net: Any, x: Any, /) -> Array | LossOutput:
        """Return a loss value for each element of `x`, or a `LossOutput`.

        net: the `Net`; its parts are differentiated where the loss descends them.
        x: what `Net.descend` was given. Where its mask is False values must still be finite: the
            gradient of 0 times infinity is NaN. A loss of other units than steps is given a
            `Minibatch`, with the mask of the elements beside them, and returns a value per unit.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Loss:
    """A loss function, the parts that descend it, and its name in logs and keys.

    unit: what one value of the loss is of: a step, a whole sequence, or a group of neighboring
        sequences (or steps), such as a pair of answers. Values are [T, B] for steps of windows,
        [B] for sequences, and [B / k] for groups of k. A unit counts if any of its steps does.
    """

    function: LossFunction
    parts: tuple[str, ...]
    name: str
    unit: Unit = STEP

    def __call__(self, net: Any, x: Any) -> Array | LossOutput:
        return self.function(net, x)


def loss(*parts: str, name: str = "", unit: Unit = STEP) -> Callable[[LossFunction], Loss]:
    """Declare a function as a loss that `parts` descend: `@loss("critic")`.

    name: how it is logged and how its random keys are named; the function's own name by default.
    unit: what one of its values is of: `@loss("policy", unit=Unit(sequences=True, columns=2))` is a
        loss of pairs of answers. See `Loss`.
    """

    def declare(function: LossFunction) -> Loss:
        own_name = name or function.__name__  # type: ignore[attr-defined]
        return Loss(function, parts, own_name, unit)

    return declare


def as_output(output: Array | LossOutput) -> LossOutput:
    """Return a loss function's result as a `LossOutput`."""
    return output if isinstance(output, LossOutput) else LossOutput(output)
