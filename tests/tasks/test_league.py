"""The next opponent: from a pool of past selves, or from the rows of a population."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.tasks.league import past_selves
from jaxrl.tasks.population import Pair, payoff, population

SIZE = 3


def policy(number: float) -> Policy:
    return Policy(None, None, {"w": jnp.float32(number)})  # type: ignore[arg-type]


def window(task, done, outcome) -> Transition:
    """Make games [T, B] with these ids, ends and outcomes."""
    done, outcome = jnp.asarray(done, bool), jnp.asarray(outcome, jnp.float32)
    metrics = {"won": outcome, "outcome": outcome}
    none = jnp.zeros_like(done)
    step = TimeStep(none, outcome, done, none, none, metrics=metrics)
    return Transition(step, none, step, task, {})


def pool(**settings):
    return past_selves(lambda x: x, lambda state: state["w"], SIZE, every=2, **settings)


def test_snapshots_enter_a_ring_every_so_many_windows():
    tasks = pool()
    state, nothing = (
        tasks.init(jax.random.key(0), policy(0), {}),
        window(jnp.zeros((1, 1), int), [[0]], [[0]]),
    )
    found = []
    for number in range(1, 9):
        state = tasks.update(state, policy(number), nothing)
        found.append(np.asarray(state.opponents).tolist())
    # The first snapshot is in slot 0; those of 2 and 4 fill the pool; 6 and 8 replace the oldest.
    assert found[0] == [0, 0, 0] and found[1] == [0, 2, 0] and found[3] == [0, 2, 4]
    assert found[5] == [6, 2, 4] and found[7] == [6, 8, 4]


def test_only_snapshots_that_exist_are_drawn_and_ids_are_their_places():
    tasks = pool()
    state = tasks.init(jax.random.key(0), policy(7), {})
    assert set(np.asarray(tasks.sample(state, jax.random.key(1), 64))) == {0}
    assert tasks.params(state, jnp.int32(0)) == 7


@pytest.mark.parametrize("matching", ["uniform", "hard", "even"])
def test_opponents_are_drawn_by_the_outcomes_of_games_against_them(matching):
    tasks = pool(matching=matching, memory=1.0)
    state = tasks.init(jax.random.key(0), policy(0), {})
    for number in range(1, 5):
        state = tasks.update(state, policy(number), window(jnp.zeros((1, 1), int), [[0]], [[0]]))
    # 40 games against each, of which 8, 20 and 32 were won. Unfinished games do not count.
    task = jnp.tile(jnp.arange(3), (80, 1))
    ended = np.repeat([[True] * 3, [False] * 3], 40, axis=0)
    won = np.arange(80)[:, None] % 40 < np.asarray([8, 20, 32])
    state = tasks.update(state, policy(5), window(task, ended, won))
    np.testing.assert_array_equal(state.games, [40, 40, 40])
    np.testing.assert_array_equal(state.won, [8, 20, 32])
    drawn = np.bincount(tasks.sample(state, jax.random.key(2), 20_000), minlength=3) / 20_000
    p = (np.asarray([8, 20, 32]) + 0.5) / 41
    weight = {"uniform": np.ones(3), "hard": (1 - p) ** 2, "even": p * (1 - p)}[matching]
    np.testing.assert_allclose(drawn, weight / weight.sum(), atol=0.015)
    fresh = tasks.update(state, policy(6), window(task, ended, won))  # puts a snapshot into slot 0
    assert fresh.games.tolist() == [0, 80, 80] and fresh.won[0] == 0


def test_settings_that_are_refused():
    with pytest.raises(UserError, match="matching"):
        pool(matching="best")
    with pytest.raises(UserError, match="at least 1"):
        past_selves(lambda x: x, lambda x: x, 0, 1)
    with pytest.raises(UserError, match="2 rows"):
        population(lambda *x: x, lambda x: x, lambda p, m: m, 1)


@pytest.mark.slow
def test_a_population_estimates_payoffs_and_draws_its_graph_below_the_diagonal():
    latest = lambda payoff, mask: (jnp.arange(mask.size) == mask.sum() - 1) * 1.0
    tasks = population(lambda *x: x, lambda s: s["w"], latest, 3, exploration=0.2, memory=0.5)
    state = tasks.init(jax.random.key(0), policy(1), {})
    np.testing.assert_array_equal(state.graph, [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    pairs = Pair(jnp.asarray([[1, 2, 2, 2]]), jnp.asarray([[0, 0, 1, 1]]))
    state = tasks.update(state, policy(2), window(pairs, [[1, 1, 1, 0]], [[1.0, -1, 2, 99]]))
    state = tasks.update(state, policy(3), window(pairs, [[1, 0, 0, 0]], [[0.0, 9, 9, 9]]))
    expected = np.asarray([[0, -1 / 3, 1], [1 / 3, 0, -2], [-1, 2, 0]])
    np.testing.assert_allclose(payoff(state), expected, atol=1e-6)
    assert state.shared == 3
    drawn = tasks.sample(state, jax.random.key(1), 10_000)
    row, opponent = np.asarray(drawn.row), np.asarray(drawn.opponent)
    assert set(row) == {1, 2} and (opponent < row).all()
    np.testing.assert_allclose((opponent[row == 2] == 1).mean(), 0.8 + 0.2 / 2, atol=0.02)
    shared, goal, other = tasks.params(state, Pair(jnp.int32(2), jnp.int32(1)))
    assert shared == 3 and goal.tolist() == [0, 1, 0] and other.tolist() == [1, 0, 0]
