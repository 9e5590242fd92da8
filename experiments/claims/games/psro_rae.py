"""Equilibria of players who dislike variance: what they are, which one is found, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.games import simplex_neupl
from jaxrl.core.types import Array, Key
from jaxrl.exact.meta_games import META
from jaxrl.tasks import pool

GAMES, ACTIONS, RISK = 64, 4, 1.0
NEAR = np.asarray([0.01, 0.1, 0.3], np.float64)  # steps from a mixture toward others
SOLVED, UNSOLVED = 0.005, 0.1  # largest gain at an equilibrium; share of games without one
CALMER = 0.8  # largest share of the variance that is left
Solver = Callable[[Array, Array, Array | float], Array]  # payoff, mask, risk -> mixture
Worth = Callable[[pool.Opponents], Array]


def moments(own: Array, opponent: Array, payoff: Array) -> tuple[Array, Array]:
    """Return mean and variance over the opponent's actions of what a mixture earns."""
    earned = own @ payoff
    mean = opponent @ earned
    return mean, opponent @ jnp.square(earned) - jnp.square(mean)


def others(mixture: Array) -> Array:
    """Return mixtures [N, A] to compare one with: those of a grid, and some between it and them."""
    grid = jnp.asarray(simplex_neupl.grid(ACTIONS, 6), float)
    near = mixture + NEAR[:, None, None] * (grid - mixture)
    return jnp.concatenate([grid, near.reshape(-1, ACTIONS)])


def gains(payoff: Array, mixture: Array) -> tuple[Array, Array]:
    """Return by how much another mixture exceeds one's utility against itself at most, and by how
    much one that earns no less has the smaller variance."""
    mean, variance = moments(mixture, mixture, payoff)
    means, variances = jax.vmap(lambda own: moments(own, mixture, payoff))(others(mixture))
    gain = (means - RISK * variances).max() - (mean - RISK * variance)
    calmer = jnp.where(means >= mean, variance - variances, 0.0).max()
    return jnp.maximum(gain, 0), jnp.maximum(calmer, 0)


def stag_hunt(key: Key) -> Array:
    """Draw payoffs [2, 2] with two strict equilibria, of which the first earns both more."""
    a, b, c, d = jax.random.uniform(key, (4,), float)
    stag, alone, safe = 3 + 2 * a, -b, 1 + c
    return jnp.stack([jnp.stack([stag, alone]), jnp.stack([safe, safe + 0.5 * (d - 0.5)])])


def lead_of_stag(payoff: Array, risk: Array | float) -> Array:
    """Return by how much stag is the better answer to an even player who answers itself.

    It is the slope of the utility by the share of stag, at a half, derived by hand.
    """
    spread = payoff[:, 0] - payoff[:, 1]
    slope = payoff.mean(1) - risk * spread * spread.sum() / 4
    return slope[0] - slope[1]


def measure(key: Key, solve: Solver, worth: Worth) -> Mapping[str, Any]:
    """Return the errors of a meta-solver and of the weights of an answer's rewards."""
    keys = jax.random.split(key, 4)
    drawn = jax.random.normal(keys[0], (GAMES, ACTIONS, ACTIONS), float)
    turned = drawn.swapaxes(1, 2)
    kinds = {
        "zero-sum": (drawn - turned) / 2,
        "common": (drawn + turned) / 2,
        "random": drawn,
    }

    @jax.vmap
    def look(payoff: Array) -> tuple[Array, Array, Array]:
        mixture = solve(payoff, jnp.ones(ACTIONS, bool), RISK)
        return *gains(payoff, mixture), moments(mixture, mixture, payoff)[1]

    found = {name: look(payoff) for name, payoff in kinds.items()}
    neutral = jax.vmap(lambda x: META["risk_averse"](x, jnp.ones(ACTIONS, bool), 0.0))(drawn)
    before = jax.vmap(lambda own, x: moments(own, own, x)[1])(neutral, drawn).mean()
    unsolved = (found["random"][0] > SOLVED).mean(dtype=float)

    hunts = jax.vmap(stag_hunt)(jax.random.split(keys[1], GAMES))

    @jax.vmap
    def hunt(payoff: Array) -> Array:
        risks = jnp.asarray([0.0, 0.05, 0.1, 0.2, 0.4])
        leads = jax.vmap(lambda risk: lead_of_stag(payoff, risk))(risks)
        stag = jax.vmap(lambda risk: solve(payoff, jnp.ones(2, bool), risk)[0])(risks)
        wrong = jnp.abs(stag - (leads > 0))
        return jnp.where(jnp.abs(leads) > 0.05, wrong, 0.0).max()

    logits = jax.random.normal(keys[2], (GAMES, ACTIONS), float)
    mixtures = jax.random.dirichlet(keys[3], jnp.ones(ACTIONS, float), (GAMES,))

    @jax.vmap
    def slope(logits: Array, mixture: Array, payoff: Array) -> Array:
        def utility(logits: Array) -> Array:
            mean, variance = moments(jax.nn.softmax(logits), mixture, payoff)
            return mean - RISK * variance

        earned = jax.nn.softmax(logits) @ payoff
        met = pool.opponents((), mixture, RISK)
        met = pool.Opponents((), met.weights, met.risk, 3 * earned, jnp.full(ACTIONS, 3.0))
        paid = lambda logits: mixture @ (worth(met) * (jax.nn.softmax(logits) @ payoff))
        return jnp.abs(jax.grad(paid)(logits) - jax.grad(utility)(logits)).max()

    return {
        "gain of another mixture in zero-sum games": found["zero-sum"][0].max(),
        "gain of another mixture in games of common interest": found["common"][0].max(),
        "share of random games without an equilibrium": jnp.maximum(unsolved - UNSOLVED, 0),
        "variance that could be avoided at no loss": jnp.quantile(found["random"][1], 0.9),
        "variance left of the risk-neutral solution's": jnp.maximum(
            found["random"][2].mean() / before - CALMER, 0
        ),
        "stag hunts that end elsewhere": hunt(hunts).max(),
        "slope of an answer's utility": slope(logits, mixtures, drawn).max(),
    }


