"""Policies that learn from pairs of answers: samples, losses of pairs and the recipe.

A batch holds pairs of whole episodes [T, 2 n], the preferred answer first (`jaxrl.sources.pairs`).
A loss of pairs is a function of both answers' log-probabilities, whose value is [n]; minibatches
keep pairs whole. Each algorithm's file states its loss:

| file | loss of a pair | reference |
|---|---|---|
| dpo | by name: DPO's and fifteen others | the policy of the beginning |
| online_dpo | the same, of pairs that are written and judged anew | the same |
| rlhf_workflow | the same, of pairs that a preference model chooses, in rounds | the same |
| evolve | DPO's, of first attempts and of refinements | the policy of the last round |
| spar | as dpo, of refinements by tree search and what they refine | the same |
| temporal_self_rewarding | as dpo, of pairs by policies of several times | the last iteration |
| seppo | good answers against samples of checkpoints, which may be good too | a checkpoint |
| orpo | cloning of the chosen answer, and the odds ratio | none |
| simpo | mean log-probabilities, and a margin | none |
| cpo | DPO with a uniform reference, and cloning | none |
| kto | of each answer alone, by the mean divergence | the policy of the beginning |
| copg | policy gradient, each answer's baseline is the other | the same |

The reference policy is the target network of the policy, which stays what training began with:
new weights, or the policy that a warm start took over. Everything else begins anew in a warm start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.algorithms.preferences.shared.measures import exact_scores
from jaxrl.algorithms.tokens.shared.answers import decisions, returns_of, token_scores, unroll
from jaxrl.algorithms.tokens.shared.models import check_network, token_network
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import Loss, LossOutput, Minibatch, Net, Part, Recipe, Unit, loss
from jaxrl.kit.builder import source_group
from jaxrl.kit.parts import copy, trainable
from jaxrl.kit.state import State, Trained

PAIR = Unit(sequences=True, columns=2)


@struct
class Sample:
    """Pairs of whole episodes for a gradient step, [T, 2 n].

    reference: log-probability of each action by the reference policy; None without one.
    reward: return of each answer, [1, 2 n]; None where no loss reads it.
    """

    timestep: TimeStep
    action: Tree
    reference: Tree = None
    reward: Tree = None


class Answers(NamedTuple):
    """One answer of each pair, [n]: log-probabilities by the policy and by the reference (0 without
    one), sums over tokens, numbers of tokens, and returns (0 where no loss reads them)."""

    log_prob: Array
    reference: Array
    length: Array
    reward: Any = 0.0

    @property
    def per_token(self) -> Answers:
        """The same with means over tokens instead of sums."""
        size = jnp.maximum(self.length, 1)
        return Answers(self.log_prob / size, self.reference / size, self.length)


class PairLoss(Protocol):
    """Function that computes the loss of pairs."""

    def __call__(self, net: Net, chosen: Answers, rejected: Answers, /) -> Array:
        """Return the loss of each pair, [n].

        net: for hyperparameters. chosen, rejected: the two answers.
        """
        ...


def answers_of(net: Net, x: Minibatch) -> tuple[Answers, Answers]:
    """Return the chosen and the rejected answers of pairs under the policy.

    x: a `Sample` with its mask, which marks the decisions of the policy.
    """
    sample, mask = x.x, x.mask
    assert mask is not None
    policy, _ = unroll(net.actor_critic, net, sample.timestep)
    log_prob = losses.sequence_log_prob(policy.log_prob(sample.action), mask)
    reference = jnp.zeros_like(log_prob)
    if sample.reference is not None:
        reference = losses.sequence_log_prob(sample.reference, mask)
    both = [log_prob, reference, mask.sum(0).astype(log_prob.dtype)]
    if sample.reward is not None:
        both.append(sample.reward[0])
    return tuple(Answers(*(y[i::2] for y in both)) for i in range(2))  # type: ignore[return-value]


def pair_metrics(chosen: Answers, rejected: Answers) -> dict[str, Array]:
    """Return what is logged of pairs, [n]: log-ratios to the reference (log-probabilities without
    one), their difference `margin`, and whether the chosen answer leads, `accuracy`, 1/2 in a tie.
    """
    first, second = (x.log_prob - x.reference for x in (chosen, rejected))
    return {
        "chosen_log_ratio": first,
        "rejected_log_ratio": second,
        "margin": first - second,
        "accuracy": 0.5 * (1 + jnp.sign(first - second)),
        "chosen_log_prob": chosen.log_prob,
    }


def loss_of_pairs(pair_loss: PairLoss) -> Loss:
    """Return the loss of the policy whose value of each pair is `pair_loss`."""

    @loss("actor_critic", name="loss", unit=PAIR)
    def policy_loss(net: Net, x: Minibatch) -> LossOutput:
        chosen, rejected = answers_of(net, x)
        return LossOutput(pair_loss(net, chosen, rejected), pair_metrics(chosen, rejected))

    return policy_loss


def on_pairs(
    env: Environment,
    config: Any,
    policy_loss: Loss,
    *,
    reference: bool = True,
    reference_part: str = "",
    rewards: bool = False,
    scores: tuple[str, ...] = (),
) -> Recipe:
    """Return the recipe of a token policy that learns from pairs of answers.

    policy_loss: of the part `actor_critic`, of pairs: `loss_of_pairs`, or one that sees a `Sample`.
    reference: whether there is a reference policy, `config.reference`.
    reference_part: a part of the recipe that is the loss's reference instead of the target network;
        empty for none.
    rewards: whether the loss reads the answers' returns.
    scores: what it is judged by in small environments, besides the return; see `exact_scores`.
    """
    network = token_network(env, config)

    def update(net: Net, batch: Batch) -> Net:
        t = batch.transitions
        assert batch.mask is not None  # `Recipe.needs`
        mask = decisions(t.timestep, batch.mask)
        known = None
        if reference:
            frozen = getattr(net, reference_part) if reference_part else net.target.actor_critic
            known = unroll(frozen, net, t.timestep)[0].log_prob(t.action)
        paid = returns_of(batch)[None] if rewards else None
        window = Minibatch(Sample(t.timestep, t.action, known, paid), mask)
        step = lambda net, some: net.descend(policy_loss, some)
        net = net.epochs(config.passes, window, step, unit=PAIR)
        return net.update_targets() if reference else net

    target = config.reference if reference else None
    inputs = example_timestep(env), network.initial(1)
    return Recipe(
        parts={"actor_critic": Part(network, inputs, config.optimizer, target)},
        act=sample_and_record(),
        losses=(policy_loss,),
        update=update,
        memory=network.initial,
        needs=("mask",),
        adopt=begin_as("actor_critic"),
        scores={**token_scores(env), **exact_scores(env, *scores)},
    )


def begin_as(part: str) -> Callable[[State, Tree], Tree]:
    """Return an `adopt` by which every part of an agent begins as the `part` of another's state,
    targets included: policy, reference, anchor and opponent. Each has a copy, since a buffer can be
    donated only once. Optimizers begin anew."""

    def adopt(state: State, other: Any) -> Any:
        if not isinstance(other, State) or part not in other.parts:
            return other  # which will not fit
        learned = other.parts[part].params

        def begin(own: Trained) -> Trained:
            target = None if own.target is None else copy(trainable(learned))
            return dataclasses.replace(own, params=copy(learned), target=target)

        parts = {name: begin(own) for name, own in state.parts.items()}
        return dataclasses.replace(state, parts=parts)

    return adopt


def keep_part(part: str) -> Callable[[State, Tree], Tree]:
    """Return an `adopt` by which another agent's policy writes the pairs that `part` learns from,
    which begins anew."""

    def adopt(state: State, other: Any) -> Any:
        begun = begin_as("actor_critic")(state, other)
        if not isinstance(begun, State) or begun is other:
            return other
        return dataclasses.replace(begun, parts=begun.parts | {part: state.parts[part]})

    return adopt


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` if no policy of these settings can act in `env`, or the pairs of an update
    do not divide into the minibatches."""
    check_network(env, config, name)
    columns, shards = 2 * source_group(config).num_pairs, source_group(config).num_shards
    config.passes.check(columns, env.max_steps or 1, shards, PAIR)


def check_whole(config: Any, why: str, what: str = "pairs") -> None:
    """Raise `UserError` if a minibatch's gradient is computed in chunks, which statistics of a
    whole minibatch do not allow. why: the subject of the message. what: of what they are."""
    if config.passes.chunk_rows:
        raise UserError(
            f"{why} compares all {what} of a minibatch, so passes.chunk_rows must be 0, got "
            f"{config.passes.chunk_rows}."
        )
