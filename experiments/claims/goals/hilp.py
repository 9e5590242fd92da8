"""Hilbert representations of states on a line, in float64: at the embedding of discounted
distances, by an eigendecomposition, HILP's loss is at rest and its directions lead to goals."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.goals import hilp
from jaxrl.core.types import Array, Key, TimeStep, Transition

STATES = 16
ENV = envs.make("goal_maze", layout="u_maze", observe="position")  # states are numbers here
KNOWN = dataclasses.replace(ENV.goals, achieved=lambda observation: observation)  # type: ignore
PLAIN = dataclasses.replace(ENV, goals=KNOWN)


def draw(key: Key) -> tuple[Array, Array]:
    """Return the numbers of steps [S, S] between states, in random order on a line, and a
    discount."""
    place_key, key = jax.random.split(key)
    place = jax.random.permutation(place_key, STATES)
    steps = jnp.abs(place[:, None] - place).astype(float)
    return steps, jax.random.uniform(key, (), float, 0.8, 0.98)


def embed(distance: Array) -> Array:
    """Return points [S, S] with these distances, by classical scaling."""
    center = jnp.eye(STATES) - 1 / STATES
    value, vector = jnp.linalg.eigh(-center @ jnp.square(distance) @ center / 2)
    return vector * jnp.sqrt(value.clip(0))


def length(x: Array) -> Array:
    """Return lengths of vectors [..., D], whose gradient at 0 is 0."""
    square = jnp.square(x).sum(-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def errors_of(
    key: Key, expectile: Array | float, size: Array | float, sign: Array | float
) -> dict[str, Array]:
    """Return the errors of the embedding.

    "distances": distances of embedded states beside discounted numbers of steps. "slope": the
    slope of the loss there, over all steps to neighbors and all goals. "paths": how many pairs of a
    state and a goal have a neighbor with the largest reward of the direction to the goal that is
    no nearer to the goal. "rest": the reward of staying.
    expectile: of the loss. size: factor on the embedding. sign: of the direction.
    """
    steps, discount = draw(key)
    near = steps == 1
    exact = (1 - discount**steps) / (1 - discount)
    table = size * embed(exact)
    state, goal, after = (x.ravel() for x in jnp.meshgrid(*[jnp.arange(STATES)] * 3, indexing="ij"))
    none = jnp.zeros(state.shape, bool)
    met = state == goal
    now = TimeStep(state, jnp.zeros(state.shape), none, none, none, goal=goal)
    later = TimeStep(after, jnp.where(met, 0.0, -1.0), met, none, none, goal=goal)
    x = Transition(now, state, later, (), {})
    latent_loss = hilp.recipe(PLAIN, hilp.Config()).losses[0]

    def latent(table: Array) -> Any:
        """Return two members, which are the same table."""

        def read(state: Array, goal: Any = None, method: str = "") -> Array:
            found = table[state] if method == "embed" else length(table[state] - table[goal])
            return jnp.stack([found, found])

        return read

    def net_of(table: Array) -> Any:
        hyper = SimpleNamespace(discount=discount, goal_expectile=expectile)
        return SimpleNamespace(
            latent=latent(table),
            target=SimpleNamespace(latent=latent(jax.lax.stop_gradient(table))),
            hyper=hyper,
        )

    weight = near[state, after] / near.sum() / STATES

    def loss(table: Array) -> Array:
        output: Any = latent_loss(net_of(table), x)
        return weight @ output.value

    net = net_of(table)
    direction = sign * hilp.toward(net, state, goal)
    reward = hilp.in_direction(net, x, state, after, direction).reward
    stays = jnp.where(state == after, reward, 0.0)
    reward = jnp.where(near[state, after], reward, -jnp.inf).reshape(STATES, STATES, STATES)
    chosen = reward.argmax(-1)
    wrong = steps[chosen, jnp.arange(STATES)] != steps - 1
    wrong = wrong & ~jnp.eye(STATES, dtype=bool)
    apart = length(table[:, None] - table)
    return {
        "distances": jnp.abs(apart - exact).max(),
        "slope": jnp.abs(jax.grad(loss)(table)).max() * STATES,
        "paths": wrong.mean(dtype=float),
        "rest": jnp.abs(stays).max(),
    }


compiled = jax.jit(errors_of)


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the exact embedding with the largest expectile."""
    return compiled(key, 1.0, 1.0, 1.0)


CLAIM = Exact(
    paper=Paper(
        "Foundation Policies with Hilbert Representations",
        "Park, Kreiman and Levine",
        2024,
        "2402.15567",
        "Latents whose distances are the steps between states, learned by a goal-conditioned value "
        "of that form, let a policy that moves in any direction of the latent space reach goals "
        "without further training.",
    ),
    claim="On a line discounted distances embed; there the loss with expectile 1 is at rest, and "
    "the direction to a goal rewards the step toward it most, and no direction rewards staying.",
    left_out="Networks, learning, policies, other rewards than a goal's, and environments whose "
    "distances do not embed: those of random trees did not when they were tried, before this claim "
    "was declared, though directions followed shortest paths there too.",
    notes="That staying earns nothing was added since rewards of the next state alone, a mutation, "
    "had gone unnoticed.",
    parts=("jaxrl/algorithms/goals/hilp.py", "jaxrl/losses/representations/goals.py"),
    errors=errors,
    planted={
        "expectile 0.9": lambda key: compiled(key, 0.9, 1.0, 1.0),
        "an embedding that is larger by a tenth": lambda key: compiled(key, 1.0, 1.1, 1.0),
        "the direction away from the goal": lambda key: compiled(key, 1.0, 1.0, -1.0),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "the side of the expectile is the other one",
            "jaxrl.losses:action_free_expectile",
            lambda loss: (
                lambda value, target, gain, expectile: loss(value, target, -gain, expectile)
            ),
        ),
        Mutation(
            "rewards are of the next state alone",
            "jaxrl.losses:direction_reward",
            lambda reward: lambda here, after, z: reward(-after, after, z),
        ),
    ),
)
