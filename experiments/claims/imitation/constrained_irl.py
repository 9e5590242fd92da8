"""Rewards that an expert's policy identifies, in random constrained Markov decision processes with
entropy, in float64."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key, struct

STATES, ACTIONS, DISCOUNT, TEMPERATURE = 5, 3, 0.8, 0.5
ITERATIONS, BISECTIONS, LARGEST = 300, 60, 4.0


@struct
class Task:
    """A decision process.

    transition, other: probabilities of next states [S, A, S], and others that a reward is
    transferred to. reward, cost: [S, A]. potential: of the states, [S]. multiplier: price of the
    cost that its bound implies, [].
    """

    transition: Array
    other: Array
    reward: Array
    cost: Array
    potential: Array
    multiplier: Array


def draw(key: Key) -> Task:
    keys = jax.random.split(key, 6)
    chances = lambda key: jax.random.dirichlet(key, jnp.ones(STATES, float), (STATES, ACTIONS))
    table = lambda key: jax.random.normal(key, (STATES, ACTIONS), float)
    return Task(
        chances(keys[0]),
        chances(keys[1]),
        table(keys[2]),
        table(keys[3]),
        jax.random.normal(keys[4], (STATES,), float),
        jax.random.uniform(keys[5], (), float, 0.5, 1.5),
    )


def log_policy(reward: Array, transition: Array) -> Array:
    """Return the logarithm of the policy [S, A] that is best with entropy, by value iteration."""
    q = lambda value: reward + DISCOUNT * transition @ value
    best = lambda value: TEMPERATURE * jax.nn.logsumexp(q(value) / TEMPERATURE, axis=-1)
    start = jnp.zeros(STATES, float)
    value = jax.lax.scan(lambda v, _: (best(v), None), start, None, length=ITERATIONS)[0]
    return jax.nn.log_softmax(q(value) / TEMPERATURE, axis=-1)


def expected_cost(task: Task, log_probs: Array) -> Array:
    """Return the discounted cost of a policy from the first state."""
    probs = jnp.exp(log_probs)
    moves = jnp.einsum("sa,sat->st", probs, task.transition)
    costs = jnp.linalg.solve(jnp.eye(STATES) - DISCOUNT * moves, (probs * task.cost).sum(-1))
    return costs[0]


def policy_at(task: Task, price: Array) -> Array:
    """Return the policy [S, A] that is best at a price of the cost, as its logarithm."""
    return log_policy(task.reward - price * task.cost, task.transition)


def price_of_bound(task: Task, bound: Array) -> Array:
    """Return the price at which the best policy just keeps a bound on its cost, by bisection."""

    def halve(ends, _):
        low, high = ends
        middle = (low + high) / 2
        over = expected_cost(task, policy_at(task, middle)) > bound
        return (jnp.where(over, middle, low), jnp.where(over, high, middle)), None

    ends = (jnp.zeros((), float), jnp.full((), LARGEST, float))
    low, high = jax.lax.scan(halve, ends, None, length=BISECTIONS)[0]
    return (low + high) / 2


def shape(task: Task, transition: Array, discount: float = DISCOUNT) -> Array:
    """Return what the task's potential adds to rewards, [S, A]."""
    return discount * transition @ task.potential - task.potential[:, None]


Change = Callable[[Task], Array]  # what is added to a reward, [S, A]


def errors_of(
    key: Key,
    price: Callable[[Task, Array], Array] = price_of_bound,
    added: Change = lambda task: shape(task, task.transition),
    transferred: Change = lambda task: jnp.ones((STATES, ACTIONS)),
) -> dict[str, Array]:
    """Return how far from equality each of these is.

    "identified": the expert's reward and TEMPERATURE log pi, up to potentials. "same policy": that
    of the reward with `added`. "with a constraint": the same as the first for an expert that keeps
    a bound on a cost; TEMPERATURE log pi is then the reward less the cost at its price. "bound":
    the price of the bound. "transfer": policies under other transitions, of the reward and with
    `transferred` added.
    """
    task = draw(key)
    gap = lambda a, b: losses.shaping_distance(a, b, task.transition, DISCOUNT)
    expert = log_policy(task.reward, task.transition)
    shaped = log_policy(task.reward + added(task), task.transition)
    bounded = policy_at(task, task.multiplier)
    paid = price(task, expected_cost(task, bounded))
    moved = log_policy(task.reward, task.other)
    carried = log_policy(task.reward + transferred(task), task.other)
    return {
        "identified": gap(task.reward, TEMPERATURE * expert),
        "same policy": jnp.abs(expert - shaped).max(),
        "with a constraint": gap(task.reward - paid * task.cost, TEMPERATURE * bounded),
        "bound": jnp.abs(paid - task.multiplier),
        "transfer": jnp.abs(moved - carried).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of what the paper says."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Identifiability and Generalizability in Constrained Inverse Reinforcement Learning",
        "Schlaginhaufen and Kamgarpour",
        2023,
        "2306.00629",
        "With entropy regularization an expert's policy identifies its reward up to potential "
        "shaping, but not under safety constraints that bind; transfer to other transitions needs "
        "the reward up to a constant.",
    ),
    claim="With entropy, an expert's policy identifies its reward up to potential shaping, which "
    "changes no policy; with a bound on a cost that binds, the reward less the cost at its price. "
    "A reward up to a constant has the same policy under other transitions, one up to shaping does "
    "not.",
    left_out="Other regularizers, estimates from samples, and the bound on the suboptimality of a "
    "transferred reward.",
    parts=("jaxrl/losses/imitation/inverse_rl.py",),
    errors=errors,
    planted={
        "a constraint that is left out": jax.jit(
            lambda key: errors_of(key, price=lambda task, bound: jnp.zeros((), float))
        ),
        "a shaping with another discount": jax.jit(
            lambda key: errors_of(key, added=lambda task: shape(task, task.transition, 0.5))
        ),
        "a shaping that is transferred": jax.jit(
            lambda key: errors_of(key, transferred=lambda task: shape(task, task.transition))
        ),
    },
    tolerance=1e-8,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "distances are not up to shaping",
            "jaxrl.losses:shaping_distance",
            lambda distance: lambda a, b, transition, discount: distance(a, b, transition, 0.0),
        ),
    ),
)
