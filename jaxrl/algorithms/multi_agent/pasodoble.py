"""PasoDoble (Zhang et al., 2025, "Better LLM reasoning via dual-play", arXiv:2511.11881): two
policies that begin alike. To a piece of knowledge the proposer poses problems with its own answers,
and the solver, who sees the problem alone, is paid for the same answer. The proposer is paid for
problems that are hard and still solved:

    0                      if no more than `lowest_pass_rate` of the answers agree with its own,
                           or if it is new to no more than `lowest_novelty` of the last problems,
    1.1 - p + 0.2 novelty  otherwise, for a share p of answers that agree

so a problem with a wrong answer, which the solver does not find, earns nothing. Both learn at once,
by GRPO in groups of problems and of answers to one problem.

A problem with no more than `lowest_pass_rate` of agreeing answers teaches the solver nothing
either. As in the authors' code, but for three things: a group's standard deviation is the sample's
there and the population's here; there an update without a problem in between is skipped, and the
problems of other updates alone are remembered, here all of them are. Their other mode,
in which one policy learns for several updates while the other one waits and answers come to earlier
problems, is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import on_answers
from jaxrl.algorithms.tokens.shared.proposing import Proposals
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL, Divergence, Tokens
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Optimizer, Sampling


@group
class Config(Tokens):
    """Settings of PasoDoble: a proposer and a solver that learn by GRPO (arXiv:2511.11881). The
    defaults are those of the authors' code, but for the number of prompts, which is 1 there."""

    groups: Proposals = Proposals()
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    sampling: Sampling = Sampling(temperature=0.6)
    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of the probability ratio around 1."""
    kl: Divergence = Divergence()
    average: str = static("constant", choices=AVERAGES)
    """Averaging of token losses: sequence, token, or constant, as in Dr. GRPO."""

    lowest_pass_rate: float = hyper(0.2, low=0, high=1)
    """Share of answers up to which a problem earns nothing, and its answers teach nothing."""
    lowest_novelty: float = hyper(0.3, low=0, high=1)
    """Novelty up to which a problem earns nothing."""
    novelty_weight: float = hyper(0.2, low=0)
    """Weight of a problem's novelty in the proposer's reward."""
    similar: float = hyper(0.8, low=0, high=1)
    """Jaccard index of two problems' tokens above which they are similar."""
    history: int = static(100, low=1, high=MANY)
    """Number of earlier problems that new ones are compared with."""


def proposer_reward(h: Any, pass_rate: Array, novelty: Array) -> Array:
    """Return the reward of problems from the share of answers that agree and their novelty.

    h: hyperparameters, as in `Config`.
    """
    hard = 1.1 - pass_rate + h.novelty_weight * novelty
    valid = (pass_rate > h.lowest_pass_rate) & (novelty > h.lowest_novelty)
    return jnp.where(valid, hard, 0.0)


def recipe(env: Environment, config: Config) -> Recipe:
    both = proposing.own_policies(env, config, "pasodoble")
    assert isinstance(env.observation_space, Discrete)  # `proposing.check`
    size, groups = env.observation_space.n, config.groups

    def tokens_of(batch: Batch) -> Array:
        posed = proposing.posed_tokens(batch.transitions, size)
        return posed.reshape(*groups.shape, size)[:, :, 0].reshape(-1, size)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        paid = proposing.returns(batch, groups)
        rate = paid.mean(-1)
        novelty = proposing.novelty(net.extra, tokens_of(batch), net.hyper.similar)
        reward = proposer_reward(net.hyper, rate, novelty.reshape(paid.shape[:-1]))
        posed, solved = losses.group_relative(reward), losses.group_relative(paid)
        leads = batch.mask & batch.transitions.extras["leads"]
        advantage = proposing.by_roles(posed, solved, batch)
        passed = jnp.repeat((rate > net.hyper.lowest_pass_rate).reshape(-1), groups.answers)
        learned = leads & ((batch.transitions.timestep.tokens["turn"] == 0) | passed)
        return {"advantage": advantage, "target": learned.astype(jnp.float32)}

    # A problem is learned once, and not with each answer.
    once = lambda x: x.target > 0
    plain = on_answers(env, config, judge, (grpo_loss,), learned=once, network=both)

    def update(net: Net, batch: Batch) -> Net:
        before = net.extra
        net = plain.update(net, batch)
        return net.replace(extra=proposing.add(before, tokens_of(batch)))

    extra = proposing.no_history(config.history, size)
    return dataclasses.replace(plain, update=update, extra=extra, adopt=proposing.begin_all)


pasodoble = AlgorithmBuilder("pasodoble", Config, recipe, check=proposing.check)

TINY = SMALL | {"env": "posed_sums", "env_params": {"terms": 2}, "prompts": 4, "num_shards": 4}
TINY |= {"proposals": 2, "answers": 2, "history": 5, "lowest_pass_rate": 0.0}
