"""Pairs of answers: which two of a group, in which order, of which policy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.judges import win_probabilities
from jaxrl.core.types import Policy
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.sources import episodes, judged_pairs, pair_dataset
from jaxrl.sources.pairs import choose_pair, judged_of
from jaxrl.tasks import repeat, starts

ENV = envs.make("judged_words", letters=2, length=2)


def by_chance(state, timestep, memory, key, greedy):
    action = jax.random.categorical(key, jnp.where(timestep.legal_actions, state, -1e9))
    return action, memory, {"log_prob": jnp.zeros(action.shape)}


def policy(*logits):
    return Policy(by_chance, lambda n: (), jnp.asarray(logits, jnp.float32))


UNIFORM = policy(0.0, 0.0, 0.0)


@functools.cache
def groups(count, size):
    prompts = repeat(starts(ENV.params, Start), size)
    return episodes(start_key(ENV), count * size, prompts)


def test_a_comparison_comes_out_as_often_as_it_is_probable():
    probability = jnp.array([[0.5, 0.8], [0.2, 0.5]])
    places = choose_pair(random.key(0), jnp.broadcast_to(probability, (20_000, 2, 2)))
    assert set(map(tuple, places.tolist())) == {(0, 1), (1, 0)}
    np.testing.assert_allclose((places[:, 0] == 0).mean(), 0.8, atol=0.01)


def test_the_extremes_of_a_group_won_most_and_least():
    order = np.array([2, 0, 3, 1])  # strength of each answer
    certain = (order[:, None] > order).astype(np.float32)
    np.testing.assert_array_equal(choose_pair(random.key(0), certain[None]), [[2, 1]])
    np.testing.assert_array_equal(choose_pair(random.key(0), certain[None], "first_two"), [[0, 1]])
    circle = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float32)  # all win once
    chosen, rejected = choose_pair(random.key(0), circle[None])[0]
    assert chosen != rejected


def sample_batch(source, policy, seed=0):
    start_key, collect_key, sample_key = jax.random.split(random.key(seed), 3)
    state = source.init(start_key, source.hyper, policy)
    state, fresh, _ = source.collect(state, policy, collect_key)
    return source.sample(state, fresh, sample_key)


def texts(batch):
    """Prompt and answer of each episode [B]."""
    t, mask = batch.transitions, np.asarray(batch.mask)
    prompts = np.asarray(t.timestep.observation)[0]
    actions = np.asarray(t.action)
    return [(int(p), *(int(a) for a in actions[mask[:, i], i])) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("rank", ["extremes", "first_two"])
def test_pairs_of_groups_answer_one_prompt_and_come_from_their_group(rank):
    source = groups(32, 4)
    key = random.key(1)
    state = source.init(key, {}, UNIFORM)
    _, all_, _ = source.collect(state, UNIFORM, jax.random.split(key)[0])
    batch = judged_pairs(source, ENV, 4, rank).collect(state, UNIFORM, key)[1]
    whole, chosen = texts(all_), texts(batch)
    assert len(chosen) == 64
    for i in range(32):
        group, pair = whole[4 * i : 4 * i + 4], chosen[2 * i : 2 * i + 2]
        assert pair[0][0] == pair[1][0]
        assert set(pair) <= set(group if rank == "extremes" else group[:2])
    if rank == "extremes":
        reward = np.asarray(batch.transitions.reward * batch.mask).sum(0).reshape(-1, 2)
        assert reward[:, 0].mean() > reward[:, 1].mean() + 0.5


def test_a_dataset_is_labeled_once_and_as_its_judge_prefers():
    source = pair_dataset(groups(4096, 2), ENV, 512)
    state = source.init(random.key(0), {}, UNIFORM)
    transitions, mask = state.data
    assert mask.shape == (2, 8192)
    batch = dataclasses.replace(sample_batch(source, UNIFORM), transitions=transitions, mask=mask)
    won = win_probabilities(ENV.judge, judged_of(batch), 2)[:, 0, 1]
    # A fair label's chosen answer has the expected probability E[p^2 + (1 - p)^2].
    np.testing.assert_allclose(won.mean(), (won**2 + (1 - won) ** 2).mean(), atol=0.02)
    # Twice the same batches, and every pair of a batch is one of the dataset.
    one, two = (sample_batch(source, UNIFORM, seed=3) for _ in range(2))
    assert texts(one) == texts(two) and len(texts(one)) == 1024
    known = texts(batch)
    pairs = lambda x: {(x[i], x[i + 1]) for i in range(0, len(x), 2)}
    assert pairs(texts(one)) <= pairs(known)


def test_a_dataset_is_not_played_again():
    source = pair_dataset(groups(8, 2), ENV, 4)
    state = source.init(random.key(0), {}, UNIFORM)
    after, env_steps, metrics = source.collect(state, policy(9.0, 0.0, 0.0), random.key(1))
    assert env_steps == 1 and metrics == {}
    for a, b in zip(jax.tree.leaves(state.data), jax.tree.leaves(after.data), strict=True):
        np.testing.assert_array_equal(a, b)


def test_episodes_tell_their_judge_what_they_said_at_their_end():
    batch = sample_batch(groups(64, 2), UNIFORM)
    judged = np.asarray(judged_of(batch))
    reward = np.asarray(jnp.where(batch.mask, batch.transitions.reward, 0).sum(0))
    np.testing.assert_allclose(judged[:, 0], reward, rtol=1e-6)
    np.testing.assert_array_equal(judged[:, 1:], 0)  # no cycle


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: judged_pairs(groups(2, 2), envs.make("addition"), 2), "'addition' has no judge"),
        (lambda: judged_pairs(groups(2, 2), ENV, 1), "must have at least 2 answers to compare"),
        (lambda: judged_pairs(groups(2, 2), ENV, 2, "best"), "rank 'best'"),
        (lambda: judged_pairs(groups(3, 2), ENV, 2, num_shards=2), "6 episodes do not divide"),
        (lambda: pair_dataset(groups(2, 2), ENV, 0), "batch_size must be at least 1, got 0"),
        (lambda: pair_dataset(groups(2, 2), ENV, 3, num_shards=2), "batch_size=3 does not divide"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_share_of_the_labels_is_flipped():
    """A certain judge is right as often as labels are not flipped."""
    certain = dataclasses.replace(
        ENV, judge=lambda a, b: jnp.where(a[..., 0] > b[..., 0], 1.0, 0.0)
    )
    source = pair_dataset(groups(2000, 2), certain, 2000, flipped=0.25)
    state = source.init(random.key(0), {}, UNIFORM)
    transitions, mask = state.data
    reward = np.where(mask, transitions.reward, 0).sum(0).reshape(-1, 2)
    differs = reward[:, 0] != reward[:, 1]
    right = (reward[:, 0] > reward[:, 1])[differs].mean()
    np.testing.assert_allclose(right, 0.75, atol=0.03)


def test_pairs_without_labels_are_in_the_order_in_which_they_were_written():
    env = dataclasses.replace(ENV, judge=None)
    source = pair_dataset(groups(8, 2), env, 8, judged=False)
    state = source.init(random.key(0), {}, UNIFORM)
    _, play_key, _ = jax.random.split(random.key(0), 3)
    played = groups(8, 2)
    begun = played.init(jax.random.split(random.key(0), 3)[0], {}, UNIFORM)
    _, batch, _ = played.collect(begun, UNIFORM, play_key)
    np.testing.assert_array_equal(state.data[0].action, batch.transitions.action)
    with pytest.raises(UserError, match="has no judge"):
        pair_dataset(groups(8, 2), env, 8)
    with pytest.raises(UserError, match="flipped is a probability"):
        pair_dataset(groups(8, 2), ENV, 8, flipped=1.5)
