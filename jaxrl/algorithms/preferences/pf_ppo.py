"""PF-PPO (Zhang et al., 2024, "Policy filtration in RLHF to fine-tune LLM for code generation",
arXiv:2409.06957): a reward model's scores are reliable for some answers and not for others, so PPO
learns from some answers of each group alone: the best one and a random one of the others
(`best_and_random`), the best and the worst (`best_and_worst`), or the best (`best`).

The paper chooses the filter by R^2 between scores and true rewards on the answers that it keeps;
this is logged as `r2`, beside that of all answers, `r2_unfiltered`. Warm-start it from a run of
`reward_model`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.reward_models import Judges, on_scores
from jaxrl.algorithms.preferences.shared.settings import SMALL_JUDGED
from jaxrl.algorithms.tokens import token_ppo as of_ppo
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import returns_of
from jaxrl.algorithms.tokens.token_ppo import Config as PPOConfig
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Key
from jaxrl.kit import SEQUENCE, Net, Recipe, group, static
from jaxrl.sources.pairs import take_answers

FILTERS = ("best_and_random", "best_and_worst", "best")


@group
class Config(PPOConfig):
    """Settings of PF-PPO: PPO on the answers of each group with the most reliable scores
    (arXiv:2409.06957)."""

    filter: str = static("best_and_random", choices=FILTERS)
    """Answers of a group that are learned from: best_and_random (one of the others), best_and_worst
    or best."""
    reward: Judges = Judges()


def choose_answers(key: Key, score: Array, kind: str) -> Array:
    """Return the answers that a filter keeps, as places int32 [P, 2] ([P, 1] for the best alone).

    score: [P, G]. Each place is drawn by `losses.filtration_weights`, the best one first.
    """
    best_key, other_key = jax.random.split(key)
    draw = lambda key, weights: jax.random.categorical(key, jnp.log(weights))
    best = draw(best_key, losses.filtration_weights(score, "best"))
    if kind == "best":
        return best[:, None]
    if kind == "best_and_worst":
        weights = losses.filtration_weights(-score, "best")
    else:
        weights = 1.0 - jax.nn.one_hot(best, score.shape[1])
    return jnp.stack([best, draw(other_key, weights)], -1)


def true_returns(batch: Batch) -> Array:
    """Return the returns of whole episodes by the environment, [B]."""
    return batch.transitions.next_timestep.true_reward.sum(0)  # type: ignore[union-attr]


def r_squared(x: Array, y: Array) -> Array:
    """Return the coefficient of determination of the linear fit of y [n] by x [n]; 0 where either
    is constant."""
    x, y = x - x.mean(), y - y.mean()
    scale = (x**2).sum() * (y**2).sum()
    return jnp.where(scale > 0, (x * y).sum() ** 2 / jnp.where(scale > 0, scale, 1), 0)


def recipe(env: Environment, config: Config) -> Recipe:
    plain, size = of_ppo.recipe(env, config), config.groups.answers

    def update(net: Net, batch: Batch) -> Net:
        score = returns_of(batch)
        places = choose_answers(net.key("filter"), score.reshape(-1, size), config.filter)
        kept = take_answers(batch, places, size)
        fits = {"r2": kept, "r2_unfiltered": batch}
        metrics = {name: r_squared(returns_of(x), true_returns(x)) for name, x in fits.items()}
        return plain.update(net, kept).report(**metrics)

    return dataclasses.replace(plain, update=update)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for groups of one answer, and where the answers that
    are kept do not divide into the minibatches."""
    answers.check(env, config, name)
    groups, kept = config.groups, 1 if config.filter == "best" else 2
    if groups.answers < kept:
        raise UserError(f"{config.filter} keeps 2 answers of a group; groups.answers is 1.")
    shards = groups.num_shards
    config.passes.check(groups.prompts * kept, env.max_steps or 1, shards, unit=SEQUENCE)


pf_ppo = on_scores("pf_ppo", token_ppo, Config, recipe=recipe, check=check)

TINY = SMALL_JUDGED | {"answers": 3, "members": 1}
