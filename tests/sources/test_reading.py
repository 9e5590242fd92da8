"""Prompts that are read at once: the episodes are those that are played step by step."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.grpo import grpo
from jaxrl.core import random
from jaxrl.core.train import start
from jaxrl.core.types import ReadingAct
from jaxrl.envs.wrappers import early_truncation, forced_text, time_limit
from jaxrl.sources import episodes

SUMS = envs.make("addition", digits=2)  # six tokens are read, in five steps, and four written
TRANSFORMER = {"recurrent": 8, "transformer": 1, "attention_heads": 2}


def collect(env, act_of, settings):
    """Return a batch, and the shapes that were read at once."""
    algorithm = grpo(env, {"prompts": 8, "answers": 4, "num_shards": 1} | settings)
    policy = algorithm.policy(start(algorithm, random.key(0)).state)
    act, read = policy.act, []

    def count(state, timestep, memory, action):
        read.append(action.shape)
        return act.read(state, timestep, memory, action)

    source = episodes(env, 32, keep_states=True)
    policy = dataclasses.replace(policy, act=act_of(act, count))
    state = source.init(random.key(2), {}, policy)
    _, batch, metrics = jax.jit(source.collect)(state, policy, random.key(1))
    return jax.tree.map(np.asarray, (batch, metrics)), read


@pytest.mark.parametrize(
    ("env", "settings", "steps"),
    [
        (SUMS, TRANSFORMER | {"sampling.nucleus": True, "sampling.top_p": 0.7}, 5),
        (SUMS, {"recurrent": 8, "transformer": 0, "sampling.temperature": 0.5}, 5),
        (early_truncation(SUMS, 0.1), TRANSFORMER, 5),  # some end while they read
        (forced_text(SUMS, 1), TRANSFORMER, 5),
    ],
    ids=["transformer", "gru", "truncated", "wrapped"],
)
@pytest.mark.slow
def test_the_same_is_said_and_logged(env, settings, steps):
    (at_once, metrics), read = collect(env, lambda act, count: ReadingAct(act.act, count), settings)
    (alone, expected), none = collect(env, lambda act, count: act.act, settings)
    assert set(read) == {(steps, 32)} and not none
    np.testing.assert_array_equal(at_once.mask, alone.mask)
    seen = lambda batch: jax.tree.map(
        lambda x: np.where(batch.mask.reshape(batch.mask.shape + (1,) * (x.ndim - 2)), x, 0),
        batch.transitions,
    )
    ours, theirs = seen(at_once), seen(alone)
    log_probs = [x.extras.pop("log_prob") for x in (ours, theirs)]
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    np.testing.assert_allclose(*log_probs, atol=1e-5)
    assert (log_probs[0][alone.mask & alone.transitions.timestep.tokens["decision"]] < 0).any()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), metrics, expected)
    ends = alone.mask[-1]  # whose memory is that of the episode
    for x, y in zip(jax.tree.leaves(at_once.memory), jax.tree.leaves(alone.memory), strict=True):
        np.testing.assert_allclose(x[ends], y[ends], atol=1e-5)


def test_environments_say_how_long_their_prompts_are():
    assert SUMS.forced_steps == 5 and time_limit(SUMS, 3).forced_steps == 5
    assert envs.make("judged_words").forced_steps == 0  # the first token is decided after one
    assert envs.make("cartpole").forced_steps == 0
