"""RPG's losses against the exact gradient of a KL-regularized objective.

Answers are 3 tokens out of 5, from tables; expectations are sums over all 125 answers of the
behavior policy, which is neither the learned policy nor the reference. They are computed for
policies and for measures, which are policies times a factor: for policies the two kinds of
divergence have one gradient, and the term w - v by which their losses differ has expectation 0, so
its sign would go unnoticed. Measures tell all losses apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

BETA, TOKENS = 0.3, 5
DIVERGENCES = tuple(itertools.product(("forward", "reverse"), (True, False)))  # kl, normalized
KINDS = tuple((*divergence, style) for divergence in DIVERGENCES for style in (False, True))
Loss = Callable[..., Array]  # like `losses.rpg`


class Case(NamedTuple):
    """Parameters [32, 5] of the learned measure, the logarithms [125] of the behavior measure and
    the reference, and rewards [125].
    """

    parameters: Array
    behavior: Array
    reference: Array
    reward: Array


def log_measure(parameters: Array) -> Array:
    """Return the logarithm [125] of a policy over answers times a factor.

    parameters: logits after each beginning of an answer; the last row begins with the logarithm of
    the factor.
    """
    tables = jax.nn.log_softmax(parameters[:-1])
    one, two = tables[1 : 1 + TOKENS], tables[1 + TOKENS :].reshape((TOKENS,) * 3)
    return parameters[-1, 0] + (tables[0][:, None, None] + one[:, :, None] + two).reshape(-1)


def case(key: Key, measures: bool) -> Case:
    """Draw three policies, or `measures` with different factors."""
    tables_key, reward_key = jax.random.split(key)
    tables = jax.random.normal(tables_key, (3, 2 + TOKENS + TOKENS**2, TOKENS))
    factors = jnp.array([0.5, -0.5, 1.0]) * measures
    learned, behavior, reference = tables.at[:, -1, 0].set(factors)
    reward = jax.random.normal(reward_key, (TOKENS**3,))
    return Case(learned, log_measure(behavior), log_measure(reference), reward)


def objective(parameters: Array, x: Case, kl: str, normalized: bool) -> Array:
    """Return the objective, by definition: -sum_y p(y) r(y) + BETA D.

    D of measures includes the difference of their sums.
    """
    ours = log_measure(parameters)
    log_a, log_b = (x.reference, ours) if kl == "forward" else (ours, x.reference)
    a, b = jnp.exp(log_a), jnp.exp(log_b)
    divergence = (a * (log_a - log_b)).sum() + (0.0 if normalized else b.sum() - a.sum())
    return BETA * divergence - (jnp.exp(ours) * x.reward).sum()


def error(x: Case, loss: Loss, kind: tuple[Any, ...], divergence: tuple[Any, ...]) -> Array:
    """Return the largest error of the expected gradient of a `kind` of `loss`.

    It is relative to the largest entry of the gradient of the objective with `divergence`.
    """

    def expectation(parameters):
        given = log_measure(parameters), x.behavior, x.reference, x.reward, BETA
        return (jnp.exp(x.behavior) * loss(*given, *kind)).sum()

    exact = jax.grad(objective)(x.parameters, x, *divergence)
    return jnp.abs(jax.grad(expectation)(x.parameters) - exact).max() / jnp.abs(exact).max()


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of all eight losses, for policies and for measures."""
    return {
        f"{kl}, {'' if normalized else 'un'}normalized{', REINFORCE' * style}, {name}": error(
            case(key, name == "measures"), losses.rpg, (kl, normalized, style), (kl, normalized)
        )
        for kl, normalized, style in KINDS
        for name in ("policies", "measures")
    }


@jax.jit
def exchange_divergences(key: Key) -> dict[str, Array]:
    """Return the smallest error if one of the eight losses has another's divergence."""
    wrong = ((kind, d) for kind in KINDS for d in DIVERGENCES if kind[:2] != d)
    x = case(key, True)
    return {"least": jnp.array([error(x, losses.rpg, *pair) for pair in wrong]).min()}


def each_wrong(loss: Loss, kinds=KINDS, measures: bool = True) -> Callable[[Key], dict[str, Array]]:
    """Return the smallest error of some kinds of a wrong `loss`."""

    def least(key):
        x = case(key, measures)
        return {"least": jnp.array([error(x, loss, kind, kind[:2]) for kind in kinds]).min()}

    return jax.jit(least)


def other_sign(rpg: Loss) -> Loss:
    """Subtract the term w - v of unnormalized losses instead of adding it."""

    def loss(*given):
        *given, normalized, style = given
        right, without = (rpg(*given, n, style) for n in (normalized, True))
        return 2 * without - right

    return loss


def on_policy(rpg: Loss) -> Loss:
    """Compute a loss as if the learned policy were the behavior policy."""
    return lambda now, behavior, *others: rpg(now, jax.lax.stop_gradient(now), *others)


def grpo(now, behavior, reference, reward, beta, *kind) -> Array:
    """Compute GRPO's loss without clips; its penalty lacks the importance weight."""
    return losses.grpo(now, behavior, reference, reward, jnp.inf, beta)


UNNORMALIZED = tuple(kind for kind in KINDS if not kind[1])
CLAIM = Exact(
    paper=Paper(
        "On the Design of KL-Regularized Policy Gradient Algorithms for LLM Reasoning",
        "Zhang, Liu, Yuan, Yuan, Gu and Yao",
        2025,
        "2505.17508",
        "Losses for forward and reverse KL, normalized or not, differentiable or in REINFORCE's "
        "style, with the gradient of the KL-regularized objective from off-policy samples; GRPO's "
        "penalty lacks an importance weight. In training they match or outperform GRPO, "
        "REINFORCE++ and DAPO.",
    ),
    claim="The eight RPG losses have, in expectation off-policy, the exact gradient of reward "
    "minus a KL divergence; GRPO's penalty does not.",
    left_out="Training, clips, REINFORCE++ and DAPO. The paper's reference is the behavior policy; "
    "here it is a third one.",
    parts=("jaxrl/losses/tokens/policies.py",),
    errors=errors,
    planted={
        "a loss has another's divergence": exchange_divergences,
        "the excess w - v has the other sign": each_wrong(other_sign(losses.rpg), UNNORMALIZED),
        "no importance weights": each_wrong(on_policy(losses.rpg)),
        "GRPO's penalty, for policies": each_wrong(grpo, measures=False),
    },
    tolerance=1e-10,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("the excess w - v has the other sign", "jaxrl.losses:rpg", other_sign),
        Mutation("no importance weights", "jaxrl.losses:rpg", on_policy),
    ),
)
