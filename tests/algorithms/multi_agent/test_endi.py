"""EnDi: masks and their gradients, what each head sees, the loss, and environments it refuses."""

from __future__ import annotations

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.endi import Sample, endi, policy_loss
from jaxrl.algorithms.multi_agent.shared.views import own_view
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import TimeStep
from jaxrl.networks.entity_divider import EntityDivider, choose_mask
from tests.kit.stub import stub

RNG = np.random.default_rng(0)
ENV = envs.make("manual_quest", size=4)
N, E = 16, 4


def own_timestep(agent="agent_0"):
    """Return an agent's view of the beginnings of N episodes."""
    reset = jax.vmap(lambda key: ENV.reset(key, ENV.params)[1])
    timestep = reset(jax.random.split(random.key(0), N))
    return dataclasses.replace(
        timestep,
        observation=timestep.observation[agent],
        legal_actions=timestep.legal_actions[agent],
        privileged=None,
    )


def network(divide=True):
    space = ENV.action_space["agent_0"]
    made = EntityDivider(space, 1, 8, 4, 8, (8,), divide=divide)
    return made, made.init(random.key(1), own_timestep(), jnp.zeros((N, E, 2)))


def test_masks_are_choices_with_the_gradient_of_a_softmax():
    logits = jnp.array([[0.3, -0.2], [1.0, 2.0]])
    np.testing.assert_array_equal(choose_mask(logits), [[1, 0], [0, 1]])
    weight = jnp.array([[0.7, -1.1], [0.2, 0.5]])
    slope = jax.grad(lambda x: (choose_mask(x) * weight).sum())(logits)
    expected = jax.grad(lambda x: (jax.nn.softmax(x) * weight).sum())(logits)
    np.testing.assert_allclose(slope, expected, rtol=1e-6)
    keys = jax.random.split(random.key(0), 4000)
    drawn = jax.vmap(lambda k: choose_mask(logits[0] + jax.random.gumbel(k, (2,))))(keys)
    np.testing.assert_allclose(drawn.mean(0), jax.nn.softmax(logits[0]), atol=0.03)


def test_each_head_sees_its_own_entities_alone():
    """Finds what a head sees by its gradient with respect to where entities are."""
    made, params = network()
    timestep = own_timestep()
    noise = jnp.asarray(RNG.normal(size=(N, E, 2)) * 20, jnp.float32)  # decides the masks
    mask = np.asarray(made.apply(params, timestep, noise).mask)
    np.testing.assert_array_equal(mask, np.eye(2)[np.asarray(noise.argmax(-1))])

    def outputs(shift):
        """Return both heads' logits, after moving entities by `shift` [N, E]."""
        observation = timestep.observation
        rows = observation["entities"].at[..., 6:10].add(shift[..., None])
        moved = dataclasses.replace(timestep, observation=observation | {"entities": rows})
        out = made.apply(params, moved, noise)
        return out.policy.logits, out.others[:, 0]

    plain = outputs(jnp.zeros((N, E)))
    for entity in range(E):
        after = outputs(jnp.zeros((N, E)).at[:, entity].set(0.01))
        for head in range(2):
            finite = np.asarray(plain[head]) > -1e6
            change = np.where(finite, np.abs(after[head] - plain[head]), 0).max(-1)
            assert not change[mask[:, entity, head] == 0].any()
            assert (change[mask[:, entity, head] == 1] > 0).mean() > 0.7


def test_the_manual_gives_names_their_meaning():
    """Permuting the lines changes nothing, and swapping two names' roles does."""
    made, params = network(divide=False)
    timestep, noise = own_timestep(), jnp.zeros((N, E, 2))

    def logits(manual):
        observation = timestep.observation | {"manual": manual.reshape(N, 8)}
        return made.apply(
            params, dataclasses.replace(timestep, observation=observation), noise
        ).policy.logits

    lines = timestep.observation["manual"].reshape(N, 4, 2)
    np.testing.assert_allclose(logits(lines[:, ::-1]), logits(lines), rtol=1e-4, atol=1e-5)
    swapped = lines.at[..., 1].set(13 - lines[..., 1])
    assert float(jnp.abs(logits(swapped) - logits(lines)).max()) > 1e-3


def test_the_loss_is_ppos_plus_the_cross_entropy_of_the_other_agents_actions():
    log_prob, old, advantage = (RNG.normal(size=N).astype(np.float32) for _ in range(3))
    others = RNG.normal(size=(N, 1, 5)).astype(np.float32)
    noise, action = RNG.normal(size=(N, E, 2)), RNG.integers(0, 5, N)
    no = np.zeros(N, bool)
    timestep = TimeStep({"a": np.arange(N), "b": N + np.arange(N)}, no, no, no, no)

    def divider(timestep, given):
        np.testing.assert_array_equal(timestep.observation, np.arange(N))
        np.testing.assert_array_equal(given, noise)
        policy = types.SimpleNamespace(
            log_prob=lambda action: log_prob + action, entropy=lambda: np.full(N, 0.5)
        )
        return types.SimpleNamespace(policy=policy, others=others, mask=np.ones((N, E, 2)))

    x = Sample(
        timestep, {"a": np.ones(N), "b": action}, {"a": old}, {}, {"critic": advantage}, {},
        noise={"a": noise},
    )  # fmt: skip
    hyper = {"clip": 0.2, "entropy_weight": 0.1, "model_weight": 0.7}
    output = policy_loss(stub(hyper=hyper, a=divider), x, "a", ("b",))
    ratio = np.exp(log_prob + 1 - old)
    clipped = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    chances = np.exp(others[:, 0]) / np.exp(others[:, 0]).sum(-1, keepdims=True)
    cross_entropy = -np.log(chances[np.arange(N), action])
    np.testing.assert_allclose(
        output.value, clipped - 0.05 + 0.7 * cross_entropy, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(output.metrics["a_model_loss"], cross_entropy, rtol=1e-4)


@pytest.mark.slow
def test_the_division_is_the_one_that_was_acted_by():
    """Acts, and asks for the probabilities again: the ratio is 1, since masks keep their noise."""
    recipe = endi.recipe(ENV, endi(ENV, {"hidden": (8,), "width": 8}).config)
    params = {name: part.init(random.key(2)) for name, part in recipe.parts.items()}
    apply = lambda name: lambda *x: recipe.parts[name].apply(params[name], *x)
    reset = jax.vmap(lambda key: ENV.reset(key, ENV.params)[1])
    timestep = reset(jax.random.split(random.key(0), N))
    number = {}
    key = lambda name: jax.random.fold_in(random.key(3), number.setdefault(name, len(number)))
    net = stub(key=key, **{name: apply(name) for name in recipe.parts})
    action, _, extras = recipe.act(net, timestep, (), random.key(0), False)
    for agent in ENV.agents:
        again = apply(agent)(own_view(timestep, agent), extras["noise"][agent])
        np.testing.assert_allclose(
            again.policy.log_prob(action[agent]), extras["log_prob"][agent], rtol=1e-5
        )
        assert np.abs(extras["noise"][agent]).max() > 1


def test_other_environments_are_refused():
    with pytest.raises(UserError, match="must observe agents, entities, manual"):
        endi(envs.make("speaker_listener"))
    assert set(example_timestep(ENV).observation) == set(ENV.agents)
