"""Classic environments against Gymnasium's, state by state and episode by episode."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

STATES = 400  # compared one by one in each environment
RESETS = 10_000


@dataclasses.dataclass(frozen=True)
class Case:
    """Comparison of one environment with Gymnasium's."""

    gym_id: str
    low: tuple[float, ...]  # bounds of the random states, beyond what ends an episode
    high: tuple[float, ...]
    margin: Callable[
        [np.ndarray], np.ndarray
    ]  # distance [B] to the threshold of termination after a step
    varied: tuple[str, str, tuple[float, ...]]  # our parameter, Gymnasium's attribute, values
    lasting: Callable[[np.ndarray, np.random.Generator], Any]  # action that never terminates
    tolerance: float = 1e-5


def _away_from(*thresholds: tuple[int, float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda s: np.min([np.abs(np.abs(s[:, i]) - value) for i, value in thresholds], axis=0)


CASES = {
    "cartpole": Case(
        "CartPole-v1",
        (-2.6, -3.0, -0.25, -3.0),
        (2.6, 3.0, 0.25, 3.0),
        _away_from((0, 2.4), (2, 12 * 2 * math.pi / 360)),
        ("gravity", "gravity", (5.0, 9.8, 20.0)),
        lambda s, _: int(s[2] + 0.5 * s[3] + 0.05 * s[0] + 0.1 * s[1] > 0),
    ),
    "pendulum": Case(
        "Pendulum-v1",
        (-15.0, -8.0),
        (15.0, 8.0),
        lambda s: np.ones(len(s)),
        ("gravity", "g", (1.0, 10.0, 15.0)),
        lambda s, rng: rng.uniform(-2, 2, (1,)).astype(np.float32),
        tolerance=2e-5,
    ),
    "mountain_car": Case(
        "MountainCar-v0",
        (-1.2, -0.07),
        (0.6, 0.07),
        lambda s: np.abs(s[:, 0] - 0.5),
        ("gravity", "gravity", (0.001, 0.0025, 0.004)),
        lambda s, rng: int(rng.integers(3)),
        tolerance=1e-6,
    ),
    "mountain_car_continuous": Case(
        "MountainCarContinuous-v0",
        (-1.2, -0.07),
        (0.6, 0.07),
        lambda s: np.abs(s[:, 0] - 0.45),
        ("power", "power", (0.0005, 0.0015, 0.003)),
        lambda s, rng: rng.uniform(-1, 1, (1,)).astype(np.float32),
        tolerance=1e-6,
    ),
    "acrobot": Case(
        "Acrobot-v1",
        (-math.pi, -math.pi, -4 * math.pi, -9 * math.pi),
        (math.pi, math.pi, 4 * math.pi, 9 * math.pi),
        lambda s: np.abs(-np.cos(s[:, 0]) - np.cos(s[:, 0] + s[:, 1]) - 1.0),
        ("length_1", "LINK_LENGTH_1", (0.7, 1.0, 1.5)),
        lambda s, rng: 1 - int(np.sign(s[3])) if rng.random() < 0.3 else 1,  # brakes
        tolerance=1e-4,
    ),
}


class Pair:
    """One of our environments and Gymnasium's; programs are compiled once for all tests."""

    def __init__(self, name: str):
        self.name, self.case = name, CASES[name]
        self.env = envs.make(name)
        self.gym = gymnasium.make(self.case.gym_id)
        self.reset = jax.jit(self.env.reset)
        self.step = jax.jit(self.env.step)
        self.steps = jax.jit(jax.vmap(self.env.step, in_axes=(None, 0, 0, 0)))
        self.example = self.reset(jax.random.key(0), self.env.params)[0]

    def state(self, numbers: np.ndarray) -> Any:
        """Build our state `[...]` at the first step of an episode from numbers `[..., D]`."""
        numbers = np.asarray(numbers, np.float32)
        leaves, treedef = jax.tree.flatten(self.example.inner)
        whole = leaves[0].shape == numbers.shape[-1:]  # one array rather than one per number
        inner = treedef.unflatten([numbers] if whole else np.moveaxis(numbers, -1, 0))
        return dataclasses.replace(
            self.example, inner=inner, steps=np.zeros(numbers.shape[:-1], np.int32)
        )

    def numbers(self, state: Any) -> np.ndarray:
        leaves = [np.asarray(x) for x in jax.tree.leaves(state.inner)]
        return leaves[0] if len(leaves) == 1 else np.stack(leaves, axis=-1)

    def gym_step(self, numbers: np.ndarray, action: Any, env: Any = None) -> tuple:
        """Take Gymnasium's step from a state: `(state, observation, reward, terminated)`."""
        environment = (env or self.gym).unwrapped
        environment.state = np.asarray(numbers, np.float64)
        environment.steps_beyond_terminated = (
            None  # CartPole's reward would be 0 after a termination
        )
        observation, reward, terminated, *_ = environment.step(action)
        return np.asarray(environment.state), observation, reward, terminated

    def actions(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw random actions, a third of them beyond the bounds if there are bounds."""
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return rng.integers(0, space.n, n).astype(np.int32)
        return (1.5 * rng.uniform(space.low, space.high, (n, *space.shape))).astype(np.float32)

    def random_states(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.uniform(self.case.low, self.case.high, (n, len(self.case.low))).astype(
            np.float32
        )


@functools.cache
def _pair(name: str) -> Pair:
    return Pair(name)


@pytest.fixture(params=list(CASES))
def pair(request: pytest.FixtureRequest) -> Pair:
    return _pair(request.param)


def _params(env: Any, n: int, **changes: Any) -> Any:
    """Repeat the environment's parameters `[n]`, with the changed ones given as `[n]`."""
    params = jax.tree.map(lambda x: np.full(n, x, np.float32), env.params)
    return dataclasses.replace(params, **{k: np.asarray(v, np.float32) for k, v in changes.items()})


def _same_angles(name: str, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return `ours` with angles at plus or minus pi moved to the end that `theirs` were wrapped
    to."""
    if name != "acrobot":
        return ours
    at_the_seam = np.abs(theirs[:, :2]) > np.pi - 1e-3
    turns = np.where(at_the_seam, np.round((theirs[:, :2] - ours[:, :2]) / (2 * np.pi)), 0)
    return np.concatenate([ours[:, :2] + 2 * np.pi * turns, ours[:, 2:]], axis=1)


def test_a_step_from_any_state_is_gymnasiums(pair):
    rng = np.random.default_rng(0)
    before, actions = pair.random_states(rng, STATES), pair.actions(rng, STATES)
    if pair.name.startswith("mountain_car"):
        before[:20, 0] = -1.2  # at the wall
        before[20:60, 0] = rng.uniform(0.4, 0.6, 40)  # around the goal
    states, ours = pair.steps(
        jax.random.key(0), pair.state(before), actions, _params(pair.env, STATES)
    )
    theirs = [pair.gym_step(s, a) for s, a in zip(before, actions, strict=True)]
    after, observation, reward, terminated = (np.asarray(x) for x in zip(*theirs, strict=True))

    decided = pair.case.margin(after) > 1e-4  # float32 cannot decide closer than this
    assert decided.mean() > 0.98
    tolerance = {"rtol": pair.case.tolerance, "atol": pair.case.tolerance}
    numbers = _same_angles(pair.name, pair.numbers(states), after)
    np.testing.assert_allclose(numbers, after, **tolerance)
    np.testing.assert_allclose(ours.observation, observation, **tolerance)
    np.testing.assert_array_equal(ours.terminated[decided], terminated[decided])
    np.testing.assert_allclose(ours.reward[decided], reward[decided], **tolerance)
    assert not np.any(ours.truncated) and not np.any(ours.first)
    if pair.name != "pendulum":
        assert 0.02 < terminated.mean() < 0.98  # both outcomes were compared


def test_every_parameter_set_of_a_batch_has_its_own_physics(pair):
    field, attribute, values = pair.case.varied
    rng = np.random.default_rng(1)
    before, actions = pair.random_states(rng, 40), pair.actions(rng, 40)
    if pair.name.startswith("mountain_car"):
        before[:, 0] = rng.uniform(-1.0, 0.3, 40)  # the walls would hide differences
    n = len(values) * len(before)
    params = _params(pair.env, n, **{field: np.repeat(values, len(before))})
    tiled = [np.tile(x, (len(values), *[1] * (x.ndim - 1))) for x in (before, actions)]
    states, _ = pair.steps(jax.random.key(0), pair.state(tiled[0]), tiled[1], params)
    ours = pair.numbers(states)

    environment = gymnasium.make(pair.case.gym_id)
    for index, value in enumerate(values):
        setattr(environment.unwrapped, attribute, value)
        after = [pair.gym_step(s, a, environment)[0] for s, a in zip(before, actions, strict=True)]
        mine = ours[index * len(before) : (index + 1) * len(before)]
        np.testing.assert_allclose(
            _same_angles(pair.name, mine, np.asarray(after)),
            np.asarray(after),
            rtol=pair.case.tolerance,
            atol=pair.case.tolerance,
        )


def test_an_episode_is_gymnasiums_and_is_truncated_at_its_limit(pair):
    """Step through the real `gymnasium.make`; Gymnasium's state is set to ours before each step, so
    that rounding cannot build up over hundreds of chaotic steps."""
    rng = np.random.default_rng(2)
    pair.gym.reset(seed=2)
    state = pair.state(np.asarray(pair.gym.unwrapped.state, np.float32))
    limit = pair.gym.spec.max_episode_steps
    assert pair.env.max_steps == limit
    for step in range(1, limit + 1):
        numbers = pair.numbers(state)
        action = pair.case.lasting(numbers, rng)
        pair.gym.unwrapped.state = np.asarray(numbers, np.float64)
        observation, reward, terminated, truncated, _ = pair.gym.step(action)
        state, ours = pair.step(jax.random.key(0), state, jnp.asarray(action), pair.env.params)
        np.testing.assert_allclose(
            ours.observation, observation, rtol=pair.case.tolerance, atol=pair.case.tolerance
        )
        np.testing.assert_allclose(ours.reward, reward, rtol=1e-4, atol=1e-4)
        assert (bool(ours.terminated), bool(ours.truncated)) == (terminated, truncated), step
        assert truncated == (step == limit), f"the action of the test ended the episode at {step}"


def test_short_episodes_without_resynchronization_end_at_the_same_step(pair):
    """Compare without setting the state again: 25 steps are too few for rounding to matter."""
    rng = np.random.default_rng(3)
    for seed in range(3):
        observation, _ = pair.gym.reset(seed=seed)
        state = pair.state(np.asarray(pair.gym.unwrapped.state, np.float32))
        for _ in range(25):
            action = pair.actions(rng, 1)[0]
            observation, reward, terminated, _, _ = pair.gym.step(action)
            state, ours = pair.step(jax.random.key(0), state, action, pair.env.params)
            np.testing.assert_allclose(ours.observation, observation, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(ours.reward, reward, rtol=2e-3, atol=2e-3)
            assert bool(ours.terminated) == terminated
            if terminated:
                break


def test_resets_are_drawn_as_gymnasiums(pair):
    keys = jax.random.split(jax.random.key(4), RESETS)
    states, timestep = jax.jit(jax.vmap(pair.env.reset, in_axes=(0, None)))(keys, pair.env.params)
    ours = pair.numbers(states)
    pair.gym.reset(seed=4)
    theirs = []
    for _ in range(RESETS):
        pair.gym.unwrapped.reset()
        theirs.append(np.asarray(pair.gym.unwrapped.state))
    theirs = np.asarray(theirs)
    width = np.ptp(theirs, axis=0)
    np.testing.assert_array_less(np.abs(ours.min(0) - theirs.min(0)), 0.005 * width + 1e-7)
    np.testing.assert_array_less(np.abs(ours.max(0) - theirs.max(0)), 0.005 * width + 1e-7)
    for column in np.flatnonzero(width > 0):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-4
    correlation = np.corrcoef(ours[:, width > 0], rowvar=False)
    assert np.abs(np.atleast_2d(correlation) - np.eye(int((width > 0).sum()))).max() < 0.05

    assert np.all(timestep.first) and not np.any(timestep.done) and not np.any(timestep.reward)
    environment = pair.gym.unwrapped
    environment.state = np.asarray(ours[0], np.float64)
    observe = getattr(
        environment, "_get_obs", getattr(environment, "_get_ob", lambda: environment.state)
    )
    expected = observe()
    np.testing.assert_allclose(timestep.observation[0], expected, atol=1e-6)


def test_spaces_are_gymnasiums(pair):
    observation, action = pair.gym.observation_space, pair.gym.action_space
    low, high = spaces.bounds(pair.env.observation_space)
    np.testing.assert_array_equal(low, observation.low)
    np.testing.assert_array_equal(high, observation.high)
    assert pair.env.observation_space.shape == observation.shape
    if isinstance(pair.env.action_space, spaces.Discrete):
        assert pair.env.action_space.n == action.n
    else:
        low, high = spaces.bounds(pair.env.action_space)
        np.testing.assert_array_equal(low, action.low)
        np.testing.assert_array_equal(high, action.high)


@pytest.mark.slow
def test_the_environment_keeps_every_rule(pair):
    envs.check_environment(pair.env)


def test_the_state_is_float32_with_int32_counters(pair):
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(pair.example)}
    assert dtypes == {"float32", "int32"}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("acrobot", -100),
        ("cartpole", 500),
        ("mountain_car", -125),
        ("mountain_car_continuous", 85),
        ("pendulum", -200),
    ],
)
def test_the_expert_solves_it(name, least):
    env = expert_channel(envs.make(name))
    played = evaluate(env, expert_policy(env), jax.random.key(0), 256)
    assert played.returns.mean() >= least
