"""Robust Bellman errors as saddle points against what they are said to be: brute force, in float64.

States of a random MDP are visited by one policy and judged by another. Expectations are sums over
all transitions. Values are linear in features that cannot represent them, and one state earns far
more than all others, which is what tells the errors apart.
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


class World(NamedTuple):
    """All steps of one policy, as another judges them."""

    features: Array  # [S, K]
    reward: Array  # [S, A], expected
    chance: Array  # [S, A, S]: of each transition from a state, in the judged policy's hands
    visits: Array  # [S]: how often who acts is there
    begin: Array  # [K]


def garnet(key: Key) -> World:
    keys = jax.random.split(key, 5)
    found = mdp.tensors(random_mdp.draw(keys[0], STATES, ACTIONS, 3))
    policy = jax.random.dirichlet(keys[1], jnp.ones(ACTIONS), (STATES,))
    visits = jax.random.dirichlet(keys[2], jnp.full(STATES, 5.0))
    features = jax.random.normal(keys[3], (STATES, FEATURES))
    # In coordinates in which the squared error is round: the same values, found in fewer steps.
    chain = state_transition(found.transition, policy)
    backed = jnp.sqrt(visits)[:, None] * (features - GAMMA * chain @ features)
    features = features @ jnp.linalg.inv(jnp.linalg.qr(backed)[1])
    reward = expected_reward(found.transition, found.reward).at[0].add(20.0)
    chance = policy[..., None] * found.transition
    return World(features, reward, chance, visits, jax.random.normal(keys[4], (FEATURES,)))


def star(discount: float = GAMMA) -> World:
    """Baird's counterexample (1995), as Sutton and Barto have it (2018, figure 11.1): who acts is
    everywhere alike, who is judged always goes to the last state, and all rewards are 0."""
    features = np.concatenate([2 * np.eye(7), np.ones((7, 1))], 1)
    features[6, 6:] = 1, 2
    chance = np.zeros((7, 1, 7))
    chance[..., 6] = 1
    begin = np.array([1.0] * 6 + [10, 1])
    arrays = features, np.zeros((7, 1)), chance, np.full(7, 1 / 7), begin
    return World(*map(jnp.asarray, arrays))


def td_error(environment: World, w: Array) -> Array:
    """[S, A, S]: of every transition."""
    value = environment.features @ w
    over = jnp.zeros(environment.chance.shape, bool)
    given = value[:, None, None], environment.reward[..., None], over, GAMMA, value
    return losses.td_error(*given)


def objective(environment: World, w: Array, kind: str) -> Array:
    """The mean over visits of a function of the Bellman error, by definition."""
    error = (environment.chance * td_error(environment, w)).sum((1, 2))
    size = jnp.abs(error)
    huber = jnp.where(size < THRESHOLD, size**2 / 2, THRESHOLD * (size - THRESHOLD / 2))
    return environment.visits @ {"squared": error**2 / 2, "huber": huber, "absolute": size}[kind]


def mean_loss(environment: World, w: Array, dual: Array, loss: Loss) -> Array:
    """A loss in expectation over who acts: transitions weigh by the importance of their action."""
    value, error = (environment.features @ w)[:, None, None], td_error(environment, w)
    return (environment.visits[:, None, None] * environment.chance * loss(value, error, dual)).sum()


def kinds() -> dict[str, Loss]:
    """The losses of jaxrl that stand for the objectives."""
    return {
        "squared": lambda value, error, dual: losses.robust_bellman(error, dual),
        "huber": lambda value, error, dual: losses.robust_bellman(error, dual, THRESHOLD),
        "absolute": lambda value, error, dual: losses.absolute_bellman(error, dual),
    }


def gradients(key: Key, kind: str, loss: Loss) -> Array:
    """The largest error of the expected gradient of `loss`, where the dual is the Bellman error,
    relative to the largest entry of the gradient of the objective."""
    environment = garnet(key)
    dual = (environment.chance * td_error(environment, environment.begin)).sum((1, 2))[
        :, None, None
    ]
    found = jax.grad(mean_loss, 1)(environment, environment.begin, dual, loss)
    exact = jax.grad(objective, 1)(environment, environment.begin, kind)
    return jnp.abs(found - exact).max() / jnp.abs(exact).max()


def descended(environment: World, loss: Loss, rate: float = 0.2) -> Array:
    """The weights [K] to which value and dual come, each by its own loss, from a wrong dual."""

    def step(carry, _):
        w, dual = carry
        fit = lambda dual: mean_loss(
            environment, w, dual, lambda value, error, dual: losses.squared_error(dual, error)
        )
        # In steps as large in every state, however seldom it is visited.
        toward = jax.grad(fit)(dual) / environment.visits[:, None, None]
        return (w - rate * jax.grad(mean_loss, 1)(environment, w, dual, loss), dual - toward), None

    dual = jnp.ones((len(environment.visits), 1, 1))
    return jax.lax.scan(step, (environment.begin, dual), length=STEPS)[0][0]


def brute_force(environment: World, kind: str) -> Array:
    """The least objective, by reweighted least squares."""
    chain = environment.chance.sum(1)
    slope = environment.features - GAMMA * chain @ environment.features
    reward = (environment.chance.sum(2) * environment.reward).sum(1)

    def step(w, _):
        size = jnp.abs(reward - slope @ w)
        weight = environment.visits * (
            1.0 if kind == "squared" else jnp.minimum(1, THRESHOLD / size)
        )
        return jnp.linalg.solve((slope.T * weight) @ slope, (slope.T * weight) @ reward), None

    return objective(environment, jax.lax.scan(step, environment.begin, length=2000)[0], kind)


def excess(key: Key, kind: str, loss: Loss) -> Array:
    """How much more than the least an objective is where the loss has been descended, relative."""
    environment = garnet(key)
    least = brute_force(environment, kind)
    return objective(environment, descended(environment, loss), kind) / least - 1


def at_star(loss: Loss) -> Array:
    """What is left of the Huber error that Baird's counterexample begins with."""
    environment = star()
    left = objective(environment, descended(environment, loss), "huber") / objective(
        environment, environment.begin, "huber"
    )
    return jnp.where(jnp.isfinite(left), left, jnp.inf)


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    found = {f"gradient, {kind}": gradients(key, kind, loss) for kind, loss in kinds().items()}
    minima = {f"minimum, {k}": excess(key, k, kinds()[k]) for k in ("squared", "huber")}
    return found | minima | {"Baird": at_star(kinds()["huber"])}


