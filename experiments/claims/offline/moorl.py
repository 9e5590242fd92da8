"""MOORL's meta-epochs on least squares, where the parameters that two sources of data lead to have
a closed form, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline import moorl
from jaxrl.core.types import Array, Batch, Key, struct

SIZE, ROWS, INNER, STEP = 3, 8, 4, 0.1  # parameters, rows of a source, gradient steps, their size
LEARNED = ("actor", "critic", "temperature")
CONFIG = dataclasses.replace(moorl.Config(), inner_steps=INNER)
RECIPE = moorl.recipe(envs.make("pendulum"), CONFIG)  # for its update alone


@struct
class Rows:
    """Rows of a least-squares problem: inputs [n, D] and targets [n]."""

    inputs: Array
    target: Array


@dataclasses.dataclass(frozen=True)
class Squares:
    """A net whose parts all have the same parameters and least-squares losses.

    rate: size of the gradient steps. extra: gradient steps too many.
    """

    parts: dict[str, Any]
    hyper: Any
    rate: Array | float
    extra: int

    def key(self, name: str) -> Key:
        return jax.random.key(0)

    def minibatches(self, count: int, x: Rows, step: Callable[[Any, Rows], Any]) -> Any:
        net = self
        for i in range(count + self.extra):
            part = lambda a, i=i: a.reshape(count, -1, *a.shape[1:])[i % count]
            net = step(net, jax.tree.map(part, x))
        return net

    def descend(self, loss: Any, x: Rows) -> Squares:
        """Take a gradient step of the parts that a loss is of."""

        def descend(params: Array) -> Array:
            error = lambda params: 0.5 * jnp.square(x.inputs @ params - x.target).mean()
            return params - self.rate * jax.grad(error)(params)

        new = {name: descend(self.parts[name].params) for name in loss.parts}
        return self.with_params(**new)

    def with_params(self, **new: Array) -> Squares:
        parts = {name: SimpleNamespace(params=params) for name, params in new.items()}
        return dataclasses.replace(self, parts=self.parts | parts)

    def update_targets(self) -> Squares:
        return self

    def report(self, **metrics: Array) -> Squares:
        return self


def errors_of(
    key: Key, extra: int = 0, meta_rate: float = 0.25, chance: float | None = None
) -> dict[str, Array]:
    """Return the errors of meta-epochs that learn from one of two sources each.

    "move": of the parameters after a meta-epoch of either source. "rest": of the mean move at the
    weighted mean of the sources' solutions in which the move is 0. "pooled": how far from 1/2 is
    the factor by which its distance to the solution of both sources together shrinks where gradient
    steps are half as large, beyond 0.05. "swing": by how much the parameters' stationary
    variance exceeds a third of that with a rate of 1.
    extra: gradient steps too many. meta_rate: of the moves. chance: of learning from the dataset.
    """
    keys = jax.random.split(key, 4)
    inputs = jax.random.normal(keys[0], (2, ROWS, SIZE))
    target = jax.random.normal(keys[1], (2, ROWS))
    offline = jax.random.uniform(keys[2], (), minval=0.3, maxval=0.7)
    hessian = jnp.einsum("snd,sne->sde", inputs, inputs) / ROWS
    pull = jnp.einsum("snd,sn->sd", inputs, target) / ROWS
    best = jnp.linalg.solve(hessian, pull[..., None])[..., 0]
    tiled = lambda x: jnp.tile(x, (1, INNER, *(1,) * (x.ndim - 2))).reshape(-1, *x.shape[2:])
    batch: Any = Batch(Rows(tiled(inputs), tiled(target)), jnp.zeros(()))  # type: ignore[arg-type]
    start = jax.random.normal(keys[3], (SIZE,))
    share = (offline, 1 - offline)  # of the dataset and of own steps
    told = share if chance is None else (jnp.asarray(chance), jnp.asarray(1 - chance))

    def move(params: Array, source: int, rate: Array | float, step: Array | float) -> Array:
        """Return the parameters after a meta-epoch of the dataset (0) or of own steps (1)."""
        hyper = SimpleNamespace(offline_chance=1.0 - source, meta_rate=rate)
        parts = {name: SimpleNamespace(params=params) for name in LEARNED}
        net: Any = Squares(parts, hyper, step, extra)
        return RECIPE.update(net, batch).parts["critic"].params  # type: ignore[misc]

    def way(step: Array | float) -> Array:
        """Return the shares [2, D, D] of the way to its solution that a source's steps go."""
        left = jnp.eye(SIZE) - step * hessian
        return jnp.eye(SIZE) - jnp.linalg.matrix_power(left, INNER)

    def rest(step: Array | float) -> Array:
        weight = jnp.stack(share)[:, None, None] * way(step)
        return jnp.linalg.solve(weight.sum(0), jnp.einsum("sde,se->d", weight, best))

    def mean_move(params: Array) -> Array:
        after = [move(params, i, meta_rate, STEP) for i in range(2)]
        return told[0] * after[0] + told[1] * after[1] - params

    def variance(rate: Array | float) -> Array:
        """Return the sum of the variances of the parameters after many meta-epochs."""
        maps = []
        for i in range(2):
            base = move(jnp.zeros(SIZE), i, rate, STEP)
            columns = [move(e, i, rate, STEP) - base for e in jnp.eye(SIZE)]
            top = jnp.stack([*columns, base], 1)
            maps.append(jnp.concatenate([top, jnp.eye(SIZE + 1)[-1:]]))

        def advance(square: Array, _: None) -> tuple[Array, None]:
            each = [m @ square @ m.T for m in maps]
            return told[0] * each[0] + told[1] * each[1], None

        begun = jnp.zeros((SIZE + 1, SIZE + 1)).at[-1, -1].set(1.0)
        square, _ = jax.lax.scan(advance, begun, None, length=4000)
        return jnp.trace(square[:-1, :-1]) - jnp.square(square[:-1, -1]).sum()

    moved = [
        move(start, i, meta_rate, STEP) - start - meta_rate * way(STEP)[i] @ (best[i] - start)
        for i in range(2)
    ]
    weight = jnp.stack(share)[:, None, None] * hessian
    pooled = jnp.linalg.solve(weight.sum(0), jnp.einsum("sde,se->d", weight, best))
    far, near = (jnp.linalg.norm(rest(step) - pooled) for step in (1e-3, 5e-4))
    return {
        "move": jnp.abs(jnp.stack(moved)).max(),
        "rest": jnp.abs(mean_move(rest(STEP))).max(),
        "pooled": jnp.maximum(jnp.abs(near / far - 0.5) - 0.05, 0),
        "swing": jnp.maximum(variance(meta_rate) - variance(1.0) / 3, 0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of meta-epochs as they are."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "MOORL: A Framework for Integrating Offline-Online Reinforcement Learning",
        "Chaudhary, Mondal and Behera",
        2025,
        "2506.09574",
        "Learning from a dataset and from own steps as from two tasks of Reptile is better than "
        "offline and hybrid methods in 28 tasks, without ensembles or pessimism.",
    ),
    claim="On least squares a meta-epoch goes the rate times the way of its K gradient steps; the "
    "mean of these moves is 0 at a weighted mean of the sources' solutions, which for small steps "
    "is that of both sources together; a rate of 0.25 leaves at most a third of the variance that "
    "parameters have with 1.",
    left_out="Networks, values that bootstrap, control, and comparisons with other methods. The "
    "net with its gradient steps stands in for the kit's; the update is the algorithm's own.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/offline/moorl.py", "jaxrl/gradients/estimators.py"),
    errors=errors,
    planted={
        "a gradient step too many": jax.jit(lambda key: errors_of(key, extra=1)),
        "parameters stay where the steps led": jax.jit(lambda key: errors_of(key, meta_rate=1.0)),
        "learning from the dataset alone": jax.jit(lambda key: errors_of(key, chance=1.0)),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation(
            "moves go twice as far",
            "jaxrl.gradients:reptile_gradient",
            lambda gradient: lambda start, adapted: 2 * gradient(start, adapted),
        ),
        Mutation(
            "moves go away from where the steps led",
            "jaxrl.gradients:reptile_gradient",
            lambda gradient: lambda start, adapted: -gradient(start, adapted),
        ),
    ),
)
