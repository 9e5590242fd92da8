"""Texts as data: who wrote them, how often each is drawn, and what never changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.shared.texts import KEEP
from jaxrl.core import metrics, random, shared
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.datasets.texts import make_texts
from jaxrl.envs.language.written import written_episodes
from jaxrl.sources import episodes, given_texts, played_through, text_dataset

ENV = envs.make("judged_words", letters=2, length=2)


def by_chance(state, timestep, memory, key, greedy):
    action = jax.random.categorical(key, jnp.where(timestep.legal_actions, state, -1e9))
    return action, memory, {"log_prob": jnp.zeros(action.shape)}


def policy(*logits):
    return Policy(by_chance, lambda n: (), jnp.asarray(logits, jnp.float32))


UNIFORM = policy(0.0, 0.0, 0.0)


def draw(source, writer, batches=1):
    """A batch of each of some steps, and the last state and metrics."""
    state = source.init(random.key(0), source.hyper, writer)

    def step(state, key):
        state, fresh, row = source.collect(state, policy(9.0, 0.0, 0.0), key)
        return state, (source.sample(state, fresh, key), row)

    state, (found, row) = jax.lax.scan(step, state, jax.random.split(random.key(1), batches))
    return found, state, metrics.values(jax.tree.map(lambda x: x[-1], row))


def returns_of(batch):
    return np.asarray(jnp.where(batch.mask, batch.transitions.reward, 0).sum(-2))


def test_a_policy_writes_its_texts_once():
    source = text_dataset(episodes(ENV, 64), 16)
    batch, state, _ = draw(source, UNIFORM, batches=3)
    assert source.plays_in_init and source.env_steps == 1
    np.testing.assert_array_equal(batch.env_steps, [1, 2, 3])
    data = returns_of_columns(state.data)
    assert set(returns_of(batch).reshape(-1)) <= set(data)
    written = np.asarray(state.data[0].action)[np.asarray(state.data[1])]
    assert (written == 0).mean() < 0.6  # by whom it began with, not by whom it meets later


def returns_of_columns(data):
    return np.asarray(jnp.where(data[1], data[0].reward, 0).sum(0))


@pytest.mark.parametrize("name", ["all", "right", "by_return"])
def test_texts_are_drawn_as_often_as_they_weigh(name):
    source = text_dataset(episodes(ENV, 32), 4096, KEEP[name])
    batch, state, row = draw(source, UNIFORM)
    data, drawn = returns_of_columns(state.data), returns_of(batch)[0]
    weight = {"all": np.ones(32), "right": data > 0, "by_return": np.maximum(data, 0)}[name]
    assert weight.any() and (name == "all" or (weight == 0).any())
    np.testing.assert_allclose(row["texts_kept"], (weight > 0).mean(), rtol=1e-6)
    for value in np.unique(data):
        share = weight[data == value].sum() / weight.sum()
        np.testing.assert_allclose((drawn == value).mean(), share, atol=0.03)


def test_without_a_right_text_nothing_is_learned():
    source = text_dataset(episodes(ENV, 32), 8, jnp.zeros_like)
    batch, _, row = draw(source, UNIFORM)
    assert not batch.mask.any() and row["texts_kept"] == 0


def test_the_agent_may_write_with_a_change():
    always = lambda agent: policy(0.0, 9.0, 0.0)
    source = text_dataset(played_through(episodes(ENV, 64), always), 8)
    _, state, _ = draw(source, UNIFORM)
    decision = state.data[1] & state.data[0].timestep.tokens["decision"]
    assert (np.asarray(state.data[0].action)[np.asarray(decision)] == 1).mean() > 0.95


def test_given_texts_are_in_no_checkpoint_and_drawn_by_weight():
    texts = make_texts(ENV, [([0], [1, 2]), ([1], [0, 0]), ([1], [2])], [1.0, 2.0, 1.0])
    transitions, mask = written_episodes(ENV, texts.tokens, texts.utterance, texts.length)
    source = given_texts(transitions, mask, texts.weight, 4096, "own")
    batch, state, row = draw(source, UNIFORM)
    assert all(x.size <= 4096 for x in jax.tree.leaves(shared.strip(state)))
    assert shared.has_shared(state) and row["texts_kept"] == 1
    first = np.asarray(batch.transitions.action)[0, 0]
    np.testing.assert_allclose(np.bincount(first) / 4096, [0.5, 0.25, 0.25], atol=0.03)
    np.testing.assert_array_equal(np.asarray(batch.mask)[0].sum(0) == 1, first == 2)


@pytest.mark.parametrize("size, shards, message", [(0, 1, "at least 1, got 0"), (3, 2, "divide")])
def test_sizes_that_do_not_fit_are_refused(size, shards, message):
    with pytest.raises(UserError, match=message):
        text_dataset(episodes(ENV, 4), size, num_shards=shards)
