"""Inverse dynamics of random linear systems, whose labels give least-squares policy iteration the
optimal gains, in float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline.shared import inverse_dynamics
from jaxrl.core.types import Array, Batch, Key, TimeStep, Transition
from jaxrl.kit import Recipe

FEW, MANY, DISCOUNT, EFFORT = 8, 120, 0.9, 0.1  # labeled steps, which are too few for values
ENV = envs.make("pendulum")  # for its spaces alone: three numbers are seen, one is done
INVERSE = inverse_dynamics.Inverse()


class Normal(SimpleNamespace):
    """A normal policy of scale 1, its mean `center` [n, 1]."""

    center: Array

    def mode(self) -> Array:
        return self.center

    def log_prob(self, action: Array) -> Array:
        return -0.5 * jnp.square(action - self.center).sum(-1)


@dataclasses.dataclass(frozen=True)
class Linear:
    """A net whose inverse dynamics are linear, and fitted to their optimum by one descent.

    parts: the weights. noted: what the algorithm around which it is put was given, and the slope of
    the loss at the optimum.
    """

    parts: dict[str, Array]
    updates: Array
    noted: dict[str, Any]
    hyper = SimpleNamespace()

    def normalize(self, timestep: TimeStep) -> TimeStep:
        return timestep

    def inverse(self, features: Array) -> Normal:
        return Normal(center=append_one(features) @ self.parts["inverse"])

    def descend(self, loss: Any, seen: inverse_dynamics.Seen) -> Linear:
        fitted = jnp.linalg.lstsq(append_one(seen.features), seen.action)[0]

        def total(weights: Array) -> Array:
            return loss(dataclasses.replace(self, parts={"inverse": weights}), seen).mean()

        self.noted["slope"] = jnp.abs(jax.grad(total)(fitted)).max()
        return dataclasses.replace(self, parts={"inverse": fitted})

    def replace(self, **changes: Any) -> Linear:
        return dataclasses.replace(self, **changes)

    def report(self, **metrics: Array) -> Linear:
        return self


def append_one(x: Array) -> Array:
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1))], -1)


def play(
    key: Key, system: tuple[Array, Array], gain: Array, steps: int, noise: float
) -> Transition:
    """Return windows [2, steps] of two steps from random states, by a linear policy with noise.

    noise: standard deviation of what is added to states.
    """
    keys = jax.random.split(key, 3)
    state = jax.random.normal(keys[0], (steps, 3))
    none = jnp.zeros(steps)
    see = lambda state: TimeStep(state, none, none > 0, none > 0, none > 0)
    rows = []
    for i in range(2):
        action = state @ gain + jax.random.normal(jax.random.fold_in(keys[1], i), (steps, 1))
        moved = state @ system[0] + action @ system[1]
        moved += noise * jax.random.normal(jax.random.fold_in(keys[2], i), moved.shape)
        rows.append(Transition(see(state), action, see(moved), (), {}))
        state = moved
    return jax.tree.map(lambda a, b: jnp.stack([a, b]), *rows)


def cost(state: Array, action: Array) -> Array:
    return jnp.square(state).sum(-1) + EFFORT * jnp.square(action).sum(-1)


def learned_gain(x: Transition) -> Array:
    """Return the gain [3, 1] of least-squares policy iteration on steps [n]."""
    state, moved = x.observation, x.next_observation
    first, second = jnp.triu_indices(4)

    def features(state: Array, action: Array) -> Array:
        both = jnp.concatenate([state, action], -1)
        return both[:, first] * both[:, second]

    def improve(gain: Array, _: None) -> tuple[Array, None]:
        gap = features(state, x.action) - DISCOUNT * features(moved, moved @ gain)
        weights = jnp.linalg.lstsq(gap, cost(state, x.action))[0]
        square = jnp.zeros((4, 4)).at[first, second].set(weights / 2)
        square = square + square.T
        return -square[:3, 3:] / square[3, 3], None

    return jax.lax.scan(improve, jnp.zeros((3, 1)), None, length=20)[0]


def optimal_gain(system: tuple[Array, Array]) -> Array:
    """Return the optimal gain [3, 1], by the Riccati equation."""
    drift, push = system[0].T, system[1].T

    def back(square: Array, _: None) -> tuple[Array, Array]:
        pushed = DISCOUNT * push.T @ square
        gain = -jnp.linalg.solve(EFFORT * jnp.eye(1) + pushed @ push, pushed @ drift)
        closed = drift + push @ gain
        return jnp.eye(3) + EFFORT * gain.T @ gain + DISCOUNT * closed.T @ square @ closed, gain

    return jax.lax.scan(back, jnp.eye(3), None, length=300)[1][-1].T


def errors_of(
    key: Key, noise: float = 0.0, alone: bool = False, shifted: bool = False
) -> dict[str, Array]:
    """Return the errors of learning from a few labeled steps of one policy and many unlabeled ones
    of another.

    "slope": of the loss at the fitted inverse dynamics. "labels": the largest error of a label or a
    known action. "gain": the largest error of the gain that is learned from both.
    noise: of the states. alone: learn from the labeled steps alone. shifted: the model is shown the
    actions of other steps.
    """
    keys = jax.random.split(key, 6)
    system = (0.9 * jnp.linalg.qr(jax.random.normal(keys[0], (3, 3)))[0], jnp.zeros((1, 3)))
    push = jax.random.normal(keys[1], (1, 3))
    system = (system[0], push / jnp.linalg.norm(push))
    poor, other = 0.3 * jax.random.normal(keys[2], (2, 3, 1))
    shown = play(keys[3], system, poor, FEW, noise)
    hidden = play(keys[4], system, other, MANY, noise)
    told = dataclasses.replace(shown, action=jnp.roll(shown.action, 1, 1)) if shifted else shown
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), shown, hidden)
    known = jnp.broadcast_to(jnp.arange(FEW + MANY) < FEW, (2, FEW + MANY))
    x = dataclasses.replace(both, extras={"labeled": known, "shown": told})

    def note(net: Linear, batch: Batch) -> Linear:
        net.noted["steps"] = batch.transitions
        return net

    inner: Any = Recipe(parts={}, act=None, losses=(), update=note)  # type: ignore[arg-type]
    fit_steps: Any = lambda net: 1
    recipe = inverse_dynamics.learn_from_labels(inner, ENV, INVERSE, fit_steps)
    net: Any = Linear({"inverse": jnp.zeros((10, 1))}, jnp.int32(0), {})
    net = recipe.update(net, Batch(x, jnp.zeros(())))  # type: ignore[misc]
    slope = net.noted["slope"]
    net = recipe.update(net.replace(updates=jnp.int32(1)), Batch(x, jnp.zeros(())))  # type: ignore[misc]
    steps = net.noted["steps"]
    used = jax.tree.map(lambda a: a[:FEW], steps) if alone else steps
    return {
        "slope": slope,
        "labels": jnp.abs(steps.action - both.action[1]).max(),
        "gain": jnp.abs(learned_gain(used) - optimal_gain(system)).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors without noise."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Semi-Supervised Offline Reinforcement Learning with Action-Free Trajectories",
        "Zheng, Henaff, Amos and Grover",
        2023,
        "2210.06518",
        "An inverse dynamics model of a few labeled episodes labels all others; with a tenth of "
        "the labels, also poor ones, some algorithms match what they learn from all actions.",
    ),
    claim="In linear systems without noise, inverse dynamics that are fitted to 8 steps of one "
    "policy give the steps of another their actions, and policy iteration by least squares on both "
    "finds the optimal gain, for which the labeled steps alone are too few.",
    left_out="Networks, TD3+BC, and noise: with it labels lean toward the labeled policy's "
    "actions, which is among the planted mistakes. Labels are float32, as actions are, which sets "
    "the tolerance.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/offline/shared/inverse_dynamics.py",),
    errors=errors,
    planted={
        "labeled steps alone": jax.jit(lambda key: errors_of(key, alone=True)),
        "noisy systems": jax.jit(lambda key: errors_of(key, noise=0.3)),
        "actions of other steps": jax.jit(lambda key: errors_of(key, shifted=True)),
    },
    tolerance=1e-4,
    effect=5e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "actions are those of the step before",
            "jaxrl.algorithms.offline.shared.inverse_dynamics:at_center",
            lambda at_center: lambda x, past: at_center(x, max(past - 1, 0)),
        ),
        Mutation(
            "the successor is not seen",
            "jaxrl.algorithms.offline.shared.inverse_dynamics:see",
            lambda see: (
                lambda env, x, past: dataclasses.replace(
                    seen := see(env, x, past), features=seen.features.at[:, -3:].set(0.0)
                )
            ),
        ),
    ),
)
