"""REBEL against mirror descent, the natural policy gradient and RLOO, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.claims.preferences._tables import (
    ANSWERS,
    Game,
    chance,
    distance,
    draw,
    minimum,
    pairs,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.solvers import mirror_descent

ETA, FEATURES = 0.7, 4
Loss = Callable[..., Array]  # like `losses.rebel`


def expectation(loss: Loss, x: Game, by: Array, log_prob: Array) -> Array:
    """Return the expected loss of pairs of answers `by` a policy [A]."""
    return (chance(by) * loss(*pairs(log_prob, x.policy, x.reward), ETA)).sum()


def errors_of(loss: Loss, key: Key) -> dict[str, Array]:
    """Return the errors of a loss like REBEL's."""
    game_key, feature_key = jax.random.split(key)
    x = draw(game_key)
    found = minimum(lambda z: expectation(loss, x, x.behavior, z))
    step = mirror_descent(x.policy, x.reward, ETA)

    # A policy of few features, whose last iteration is x.policy: log p = x.policy + phi w - log Z.
    phi = jax.random.normal(feature_key, (ANSWERS, FEATURES))
    log_prob = lambda w: jax.nn.log_softmax(x.policy + phi @ w)
    of_weights = lambda w: expectation(loss, x, x.policy, log_prob(w))
    begin = jnp.zeros(FEATURES)
    # The loss is quadratic in the weights, so this is the step of Gauss and Newton.
    slope, curvature = jax.grad(of_weights)(begin), jax.hessian(of_weights)(begin)
    once = -jnp.linalg.solve(curvature, slope)
    p = jnp.exp(x.policy)
    score = phi - p @ phi  # of each answer, [A, K]
    fisher, gradient = (p[:, None] * score).T @ score, score.T @ (p * x.reward)
    natural = ETA * jnp.linalg.solve(fisher, gradient)

    def rloo(w):
        both = pairs(log_prob(w), x.reward)
        values = [jnp.stack(both[i : i + 2], -1) for i in (0, 2)]  # [A, A, 2]
        advantage = losses.leave_one_out(values[1])
        return (chance(x.policy)[..., None] * losses.policy_gradient(values[0], advantage)).sum()

    return {
        "the minimum, mirror descent's step": distance(found, step),
        "the step of Gauss and Newton, the natural gradient's": distance(once, natural),
        "the first gradient, RLOO's": distance(ETA / 2 * slope, jax.grad(rloo)(begin)),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of REBEL."""
    return errors_of(losses.rebel, key)


def wrong(loss: Loss) -> Callable[[Key], dict[str, Array]]:
    """Return the smallest error of a wrong loss."""

    def least(key):
        return {"least": jnp.array(list(errors_of(loss, key).values())).min()}

    return jax.jit(least)


def other_step(rebel: Loss) -> Loss:
    """Multiply by the step size instead of dividing."""
    return lambda *given: rebel(*given[:-1], 1 / given[-1])


def half_reward(rebel: Loss) -> Loss:
    """Regress on the reward of the first answer alone."""
    return lambda *given: rebel(*given[:5], jnp.zeros_like(given[5]), given[6])


CLAIM = Exact(
    paper=Paper(
        "REBEL: Reinforcement Learning via Regressing Relative Rewards",
        "Gao, Chang, Zhan, Oertell, Swamy, Brantley, Joachims, Bagnell, Lee and Sun",
        2024,
        "2404.16767",
        "Policy optimization as regression of relative rewards on log-ratios of two completions. "
        "The natural policy gradient is a variant of it, and it matches or exceeds PPO and DPO.",
    ),
    claim="REBEL's minimum is mirror descent's step, its step of Gauss and Newton the natural "
    "gradient's, its first gradient RLOO's.",
    left_out="Language and images, and regret bounds: here policies are tables over ten answers "
    "or log-linear in four features, and expectations are sums over all pairs.",
    parts=("jaxrl/losses/preferences/relative_rewards.py", "jaxrl/algorithms/preferences/rebel.py"),
    errors=errors,
    planted={
        "the inverse step size": wrong(other_step(losses.rebel)),
        "the reward of one answer alone": wrong(half_reward(losses.rebel)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("the inverse step size", "jaxrl.losses:rebel", other_step),
        Mutation("the reward of one answer alone", "jaxrl.losses:rebel", half_reward),
    ),
)
