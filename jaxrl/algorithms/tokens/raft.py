"""RAFT (Dong et al., 2023, "RAFT: reward ranked finetuning for generative foundation model
alignment", arXiv:2304.06767, algorithm 1): in each round the policy answers some prompts several
times and learns the best answer to each by supervised learning. Each round goes on from the policy
of the last one. A round's answers have the distribution of best-of-G sampling."""

from __future__ import annotations

from jaxrl.algorithms.tokens.shared.answers import check
from jaxrl.algorithms.tokens.shared.rounds import Rounds, best_of_group, on_rounds
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(Rounds):
    """Settings of RAFT: supervised learning of the best answer of each group
    (arXiv:2304.06767)."""


def recipe(env: Environment, config: Config) -> Recipe:
    return on_rounds(env, config, lambda net, returns, batch: best_of_group(returns))


raft = AlgorithmBuilder("raft", Config, recipe, check=check)

TINY = SMALL_GROUPS
