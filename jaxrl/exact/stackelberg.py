"""Repeated Stackelberg games with bandit feedback: who learns, and who manipulates whom.

payoff, other_payoff [A, B] are mean rewards of the leader (rows) and the follower (columns). In
each round the leader acts first and sees its own reward alone; the follower sees the leader's
action. A response [A] is the follower's action after each of the leader's.

Source: Yu and Chen, 2024, "Decentralized online learning in general-sum Stackelberg games"
(arXiv:2405.03158), for the two settings and the idea of manipulation. The learners here are UCB1
(Auer et al., 2002, "Finite-time analysis of the multiarmed bandit problem") on both sides, and the
best manipulation is derived below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key


class Rounds(NamedTuple):
    """Actions and mean payoffs of all rounds, [rounds] each."""

    leader: Array
    follower: Array
    payoff: Array
    other_payoff: Array


class Arms(NamedTuple):
    """Sums of rewards, and how often each arm was pulled; both of one shape."""

    total: Array
    pulls: Array


Follow = Callable[[Arms, Array], Array]  # (own arms [A, B], the leader's action) -> an action


def best_response(other_payoff: Array) -> Array:
    """Return the response [A] of a myopic follower."""
    return other_payoff.argmax(-1)


def best_manipulation(payoff: Array, other_payoff: Array, margin: float = 0.0) -> Array:
    """Return the response [A] by which a leader who learns ends where the follower earns most.

    Against a fixed response f the leader learns the action with the greatest payoff(a, f(a)). So
    the pair (a, b) can be brought about if and only if payoff(a, b) exceeds the least payoff that
    the follower can leave the leader after every other action; the follower takes the best such
    pair, and punishes all other actions.

    margin: by how much the leader's payoff must exceed that of all other actions, so that a learner
        tells them apart.
    """
    punished = payoff.min(-1)
    own = jnp.eye(len(payoff), dtype=bool)
    rest = jnp.where(own, -jnp.inf, punished[None]).max(-1)
    feasible = payoff > rest[:, None] + margin
    # Where no pair exceeds the margin, that of the greatest lead remains.
    lead = payoff - rest[:, None]
    score = jnp.where(feasible.any(), jnp.where(feasible, other_payoff, -jnp.inf), lead)
    action, answer = jnp.unravel_index(score.argmax(), payoff.shape)
    return jnp.where(jnp.arange(len(payoff)) == action, answer, payoff.argmin(-1))


def leader_action(payoff: Array, response: Array) -> Array:
    """Return the leader's best action against a known response [A]."""
    return jnp.take_along_axis(payoff, response[:, None], 1)[:, 0].argmax()


def upper_bound(arms: Arms, time: Array, exploration: float) -> Array:
    """Return the optimistic estimate of each arm; infinite for one that was never pulled.

    mean + exploration sqrt(2 log(time) / pulls), the time starting at 1.
    """
    pulls = jnp.maximum(arms.pulls, 1)
    bonus = exploration * jnp.sqrt(2 * jnp.log(time) / pulls)
    return jnp.where(arms.pulls > 0, arms.total / pulls + bonus, jnp.inf)


def learning_follower(exploration: float) -> Follow:
    """Return a follower that learns the best response to each action by its own rewards."""

    def follow(arms: Arms, action: Array) -> Array:
        row = Arms(arms.total[action], arms.pulls[action])
        return upper_bound(row, jnp.maximum(row.pulls.sum(), 1), exploration).argmax()

    return follow


def committed_follower(response: Array) -> Follow:
    """Return a follower that plays a response [A] whatever it sees."""
    return lambda arms, action: response[action]


def play(
    key: Key,
    payoff: Array,
    other_payoff: Array,
    follow: Follow,
    rounds: int,
    *,
    noise: float,
    exploration: float,
) -> Rounds:
    """Play rounds between a leader who learns by UCB and a follower.

    noise: standard deviation of the rewards around their means.
    exploration: weight of the leader's optimism, at least as large as the noise.
    """
    actions, answers = payoff.shape

    def step(state, inputs):
        mine, theirs = state
        time, key = inputs
        action = upper_bound(mine, time, exploration).argmax()
        answer = follow(theirs, action)
        reward, other = noise * jax.random.normal(key, (2,), payoff.dtype)
        reward, other = reward + payoff[action, answer], other + other_payoff[action, answer]
        mine = Arms(mine.total.at[action].add(reward), mine.pulls.at[action].add(1))
        theirs = Arms(
            theirs.total.at[action, answer].add(other), theirs.pulls.at[action, answer].add(1)
        )
        means = payoff[action, answer], other_payoff[action, answer]
        return (mine, theirs), Rounds(action, answer, *means)

    zero = lambda *shape: Arms(jnp.zeros(shape, payoff.dtype), jnp.zeros(shape, payoff.dtype))
    times = jnp.arange(1, rounds + 1, dtype=payoff.dtype)
    inputs = times, jax.random.split(key, rounds)
    return jax.lax.scan(step, (zero(actions), zero(actions, answers)), inputs)[1]
