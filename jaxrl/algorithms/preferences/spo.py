"""SPO, self-play preference optimization (Swamy et al., 2024, "A minimaximalist approach to
reinforcement learning from human feedback", arXiv:2401.04056): the reward of an answer is the share
of the other answers of its group that it is preferred to (algorithm 1), and a policy learns from it
by an ordinary method, without a reward model and without an adversary. The average of the policies
approaches the minimax winner, also where preferences are cyclic and no reward explains them; the
last one may go round.

The method is the policy gradient of whole answers (RLOO) here; the paper has PPO and SAC, for
control, and compares with a queue of recent trajectories. The judge's probabilities stand for
drawn comparisons.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import games
from jaxrl.algorithms.preferences.shared.measures import exact_scores, measure_game
from jaxrl.algorithms.preferences.shared.reward_models import with_reward
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED
from jaxrl.algorithms.tokens import rloo
from jaxrl.algorithms.tokens.rloo import Config as RLOOConfig
from jaxrl.core.judges import judge_of, win_probabilities
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group
from jaxrl.kit.acting import check_sampling
from jaxrl.sources.pairs import judged_of


@group
class Config(RLOOConfig):
    """Settings of SPO: policy gradients with win rates as rewards (arXiv:2401.04056,
    algorithm 1)."""


def recipe(env: Environment, config: Config) -> Recipe:
    judge, size = judge_of(env), config.groups.answers

    def reward(net: Net, batch: Batch) -> tuple[Array, dict[str, Array]]:
        assert batch.mask is not None
        preference = win_probabilities(judge, judged_of(batch), size)
        ended = batch.mask & batch.transitions.done
        return jnp.where(ended, losses.win_rate(preference).reshape(-1), 0), {}

    paid = with_reward(rloo.recipe(env, config), reward)
    scores = {**paid.scores, **exact_scores(env, "preference_gap")}
    return dataclasses.replace(paid, scores=scores)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `games.check`, and for settings of sampling that have no effect."""
    games.check(env, config, name)
    check_sampling(env.action_space, config, name)


spo = AlgorithmBuilder("spo", Config, recipe, check=check, measure=measure_game)

TINY = SMALL_PLAYED | {"answers": 3}
