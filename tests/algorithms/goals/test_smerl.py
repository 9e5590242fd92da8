"""SMERL: whose diversity is paid for, what the discriminator sees, and the choice among skills."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import smerl
from jaxrl.algorithms.goals.shared.skills import (
    discriminator_loss,
    few_shot,
    skill_rewards,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.wrappers.registry import wrap
from tests.algorithms.imitation.test_gail import start_agent
from tests.kit.stub import stub, transitions

SKILLS = [{"skills": {"number": 2}}]
SETTINGS = {k: v for k, v in smerl.TINY.items() if k not in ("env", "wrappers")}


def make(**settings):
    return wrap(envs.make("corridors", **settings), SKILLS)


def test_only_episodes_close_to_the_best_are_paid_for_diversity():
    reward = np.float32([[-1, -1, -1], [-1, -1, -9], [-1, -9, -9]])
    mask = np.array([[True, True, True], [True, True, False], [True, False, False]])
    diversity = np.float32([[0.5, 0.1, 0.2], [0.3, -0.2, 9.0], [0.4, 9.0, 9.0]])
    paid, good = smerl.gated_rewards(reward, diversity, mask, -1.0, 1.0, 10.0)
    np.testing.assert_array_equal(good, [False, True, True])
    expected = reward + 10 * diversity * np.array([False, True, True])
    np.testing.assert_allclose(paid, np.where(mask, expected, 0.0), rtol=1e-6)


def test_the_discriminator_tells_skills_by_the_states_they_lead_to():
    x, table = transitions(6), np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    skill = np.array([0, 1, 2, 2, 1, 0])
    x = dataclasses.replace(x, timestep=dataclasses.replace(x.timestep, goal=np.eye(3)[skill]))

    def discriminator(timestep):
        assert timestep.goal is None  # nothing else tells the skill
        return jnp.asarray(table)[timestep.observation][..., None]

    net = stub(discriminator=discriminator)
    log_q = jax.nn.log_softmax(table[6:])[np.arange(6), skill]
    np.testing.assert_allclose(discriminator_loss(net, x).value, -log_q, rtol=1e-5)
    np.testing.assert_allclose(skill_rewards(net, x), log_q + np.log(3), rtol=1e-5)


def test_ppo_learns_from_diversity_in_good_episodes_alone():
    """The policy is updated as without a weight where no episode reaches the bound."""
    env = wrap(envs.make("corridors"), smerl.TINY["wrappers"])
    agent, state, batch = start_agent(smerl.smerl, env, SETTINGS)
    update = jax.jit(agent.update)

    def policy(**changes):
        hyper = {**state.agent.hyper, **{k: jnp.float32(v) for k, v in changes.items()}}
        new = dataclasses.replace(state, agent=dataclasses.replace(state.agent, hyper=hyper))
        new, info = update(new, batch, random.key(3))
        return jax.tree.leaves(new.agent.parts["actor_critic"].params), info.metrics

    paid, metrics = policy(diversity_weight=1.0)  # all of four steps, -4, which is the best return
    assert metrics["near_optimal"] == 1
    free, _ = policy(diversity_weight=0.0)
    out_of_reach, metrics = policy(diversity_weight=1.0, best_return=-3.0)
    assert metrics["near_optimal"] == 0
    assert all(np.array_equal(a, b) for a, b in zip(free, out_of_reach, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(free, paid, strict=True))


def make_players():
    """Return a policy whose skill 0 goes through the upper corridor, and skill 1 the lower."""
    env = envs.make("corridors")
    cells = env.params.successor[..., 0]
    ways = []
    for skill in range(2):
        # The other corridor counts as blocked.
        blocked = envs.make("corridors", blocked=1 - skill).params
        ways.append(blocked.optimal)
    table = jnp.asarray(np.stack(ways))
    assert cells.shape == (12, 4)

    def act(state, timestep, memory, key, greedy):
        del key, greedy
        skill, place = timestep.goal.argmax(-1), timestep.observation.argmax(-1)
        return state[skill, place], memory, {}

    return Policy(act, lambda n: (), table)


@pytest.mark.parametrize(("blocked", "expected"), [(0, [-24, -6]), (1, [-6, -24])])
def test_few_shot_keeps_the_skill_that_still_works(blocked, expected):
    best, returns = few_shot(make(blocked=blocked), make_players(), random.key(0), tries=2)
    np.testing.assert_array_equal(returns, expected)
    assert best == np.argmax(expected)


def test_environments_without_skills_or_whole_episodes_are_refused():
    with pytest.raises(UserError, match="put it into the wrapper 'skills'"):
        smerl.smerl(envs.make("corridors"), SETTINGS)
    with pytest.raises(UserError, match="has a limit of 24 steps; smerl learns from whole"):
        smerl.smerl(make(), SETTINGS)
    with pytest.raises(UserError, match="few_shot needs skills"):
        few_shot(envs.make("corridors"), make_players(), random.key(0))
