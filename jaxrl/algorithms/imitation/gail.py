"""Generative adversarial imitation learning (GAIL; Ho and Ermon, 2016, "Generative adversarial
imitation learning", arXiv:1606.03476): the policy's reward is a discriminator's, which is trained
to tell the policy's steps from an expert's (algorithm 1).

The policy learns by PPO where the paper has TRPO. The discriminator sees observation and action
with both on one scale, whatever normalizes them. An optional gradient penalty keeps its slope near
1 between the two (Gulrajani et al., 2017, "Improved training of Wasserstein GANs", equation 3).
Episodes of the expert and the policy may differ in length, which a reward of one sign alone pays or
punishes (`form`); absorbing states are not added.
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.imitation.shared import windows
from jaxrl.algorithms.imitation.shared.adversarial import (
    adversarial,
    discriminator_loss,
    log_odds,
    step_discriminator,
)
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static


@group
class Config(windows.Adversarial):
    """Settings of GAIL: PPO on the reward of a discriminator of observations and actions
    (arXiv:1606.03476)."""

    form: str = static("positive", choices=("positive", "negative", "logit"))
    """Reward of a step: positive (-log(1 - D)), negative (log D) or logit (their sum), where D is
    the probability that the step is the expert's. The first favors long episodes, the second short
    ones."""


def recipe(env: Environment, config: Config) -> Recipe:
    return adversarial(
        ppo.recipe(env, config),
        env,
        {"discriminator": step_discriminator(env, config.discriminator)},
        discriminator_loss(("discriminator",), log_odds, config.discriminator),
        windows.train_on_windows(config.discriminator.passes),
        lambda net, x: losses.adversarial_reward(log_odds(net, x), config.form),
    )


gail = AlgorithmBuilder("gail", Config, recipe, windows.source, check=windows.check)

TINY = windows.SMALL_WINDOWS | {"env": "cartpole"}
