"""EVOLVE (Zeng et al., 2025, "Evolving LLMs' Self-Refinement Capability via Iterative Preference
Optimization", arXiv:2502.05605): rounds in which a policy answers, refines its answer, and learns
from the best and the worst of these attempts both to answer directly and to refine. Each
conversation, with a best attempt y_w and a worst one y_l, gives two pairs
(`sources.compare_attempts`):

- direct: y_w rather than y_l, after the prompt x;
- refinement: y_w rather than y_l once more, after x and y_l.

Both are learned by DPO from the reference of the round, the policy of its beginning. Conversations
whose attempts are all worth the same are filtered out. `learn` leaves out one of the pairs: with
direct ones alone it is iterated DPO from its own refinements.

What is refined is chosen by the environment's rewards of attempts, where the paper has a reward
model or rules, and what the policy reads before it refines is the environment's reply, where the
paper has an instruction. It is not confirmed that the paper compares the refinement with saying y_l
again, and that both losses weigh alike there. Its supervised first stage is a warm start here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.preferences import dpo as of_dpo
from jaxrl.algorithms.preferences.dpo import Objectives
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.tokens.shared.settings import SMALL
from jaxrl.algorithms.tokens.shared.turns import check_turns
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static
from jaxrl.kit.groups import Optimizer, Target
from jaxrl.sources import compare_attempts, episodes

PAIRS = ("both", "direct", "refinement")


@group
class Refined:
    """Conversations of the policy, whose best and worst attempts become pairs."""

    num_envs: int = static(128, low=1, high=MANY)
    """Number of conversations in an update; each has a direct pair and one of refinement."""
    attempts: int = static(2, low=2, high=MANY)
    """Largest number of attempts in a conversation."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the conversations: the most devices that can share a run."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return 2 * self.num_envs

    def source(self, env: Environment) -> Source:
        """Return a source of these pairs."""
        played = episodes(env, self.num_envs, None, self.num_shards, keep_states=True)
        return compare_attempts(played, env, self.attempts)


@group
class Config(Objectives):
    """Settings of EVOLVE: DPO of direct answers and refinements, in rounds (arXiv:2502.05605)."""

    pairs: Refined = Refined()
    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    reference: Target = Target(rate=1.0, period=20)
    """Reference policy; `period` is the number of updates of a round, after which it becomes the
    policy."""
    learn: str = static("both", choices=PAIRS)
    """Pairs that are learned: both, direct (first attempts alone) or refinement (second ones)."""


def recipe(env: Environment, config: Config) -> Recipe:
    plain = of_dpo.recipe(env, config, scores=())

    def update(net: Net, batch: Batch) -> Net:
        extras = batch.transitions.extras
        assert batch.mask is not None
        second = jnp.arange(batch.mask.shape[1]) % 4 >= 2
        wanted = {"both": True, "direct": ~second, "refinement": second}[config.learn]
        apart = extras["apart"] > 0
        mask = batch.mask & extras["anew"] & apart & wanted
        net = plain.update(net, dataclasses.replace(batch, mask=mask))
        return net.report(kept=apart.mean())

    needs = ("mask", "transitions.extras.anew", "transitions.extras.apart")
    return dataclasses.replace(plain, update=update, needs=needs)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `dpo.check_some`, and if `env` does not say which turn a token is of."""
    of_dpo.check_some(env, config, name)
    check_turns(env, name)


evolve = AlgorithmBuilder("evolve", Config, recipe, check=check, measure=measure_return)

TINY = SMALL | {"env": "second_try", "num_envs": 8, "num_shards": 4}
