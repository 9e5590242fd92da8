"""SAPO (Gao et al., 2025, "Soft adaptive policy optimization", arXiv:2511.20347): a sigmoid of the
probability ratio in the place of GRPO's clip, which closes sooner for bad answers than for good
ones."""

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
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL_GROUPS, Grouped
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF


@group
class Config(Grouped):
    """Settings of SAPO: softly gated ratios (arXiv:2511.20347, equations 5 and 6)."""

    temperature: float = hyper(1.0, above=0, high=INF)
    """Temperature of the gate of good answers; a larger one closes sooner."""
    negative_temperature: float = hyper(1.05, above=0, high=INF)
    """Temperature of the gate of bad answers."""
    average: str = static("sequence", choices=AVERAGES)
    """Averaging of token losses: sequence (equal weight per sequence), token or constant."""


@loss("actor_critic", name="loss")
def sapo_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the gated ratio times the advantage of each token (equation 5)."""
    now, h = evaluate(net, x), net.hyper
    token_loss = losses.sapo(
        now.log_prob, x.log_prob, x.advantage, h.temperature, h.negative_temperature
    )
    return token_output(net, x, now, token_loss)


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_groups(losses.group_relative, config.groups.answers)
    return on_answers(env, config, judge, (sapo_loss,))


sapo = AlgorithmBuilder("sapo", Config, recipe, check=check)

TINY = SMALL_GROUPS
