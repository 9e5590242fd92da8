"""Search self-play (Lu et al., 2025, "Search self-play: pushing the frontier of agent capability
without supervision", arXiv:2510.18821): one policy poses questions and answers them, both by
searching. The proposer is given an answer and poses a question to it. A question counts if it keeps
the rules of the environment, and if the verifier, the same policy, finds the given answer with all
that the proposer has read as evidence, among documents that nobody searched for. The solver then
tries to answer it, and is paid 1 for the given answer. The proposer is paid

    1 - p                   for a question that counts, with a share p of right attempts,
    4 p (1 - p)             instead, with the reward `intermediate`,
    `invalid_reward`        for any other.

In each update the policy first learns the proposer's tokens, then the solver's: the solver's by
GRPO in groups of attempts, the proposer's by the reward itself where there is one question to an
answer (REINFORCE), else by GRPO too; both with clip-higher and a divergence penalty. Nobody learns
the verifier's.

As in the authors' code, with the choices of its published run. Other than there, the policy itself
verifies (their code asks another model), a group's standard deviation is the population's, all
tokens are sampled at one temperature (the proposer's is 0.8 there), and ratios are to the policy
that wrote (those of the solver's pass are to the policy after the proposer's pass there). The
places of questions that do not count stay empty, like the placeholders of their setting `dummy`;
their run fills them with earlier questions, which is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    evaluate,
    on_answers,
    returns_of,
    token_output,
)
from jaxrl.algorithms.tokens.shared.outcomes import check_metrics
from jaxrl.algorithms.tokens.shared.proposing import Proposals
from jaxrl.algorithms.tokens.shared.settings import SMALL, Divergence, Tokens
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Optimizer, Passes

PROPOSER, VERIFIER, SOLVER = range(3)  # readers of a text
REWARDS = ("failures", "intermediate")


@group
class Config(Tokens):
    """Settings of search self-play: one policy that poses questions, verifies them by what was
    found, and answers them (arXiv:2510.18821). The defaults are those of the authors' run."""

    groups: Proposals = Proposals(prompts=256, proposals=1, answers=5)
    passes: Passes = Passes(epochs=1, minibatches=2, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    clip: float = hyper(0.2, above=0, high=INF)
    """Lower clip range of the probability ratio."""
    clip_high: float = hyper(0.285, above=0, high=INF)
    """Upper clip range of the probability ratio."""
    kl: Divergence = Divergence(weight=0.01)

    reward: str = static("failures", choices=REWARDS)
    """Reward of a question that counts: failures, the share of attempts that are wrong, or
    intermediate, 4 p (1 - p) for a share p of right ones."""
    invalid_reward: float = hyper(0.0, low=-INF, high=INF)
    """Reward of a question that does not count."""


def proposer_reward(h: Any, pass_rate: Array, counts: Array, reward: str) -> Array:
    """Return the reward of questions by the share of attempts that are right.

    h: hyperparameters, as in `Config`. counts: bool, which questions count. reward: see `Config`.
    """
    failures = 1 - pass_rate
    paid = 4 * pass_rate * failures if reward == "intermediate" else failures
    return jnp.where(counts, paid, h.invalid_reward)


def surrogate(net: Net, x: Sample) -> LossOutput:
    """Return the surrogate with a higher upper clip plus the divergence penalty of each token."""
    now, h = evaluate(net, x), net.hyper
    token_loss = losses.clipped_surrogate(
        now.log_prob, x.log_prob, x.advantage, h.clip, h.clip_high
    )
    penalty = h.kl.weight * losses.kl_k3(now.log_prob, x.reference)
    return token_output(net, x, now, token_loss + penalty)


@loss("actor_critic", name="proposer_loss")
def proposer_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the surrogate and the divergence penalty of the proposer's tokens."""
    return surrogate(net, x)


@loss("actor_critic", name="solver_loss")
def solver_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the surrogate and the divergence penalty of the solver's tokens."""
    return surrogate(net, x)


def recipe(env: Environment, config: Config) -> Recipe:
    groups = config.groups

    def rewards(net: Net, batch: Batch) -> tuple[Array, Array, Array]:
        """Return what problems are paid [P, M], which of them count, and what attempts are paid
        [P, M, G]."""
        assert batch.mask is not None
        solved = batch.mask & (batch.transitions.timestep.tokens["reader"] == SOLVER)
        counts = solved.any(0).reshape(groups.shape)[..., 0]
        paid = returns_of(batch).reshape(groups.shape)
        return (
            proposer_reward(net.hyper, paid.mean(-1), counts, config.reward),
            counts,
            paid,
        )

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t = batch.transitions
        posed, _, paid = rewards(net, batch)
        posed = losses.group_relative(posed) if groups.proposals > 1 else posed
        advantage = proposing.by_roles(posed, losses.group_relative(paid), batch, "reader")
        reader = t.timestep.tokens["reader"]
        once = t.extras["leads"] | (reader > PROPOSER)
        return {"advantage": advantage, "target": jnp.where(once, reader, VERIFIER)}

    def learn(reader: int, role_loss: Any) -> Recipe:
        mine = lambda x: x.target == reader
        return on_answers(env, config, judge, (role_loss,), learned=mine)

    proposer, solver = learn(PROPOSER, proposer_loss), learn(SOLVER, solver_loss)

    def update(net: Net, batch: Batch) -> Net:
        posed, counts, _ = rewards(net, batch)
        net = solver.update(proposer.update(net, batch), batch)
        return net.report(counts=counts.mean(), proposer_reward=posed.mean())

    return dataclasses.replace(proposer, losses=(proposer_loss, solver_loss), update=update)


def source(env: Environment, config: Config) -> Source:
    """Return a source of groups of questions, each with a group of attempts by the solver; what the
    verifier says is the same in all of them."""
    return config.groups.source(env, SOLVER, "reader")


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `proposing.check`, and if `env` has no verifier."""
    proposing.check(env, config, name)
    check_metrics(env, name, "verified")


ssp = AlgorithmBuilder("ssp", Config, recipe, source, check=check)

TINY = SMALL | {"env": "posed_lookups", "prompts": 4, "num_shards": 4, "proposals": 2, "answers": 2}
TINY |= {"env_params": {"entities": 3, "relations": 1, "hops": 1, "noise": 1}}
