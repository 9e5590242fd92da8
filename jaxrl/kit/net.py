"""The parts of an agent in the course of an update, as a value.

`net.critic(s, a)` applies the part `critic` as it is now, `net.target.critic(s, a)` its target
network, `net.hyper.discount` is an array, and `net.descend(critic_loss, batch)` is the same net
after one gradient step.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.settings import Values, path_of, settings_of
from jaxrl.core.staging import where_due
from jaxrl.core.types import Array, Key, Tree
from jaxrl.kit import minibatches
from jaxrl.kit.descent import Descent, descend, move_target
from jaxrl.kit.groups import Epochs
from jaxrl.kit.minibatches import STEP, Minibatch, Unit, minibatch_of
from jaxrl.kit.optimization import accumulated_gradient, as_one
from jaxrl.kit.parts import (
    Loss,
    LossOutput,
    Part,
    as_output,
    collections_of,
    trainable,
    vmap_members,
    with_shared,
)
from jaxrl.kit.state import Trained


@dataclasses.dataclass(frozen=True, eq=False)
class Blueprint:
    """Everything about a net that does not change while it learns.

    parts, losses: by name. descents: optimizer of each part that has one.
    num_shards: logical shards of the environments.
    unravel: part -> function from the vector that stands for its parameters to the parameters.
    """

    parts: Mapping[str, Part]
    losses: Mapping[str, Loss]
    descents: Mapping[str, Descent]
    num_shards: int = 1
    unravel: Mapping[str, Callable[[Array], Tree]] = dataclasses.field(default_factory=dict)

    def apply(self, name: str, params: Tree, *args: Any, **options: Any) -> Any:
        if name in self.unravel:
            params = self.unravel[name](params)
        return self.parts[name].apply(params, *args, **options)


@dataclasses.dataclass(frozen=True, eq=False)
class Targets:
    """Target networks of a net's parts, as functions; no gradient flows into them."""

    blueprint: Blueprint
    parts: Mapping[str, Trained]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        part = self.parts.get(name)
        if part is None or part.target is None:
            known = [n for n, p in self.parts.items() if p.target is not None]
            raise AttributeError(str(unknown("target network", name, known)))
        params = with_shared(jax.lax.stop_gradient(part.target), part.params)
        return functools.partial(self.blueprint.apply, name, params)


