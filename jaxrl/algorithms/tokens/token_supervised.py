"""Supervised learning of tokens: clone what the environment's expert says, as a warm-up for the
other methods of this folder. The mean is over all tokens. The reference policy follows at once."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import recipe as tokens
from jaxrl.algorithms.tokens.shared.recipe import Sample, on_episodes, unrolled
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Source
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group
from jaxrl.kit.groups import Episodes, Optimizer, Target
from jaxrl.sources import played_by


@group
class Config(Tokens):
    """Settings of supervised learning of tokens."""

    optimizer: Optimizer = Optimizer(
        learning_rate=9.65e-6,
        learning_rate_end=9.65e-7,
        schedule="cosine",
        max_grad_norm=1.0,
        beta2=0.95,
    )
    """Adam, its betas, and a cosine to a tenth, over `learning_rate_steps`: Ouyang et al., 2022,
    appendix C.1."""
    episodes: Episodes = Episodes(num_envs=256)
    reference: Target = Target(rate=1.0)


def loss(net: Net, x: Sample) -> tuple[Array, dict[str, Array]]:
    """Cross-entropy with the expert's tokens, less an entropy bonus."""
    policy, _ = unrolled(net.actor_critic, net, x.timestep)
    policy_loss = losses.behavior_cloning(policy.log_prob(x.action))
    entropy = policy.entropy()
    return policy_loss - net.hyper.entropy_weight * entropy, {
        "policy_loss": policy_loss,
        "entropy": entropy,
        "token_accuracy": policy.mode() == x.action,
    }


def recipe(env: Environment, config: Config) -> Recipe:
    return on_episodes(env, config, loss)


def source(env: Environment, config: Config) -> Source:
    advised = expert_channel(env)
    return played_by(config.episodes.source(advised), expert_policy(advised))


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` as the others do, and where an early stop is asked for."""
    if config.passes.early_stop:
        raise UserError(
            f"{name} cannot stop early: it learns from an expert's answers, and not from those of "
            "a policy that it could be near to."
        )
    tokens.check(env, config, name)


token_supervised = AlgorithmBuilder("token_supervised", Config, recipe, source, check=check)

TINY = SMALL | {"num_envs": 8, "num_shards": 4}
