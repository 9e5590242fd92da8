"""Signals: who sees and names what, and the most that agents can earn that do not talk."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.bandits.signals import State


def test_it_keeps_the_rules_of_environments():
    check_environment(envs.make("signals"), steps=8)


def test_each_agent_sees_the_next_ones_signal_and_is_paid_for_its_own():
    env = envs.make("signals", agents=3, signals=4)
    state = State(jnp.array([2, 0, 3]), jnp.full(3, -1))
    action = dict(zip(env.agents, jnp.array([2, 3, 3]), strict=True))
    after, timestep = env.step(jax.random.key(0), state, action, env.params)
    assert float(timestep.reward) == pytest.approx(2 / 3) and bool(timestep.terminated)
    assert float(timestep.metrics["named"]) == pytest.approx(2 / 3)
    for i, watched in enumerate([1, 2, 0]):
        seen = np.asarray(timestep.observation[f"agent_{i}"])
        bits = lambda n: [1 if n >> k & 1 else -1 for k in range(5)]
        np.testing.assert_array_equal(seen[:10], bits(i) + bits(watched))
        np.testing.assert_array_equal(seen[10:], np.eye(4)[[2, 0, 3][watched]])
    expert = env.expert(after, env.params)
    assert [int(expert[n]) for n in env.agents] == [2, 0, 3]


def test_no_policies_of_own_observations_earn_more_than_chance():
    """Plays all deterministic joint policies of two agents with two signals: each maps the signal
    that an agent sees to the one it names."""
    env = envs.make("signals", agents=2, signals=2)
    rules = list(itertools.product(range(2), repeat=2))
    for first, second in itertools.product(rules, rules):
        paid = []
        for own in itertools.product(range(2), repeat=2):
            state = State(jnp.array(own), jnp.full(2, -1))
            named = {"agent_0": jnp.int32(first[own[1]]), "agent_1": jnp.int32(second[own[0]])}
            step = env.step(jax.random.key(0), state, named, env.params)[1]
            paid.append(float(step.reward))
        assert np.mean(paid) == 0.5


def test_observations_of_all_teams_have_one_length():
    sizes = {n: envs.make("signals", agents=n).observation_space["agent_0"].shape for n in (2, 10)}
    assert sizes[2] == sizes[10] == (14,)


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"agents": 1}, "from 2 up"), ({"agents": 33}, "are 33"), ({"signals": 1}, "from 2 up")],
)
def test_bad_options_are_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        envs.make("signals", **settings)