def errors_of(change_solver: Any = None, change_worth: Any = None) -> Callable[[Key], Any]:
    """Return the errors of the project's solver and weights, or of changed ones."""

    def errors(key: Key) -> Mapping[str, Any]:
        solve, worth = META["risk_averse"], pool.worth
        solve = change_solver(solve) if change_solver else solve
        return measure(key, solve, change_worth(worth) if change_worth else worth)

    return jax.jit(errors)


def neutral(solve: Solver) -> Solver:
    """Solve without regard to risk."""
    return lambda payoff, mask, risk: solve(payoff, mask, 0.0)


def half(worth: Worth) -> Worth:
    """Return weights without the 2 of the square's derivative."""
    return lambda met: (1 + worth(met)) / 2


def square_alone(utility: Callable[..., Array]) -> Callable[..., Array]:
    """Subtract the mean square of the payoff in place of its variance."""

    def wrong(strategy, opponent, payoff, aversion):
        mean = ((strategy[..., None] * payoff).sum(-2) * opponent).sum(-1)
        return utility(strategy, opponent, payoff, aversion) - aversion * jnp.square(mean)

    return wrong


CLAIM = Exact(
    paper=Paper(
        "A Game-Theoretic Framework for Managing Risk in Multi-Agent Systems",
        "Slumbers, Mguni, Blumberg, McAleer, Yang and Wang",
        2023,
        "2205.15434",
        "A risk-averse equilibrium always exists, has the least variance for its mean, shares "
        "properties of Nash equilibria and generalizes the risk-dominant one; with it as the "
        "meta-solver, PSRO finds the safe play of a trust dilemma and crashes seven times less "
        "often in autonomous driving.",
    ),
    claim="In random games of four actions the meta-solver finds mixtures that no other exceeds in "
    "mean less variance (in zero-sum games and those of common interest always, else in nine of "
    "ten), with at most four fifths of the variance of risk-neutral play; in stag hunts it finds "
    "the risk-dominant equilibrium without aversion, and the other one where aversion turns the "
    "answer to an even player; the weights of PSRO's rewards give the slope of that utility.",
    left_out="Learned answers, the grid of the trust dilemma and driving; stochastic fictitious "
    "play, since solver and weights are this project's; games in which both players differ.",
    parts=(
        "jaxrl/exact/meta_games.py",
        "jaxrl/losses/distributions/risk.py",
        "jaxrl/tasks/pool.py",
    ),
    errors=errors_of(),
    planted={
        "no aversion": errors_of(neutral),
        "half the weight of variance in rewards": errors_of(None, half),
    },
    tolerance=0.005,
    effect=0.02,
    seeds=20,
    minutes=3.0,
    notes="A seed has 64 games of each kind, payoffs normal. The utility, its variance and its "
    "slope are computed from the distribution of payoffs. Others are all mixtures with shares of "
    "sixths, and some on the way to them. Where the slopes of stag and hare differ by less than "
    "0.05 at even play, a hunt is not counted.",
    mutations=(
        Mutation("square in place of variance", "jaxrl.losses:risk_averse_utility", square_alone),
        Mutation("half the weight of variance in rewards", "jaxrl.tasks.pool:worth", half),
    ),
)
