"""Promising episodes: which are kept, when they are handed out and forgotten, against lists."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Source, TimeStep, Transition
from jaxrl.sources import with_promising

EPISODES, SIZE, COUNT, WINDOWS, HISTORY = 8, 2, 2, 3, 2


def make_source():
    """A source whose episodes of two steps observe the number of their window and their own."""

    def collect(state, policy, key):
        number = 100 * state + jnp.arange(EPISODES)
        seen = jnp.broadcast_to(number, (2, EPISODES)).astype(jnp.float32)
        no = jnp.zeros((2, EPISODES), bool)
        step = TimeStep(seen, jnp.zeros_like(seen), no, no, no)
        batch = Batch(Transition(step, seen, step, (), {}), jnp.float32(0), mask=~no)
        return state + 1, batch, {}

    return Source(
        "numbered",
        lambda key, hyper, policy: jnp.int32(0),
        collect,
        lambda state, fresh, key: fresh,
        num_envs=EPISODES,
    )


def test_what_is_kept_handed_out_and_forgotten():
    source = with_promising(make_source(), SIZE, COUNT, WINDOWS, HISTORY)
    rng = np.random.default_rng(0)
    state = source.init(random.key(0), {}, None)
    kept, means, handed_out, waited = {}, [], 0, 0
    for i in range(40):
        state, fresh, _ = source.collect(state, None, random.key(i))
        batch = source.sample(state, fresh, random.key(0))
        t, mask = batch.transitions, np.asarray(batch.mask)
        np.testing.assert_array_equal(t.observation[0, :EPISODES], 100 * i + np.arange(EPISODES))
        assert mask[:, :EPISODES].all()
        excess = np.asarray(t.extras["recalibrated"])
        assert (excess[:, :EPISODES] == 0).all()
        median = np.median(np.concatenate(means[-HISTORY:])) if means else np.inf
        worth = {n: r for n, r in kept.items() if r > median and n // 100 >= i - WINDOWS}
        if len(worth) > 1.5 * COUNT:
            handed_out += 1
            chosen = np.asarray(t.observation[0, EPISODES:]).astype(int)
            assert len(set(chosen)) == COUNT and set(chosen) <= set(worth)
            assert mask.all()
            expected = [worth[n] - median for n in chosen]
            np.testing.assert_allclose(excess[0, EPISODES:], expected, atol=1e-6)
            kept = {}
        else:
            waited += 1
            assert not mask[:, EPISODES:].any() and (excess == 0).all()
        returns = rng.normal(size=EPISODES).astype(np.float32) - 0.05 * i
        promising = rng.random(EPISODES) < 0.3
        kept |= {100 * i + b: returns[b] for b in np.flatnonzero(promising)}
        means.append(returns.reshape(-1, SIZE).mean(1))
        fed = {"returns": jnp.asarray(returns), "promising": jnp.asarray(promising)}
        state = source.feedback(state, batch, fed)
    assert handed_out > 3 and waited > 10


def test_the_inner_source_hears_of_its_own_episodes():
    heard = []

    def feedback(state, batch, feedback):
        heard.append((batch.mask.shape, batch.transitions.extras, set(feedback)))
        return state

    inner = dataclasses.replace(make_source(), feedback=feedback)
    source = with_promising(inner, SIZE, COUNT, WINDOWS, HISTORY)
    state = source.init(random.key(0), {}, None)
    state, batch, _ = source.collect(state, None, random.key(0))
    none = jnp.zeros(EPISODES)
    source.feedback(state, batch, {"returns": none, "promising": none > 0, "score": none})
    assert heard == [((2, EPISODES), {}, {"score"})]


def test_sizes_are_checked():
    for sizes in ((3, 2, 2, 2), (2, 99, 2, 2), (2, 2, 0, 2)):
        with pytest.raises(UserError, match="must"):
            with_promising(make_source(), *sizes)


def test_states_can_be_compiled():
    source = with_promising(make_source(), SIZE, COUNT, WINDOWS, HISTORY)
    state = source.init(random.key(0), {}, None)
    new, _, _ = jax.jit(lambda s, k: source.collect(s, None, k))(state, random.key(0))
    assert jax.tree.structure(new) == jax.tree.structure(state)
