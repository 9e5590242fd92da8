"""Reward models that write: what they read, what they say of it, and the rewards that follow.

A corrector is the part `reward` of an agent: a network of a policy's kind that reads a text and
writes a better answer to its prompt. It reads the text's tokens (0 .. V - 1, then V after its end),
the token V + 1, which asks for an answer, and then the answer so far.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.preferences.shared.reward_models import PART, Reading
from jaxrl.algorithms.tokens.shared.answers import decisions
from jaxrl.core import memory
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs.timesteps import text_steps
from jaxrl.kit import Net, Part
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.heads import Categorical


@struct
class Given:
    """Texts as a corrector reads them.

    source: int32 [T + 1, B], all tokens, V after a text's end. answer: int32 [T, B], the tokens
    that the policy wrote, then 0. count: int32 [B], the number of these.
    """

    source: Array
    answer: Array
    count: Array

    @property
    def valid(self) -> Array:
        """Return which places of the answers are tokens, bool [T, B]."""
        return jnp.arange(len(self.answer))[:, None] < self.count


def given_texts(reading: Reading, mask: Array, size: int) -> Given:
    """Return whole episodes as a corrector reads them.

    mask: bool [T, B], False after their ends. size: V, the number of tokens.
    """
    before = jax.tree.map(lambda a, b: jnp.concatenate([a, b[:-1]]), reading.first, reading.after)
    decision = decisions(before, mask)
    said = reading.after.observation
    source = jnp.concatenate([reading.first.observation, jnp.where(mask, said, size)])
    place = jnp.where(decision, jnp.cumsum(decision, 0) - decision, len(mask))
    column = jnp.arange(mask.shape[1])
    answer = jnp.zeros_like(said).at[place, column].set(said, mode="drop")
    return Given(source, answer, decision.sum(0))


def corrector_of(env: Environment, config: Any) -> ActorCritic:
    """Return the network of a corrector, of the settings `config.torso` and `config.memory`.

    Raises `UserError` for tokens that are not `Discrete`, and for texts without a limit.
    """
    space, steps = env.action_space, env.max_steps
    if not isinstance(space, Discrete) or env.observation_space != space or steps is None:
        raise UserError(
            f"A corrector reads and writes tokens, but '{env.name}' observes "
            f"{env.observation_space!r} and acts in {space!r}, or has no time limit; use a text "
            "environment."
        )
    torso, own = config.torso, config.memory
    return ActorCritic(
        Discrete(space.n + 2),
        space,
        torso.hidden,
        torso.activation,
        own.recurrent,
        torso.initializer,
        layers=own.transformer,
        attention_heads=own.attention_heads,
        context=2 * steps + 1 if own.transformer else 0,
    )


def corrector_part(env: Environment, config: Any, optimizer: Any = None) -> Part:
    """Return the part of a corrector."""
    network = corrector_of(env, config)
    one = jax.tree.map(lambda x: x[0], text_steps(jnp.zeros((1, 1), jnp.int32)))
    return Part(network, (one, network.initial(1)), optimizer)


def correct(net: Net, given: Given, answer: Array) -> Categorical:
    """Return the corrector's policies [T, B] for each token of an answer, after those before it.

    given: texts to be corrected. answer: int32 [T, B], an answer to the same prompts, as the
        corrector would write it.
    """
    size = net.network(PART).observation_space.n
    ask = jnp.full_like(answer[:1], size - 1)
    tokens = jnp.concatenate([given.source, ask, answer[:-1]])
    blank = memory.shrink(net.network(PART).initial(tokens.shape[1]))
    policy = net.reward(text_steps(tokens), blank, method="unroll")[0]
    return Categorical(policy.logits[len(given.source) :])


def token_feedback(
    agrees: Array, written: Array, positive: Array | float, negative: Array | float
) -> Array:
    """Return the rewards of an answer's tokens, [T, B].

    `positive` for tokens before the first one of which the corrector would write another, and
    -`negative` for each token, from there on, of which it would. Up to there the corrector's own
    answer is the given one, so it is enough to ask for the next token after each beginning of it.

    agrees: bool [T, B], whether the token is what the corrector would write after those before it.
    written: bool [T, B], which places are tokens.
    """
    same = jnp.cumprod(agrees, 0).astype(bool)
    value = jnp.where(same, positive, jnp.where(agrees, 0.0, -jnp.asarray(negative)))
    return jnp.where(written, value, 0.0)


def feedback_of(
    net: Net, reading: Reading, mask: Array, positive: Array | float, negative: Array | float
) -> Array:
    """Return the rewards [T, B] of the steps of whole episodes by the corrector's greedy answers:
    those of `token_feedback` at the decisions, else 0."""
    size = net.network(PART).action_space.n
    given = given_texts(reading, mask, size)
    policy = correct(net, given, given.answer)
    agrees = policy.mode() == given.answer
    paid = token_feedback(agrees, given.valid, positive, negative)
    before = jax.tree.map(lambda a, b: jnp.concatenate([a, b[:-1]]), reading.first, reading.after)
    decision = decisions(before, mask)
    place = jnp.cumsum(decision, 0) - decision
    return jnp.where(decision, jnp.take_along_axis(paid, place, 0), 0.0)
