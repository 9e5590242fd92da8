"""Recipes around recipes, losses added to losses, and steps that are not always due."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.staging import where_due
from jaxrl.core.types import Array, Batch, Tree, struct
from jaxrl.kit.net import Net
from jaxrl.kit.parts import Loss, LossOutput, Part, as_output
from jaxrl.kit.recipe import Act, Recipe


@struct
class Around:
    """Extra state of an agent whose recipe is around another: `net.extra` of each."""

    inner: Tree
    own: Tree


class Before(Protocol):
    """A function that is called before the inner recipe's update."""

    def __call__(self, net: Net, batch: Batch, /) -> tuple[Net, Batch, Any]:
        """Return the net, the batch that the inner update learns from, and what `after` is given.

        net: all parts and losses; `net.extra` is the outer recipe's. batch: as sampled.
        """
        ...


class After(Protocol):
    """A function that is called after the inner recipe's update."""

    def __call__(self, net: Net, batch: Batch, kept: Any, /) -> Net:
        """Return the net at the end of the update.

        net: after the inner update; `net.extra` is the outer recipe's. batch: as sampled.
        kept: what `before` returned.
        """
        ...


def around(
    recipe: Recipe,
    *,
    parts: Mapping[str, Part] | None = None,
    losses: Sequence[Loss] = (),
    extra: Tree = (),
    before: Before = lambda net, batch: (net, batch, None),
    after: After = lambda net, batch, kept: net,
    act: Callable[[Act], Act] = lambda act: act,
    needs: Sequence[str] = (),
) -> Recipe:
    """Wrap a recipe's update: intrinsic rewards, annotators, shaping, auxiliary updates.

    The inner recipe descends its own losses, moves its own target networks and reads its own
    `net.extra`, whatever is around it.

    parts, losses, needs: besides the recipe's own. extra: what `before` and `after` keep, as
        `net.extra`. act: inner act -> act.

    Raises `UserError` for parts or losses that are called alike.
    """
    own_parts = dict(parts or {})
    for kind, names, others in (
        ("part", own_parts, recipe.parts),
        ("loss", {x.name for x in losses}, {x.name for x in recipe.losses}),
    ):
        if twice := sorted(set(names) & set(others)):
            raise UserError(f"The {kind} '{twice[0]}' is in the inner recipe too; rename one.")

    def inner(net: Net) -> Net:
        return net.replace(extra=net.extra.inner)

    def outer_act(net, timestep, memory, key, greedy):
        return act(recipe.act)(inner(net), timestep, memory, key, greedy)

    def update(net: Net, batch: Batch) -> Net:
        both = net.extra
        net, changed, kept = before(net.replace(extra=both.own), batch)
        own = net.extra
        net = recipe.update(net.replace(extra=both.inner), changed)
        new = net.extra
        net = after(net.replace(extra=own), batch, kept)
        return net.replace(extra=Around(new, net.extra))

    def hand_over(state):
        own = state.extra.own
        handed = recipe.hand_over(dataclasses.replace(state, extra=state.extra.inner))
        return dataclasses.replace(handed, extra=Around(handed.extra, own))

    def adopt(state, other):
        mine = dataclasses.replace(state, extra=state.extra.inner)
        theirs = dataclasses.replace(other, extra=other.extra.inner)
        adopted = recipe.adopt(mine, theirs)
        return dataclasses.replace(adopted, extra=Around(adopted.extra, other.extra.own))

    return dataclasses.replace(
        recipe,
        parts={**recipe.parts, **own_parts},
        losses=(*recipe.losses, *losses),
        act=outer_act,
        update=update,
        extra=Around(recipe.extra, extra),
        needs=(*recipe.needs, *needs),
        hand_over=hand_over,
        adopt=adopt,
    )


def plus(loss: Loss, other: Loss, weight: Callable[[Net], Array] | float = 1.0) -> Loss:
    """Add an auxiliary loss of the same elements to a loss: one gradient step of all their parts.

    weight: of the auxiliary loss; a number, or a function of the net. The auxiliary value and
        metrics are logged under their own names. `aux`, `priority` and `drift` are the first's.

    Raises `UserError` where the auxiliary loss has `aux`, a priority or a drift, which would be
    lost, where only one of the two is a sum with its own count, and for losses of different units.
    """
    if loss.unit != other.unit:
        raise UserError(
            f"'{loss.name}' is a loss of {loss.unit} and '{other.name}' one of {other.unit}; only "
            "losses of the same units can be added."
        )

    def function(net: Net, x: Any) -> LossOutput:
        first, second = as_output(loss(net, x)), as_output(other(net, x))
        if second.aux is not None or second.priority is not None or second.drift is not None:
            raise UserError(
                f"The auxiliary loss '{other.name}' has aux, a priority or a drift, which "
                f"'{loss.name}' plus it would lose."
            )
        scale = weight(net) if callable(weight) else weight
        terms = {**first.terms, **{n: _scale(v, scale) for n, v in second.terms.items()}}
        metrics = {**first.metrics, **second.metrics}
        if isinstance(second.value, m.Mean):
            terms[other.name] = _scale(second.value, scale)
            value = first.value
        elif isinstance(first.value, m.Mean):
            raise UserError(
                f"'{loss.name}' is a sum with its own count; '{other.name}', which has a value for "
                "each element, cannot be added to it. Swap the two."
            )
        else:
            value = first.value + scale * second.value
            metrics[other.name] = second.value
        state = {**(first.state or {}), **(second.state or {})} or None
        return LossOutput(value, metrics, first.aux, state, terms, first.priority, first.drift)

    parts = tuple(dict.fromkeys((*loss.parts, *other.parts)))
    return Loss(function, parts, loss.name, loss.unit)


def _scale(value: Array | m.Mean, scale: Array | float) -> Array | m.Mean:
    if isinstance(value, m.Mean):
        return m.Mean(scale * value.total, value.weight)
    return scale * value


def with_rewards(batch: Batch, reward: Array) -> Batch:
    """Return a batch with other rewards [T, B]."""
    t = batch.transitions
    after = dataclasses.replace(t.next_timestep, reward=reward)
    return dataclasses.replace(batch, transitions=dataclasses.replace(t, next_timestep=after))


def descend_where(net: Net, due: Array, step: Callable[[Net], Net]) -> Net:
    """Take a step where it is due; otherwise skip the computation, and its metrics are means of
    nothing.

    due: bool []. step: net -> net with other parts and metrics.
    """

    def take() -> tuple[Any, Any]:
        new = step(net.replace(metrics={}))
        return new.parts, new.metrics

    _, shapes = jax.eval_shape(take)
    parts, metrics = where_due(due, take, (net.parts, trees.zeros(shapes)))
    return net.replace(parts=parts).report(**{n: m.mean(x, due) for n, x in metrics.items()})
