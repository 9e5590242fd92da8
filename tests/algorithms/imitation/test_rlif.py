"""RLIF: who is penalized, when the expert steps in and for how long, and what is not read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import rlif
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION
from tests.algorithms.imitation.test_gail import start_agent
from tests.kit.stub import stub, transitions

SETTINGS = {k: v for k, v in rlif.TINY.items() if k != "env"}
ENV = envs.make("pendulum")
N, STEPS = 2_048, 12


def test_the_action_before_an_intervention_is_penalized():
    one = transitions(64, 0)
    pairs = jax.tree.map(lambda a: np.stack([a, a[::-1]]), one)
    intervened = np.random.default_rng(0).random((2, 64)) < 0.5
    pairs = dataclasses.replace(pairs, extras={"intervened": intervened})
    first, reward = rlif.label(pairs, jnp.float32(2.0))
    done = one.terminated | one.truncated
    expected = [
        -2.0 if b and not a and not d else 0.0 for a, b, d in zip(*intervened, done, strict=True)
    ]
    np.testing.assert_array_equal(reward, expected)
    assert 0 < np.mean(np.equal(expected, 0)) < 1 and done.any()
    np.testing.assert_array_equal(first.observation, one.observation)
    np.testing.assert_array_equal(first.action, one.action)


def play(changes, hyper, advised=1.0, own=-1.0):
    """Interventions [STEPS, N] and actions, where nobody's action ever changes; episodes begin at
    steps 0 and 7."""
    config = replace(rlif.Config(), changes)
    policy = lambda net, timestep, memory, key, greedy: (jnp.full((N, 1), own), memory, {})
    act = rlif.supervise(policy, ENV, Static(config))
    net = stub(hyper={"threshold": 0.5, "mistakes": 0.0, "rate": 0.1} | hyper)
    x = transitions(N).timestep
    memory, found = ((), jnp.zeros(N, jnp.int32)), []
    for t in range(STEPS):
        seen = dataclasses.replace(
            x,
            first=np.full(N, t in (0, 7)),
            privileged={EXPERT_ACTION: np.full((N, 1), advised, np.float32)},
        )
        action, memory, extras = act(net, seen, memory, random.key(t), False)
        found.append((np.asarray(extras["intervened"]), np.asarray(action)[:, 0]))
    return tuple(np.stack(x) for x in zip(*found, strict=True))


def test_the_expert_steps_in_for_so_many_steps():
    intervened, action = play({"rule": "random", "duration": 3}, {"rate": 0.2})
    np.testing.assert_array_equal(action, np.where(intervened, 1.0, -1.0))
    near = lambda p, q, n=N: abs(p - q) < 4 * np.sqrt(q * (1 - q) / n) + 1e-9
    assert near(intervened[0].mean(), 0.2)
    begun = intervened[0]
    assert intervened[1][begun].all() and intervened[2][begun].all()
    assert near(intervened[3][begun].mean(), 0.2, begun.sum())  # then it may step in again
    assert near(intervened[7].mean(), 0.2)  # a new episode forgets the last one


@pytest.mark.parametrize("apart", [0.9, 1.1])
def test_the_expert_steps_in_where_the_action_is_far_from_its_own(apart):
    """Distances count in half-widths, which are 2 in Pendulum."""
    far = apart > 1.0
    own = -0.5
    changes = {"duration": 1, "rule": "distance"}
    advised = own + apart
    intervened, _ = play(changes, {"threshold": 0.5}, advised, own)
    assert (intervened == far).all()
    mistaken, _ = play(changes, {"threshold": 0.5, "mistakes": 0.05}, advised, own)
    assert abs((mistaken != far).mean() - 0.05) < 0.01


def test_a_poor_expert_acts_at_random():
    changes = {"rule": "random", "duration": 1, "expert_skill": 0.25}
    _, action = play(changes, {"rate": 1.0})
    assert abs((action == 1.0).mean() - 0.25) < 0.02
    others = action[action != 1.0]
    assert others.min() < -1.9 and others.max() > 1.9 and abs(others.mean()) < 0.05


def test_the_policy_may_have_a_memory_of_its_own():
    """Exploration by state-dependent noise has one."""
    algorithm = rlif.rlif(ENV, SETTINGS | {"gsde.enabled": True})
    noise, left = algorithm.agent.memory(3)
    assert noise.noise.normals.shape[0] == 3 and left.shape == (3,)
    step = lambda key: algorithm.step(algorithm.init(key, algorithm.hyper), key)
    jax.eval_shape(step, random.key(0))


@pytest.mark.slow
def test_neither_rewards_nor_advice_are_learned_from():
    """The expert's half of each shard is marked as such, and the environment's reward changes
    nothing."""
    changes = {"batch_size": 16, "rule": "random", "rate": 0.5, "duration": 1}
    agent, state, batch = start_agent(rlif.rlif, ENV, SETTINGS | changes)
    x = batch.transitions
    assert x.reward.shape == (2, 16)
    halves = np.asarray(x.extras["intervened"]).reshape(2, 4, 2, 2)
    assert halves[:, :, 0].all() and 0 < halves[:, :, 1].mean() < 1
    other = dataclasses.replace(x.next_timestep, reward=5.0 - 3 * x.reward)
    changed = dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=other))
    flipped = {**x.extras, "intervened": ~x.extras["intervened"]}
    shown = dataclasses.replace(batch, transitions=dataclasses.replace(x, extras=flipped))
    update = jax.jit(agent.update)
    new, same, different = (update(state, b, random.key(3))[0] for b in (batch, changed, shown))
    leaves = lambda state: [np.asarray(a) for a in jax.tree.leaves(state.parts)]
    assert all(np.array_equal(a, b) for a, b in zip(leaves(new), leaves(same), strict=True))
    assert not all(
        np.array_equal(a, b) for a, b in zip(leaves(new), leaves(different), strict=True)
    )
    # In an evaluation there is no advice, and the policy acts alone.
    alone = dataclasses.replace(jax.tree.map(lambda a: a[0], x.timestep), privileged=None)
    _, _, extras = agent.act(state, alone, agent.memory(16), random.key(0), True)
    assert extras == {}


@pytest.mark.slow
def test_last_steps_of_the_experts_episodes_are_learned_from():
    """An episode has 200 steps, the last of which is drawn as often as any other."""
    _, _, batch = start_agent(rlif.rlif, ENV, SETTINGS | {"batch_size": 16384})
    first, reward = rlif.label(batch.transitions, jnp.float32(1.0))
    done, own = (np.asarray(a).reshape(4, 2, -1) for a in (first.done, reward))
    number = done[:, 0].sum()
    assert abs(number - 8192 / 200) < 4 * np.sqrt(8192 / 200)
    assert (own[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ("cheetah", {}, "has none"),
        ("pendulum", {"batch_size": 12}, "multiple of 8"),
        ("cartpole", {}, "bounded"),
    ],
)
def test_what_does_not_fit_is_refused(env, changes, message):
    env = envs.make(env)
    if message == "has none":
        env = dataclasses.replace(env, expert=None)
    with pytest.raises(UserError, match=message):
        rlif.rlif.agent(env, SETTINGS | changes)
