"""Credit of each token of an answer, and its log-probability by a policy, by enumeration.

found = enumerate_answers(envs.make("judged_words"))
each = token_log_probs(network, params, found)              # [P, A, L]
credit = token_advantages(found, each.sum(-1))              # [P, A, L]
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.types import Array, Tree
from jaxrl.exact.answers import Answers


def is_decided(answers: Answers) -> Array:
    """Return which tokens of each answer are decisions, bool [P, A, L]: all up to its end."""
    return _by_answer(answers, answers.mask)


def token_log_probs(network: Any, params: Tree, answers: Answers) -> Array:
    """Return the log-probability [P, A, L] of each token of each answer, 0 after its end.

    network, params: as in `answer_log_probs`, which is the sum over tokens.
    """
    t = answers.transitions
    memory = network.initial(t.action.shape[1])
    policy = network.apply(params, t.timestep, memory, method="unroll")[0]
    return _by_answer(answers, jnp.where(answers.mask, policy.log_prob(t.action), 0))


def token_advantages(answers: Answers, log_prob: Array) -> Array:
    """Return the advantage [P, A, L] of each token of each answer, 0 after its end.

    A_t = E[r | x, y_<=t] - E[r | x, y_<t], where a policy writes the rest of the answer

    The advantages of an answer add up to its reward less the expected one.

    log_prob: [P, A], of all answers by the policy, all of which must be possible.
    """
    text, p = answers.text, jnp.exp(log_prob)

    def value(count: int) -> Array:
        same = (text[:, None, :count] == text[None, :, :count]).all(-1)
        expected = precise.einsum("ab,pb->pa", same.astype(p.dtype), p * answers.reward)
        return expected / precise.einsum("ab,pb->pa", same.astype(p.dtype), p)

    values = jnp.stack([value(count) for count in range(text.shape[1] + 1)], -1)
    # Once an answer has ended, its prefixes are all of one answer, also if it was cut off.
    return jnp.where(is_decided(answers), jnp.diff(values, axis=-1), 0)


def _by_answer(answers: Answers, x: Array) -> Array:
    """Return what belongs to the tokens of each answer, [P, A, L], of what has a row for each step
    of the episodes, [T, P * A]."""
    length = answers.text.shape[1]
    return jnp.moveaxis(x[-length:], 0, -1).reshape(*answers.reward.shape, length)
