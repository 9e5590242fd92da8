"""REINFORCE++ (Hu et al., 2025, arXiv:2501.03262): PPO's clipped surrogate without a critic. The
advantage of a token is the reward to come, of which the divergence from the reference is
subtracted at each token, standardized over all tokens of the batch instead of a group. An answer
needs no others to its prompt, so a group may be of one."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence, Groups
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss


@group
class Config(Clipped):
    """Settings of REINFORCE++: PPO's surrogate with returns standardized over the batch
    (arXiv:2501.03262)."""

    groups: Groups = Groups(prompts=256, answers=1)
    kl: Divergence = Divergence()


@loss("actor_critic", name="loss")
def surrogate_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the clipped surrogate of each token."""
    now = evaluate(net, x)
    token_loss = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, net.hyper.clip)
    return token_output(net, x, now, token_loss)


def judge_tokens(net: Net, batch: Batch) -> dict[str, Array]:
    """Return the rewards to come at each token, standardized over all tokens of the batch."""
    to_come = jnp.cumsum(batch.transitions.reward[::-1], 0)[::-1]
    return {"advantage": losses.standardize(to_come, batch.mask)}


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge_tokens, (surrogate_loss,), kl_in_reward=True)


reinforce_plus_plus = AlgorithmBuilder("reinforce_plus_plus", Config, recipe, check=check)

TINY = SMALL_GROUPS
