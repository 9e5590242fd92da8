"""Rewards of texts by turns, for credit to single turns."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, struct
from jaxrl.kit import Unit
from jaxrl.kit.groups import Passes

PAIR = Unit(sequences=True, columns=2)  # two conversations that begin alike


@struct
class Turns:
    """Turns of whole texts, at most K of them.

    turn: int32 [T, B], the turn of each decision; -1 at other steps.
    reward: [K, B], paid in each turn before the end. outcome: [B], paid at the end.
    taken: bool [K, B], whether a text has this turn. last: int32 [B], the turn at whose end the
        text ended.
    """

    turn: Array
    reward: Array
    outcome: Array
    taken: Array
    last: Array


def split_turns(batch: Batch) -> Turns:
    """Split the rewards of whole episodes [T, B] by turns; K = T.

    batch: with rewards 0 after their end; its mask marks the steps that are decisions.
    """
    t, number = batch.transitions, batch.transitions.reward.shape[0]
    assert batch.mask is not None
    step = t.timestep.tokens["turn"]
    turn = jnp.where(batch.mask, step, -1)
    reward = losses.segment_sum(jnp.where(t.done, 0, t.reward), step, number)
    outcome = jnp.where(t.done, t.reward, 0).sum(0)
    taken = losses.segment_sum(jnp.ones_like(t.reward), turn, number) > 0
    return Turns(turn, reward, outcome, taken, turn.max(0))


def to_come_in_turns(batch: Batch, paid: Array) -> Array:
    """Return the rewards to come at each token [T, B] until the end of its own utterance.

    batch: as in `split_turns`. paid: [K, B], what is paid at the end of each of the first K
        utterances, besides the rewards of their tokens; later ones do not occur.
    """
    reward, turn = batch.transitions.reward, batch.transitions.timestep.tokens["turn"]
    to_come = jnp.cumsum(reward[::-1], 0)[::-1]
    own = losses.segment_sum(reward, turn, len(paid))
    later = jnp.cumsum(own[::-1], 0)[::-1] - own
    return to_come + losses.segment_to_tokens(paid - later, turn)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if `env` does not say which turn a token is of."""
    answers.check(env, config, name)
    check_turns(env, name)


def check_turns(env: Environment, name: str) -> None:
    """Raise `UserError` if `env` does not say which turn a token is of."""
    if "turn" not in (example_timestep(env).tokens or {}):
        raise UserError(
            f"{name} needs the turns of texts, TimeStep.tokens['turn'], which '{env.name}' lacks; "
            "see envs.language.conversing."
        )


def check_pairs(passes: Passes, pairs: int, env: Environment, name: str) -> None:
    """Raise `UserError` if an update's pairs of conversations do not divide into the minibatches of
    `passes`, and for an early stop, since no loss of pairs says how far the policy has moved."""
    if passes.early_stop:
        raise UserError(f"{name} cannot stop early; leave passes.early_stop off.")
    passes.check(2 * pairs, env.max_steps or 1, unit=PAIR)
