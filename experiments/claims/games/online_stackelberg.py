"""A leader who learns by its rewards, and a follower who learns too, or who manipulates it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import solvers
from jaxrl.core.types import Array, Key
from jaxrl.exact import stackelberg

ACTIONS, ROUNDS, NOISE, EXPLORATION = 3, 20_000, 0.1, 0.2
RESPONSES = np.asarray(list(itertools.product(range(ACTIONS), repeat=ACTIONS)), np.int32)
MARGIN = 0.02  # leads below it are not counted, since a learner would take too long to see them
Manipulate = Callable[..., Array]  # like `stackelberg.best_manipulation`


def outcome(payoff: Array, other_payoff: Array, response: Array) -> tuple[Array, Array]:
    """Return what the follower earns when the leader answers a response, and the leader's lead."""
    earned = jnp.take_along_axis(payoff, response[:, None], 1)[:, 0]
    action = earned.argmax()
    second = jnp.sort(earned)[-2]
    return other_payoff[action, response[action]], earned[action] - second


def last(rounds: stackelberg.Rounds) -> tuple[Array, Array]:
    """Return the payoffs of the pair of actions that was played most in the last tenth."""
    end = ROUNDS // 10
    pairs = (rounds.leader * ACTIONS + rounds.follower)[-end:]
    most = jnp.bincount(pairs, length=ACTIONS**2).argmax()
    place = (pairs == most).argmax()
    return rounds.payoff[-end:][place], rounds.other_payoff[-end:][place]


def measure(key: Key, manipulate: Manipulate) -> Mapping[str, Any]:
    """Return the errors of both followers.

    The best manipulation is compared with the best of all 27 responses by enumeration.
    """
    payoff_key, key, other_key = jax.random.split(key, 3)
    payoff, other = jax.random.uniform(payoff_key, (2, ACTIONS, ACTIONS), float)
    gains, leads = jax.vmap(lambda f: outcome(payoff, other, f))(jnp.asarray(RESPONSES))
    best = jnp.where(leads > MARGIN, gains, -jnp.inf).max()
    response = manipulate(payoff, other, MARGIN)
    gain, _ = outcome(payoff, other, response)
    play = lambda key, follow: stackelberg.play(
        key, payoff, other, follow, ROUNDS, noise=NOISE, exploration=EXPLORATION
    )
    learned = play(key, stackelberg.learning_follower(EXPLORATION))
    steered = play(other_key, stackelberg.committed_follower(response))
    myopic, _ = outcome(payoff, other, stackelberg.best_response(other))
    value = solvers.stackelberg_value(payoff, other)
    return {
        "leader below the Stackelberg value": jnp.maximum(value - last(learned)[0], 0),
        "manipulation below the best response of all": jnp.maximum(best - gain, 0),
        "manipulation below the myopic follower": jnp.maximum(myopic - gain, 0),
        "steered follower below its manipulation": jnp.maximum(gain - last(steered)[1], 0),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of both followers."""
    return measure(key, stackelberg.best_manipulation)


def generous(manipulate: Manipulate) -> Manipulate:
    """Take the follower's best pair of all, as if the leader could be brought to any."""

    def change(payoff, other_payoff, margin=0.0):
        action, answer = jnp.unravel_index(other_payoff.argmax(), payoff.shape)
        return jnp.where(jnp.arange(len(payoff)) == action, answer, other_payoff.argmax(-1))

    return change


def spiteful(manipulate: Manipulate) -> Manipulate:
    """Leave the leader the least after every action."""
    return lambda payoff, other_payoff, margin=0.0: payoff.argmin(-1)
