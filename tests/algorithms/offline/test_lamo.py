"""LaMo: what learns in which phase, what the policy sees, and the language that is kept."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jaxrl import envs
from jaxrl.algorithms.offline import lamo
from jaxrl.core import hyper, random
from jaxrl.core.settings import replace
from jaxrl.networks.decoder import merge_adapters
from tests.datasets.stand_in import no_training

__all__ = ["no_training"]

pytestmark = pytest.mark.usefixtures("no_training")
ENV = envs.make("pendulum")
SETTINGS = {
    "data.name": "random",
    "normalization.observation": False,
    "data.size": 400,
    "data.batch_size": 8,
    "data.updates": 1,
    "sequence.context": 4,
    "sequence.width": 16,
    "sequence.layers": 1,
    "sequence.heads": 2,
    "language.length": 16,
    "language.batch_size": 4,
    "language.rank": 2,
    "language.optimizer.learning_rate": 0.01,
    "language.steps": 30.0,
    "optimizer.learning_rate": 0.01,
}


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@functools.cache
def run():
    """Return the algorithm, and its states before, between and after the phases, with metrics."""
    config = replace(lamo.Config(), SETTINGS)
    algorithm = lamo.lamo(ENV, config)
    step = jax.jit(algorithm.step)
    state = algorithm.init(random.key(0), hyper.hypers(config))
    states, reports = [state], []
    for i in range(45):
        state, metrics = step(state, random.key(i))[:2]
        reports.append(metrics)
        if i in (29, 44):
            states.append(state)
    return algorithm, [s.agent.parts for s in states], reports


def test_phases_learn_their_own_parts():
    _, (begun, between, ended), _ = run()
    assert not same(begun["language"].params, between["language"].params)
    for part in ("adapters", "ends"):
        assert same(begun[part].params, between[part].params)
        assert not same(between[part].params, ended[part].params)
    assert same(between["language"].params, ended["language"].params)
    names = flatten_dict(begun["adapters"].params)
    assert {k[-1] for k in names} == {"lora_a", "lora_b"}
    assert {k[-2] for k in names} == set(lamo.ADAPTED)


def test_adapters_begin_without_an_effect_and_are_in_the_weights_afterward():
    config = replace(lamo.Config(), SETTINGS)
    model = lamo.language_model(config)
    _, (begun, _, ended), _ = run()
    tokens = jnp.asarray(lamo.corpus()[:15])[:, None]

    def logits(parts):
        class Fake:
            pass

        net = Fake()
        net.parts = parts
        whole = lamo.together(net)
        merged = {"params": merge_adapters(whole["params"], model.adapters)}
        plain = dataclasses.replace(model, adapters=lamo.Adapters())
        adapted = model.apply(whole, tokens, method="logits")
        np.testing.assert_allclose(
            plain.apply(merged, tokens, method="logits"), adapted, rtol=1e-4, atol=1e-5
        )
        return adapted, plain.apply(parts["language"].params, tokens, method="logits")

    np.testing.assert_allclose(*logits(begun), atol=1e-6)
    assert np.abs(np.subtract(*logits(ended))).max() > 1e-3


def test_the_policy_sees_the_past_that_exists_alone():
    algorithm, (_, _, ended), _ = run()
    config = replace(lamo.Config(), SETTINGS)
    recipe = lamo.recipe(ENV, config)
    policy = algorithm.policy
    _, timestep = jax.vmap(lambda key: ENV.reset(key, ENV.params))(
        jax.random.split(jax.random.key(0), 1)
    )
    state = algorithm.init(random.key(0), hyper.hypers(config))
    agent = dataclasses.replace(state.agent, parts=ended)
    act = policy(dataclasses.replace(state, agent=agent))
    memory = recipe.memory(1)
    action, _, _ = act.act(act.state, timestep, memory, jax.random.key(0), True)
    junk = dataclasses.replace(
        memory, features=memory.features + 5.0, action=memory.action - 3.0, to_go=memory.to_go + 7
    )
    other, _, _ = act.act(act.state, timestep, junk, jax.random.key(0), True)
    np.testing.assert_allclose(action, other, atol=1e-5)
    # What exists is seen.
    later = dataclasses.replace(timestep, first=jnp.zeros(1, bool))
    real = dataclasses.replace(junk, exists=jnp.ones_like(junk.exists))
    seen, _, _ = act.act(act.state, later, real, jax.random.key(0), True)
    assert np.abs(np.asarray(seen - action)).max() > 1e-4


def test_the_language_is_learned_and_kept():
    _, _, reports = run()
    first = float(reports[0]["pretraining_loss"].value())
    last = float(reports[29]["pretraining_loss"].value())
    assert first == pytest.approx(np.log(128), abs=0.3) and last < 0.75 * first
    kept = float(reports[40]["language_loss"].value())
    assert kept == pytest.approx(0.1 * last, rel=0.25)  # the weight of the language loss


def test_the_text_is_the_docstrings_of_the_losses():
    text = bytes(lamo.corpus().astype(np.uint8)).decode("ascii")
    assert len(text) > 50_000
    assert "Importance weight of a simulated transition" in text
