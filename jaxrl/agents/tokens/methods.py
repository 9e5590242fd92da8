"""What tells the methods apart: how answers are judged, and the loss of each token.

| method | advantage of an answer | loss of a token |
|---|---|---|
| supervised | - | cross-entropy with the expert's token |
| reinforce | its return (Williams, 1992) | policy gradient |
| rloo | less the mean of the group's others (Ahmadian et al., 2024, arXiv:2402.14740) | the same |
| gpg | less the group's mean, rescaled (Chu et al., 2025, arXiv:2504.02546) | the same |
| grpo | standardised in its group (Shao et al., 2024, arXiv:2402.03300) | clipped surrogate |
| pass_at_k | for pass@k (Chen et al., 2025, arXiv:2508.10751) | the same |
| ppo | of each token, by a critic (Ouyang et al., 2022, arXiv:2203.02155) | the same |
| rpg | as rloo (Zhang et al., 2025, arXiv:2505.17508) | its own, with the KL divergence in it |
| rpg_clipped | the same | clipped surrogate, with the divergence in the advantage |

To all but rpg's `kl_weight` times an estimate of the KL divergence from the reference is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array, struct


@struct
class LogProbs:
    """Of the tokens, [T, B], by three policies."""

    now: Array
    acting: Array
    reference: Array


# (log-probabilities, advantage [T, B], hyper-parameters, Config) -> [T, B]
Loss = Callable[[LogProbs, Array, Mapping[str, Array], Any], Array]


@dataclasses.dataclass(frozen=True)
class Method:
    """advantage(returns [P, G] of P prompts' G answers, k) -> [P, G]; None: a critic's."""

    loss: Loss
    advantage: Callable[[Array, int], Array] | None = None
    supervised: bool = False

    @property
    def critic(self) -> bool:
        return self.advantage is None and not self.supervised


KL_ESTIMATES = {"k2": losses.kl_k2, "k3": losses.kl_k3}


def penalty(log_prob: LogProbs, hyper: Mapping[str, Array], config: Any) -> Array:
    """The weighted cost of leaving the reference."""
    estimate = KL_ESTIMATES[config.kl_estimate]
    return hyper["kl_weight"] * estimate(log_prob.now, log_prob.reference)


def cross_entropy(log_prob, advantage, hyper, config) -> Array:
    return losses.behaviour_cloning(log_prob.now)


def policy_gradient(log_prob, advantage, hyper, config) -> Array:
    loss = losses.policy_gradient(log_prob.now, advantage)
    return loss + penalty(log_prob, hyper, config)


def clipped(log_prob, advantage, hyper, config) -> Array:
    loss = losses.clipped_surrogate(log_prob.now, log_prob.acting, advantage, hyper["clip"])
    return loss + penalty(log_prob, hyper, config)


def regularised(log_prob, advantage, hyper, config) -> Array:
    return losses.rpg(
        log_prob.now,
        log_prob.acting,
        log_prob.reference,
        advantage,
        hyper["kl_weight"],
        config.rpg_kl,
        config.rpg_normalized,
        config.rpg_reinforce,
    )


def regularised_clipped(log_prob, advantage, hyper, config) -> Array:
    advantage = losses.rpg_advantage(
        log_prob.now,
        log_prob.reference,
        advantage,
        hyper["kl_weight"],
        config.rpg_kl,
        config.rpg_normalized,
    )
    return losses.clipped_surrogate(log_prob.now, log_prob.acting, advantage, hyper["clip"])


def _pass_at_k(returns: Array, k: int) -> Array:
    return losses.pass_at_k_advantage(returns > 0, k).astype(jnp.float32)


def _leave_one_out(returns: Array, k: int) -> Array:
    return losses.leave_one_out(returns)


METHODS = {
    "supervised": Method(cross_entropy, supervised=True),
    "reinforce": Method(policy_gradient, lambda returns, k: returns),
    "rloo": Method(policy_gradient, _leave_one_out),
    "gpg": Method(policy_gradient, lambda returns, k: losses.gpg_advantage(returns)),
    "grpo": Method(clipped, lambda returns, k: losses.group_relative(returns)),
    "pass_at_k": Method(clipped, _pass_at_k),
    "ppo": Method(clipped),
    "rpg": Method(regularised, _leave_one_out),
    "rpg_clipped": Method(regularised_clipped, _leave_one_out),
}
