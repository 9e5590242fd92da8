"""The league and NeuPL: opponents, mixtures and exploitability."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import league as leagues
from jaxrl.algorithms.games import neupl as populations
from jaxrl.algorithms.games.shared.self_play import play_table
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.train import start
from jaxrl.exact import games
from jaxrl.kit.wrapping import params_of, snapshot, with_params
from tests.contracts.structure import check_structure

SMALL = {"num_envs": 8, "num_steps": 4, "epochs": 1, "minibatches": 1, "hidden": (4,)}
LEAGUE = settings.replace(leagues.Config(pool=2, every=1), SMALL)
POPULATION = settings.replace(populations.Config(rows=3), SMALL)


@functools.cache
def game():
    return envs.make("rock_paper_scissors")


def test_structure_of_both():
    algorithm = leagues.league(game(), LEAGUE)
    assert algorithm.config is LEAGUE and "ppo.optimizer.learning_rate" in algorithm.hyper
    check_structure(algorithm)
    algorithm = populations.neupl(game(), POPULATION)
    assert algorithm is populations.neupl(game(), config=POPULATION)
    assert algorithm.config is POPULATION
    check_structure(algorithm)


def test_a_step_plays_the_population_and_its_mixture_draws_a_row_for_each_side():
    algorithm = populations.neupl(game(), POPULATION)

    @jax.jit
    def run(key):
        run = start(algorithm, key)
        state, _ = algorithm.step(run.state, key)
        policy = algorithm.policy(state)
        only = dataclasses.replace(policy.state, weights=jnp.asarray([0.0, 0.0, 1.0]))
        timestep = game().reset(key, game().params)[1]
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (600, *x.shape)), timestep)
        second = dataclasses.replace(many, role=jnp.ones(600, jnp.int32))
        spread = dataclasses.replace(policy.state, weights=jnp.asarray([0.5, 0.5, 0.0]))
        _, rows, _ = policy.act(spread, many, policy.memory(600), key, False)
        _, kept, _ = policy.act(only, second, rows, key, False)
        return state, rows, kept

    state, rows, kept = jax.device_get(run(random.key(0)))
    found = state.source.tasks
    assert found.games.sum() > 0 and not np.triu(found.games).any()
    np.testing.assert_allclose(found.graph.sum(1), [0, 1, 1], atol=1e-5)
    params = jax.tree.leaves(params_of(state.agent))
    for ours, shared in zip(params, jax.tree.leaves(params_of(found.shared)), strict=True):
        assert ours.shape == shared.shape
    drawn = rows.member
    assert set(drawn.ravel()) == {0, 1}
    assert 0.3 < (drawn[:, 0] != drawn[:, 1]).mean() < 0.7  # each side draws independently
    np.testing.assert_array_equal(kept.member, drawn)  # and keeps its row to the end of the game


@pytest.mark.slow
def test_exploitability():
    """Measures single policies and a mixture of rows in rock, paper, scissors."""
    algorithm = leagues.league(game(), LEAGUE)
    measure = jax.jit(lambda state: algorithm.measure(state, random.key(0))["exploitability"])
    state = start(algorithm, random.key(0)).state
    table = lambda logits: dataclasses.replace(
        state, agent=with_params(state.agent, _always(params_of(state.agent), logits))
    )
    assert measure(table([9.0, 0.0, 0.0])) > 0.99 and measure(table([0.0, 0.0, 0.0])) < 1e-5

    algorithm = populations.neupl(game(), POPULATION)
    state = start(algorithm, random.key(0)).state
    params = _always(params_of(state.agent), [0.0, 9.0, 0.0])
    state = dataclasses.replace(state, agent=with_params(state.agent, params))
    measure = jax.jit(lambda state: algorithm.measure(state, random.key(0))["exploitability"])
    weights = populations.mixture(state, POPULATION).weights
    # The share of games in which a side always plays paper, not uniformly; scissors beat paper.
    np.testing.assert_allclose(measure(state), 1 - weights[0], atol=1e-3)


def _always(params, logits):
    """Return parameters of an actor-critic whose policy has these logits everywhere."""
    nothing = jax.tree.map(jnp.zeros_like, params)
    is_policy = lambda x: x.shape == (len(logits),)
    found = [x for x in jax.tree.leaves(nothing) if is_policy(x)]
    assert len(found) == 1
    return jax.tree.map(lambda x: jnp.asarray(logits) if is_policy(x) else x, nothing)


def test_snapshots_hold_the_statistics_that_they_were_taken_with():
    env = envs.make("kuhn_poker")
    normalized = {"normalization.observation": True, "normalization.reward": True}
    algorithm = leagues.league(env, settings.replace(LEAGUE, normalized | {"pool": 8}))
    step = jax.jit(algorithm.step)
    state, taken = start(algorithm, random.key(0)).state, []
    for i in range(3):
        taken.append(snapshot(state.agent))
        state, _ = step(state, random.key(i))
    # Snapshots: at the start, and after each window by the agent as it played it.
    moments = lambda own: np.concatenate([np.ravel(x) for x in jax.tree.leaves(own)])
    pool = state.source.tasks.opponents
    assert int(state.source.tasks.taken) == 4
    for k, early in ((0, taken[0]), (1, taken[0]), (2, taken[1]), (3, taken[2])):
        in_pool = jax.tree.map(lambda x, k=k: x[k], pool)
        np.testing.assert_array_equal(moments(in_pool.own), moments(early.own))
    assert np.abs(moments(taken[2].own) - moments(taken[1].own)).max() > 0.01

    # A snapshot says what the agent says, and its table in the whole game is what it plays.
    agent, found = algorithm.agent, taken[2]
    network = policy_network(env, LEAGUE.ppo.torso)
    game = games.enumerate_game(env.rules, env.params)
    act = jax.jit(functools.partial(agent.act, greedy=False))
    action, _, said = act(found, game.timesteps, (), random.key(5))
    table = np.asarray(play_table(env, network, found, game))
    chosen = table[np.arange(len(table)), np.asarray(action)]
    np.testing.assert_allclose(chosen, np.exp(said["log_prob"]), rtol=1e-4)
    raw = dataclasses.replace(found, own=[None for _ in found.own])
    assert np.abs(table - np.asarray(play_table(env, network, raw, game))).max() > 1e-4


def test_row_0_plays_any_legal_action():
    logits = lambda state, timestep, memory, key, greedy: (jnp.zeros(600, jnp.int32), memory, {})
    timestep = game().reset(random.key(0), game().params)[1]
    goal = jnp.where(jnp.arange(600)[:, None] < 300, 0.0, jnp.asarray([1.0, 0.0]))
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (600, *x.shape)), timestep)
    many = dataclasses.replace(many, goal=goal)
    action, _, _ = populations.answers(logits)((), many, (), random.key(1), True)
    assert set(np.asarray(action[:300])) == {0, 1, 2} and not np.asarray(action[300:]).any()


def test_invalid_settings_are_rejected():
    with pytest.raises(UserError, match="solver"):
        populations.neupl(game(), dataclasses.replace(POPULATION, solver="nahs"))
    with pytest.raises(UserError, match="exploration"):
        populations.neupl(game(), dataclasses.replace(POPULATION, exploration=0.0))
    with pytest.raises(UserError, match="transformer is 4; a league's agents have none"):
        leagues.league(game(), settings.replace(LEAGUE, {"transformer": 4}))
    with pytest.raises(UserError, match="game for two"):
        leagues.league(envs.make("cartpole"), LEAGUE)
