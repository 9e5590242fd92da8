"""PPO (Schulman et al., 2017) for tokens, as in Ouyang et al., 2022, "Training language models to
follow instructions with human feedback", arXiv:2203.02155: a critic judges each token, and the
divergence penalty is subtracted from its reward (equation 2). The mean is over all tokens.

Policy and critic are heads of one network here; the paper's critic is a network of its own, which
begins as the reward model (as in `ppo_max`). The paper's pretraining gradients (PPO-ptx) and weight
averaging are left out."""

from __future__ import annotations

import dataclasses

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    estimate_advantages,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss
from jaxrl.kit.groups import Optimizer


@group
class Config(Clipped):
    """Settings of PPO for tokens: a clipped surrogate with a critic for each token (RLHF,
    arXiv:2203.02155)."""

    optimizer: Optimizer = Optimizer(learning_rate=9e-6, max_grad_norm=1.0, beta2=0.95)
    """Optimizer settings. Adam and its betas: appendix C. 9e-6 is the value function's rate (C.4);
    the policy's was searched between 2.55e-6 and 2.55e-5 (E.9). There is no warm-up (10 steps in
    the paper)."""
    kl: Divergence = Divergence()
    """Penalty on the KL divergence from the reference policy, none by default. 0.02 in the
    paper."""
    discount: float = hyper(1.0, low=0, high=1)
    """Discount factor per token."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""


def judge(net: Net, batch: Batch) -> dict[str, Array]:
    """Estimate generalized advantages, standardized over all decisions, and the value targets."""
    x = estimate_advantages(net, batch)
    return {"advantage": losses.standardize(x.advantage, batch.mask), "target": x.target}


@loss("actor_critic", name="loss")
def ppo_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the clipped surrogate and the value loss of a shared network."""
    now, h = evaluate(net, x), net.hyper
    surrogate = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, h.clip)
    output = token_output(net, x, now, surrogate)
    error = losses.squared_error(now.value, x.target)
    metrics = {**output.metrics, "value_loss": error}
    return dataclasses.replace(output, value=output.value + h.value_weight * error, metrics=metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge, (ppo_loss,), kl_in_reward=True)


token_ppo = AlgorithmBuilder("token_ppo", Config, recipe, check=check)

TINY = SMALL_GROUPS