def semi_gradient(value: Array, error: Array, dual: Array) -> Array:
    """What deep Q-networks do: each step's own error is clipped, and what follows is a constant."""
    return -jax.lax.stop_gradient(jnp.clip(error, -THRESHOLD, THRESHOLD)) * value


def of_samples(value: Array, error: Array, dual: Array) -> Array:
    """Huber's error of each step, not of their mean."""
    return losses.huber(error, jnp.zeros_like(error), THRESHOLD)


def wrongly(kind: str, loss: Loss) -> Callable[[Key], dict[str, Array]]:
    return jax.jit(lambda key: {"minimum": excess(key, kind, loss)})


def unclipped(robust: Any) -> Any:
    return lambda error, dual, *threshold: robust(error, dual)


CHECK = Exact(
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
    "errors; clipped TD has not.",
    left_out="Sampled steps and approximate duals, control, sensitivity to step sizes; the minimum "
    "of the absolute error, at which constant steps do not come to rest; the correction by which "
    "the authors' updates are those of TDC.",
    parts=("jaxrl/losses/values/bellman_errors.py",),
    errors=errors,
    planted={
        "clipped TD errors, semi-gradient": wrongly("huber", semi_gradient),
        "Huber's error of each step": wrongly("huber", of_samples),
        "a dual without bounds": wrongly("huber", lambda *given: kinds()["squared"](*given)),
        "clipped TD errors at Baird's star": jax.jit(lambda key: {"Baird": at_star(semi_gradient)}),
    },
    tolerance=1e-8,
    effect=1e-5,
    seeds=20,
    minutes=1.0,
    notes="The excess of a minimum is relative to the minimum, found by reweighted least squares. "
    "At Baird's star, whose values can be exact, it is what is left of the first Huber error.",
    mutations=(
        Mutation("the dual has no bounds", "jaxrl.losses:robust_bellman", unclipped),
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
