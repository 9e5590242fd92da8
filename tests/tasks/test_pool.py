"""Pools of opponents whose weights come from outside."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.tasks.pool import Meeting, fill, opponents, pool, put, worth

KEY = random.key(0)


def window(opponent, done, outcome) -> Transition:
    """Make games [T, B] against these opponents, with these ends and outcomes."""
    done, outcome = jnp.asarray(done, bool), jnp.asarray(outcome, jnp.float32)
    none = jnp.zeros_like(done)
    step = TimeStep(none, outcome, done, none, none, metrics={"outcome": outcome})
    return Transition(step, none, step, Meeting(jnp.asarray(opponent), outcome), {})


def start(weights, risk=0.0):
    tasks = pool(lambda member, worth: (member, worth), lambda policy: policy.state)
    members = put(fill({"w": jnp.float32(0)}, 3), 1, {"w": jnp.float32(5)})
    first = opponents(members, jnp.asarray(weights, jnp.float32), risk)
    policy = Policy(None, None, first)  # type: ignore[arg-type]
    return tasks, tasks.init(KEY, policy, {}), policy


def test_opponents_are_drawn_by_the_weights_given():
    tasks, state, _ = start([0.25, 0.75, 0.0])
    drawn = tasks.sample(state, KEY, 4000)
    shares = np.bincount(drawn.opponent, minlength=3) / 4000
    np.testing.assert_allclose(shares, [0.25, 0.75, 0], atol=0.03)
    assert (np.asarray(drawn.worth) == 1).all()
    member, factor = tasks.params(state, Meeting(jnp.int32(1), jnp.float32(2)))
    assert member["w"] == 5 and factor == 2


def test_playing_changes_neither_members_nor_weights():
    """The policy that plays learns all the time; its opponents do not."""
    tasks, state, policy = start([0.5, 0.5, 0.0])
    games = window([[0, 1, 1, 1]], [[1, 1, 1, 0]], [[1.0, -1, 3, 99]])
    other = dataclasses.replace(
        policy, state=opponents(fill({"w": jnp.float32(9)}, 3), 0 * state.weights, 0)
    )
    after = tasks.update(tasks.update(state, other, games), other, games)
    np.testing.assert_array_equal(after.members["w"], [0, 5, 0])
    np.testing.assert_array_equal(after.weights, [0.5, 0.5, 0])
    np.testing.assert_allclose(after.total, [1.9, 3.8, 0], rtol=1e-6)
    np.testing.assert_allclose(after.games, [1.9, 3.8, 0], rtol=1e-6)


def test_worth_gives_the_gradient_of_the_utility():
    """Weighted sums of the outcomes' derivatives are those of mean minus risk times variance."""
    weights, risk = np.asarray([0.2, 0.5, 0.3]), 0.7
    outcomes = lambda t: jnp.asarray([jnp.sin(t), t**2, 1 - t])

    def utility(t):
        mean = (weights * outcomes(t)).sum()
        return mean - risk * (weights * (outcomes(t) - mean) ** 2).sum()

    t = 0.4
    _, state, _ = start(weights, risk)
    state = dataclasses.replace(state, total=4 * outcomes(t), games=jnp.full(3, 4.0))
    found = (weights * worth(state) * jax.jacfwd(outcomes)(t)).sum()
    np.testing.assert_allclose(found, jax.grad(utility)(t), rtol=1e-5)


def test_without_games_or_risk_all_games_are_worth_the_same():
    _, state, _ = start([0.2, 0.5, 0.3], 0.7)
    np.testing.assert_array_equal(worth(state), 1)
    one = dataclasses.replace(
        state, total=jnp.asarray([0.0, 6.0, 2.0]), games=jnp.asarray([0.0, 2, 2])
    )
    # The first member is unknown, so the average is that of the others: (0.5 * 3 + 0.3 * 1) / 0.8.
    np.testing.assert_allclose(worth(one), [1, 1 - 1.4 * 0.75, 1 + 1.4 * 1.25], rtol=1e-5)
    np.testing.assert_array_equal(worth(dataclasses.replace(one, risk=jnp.float32(0))), 1)
