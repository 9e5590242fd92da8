"""Temporal self-rewarding (Wang et al., 2025, "Temporal self-rewarding language models: decoupling
chosen-rejected via past-future", arXiv:2508.06026): where one policy writes both answers of a pair,
they become alike as it improves, and DPO has ever less to learn. So the answers of a pair are
written at different times:

- anchored rejection: the rejected one is the worst of the answers of the past, the policy of the
  beginning;
- future-guided chosen: an iteration first trains a future policy, on the best of the present
  policy's own answers, then begins again at the present policy and trains on the best of both.

`rejected_by` and `chosen_by` say who writes which answer. With `present` for both it is
self-rewarding by iterated DPO (Yuan et al., 2024, "Self-rewarding language models",
arXiv:2401.10020). The reference of an iteration is the policy of its beginning.

In the papers the policy is its own judge, prompted to rate answers; here the environment's judge
compares them, and the best and the worst have the highest and the lowest mean probability of being
preferred to all answers of their group.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences import dpo as of_dpo
from jaxrl.algorithms.preferences.dpo import Objectives
from jaxrl.algorithms.preferences.shared.games import end_step
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.players import played_as, played_as_target
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.judges import judge_of, win_probabilities
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, static
from jaxrl.kit.groups import Optimizer
from jaxrl.sources import Player, cast
from jaxrl.sources.pairs import judged_of, take_answers

PRESENT, PAST, FUTURE = range(3)  # places of a group's answers, modulo 3


@group
class Times(Groups):
    """Groups of answers to the same prompt: by the present, the past and the future policy, in
    turns."""

    prompts: int = static(64, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one pair."""
    answers: int = static(12, low=3, high=MANY)
    """Number of answers (G) to each prompt, a third of them by each policy."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return self.prompts

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes that the three play."""
        present, future = (Player(played_as(part)) for part in ("anchor", "future"))
        return cast(self.episodes(env), (present, Player(played_as_target), future))


@group
class Config(Objectives):
    """Settings of temporal self-rewarding: DPO from pairs of the past and the future
    (arXiv:2508.06026)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    pairs: Times = Times()
    steps: int = static(50, low=1)
    """Number of updates in each training of an iteration."""
    rejected_by: str = static("past", choices=("past", "present"))
    """Policy that writes rejected answers: past (that of the beginning) or present."""
    chosen_by: str = static("future", choices=("future", "present"))
    """Policy that writes chosen answers: future (or present, whichever is better, after a training
    from the present's alone) or present."""


def choose_pair(rate: Array, guided: Array | bool, rejected: int) -> Array:
    """Return the chosen and the rejected answer of each group, as places int32 [P, 2].

    rate: [P, G], how good the answers are. guided: whether the future's may be chosen, a scalar.
    rejected: which policy's are rejected, PRESENT or PAST.
    """
    writer = jnp.arange(rate.shape[1]) % 3
    allowed = (writer == PRESENT) | (guided & (writer == FUTURE))
    best = jnp.where(allowed, rate, -jnp.inf).argmax(-1)
    worst = jnp.where(writer == rejected, rate, jnp.inf).argmin(-1)
    return jnp.stack([best, worst], -1)


def recipe(env: Environment, config: Config) -> Recipe:
    plain = of_dpo.recipe(env, config, reference_part="anchor", scores=())
    judge, size, two = judge_of(env), config.pairs.answers, config.chosen_by == "future"
    rejected = PAST if config.rejected_by == "past" else PRESENT

    def update(net: Net, batch: Batch) -> Net:
        preference = win_probabilities(judge, judged_of(batch), size)
        guided = (net.updates // config.steps % 2 == 1) & two
        places = choose_pair(losses.win_rate(preference), guided, rejected)
        row = jnp.arange(len(places))
        lead = preference[row, places[:, 0], places[:, 1]].mean()
        future = (places[:, 0] % 3 == FUTURE).mean()
        net = plain.update(net, take_answers(batch, places, size))
        return end_step(net, config.steps, "future" if two else "").report(
            lead=lead, future_share=future
        )

    network = plain.parts["actor_critic"].network
    copy = Part(network, (example_timestep(env), network.initial(1)), begins_as="actor_critic")
    return dataclasses.replace(
        plain, parts={**plain.parts, "anchor": copy, "future": copy}, update=update
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `dpo.check`, and for groups that do not divide among three policies."""
    of_dpo.check(env, config, name)
    if config.pairs.answers % 3:
        raise UserError(
            f"pairs.answers is {config.pairs.answers}; it must be a multiple of 3, since {name} "
            "has answers of three policies."
        )
    if config.rejected_by == "present" and config.pairs.answers < 6:
        raise UserError(
            f"pairs.answers is {config.pairs.answers}, of which the present policy writes one; "
            "rejected_by present needs two of them, so choose at least 6."
        )


temporal_self_rewarding = AlgorithmBuilder(
    "temporal_self_rewarding", Config, recipe, check=check, measure=measure_return
)

TINY = SMALL_PLAYED | {"answers": 6, "steps": 1}
