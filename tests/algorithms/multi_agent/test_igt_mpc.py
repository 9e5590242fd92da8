"""IGT-MPC: equilibria by brute force and in the environment, plans that keep apart, learning."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.multi_agent import igt_mpc as module
from jaxrl.algorithms.multi_agent.igt_mpc import TINY, igt_mpc
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.envs import make
from jaxrl.envs.particles import crossing as c

ENV = make("crossing")
SETTINGS = {k: v for k, v in TINY.items() if not k.startswith("env")}


def test_nobody_gains_by_another_allowed_choice_in_an_equilibrium():
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, two = rng.normal(size=6), rng.normal(size=7)
        apart = rng.random((6, 7)) < 0.3
        first, second, exists = module.equilibrium(*map(jnp.asarray, (one, two, apart)))
        assert bool(exists) == apart.any()
        if exists:
            assert apart[first, second]
            assert one[first] == one[apart[:, second]].max()
            assert two[second] == two[apart[first]].max()
    assert not module.equilibrium(jnp.ones(2), jnp.ones(2), jnp.zeros((2, 2), bool))[2]


@functools.partial(jax.jit, static_argnums=2)
def play(place, speed, plans):
    """Play all pairs of plans in the environment: returns [P, P, 2], and whether they collide."""
    rules = dataclasses.replace(ENV.params, crash=0.0)
    begin, _ = ENV.reset(random.key(0), rules)
    begin = dataclasses.replace(
        begin, inner=dataclasses.replace(begin.inner, place=place, speed=speed)
    )

    def one(i, j):
        def advance(carry, action):
            state, total, hit = carry
            acts = dict(zip(c.NAMES, action, strict=True))
            state, timestep = ENV.step(random.key(0), state, acts, rules)
            return (state, total + timestep.reward, hit | timestep.terminated), None

        table = jnp.asarray(plans)
        actions = table[i], table[j]
        return jax.lax.scan(advance, (begin, jnp.zeros(2), jnp.zeros((), bool)), actions)[0][1:]

    every = jnp.arange(len(plans))
    return jax.vmap(lambda i: jax.vmap(lambda j: one(i, j))(every))(every)


def test_games_are_solved_as_the_environment_plays_them():
    config = Values({"parts": 2, "hold": 3})
    plans = tuple(map(tuple, np.repeat(module.all_plans(2), 3, 1).tolist()))
    assert len(set(plans)) == 9
    seen = []
    for place, speed in (
        ([-6, -6.5], [4, 4]),
        ([-12, 3], [2, 1]),
        ([-5, -8], [3, 5]),
        ([1, 1], [0, 0]),
    ):
        place, speed = (jnp.asarray(x, jnp.float32) for x in (place, speed))
        returns, hit = map(np.asarray, play(place, speed, plans))
        rewards, exists = module.solve(place, speed, config, ENV.params)
        assert bool(exists) == (~hit).any()
        seen.append(hit.mean())
        if exists:
            total = np.where(hit, -np.inf, returns.sum(-1))
            best = np.unravel_index(total.argmax(), total.shape)
            np.testing.assert_allclose(rewards, returns[best], rtol=1e-4)
    assert seen[-1] == 1 and 0 < seen[0] < 1  # games without an equilibrium, and with a conflict


def policy(**settings):
    algorithm = igt_mpc(ENV, SETTINGS | settings)
    state = algorithm.init(random.key(0), algorithm.hyper)
    return algorithm, state, algorithm.policy(state)


def first_actions(acts, *cars):
    """Return the actions of the car "east" that sees these states, [place, speed] of both."""
    _, timestep = ENV.reset(random.key(0), ENV.params)
    timestep = jax.tree.map(lambda x: jnp.stack([x] * len(cars)), timestep)
    scale = np.tile([c.FARTHEST, c.FASTEST], 2)
    seen = {n: jnp.asarray(cars, jnp.float32) / scale for n in c.NAMES}
    timestep = dataclasses.replace(timestep, observation=seen)
    return np.asarray(acts.act(acts.state, timestep, (), random.key(0), True)[0]["east"])


def test_a_plan_keeps_apart_from_the_predicted_other():
    """Cars go fast unless they would meet, if the value only counts meters."""
    algorithm, state, _ = policy(horizon=4)
    zero = jax.tree.map(jnp.zeros_like, state)
    acts = algorithm.policy(zero)
    free, meeting, lost = first_actions(
        acts, [-15, 2, 15, 5], [-6.0, 3, -1, 0], [-4.2, 5, 0, 0]
    )  # fmt: skip
    assert free == 2 and meeting != 2
    assert lost == 0  # no plan keeps apart, so it brakes


def test_a_value_of_the_end_decides_between_plans():
    algorithm, state, _ = policy(horizon=2, hidden=(1,))
    leaf = {
        (4, 1): lambda x, weight: jnp.zeros_like(x).at[1].set(1.0),  # the own speed
        (1, 1): lambda x, weight: jnp.full_like(x, weight),
    }
    other = lambda x, weight: jnp.zeros_like(x)
    by_speed = lambda weight: jax.tree.map(
        lambda x: leaf.get(x.shape, other)(x, weight), state
    )  # fmt: skip
    car = [-15, 2, 15, 5]
    for weight, action in ((9.0, 2), (-9.0, 0)):
        assert first_actions(algorithm.policy(by_speed(weight)), car) == action


def test_the_value_learns_what_games_bring():
    algorithm, state, _ = policy(hidden=(32,), games=32, parts=3, compared=128)
    measure = jax.jit(algorithm.measure)
    before = measure(state, random.key(1))["value_error"]
    keys = jax.random.split(random.key(2), 200)
    after, _ = jax.jit(lambda s: jax.lax.scan(lambda s, k: (algorithm.step(s, k)[0], ()), s, keys))(
        state
    )
    assert float(measure(after, random.key(1))["value_error"]) < min(0.6 * float(before), 0.9)


def test_other_environments_are_refused():
    with pytest.raises(UserError, match="igt_mpc cannot act in 'simple_spread'"):
        igt_mpc(make("simple_spread"), SETTINGS)
