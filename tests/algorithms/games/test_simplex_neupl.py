"""Simplex-NeuPL: games against any mixture, and the exact returns beside Bayes-optimal ones."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.games import neupl
from jaxrl.algorithms.games import simplex_neupl as s
from jaxrl.algorithms.games.shared.self_play import self_play
from jaxrl.core import random, settings
from jaxrl.core.train import start
from jaxrl.core.types import Policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.exact import games
from jaxrl.kit.wrapping import params_of, snapshot, with_params

SMALL = {"num_envs": 8, "num_steps": 6, "epochs": 1, "minibatches": 1, "hidden": (4,)}
CONFIG = settings.replace(s.Config(rows=3, parts=2), SMALL | {"recurrent": 4})


@functools.cache
def game():
    return envs.make("repeated_rock_paper_scissors", rounds=2, stakes=[2.0, 1.0, 1.0])


def test_the_grid_holds_all_mixtures_of_its_fineness():
    grid = s.grid(3, 2)
    expected = {(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)}
    assert {tuple(x) for x in grid.tolist()} == expected and len(grid) == len(expected)


def test_part_of_the_games_answer_a_mixture_of_all_rows_and_pay_nothing_into_payoffs():
    def step(share) -> Any:
        algorithm = s.simplex_neupl(game(), dataclasses.replace(CONFIG, simplex=share))
        state = start(algorithm, random.key(0)).state
        return jax.jit(algorithm.step)(state, random.key(1))[0]

    task = jax.device_get(step(0.5).source.streams.task)
    assert {3} < set(task.row) <= {1, 2, 3}
    np.testing.assert_allclose(task.sigma.sum(1), 1, rtol=1e-5)
    assert (task.sigma[task.row == 3] > 0).all()  # of all rows
    assert (task.sigma[task.row == 1] == [1, 0, 0]).all()

    state = step(1.0)
    assert (np.asarray(state.source.streams.task.row) == 3).all()
    assert not np.asarray(state.source.tasks.games).any()

    state = step(0.0)
    assert not hasattr(state.source.streams.task, "sigma")
    assert np.asarray(state.source.tasks.games).any()


def test_the_exact_returns_are_those_of_games_that_are_played():
    """The policy conditioned on a mixture, in games against rows that are drawn from it."""
    algorithm = s.simplex_neupl(game(), CONFIG)
    state = start(algorithm, random.key(3)).state
    # Larger weights, so that choices depend on the memory and on the mixture.
    params = jax.tree.map(lambda x: 4 * x, params_of(state.agent))
    state = dataclasses.replace(state, agent=with_params(state.agent, params))
    tree = games.cached_game(game())
    played = neupl.mixture(state, CONFIG)
    graph = jnp.asarray([[0.0, 0, 0], [1, 0, 0], [0.4, 0.6, 0]])
    played = dataclasses.replace(played, graph=graph)
    own, best = jax.jit(lambda: s.returns(game(), CONFIG, played, tree))()
    assert (best >= own - 1e-5).all() and (best - own).max() > 0.1

    learner, environment = self_play(game(), CONFIG.ppo, np.zeros(3), neupl.answers)
    params = dataclasses.replace(
        environment.params,
        opponent=snapshot(state.agent),
        goal=jnp.asarray([0.0, 0.0, 1.0]),
        opponent_goal=graph[2],
    )
    against = dataclasses.replace(environment, params=params)
    policy = Policy(learner.act, learner.memory, state.agent)
    returns = np.asarray(evaluate(against, policy, random.key(5), 8000, False).returns)
    place = int(np.flatnonzero((s.grid(3, 2) == [0, 0, 1]).all(1))[0])
    error = returns.std() / np.sqrt(len(returns))
    np.testing.assert_allclose(returns.mean(), own[place], atol=4 * error)
