"""MAMQL: each agent's objective on tables, and what marginal critics say in a small game."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.imitation import mamql
from jaxrl.algorithms.imitation.shared.adversarial import Beside
from jaxrl.core.errors import UserError
from tests.kit.stub import stub, transitions

SETTINGS = {k: v for k, v in mamql.TINY.items() if k not in ("env", "env_params")}
AGENTS = {"one": 2, "two": 3}
HYPER = {"discount": 0.9, "temperature": 0.5, "alpha": 0.7}


def joint_steps(seed):
    """Steps of two agents, which observe the number of the state in two different ways."""
    x = transitions(6, seed=seed)
    rng = np.random.default_rng(seed)
    see = lambda t: dataclasses.replace(
        t, observation={"one": t.observation, "two": 11 - t.observation}
    )
    action = {name: rng.integers(0, n, 6) for name, n in AGENTS.items()}
    before, after = see(x.timestep), see(x.next_timestep)
    return dataclasses.replace(x, timestep=before, next_timestep=after, action=action)


@pytest.mark.parametrize("agent", AGENTS)
def test_each_agent_learns_as_if_the_others_were_the_environment(agent):
    tables = {
        name: np.random.default_rng(n).normal(size=(12, n)).astype(np.float32)
        for name, n in AGENTS.items()
    }
    networks = {
        name: lambda t, name=name: jnp.asarray(tables[name])[t.observation][..., None]
        for name in AGENTS
    }
    shown, played = joint_steps(0), joint_steps(1)
    found = mamql.marginal_loss(agent)(stub(hyper=HYPER, **networks), Beside(played, shown))

    def terms(x):
        q = tables[agent][x.timestep.observation[agent]]
        after = tables[agent][x.next_timestep.observation[agent]]
        soft = lambda q: 0.5 * np.log(np.exp(q / 0.5).sum(-1))
        return q[np.arange(6), x.action[agent]], soft(q), soft(after), x.terminated

    both = [np.concatenate(pair) for pair in zip(terms(shown), terms(played), strict=True)]
    expert = np.arange(12) < 6
    expected = losses.iq_learn(*both[:3], expert, both[3], 0.9, 0.7)
    np.testing.assert_allclose(found.value.mean(), expected, rtol=1e-5)
    reward = both[0] - 0.9 * np.where(both[3], 0, both[2])
    np.testing.assert_allclose(found.metrics[f"{agent}_expert_reward"], reward[:6], rtol=1e-4)


def test_marginal_critics_in_equilibrium_have_the_experts_rewards_up_to_shaping():
    """Two players, both soft-optimal beside each other, in a game with different rewards."""
    rng, discount, temperature = np.random.default_rng(0), 0.8, 1.0
    reward = rng.random((2, 3, 2, 4)).astype(np.float32)  # of each player, [S, A, B]
    transition = rng.dirichlet(np.ones(3), (3, 2, 4)).astype(np.float32)
    own_first = lambda x, i: jnp.swapaxes(x, 1, 2) if i else x

    def marginal(joint, policies, i):
        return losses.marginal_q(own_first(joint, i), policies[1 - i])

    def step(carry, _):
        values, policies = carry
        q = [marginal(reward[i] + discount * transition @ values[i], policies, i) for i in (0, 1)]
        values = tuple(losses.soft_value(x, temperature) for x in q)
        return (values, tuple(jax.nn.softmax(x / temperature) for x in q)), None

    start = (jnp.zeros(3),) * 2, (jnp.full((3, 2), 0.5), jnp.full((3, 4), 0.25))
    (_, policies), _ = jax.jit(lambda x: jax.lax.scan(step, x, length=400))(start)
    uniform = jax.tree.map(lambda x: jnp.full_like(x, 1 / x.shape[-1]), policies)
    for i in (0, 1):
        # A critic that explains the expert's actions: that of any values of the states.
        other = jnp.float32(rng.normal(size=3))
        critic = temperature * jnp.log(policies[i]) + other[:, None]
        np.testing.assert_allclose(losses.soft_value(critic, temperature), other, atol=1e-5)

        def distance(policies, i=i, critic=critic, other=other):
            moves = jnp.moveaxis(own_first(transition, i), -1, 0)
            moves = jnp.stack([losses.marginal_q(x, policies[1 - i]) for x in moves], -1)
            found = losses.inverse_bellman_reward(critic, moves @ other, False, discount)
            true = losses.marginal_q(own_first(reward[i], i), policies[1 - i])
            return losses.shaping_distance(true, found, moves, discount)

        assert distance(policies) < 1e-4
        assert distance(uniform) > 0.02  # the others are not averaged over as they act


def test_environments_of_one_agent_or_without_experts_are_refused():
    with pytest.raises(UserError, match="mamql needs agents that act at the same time"):
        mamql.mamql(envs.make("cartpole"), SETTINGS)
    env = dataclasses.replace(envs.make("speaker_listener", size=3), expert=None)
    with pytest.raises(UserError, match="'speaker_listener' has none"):
        mamql.mamql(env, SETTINGS)
