"""REFUEL's regression against mirror descent by exact values of turns, in tables.

A conversation has two turns: the policy says one of a few things, the user replies at random, the
policy speaks again, and each turn is rewarded. Pairs of conversations are alike up to a turn and go
their own ways from there; expectations are sums over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.solvers import mirror_descent

SAID, REPLIES = 4, 3
ETA = 0.7
STATES = SAID * REPLIES  # of the second turn
Loss = Callable[..., Array]  # like `losses.refuel`


class Talk(NamedTuple):
    """Log-probabilities of what is said first [U] and second [U, R, U], chances [U, R] of replies,
    and rewards of what is said first [U] and second [U, R, U]."""

    first: Array
    second: Array
    reply: Array
    reward: Array
    later: Array


def draw(key: Key) -> Talk:
    """Draw a policy, a user and rewards."""
    keys = jax.random.split(key, 5)
    normal = jax.random.normal
    shape = (SAID, REPLIES, SAID)
    return Talk(
        jax.nn.log_softmax(normal(keys[0], (SAID,))),
        jax.nn.log_softmax(normal(keys[1], shape)),
        jax.nn.softmax(normal(keys[2], (SAID, REPLIES))),
        normal(keys[3], (SAID,)),
        normal(keys[4], shape),
    )


def value(x: Talk, first: Array, second: Array) -> Array:
    """Return the expected sum of rewards of a policy."""
    return jnp.exp(first) @ to_go(x, second)


def to_go(x: Talk, second: Array) -> Array:
    """Return what each of the first utterances earns to the end, [U]."""
    return x.reward + (x.reply * (jnp.exp(second) * x.later).sum(-1)).sum(-1)


def endings(x: Talk) -> tuple[Array, Array]:
    """Return the chances and rewards [2, U, R * U] of all endings after each first utterance."""
    chance = (x.reply[..., None] * jnp.exp(x.second)).reshape(SAID, -1)
    later = x.later.reshape(SAID, -1)
    return chance, jnp.stack([jnp.broadcast_to(x.reward[:, None], later.shape), later])


def of_first(loss: Loss, x: Talk, log_prob: Array) -> Array:
    """Return the expected loss of pairs that go their own ways from the first turn on."""
    chance, rewards = endings(x)
    count = chance.shape[-1]
    whole = (jnp.exp(x.first)[:, None] * chance).reshape(-1)
    own = rewards.reshape(2, -1)
    each = [jnp.repeat(y, count) for y in (log_prob, x.first)]
    two = lambda y: jnp.broadcast_arrays(y[..., :, None], y[..., None, :])
    (now, other), (old, other_old), (reward, other_reward) = map(two, (*each, own))
    found = loss(now, other, old, other_old, reward, other_reward, ETA)
    return (whole[:, None] * whole * found).sum()


def of_second(loss: Loss, x: Talk, log_prob: Array) -> Array:
    """Return the expected loss of pairs that part in the second turn, of all beginnings alike."""
    old, later = x.second.reshape(STATES, SAID), x.later.reshape(STATES, SAID)
    p = jnp.exp(old)
    two = lambda y: jnp.broadcast_arrays(y[..., :, None], y[..., None, :])
    (now, other), (was, other_was), (reward, other_reward) = map(
        two, (log_prob.reshape(STATES, SAID), old, later[None])
    )
    found = loss(now, other, was, other_was, reward, other_reward, ETA)
    return (p[:, :, None] * p[:, None, :] * found).sum()


def minimum(expectation: Callable[[Array], Array], shape: tuple[int, ...]) -> Array:
    """Return the log-probabilities that minimize a quadratic function of their differences."""
    free = [(0, 0)] * (len(shape) - 1) + [(1, 0)]
    begin = jnp.zeros((*shape[:-1], shape[-1] - 1))
    policy = lambda others: jnp.pad(others.reshape(begin.shape), free)
    of_others = lambda others: expectation(policy(others))
    slope, curvature = (f(of_others)(begin.reshape(-1)) for f in (jax.grad, jax.hessian))
    return jax.nn.log_softmax(policy(-jnp.linalg.solve(curvature, slope)))


def errors_of(loss: Loss, x: Talk) -> dict[str, Array]:
    """Return the errors of a loss like REFUEL's."""
    first = minimum(lambda z: of_first(loss, x, z), x.first.shape)
    second = minimum(lambda z: of_second(loss, x, z), x.second.shape)
    exact = mirror_descent(x.first, to_go(x, x.second), ETA)
    of_turn = mirror_descent(x.second, x.later, ETA)
    gain = value(x, first, second) - value(x, x.first, x.second)
    slope = jax.grad(lambda z: of_first(loss, x, jax.nn.log_softmax(z)))(x.first)
    return_of = lambda z: value(x, jax.nn.log_softmax(z), x.second)
    far = lambda found, right: jnp.abs(found - right).max() / jnp.abs(right).max()
    return {
        "the first turn, mirror descent by its value": far(first, exact),
        "the second turn, mirror descent by its reward": far(second, of_turn),
        "the first gradient, the policy gradient": far(
            slope, -4 / ETA * jax.grad(return_of)(x.first)
        ),
        "the return falls": jnp.maximum(-gain, 0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of REFUEL."""
    return errors_of(losses.refuel, draw(key))


def wrong(loss: Loss) -> Callable[[Key], dict[str, Array]]:
    """Return the error of the first turn with a wrong loss."""
    name = "the first turn, mirror descent by its value"
    return jax.jit(lambda key: {name: errors_of(loss, draw(key))[name]})


def of_this_turn(refuel: Loss) -> Loss:
    """Regress on the reward of the turn alone, without the future."""
    return lambda now, other, old, other_old, reward, other_reward, eta: refuel(
        now, other, old, other_old, reward[:1], other_reward[:1], eta
    )


def half_reward(refuel: Loss) -> Loss:
    """Regress on the rewards of the first conversation alone."""
    return lambda *given: refuel(*given[:5], jnp.zeros_like(given[5]), given[6])


CLAIM = Exact(
    paper=Paper(
        "Regressing the Relative Future: Efficient Policy Optimization for Multi-turn RLHF",
        "Gao, Zhan, Chang, Swamy, Brantley, Lee and Sun",
        2024,
        "2410.04612",
        "One model that regresses differences of log-ratios on those of rewards to come, in "
        "conversations of its own, estimates Q values without a critic and matches any policy that "
        "the data covers. It exceeds DPO and REBEL in later turns of conversations.",
    ),
    claim="From sampled rewards to come, REFUEL's minimum is mirror descent by exact Q values at "
    "every turn, and its first gradient the policy's.",
    left_out="Language models, the bound of its theorem, and comparisons with REBEL and DPO: here "
    "conversations have two turns of four utterances, the user three replies, and expectations are "
    "sums over all pairs. That the return never falls follows from mirror descent.",
    parts=("jaxrl/losses/preferences/relative_rewards.py", "jaxrl/algorithms/tokens/refuel.py"),
    errors=errors,
    planted={
        "the reward of this turn alone": wrong(of_this_turn(losses.refuel)),
        "the rewards of one conversation alone": wrong(half_reward(losses.refuel)),
    },
    tolerance=1e-9,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("the reward of this turn alone", "jaxrl.losses:refuel", of_this_turn),
        Mutation("the rewards of one conversation alone", "jaxrl.losses:refuel", half_reward),
    ),
)
