"""GRPO with a divergence penalty that lets critical tokens go (Vassoyan et al., 2025, "Ignore the
KL penalty! Boosting exploration on critical tokens to enhance RL fine-tuning", arXiv:2502.06533): a
token's divergence from the reference is weighted by the reference's certainty there, the negentropy
over its maximum, to a power (equations 1 and 2).

The paper adds the penalty to A2C; here it is GRPO's, so that the weight is all that differs."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens import grpo
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
    restrict,
    token_output,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import Divergence
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss
from jaxrl.kit.groups import INF
from jaxrl.networks.heads import check_discrete


@group
class Certain(Divergence):
    """Penalty on the KL divergence from the reference policy where that is certain."""

    weight: float = hyper(0.1, low=0)
    """Weight of the KL divergence from the reference policy (beta)."""
    exponent: float = hyper(1.0, low=0, high=INF)
    """Power of the reference's certainty that weights a token's divergence; 0 weights all alike."""


@group
class Config(grpo.Config):
    """Settings of GRPO with a divergence penalty weighted by the reference's certainty
    (arXiv:2502.06533)."""

    kl: Certain = Certain()


@loss("actor_critic", name="loss")
def weighted_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the clipped surrogate plus the weighted divergence penalty of each token."""
    now, h = evaluate(net, x), net.hyper
    weight = h.kl.weight * x.certainty
    token_loss = losses.grpo(now.log_prob, x.log_prob, x.reference, x.advantage, h.clip, weight)
    return token_output(net, x, now, token_loss)


def recipe(env: Environment, config: Config) -> Recipe:
    by_groups = judge_by_groups(losses.group_relative, config.groups.answers)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t = batch.transitions
        policy, _ = unroll(net.target.actor_critic, net, t.timestep)
        logits = restrict(net, policy, t.extras.get("allowed")).logits
        certainty = losses.critical_token_weight(logits, net.hyper.kl.exponent)
        return {**by_groups(net, batch), "certainty": certainty}

    return on_answers(env, config, judge, (weighted_loss,))


def check_tokens(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `answers.check`, and for actions that are not `Discrete`."""
    check_discrete(env.action_space, name)
    check(env, config, name)


critical_token_kl = AlgorithmBuilder("critical_token_kl", Config, recipe, check=check_tokens)

TINY = grpo.TINY
