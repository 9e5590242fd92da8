"""Dreamer: what its losses see, what stays untouched, and imagined ends."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.algorithms.planning import dreamer as d
from jaxrl.algorithms.planning.shared.imagination import Dreams
from jaxrl.algorithms.planning.shared.recurrent_model_loss import (
    binary_features,
    recurrent_model_loss,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import override
from jaxrl.core.learn import start_source
from jaxrl.core.settings import replace
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Policy
from jaxrl.envs.pixels.catch import catch
from jaxrl.networks.imagination import symexp_atoms
from jaxrl.networks.recurrent_world_model import RecurrentWorldModel
from tests.kit.stub import stub

SIZES = {"num_envs": 2, "num_steps": 4, "updates": 1, "capacity": 64, "warmup": 16}
SIZES |= {"batch_size": 2, "length": 4, "horizon": 3, "deterministic": 5, "groups": 2}
SIZES |= {"classes": 3, "hidden": (8,), "bins": 5}
CONFIG = replace(d.Config(), SIZES)
ENV = catch(rows=3, columns=3)


@functools.cache
def make_updater():
    """Return a function that runs one update on a known batch and returns parts before and
    after."""
    algorithm = d.dreamer(ENV, CONFIG)
    agent, source = algorithm.agent, algorithm.source

    @jax.jit
    def run(key, hyper):
        state = agent.init(key, hyper)
        policy = Policy(agent.act, agent.memory, state)
        held = start_source(source, key, hyper, policy)
        held, fresh, _ = source.collect(held, policy, key)
        batch = source.sample(held, fresh, key)
        after, info = agent.update(state, batch, key)
        return batch, state, after, info

    def go(changes=None):
        batch, before, after, info = run(random.key(0), override(algorithm.hyper, changes))
        return batch, parts(before), parts(after), info

    return go


def parts(state):
    """Parameters by name, and the running range."""
    found = {name: part.params for name, part in state.parts.items()}
    return {**found, "slow": state.parts["critic"].target, "range": state.extra}


def changed_leaves(a, b):
    return [
        bool((x != y).any()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]


@pytest.mark.slow
def test_behavior_and_model_are_learned_apart():
    of = lambda x, *names: [x[name] for name in names]
    behavior = "actor", "critic"
    _, before, after, info = make_updater()({"behavior.learning_rate": 0.0})
    assert not any(changed_leaves(of(before, *behavior), of(after, *behavior)))
    assert any(changed_leaves(before["model"], after["model"]))
    _, before, after, _ = make_updater()({"model.learning_rate": 0.0})
    assert not any(changed_leaves(before["model"], after["model"]))
    assert any(changed_leaves(before["actor"], after["actor"]))
    assert any(changed_leaves(before["critic"], after["critic"]))
    # The model's step does not depend on the behavior's losses at all.
    _, _, plain, _ = make_updater()()
    _, _, other, _ = make_updater()({"entropy_weight": 10.0, "discount": 0.1})
    assert not any(changed_leaves(plain["model"], other["model"]))
    assert any(changed_leaves(of(plain, *behavior), of(other, *behavior)))
    assert all(np.isfinite(x) for x in info.metrics.values())


@pytest.mark.slow
def test_the_slow_critic_and_the_range_are_running_averages():
    _, before, after, _ = make_updater()({"slow.rate": 0.25})
    mixed = jax.tree.map(
        lambda slow, new: 0.75 * slow + 0.25 * new, before["slow"], after["critic"]
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), after["slow"], mixed)
    _, _, after, _ = make_updater()({"range_decay": 1.0})
    assert after["range"] == before["range"] == 0


@functools.cache
def loss():
    """The model's losses of transitions, where no head is 0."""
    _, state, _, _ = make_updater()()
    model = RecurrentWorldModel(ENV.observation_space, ENV.action_space, 9, (8,), 5, 2, 3, 5)
    atoms = symexp_atoms(5, CONFIG.symlog_range)
    params = jax.tree.map(
        lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), state["model"]
    )
    apply = functools.partial(model.apply, params)

    @jax.jit
    def means(t):
        values = recurrent_model_loss(model, apply, t, atoms, random.key(1))[1]
        return {name: x.mean() for name, x in values.items()}

    return means


@pytest.mark.slow
def test_the_loss_knows_cells_and_that_cuts_are_no_ends():
    batch = make_updater()()[0]
    plain = loss()(batch.transitions)
    ended = batch.transitions.next_timestep
    assert ended.terminated.any() and not ended.terminated.all()
    cut = dataclasses.replace(
        ended, terminated=jnp.zeros_like(ended.terminated), truncated=ended.terminated
    )
    cut = loss()(dataclasses.replace(batch.transitions, next_timestep=cut))
    assert cut["continue_loss"] != plain["continue_loss"]
    for name in ("observation_loss", "latent_loss", "reward_loss"):
        assert cut[name] == plain[name]
    # 9 cells of an untrained model: about a bit each, for every successor and the first steps.
    assert 6 * np.log(2) < plain["observation_loss"] < 20 * np.log(2)


