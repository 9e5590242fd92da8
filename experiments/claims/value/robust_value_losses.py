"""Robust Bellman errors as saddle points, against their definitions by brute force, in float64.

One policy visits the states of a random MDP, and another is evaluated. Expectations are sums over
all transitions. Values are linear in features that cannot represent them, and one state earns far
more than all others, which separates the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.envs.tables import mdp, random_mdp
from jaxrl.exact.dynamic_programming import expected_reward, state_transition

STATES, ACTIONS, FEATURES, GAMMA, THRESHOLD = 8, 3, 3, 0.9, 1.0
STEPS = 20_000
Loss = Callable[..., Array]  # (value, td_error, dual, threshold) -> [...]


class Problem(NamedTuple):
    """Evaluation of a target policy from all steps of a behavior policy."""

    features: Array  # [S, K]
    reward: Array  # [S, A], expected
    chance: Array  # [S, A, S]: of each transition from a state, under the target policy
    visits: Array  # [S]: share of the behavior policy's visits
    begin: Array  # [K]


def garnet(key: Key) -> Problem:
    keys = jax.random.split(key, 5)
    found = mdp.tensors(random_mdp.draw(keys[0], STATES, ACTIONS, 3))
    policy = jax.random.dirichlet(keys[1], jnp.ones(ACTIONS), (STATES,))
    visits = jax.random.dirichlet(keys[2], jnp.full(STATES, 5.0))
    features = jax.random.normal(keys[3], (STATES, FEATURES))
    # Coordinates in which the squared error is round: the same values after fewer steps.
    chain = state_transition(found.transition, policy)
    backed = jnp.sqrt(visits)[:, None] * (features - GAMMA * chain @ features)
    features = features @ jnp.linalg.inv(jnp.linalg.qr(backed)[1])
    reward = expected_reward(found.transition, found.reward).at[0].add(20.0)
    chance = policy[..., None] * found.transition
    return Problem(features, reward, chance, visits, jax.random.normal(keys[4], (FEATURES,)))


def star(discount: float = GAMMA) -> Problem:
    """Baird's counterexample (1995), in the version of Sutton and Barto (2018, figure 11.1).

    The behavior policy is everywhere alike, the target policy always goes to the last state, and
    all rewards are 0.
    """
    features = np.concatenate([2 * np.eye(7), np.ones((7, 1))], 1)
    features[6, 6:] = 1, 2
    chance = np.zeros((7, 1, 7))
    chance[..., 6] = 1
    begin = np.array([1.0] * 6 + [10, 1])
    arrays = features, np.zeros((7, 1)), chance, np.full(7, 1 / 7), begin
    return Problem(*map(jnp.asarray, arrays))


def td_error(problem: Problem, w: Array) -> Array:
    """Return the TD error of every transition, [S, A, S]."""
    value = problem.features @ w
    over = jnp.zeros(problem.chance.shape, bool)
    given = value[:, None, None], problem.reward[..., None], over, GAMMA, value
    return losses.td_error(*given)


def objective(problem: Problem, w: Array, kind: str) -> Array:
    """Return the mean over visits of a function of the Bellman error, by definition."""
    error = (problem.chance * td_error(problem, w)).sum((1, 2))
    size = jnp.abs(error)
    huber = jnp.where(size < THRESHOLD, size**2 / 2, THRESHOLD * (size - THRESHOLD / 2))
    return problem.visits @ {"squared": error**2 / 2, "huber": huber, "absolute": size}[kind]


def mean_loss(problem: Problem, w: Array, dual: Array, loss: Loss) -> Array:
    """Return a loss in expectation over the behavior policy, weighted by importance."""
    value, error = (problem.features @ w)[:, None, None], td_error(problem, w)
    return (problem.visits[:, None, None] * problem.chance * loss(value, error, dual)).sum()


def kinds() -> dict[str, Loss]:
    """Return the losses of jaxrl for the objectives."""
    return {
        "squared": lambda value, error, dual: losses.robust_bellman(error, dual),
        "huber": lambda value, error, dual: losses.robust_bellman(error, dual, THRESHOLD),
        "absolute": lambda value, error, dual: losses.absolute_bellman(error, dual),
    }


def gradients(key: Key, kind: str, loss: Loss) -> Array:
    """Return the largest error of the expected gradient of `loss` if the dual is the Bellman error.

    It is relative to the largest entry of the gradient of the objective.
    """
    problem = garnet(key)
    dual = (problem.chance * td_error(problem, problem.begin)).sum((1, 2))[:, None, None]
    found = jax.grad(mean_loss, 1)(problem, problem.begin, dual, loss)
    exact = jax.grad(objective, 1)(problem, problem.begin, kind)
    return jnp.abs(found - exact).max() / jnp.abs(exact).max()


def descend(problem: Problem, loss: Loss, rate: float = 0.2) -> Array:
    """Return the weights [K] after value and dual descend their own losses, from a wrong dual."""

    def step(carry, _):
        w, dual = carry
        fit = lambda dual: mean_loss(
            problem, w, dual, lambda value, error, dual: losses.squared_error(dual, error)
        )
        # Steps are as large in every state, however rarely it is visited.
        toward = jax.grad(fit)(dual) / problem.visits[:, None, None]
        return (w - rate * jax.grad(mean_loss, 1)(problem, w, dual, loss), dual - toward), None

    dual = jnp.ones((len(problem.visits), 1, 1))
    return jax.lax.scan(step, (problem.begin, dual), length=STEPS)[0][0]


def brute_force(problem: Problem, kind: str) -> Array:
    """Return the least objective, by reweighted least squares."""
    chain = problem.chance.sum(1)
    slope = problem.features - GAMMA * chain @ problem.features
    reward = (problem.chance.sum(2) * problem.reward).sum(1)

    def step(w, _):
        size = jnp.abs(reward - slope @ w)
        weight = problem.visits * (1.0 if kind == "squared" else jnp.minimum(1, THRESHOLD / size))
        return jnp.linalg.solve((slope.T * weight) @ slope, (slope.T * weight) @ reward), None

    return objective(problem, jax.lax.scan(step, problem.begin, length=2000)[0], kind)


def excess(key: Key, kind: str, loss: Loss) -> Array:
    """Return the relative excess of an objective over its minimum after descending the loss."""
    problem = garnet(key)
    least = brute_force(problem, kind)
    return objective(problem, descend(problem, loss), kind) / least - 1


def at_star(loss: Loss) -> Array:
    """Return the share of the first Huber error that is left in Baird's counterexample."""
    problem = star()
    left = objective(problem, descend(problem, loss), "huber") / objective(
        problem, problem.begin, "huber"
    )
    return jnp.where(jnp.isfinite(left), left, jnp.inf)


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    found = {f"gradient, {kind}": gradients(key, kind, loss) for kind, loss in kinds().items()}
    minima = {f"minimum, {k}": excess(key, k, kinds()[k]) for k in ("squared", "huber")}
    return found | minima | {"Baird": at_star(kinds()["huber"])}