class MinibatchStep(Protocol):
    """A function that an update applies to each minibatch."""

    def __call__(self, net: Net, minibatch: Minibatch, /) -> Net:
        """Return the net after one minibatch.

        net: the net after the last minibatch; its metrics are empty.
        minibatch: to be given to `net.descend`. Statistics of a whole minibatch belong here and not
            in a loss, which may see it in chunks.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Net:
    """The parts of an agent in the course of an update.

    Attributes and methods below are the names that no part can have.

    parts: state of each part, by name.
    hyper: hyperparameters, by attribute.
    extra: whatever else the recipe keeps.
    updates: number of updates before this one, int32.
    env_steps: environment steps at the last update, float32.
    metrics: what the log shows of this update so far.
    feedback: what the source is told about the batch, by name.
    aux: auxiliary outputs of the losses descended so far, by loss.
    drift: mean `LossOutput.drift` of the last loss that has one; None without one.
    normalize: scale of observations, from a raw `TimeStep` or observation to what the parts see:
        for whatever is not in the batch, such as an expert's steps, goals, windows in memory. The
        batch, and the time step that is acted on, are normalized already. The identity where
        observations are not normalized.
    """

    parts: dict[str, Trained]
    hyper: Values
    extra: Tree
    updates: Array
    env_steps: Array
    _blueprint: Blueprint
    _seed: Callable[[], Key]
    metrics: dict[str, Array | m.Mean] = dataclasses.field(default_factory=dict)
    feedback: dict[str, Tree] = dataclasses.field(default_factory=dict)
    aux: dict[Loss, Tree] = dataclasses.field(default_factory=dict)
    drift: Array | None = None
    normalize: Callable[[Any], Any] = lambda x: x
    _rows: tuple[int, int] = (0, 0)  # the axis of a minibatch that is cut into chunks; their size
    _in_minibatch: bool = False
    _kept: Unit | None = None  # what is whole in the minibatch; None where nothing was cut

    def __getattr__(self, name: str) -> Callable[..., Any]:
        parts = self._blueprint.parts
        if name not in parts:
            raise AttributeError(str(unknown("part", name, parts)))
        return functools.partial(self._blueprint.apply, name, self.parts[name].params)

    @property
    def target(self) -> Targets:
        """Target networks, by attribute."""
        return Targets(self._blueprint, self.parts)

    def key(self, name: str = "") -> Key:
        """Return a random key, another one for each name, each loss and each update.

        A loss that is descended twice in one update sees the same keys twice.
        """
        return jax.random.fold_in(self._seed(), zlib.crc32(name.encode()))

    def replace(self, **changes: Any) -> Net:
        """Return the net with other attributes."""
        return dataclasses.replace(self, **changes)

    def with_params(self, **params: Tree) -> Net:
        """Return the net with other parameters of the named parts."""
        new = {n: dataclasses.replace(self.parts[n], params=p) for n, p in params.items()}
        return self.replace(parts=self.parts | new)

    def restart(self, **params: Tree) -> Net:
        """Return the net with other parameters of the named parts, and with their optimizers as at
        the start of a run."""
        begin = lambda n, p: self._blueprint.descents[n].init(trainable(p))
        new = {
            n: dataclasses.replace(self.parts[n], params=p, optimizer=begin(n, p))
            for n, p in params.items()
        }
        return self.replace(parts=self.parts | new)

    def network(self, part: str) -> Any:
        """Return the network of a part, to apply it to other parameters, such as one member's."""
        return self._blueprint.parts[part].network

    def report(self, **metrics: Array | m.Mean) -> Net:
        """Log scalars, or means that may be of nothing."""
        return self.replace(metrics=self.metrics | metrics)

    def feed(self, **feedback: Tree) -> Net:
        """Tell the source about the batch, by name: `priority` [n] for replay buffers with
        prioritized sampling, `score` [n] for tasks, `keep` for sources that hold batches back."""
        if self._in_minibatch:
            raise UserError(
                "Priorities cannot be set inside `epochs` or `minibatches`: a minibatch has no "
                "replay index."
            )
        return self.replace(feedback=self.feedback | feedback)

    def learning_rate(self, part: str) -> Array | m.Mean:
        """Return the current step size of a part; a mean of nothing for an optax optimizer."""
        return self._blueprint.descents[part].learning_rate(self.hyper, self.env_steps)

    def descend(
        self,
        loss: Loss,
        data: Tree,
        *,
        mask: Array | None = None,
        weight: Array | None = None,
        every: int = 1,
        used: Array | None = None,
    ) -> Net:
        """Take one gradient step of a loss's parts.

        data: what the loss sees; a `Batch` or `Minibatch` stands for its transitions or elements
            with their mask and weight.
        mask: of each element. weight: of each value of the loss.
        every: take the step in every so many updates. Other updates skip the computation: no
            metrics, and `aux` is zero.
        used: int32 [], number of leading rows of a minibatch in which the mask is true anywhere.
            Chunks beyond them are skipped. None: all rows.

        Raises `UserError` for a loss that is not the recipe's, for values of a wrong shape, and for
        a loss of units that the minibatches of `epochs` tear apart.
        """
        if self._blueprint.losses.get(loss.name) is not loss:
            raise unknown("loss", loss.name, self._blueprint.losses)
        minibatch = minibatch_of(data, mask, weight)
        _check_unit(loss, self._kept, minibatch.mask)
        step = lambda: self._step(loss, minibatch, used)
        if every == 1:
            new, metrics, drift, priority, aux = step()
        else:
            _, *shapes = jax.eval_shape(step)
            due = (self.updates + 1) % every == 0
            old = {part: self.parts[part] for part in loss.parts}
            taken = where_due(due, step, (old, *trees.zeros(shapes)))
            new, metrics, drift, priority, aux = taken
            metrics = {n: m.mean(value, due) for n, value in metrics.items()}
            if priority is not None:
                raise UserError(
                    f"The loss '{loss.name}' has no priority in updates that leave it out."
                )
        net = self.replace(parts=self.parts | new).report(**metrics)
        net = net if drift is None else net.replace(drift=drift)
        net = net if aux is None else net.replace(aux=self.aux | {loss: aux})
        return net if priority is None else net.feed(priority=priority)

    def _step(
        self, loss: Loss, minibatch: Minibatch, used: Array | None
    ) -> tuple[dict[str, Trained], dict[str, Array], Array | None, Tree, Tree]:
        """Return the loss's parts after one step, metrics, drift, priority and aux."""
        unit, by_unit, mask = loss.unit, loss.unit != STEP, minibatch.mask
        counts = unit.values(mask) if by_unit and mask is not None else mask
        shares = _normalize(counts, minibatch.weight)
        if by_unit:
            shares = jax.tree.map(unit.spread, shares)
        axis, chunk = self._rows

        def objective(params, data, number):
            x, elements, (mask, weight) = data
            own = lambda: self.key(loss.name)
            seed = own if number is None else lambda: jax.random.fold_in(own(), number)
            whole = {n: with_shared(p, self.parts[n].params) for n, p in params.items()}
            net = self.with_params(**whole).replace(_seed=seed)
            if by_unit:
                x = Minibatch(x, elements)
                mask, weight = jax.tree.map(unit.gather, (mask, weight))
            output = as_output(loss(net, x))
            if by_unit:
                _check_metrics(loss, output)
            kept = output.priority, output.aux, output.state
            if chunk and any(x is not None for x in kept):
                raise UserError(
                    f"The loss '{loss.name}' has a priority, aux or a state, which the chunks of a "
                    "minibatch would lose; set chunk_rows to 0."
                )
            kept = None if chunk else kept
            total, means, drift = _average(loss.name, output, mask, weight, chunk > 0)
            return total, (means, drift, kept)

        params = {n: trainable(self.parts[n].params) for n in loss.parts}
        gradient, (means, drift, kept) = accumulated_gradient(
            objective, params, (minibatch.x, mask if by_unit else None, shares), axis, chunk, used
        )
        priority, aux, state = kept or (None, None, None)
        descents = self._blueprint.descents
        new, norms = descend(descents, self.parts, gradient, self.hyper, self.env_steps)
        for part in loss.parts:
            held = collections_of(self.parts[part].params) | dict((state or {}).get(part, {}))
            if held:
                new[part] = dataclasses.replace(new[part], params={**new[part].params, **held})
        metrics = means | {f"{n}_grad_norm": norm for n, norm in norms.items()}
        return {n: new[n] for n in loss.parts}, metrics, drift, priority, aux

    def update_targets(self, *parts: str, every: int | None = None) -> Net:
        """Move the target networks of the named parts, or of all, toward their parameters.

        every: in every so many updates; as the settings `Target.period` say by default.
        """
        new = dict(self.parts)
        known = {n: part.target for n, part in self._blueprint.parts.items() if part.target}
        for name in parts or known:
            rate = self.hyper[path_of(known[name])].rate
            period = settings_of(known[name]).period if every is None else every
            move = functools.partial(move_target, new[name], rate)
            due = (self.updates + 1) % period == 0
            new[name] = move() if period == 1 else where_due(due, move, new[name])
        return self.replace(parts=new)

    def epochs(
        self,
        settings: Epochs,
        data: Tree,
        step: MinibatchStep,
        *,
        unit: Unit = STEP,
        max_drift: Array | None = None,
    ) -> Net:
        """Take several epochs over a window in shuffled minibatches.

        data: leaves [T, B, ...]; a `Batch` stands for its transitions, mask and weight.
        step: what is done with each minibatch, of steps [n, ...] or sequences [T, n, ...].
        unit: what minibatches keep together: `STEP`, `SEQUENCE`, or groups of environments. Losses
            of other units need them whole.
        max_drift: once `net.drift` exceeds it after a minibatch, no more steps are taken, that one
            included, where the settings have an `early_stop` that is on.
        """
        window, shards = minibatch_of(data), self._blueprint.num_shards
        arrays = (window.x, window.mask, window.weight)
        rows = minibatches.to_rows(arrays, shards, unit)
        size = jax.tree.leaves(rows)[0].shape[1]
        if size % settings.minibatches:
            raise UserError(
                f"{size} {unit} per shard do not divide into minibatches={settings.minibatches}."
            )
        steps = max(x.shape[0] for x in jax.tree.leaves(arrays)) if unit.sequences else 1
        per_minibatch = size * shards // settings.minibatches
        chunk = minibatches.chunk(settings.chunk_rows, per_minibatch, steps * unit.columns)

        def minibatch(index):
            return Minibatch(*minibatches.from_rows(minibatches.take(rows, index), unit))

        index = minibatches.indices(
            self.key("order"), size, shards, settings.epochs, settings.minibatches, settings.shuffle
        )
        begun = self.replace(_rows=(int(unit.sequences), chunk * unit.columns), _kept=unit)
        limit = max_drift if getattr(settings, "early_stop", False) else None
        net, stopped = begun._steps(step, minibatch, index, limit)
        net = net.replace(_rows=self._rows, _kept=self._kept)
        return net.report(stopped_early=stopped.astype(jnp.float32))

    def minibatches(self, count: int, data: Tree, step: MinibatchStep) -> Net:
        """Take a step on each of `count` consecutive minibatches [n, ...] into which `data`
        [count * n, ...] is cut; every logical shard of it is cut alike."""
        batch, shards = minibatch_of(data), self._blueprint.num_shards

        def cut(x):
            x = jnp.moveaxis(x.reshape(shards, count, -1, *x.shape[1:]), 0, 1)
            return x.reshape(count, -1, *x.shape[3:])

        cuts = jax.tree.map(cut, (batch.x, batch.mask, batch.weight))
        begun = self.replace(_kept=STEP)
        return begun._steps(step, lambda item: Minibatch(*item), cuts)[0].replace(_kept=self._kept)

    def _steps(
        self,
        step: MinibatchStep,
        minibatch_at: Callable[[Tree], Minibatch],
        items: Tree,
        max_drift: Array | None = None,
    ) -> tuple[Net, Array]:
        """Return the net after a step with the minibatch of each item, and whether it stopped.

        What steps report is averaged; each counts as an update of its own.
        """
        begun, count = self._flat().replace(_in_minibatch=True), len(jax.tree.leaves(items)[0])

        def take_step(carry, now):
            (parts, extra, stopped), (number, item) = carry, now
            net = begun.replace(
                parts=parts,
                extra=extra,
                updates=self.updates * count + number,
                _seed=lambda: jax.random.fold_in(self.key("turn"), number),
                metrics={},
                drift=None,
            )
            net = step(net, minibatch_at(item))
            new = (net.parts, net.extra)
            if max_drift is not None:
                if net.drift is None:
                    raise UserError(
                        "early_stop is on, but no loss of this update says a drift "
                        "(`LossOutput.drift`) that max_drift could be compared with."
                    )
                stopped = stopped | (net.drift > max_drift)
                new = trees.where(stopped, (parts, extra), new)
            return (*new, stopped), net.metrics

        (parts, extra, stopped), reports = jax.lax.scan(
            take_step, (begun.parts, self.extra, jnp.bool_(False)), (jnp.arange(count), items)
        )
        net = self.replace(parts=begun._unflat(parts), extra=extra)
        return net.report(**{name: _mean(values) for name, values in reports.items()}), stopped

    def _flat(self) -> Net:
        """Turn the parameters of parts that descend as one vector, and their target networks, into
        that vector: once for many gradient steps."""
        parts, unravel, known = dict(self.parts), {}, self._blueprint.parts
        for name, descent in self._blueprint.descents.items():
            if descent.is_flat:
                params, members = self.parts[name].params, known[name].members
                if trainable(params) is not params:
                    raise UserError(
                        f"The optimizer of '{name}' is flat, but some of its parameters are "
                        "frozen; set flat to false."
                    )
                one = jax.tree.map(lambda x: x[0], params) if members else params
                unravel[name] = vmap_members(ravel_pytree(one)[1], members)
                parts[name] = _reshape(parts[name], vmap_members(as_one, members))
        blueprint = dataclasses.replace(self._blueprint, unravel=unravel)
        return self.replace(parts=parts, _blueprint=blueprint)

    def _unflat(self, parts: Mapping[str, Trained]) -> dict[str, Trained]:
        """Turn the vectors of a flat net's `parts` back into trees."""
        back = self._blueprint.unravel
        return {n: _reshape(p, back[n]) if n in back else p for n, p in parts.items()}


