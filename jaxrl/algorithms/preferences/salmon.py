"""SALMON (Sun et al., 2023, "SALMON: self-alignment with principle-following reward models",
arXiv:2310.05910): PPO on the scores of a reward model that is told by which principles it should
score. Other principles steer the policy elsewhere, or away from what it has learned to exploit,
without another training of the reward model.

Warm-start it from a run of `salmon_reward_model`. A run that goes on from a run of `salmon` keeps
policy, reference and reward model and may have other `principles`, which is how the paper patches
reward hacking. The policy sees no principles, and they are the same for all prompts. The paper's
bonus for length and penalty of unfinished answers are left out.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.preferences.reward_ensembles import Config as EnsembleConfig
from jaxrl.algorithms.preferences.salmon_reward_model import check_principles, state_principles
from jaxrl.algorithms.preferences.shared.measures import is_small, measure_proxy
from jaxrl.algorithms.preferences.shared.ratings import ratings_of, rewards_of
from jaxrl.algorithms.preferences.shared.reward_models import (
    Instruct,
    Judges,
    combine_scores,
    judged_by,
    score_answers,
)
from jaxrl.algorithms.preferences.shared.settings import SMALL_JUDGED
from jaxrl.algorithms.tokens import token_ppo as of_ppo
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.settings import Divergence
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.exact.answers import Answers
from jaxrl.kit import Recipe, group, static


@group
class Config(EnsembleConfig):
    """Settings of SALMON: PPO on the scores of a reward model by principles (arXiv:2310.05910)."""

    reward: Judges = Judges()
    kl: Divergence = Divergence(weight=0.01)
    """Penalty on the KL divergence from the reference policy. 0.01: authors' code."""
    principles: tuple[int, ...] = static((), low=-1, high=1)
    """Principles that the reward model is told, in the alphabetical order of the reward's
    components: 1 for a principle, -1 for its negation, 0 for none. Empty for all of them."""


def instruction(env: Environment, config: Any) -> Instruct:
    """Return the function that tells a reward model the principles of these settings."""
    count = len(rewards_of(env))
    principles = jnp.asarray(config.principles or (1,) * count, jnp.float32)
    return functools.partial(state_principles, principles=principles)


def recipe(env: Environment, config: Config) -> Recipe:
    judged = judged_by(of_ppo.recipe(env, config), env, config, instruction(env, config))
    names = rewards_of(env) if is_small(env) else ()
    each = {f"exact_{name}": f"expected {name}" for name in names}
    return dataclasses.replace(judged, scores={**judged.scores, **each})


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `measure_proxy` of the score by the principles, and the expected score by each
    principle, `exact_NAME`, in a small environment."""
    if not is_small(env):
        return {}

    def proxy(found: Answers) -> Array:
        parts = policy.state.parts
        scores = score_answers(env, config, parts, found, instruction(env, config))
        return combine_scores(config, Values(policy.state.hyper), scores)

    each = {
        f"exact_{name}": measure_proxy(env, config, policy, lambda _, x=x: x)["exact_proxy"]
        for name, x in ratings_of(env).items()
    }
    return {**measure_proxy(env, config, policy, proxy), **each}


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check` and `check_principles`, and for principles that are not
    as many as the components or all absent."""
    answers.check(env, config, name)
    check_principles(env, config, name)
    names, told = rewards_of(env), config.principles
    if told and (len(told) != len(names) or not any(told)):
        raise UserError(
            f"principles is {list(told)}; it must have an entry for each of {', '.join(names)}, of "
            "which one at least is not 0."
        )


salmon = token_ppo.variant(
    "salmon",
    Config=Config,
    recipe=recipe,
    check=check,
    measure=measure,
    goes_on_from="salmon_reward_model",
)

TINY = SMALL_JUDGED | {"env": "ruled_words", "principles": (1, -1)}
