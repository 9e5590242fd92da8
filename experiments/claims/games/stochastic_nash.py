"""A loss whose minima are equilibria, and its unbiased estimate, in random games of three."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key

PLAYERS, ACTIONS, TEMPERATURE = 3, 3, 1.0
JOINT = list(itertools.product(range(ACTIONS), repeat=PLAYERS))
Estimate = Callable[[Array, Array], Array]  # like `losses.nash_loss_estimate`


def draw(key: Key) -> tuple[Array, Array]:
    """Draw payoffs [N, A, A, A] and policies [N, A]."""
    payoff_key, policy_key = jax.random.split(key)
    payoff = jax.random.uniform(payoff_key, (PLAYERS, *[ACTIONS] * PLAYERS), float, -1, 1)
    policy = jax.random.dirichlet(policy_key, jnp.ones(ACTIONS, float), (PLAYERS,), float)
    return payoff, policy


def sampled_gradients(payoff: Array, policy: Array) -> tuple[Array, Array]:
    """Return the estimates of gradients, [27, N, A], and the probability of each joint action."""
    entropy = TEMPERATURE * jnp.log(policy)
    others = lambda k, joint: tuple(
        slice(None) if j == k else action for j, action in enumerate(joint)
    )
    gradients = jnp.stack([
        jnp.stack([payoff[k][others(k, joint)] for k in range(PLAYERS)]) - entropy
        for joint in JOINT
    ])  # fmt: skip
    chance = jnp.stack([
        jnp.stack([policy[k, action] for k, action in enumerate(joint)]).prod() for joint in JOINT
    ])  # fmt: skip
    return gradients, chance


def bias(payoff: Array, policy: Array, estimate: Estimate) -> Array:
    """Return the error of the estimate's mean over all pairs of independent joint actions."""
    gradients, chance = sampled_gradients(payoff, policy)
    pairs = jax.vmap(lambda g: jax.vmap(lambda other: estimate(g, other))(gradients))(gradients)
    return jnp.abs(chance @ pairs @ chance - losses.nash_loss(payoff, policy, TEMPERATURE))


def logit_equilibrium(payoff: Array) -> Array:
    """Return the logit equilibrium, by damped responses, which contract at this temperature."""

    def step(_, policy):
        response = jax.nn.softmax(losses.deviation_payoff(payoff, policy) / TEMPERATURE)
        return 0.5 * policy + 0.5 * response

    begin = jnp.full((PLAYERS, ACTIONS), 1 / ACTIONS, float)
    return jax.lax.fori_loop(0, 500, step, begin)


def measure(key: Key, estimate: Estimate) -> Mapping[str, Any]:
    """Return the errors of an estimate and of the loss.

    The bound of NashConv, sqrt(2 N loss) + N temperature log(A), follows from the gradients'
    projections p: a deviation of player k gains at most sqrt(2) |p_k| + temperature log(A).
    """
    payoff, policy = draw(key)
    equilibrium = logit_equilibrium(payoff)
    loss = lambda policy: losses.nash_loss(payoff, policy, TEMPERATURE)
    bound = lambda policy: (
        jnp.sqrt(2 * PLAYERS * loss(policy)) + PLAYERS * TEMPERATURE * jnp.log(ACTIONS)
    )
    excess = lambda policy: jnp.maximum(solvers.nash_conv(payoff, policy) - bound(policy), 0)
    return {
        "bias of the estimate": bias(payoff, policy, estimate),
        "loss at the logit equilibrium": loss(equilibrium),
        "gradient at the logit equilibrium": jnp.abs(jax.grad(loss)(equilibrium)).max(),
        "NashConv above its bound": jnp.maximum(excess(policy), excess(equilibrium)),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of the loss and of its estimate."""
    return measure(key, losses.nash_loss_estimate)


def one_sample(estimate: Estimate) -> Estimate:
    """Use the same sample for both gradients, as the square of one would."""
    return lambda gradient, other: estimate(gradient, gradient)


def without_projection(estimate: Estimate) -> Estimate:
    """Multiply gradients without projecting them on the tangent space of the simplex."""
    return lambda gradient, other: (gradient * other).sum((-2, -1))


CLAIM = Exact(
    paper=Paper(
        "Approximating Nash Equilibria in Normal-Form Games via Stochastic Optimization",
        "Gemp et al.",
        2024,
        "2310.06689",
        "A loss for approximate Nash equilibria that samples estimate without bias, so that "
        "stochastic gradient descent applies; it can beat earlier methods.",
    ),
    claim="In random games of three the loss estimated from two samples is unbiased; the loss and "
    "its gradient are 0 at the logit equilibrium, and it bounds what deviations gain.",
    left_out="Stochastic gradient descent by the estimate, bandits over regions of the strategy "
    "space, and comparisons with other solvers.",
    parts=("jaxrl/losses/games/equilibria.py", "jaxrl/solvers/equilibria.py"),
    errors=errors,
    planted={
        "one sample for both gradients": jax.jit(
            lambda key: measure(key, one_sample(losses.nash_loss_estimate))
        ),
        "no projection": jax.jit(
            lambda key: measure(key, without_projection(losses.nash_loss_estimate))
        ),
    },
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "one sample for both",
            "jaxrl.losses:nash_loss_estimate",
            lambda f: lambda gradient, other, *more: f(gradient, gradient, *more),
        ),
    ),
    notes="The mean is over all 27 x 27 pairs of joint actions, so nothing is sampled.",
)
