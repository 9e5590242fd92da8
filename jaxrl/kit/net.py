"""The parts of an agent in the course of an update, as a value.

`net.critic(s, a)` applies the part `critic` as it is now, `net.target.critic(s, a)` its copy,
`net.hyper.discount` is an array, and `net.descend("critic_loss", batch)` is the same net after one
gradient step.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.settings import Values
from jaxrl.core.staging import where_due
from jaxrl.core.types import Array, Batch, Key, Tree
from jaxrl.kit import minibatches
from jaxrl.kit.descent import Descent, Trained, descend, each, follow
from jaxrl.kit.groups import Epochs
from jaxrl.kit.optimization import accumulated_gradient, as_one
from jaxrl.kit.recipe import Recipe, Said, state_of


@dataclasses.dataclass(frozen=True, eq=False)
class Kit:
    """What a net is made of that does not change while it learns."""

    recipe: Recipe
    descents: Mapping[str, Descent]
    targets: Mapping[str, Any]  # name of a part -> its `Target`
    unravel: Mapping[str, Callable[[Array], Tree]] = dataclasses.field(default_factory=dict)

    def apply(self, name: str, params: Tree, *args: Any, **options: Any) -> Any:
        if name in self.unravel:
            params = self.unravel[name](params)
        return self.recipe.parts[name].apply(params, *args, **options)


@dataclasses.dataclass(frozen=True, eq=False)
class Copies:
    """The copies of a net's parts, as functions; no gradient flows into them."""

    kit: Kit
    parts: Mapping[str, Trained]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        part = self.parts.get(name)
        if part is None or part.target is None:
            known = [n for n, p in self.parts.items() if p.target is not None]
            raise AttributeError(str(unknown("copy of a part", name, known)))
        return functools.partial(self.kit.apply, name, jax.lax.stop_gradient(part.target))


