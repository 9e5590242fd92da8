"""CoPG against the optimal policy and the gradient of its objective, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.claims.preferences._tables import Game, chance, distance, draw, minimum, pairs
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import optimal_answers

BETA = 0.5
Loss = Callable[..., Array]  # like `losses.copg`


def expectation(loss: Loss, x: Game, by: Array, log_prob: Array, reward: Array) -> Array:
    """Return the expected loss of pairs of answers `by` a policy [A]."""
    return (chance(by) * loss(*pairs(log_prob, x.reference, reward), BETA)).sum()


def objective(log_prob: Array, x: Game) -> Array:
    """Return the expected reward less the divergence from the reference, by definition."""
    return (jnp.exp(log_prob) * (x.reward - BETA * (log_prob - x.reference))).sum()


def errors_of(loss: Loss, x: Game) -> dict[str, Array]:
    """Return the errors of a loss like CoPG's."""
    found = minimum(lambda z: expectation(loss, x, x.behavior, z, x.reward))
    logits = x.policy + 1.0  # any shift of logits is the same policy
    of_logits = lambda f: jax.grad(lambda z: f(jax.nn.log_softmax(z)))(logits)
    on_policy = of_logits(lambda p: expectation(loss, x, x.policy, p, x.reward))
    exact = -2 * of_logits(lambda p: objective(p, x))  # each answer of a pair counts

    def of_labels(p):  # the reward says only which of two is preferred
        wins = losses.copg(*pairs(p, x.reference), jnp.float64(0.25), jnp.float64(-0.25), BETA)  # pyright: ignore[reportCallIssue]
        return (chance(x.behavior) * x.preference * wins).sum()

    def ipo(p):
        chosen, rejected, *references = pairs(p, x.reference)
        value = losses.ipo(chosen, rejected, *references, BETA)  # pyright: ignore[reportCallIssue]
        return BETA / 2 * (chance(x.behavior) * x.preference * value).sum()

    return {
        "the minimum from another policy's answers": distance(
            found, optimal_answers(x.reward, x.reference, BETA)
        ),
        "the gradient from its own answers": distance(on_policy, exact),
        "IPO's gradient for preferences": distance(of_logits(of_labels), of_logits(ipo)),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of CoPG."""
    return errors_of(losses.copg, draw(key))


def wrong(loss: Loss, name: str) -> Callable[[Key], dict[str, Array]]:
    """Return one error of a wrong loss."""
    return jax.jit(lambda key: {name: errors_of(loss, draw(key))[name]})


def half_beta(copg: Loss) -> Loss:
    """Pull toward the reference with half of the strength."""
    return lambda *given: copg(*given[:-1], given[-1] / 2)


def own_baseline(copg: Loss) -> Loss:
    """Judge each answer by itself, without the other one as the baseline: an off-policy policy
    gradient without importance weights."""

    def loss(now, other, reference, other_reference, reward, other_reward, beta):
        nothing = jnp.zeros_like(now)
        one = copg(now, nothing, reference, nothing, reward, nothing, beta)
        return one + copg(other, nothing, other_reference, nothing, other_reward, nothing, beta)

    return loss


OFF_POLICY = "the minimum from another policy's answers"
CLAIM = Exact(
    paper=Paper(
        "Contrastive Policy Gradient: Aligning LLMs on sequence-level scores in a "
        "supervised-friendly fashion",
        "Flet-Berliac, Grinsztajn, Strub, Wu, Choi, Cremer, Ahmadian, Chandak, Azar, Pietquin and "
        "Geist",
        2024,
        "2406.19185",
        "A policy gradient that finds the optimal policy of reward less KL from off-policy data "
        "without importance sampling, thanks to the right baseline; it generalizes IPO and the "
        "policy gradient.",
    ),
    claim="Whoever writes the answers, CoPG's loss has its minimum at the optimal policy; it "
    "generalizes IPO and the policy gradient.",
    left_out="Language models and summaries: here policies are tables over ten answers, and "
    "expectations are sums over all pairs.",
    parts=("jaxrl/losses/preferences/relative_rewards.py", "jaxrl/algorithms/preferences/copg.py"),
    errors=errors,
    planted={
        "half of the strength": wrong(half_beta(losses.copg), OFF_POLICY),
        "no other answer as the baseline": wrong(own_baseline(losses.copg), OFF_POLICY),
    },
    tolerance=1e-9,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("half of the strength", "jaxrl.losses:copg", half_beta),
        Mutation("no other answer as the baseline", "jaxrl.losses:copg", own_baseline),
    ),
)
