"""ArCHer (Zhou et al., 2024, "ArCHer: training language model agents via hierarchical multi-turn
RL", arXiv:2402.19446): twin critics of whole utterances learn by temporal differences from a replay
buffer of conversations, and the token policy learns policy gradients within utterances, with what
the critics say of them as the advantage.

    Q_i(s, u) <- r + gamma V_i(s')     of utterances u as they were said
    V_i(s)    <- Q_i(s, u'), u' ~ pi   each by the target networks
    A(s, u')   = min_i Q_i(s, u') - min_i V_i(s)

A state s is the text so far. Utterances u' are said anew by the policy of today at states of the
replay buffer (`sources.renew_utterances`), so V is the value of that policy and the policy gradient
is on-policy, although conversations are of earlier policies. An utterance has the sum of the
rewards that are paid within it and in the replies after it.

As in the authors' code, only critics learn in the first updates. There each of 50 gradient steps of
the critics, and each of 3 of the policy, draws 256 utterances; here an update draws once, critics
take epochs over minibatches of it, and the policy takes one step on all of it. Q and V are two
networks here and heads of one there. The options of the paper, a baseline for tokens and a critic
by expectiles, are left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    blank_memory,
    keep_missing,
    on_episodes,
    restrict,
    unroll,
    whole_text,
)
from jaxrl.algorithms.tokens.shared.models import check_network
from jaxrl.algorithms.tokens.shared.policy_gradient import policy_gradient_loss
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL, Tokens
from jaxrl.algorithms.tokens.shared.turns import PAIR
from jaxrl.core import settings, trees
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Transition, struct
from jaxrl.kit import (
    AlgorithmBuilder,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import check_sampling
from jaxrl.kit.groups import INF, Episodes, Optimizer, Passes, Target
from jaxrl.sources import episodes, renew_utterances
from jaxrl.sources.utterances import ends_of_utterances, starts_of_utterances


@group
class Conversations(Episodes):
    """Whole conversations, and a replay buffer of them."""

    num_envs: int = static(128, low=1, high=MANY)
    """Number of conversations that are held for an update."""
    capacity: int = static(10_000, low=1)
    """Number of conversations that are kept. (The authors' code keeps 100,000 utterances.)"""
    batch_size: int = static(512, low=1, high=MANY)
    """Number of conversations that an update draws; one utterance of each is said anew."""

    def source(self, env: Environment) -> Source:  # type: ignore[override]
        """Return a source of conversations with utterances that are said anew."""
        played = episodes(env, self.num_envs, None, self.num_shards, keep_states=True)
        return renew_utterances(played, env, self.capacity, self.batch_size, self.num_shards)


@group
class Config(Tokens):
    """Settings of ArCHer: critics of utterances, learned off-policy, for a token policy
    (arXiv:2402.19446). The defaults are those of the authors' code."""

    conversations: Conversations = Conversations()
    passes: Passes = Passes(epochs=6, minibatches=8, chunk_rows=0)
    """Epochs of the critics over the conversations that are drawn."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    critic: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    """Optimizer settings of the critics."""
    target: Target = Target(rate=0.1)
    """Target networks of the critics."""
    average: str = static("constant", choices=AVERAGES)
    """Averaging of token losses: sequence, token, or constant, which sums an utterance's tokens."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per utterance."""
    warmup: float = hyper(20.0, low=0, high=INF)
    """Number of updates, at the start, in which only the critics learn."""


@struct
class Utterances:
    """Conversations as critics see them.

    text: all that was read, [T + 1, B]. reward: of the utterance of each step, [T, B].
    starts, ends, over: bool [T, B], whether a step is the first or the last of an utterance, and
        whether it ends the conversation.
    anew: bool [T, B], whether a step belongs to an utterance that was said anew.
    copy: bool [T, B], whether a column is a copy, in which an utterance was said anew.
    """

    text: TimeStep
    reward: Array
    starts: Array
    ends: Array
    over: Array
    anew: Array
    copy: Array


def split_utterances(t: Transition, mask: Array) -> Utterances:
    """Split conversations and their copies [T, B], as of `renew_utterances`, by utterances."""
    starts, ends = starts_of_utterances(t, mask), ends_of_utterances(t, mask)
    anew = t.extras["anew"] & mask
    number = jnp.cumsum(starts, 0) - 1  # a reply belongs to the utterance before it
    paid = losses.segment_sum(jnp.where(mask, t.reward, 0.0), number, len(mask))
    reward = losses.segment_to_tokens(paid, number)
    copy = jnp.broadcast_to(anew.any(0), anew.shape)
    return Utterances(whole_text(t), reward, starts, ends, t.done, anew, copy)


def at_next(flag: Array, x: Array) -> Array:
    """Return `x` [..., T, B] at the next step with a `flag` [T, B], or at this one; 0 if none
    comes."""
    number = jnp.arange(len(flag))[:, None]
    place = jax.lax.cummin(jnp.where(flag, number, len(flag)), axis=0, reverse=True)
    padded = jnp.concatenate([x, jnp.zeros_like(x[..., :1, :])], -2)
    return jnp.take_along_axis(padded, jnp.broadcast_to(place, x.shape), -2)


def read(part: Any, net: Net, x: Utterances) -> Array:
    """Return what a part of twins says after each token, [2, T + 1, B]."""
    return part(x.text, blank_memory(net, x.text), method="unroll")[1]


def q_and_v(net: Any, parts: Any, x: Utterances) -> tuple[Array, Array]:
    """Return Q_i of the utterance that ends next, and V_i before each token, [2, T, B].

    parts: `net`, or `net.target`.
    """
    q = at_next(x.ends, read(parts.critic, net, x)[:, 1:])
    return q, read(parts.value, net, x)[:, :-1]


@loss("critic", "value", name="critic_loss")
def critic_loss(net: Net, x: Utterances) -> Array:
    """Compute the errors of both Q where an utterance ends, and of both V where one begins that was
    said anew."""
    q, v = q_and_v(net, net, x)
    target_q, target_v = q_and_v(net, net.target, x)
    # The next utterance begins after this step, so that its own start is not the next one.
    later = at_next(x.starts, target_v)
    following = jnp.concatenate([later[:, 1:], jnp.zeros_like(later[:, :1])], 1)
    target = losses.td_target(x.reward, x.over, net.hyper.discount, following)
    q_error = losses.squared_error(q, target).sum(0)
    v_error = losses.squared_error(v, jax.lax.stop_gradient(target_q)).sum(0)
    return jnp.where(x.ends & ~x.copy, q_error, 0.0) + jnp.where(x.starts & x.anew, v_error, 0.0)


def advantages(net: Net, x: Utterances) -> Array:
    """Return min Q - min V of the utterance that was said anew, for each of its tokens, [T, B]."""
    q, v = q_and_v(net, net, x)
    begun = x.starts & x.anew
    each = jnp.where(begun, q.min(0) - v.min(0), 0.0).sum(0)
    return jnp.where(x.anew, each, 0.0)


def recipe(env: Environment, config: Any) -> Recipe:
    whole = on_episodes(env, config, (policy_gradient_loss,))
    policy = whole.parts["actor_critic"]
    twins = Part(policy.network, policy.inputs, config.critic, config.target, members=2)

    def learn_values(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(critic_loss, minibatch).update_targets("critic", "value")

    def update(net: Net, batch: Batch) -> Net:
        t, mask = batch.transitions, batch.mask
        assert mask is not None  # `Recipe.needs`
        x = split_utterances(t, mask)
        window = Minibatch(x, (x.ends & ~x.copy) | (x.starts & x.anew))
        net = net.epochs(config.passes, window, learn_values, unit=PAIR)
        copies = lambda tree: jax.tree.map(lambda leaf: leaf[:, 1::2], tree)
        advantage, (t, x) = copies(advantages(net, x)), copies((t, x))
        allowed = t.extras.get("allowed")
        held, _ = unroll(net.target.actor_critic, net, t.timestep)
        reference = restrict(net, held, allowed).log_prob(t.action)
        log_prob = t.extras["log_prob"]
        sample = Sample(t.timestep, t.action, log_prob, reference, advantage, allowed=allowed)
        said = x.anew & t.timestep.tokens["decision"]
        weight = losses.token_weights(said, config.average)
        new = net.descend(policy_gradient_loss, sample, mask=said, weight=weight)
        due = net.updates >= net.hyper.warmup
        new = new.replace(parts=trees.where(due, new.parts, net.parts))
        surprise = jnp.abs(advantage).max(0).mean()
        return new.update_targets("actor_critic").report(advantage_size=surprise)

    return dataclasses.replace(
        whole,
        parts={**whole.parts, "critic": twins, "value": twins},
        losses=(*whole.losses, critic_loss),
        update=update,
        needs=(*whole.needs, "transitions.extras.log_prob", "transitions.extras.anew"),
        adopt=keep_missing,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` if no policy of these settings can act in `env`, if its tokens have no
    turns, if what is drawn does not divide into minibatches, for an early stop, and for packing."""
    settings.refuse(config, ("packed",), f"{name} does not pack its conversations")
    check_network(env, config, name)
    check_sampling(env.action_space, config, name)
    turns.check_turns(env, name)
    turns.check_pairs(config.passes, config.conversations.batch_size, env, name)


archer = AlgorithmBuilder("archer", Config, recipe, check=check)

TINY = SMALL | {"env": "guess_letter", "env_params": {"letters": 2, "turns": 2}, "num_shards": 4}
TINY |= {"num_envs": 8, "capacity": 16, "batch_size": 8, "critic.eps": 0.01, "warmup": 1.0}