@pytest.mark.slow
def test_reward_and_end_belong_to_the_successor():
    t = make_updater()()[0].transitions
    plain = loss()(t)
    # The reward of the step before is nothing to learn from, that of this step is.
    before = dataclasses.replace(t.timestep, reward=t.timestep.reward + 1)
    assert loss()(dataclasses.replace(t, timestep=before)) == plain
    after = dataclasses.replace(t.next_timestep, reward=t.next_timestep.reward + 1)
    changed = loss()(dataclasses.replace(t, next_timestep=after))
    assert {k for k in plain if changed[k] != plain[k]} == {"reward_loss"}
    # They are read off where the last step led, which nothing else shows.
    # The latents there are samples, through which gradients flow all the same.
    for name in ("reward_loss", "continue_loss"):

        def of(cells, name=name):
            after = dataclasses.replace(t.next_timestep, observation=cells)
            return loss()(dataclasses.replace(t, next_timestep=after))[name]

        assert (jax.grad(of)(t.next_timestep.observation.astype(jnp.float32))[-1] != 0).any()


def test_binary_features_are_known_by_their_kind():
    space = {"cells": Box(0, 1, (2, 2), jnp.bool_), "far": Box(-1, 1, (2,)), "which": Discrete(3)}
    expected = [True] * 4 + [False] * 2 + [True] * 3 + [False]  # the last is a goal's
    np.testing.assert_array_equal(binary_features(space, 10), expected)


def test_each_hidden_layer_is_normalized_if_asked():
    count = {}
    for layer_norm in (True, False):
        config = replace(CONFIG, {"hidden": (8, 8), "layer_norm": layer_norm})
        agent = d.dreamer(ENV, config).agent
        state = jax.eval_shape(agent.init, random.key(0), agent.hyper)
        for name, part in parts(state).items():
            paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(part)]
            count[name, layer_norm] = sum("LayerNorm" in p and "scale" in p for p in paths)
    assert not any(count[name, False] for name in ("model", "actor", "critic"))
    # The model has the mixer's layer and two each of encoder, prior, posterior, decoder, reward and
    # continuation.
    assert [count[name, True] for name in ("model", "actor", "critic")] == [13, 2, 2]


@pytest.mark.slow
def test_settings_that_do_not_fit():
    for changes, what in (
        ({"bins": 4}, "bins is 4; it must be odd"),
        ({"length": 400}, "capacity is 64"),
    ):
        with pytest.raises(UserError, match=what):
            d.dreamer(ENV, replace(CONFIG, changes))


def table(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.slow
def test_the_behaviors_loss_weighs_what_is_likely_to_be_reached():
    rng, atoms, (horizon, places) = np.random.default_rng(0), jnp.linspace(-2, 2, 5), (4, 3)
    returns, action = table(rng, horizon, places), rng.integers(0, 3, (horizon, places))
    continues = rng.uniform(size=(horizon, places)).astype(np.float32)
    features = np.arange(horizon + 1.0)[:, None, None] + np.zeros((1, places, 1))
    logits, value, slow = table(rng, horizon, places, 3), *table(rng, 2, horizon, places, 5)
    log = np.asarray(jax.nn.log_softmax(logits))
    entropy = -(np.exp(log) * log).sum(-1)
    taken = np.take_along_axis(log, action[..., None], -1)[..., 0]

    def of(x, result):  # nothing is said of where the last step led
        np.testing.assert_array_equal(x, features[:-1])
        return result

    policy = SimpleNamespace(entropy=lambda: entropy, log_prob=lambda a: jnp.asarray(taken))
    for spread in (0.5, 4.0):  # below 1 returns are not divided
        net = stub(
            hyper={"discount": 0.9, "entropy_weight": 0.1},
            extra=jnp.float32(spread),
            actor=lambda x: of(x, policy),
            critic=lambda x: of(x, value),
            target={"critic": lambda x: of(x, slow)},
        )
        dreams = Dreams(features, action, returns, continues)
        output = d.actor_loss(net, dreams, atoms)
        actor_loss = output.value
        weight = np.ones((horizon, places))
        for t in range(1, horizon):
            weight[t] = weight[t - 1] * 0.9 * continues[t - 1]
        mean = lambda x: np.asarray(jax.nn.softmax(x)) @ np.asarray(atoms)
        advantage = (returns - mean(value)) / max(1.0, spread)
        expected = weight * (-taken * advantage - 0.1 * entropy)
        np.testing.assert_allclose(actor_loss, expected, rtol=1e-4, atol=1e-5)
        two_hot = lambda target: np.asarray(losses.two_hot(jnp.clip(target, -2, 2), atoms))
        code = two_hot(returns) + two_hot(mean(slow))
        critic_loss = -weight * (code * np.asarray(jax.nn.log_softmax(value))).sum(-1)
        found = d.critic_loss(net, dreams, atoms)
        np.testing.assert_allclose(found, critic_loss, rtol=1e-4, atol=1e-5)
