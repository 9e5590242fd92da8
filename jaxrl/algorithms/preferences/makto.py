"""MaKTO (Ye et al., 2025, "Multi-agent KTO: Reinforcing Strategic Interactions of Large Language
Model in Language Game", arXiv:2501.14225): a policy plays a language game with a pool of other
players; each of its utterances, speeches and votes, is desirable or undesirable by rules that see
the whole game; and KTO learns from the utterances one by one, without pairs. An utterance without a
label is not learned.

    w (1 - sigmoid(s beta (log(pi(u | h) / pi_ref(u | h)) - z))), s = 1 (desirable) or -1

for an utterance u after all that was read before it, h. As in KTO, z is the mean log-ratio of
utterances in a wrong place, here of another text's utterance in the same turn; one of each text is
tried, of the turns in rotation. The mean is over all labeled utterances.

The labels are the environment's, `TimeStep.privileged["judged"]` at the end of a game, a number for
each turn: in `werewolf` they follow the rules of the authors' code. There the other players are
scripted, where the paper has language models; a rule that compares a speech with what its speaker
knows stands for the language model that verifies speeches; and one policy plays all cards, but one
player in a game. The paper begins with a policy that imitates people, which a warm start from
token_supervised can be here, and samples utterances of some days and cards more often. Its weights
of the two labels and its beta are not confirmed; the defaults are those of KTO.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.pairs import check_whole
from jaxrl.algorithms.tokens.shared import texts, turns
from jaxrl.algorithms.tokens.shared.answers import Sample, decisions, unroll
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.shared.texts import Texts, on_texts
from jaxrl.core import settings
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import Optimizer


@group
class Config(Tokens):
    """Settings of MaKTO: KTO of labeled utterances in games of several players
    (arXiv:2501.14225)."""

    texts: Texts = Texts(writer="policy", count=8192)
    optimizer: Optimizer = Optimizer(learning_rate=5e-6, max_grad_norm=1.0)
    """Optimizer settings. 5e-6, as KTO's authors advise. (Small networks need larger steps.)"""
    beta: float = hyper(0.1, above=0)
    """Strength of the pull toward the reference policy."""
    desirable_weight: float = hyper(1.0, low=0)
    """Weight of desirable utterances (lambda_D). KTO's authors advise that weight times number is 1
    to 4/3 times that of the undesirable ones."""
    undesirable_weight: float = hyper(1.0, low=0)
    """Weight of undesirable utterances (lambda_U)."""


class Swapped(NamedTuple):
    """Texts [T, B] with one utterance of another text: what is read, actions, and the mask of the
    utterance, False where there is none."""

    timestep: TimeStep
    action: Array
    mask: Array


def swap_utterances(timestep: TimeStep, action: Array, turn: Array, number: int) -> Swapped:
    """Return texts that go on with the next text's utterance in one turn, of the turns in rotation.

    timestep, action: whole texts [T, B]. turn: int32 [T, B], the turn of each token of an utterance
        that may be swapped, -1 at all other steps; an utterance is not interrupted.
    number: of turns.

    There is no such utterance where one of the two texts lacks it, or where it would not be legal.
    """
    wanted = jnp.arange(turn.shape[1]) % number
    mine, theirs = turn == wanted, jnp.roll(turn, -1, axis=1) == wanted
    place = jnp.arange(len(turn))[:, None] - jnp.argmax(mine, 0)  # in the utterance
    source = jnp.clip(place + jnp.argmax(theirs, 0), 0, len(turn) - 1)

    def splice(own: Array, keep: Array) -> Array:
        wide = lambda y: y.reshape(*y.shape, *(1,) * (own.ndim - 2))
        other = jnp.take_along_axis(jnp.roll(own, -1, axis=1), wide(source), 0)
        return jnp.where(wide(keep), own, other)

    spliced = jax.tree.map(lambda y: splice(y, place <= 0), timestep)
    action = splice(action, place < 0)
    within = (place >= 0) & (place < theirs.sum(0))
    legal = jnp.take_along_axis(spliced.legal_actions, action[..., None], -1)[..., 0]
    possible = mine.any(0) & theirs.any(0) & (legal | ~within).all(0)
    return Swapped(spliced, action, within & possible)


