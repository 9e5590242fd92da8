"""PSRO: what joins the population, whose payoffs are measured, and what is measured of it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import psro as p
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.train import start
from jaxrl.evaluation.matches import Results
from jaxrl.exact import games
from jaxrl.kit.wrapping import params_of
from jaxrl.runtime import checkpoints
from tests.contracts.structure import check_structure

SIZE = 3
SMALL = {
    "num_envs": 16, "num_steps": 8, "epochs": 1, "minibatches": 1, "hidden": (4,),
    "learning_rate": 0.1, "size": SIZE, "windows": 3, "games": 200, "fresh": False,
}  # fmt: skip
CONFIG = settings.replace(p.Config(), SMALL)


@functools.cache
def game():
    return envs.make("rock_paper_scissors")


@functools.cache
def algorithm():
    return p.psro(game(), CONFIG)


def exact_payoffs(config, members):
    """Return the payoffs [K, K] of members against each other, on both sides."""
    tree = games.enumerate_game(game().rules, game().params)
    reaches = jax.vmap(lambda table: games.reach(tree, table))(
        p.tables(game(), config, members, tree)
    )
    first = jnp.einsum("iz,jz,z->ij", *reaches.swapaxes(0, 1), tree.chance * tree.payoff[:, 0])
    return (first - first.T) / 2


@pytest.mark.slow
def test_structure_of_psro():
    assert algorithm() is p.psro(game(), config=CONFIG) and algorithm().config is CONFIG
    assert {"risk", "ppo.optimizer.learning_rate"} <= set(algorithm().hyper)
    check_structure(algorithm())


def test_a_new_policy_takes_a_free_place_and_then_that_of_the_least_share():
    weights = jnp.asarray([0.5, 0.1, 0.4])
    assert [int(p.next_place(weights, jnp.int32(count))) for count in (1, 2, 3)] == [1, 2, 1]


def test_payoffs_of_a_predecessor_do_not_stay():
    """Row and column are both replaced, and members that do not exist have no payoffs."""
    payoff = jnp.arange(16.0).reshape(4, 4)
    new = Results(*(jnp.asarray(x)[None] for x in ([1.0, 2, 3, 9], [4.0, 6, 5, 9], [0.0] * 4)))
    found = p.replace_payoffs(payoff, jnp.int32(1), new, jnp.asarray([True, True, True, False]))
    np.testing.assert_array_equal(
        found, [[0, 4, 2, 3], [1, 4, 3, 0], [8, 5, 10, 11], [12, 0, 14, 15]]
    )


@pytest.mark.slow
def test_a_run_keeps_its_opponents_and_measures_new_payoffs(tmp_path):
    """Only the new policy's place changes; payoffs are those of the members that are there; and a
    run that is resumed goes on alike."""
    step = jax.jit(algorithm().step)
    state, keys = start(algorithm(), random.key(0)).state, jax.random.split(random.key(1), 6)
    shapes = jax.eval_shape(lambda: state)
    pool = lambda state: state.inner.source.tasks
    rows = lambda state: np.asarray(jax.tree.leaves(params_of(pool(state).members))[-1]).reshape(
        SIZE, -1
    )
    for number, key in enumerate(keys):
        if number == 4:
            path = checkpoints.save(tmp_path, number, state, {})
            resumed, _ = checkpoints.restore(path, shapes)
            for a, b in zip(*map(jax.tree.leaves, (pool(resumed), pool(state))), strict=True):
                np.testing.assert_array_equal(a, b)
        before, place = state, int(p.next_place(pool(state).weights, state.count))
        if number == 5:  # as a sweep does
            risk = {"risk": jnp.float32(0.25)}
            state = dataclasses.replace(state, hyper={**state.hyper, **risk})
        state, metrics = step(state, key)
        others = np.arange(SIZE) != place
        np.testing.assert_array_equal(rows(state)[others], rows(before)[others])
        answer = np.asarray(jax.tree.leaves(params_of(state.agent))[-1]).ravel()
        np.testing.assert_array_equal(rows(state)[place], answer)
        assert int(state.count) == min(number + 2, SIZE) and int(state.diverged) > 1e9
        np.testing.assert_allclose(pool(state).weights.sum(), 1, rtol=1e-5)
        if number == 4:
            again, _ = step(resumed, key)
            for a, b in zip(*map(jax.tree.leaves, (pool(again), pool(state))), strict=True):
                np.testing.assert_array_equal(a, b)
    assert pool(state).risk == 0.25
    expected = np.asarray(exact_payoffs(CONFIG, pool(state).members))
    assert np.abs(expected).max() > 0.6  # the members differ
    np.testing.assert_allclose(state.payoff, expected, atol=0.25)
    np.testing.assert_allclose(state.payoff, -state.payoff.T, atol=1e-6)
    assert np.isfinite(float(metrics["answer_payoff"].value()))
    # The measure is the exploitability of the mixture of all members.
    measure = jax.jit(lambda state: algorithm().measure(state, random.key(0))["exploitability"])
    tree = games.enumerate_game(game().rules, game().params)
    weights = np.asarray(pool(state).weights)
    table = np.asarray(p.tables(game(), CONFIG, pool(state).members, tree))
    mixed = np.einsum("k,kia->ia", weights, table)  # each side moves once
    payoff = np.asarray(game().params.payoff)
    best = (payoff @ mixed[1]).max(), -(mixed[0] @ payoff).min()
    np.testing.assert_allclose(measure(state), np.mean(best), atol=1e-4)


def test_settings_that_are_refused():
    with pytest.raises(UserError, match="games is 3; it must be even"):
        p.psro(game(), settings.replace(CONFIG, {"games": 3}))
    with pytest.raises(UserError, match="solver"):
        p.psro(game(), dataclasses.replace(CONFIG, solver="nahs"))
    with pytest.raises(UserError, match="game for two"):
        p.psro(envs.make("cartpole"), CONFIG)
    with pytest.raises(UserError, match="league's agents have none"):
        p.psro(game(), settings.replace(CONFIG, {"transformer": 1}))
