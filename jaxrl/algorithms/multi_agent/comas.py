"""CoMAS (Xue et al., 2025, "CoMAS: co-evolving multi-agent systems via interaction rewards",
arXiv:2510.08529): several policies with weights of their own solve a problem, evaluate each other's
solutions and score them, in rounds that show what was said in the last one. Nobody says what is
right; for a score s of 1, 2 or 3 the writers are paid

    the solution       (s - 1) / 2
    the evaluation     1 - (s - 1) / 2
    the score itself   0

so that solver and evaluator play against each other, and for a score that cannot be read 0, 0 and
-1. Each policy learns all that it wrote in any role by REINFORCE++, with advantages standardized
over its own tokens, and no utterance that was cut off.

Rewards, workflow and settings of the run are those of the authors' code, read in a copy of it that
reads unclear scores otherwise. Here the policies begin alike, as in that run; the norm of gradients
is limited for all of them together.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.reinforce_plus_plus import surrogate_loss
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import on_answers
from jaxrl.algorithms.tokens.shared.settings import SMALL, Clipped, Groups
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group
from jaxrl.kit.groups import Optimizer, Passes


@group
class Config(Clipped):
    """Settings of CoMAS: policies that solve, evaluate and score in turn (arXiv:2510.08529). The
    defaults are those of the authors' run."""

    groups: Groups = Groups(prompts=64, answers=4)
    passes: Passes = Passes(epochs=1, minibatches=4, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)


def interaction_rewards(score: Array) -> Array:
    """Return what solutions, evaluations and scores are paid, [..., R, 3, A], for the scores [...,
    R, A] of A discussions in each of R rounds: 1, 2 or 3, and 0 for none.

    Source: Xue et al., 2025, "CoMAS: co-evolving multi-agent systems via interaction rewards",
    arXiv:2510.08529, by the authors' code.
    """
    there = score > 0
    solution = jnp.where(there, (score - 1) / 2, 0.0)
    evaluation = jnp.where(there, 1 - solution, 0.0)
    return jnp.stack([solution, evaluation, jnp.where(there, 0.0, -1.0)], -2)


def complete_utterances(batch: Batch, end: int, turns: int) -> Array:
    """Return which tokens [T, B] belong to an utterance that its writer ended.

    batch: whole episodes, of at most `turns` utterances; its mask marks the steps that are
        decisions. end: token that ends an utterance.
    """
    t = batch.transitions
    assert batch.mask is not None  # `Recipe.needs`
    turn = jnp.where(batch.mask, t.timestep.tokens["turn"], -1)
    ended = losses.segment_sum((t.action == end).astype(jnp.float32), turn, turns)
    return losses.segment_to_tokens(ended, turn) > 0


def scores_of(env: Environment) -> tuple[int, int] | None:
    """Return the number of rounds and of agents, by the scores that `env` reports; None if it
    reports none."""
    privileged: Any = example_timestep(env).privileged or {}
    shape = getattr(privileged.get("judged"), "shape", ())
    return (shape[1], shape[2]) if len(shape) == 3 else None  # of one copy


def recipe(env: Environment, config: Config) -> Recipe:
    found = scores_of(env)
    assert found is not None and env.vocabulary is not None  # `check`
    rounds, agents = found
    turns, end = 3 * rounds * agents, len(env.vocabulary) - 1

    def rewards(batch: Batch) -> Array:
        """Return what each utterance is paid, [3 R A, B]."""
        t = batch.transitions
        assert batch.mask is not None  # `Recipe.needs`
        score: Any = t.next_timestep.privileged
        ends = (batch.mask & t.done)[..., None, None]
        score = jnp.where(ends, score["judged"], 0).sum(0)
        return interaction_rewards(score).reshape(len(score), turns).T

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        tokens = batch.transitions.timestep.tokens
        assert batch.mask is not None and tokens is not None
        learned = batch.mask & complete_utterances(batch, end, turns)
        reward = losses.segment_to_tokens(rewards(batch), jnp.where(batch.mask, tokens["turn"], -1))
        advantage = jnp.zeros_like(reward)
        for agent in range(agents):
            advantage += losses.standardize(reward, learned & (tokens["agent"] == agent))
        return {"advantage": advantage, "target": learned.astype(jnp.float32)}

    every = proposing.own_policies(env, config, "comas", agents, "agent")
    complete = lambda x: x.target > 0
    plain = on_answers(env, config, judge, (surrogate_loss,), learned=complete, network=every)
    return dataclasses.replace(plain, adopt=proposing.begin_all)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `proposing.check`, and if `env` does not say who writes, or how
    solutions are scored."""
    proposing.check(env, config, name)
    if "agent" not in (example_timestep(env).tokens or {}) or scores_of(env) is None:
        raise UserError(
            f"{name} needs several agents, TimeStep.tokens['agent'], and the scores of their "
            f"solutions, which '{env.name}' lacks; see envs.language.discussed_sums."
        )


comas = AlgorithmBuilder("comas", Config, recipe, check=check)

TINY = SMALL | {"env": "discussed_sums", "prompts": 4, "answers": 2, "num_shards": 4}
TINY |= {"env_params": {"agents": 2, "rounds": 1, "shown": 1}}
