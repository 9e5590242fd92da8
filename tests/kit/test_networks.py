"""Tests of networks that a user gives for a part."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxrl
from jaxrl.algorithms import registry
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.networks import encoders
from jaxrl.networks.heads import Categorical, PolicyHead, normal

SIZES = {"num_envs": 4, "num_steps": 8}
OFF_POLICY = {"num_envs": 4, "warmup": 8, "batch_size": 8, "capacity": 64, "updates": 1}


def cartpole():
    return jaxrl.make("cartpole")


class LinenPolicyAndValue(nn.Module):
    @nn.compact
    def __call__(self, timestep):
        x = nn.tanh(nn.Dense(8)(timestep.observation))
        return Categorical(nn.Dense(2)(x)), nn.Dense(1)(x)[..., 0]


class PolicyAndValue(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(4, 8, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(8, 2, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)])

    def __call__(self, timestep):
        x = jnp.tanh(self.hidden(timestep.observation))
        return Categorical(self.layers[0](x)), self.layers[1](x)[..., 0]


class Values(nnx.Module):
    """Action values of cartpole, in a class whose argument has a name only."""

    def __init__(self, *, rngs):
        self.layer = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, timestep):
        return self.layer(timestep.observation)[..., None]


class Remembering(nn.Module):
    """Actor-critic that remembers the last observation."""

    @nn.compact
    def __call__(self, timestep, memory):
        x = jnp.concatenate([timestep.observation, memory], -1)
        policy = Categorical(nn.Dense(2, name="policy")(x))
        return policy, nn.Dense(1, name="value")(x)[..., 0], timestep.observation

    def unroll(self, timestep, memory):
        before = jnp.concatenate([memory[None], timestep.observation[:-1]])
        before = trees.where(timestep.first, jnp.zeros_like(before), before)
        return self(timestep, before)

    def initial(self, n):
        return jnp.zeros((n, 4))


def learn(algorithm, seed=0, steps=2):
    """Train, and return the first and last parameters of every part."""
    begin = jaxrl.start(algorithm, jaxrl.key(seed))
    run, row = jaxrl.train(algorithm, begin, steps)
    assert np.isnan(m.values(row)["diverged"])
    parts = lambda run: {n: p.params for n, p in run.state.agent.parts.items()}
    return parts(begin), parts(run)


def differences(a, b):
    return [not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)]


@pytest.mark.parametrize("given", [LinenPolicyAndValue(), PolicyAndValue])
@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_policies_without_memory_need_one_method(name, given):
    build = getattr(jaxrl.algorithms, name)
    part = "actor_critic" if name == "ppo" else "policy"
    sizes = SIZES if name == "ppo" else {"num_envs": 4}
    algorithm = build(cartpole(), sizes, networks={part: given})
    first, last = learn(algorithm)
    assert any(differences(first, last))


@pytest.mark.slow
def test_grpo_takes_a_network_without_memory():
    env, config = registry.tiny("grpo")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, timestep):
            x = encoders.flatten(env.observation_space, timestep.observation)
            policy = PolicyHead(env.action_space)(x, timestep.legal_actions)
            return policy, nn.Dense(1)(x)[..., 0]

    networks = {"actor_critic": Network()}
    first, last = learn(jaxrl.algorithms.grpo(env, config, networks=networks), steps=1)
    assert any(differences(first, last))


@pytest.mark.parametrize("given", [Values, lambda rngs: Values(rngs=rngs)])
def test_a_function_of_random_numbers_draws_weights_for_each_seed(given):
    algorithm = jaxrl.algorithms.dqn(cartpole(), OFF_POLICY, networks={"q": given})
    first, last = learn(algorithm)
    assert sorted(first["q"]["params"]) == ["layer.bias", "layer.kernel"]
    assert all(differences(first, last))
    other = jaxrl.start(algorithm, jaxrl.key(1)).state.agent.parts["q"].params
    assert any(differences(first["q"], other))


def test_an_nnx_module_begins_with_its_own_weights():
    module = Values(rngs=nnx.Rngs(3))
    algorithm = jaxrl.algorithms.dqn(cartpole(), OFF_POLICY, networks={"q": module})
    first, _ = learn(algorithm)
    np.testing.assert_array_equal(first["q"]["params"]["layer.kernel"], module.layer.kernel[...])
    same = jaxrl.algorithms.dqn(cartpole(), OFF_POLICY, networks={"q": module})
    assert same is algorithm
    module.layer.kernel[...] = 2 * module.layer.kernel[...]
    later = jaxrl.algorithms.dqn(cartpole(), OFF_POLICY, networks={"q": module})
    begin = jaxrl.start(later, jaxrl.key(0)).state.agent.parts["q"].params
    np.testing.assert_array_equal(begin["params"]["layer.kernel"], module.layer.kernel[...])


def test_the_network_acts_and_is_differentiated():
    """One step of plain gradient descent is that of the same loss written out with linen."""
    algorithm = jaxrl.algorithms.dqn(cartpole(), OFF_POLICY, networks={"q": Values})
    run = jaxrl.start(algorithm, jaxrl.key(0))
    _, timestep = cartpole().reset(jaxrl.key(1), cartpole().params)
    batch = jax.tree.map(lambda x: x[None], timestep)
    policy = algorithm.policy(run.state)
    action, _, _ = policy.act(policy.state, batch, policy.memory(1), jaxrl.key(2), True)
    params = run.state.agent.parts["q"].params["params"]
    values = batch.observation @ params["layer.kernel"] + params["layer.bias"]
    assert action[0] == values[0].argmax()


def test_a_network_with_memory_keeps_it():
    networks = {"actor_critic": Remembering()}
    algorithm = jaxrl.algorithms.ppo(cartpole(), SIZES, networks=networks)
    policy = algorithm.policy(jaxrl.start(algorithm, jaxrl.key(0)).state)
    assert policy.memory(3).shape == (3, 4)
    first, last = learn(algorithm)
    assert all(differences(first, last))


class NoUnroll(nn.Module):
    def __call__(self, timestep, memory):
        return None, None, memory

    def initial(self, n):
        return jnp.zeros((n, 4))


class Flat(nn.Module):
    """Action values without the axis of outputs."""

    @nn.compact
    def __call__(self, timestep):
        return nn.Dense(2)(timestep.observation)


class OfArrays(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.Dense(2)(observation)[..., None]


class Noisy(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, timestep):
        return self.dropout(self.layer(timestep.observation))[..., None]


class Listed(nn.Module):
    widths: list

    @nn.compact
    def __call__(self, timestep):
        return nn.Dense(2)(timestep.observation)[..., None]


@pytest.mark.parametrize(
    ("name", "part", "given", "sentence"),
    [
        ("ppo", "actor_critic", NoUnroll(), r"lacks unroll; .* unroll\(timestep, memory\)"),
        ("muzero", "model", Flat(), "lacks dynamics, predict, represent"),
        ("dqn", "q", Flat(), r"gives an array \[1, 2\]; it must give an array \[1, 2, 1\]"),
        ("dqn", "q", OfArrays(), r"fails on the inputs of this part \(a TimeStep\)"),
        ("dqn", "q", Noisy, "keeps a random state"),
        ("dqn", "q", 3, "must be a flax linen or nnx module"),
        ("dqn", "p", Flat(), "did you mean 'q'|may be one of: q"),
        ("ppo", "actor_critic", Flat(), "must give a policy and a value"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(name, part, given, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        getattr(jaxrl.algorithms, name)(cartpole(), networks={part: given})
    assert "\n" not in str(error.value)


def test_a_list_in_a_linen_module_is_said():
    network = Listed([1])
    if not isinstance(network.widths, list):
        pytest.skip("flax turns lists into tuples")
    with pytest.raises(UserError, match="use tuples"):
        jaxrl.algorithms.dqn(cartpole(), networks={"q": network})


def test_members_need_weights_of_their_own():
    build = functools.partial(jaxrl.algorithms.discrete_sac, cartpole(), OFF_POLICY)
    with pytest.raises(UserError, match="members need weights of their own"):
        build(networks={"critic": Values(rngs=nnx.Rngs(0))})
    parts = jaxrl.start(build(networks={"critic": Values}), jaxrl.key(0)).state.agent.parts
    one, other = parts["critic"].params["params"]["layer.kernel"]
    assert not np.array_equal(one, other)


def test_a_normal_policy_counts_in_half_widths():
    space = jaxrl.make("pendulum").action_space
    policy = normal(space, jnp.full((3, 1), 0.5), 0.1)
    np.testing.assert_allclose(policy.mode(), jnp.ones((3, 1)))
    np.testing.assert_allclose(policy.stddev(), jnp.full((3, 1), 0.2), rtol=1e-6)