@dataclasses.dataclass(frozen=True, eq=False)
class Net:
    """The parts of an agent in the course of an update."""

    kit: Kit
    parts: dict[str, Trained]
    hyper: Values
    extra: Tree
    updates: Array  # made before this one, int32
    env_steps: Array  # float32: environment steps at the last update
    seed: Callable[[], Key]
    metrics: dict[str, Array | m.Mean] = dataclasses.field(default_factory=dict)
    feedback: Tree = None
    aside: dict[str, Tree] = dataclasses.field(default_factory=dict)
    rows: tuple[int, int] = (0, 0)  # the axis of a batch that is cut into chunks, and their size
    passing: bool = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.kit.recipe.parts:
            raise AttributeError(str(unknown("part", name, self.kit.recipe.parts)))
        return functools.partial(self.kit.apply, name, self.parts[name].params)

    @property
    def target(self) -> Copies:
        return Copies(self.kit, self.parts)

    def key(self, name: str = "") -> Key:
        """A random key, another one for each name, each loss and each update. (A loss that is
        descended twice in one update sees the same keys twice.)"""
        return jax.random.fold_in(self.seed(), zlib.crc32(name.encode()))

    def replace(self, **changes: Any) -> Net:
        return dataclasses.replace(self, **changes)

    def put(self, **params: Tree) -> Net:
        """With these parameters of parts in the place of those that they have."""
        new = {n: dataclasses.replace(self.parts[n], params=p) for n, p in params.items()}
        return self.replace(parts=self.parts | new)

    def network(self, name: str) -> Any:
        """The network of a part, for parameters of one's own, such as those of one member."""
        return self.kit.recipe.parts[name].network

    def report(self, **metrics: Array | m.Mean) -> Net:
        """What the log shows of this update: scalars, or means that may be of nothing."""
        return self.replace(metrics=self.metrics | metrics)

    def feed(self, priority: Tree) -> Net:
        """What the source is told of the batch."""
        if self.passing:
            raise UserError("A part of a batch has no place in a source, so it has no priority.")
        return self.replace(feedback=priority)

    def learning_rate(self, part: str) -> Array:
        """The step size of a part now."""
        return self.kit.descents[part].learning_rate(self.hyper, self.env_steps)

    def descend(self, name: str, batch: Batch, every: int = 1) -> Net:
        """One gradient step of a loss's parts, in every `every`-th update. In the others nothing is
        computed nor reported, and what is laid aside is zeros."""
        if name not in self.kit.recipe.losses:
            raise unknown("loss", name, self.kit.recipe.losses)
        step = lambda: self._step(name, batch)
        if every == 1:
            new, metrics, priority, aside = step()
        else:
            _, *shapes = jax.eval_shape(step)
            due = (self.updates + 1) % every == 0
            old = {part: self.parts[part] for part in self.kit.recipe.losses[name].parts}
            taken = where_due(due, step, (old, *trees.zeros(shapes)))
            new, metrics, priority, aside = taken
            metrics = {n: m.mean(value, due) for n, value in metrics.items()}
            if priority is not None:
                raise UserError(f"The loss '{name}' has no priority in updates that leave it out.")
        net = self.replace(parts=self.parts | new).report(**metrics)
        net = net if aside is None else net.replace(aside=self.aside | {name: aside})
        return net if priority is None else net.feed(priority)

    def _step(
        self, name: str, batch: Batch
    ) -> tuple[dict[str, Trained], dict[str, Array], Tree, Tree]:
        """A loss's parts after one gradient step, metrics, priority and what is laid aside."""
        loss = self.kit.recipe.losses[name]
        mask, weight = _normalized(batch.mask, batch.weight)
        axis, chunk = self.rows

        def objective(params, data):
            x, mask, weight = data
            net = self.put(**params).replace(seed=lambda: self.key(name))
            said = loss.function(net, x)
            values, reports, aside, state = _parts_of(said)
            kept = None if chunk else (reports.get("priority"), aside, state)
            _check(name, values, mask if mask is not None else weight)
            means = _means({name: values} | reports, mask, weight)
            return means[name], (means, kept)

        params = {n: self.parts[n].params for n in loss.parts}
        gradient, (means, kept) = accumulated_gradient(
            objective, params, (batch.transitions, mask, weight), axis, chunk
        )
        priority, aside, state = kept or (None, None, None)
        new, norms = descend(self.kit.descents, self.parts, gradient, self.hyper, self.env_steps)
        for part in loss.parts:
            if held := state_of(self.parts[part].params) | (state or {}).get(part, {}):
                new[part] = dataclasses.replace(new[part], params={**new[part].params, **held})
        metrics = means | {f"{n}_grad_norm": norm for n, norm in norms.items()}
        return {n: new[n] for n in loss.parts}, metrics, priority, aside

    def follow(self, *names: str, every: int | None = None) -> Net:
        """The copies of some parts, or of all, move toward them in every `every`-th update: as
        their settings say unless said here."""
        new = dict(self.parts)
        for name in names or self.kit.targets:
            target = self.kit.targets[name]
            rate = self.hyper[self.kit.recipe.parts[name].target].rate
            period = target.period if every is None else every
            moved = functools.partial(follow, new[name], rate)
            due = (self.updates + 1) % period == 0
            new[name] = moved() if period == 1 else where_due(due, moved, new[name])
        return self.replace(parts=new)

    def passes(
        self,
        passes: Epochs,
        batch: Batch,
        turn: Callable[[Net, Batch], Net],
        stop: Callable[[Net], Array] | None = None,
    ) -> Net:
        """Some passes over a window [T, B] in shuffled minibatches, each of which `turn` descends.

        A minibatch holds steps [n], or sequences [T, n] where the recipe says so. What is a
        statistic of a minibatch belongs in `turn`: losses may see it in chunks.
        stop: after which turn no more are taken, where the settings have an `early_stop` that is
            on.
        """
        shards, sequences = self.kit.recipe.num_shards, self.kit.recipe.sequences
        rows = minibatches.to_rows((batch.transitions, batch.mask, batch.weight), shards, sequences)
        size = jax.tree.leaves(rows)[0].shape[1]
        steps = batch.transitions.reward.shape[0] if sequences else 1
        chunk = minibatches.chunk(passes.chunk_rows, size * shards // passes.minibatches, steps)

        def minibatch(index):
            x, mask, weight = minibatches.from_rows(minibatches.take(rows, index), sequences)
            return dataclasses.replace(batch, transitions=x, mask=mask, weight=weight)

        index = minibatches.indices(
            self.key("order"), size, shards, passes.epochs, passes.minibatches, passes.shuffle
        )
        begun = self.replace(rows=(int(sequences), chunk))
        stop = stop if getattr(passes, "early_stop", False) else None
        net, stopped = begun._turns(turn, minibatch, index, stop)
        return net.replace(rows=self.rows).report(stopped_early=stopped.astype(jnp.float32))

    def slices(self, count: int, batch: Batch, turn: Callable[[Net, Batch], Net]) -> Net:
        """`turn` on each of `count` batches [n, ...], one after the other, into which `batch`
        [count * n, ...] is cut; every logical shard of it is cut alike."""
        data, shards = (batch.transitions, batch.mask, batch.weight), self.kit.recipe.num_shards

        def cut(x):
            x = jnp.moveaxis(x.reshape(shards, count, -1, *x.shape[1:]), 0, 1)
            return x.reshape(count, -1, *x.shape[3:])

        data = jax.tree.map(cut, data)

        def part(data):
            x, mask, weight = data
            return dataclasses.replace(batch, transitions=x, mask=mask, weight=weight)

        return self._turns(turn, part, data)[0]

    def _turns(
        self,
        turn: Callable[[Net, Batch], Net],
        batch_of: Callable[[Tree], Batch],
        items: Tree,
        stop: Callable[[Net], Array] | None = None,
    ) -> tuple[Net, Array]:
        """The net after a turn with the batch of each of `items`, and whether `stop` said that no
        more are taken. What turns report is averaged; each counts as an update of its own."""
        begun, count = self._flat().replace(passing=True), len(jax.tree.leaves(items)[0])

        def step(carry, now):
            (parts, extra, stopped), (number, item) = carry, now
            net = begun.replace(
                parts=parts,
                extra=extra,
                updates=self.updates * count + number,
                seed=lambda: jax.random.fold_in(self.key("turn"), number),
                metrics={},
            )
            net = turn(net, batch_of(item))
            new = (net.parts, net.extra)
            if stop is not None:
                stopped = stopped | stop(net)
                new = trees.where(stopped, (parts, extra), new)
            return (*new, stopped), net.metrics

        (parts, extra, stopped), reports = jax.lax.scan(
            step, (begun.parts, self.extra, jnp.bool_(False)), (jnp.arange(count), items)
        )
        net = self.replace(parts=begun._whole(parts), extra=extra)
        return net.report(**{name: _mean(values) for name, values in reports.items()}), stopped

    def _flat(self) -> Net:
        """With the parameters of those parts that descend as one vector, and their copies, as that
        vector: once for many gradient steps."""
        parts, unravel = dict(self.parts), {}
        for name, descent in self.kit.descents.items():
            if descent.settings.flat:
                params = self.parts[name].params
                one = jax.tree.map(lambda x: x[0], params) if descent.members else params
                unravel[name] = each(ravel_pytree(one)[1], descent.members)
                parts[name] = _reshaped(parts[name], each(as_one, descent.members))
        return self.replace(parts=parts, kit=dataclasses.replace(self.kit, unravel=unravel))

    def _whole(self, parts: Mapping[str, Trained]) -> dict[str, Trained]:
        """`parts` of a flat net with their parameters as trees."""
        back = self.kit.unravel
        return {n: _reshaped(p, back[n]) if n in back else p for n, p in parts.items()}


def _parts_of(said: Said) -> tuple[Array, dict[str, Array], Tree, Tree]:
    """What a loss gave: values, reports, what is laid aside, state of parts."""
    given = said if isinstance(said, tuple) else (said, {})
    return (*given, *(None,) * (4 - len(given)))  # pyright: ignore[reportReturnType]


def _normalized(mask: Array | None, weight: Array | None) -> tuple[Array | None, Array | None]:
    """Mask and weight by which plain means, over all or over equal parts, are the masked ones."""
    if mask is not None:
        mask = mask * (mask.size / jnp.maximum(mask.sum(), 1.0))
        weight = mask if weight is None else mask * weight
    return mask, weight


def _check(name: str, values: Array, elements: Array | None) -> None:
    """Raises `UserError` for what is not one value per element."""
    if values.ndim == 0 or (elements is not None and values.shape != elements.shape):
        expected = "one for each element" if elements is None else f"{list(elements.shape)}"
        raise UserError(
            f"The loss '{name}' gave values {list(values.shape)}; it must give {expected}."
        )


def _means(rows: Mapping[str, Array], mask: Array | None, weight: Array | None) -> dict[str, Array]:
    """The mean of each row [...]: of the first, which is the loss, by weight, of others by mask."""
    if weight is None:
        if len({x.size for x in rows.values()}) > 1:
            return {name: x.mean() for name, x in rows.items()}
        means = jnp.stack([x.reshape(-1) for x in rows.values()]).mean(1)  # one reduction, not many
        return dict(zip(rows, means, strict=True))
    shares = [weight] + [mask] * (len(rows) - 1)
    return {
        name: x.mean() if share is None else jnp.where(share == 0, 0.0, share * x).mean()
        for (name, x), share in zip(rows.items(), shares, strict=True)
    }


def _mean(values: Array | m.Mean) -> Array | m.Mean:
    """Of what some turns reported, [turns]."""
    return m.reduce({"": values})[""] if isinstance(values, m.Mean) else values.mean()


def _reshaped(part: Trained, shape: Callable[[Tree], Tree]) -> Trained:
    """`part` with its parameters and their copy as `shape` gives them."""
    target = None if part.target is None else shape(part.target)
    return dataclasses.replace(part, params=shape(part.params), target=target)
