"""Kimi k1.5's regression against the optimal policy of its iterations, in tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import minimum_of_policies, shortfall
from experiments.claims.preferences._tables import ANSWERS, Game, distance, draw
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import optimal_answers

TAU, SIZE = 0.7, 3
LARGE = 16.0  # a temperature at which the mean reward is near the normalizer
GROUPS = np.array(list(itertools.product(range(ANSWERS), repeat=SIZE)))  # all there are
Loss = Callable[..., Array]  # like `losses.mirror_descent_regression`


def regress(loss: Loss, log_prob: Array, old: Array, target: Array, tau: float) -> Array:
    """Return the loss [A] of single answers with any baseline subtracted: of the first of two whose
    rewards have the mean 0."""
    two = lambda x, y: jnp.stack([x, y], -1)
    given = two(log_prob, log_prob), two(old, old), two(target, -target), tau
    return loss(*given)[..., 0]


def expectation(loss: Loss, log_prob: Array, x: Game) -> Array:
    """Return the expected loss of groups of answers by the policy that begins the iteration."""
    p = jnp.exp(x.policy[GROUPS].sum(-1))
    value = loss(log_prob[GROUPS], x.policy[GROUPS], x.reward[GROUPS], TAU).mean(-1)
    return (p * value).sum()


def error_of_mean(loss: Loss, x: Game, tau: float) -> Array:
    """Return how far the minimum with the mean reward for tau log Z is from the optimal policy."""
    centered = x.reward - jnp.exp(x.policy) @ x.reward
    value = lambda p: (jnp.exp(x.policy) * regress(loss, p, x.policy, centered, tau)).sum()
    found = minimum_of_policies(value, x.policy, x.policy)
    return jnp.abs(found - optimal_answers(x.reward, x.policy, tau)).max()


def errors_of(loss: Loss, x: Game) -> dict[str, Array]:
    """Return the errors of a loss like Kimi k1.5's."""
    best = optimal_answers(x.reward, x.policy, TAU)
    target = x.reward - TAU * jax.nn.logsumexp(x.policy + x.reward / TAU)
    value = lambda p: (jnp.exp(x.behavior) * regress(loss, p, x.policy, target, TAU)).sum()
    exact_z = minimum_of_policies(value, best + 0.01 * (x.reference - best), x.behavior)

    # With a group's own mean, log-ratios of measures, which need no normalizer.
    begin = jnp.zeros(ANSWERS)
    of_ratios = lambda ratio: expectation(loss, x.policy + ratio, x)
    slope, curvature = jax.grad(of_ratios)(begin), jax.hessian(of_ratios)(begin)
    of_groups = jax.nn.log_softmax(x.policy - jnp.linalg.solve(curvature, slope))
    warmer = TAU * SIZE / (SIZE - 1)

    of_logits = lambda f, at: jax.grad(lambda z: f(jax.nn.log_softmax(z)))(at)
    first = of_logits(lambda p: expectation(loss, p, x), x.policy)
    policy_gradient = of_logits(lambda p: jnp.exp(p) @ x.reward, x.policy)

    def third_equation(p):  # of the paper, the gradient of each group at another policy
        ratio, reward = (p - x.policy)[GROUPS], x.reward[GROUPS]
        gain = p[GROUPS] * (reward - reward.mean(-1, keepdims=True)) - TAU / 2 * ratio**2
        return (jnp.exp(x.policy[GROUPS].sum(-1)) * gain.mean(-1)).sum()

    later = of_logits(lambda p: expectation(loss, p, x) / (2 * TAU), x.behavior)
    error, of_warmer = (error_of_mean(loss, x, tau) for tau in (LARGE, 4 * LARGE))
    return {
        "the minimum with log Z, the optimal policy": distance(exact_z, best),
        "the minimum of groups, at tau k / (k - 1)": distance(
            of_groups, optimal_answers(x.reward, x.policy, warmer)
        ),
        "the first gradient, the policy gradient": distance(
            first, -2 * TAU * (SIZE - 1) / SIZE * policy_gradient
        ),
        "the gradient, equation 3's": distance(later, -of_logits(third_equation, x.behavior)),
        "the error of the mean falls slower than the cube": shortfall(error / of_warmer / 64, 0.8),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of Kimi k1.5's loss."""
    return errors_of(losses.mirror_descent_regression, draw(key))


def wrong(loss: Loss, name: str) -> Callable[[Key], dict[str, Array]]:
    """Return one error of a wrong loss."""
    return jax.jit(lambda key: {name: errors_of(loss, draw(key))[name]})


def half_temperature(regression: Loss) -> Loss:
    """Pull toward the last policy with half of the strength."""
    return lambda now, old, reward, tau, *mask: regression(now, old, reward, tau / 2, *mask)


def without_mean(regression: Loss) -> Loss:
    """Regress on rewards without a baseline."""

    def loss(now, old, reward, tau, *mask):
        twice = lambda x, y: jnp.stack([x, y], -1)
        given = twice(now, now), twice(old, old), twice(reward, -reward), tau
        return regression(*given)[..., 0]

    return loss


CLAIM = Exact(
    paper=Paper(
        "Kimi k1.5: Scaling Reinforcement Learning with LLMs",
        "Kimi team",
        2025,
        "2501.12599",
        "Long contexts and mirror descent by regression, without values, search or a process "
        "reward, are enough for the state of the art in reasoning. Each iteration's optimum is "
        "pi_i exp(r / tau) / Z; the mean of the samples' rewards stands for tau log Z.",
    ),
    claim="With tau log Z the loss's minimum is the KL-regularized optimum off-policy; with a "
    "group's mean it is that of tau k / (k - 1).",
    left_out="Language models, length rewards, sampling of prompts, partial rollouts and "
    "long2short: here policies are tables over ten answers, and expectations are sums over all "
    "groups of three. The temperature of groups, up to a policy's normalizer, is derived here.",
    parts=("jaxrl/losses/tokens/policies.py", "jaxrl/algorithms/tokens/kimi_k1_5.py"),
    errors=errors,
    planted={
        "half of the temperature": wrong(
            half_temperature(losses.mirror_descent_regression),
            "the minimum with log Z, the optimal policy",
        ),
        "no mean reward": wrong(
            without_mean(losses.mirror_descent_regression),
            "the minimum of groups, at tau k / (k - 1)",
        ),
    },
    tolerance=1e-8,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    notes="Second design: the first asked for the cube between temperatures 4 and 16, where higher "
    "orders still count, and missed it by 0.0004 on 2 of 20 seeds; this one asks for it between 16 "
    "and 64. Among policies, whose probabilities add up to 1, the minimum with the mean reward is "
    "not quite the optimum at any temperature; its error falls with the cube of 1 / tau.",
    mutations=(
        Mutation(
            "half of the temperature", "jaxrl.losses:mirror_descent_regression", half_temperature
        ),
        Mutation("no mean reward", "jaxrl.losses:mirror_descent_regression", without_mean),
    ),
)
