"""Supervised learning of tokens: clone the answers of the environment's expert, as a warm-up for
the other methods of this folder. The mean is over all tokens. The reference policy is updated at
once."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate, on_episodes
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Source
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss
from jaxrl.kit.groups import Episodes, Optimizer, Target
from jaxrl.sources import played_by


@group
class Config(Tokens):
    """Settings of supervised learning of tokens: cross-entropy with an expert's answers (Ouyang et
    al., 2022, arXiv:2203.02155)."""

    optimizer: Optimizer = Optimizer(
        learning_rate=9.65e-6,
        learning_rate_end=9.65e-7,
        schedule="cosine",
        max_grad_norm=1.0,
        beta2=0.95,
    )
    """Optimizer settings. Adam, its betas, and a cosine to a tenth over `learning_rate_steps`:
    Ouyang et al., 2022, appendix C.1."""
    episodes: Episodes = Episodes(num_envs=256)
    reference: Target = Target(rate=1.0)


@loss("actor_critic", name="loss")
def cloning_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the cross-entropy with the expert's tokens, less an entropy bonus."""
    now = evaluate(net, x, as_sampled=False)
    policy_loss = losses.behavior_cloning(now.log_prob)
    metrics = {
        "policy_loss": policy_loss,
        "entropy": now.entropy,
        "token_accuracy": now.policy.mode() == x.action,
    }
    return LossOutput(policy_loss - net.hyper.entropy_weight * now.entropy, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_episodes(env, config, (cloning_loss,))


def source(env: Environment, config: Config) -> Source:
    """Return episodes that the environment's expert plays."""
    advised = expert_channel(env)
    return played_by(config.episodes.source(advised), expert_policy(advised))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if early stopping is on."""
    if config.passes.early_stop:
        raise UserError(
            f"{name} cannot stop early: it learns from an expert's answers, not from those of an "
            "earlier policy that it should stay near."
        )
    answers.check(env, config, name)


token_supervised = AlgorithmBuilder("token_supervised", Config, recipe, source, check=check)

TINY = SMALL | {"num_envs": 8, "num_shards": 4}
