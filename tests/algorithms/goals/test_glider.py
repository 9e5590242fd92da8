"""GLIDER: what decisions lead to at their levels, and the losses, against loops over texts."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import glider
from jaxrl.core import random
from jaxrl.core.errors import UserError
from tests.algorithms.imitation.test_gail import start_agent
from tests.algorithms.tokens.test_token_values import B, T, example, net_of

HIGH, LOW = 0.9, 0.6
SETTINGS = {k: v for k, v in glider.TINY.items() if k not in ("env", "env_params")}
ENV = envs.make("planned_maze", size=2, plans=2)


def _texts():
    """Return texts, which decisions are of plans, and rewards for subgoals at decisions."""
    x, (end, decides, reward, action, _) = example()
    rng = np.random.default_rng(7)
    plan = rng.random((T, B)) < 0.4
    subgoal = np.where(decides & ~plan, rng.random((T, B)) < 0.5, 0).astype(np.float32)
    return x, end, decides, plan, reward, subgoal, action


def expect(end, decides, plan, reward, subgoal, t, b):
    """Return reward, discount and next place of a decision, by a loop; T for none."""
    if plan[t, b]:
        later = [u for u in range(t + 1, T) if decides[u, b] and plan[u, b]]
        place = later[0] if later else T
        return reward[t:place, b].sum(), HIGH, place
    for u in range(t + 1, T):
        if decides[u, b]:
            return subgoal[t, b], LOW, T if plan[u, b] else u
    return subgoal[t, b], LOW, T


def test_decisions_lead_to_the_next_one_of_their_level():
    _, end, decides, plan, reward, subgoal, _ = _texts()
    arrays = map(jnp.asarray, (decides, plan, reward, subgoal))
    levels = glider.levels_of(*arrays, HIGH, LOW)
    kinds = set()
    for b in range(B):
        for t in np.flatnonzero(decides[:, b]):
            gain, discount, place = expect(end, decides, plan, reward, subgoal, t, b)
            np.testing.assert_allclose(levels.reward[t, b], gain, atol=1e-5)
            np.testing.assert_allclose(levels.discount[t, b], discount, rtol=1e-6)
            assert levels.place[t, b] == place
            kinds.add((bool(plan[t, b]), place == T))
    assert len(kinds) == 4


def test_values_learn_at_their_level():
    x, end, decides, plan, reward, subgoal, action = _texts()
    net, q, held, v = net_of(2)
    levels = glider.levels_of(*map(jnp.asarray, (decides, plan, reward, subgoal)), HIGH, LOW)
    fields = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    found = np.asarray(glider.values_loss(net, glider.Hierarchical(**fields, levels=levels)).value)
    for b in range(B):
        for t in np.flatnonzero(decides[:, b]):
            gain, discount, place = expect(end, decides, plan, reward, subgoal, t, b)
            target = gain + (discount * v[place, b] if place < T else 0)
            a = action[t, b]
            gap = held[t, b, :, a].min() - v[t, b]
            expectile = net.hyper.expectile
            expected = ((q[t, b, :, a] - target) ** 2).sum() / 2
            expected += (expectile if gap > 0 else 1 - expectile) * gap**2 / 2
            np.testing.assert_allclose(found[t, b], expected, rtol=1e-4)


def test_one_level_has_the_environments_reward_alone():
    _, _, decides, _, reward, _, _ = _texts()
    levels = glider.flat_levels(jnp.asarray(decides), jnp.asarray(reward), HIGH)
    np.testing.assert_array_equal(levels.reward, reward)
    for b in range(B):
        places = np.flatnonzero(decides[:, b])
        for t, later in zip(places, [*places[1:], T], strict=True):
            assert levels.place[t, b] == later


def test_a_temperature_of_infinity_is_cloning():
    """The policy then learns from nothing that depends on rewards."""
    agent, state, batch = start_agent(glider.glider, ENV, SETTINGS | {"temperature": math.inf})
    update = jax.jit(agent.update)

    def learn(temperature, factor):
        t = batch.transitions
        paid = dataclasses.replace(t.next_timestep, reward=factor * (t.reward + 1))
        changed = dataclasses.replace(batch, transitions=dataclasses.replace(t, next_timestep=paid))
        hyper = {**state.hyper, "temperature": jnp.float32(temperature)}
        new, _ = update(dataclasses.replace(state, hyper=hyper), changed, random.key(3))
        return jax.tree.leaves(new.parts["actor_critic"].params)

    same = lambda x, y: all(np.array_equal(a, b) for a, b in zip(x, y, strict=True))
    cloned = learn(math.inf, 1.0)
    assert same(cloned, learn(math.inf, 5.0))
    assert not same(cloned, learn(0.1, 1.0))


def test_values_target_network_moves_once_with_each_minibatch():
    """The policy's update, which follows, leaves it alone."""
    passes = {"passes.epochs": 2, "passes.minibatches": 2}
    still = {"critic.learning_rate": 0.0, "target.rate": 0.25}
    agent, state, batch = start_agent(glider.glider, ENV, SETTINGS | passes | still)
    values = state.parts["values"]
    beside = dataclasses.replace(values, target=jax.tree.map(lambda x: x + 1, values.params))
    state = dataclasses.replace(state, parts={**state.parts, "values": beside})
    new = jax.jit(agent.update)(state, batch, random.key(3))[0].parts["values"]
    for target, param in zip(*map(jax.tree.leaves, (new.target, new.params)), strict=True):
        np.testing.assert_allclose(target - param, 0.75**4, rtol=1e-4)


def test_environments_without_plans_have_one_level():
    maze = envs.make("text_maze", size=2, turns=2)
    with pytest.raises(UserError, match="plans and words apart"):
        glider.glider(maze, SETTINGS)
    glider.glider(maze, SETTINGS | {"levels": "one"})
