"""Vision-Zero (Wang et al., 2025, "Vision-Zero: scalable VLM self-improvement via strategic
gamified self-play", arXiv:2509.25541): one policy plays all roles of "Who is the spy?", and its
updates alternate between self-play and reinforcement learning with verifiable rewards.

Players, one of whom sees an edited scene, give clues in turn; then G votes are cast, each by a
reader who sees the original scene and the clues. In the clue phase the clues are learned: a player
is paid for all G votes by the zero-sum payoffs of the game, and the advantage of its clues is that
less the moving average of its role, the spy's or the civilians'. In the decision phase the votes
are learned: right ones are paid, and the advantage is relative to the G votes on the same clues, in
standard deviations. The loss of a token is GRPO's.

As in the authors' code: the baselines are updated before they are subtracted, once in an update,
by the mean payoff of the role; advantages of clues are not divided by a deviation; and phases
alternate after `cycle_length` updates each, the decision phase first. The paper switches by how
well the decision phase goes; since we could not read its rule, `phase` "thresholds" is one of ours:
from decisions to clues when the smoothed share of right votes reaches `high`, and back when it
falls to `low`. With "both" all tokens are learned in each update, and with "clue" or "decision"
those alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import Sample, on_answers
from jaxrl.algorithms.tokens.shared.proposing import Proposals
from jaxrl.algorithms.tokens.shared.settings import SMALL, Divergence, Groups, Tokens
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Batch, Environment, Source, struct
from jaxrl.envs.language import spy_game
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Optimizer
from jaxrl.kit.state import State
from jaxrl.sources import as_trees

PHASES = ("alternate", "thresholds", "both", "clue", "decision")


@group
class Games(Proposals):
    """Games of each scene, with votes on the clues of each."""

    prompts: int = static(16, low=1, high=MANY)
    """Number of scenes (P) in an update."""
    proposals: int = static(1, low=1, high=MANY)
    """Number of games (M) of each scene, with clues of their own."""
    answers: int = static(8, low=1, high=MANY)
    """Number of votes (G) on the clues of each game."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole games: the votes on the same clues side by side."""
        played = Groups(self.prompts, self.proposals * self.answers, self.num_shards).source(env)
        begins = 0, spy_game.number_of_clues(env)
        return as_trees(played, (self.proposals, self.answers), begins)


@group
class Config(Tokens):
    """Settings of Vision-Zero: clues by self-play, and votes by verifiable rewards
    (arXiv:2509.25541). The defaults are those of the authors' code, but for the number of games."""

    groups: Games = Games()
    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of the probability ratio around 1."""
    kl: Divergence = Divergence(weight=0.04)

    phase: str = static("alternate", choices=PHASES)
    """Phase of an update: alternate or thresholds, which switch between clues and decisions; or
    both at once, or clue or decision alone."""
    cycle_length: int = static(1, low=1, high=MANY)
    """Number of updates in a phase, where phases alternate."""
    high: float = hyper(0.7, low=0, high=1)
    """Share of right votes from which clues are learned, with thresholds."""
    low: float = hyper(0.5, low=0, high=1)
    """Share of right votes down to which clues are learned, with thresholds."""
    smoothing: float = hyper(0.9, low=0, below=1)
    """Decay of the moving average of the share of right votes."""
    decay: float = hyper(0.9, low=0, below=1)
    """Decay of the moving averages of the roles' payoffs."""


@struct
class Progress:
    """State of the phases.

    baseline: float32 [2], moving averages of the spy's and the civilians' payoffs. accuracy:
    float32 [], moving average of the share of right votes. clue: bool [], whether the next update
    is of the clue phase. updates: int32 [].
    """

    baseline: Array
    accuracy: Array
    clue: Array
    updates: Array


def begin_progress(phase: str) -> Progress:
    """Return the state before the first update."""
    zero = jnp.zeros((), jnp.float32)
    clue = jnp.asarray(phase == "clue")
    return Progress(jnp.zeros(2, jnp.float32), zero, clue, jnp.zeros((), jnp.int32))


