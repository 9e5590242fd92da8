"""SMART: strategies of right attempts against loops, and first attempts against the oracle."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.smart import first_tokens, right_strategies, smart
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.language.strategies import FIRST_SOLVER, attempt_values, exact_selectors
from tests.kit.stub import stub

# A prompt of two tokens, an attempt of two, a reply, attempts of two and of one.
TURN = np.array([-1, -1, 0, 0, -1, 1, 1, -1, 2])
T, B = len(TURN), 40
RNG = np.random.default_rng(0)
ACTION = RNG.integers(1, 9, (T, B))
PAID = RNG.integers(0, 2, (3, B)) - 0.25  # less a cost


def table():
    """Return turns [T, B] with some attempts not made, and rewards at their last tokens."""
    turn = np.broadcast_to(TURN[:, None], (T, B)).copy()
    turn[5:, : B // 4] = -1
    reward = np.zeros((T, B), np.float32)
    for k in range(3):
        last = np.flatnonzero(k == TURN)[-1]
        reward[last] = np.where(turn[last] == k, PAID[k], 0)
    return turn, reward


def loops():
    """Return the strategy of the first right attempt and its number, by a loop."""
    turn, _ = table()
    strategy, number = np.zeros(B, int), np.full(B, -1)
    for b in range(B):
        for k in range(3):
            made = np.flatnonzero(turn[:, b] == k)
            if len(made) and PAID[k, b] > 0:
                strategy[b], number[b] = ACTION[made[0], b], k
                break
    return strategy, number


def test_the_first_right_attempt_has_the_strategy():
    turn, reward = table()
    strategy, number = right_strategies(*map(jnp.asarray, (turn, ACTION, reward)))
    expected = loops()
    np.testing.assert_array_equal(number, expected[1])
    np.testing.assert_array_equal(strategy, expected[0])
    assert set(expected[1]) == {-1, 0, 1, 2}
    begins = np.asarray(first_tokens(jnp.asarray(turn)))
    np.testing.assert_array_equal(np.flatnonzero(begins[:, -1]), [2, 5, 8])


@pytest.mark.parametrize("refine", [True, False])
def test_it_is_learned_as_the_first_one(refine):
    """Learn one token of each text with a right attempt, the one right after the prompt."""
    turn, reward = table()
    changes = {"refine": refine, "transformer": 0, "recurrent": 8, "num_envs": B}
    recipe = smart.recipe(envs.make("strategies"), Static(replace(smart.Config(), changes)))
    none, found = np.zeros((T, B), bool), types.SimpleNamespace()
    said = jnp.asarray(np.maximum(turn, 0)), jnp.asarray(turn >= 0)
    tokens = dict(zip(("turn", "decision"), said, strict=True))
    step = TimeStep(none, jnp.asarray(reward), none, none, none, tokens=tokens)
    t = Transition(step, jnp.asarray(ACTION), step, (), {})

    def epochs(passes, window, step, unit, max_drift):
        found.window = window
        return types.SimpleNamespace(update_targets=lambda *_: None)

    recipe.update(
        stub(epochs=epochs, hyper={"passes.target_kl": 0.0}),
        Batch(t, jnp.float32(0), mask=jnp.ones((T, B), bool)),
    )
    strategy, number = loops()
    kept = number >= 0 if refine else number == 0
    learned = np.zeros((T, B), bool)
    learned[2] = kept
    np.testing.assert_array_equal(found.window.mask, learned)
    np.testing.assert_array_equal(found.window.x.action[2][kept], strategy[kept])


@pytest.mark.slow
def test_likeliest_first_attempts_are_nearly_worth_the_oracles():
    """All twelve problems, their exact values; and better than any single solver."""
    env = envs.make("strategies")
    algorithm = smart(env, {"recurrent": 16, "transformer": 0, "optimizer.learning_rate": 0.02})
    run = start(algorithm, random.key(0))
    run, _ = jax.jit(lambda run: train(algorithm, run, 60))(run)
    policy = algorithm.policy(run.state)
    keys = jax.random.split(random.key(1), 512)
    state, t = jax.vmap(env.reset, in_axes=(0, None))(keys, env.params)
    memory = policy.memory(512)
    for _ in range(3):
        action, memory, _ = policy.act(policy.state, t, memory, random.key(2), True)
        before = state
        state, t = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, env.params)
    choice = np.asarray(action) - FIRST_SOLVER
    kind, size = (np.asarray(x) for x in (before.memory.kind, before.memory.size))
    chosen = np.full((3, 4), -1)
    chosen[kind, size] = choice
    values = np.take_along_axis(attempt_values(env.params), chosen[..., None], -1)
    known = exact_selectors(env.params)
    assert (chosen >= 0).all()
    assert values.mean() > known.oracle - 0.03 > known.best_single + 0.1


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="smart cannot stop early"):
        smart(envs.make("strategies"), {"passes.early_stop": True})
    with pytest.raises(UserError, match="needs the turns of texts"):
        smart(envs.make("cartpole"))
