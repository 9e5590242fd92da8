"""RPG with PPO's clip (Zhang et al., 2025, arXiv:2505.17508): the divergence from the reference is
part of the advantage, so that DAPO's clip (section 5) applies to both together. The paper's second
bound, on the loss of bad answers (dual clip), is left out."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher, Direction
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss
from jaxrl.kit.groups import Optimizer


@group
class Config(ClippedHigher):
    """Settings of RPG with PPO's clip: DAPO's surrogate of advantages that include the divergence
    (arXiv:2505.17508, section 5)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """Optimizer settings. AdamW: appendix H, without the warm-up of 10 steps."""
    kl: Direction = Direction()


def recipe(env: Environment, config: Config) -> Recipe:
    kl = config.kl

    @loss("actor_critic", name="loss")
    def rpg_loss(net: Net, x: Sample) -> LossOutput:
        """Compute DAPO's surrogate with the divergence included in the advantage."""
        now, h = evaluate(net, x), net.hyper
        advantage = losses.rpg_advantage(
            now.log_prob,
            x.reference,
            x.advantage,
            h.kl.weight,
            kl.direction,  # type: ignore[arg-type]  # its choices are those of the loss
            kl.normalized,
        )
        surrogate = losses.clipped_surrogate(
            now.log_prob, x.log_prob, advantage, h.clip, h.clip_high
        )
        return token_output(net, x, now, surrogate)

    judge = judge_by_groups(losses.leave_one_out, config.groups.answers)
    return on_answers(env, config, judge, (rpg_loss,))


rpg_clipped = AlgorithmBuilder("rpg_clipped", Config, recipe, check=check)

TINY = SMALL_GROUPS
