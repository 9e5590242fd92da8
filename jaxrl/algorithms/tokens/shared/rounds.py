"""Rounds of self-training: sample answers, judge them, keep some, learn those.

A round is an update: the source plays groups of answers to some prompts, and the policy learns the
likelihood of the answers that are kept, for `passes.epochs` epochs. A minibatch without a kept
answer has no gradient.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import decisions, on_episodes, returns_of
from jaxrl.algorithms.tokens.shared.settings import Grouped
from jaxrl.algorithms.tokens.token_supervised import cloning_loss
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import Net, Recipe, group
from jaxrl.kit.groups import Passes
from jaxrl.kit.parts import with_shared


class Keep(Protocol):
    """A function that chooses the answers to learn."""

    def __call__(self, net: Net, returns: Array, batch: Batch, /) -> Array:
        """Return which answers are kept, bool [P, G].

        net: before any gradient step. returns: [P, G], of G answers to each of P prompts.
        batch: whole episodes [T, P * G], those of a group side by side.
        """
        ...


@group
class Rounds(Grouped):
    """Settings of token policies that learn the likelihood of their own answers, in rounds."""

    passes: Passes = Passes(epochs=4, minibatches=4, chunk_rows=0)


def on_rounds(env: Environment, config: Rounds, keep: Keep, from_reference: bool = False) -> Recipe:
    """Return the recipe of a token policy that learns its own answers in rounds.

    keep: which answers are learned.
    from_reference: begin every round at the reference policy, with a new optimizer, instead of at
        the policy that the last round ended with.

    Reports `kept`, the share of answers that are learned, and `distinct`, the mean number of
    distinct ones of a prompt.
    """
    answers = config.groups.answers
    recipe = on_episodes(env, config, (cloning_loss,))

    def update(net: Net, batch: Batch) -> Net:
        mask = batch.mask
        assert mask is not None  # `Recipe.needs`
        returns = returns_of(batch).reshape(-1, answers)
        kept = keep(net, returns, batch)
        own = net.parts["actor_critic"]
        reference = with_shared(own.target, own.params)
        new = net.restart(actor_critic=reference) if from_reference else net
        mask = mask & kept.reshape(-1)
        new = recipe.update(new, dataclasses.replace(batch, mask=mask))
        distinct = (kept & distinct_of(batch, answers)).sum(-1).astype(jnp.float32)
        return new.report(kept=kept.mean(), distinct=distinct.mean())

    return dataclasses.replace(recipe, update=update)


def distinct_of(batch: Batch, answers: int) -> Array:
    """Return which answers no earlier one of the group equals, bool [P, G]."""
    t = batch.transitions
    assert batch.mask is not None
    by_group = lambda x: x.reshape(x.shape[0], -1, answers)
    written = by_group(decisions(t.timestep, batch.mask))
    return losses.distinct_answers(by_group(t.action), written)


def best_of_group(returns: Array) -> Array:
    """Return which answers [P, G] are the best of their group by their returns, the first of equal
    ones."""
    return jnp.arange(returns.shape[-1]) == jnp.argmax(returns, -1, keepdims=True)


def first_above(returns: Array, threshold: Array | float, most: int) -> Array:
    """Return which answers [P, G] have a return above `threshold`, at most the first `most` of each
    group; 0 for all."""
    above = returns > threshold
    return above & (jnp.cumsum(above, -1) <= most) if most else above
