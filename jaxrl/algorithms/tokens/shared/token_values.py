"""Token policies that are steered by values: a cloned policy whose logits values are added to.

    pi(a | s) ~ pi_data(a | s) exp(beta min_i Q_i(s, a))

Values and policy learn from a dataset of texts with rewards. Only the tokens of the agent are
decisions: what is said between two of them takes no time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import check_policy, policy_network
from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import (
    decisions,
    keep_missing,
    on_episodes,
    unroll,
    whole_text,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.shared.texts import Texts
from jaxrl.algorithms.tokens.token_supervised import cloning_loss
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import SEQUENCE, Loss, Minibatch, Net, Part, Recipe, group, hyper
from jaxrl.kit.acting import sample_tempered
from jaxrl.kit.groups import INF, Optimizer, Target
from jaxrl.networks.heads import ILLEGAL, Categorical, check_discrete
from jaxrl.networks.token_values import TokenValues


@group
class Config(Tokens):
    """Settings of policies that values steer, learned from texts with rewards."""

    texts: Texts = Texts(count=10_000, noise=0.3)
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, max_grad_norm=1.0)
    """Optimizer settings of the cloned policy."""
    critic: Optimizer = Optimizer(learning_rate=1e-4, max_grad_norm=1.0)
    """Optimizer settings of the values."""
    target: Target = Target(rate=0.005)
    """Target network of the values."""
    reference: Target = Target(rate=1.0)
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per token of the agent."""
    conservative: float = hyper(0.01, low=0)
    """Weight of the conservative term, the cross-entropy of Q with the texts' tokens."""
    strength: float = hyper(16.0, low=0, high=INF, log=True)
    """Factor of Q in the logits of the policy that acts (beta); 0 for plain cloning."""


@struct
class Valued:
    """Texts with rewards, as values see them.

    text: all that was read, [T + 1, B]. The others are [T, B].
    decides: bool, whether a step is a decision of the agent.
    """

    text: TimeStep
    action: Array
    reward: Array
    terminated: Array
    done: Array
    decides: Array


def read_values(part: Callable[..., Any], net: Net, x: Valued) -> tuple[Array, Array]:
    """Return Q of the tokens that were chosen, [T, B, K], and V, [T + 1, B]."""
    q, v = unroll(part, net, x.text, "values")
    action = jnp.broadcast_to(x.action[..., None, None], (*q[:-1].shape[:-1], 1))
    return jnp.take_along_axis(q[:-1], action, -1)[..., 0], v


def conservative_term(net: Net, x: Valued) -> Array:
    """Return the cross-entropy of the heads' Q with the tokens that were chosen, among those that
    were legal, summed over heads, [T, B]."""
    q, _ = unroll(net.values, net, x.text, "values")
    legal = x.text.legal_actions[:-1, :, None]
    heads = jnp.where(legal, q[:-1], ILLEGAL)
    chosen = jnp.broadcast_to(x.action[..., None], heads.shape[:-1])
    return losses.cql(heads, chosen).sum(-1)


def next_place(marked: Array) -> Array:
    """Return for each step of texts, bool [T, B], the next one after it that is marked; T where
    there is none."""
    number = jnp.arange(len(marked))[:, None]
    place = jnp.where(marked, number, len(number))
    later = jnp.concatenate([place[1:], jnp.full_like(place[:1], len(number))])
    return jax.lax.cummin(later, axis=0, reverse=True)


def steer(net: Net, timestep: TimeStep, memory: Tree) -> tuple[Categorical, None, Tree]:
    """Return the policy [B] that acts: the cloned one, steered by the smaller Q."""
    own, valued = memory
    policy, _, own = net.actor_critic(timestep, own)
    q, _, valued = net.target.values(timestep, valued)
    logits = policy.logits + net.hyper.strength * q.min(-2)
    logits = jnp.where(policy.logits > ILLEGAL / 2, logits, ILLEGAL)
    return Categorical(jax.nn.log_softmax(logits)), None, (own, valued)


def values_of_tokens(env: Environment, config: Any, critics: int) -> Part:
    """Return the part `values`, Q by so many critics and V, with layers like the policy's."""
    plain = policy_network(env, config.torso, config.memory)
    own = [f.name for f in dataclasses.fields(plain) if f.name not in ("parent", "name")]
    network = TokenValues(**{name: getattr(plain, name) for name in own}, critics=critics)
    inputs = example_timestep(env), network.initial(1)
    return Part(network, inputs, config.critic, config.target)


def on_valued_texts(env: Environment, config: Any, loss: Loss, critics: int) -> Recipe:
    """Return the recipe of a policy that is cloned from texts and steered by values, which learn
    `loss` from them.

    loss: of the part `values`, for each step of `Valued` texts. critics: number of its Q heads.
    """
    whole = on_episodes(env, config, (cloning_loss,))
    values = values_of_tokens(env, config, critics)
    network: Any = values.network

    def learn_values(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(loss, minibatch).update_targets("values")

    def update(net: Net, batch: Batch) -> Net:
        t, mask = batch.transitions, batch.mask
        assert mask is not None  # `Recipe.needs`
        decides, reward = decisions(t.timestep, mask), jnp.where(mask, t.reward, 0.0)
        x = Valued(whole_text(t), t.action, reward, t.terminated, t.done, decides)
        net = net.epochs(config.passes, Minibatch(x, decides), learn_values, unit=SEQUENCE)
        return whole.update(net, batch)

    return dataclasses.replace(
        whole,
        parts={**whole.parts, "values": values},
        losses=(*whole.losses, loss),
        update=update,
        act=sample_tempered(steer, config.sampling),
        memory=lambda n: (whole.memory(n), network.initial(n)),
        scores={},  # nothing is played in training
        adopt=keep_missing,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `texts.check`, and for what has no rewards or no logits."""
    check_discrete(env.action_space, name)
    if config.texts.file or not config.texts.count:
        raise UserError(
            f"{name} learns from a dataset of texts with rewards, which files do not have; set "
            "texts.count above 0 and leave out texts.file."
        )
    texts.check(env, config, name)
    check_policy(env, config.torso, config.memory, name)


SMALL_VALUED = SMALL | {"env": "guess_letter", "env_params": {"letters": 2, "turns": 2}}
SMALL_VALUED |= {"num_envs": 8, "count": 16, "noise": 0.3, "num_shards": 4, "critic.eps": 0.01}
