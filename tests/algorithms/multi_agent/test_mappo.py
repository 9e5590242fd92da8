"""MAPPO and independent PPO: the losses against NumPy, and what actors and critics observe."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.ippo import ippo
from jaxrl.algorithms.multi_agent.mappo import mappo
from jaxrl.algorithms.multi_agent.shared import team_policies as m
from jaxrl.algorithms.multi_agent.shared.views import state_view, team_view
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.policies import random_action
from jaxrl.kit import Minibatch
from jaxrl.kit.normalization import Moments, add
from tests.kit.stub import stub

RNG = np.random.default_rng(3)
N = 64
HYPER = {"discount": 0.9, "gae_lambda": 0.8, "clip": 0.2, "value_clip": 0.3, "huber": 0.5}


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def clipped_surrogate(log_prob, old, advantage):
    ratio = np.exp(log_prob - old)
    return -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)


def test_each_agent_follows_its_critics_advantages_with_its_own_actions():
    log_prob, old = ({"a": normal(N, 1), "b": normal(N, 1)} for _ in range(2))
    advantage = normal(N)
    seen = {"a": np.arange(N), "b": N + np.arange(N)}
    no = np.zeros(N, bool)
    timestep = TimeStep(seen, np.zeros(N), no, no, no)
    action = {"a": np.ones((N, 1)), "b": np.zeros((N, 1))}
    x = m.Sample(timestep, action, old, {}, {"critic": advantage}, {})

    def policy(agent):
        def of(timestep):
            np.testing.assert_array_equal(timestep.observation[:, 0], seen[agent])
            assert timestep.legal_actions is None and timestep.privileged is None
            of_action = lambda action: log_prob[agent] + action
            return types.SimpleNamespace(log_prob=of_action, entropy=lambda: np.full((N, 1), 0.7))

        return of

    net = stub(hyper=HYPER | {"entropy_weight": 0.1}, a=policy("a"), b=policy("b"))
    for agent, played in (("a", 1), ("b", 0)):
        view = functools.partial(team_view, names=(agent,))
        output = m.policy_loss(net, x, agent, "critic", view, np.array([0]))
        loss, report = output.value, output.metrics
        new = log_prob[agent][:, 0] + played
        expected = clipped_surrogate(new, old[agent][:, 0], advantage)
        np.testing.assert_allclose(loss, expected - 0.07, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(report[f"{agent}_policy_loss"], expected, rtol=1e-4, atol=1e-5)


def test_the_value_loss_is_a_clipped_huber_loss():
    value, old, target = normal(3, N)
    x = m.Sample(None, {}, {}, {"critic": old}, {}, {"critic": target})
    net = stub(hyper=HYPER, critic=lambda timestep: value)
    loss = m.value_loss(net, x, "critic", lambda timestep: timestep)

    def huber(error):
        size = np.abs(error)
        return np.where(size < 0.5, size**2 / 2, 0.5 * (size - 0.25))

    near = np.clip(value, old - 0.3, old + 0.3)
    expected = np.maximum(huber(value - target), huber(near - target))
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-6)
    assert (huber(near - target) > huber(value - target)).any()


def test_targets_use_updated_statistics_and_values_the_previous_ones():
    steps, envs_ = 6, 4
    table = normal(2 * steps * envs_)
    number = np.arange(2 * steps * envs_).reshape(2, steps, envs_)
    ended = RNG.random((steps, envs_)) < 0.3
    no = np.zeros_like(ended)
    reward = normal(steps, envs_)
    at = lambda i, r, end: TimeStep({}, r, end, no, no, privileged={"state": number[i]})
    extras = {"log_prob": {}}
    x = Transition(at(0, reward, no), {}, at(1, reward, ended), (), extras)
    before = Moments(jnp.float32(2.0), jnp.float32(5 * 9.0), jnp.float32(5.0))  # 2 +- 3
    net = stub(
        hyper=HYPER, critic=lambda timestep: table[timestep.observation], extra={"critic": before}
    )
    sample, after = m.estimate_advantages(net, Batch(x, jnp.float32(0)), {"critic": state_view})
    value, following = 2 + 3 * table[number[0]], 2 + 3 * table[number[1]]
    advantage, later = np.zeros((steps, envs_)), np.zeros(envs_)
    for t in reversed(range(steps)):
        error = reward[t] + 0.9 * ~ended[t] * following[t] - value[t]
        later = advantage[t] = error + 0.72 * ~ended[t] * later
    np.testing.assert_allclose(sample.advantage["critic"], advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sample.value["critic"], table[number[0]])
    expected = add(before, jnp.asarray(advantage + value))
    np.testing.assert_allclose(after["critic"].mean, expected.mean, rtol=1e-5)
    target = (advantage + value - expected.mean) / expected.deviation
    np.testing.assert_allclose(sample.target["critic"], target, rtol=1e-4, atol=1e-5)


def window_with_deaths(steps=6, copies=5):
    """A window in which agent 1 dies at times, with a table of values for each of its states."""
    alive = np.ones((2, steps, copies, 2), bool)
    alive[0, 3:, ::2, 1] = alive[1, 2:, ::2, 1] = False
    number = np.arange(2 * steps * copies).reshape(2, steps, copies)
    no = np.zeros((steps, copies), bool)
    at = lambda i, reward: TimeStep({"b": number[i]}, reward, no, no, no, alive=alive[i])
    reward = normal(steps, copies)
    x = Transition(at(0, 0 * reward), {}, at(1, reward), (), {"log_prob": {}})
    return x, alive, number, normal(2 * steps * copies)


def test_a_dead_agent_counts_in_no_advantage_and_in_no_statistics():
    x, alive, number, table = window_with_deaths()
    before = Moments(jnp.float32(0.0), jnp.float32(5.0), jnp.float32(5.0))
    view = functools.partial(team_view, names=("b",))

    def estimate(reward):
        changed = dataclasses.replace(x.next_timestep, reward=jnp.asarray(reward))
        batch = Batch(dataclasses.replace(x, next_timestep=changed), jnp.float32(0))
        value_of = lambda timestep: jnp.asarray(table)[timestep.observation]
        net = stub(hyper=HYPER, b_critic=value_of, extra={"b_critic": before})
        rewards = {"b_critic": jnp.asarray(reward)[..., None]}
        return m.estimate_advantages(
            net, batch, {"b_critic": view}, rewards, {"b_critic": np.array([1])}
        )

    def estimate_one(reward):
        sample, moments = estimate(reward)
        one = {name: gain[..., 0] for name, gain in sample.advantage.items()}
        return dataclasses.replace(sample, advantage=one), moments

    sample, moments = estimate_one(x.reward)
    living, next_alive = alive[0, ..., 1], alive[1, ..., 1]
    value, following = table[number[0]], table[number[1]]
    advantage, later = np.zeros_like(value), np.zeros(value.shape[1])
    for t in reversed(range(len(value))):
        error = x.reward[t] + 0.9 * next_alive[t] * following[t] - value[t]
        later = advantage[t] = error + 0.72 * next_alive[t] * later
    np.testing.assert_allclose(
        np.where(living, sample.advantage["b_critic"], 0),
        np.where(living, advantage, 0), rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    assert float(moments["b_critic"].count) == 5 + living.sum()
    # Rewards after its death change nothing for it.
    again, same = estimate_one(np.where(living, x.reward, 100.0))
    gain = lambda sample: np.where(living, sample.advantage["b_critic"], 0)
    np.testing.assert_allclose(gain(again), gain(sample), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(same["b_critic"].mean, moments["b_critic"].mean, rtol=1e-5)

    each = dataclasses.replace(
        sample, advantage={"b_critic": sample.advantage["b_critic"][..., None]}
    )
    own = m.standardize_living(each, {"b_critic": [1]}).advantage["b_critic"][..., 0]
    assert abs(own[living].mean()) < 1e-5 and abs(own[living].std() - 1) < 1e-4
    team = m.standardize_living(sample, {"b_critic": [0, 1]}).advantage["b_critic"]
    count = alive[0].sum(-1)
    mean = (count * sample.advantage["b_critic"]).sum() / count.sum()
    np.testing.assert_allclose((count * team).sum() / count.sum(), 0, atol=1e-5)
    assert abs(float(mean)) > 1e-3  # so that the weights matter


def test_the_dead_are_masked_in_their_own_losses_alone():
    x, alive, _, _ = window_with_deaths()
    rows = Minibatch(m.Sample(x.timestep, {}, {}, {}, {}, {}), RNG.random(x.reward.shape) < 0.7)
    own = lambda rows, i: m.living(rows, np.array([i]))
    np.testing.assert_array_equal(own(rows, 1).mask, rows.mask & alive[0, ..., 1])
    np.testing.assert_array_equal(own(rows, 0).mask, rows.mask)
    np.testing.assert_allclose(own(rows, 1).weight[own(rows, 1).mask], 1, rtol=1e-6)
    assert m.living(rows, None) is rows
    every = own(dataclasses.replace(rows, mask=None), 1)
    np.testing.assert_array_equal(every.mask, alive[0, ..., 1])


def test_equal_targets_are_not_scaled_up():
    equal = Moments(jnp.float32(0.0), jnp.float32(0.0), jnp.float32(5.0))
    assert m._unstandardize(jnp.float32(1.0), equal) == np.float32(m.LEAST_DEVIATION)


@pytest.mark.slow
@pytest.mark.parametrize("builder", [mappo, ippo], ids=["mappo", "ippo"])
def test_actors_see_their_own_observation_and_only_mappos_critic_the_state(builder):
    """Finds the fields that a part reads by changing each and comparing outputs."""
    env = envs.make("speaker_listener", size=3)
    recipe = builder.recipe(env, builder.Config())
    views = {name: functools.partial(team_view, names=(name,)) for name in env.action_space}
    if builder is mappo:
        views["critic"] = state_view
    else:
        views |= {f"{name}_critic": view for name, view in views.items()}
    assert set(views) == set(recipe.parts)
    example = example_timestep(env)
    legal = jax.tree.map(jnp.ones_like, example.legal_actions)
    noise = iter(jax.random.split(jax.random.key(1), 6))
    draw = lambda tree: jax.tree.map(lambda x: jax.random.normal(next(noise), x.shape), tree)
    plain, other = (
        {"state": draw(example.privileged["state"])} | draw(example.observation) for _ in range(2)
    )

    @jax.jit
    def outputs(seen):
        timestep = dataclasses.replace(
            example,
            observation={name: seen[name] for name in env.action_space},
            privileged={"state": seen["state"]},
            legal_actions=legal,
        )
        key = jax.random.key(0)
        out = {
            n: part.apply(part.init(key), views[n](timestep)) for n, part in recipe.parts.items()
        }
        return {n: getattr(x, "logits", x) for n, x in out.items()}

    before = outputs(plain)
    for name in plain:
        after = outputs(plain | {name: other[name]})
        for part in views:
            sight = "state" if part == "critic" else part.removesuffix("_critic")
            changed = bool((before[part] != after[part]).any())
            assert changed == (name == sight), (part, name)


def test_unsuitable_environments_are_rejected():
    with pytest.raises(UserError, match=r"agents that act at the same time.*'cartpole'"):
        mappo.agent(envs.make("cartpole"))
    env = envs.make("speaker_listener", size=3)
    reset = lambda key, params: (  # an environment that does not expose its state
        lambda out: (out[0], dataclasses.replace(out[1], privileged=None))
    )(env.reset(key, params))
    blind = dataclasses.replace(env, reset=reset)
    with pytest.raises(UserError, match="does not expose; ippo needs none"):
        mappo.agent(blind)
    ippo.agent(blind)


def test_random_agents_choose_legal_actions():
    env = envs.make("speaker_listener", size=3)

    @jax.jit
    @jax.vmap
    def choose(key):
        _, timestep = env.reset(key, env.params)
        action = random_action(env.action_space, key, timestep)
        return timestep.legal_actions["listener"][action["listener"]], action["listener"]

    legal, action = choose(jax.random.split(jax.random.key(0), 256))
    assert legal.all() and len(np.unique(action)) == 5
