"""RLHF workflow (Dong et al., 2024, "RLHF workflow: from reward modeling to online RLHF",
arXiv:2405.07863): online iterative DPO with a learned preference model. In each round the policy
writes n answers to new prompts, the model ranks them, and DPO learns from the best and the worst of
each prompt for some epochs, from where the last round ended.

Warm-start it from a run of `preference_model`, which also provides the policy of the beginning. A
round is an update: `passes` are its epochs and minibatches. The reference stays the policy of the
beginning, as in the paper; the published loop begins each round with the reference at the policy,
`reference.rate` 1. Best and worst are those with the highest and the lowest mean probability of
being preferred to the others. To explore, the published loop samples at temperature 1; here the
answers of a prompt may have several temperatures.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences import dpo as of_dpo
from jaxrl.algorithms.preferences.dpo import Objectives
from jaxrl.algorithms.preferences.shared.measures import proxy_scores
from jaxrl.algorithms.preferences.shared.players import played_at
from jaxrl.algorithms.preferences.shared.preference_models import (
    PART,
    PreferenceModel,
    begin_with_model,
    frozen_part,
    measure_judged,
    with_embeddings,
)
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED
from jaxrl.algorithms.tokens.shared.answers import returns_of, speak, token_scores
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.judges import win_probabilities
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static
from jaxrl.kit.acting import check_sampling, sample_tempered
from jaxrl.kit.groups import Epochs, EvaluationSampling, Optimizer, Sampling
from jaxrl.sources import Player, cast
from jaxrl.sources.pairs import judged_of, take_answers


@group
class Ranked(Groups):
    """Groups of answers to the same prompt, of which the best and the worst become a pair."""

    prompts: int = static(2048, low=1, high=MANY)
    """Number of prompts (P) in a round. The published loop has 20,000."""
    answers: int = static(8, low=2, high=MANY)
    """Number of answers (n) to each prompt."""
    factors: tuple[float, ...] = static((1.0,), above=0, least_length=1)
    """Factors of the sampling temperature, which the answers to a prompt have in turns."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in a round."""
        return self.prompts

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes, sampled at these temperatures."""
        return cast(self.episodes(env), tuple(Player(played_at(x)) for x in self.factors))


@group
class Config(Objectives):
    """Settings of the RLHF workflow: rounds of DPO from the best and the worst of n answers by a
    preference model (arXiv:2405.07863)."""

    passes: Epochs = Epochs(epochs=2, minibatches=16, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0)
    """Optimizer settings. 5e-7: the published loop, with a cosine schedule in each round. (Small
    networks need larger steps.)"""
    pairs: Ranked = Ranked()
    preference: PreferenceModel = PreferenceModel()
    sampling: Sampling = Sampling()
    evaluation: EvaluationSampling = EvaluationSampling()


def best_and_worst(preference: Array) -> Array:
    """Return the answers of each group that are preferred most and least, as places int32 [P, 2].

    preference: [P, G, G], probabilities, as of `win_probabilities`.
    """
    order = jnp.argsort(losses.win_rate(preference), axis=-1, stable=True)
    return jnp.stack([order[:, -1], order[:, 0]], -1)


def recipe(env: Environment, config: Config) -> Recipe:
    plain, size = of_dpo.recipe(env, config), config.pairs.answers

    def update(net: Net, batch: Batch) -> Net:
        embeddings = judged_of(with_embeddings(net, batch))
        preference = win_probabilities(losses.general_preference, embeddings, size)
        places = best_and_worst(preference)
        pairs = take_answers(batch, places, size)
        gold, row = returns_of(pairs), jnp.arange(len(places))
        proxy = preference[row, places[:, 0], places[:, 1]].mean()
        chosen, rejected = gold[::2].mean(), gold[1::2].mean()
        net = plain.update(net, pairs)
        return net.report(proxy_lead=proxy, chosen_return=chosen, rejected_return=rejected)

    return dataclasses.replace(
        plain,
        parts={**plain.parts, PART: frozen_part(env, config)},
        act=sample_tempered(speak, config.sampling),
        update=update,
        adopt=begin_with_model,
        scores={**token_scores(env), **proxy_scores(env)},
        in_evaluation={f"sampling.{n}": f"evaluation.{n}" for n in ("temperature", "top_p")},
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `dpo.check`, for temperatures that have no effect, and where the answers
    to a prompt do not divide among the temperatures."""
    of_dpo.check(env, config, name)
    check_sampling(env.action_space, config, name)
    answers, factors = config.pairs.answers, len(config.pairs.factors)
    if answers % factors:
        raise UserError(
            f"The {answers} answers to a prompt do not divide among {factors} temperatures "
            "(pairs.factors)."
        )


rlhf_workflow = AlgorithmBuilder(
    "rlhf_workflow",
    Config,
    recipe,
    check=check,
    measure=measure_judged,
    goes_on_from="preference_model",
)

TINY = SMALL_PLAYED | {"answers": 4, "factors": (1.0, 1.5), "planes": 2}