# Names that no part can have: `net.key` is a method.
RESERVED = frozenset(n for n in dir(Net) if not n.startswith("_")) | frozenset(
    f.name for f in dataclasses.fields(Net)
)


def _normalize(mask: Array | None, weight: Array | None) -> tuple[Array | None, Array | None]:
    """Rescale mask and weight so that an ordinary mean equals the masked mean, also over equal
    chunks."""
    if mask is not None:
        mask = mask * (mask.size / jnp.maximum(mask.sum(), 1.0))
        weight = mask if weight is None else mask * weight
    return mask, weight


def _average(
    name: str, output: LossOutput, mask: Array | None, weight: Array | None, chunked: bool
) -> tuple[Array, dict[str, Array], Array | None]:
    """Return what is descended, the mean of every metric, and the mean drift."""
    if name in output.metrics or name in output.terms:
        raise UserError(f"The loss '{name}' has a metric or a term of its own name; rename one.")
    rows = dict(output.metrics)
    if output.priority is not None:
        rows["priority"] = output.priority
    drift_row = next((n for n, x in rows.items() if x is output.drift), "")
    if output.drift is not None and not drift_row:
        rows[drift_row := " drift"] = output.drift
    if isinstance(output.value, m.Mean):
        _refuse_chunks(name, chunked)
        means = {name: output.value.value()} | _means(rows, mask, mask)
    else:
        _check(name, output.value, mask if mask is not None else weight)
        means = _means({name: output.value} | rows, mask, weight)
    total = means[name]
    for term, value in output.terms.items():
        if isinstance(value, m.Mean):
            _refuse_chunks(name, chunked)
            value = value.value()
        means[term] = value
        total = total + value
    drift = means[drift_row] if drift_row else None
    means.pop(" drift", None)
    return total, means, drift