def next_phase(config: Config, h: Values, progress: Progress, right: Array) -> Progress:
    """Return the state after an update in which a share `right` of the votes was right.

    h: hyperparameters, as in `Config`.
    """
    accuracy = h.smoothing * progress.accuracy + (1 - h.smoothing) * right
    updates = progress.updates + 1
    clue = progress.clue
    if config.phase == "alternate":
        clue = (updates // config.cycle_length) % 2 == 1
    elif config.phase == "thresholds":
        clue = jnp.where(clue, accuracy > h.low, accuracy >= h.high)
    return Progress(progress.baseline, accuracy, clue, updates)


def recipe(env: Environment, config: Config) -> Recipe:
    clues, groups = spy_game.number_of_clues(env), config.groups
    players = len(example_timestep(env).reward_components or {})

    def at_end(batch: Batch, x: Array) -> Array:
        """Return what is reported at the ends of games, [P, M, G]."""
        assert batch.mask is not None
        return jnp.where(batch.mask & batch.transitions.done, x, 0).sum(0).reshape(groups.shape)

    def roles_and_payoffs(batch: Batch) -> tuple[Array, Array]:
        """Return the role of each player, 0 for the spy's and 1 for civilians, and what the votes
        pay it, [P, M, N]."""
        t = batch.transitions
        tokens, paid = t.timestep.tokens, t.next_timestep.reward_components
        assert tokens is not None and paid is not None
        spies = tokens["restart"] & (t.observation == spy_game.spy_token(env))
        turn, shape = tokens["turn"], groups.shape
        is_spy = [(spies & (turn == i)).any(0).reshape(shape)[..., 0] for i in range(players)]
        payoff = [at_end(batch, paid[f"player_{i}"]).sum(-1) for i in range(players)]
        return jnp.where(jnp.stack(is_spy, -1), 0, 1), jnp.stack(payoff, -1)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t, progress = batch.transitions, net.extra
        role, payoff = roles_and_payoffs(batch)
        clue = losses.role_conditioned_advantage(payoff, role, progress.baseline)
        vote = losses.group_relative(proposing.returns(batch, groups), epsilon=1e-8)
        clue = jnp.broadcast_to(clue[:, :, None], (*groups.shape, players)).reshape(-1, players)
        by_turns = jnp.concatenate([clue.T] * (clues // players) + [vote.reshape(1, -1)])
        turn = t.timestep.tokens["turn"]
        learned = jnp.ones_like(turn, bool)
        if config.phase != "both":
            learned = (turn < clues) == progress.clue
        return {
            "advantage": losses.segment_to_tokens(by_turns, turn),
            "target": (learned & t.extras["leads"]).astype(jnp.float32),
        }

    def tokens_to_learn(x: Sample) -> Array:
        """Return which tokens are learned: those of the phase, and each clue once."""
        return x.target > 0

    plain = on_answers(env, config, judge, (grpo_loss,), learned=tokens_to_learn)

    def update(net: Net, batch: Batch) -> Net:
        progress, h = net.extra, net.hyper
        role, payoff = roles_and_payoffs(batch)
        means = jnp.stack([(payoff * (role == r)).sum() / (role == r).sum() for r in (0, 1)])
        baseline = losses.role_baseline_update(progress.baseline, means, jnp.arange(2), h.decay)
        progress = dataclasses.replace(progress, baseline=baseline)
        metrics = batch.transitions.next_timestep.metrics
        assert metrics is not None
        right = at_end(batch, metrics["success"]).mean()
        net = plain.update(net.replace(extra=progress), batch)
        after = next_phase(config, h, progress, right)
        net = net.report(clue_phase=progress.clue.astype(jnp.float32), spy_payoff=means[0])
        return net.replace(extra=after)

    extra = begin_progress(config.phase)
    return dataclasses.replace(plain, update=update, extra=extra, adopt=begin_phases)


def begin_phases(own: State, other: Any) -> Any:
    """Begin with the policy of another algorithm, in the first phase: an `adopt`."""
    if not isinstance(other, State) or isinstance(other.extra, Progress):
        return other  # another run of this algorithm, or one that will not fit
    return dataclasses.replace(other, extra=own.extra)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `proposing.check`, and for any environment but `spy_game`."""
    proposing.check(env, config, name)
    if not isinstance(env.params, spy_game.Params):
        raise UserError(f"{name} cannot act in '{env.name}', which has no spy; use spy_game.")


vision_zero = AlgorithmBuilder("vision_zero", Config, recipe, check=check)

TINY = SMALL | {"env": "spy_game", "env_params": {"values": 2, "attributes": 3}, "prompts": 4}
TINY |= {"proposals": 2, "answers": 2, "num_shards": 4}
