"""Texts that were written elsewhere, as the episodes of an environment that they would be."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment, Transition
from jaxrl.envs.language.conversing import AGENT, ENVIRONMENT


def written_episodes(
    env: Environment, tokens: np.ndarray, utterance: np.ndarray, length: np.ndarray
) -> tuple[Transition, np.ndarray]:
    """Return the transitions [T, N] of N texts, as NumPy arrays, and a mask bool [T, N] that is
    False after their ends; T is L - 1.

    As in `conversing`, the action of a step is the text's next token, and the step is a decision if
    the agent wrote that.

    tokens: int32 [N, L]. length: int32 [N], tokens of each text.
    utterance: int32 [N, L], the agent's utterance (from 0) that a token belongs to; -1 for the
        prompt, replies and whatever else the agent read.

    Nobody graded these texts: rewards are 0, and so is what a grade reports. Where the agent wrote
    all tokens are legal. Everybody else who speaks counts as the environment.
    """
    longest, size = tokens.shape[1], len(env.vocabulary)
    place = np.arange(longest)[:, None]
    leads_to = np.maximum.accumulate(utterance, 1) + 1
    turn = np.where(utterance < 0, leads_to, utterance)
    # All say something of the token that follows; nothing follows the last one.
    token, turn, by_agent = (
        np.concatenate([x[:, 1:], x[:, -1:]], 1).T for x in (tokens, turn, utterance >= 0)
    )
    channels = {
        "decision": by_agent,
        "turn": turn.astype(np.int32),
        "speaker": np.where(by_agent, AGENT, ENVIRONMENT).astype(np.int32),
    }
    shape = token.shape
    blank = jax.tree.map(lambda x: np.zeros((*shape, *x.shape[1:]), x.dtype), example_timestep(env))
    step = dataclasses.replace(
        blank,
        observation=tokens.T.astype(np.int32),
        first=np.broadcast_to(place == 0, shape),
        legal_actions=by_agent[..., None] | (token[..., None] == np.arange(size)),
        tokens=channels,
    )
    before, after = (
        jax.tree.map(lambda x, rows=rows: x[rows], step) for rows in (np.s_[:-1], np.s_[1:])
    )
    after = dataclasses.replace(after, terminated=place[1:] == length - 1)
    return Transition(before, token[:-1].astype(np.int32), after, (), {}), place[1:] < length
