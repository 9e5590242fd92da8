"""RPG (Zhang et al., 2025, "On the design of KL-regularized policy gradient algorithms for LLM
reasoning", arXiv:2505.17508): losses with the exact gradient of the reward less a KL divergence
from a reference, estimated from samples of the behavior policy. Answers are judged as in RLOO; the
published code subtracts the group's mean instead, which is (G - 1) / G as large. The mean is over
all tokens, as there."""

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
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Direction, Grouped
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss
from jaxrl.kit.groups import Optimizer


@group
class Config(Grouped):
    """Settings of RPG: losses with the exact gradient of the KL-regularized reward
    (arXiv:2505.17508)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """Optimizer settings. AdamW: appendix H, without the warm-up of 10 steps."""
    kl: Direction = Direction()
    reinforce: bool = False
    """Use the REINFORCE-style losses, which have the same gradient."""


def recipe(env: Environment, config: Config) -> Recipe:
    kl = config.kl

    @loss("actor_critic", name="loss")
    def rpg_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the surrogate whose gradient is that of the reward less the divergence."""
        now = evaluate(net, x)
        token_loss = losses.rpg(
            now.log_prob,
            x.log_prob,
            x.reference,
            x.advantage,
            net.hyper.kl.weight,
            kl.direction,  # type: ignore[arg-type]  # its choices are those of the loss
            kl.normalized,
            config.reinforce,
        )
        return token_output(net, x, now, token_loss)

    judge = judge_by_groups(losses.leave_one_out, config.groups.answers)
    return on_answers(env, config, judge, (rpg_loss,))


rpg = AlgorithmBuilder("rpg", Config, recipe, check=check)

TINY = SMALL_GROUPS
