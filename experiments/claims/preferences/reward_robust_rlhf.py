"""A trade-off of mean and smallest score against one reward model, by sums over all answers.

Problems, reward models and the two optimizers of scores, the best of n answers and the optimum for
a KL penalty, are those of the claim of reward ensembles.
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from experiments.claims.preferences._flows import excess
from experiments.claims.preferences.reward_ensembles import curves, fall, largest
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.preferences.reward_robust_rlhf import Config
from jaxrl.algorithms.preferences.shared.reward_models import COMBINATIONS
from jaxrl.core.types import Array, Key

SETTINGS = Config().reward
BETTER, NEAR = 0.1, 0.1  # gold reward, of about 1 that is gained
STABLE, FALL = 0.05, 0.02  # share of the peak that may be lost; what one model loses
Robust = Callable[[Array], Array]  # of scores [A, M]


def robust(scores: Array) -> Array:
    """Return the library's robust scores [A] of those of all members [A, M]."""
    return COMBINATIONS[SETTINGS.combine](SETTINGS, scores)  # type: ignore[arg-type]


def errors_of(combine: Robust, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed by a score like `robust`."""
    kinds = {
        "robust": combine,
        "mean": lambda scores: scores.mean(-1),
        "worst": lambda scores: losses.robust_reward(scores.mean(-1), scores, 0.0),
    }
    found = curves(key, kinds)
    missed = {"best of n: one model does not fall": FALL - fall(found["one"]["best of n"])}
    for way, gold in found["robust"].items():
        end = lambda name, way=way: found[name][way][-1]
        missed |= {
            f"{way}: falls from its peak": fall(gold) - STABLE * gold.max(),
            f"{way}: ends not above one model": end("one") + BETTER - gold[-1],
            f"{way}: peaks not above one model": found["one"][way].max() + BETTER - gold.max(),
            f"{way}: ends below the mean": end("mean") - NEAR - gold[-1],
            f"{way}: ends below the worst": end("worst") - NEAR - gold[-1],
        }
    return {name: excess(x) for name, x in missed.items()}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of robust scores."""
    return errors_of(robust, key)


def wrong(combine: Robust) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other scores."""
    return jax.jit(lambda key: errors_of(combine, key))


def against_nominal(function: Callable[..., Array]) -> Callable[..., Array]:
    """Subtract the nominal score."""
    return lambda nominal, reward, weight: function(-nominal, reward, weight)


CLAIM = Exact(
    paper=Paper(
        "Reward-Robust RLHF in LLMs",
        "Yan, Lou, Li, Zhang, Xie, Yu, Wang, Yan and Shen",
        2024,
        "2409.15360",
        "Optimizing a share of a nominal reward and the rest of the smallest one in an uncertainty "
        "set of reward models balances performance and robustness: it consistently beats plain "
        "RLHF in several benchmarks and is more stable in the long run.",
    ),
    claim="Pushed hard, half the mean and half the smallest score of five reward models keeps its "
    "gold reward, above one model's.",
    left_out="Language models, PPO, in whose place is the optimum for a KL penalty, and Bayesian "
    "heads with deviations: members differ by their first weights. That it is better than the mean "
    "of the same five, or than the smallest alone, is not asked, only that it is not much worse.",
    parts=(
        "jaxrl/losses/preferences/reward_models.py",
        "jaxrl/algorithms/preferences/reward_robust_rlhf.py",
        "jaxrl/algorithms/preferences/shared/reward_models.py",
        "jaxrl/exact/answers.py",
    ),
    errors=errors,
    planted={
        "half of the largest score": wrong(
            lambda scores: largest(losses.robust_reward)(scores.mean(-1), scores, 0.5)
        ),
        "the nominal score is subtracted": wrong(
            lambda scores: against_nominal(losses.robust_reward)(scores.mean(-1), scores, 0.5)
        ),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=6,
    minutes=3.0,
    notes="Margins are a tenth of the gold reward that is gained, about 1. They were set after a "
    "trial of two draws of 32 problems, in which half and half ended at 1.32 to 1.41 and never "
    "fell, one model at 0.82 to 0.99, the mean of five at 1.35 to 1.39 and the smallest at 1.11 to "
    "1.41. So most of the gain is that there are five models: the smallest score adds nothing to "
    "it here. That one model falls is asked with the best of n alone, since with a KL penalty the "
    "claim of reward ensembles did not always see it. Means are of 64 problems.",
    diagnosis="All that is claimed of it against one model held on every seed, with both "
    "optimizers: it ends higher and does not fall from its peak. What missed is that it ends no "
    "more than 0.1 below the mean of the same five models, by 0.026 with the best of n on 1 of 6 "
    "seeds, so the smallest score adds nothing to the mean here, and may cost something.",
    mutations=(
        Mutation("the largest score", "jaxrl.losses:robust_reward", largest),
        Mutation("the nominal score is subtracted", "jaxrl.losses:robust_reward", against_nominal),
    ),
)
