"""ARP: rewards are similarities, stages follow each other, and returns are what is left."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.imitation.arp import TINY, PairEncoder, arp, rewards_to_go, without_swaps
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.envs import make

SETTINGS = {k: v for k, v in TINY.items() if k not in ("env", "env_params")}


def test_rewards_to_go_are_sums_up_to_the_end():
    reward = np.arange(8.0).reshape(4, 2)
    exists = np.array([[1, 1], [1, 1], [1, 0], [1, 0]], bool)
    found = rewards_to_go(jnp.asarray(reward), jnp.asarray(exists))
    np.testing.assert_allclose(found, [[12, 4], [12, 3], [10, 0], [6, 0]])


def test_demonstrations_are_not_swapped():
    assert float(without_swaps(make("goal_swap", swapped=1.0)).params.swapped) == 0


def test_stages_learn_one_after_the_other():
    env = make("goal_swap", size=5)
    algorithm = arp(env, SETTINGS | {"data.updates": 1, "pretraining": 1.0, "fine_tuning": 1.0})
    run, changed = start(algorithm, random.key(0)), []
    for _ in range(3):
        before = run.state.agent.parts
        run, _ = train(algorithm, run, 1)
        after = run.state.agent.parts
        same = lambda a, b: all(
            (x == y).all() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
        )
        changed.append({n for n in after if not same(before[n].params, after[n].params)})
    assert changed == [{"encoder"}, {"encoder", "inverse"}, {"sequence"}]


def test_what_is_left_of_the_return_falls_by_the_similarity_of_each_picture():
    env = make("goal_swap", size=5)
    algorithm = arp(env, SETTINGS | {"target_return": 2.0, "return_scale": 4.0})
    run = start(algorithm, random.key(0))
    policy = algorithm.policy(run.state)
    state, timestep = env.reset(random.key(1), env.params)
    batch = lambda x: jax.tree.map(lambda a: a[None], x)
    _, memory, _ = policy.act(policy.state, batch(timestep), policy.memory(1), random.key(0), True)
    assert float(memory.to_go[0, -1]) == pytest.approx(0.5)  # 2 / 4
    _, after = env.step(random.key(2), state, jnp.int32(1), env.params)
    after = dataclasses.replace(after, reward=jnp.float32(7.0))  # which is not read
    _, memory, _ = policy.act(policy.state, batch(after), memory, random.key(0), True)
    parts = run.state.agent.parts["encoder"].params
    encoder = PairEncoder(env.observation_space, (8,), "relu", "lecun", (2,), 4)
    similar = encoder.apply(parts, after.observation[None], after.goal[None])
    assert -1 <= float(similar[0]) <= 1
    assert float(memory.to_go[0, -1]) == pytest.approx(0.5 - float(similar[0]) / 4, abs=1e-5)


def test_it_needs_captions():
    with pytest.raises(UserError, match="captioned"):
        arp.agent(make("catch"))