def _refuse_chunks(name: str, chunked: bool) -> None:
    """Raise `UserError` for a sum with its own count that would be averaged over chunks."""
    if chunked:
        raise UserError(
            f"The loss '{name}' has a sum with its own count, which chunks of a minibatch would "
            "average wrongly; set chunk_rows to 0."
        )


def _check_unit(loss: Loss, kept: Unit | None, mask: Array | None) -> None:
    """Raise `UserError` if the units of a loss are not whole, or do not fit the elements."""
    if kept is not None and not kept.keeps(loss.unit):
        raise UserError(
            f"The loss '{loss.name}' is of {loss.unit}, and these minibatches are of {kept}, which "
            f"tear them apart; call epochs(..., unit=Unit(sequences={loss.unit.sequences}, "
            f"columns={loss.unit.columns}))."
        )
    size = 0 if mask is None else mask.shape[-1]
    if size % loss.unit.columns:
        raise UserError(
            f"The loss '{loss.name}' is of {loss.unit}, into which {size} columns do not divide."
        )


def _check_metrics(loss: Loss, output: LossOutput) -> None:
    """Raise `UserError` unless metrics of units are shaped as the values, since a mask of units
    would be broadcast over others."""
    for name, x in output.metrics.items():
        if not isinstance(output.value, m.Mean) and x.shape != output.value.shape:
            raise UserError(
                f"The loss '{loss.name}' of {loss.unit} reports '{name}' {list(x.shape)}; it must "
                f"have one value for each, {list(output.value.shape)}."
            )