def reference_point(net: Net, x: Sample, turn: Array, number: int) -> Array:
    """Return the estimate of KL(policy || reference) by utterances of other texts, a scalar; `turn`
    and `number` as in `swap_utterances`."""
    other = swap_utterances(x.timestep, x.action, turn, number)
    now, frozen = (
        losses.sequence_log_prob(
            unroll(part, net, other.timestep)[0].log_prob(other.action), other.mask
        )
        for part in (net.actor_critic, net.target.actor_critic)
    )
    tried = other.mask.any(0)
    ratio = jnp.where(tried, now - frozen, 0).sum() / jnp.maximum(tried.sum(), 1)
    return jax.lax.stop_gradient(ratio)


@loss("actor_critic", name="loss", unit=SEQUENCE)
def makto_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the sum of the losses of each text's labeled utterances, divided by their mean
    number."""
    sample, mask, h = x.x, x.mask, net.hyper
    assert mask is not None
    label, timestep = sample.advantage, sample.timestep
    number = timestep.privileged["judged"].shape[-1]
    turn = jnp.where(mask & (label != 0), timestep.tokens["turn"], -1)
    policy, _ = unroll(net.actor_critic, net, timestep)
    of_turns = lambda y: losses.segment_sum(jnp.where(turn >= 0, y, 0.0), turn, number)
    log_prob, reference = of_turns(policy.log_prob(sample.action)), of_turns(sample.reference)
    good, bad = of_turns(label) > 0, of_turns(label) < 0
    point = reference_point(net, sample, turn, number)
    weights = h.desirable_weight, h.undesirable_weight
    each = losses.kto(log_prob, reference, good, point, h.beta, *weights)

    def average(of: Array, y: Array) -> Array:
        """Return values [B], whose mean over texts is that of `y` [K, B] over the utterances
        `of`."""
        return jnp.where(of, y, 0.0).sum(0) * mask.any(0).sum() / jnp.maximum(of.sum(), 1)

    ratio = log_prob - reference
    spread = lambda y: jnp.broadcast_to(y, mask.shape[1:])
    metrics = {
        "desirable_log_ratio": average(good, ratio),
        "undesirable_log_ratio": average(bad, ratio),
        "desirable": average(good | bad, good.astype(jnp.float32)),
        "reference_point": spread(jnp.maximum(point, 0)),
    }
    return LossOutput(average(good | bad, each), metrics)


def label_tokens(net: Net, batch: Batch, x: Sample) -> Sample:
    """Return the sample with the label of each token's utterance, as `advantage`, and its
    log-probability by the reference policy."""
    t, mask = batch.transitions, batch.mask
    assert mask is not None  # `Recipe.needs`
    privileged = t.next_timestep.privileged
    assert privileged is not None  # `check`
    ends = (mask & t.done)[..., None]
    judged = jnp.where(ends, privileged["judged"], 0.0).sum(0).T  # [K, B]
    label = jnp.take_along_axis(judged, t.timestep.tokens["turn"], 0)
    label = jnp.where(decisions(x.timestep, mask), label, 0.0)
    reference = unroll(net.target.actor_critic, net, x.timestep)[0].log_prob(x.action)
    return Sample(x.timestep, x.action, reference=reference, advantage=label)


def recipe(env: Environment, config: Config) -> Recipe:
    return on_texts(env, config, makto_loss, label_tokens)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `texts.check`, for chunks, for an entropy bonus, for minibatches of a
    single text, which have no other texts' utterances, and if `env` does not label utterances."""
    texts.check(env, config, name)
    settings.refuse(config, ("entropy_weight",), f"{name} has no entropy bonus")
    turns.check_turns(env, name)
    judged = (example_timestep(env).privileged or {}).get("judged")
    if env.judge is not None or jnp.ndim(judged if judged is not None else 0) != 2:  # [1, K]
        raise UserError(
            f"{name} needs a label of each turn, TimeStep.privileged['judged'] of shape [K], which "
            f"'{env.name}' lacks; see envs.language.werewolf."
        )
    check_whole(config, name)
    if config.texts.num_envs // config.passes.minibatches < 2:
        raise UserError(
            f"{name} estimates a divergence by utterances of other texts, so a minibatch needs at "
            "least 2 texts."
        )


makto = AlgorithmBuilder("makto", Config, recipe, check=check)

TINY = SMALL | {"env": "werewolf", "num_envs": 8, "count": 16, "num_shards": 4}
