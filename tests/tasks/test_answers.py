"""Past selves as opponents: when the agent joins them, the payoffs, and the mixture over them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact.meta_games import nash, uniform
from jaxrl.tasks.answers import past_answers
from tests.tasks.test_league import policy, window


def answers(solve=uniform, size=3, shortest=1, longest=4, **settings):
    return past_answers(
        lambda x: x, lambda state: state["w"], solve, size,
        shortest=shortest, longest=longest, enough=0.9, memory=0.5, **settings,
    )  # fmt: skip


def games(results):
    """A window of one game against each of `results`, pairs of an opponent and a share won."""
    task, won = (jnp.asarray(x)[None] for x in zip(*results, strict=True))
    return window(task, jnp.ones_like(task), won)


def test_the_agent_joins_when_it_has_beaten_the_mixture_or_after_the_longest_time():
    tasks = answers(shortest=2)
    state = tasks.init(jax.random.key(0), policy(7), {})
    np.testing.assert_array_equal(state.weights, [1, 0, 0])
    won, lost = games([(0, 1.0)] * 10), games([(0, 0.0)] * 10)
    state = tasks.update(state, policy(1), won)
    assert int(state.count) == 1 and float(state.games[0]) == 10  # beaten, but too soon
    state = tasks.update(state, policy(2), won)
    assert int(state.count) == 2 and state.members.tolist() == [7, 2, 7]
    assert float(state.total.sum()) == float(state.games.sum()) == int(state.windows) == 0
    np.testing.assert_allclose(state.payoff, [[0, -1, 0], [1, 0, 0], [0, 0, 0]])
    for number in range(3):
        state = tasks.update(state, policy(number), lost)
        assert int(state.count) == 2
    state = tasks.update(state, policy(9), lost)
    assert int(state.count) == 3 and state.members.tolist() == [7, 2, 9]
    np.testing.assert_allclose(state.payoff[2], [-1, 0, 0])


def test_payoffs_are_recent_shares_and_answers_replace_the_least_of_a_full_population():
    tasks = answers(nash, longest=2, exploration=0.5)
    state = tasks.init(jax.random.key(0), policy(0), {})
    # It wins half of the games of one window against the first, then three quarters.
    state = tasks.update(state, policy(1), games([(0, 1.0)] * 2 + [(0, 0.0)] * 2))
    state = tasks.update(state, policy(1), games([(0, 1.0)] * 3 + [(0, 0.0)]))
    lead = (0.5 * 0 + 2) / (0.5 * 4 + 4)
    np.testing.assert_allclose(state.payoff[1, 0], lead, rtol=1e-6)
    np.testing.assert_allclose(state.payoff, -state.payoff.T)
    np.testing.assert_allclose(state.weights, [0, 1, 0], atol=0.02)  # which beats the first
    # The third loses to the second and beats the first: the equilibrium stays.
    for _ in range(2):
        state = tasks.update(state, policy(2), games([(0, 1.0), (1, 0.0)]))
    np.testing.assert_allclose(state.payoff[2], [1, -1, 0])
    np.testing.assert_allclose(state.weights, [0, 1, 0], atol=0.02)
    drawn = np.bincount(tasks.sample(state, jax.random.key(1), 20_000), minlength=3) / 20_000
    np.testing.assert_allclose(drawn, [1 / 6, 2 / 3, 1 / 6], atol=0.03)
    least = int(state.weights.argmin())
    state = tasks.update(state, policy(3), games([(least, 0.0), (1, 1.0)]))
    assert float(state.members[least]) == 3 and int(state.count) == 3
    # Games against the member that it replaced say nothing about itself.
    expected = np.where(np.arange(3) == 1, 1.0, 0.0)
    np.testing.assert_allclose(state.payoff[least], expected)


def test_settings_that_are_refused():
    with pytest.raises(UserError, match="size of a population"):
        answers(size=0)
    with pytest.raises(UserError, match="in order from 1 up, got 5 and 4"):
        answers(shortest=5)