def _check(name: str, values: Array, elements: Array | None) -> None:
    """Raise `UserError` unless there is one value per element."""
    if values.ndim == 0 or (elements is not None and values.shape != elements.shape):
        expected = "one for each element" if elements is None else f"{list(elements.shape)}"
        raise UserError(
            f"The loss '{name}' gave values {list(values.shape)}; it must give {expected}."
        )


def _means(rows: Mapping[str, Array], mask: Array | None, weight: Array | None) -> dict[str, Array]:
    """Average each row [...]: the first, which is the loss, by weight, the others by mask."""
    if not rows:
        return {}
    if weight is None:
        if len({x.shape for x in rows.values()}) > 1:
            return {name: x.mean() for name, x in rows.items()}
        # One reduction, not many; without a reshape, which would gather what devices share.
        stack = jnp.stack(list(rows.values()))
        return dict(zip(rows, stack.mean(range(1, stack.ndim)), strict=True))
    shares = [weight] + [mask] * (len(rows) - 1)
    return {
        name: x.mean() if share is None else jnp.where(share == 0, 0.0, share * x).mean()
        for (name, x), share in zip(rows.items(), shares, strict=True)
    }


def _mean(values: Array | m.Mean) -> Array | m.Mean:
    """Average what some minibatches reported, [minibatches]."""
    return m.reduce({"": values})[""] if isinstance(values, m.Mean) else values.mean()


def _reshape(part: Trained, shape: Callable[[Tree], Tree]) -> Trained:
    """Reshape a part's parameters and its target network by `shape`."""
    target = None if part.target is None else shape(part.target)
    return dataclasses.replace(part, params=shape(part.params), target=target)
