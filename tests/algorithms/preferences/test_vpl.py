"""Variational preference learning: users who want opposite goals, and one model for all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.preferences import vpl as of_vpl
from jaxrl.algorithms.preferences.vpl import answer, pairs_of, vpl
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.spaces import Box
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment, Goals, TimeStep, Transition
from jaxrl.envs import make, timesteps
from jaxrl.envs.wrappers import time_limit
from jaxrl.evaluation.evaluate import evaluate

STEPS = 5


@functools.cache
def two_sides():
    """A line with a goal at either end, of which an episode has one. The best return is 4.5, and
    -4.5 at the wrong end."""

    def outcome(reached, goal, params):
        return 1 - jnp.abs(reached - goal).sum(-1), jnp.zeros((), bool)

    def reset(key, params):
        goal = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)[None]
        place = jnp.zeros(1)
        return (place, goal), timesteps.first(place, goal=goal)

    def step(key, state, action, params):
        place, goal = state
        place = jnp.clip(place + 0.5 * jnp.clip(action, -1, 1), -1, 1)
        reward, terminated = outcome(place, goal, params)
        return (place, goal), timesteps.following(place, reward, terminated, goal=goal)

    env = Environment(
        "two_sides",
        reset,
        step,
        (),
        Box(-1.0, 1.0, (1,)),
        Box(-1.0, 1.0, (1,)),
        expert=lambda state, params: state[1],
        goals=Goals(lambda observation: observation, outcome),
    )
    return time_limit(env, STEPS)


SETTINGS = {
    "segments": {
        "name": "",
        "data_size": 4000,
        "skills": (0.0, 1.0),
        "size": 8,
        "count": 200,
        "batch_size": 16,
        "updates": 50,
    },
    "user": {
        "torso": {"hidden": (32,)},
        "optimizer": {"learning_rate": 3e-3},
        "latent": 2,
        "steps": 1000.0,
    },
    "torso": {"hidden": (32,)},
    "critic": {"learning_rate": 3e-3},
    "actor": {"learning_rate": 3e-3},
    "target": {"rate": 0.02},
    "discount": 0.8,
    "temperature": 0.1,
}


@pytest.mark.slow
def test_a_user_gets_what_the_user_wants_and_one_model_for_all_does_not():
    env, found = two_sides(), {}
    for name, beta in {"users": 1.0, "one": 1e4}.items():
        algorithm = vpl(env, replace(vpl.complete_config(SETTINGS), {"user.beta": beta}))
        run = jax.jit(functools.partial(start, algorithm))(random.key(0))
        run, _ = jax.jit(lambda run, algorithm=algorithm: train(algorithm, run, 40))(run)
        played = evaluate(env, algorithm.policy(run.state), random.key(1), 64)
        accuracy = algorithm.measure(run.state, random.key(2))["held_out_accuracy"]
        found[name] = float(played.returns.mean()), float(accuracy)
    assert found["users"][0] > 3 and found["users"][1] > 0.9
    assert found["one"][0] < 1 and found["one"][1] < 0.65


def segments(size, length, seed=0):
    """Pairs of segments on the line, [T, 2 S]."""
    rng = np.random.default_rng(seed)
    seen, reached = rng.uniform(-1, 1, (2, length, 2 * size, 1)).astype(np.float32)
    zero, no = np.zeros(seen.shape[:2], np.float32), np.zeros(seen.shape[:2], bool)
    before, after = (TimeStep(x, zero, no, no, no) for x in (seen, reached))
    return jax.tree.map(jnp.asarray, Transition(before, seen, after, (), {}))


@pytest.mark.parametrize("goal", [-1.0, 1.0])
def test_a_user_answers_by_the_goal(goal):
    config = replace(of_vpl.Config(), {"size": 3, "segments.length": 2})
    asked = segments(3, 2)
    told = np.asarray(answer(two_sides(), config, asked, jnp.array([goal])))
    reached = np.asarray(asked.next_observation)[..., 0].sum(0) * goal  # the more the better
    assert told.shape == (3, 2, 2, 1)
    for pair in range(3):
        sides = [2 * pair, 2 * pair + 1]
        better = max(sides, key=lambda column: reached[column])
        worse = sum(sides) - better
        np.testing.assert_array_equal(told[pair, 0], asked.next_observation[:, better])
        np.testing.assert_array_equal(told[pair, 1], asked.next_observation[:, worse])


def test_sets_are_arranged_by_pairs():
    x = np.arange(2 * 12).reshape(2, 12)  # [T, 2 sets of 3 pairs]
    found = pairs_of(x, 3)
    assert found.shape == (2, 3, 2, 2)
    np.testing.assert_array_equal(found[1, 2, 0], x[:, 10])


def test_users_need_goals():
    with pytest.raises(UserError, match="'pendulum' has no goals"):
        vpl.agent(make("pendulum"), {"segments.name": ""})
    with pytest.raises(UserError, match="must be 'goal'"):
        vpl.agent(two_sides(), {"segments.name": "", "teacher.score": "reward"})