def semi_gradient(value: Array, error: Array, dual: Array) -> Array:
    """Return the loss of deep Q-networks, which clips each step's error and holds targets fixed."""
    return -jax.lax.stop_gradient(jnp.clip(error, -THRESHOLD, THRESHOLD)) * value


def per_step_huber(value: Array, error: Array, dual: Array) -> Array:
    """Return Huber's error of each step, not of their mean."""
    return losses.huber(error, jnp.zeros_like(error), THRESHOLD)


def wrong_errors(kind: str, loss: Loss) -> Callable[[Key], dict[str, Array]]:
    return jax.jit(lambda key: {"minimum": excess(key, kind, loss)})


def no_bounds(robust: Any) -> Any:
    return lambda error, dual, *threshold: robust(error, dual)


CLAIM = Exact(
    paper=Paper(
        "Robust Losses for Learning Value Functions",
        "Patterson, Liao and White",
        2022,
        "2205.08464",
        "Huber and absolute Bellman errors are reformulated as saddle points, for sound gradient "
        "algorithms; these are more stable and less sensitive to meta-parameters, for prediction "
        "and control.",
    ),
    claim="Saddle-point losses have the gradients and minima of mean Huber and absolute Bellman "
    "errors; clipped TD does not.",
    left_out="Sampled steps and approximate duals, control, sensitivity to step sizes; the minimum "
    "of the absolute error, at which constant steps do not come to rest; the correction that makes "
    "the authors' updates those of TDC.",
    parts=("jaxrl/losses/values/bellman_errors.py",),
    errors=errors,
    planted={
        "clipped TD errors, semi-gradient": wrong_errors("huber", semi_gradient),
        "Huber's error of each step": wrong_errors("huber", per_step_huber),
        "a dual without bounds": wrong_errors("huber", lambda *given: kinds()["squared"](*given)),
        "clipped TD errors at Baird's star": jax.jit(lambda key: {"Baird": at_star(semi_gradient)}),
    },
    tolerance=1e-8,
    effect=1e-5,
    seeds=20,
    minutes=1.0,
    notes="The excess over a minimum is relative to the minimum, found by reweighted least "
    "squares. For Baird's star, whose values can be exact, it is the share of the first Huber "
    "error left.",
    mutations=(
        Mutation("the dual has no bounds", "jaxrl.losses:robust_bellman", no_bounds),
        Mutation(
            "the successor's value is a constant",
            "jaxrl.losses:td_error",
            lambda error: (
                lambda value, reward, over, discount, following: error(
                    value, reward, over, discount, jax.lax.stop_gradient(following)
                )
            ),
        ),
    ),
)
