"""SALSA: two policies from halves of the texts, and PPO near their soup."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.salsa import salsa
from jaxrl.algorithms.preferences.salsa_supervised import salsa_supervised
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.algorithms.tokens.token_supervised import token_supervised
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import replace_hyper
from jaxrl.core.learn import take_over
from jaxrl.core.train import start

ENV = envs.make("addition", digits=1)
SIZES = {"recurrent": 8, "transformer": 0, "optimizer.learning_rate": 0.01, "optimizer.eps": 0.01}
TEXTS = SIZES | {"num_envs": 8}
OWN = SIZES | {"prompts": 2, "answers": 2, "kl.weight": 0.5}


def params(state, name="actor_critic"):
    return state.parts[name].params


def assert_same(found, expected, **options):
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, **options)


def differ(found, other):
    pairs = zip(*map(jax.tree.leaves, (found, other)), strict=True)
    return any(np.abs(x - y).max() > 1e-4 for x, y in pairs)


def test_each_policy_learns_from_its_half_of_the_texts():
    both = salsa_supervised(ENV, TEXTS)
    state = start(both, random.key(0)).state
    assert_same(params(state.agent), params(state.agent, "second"), rtol=0)  # they begin alike
    _, batch, _ = both.source.collect(state.source, both.policy(state), random.key(1))
    after, _ = jax.jit(both.agent.update)(state.agent, batch, random.key(2))
    alone = token_supervised(ENV, TEXTS | {"num_envs": 4})
    begun = dataclasses.replace(
        state.agent, parts={"actor_critic": state.agent.parts["actor_critic"]}
    )
    learn = jax.jit(alone.agent.update)
    for k, name in enumerate(("actor_critic", "second")):
        own = jax.tree.map(lambda x, k=k: x[:, k::2], (batch.transitions, batch.mask))
        half = dataclasses.replace(batch, transitions=own[0], mask=own[1], memory=None, tail=None)
        expected, _ = learn(begun, half, random.key(2))
        assert_same(params(after, name), params(expected), rtol=1e-4, atol=1e-6)
    assert differ(params(after), params(after, "second"))
    # In a warm start each part has buffers of its own, which can be donated.
    adopted = both.agent.adopt(after, state.agent).parts
    held = [(part.params, part.target) for part in adopted.values()]
    leaves = jax.tree.leaves(held)
    assert len({id(x) for x in leaves}) == len(leaves)
    assert_same(adopted["second"].params, params(state.agent), rtol=0)


def test_it_is_ppo_whose_reference_is_the_mean_of_two_policies():
    """Check a warm start, and shares at both ends and between."""
    donor = salsa_supervised(ENV, TEXTS)
    supervised = start(donor, random.key(1)).state
    other = start(donor, random.key(2)).state.agent
    learned = supervised.agent.parts | {
        "second": dataclasses.replace(
            supervised.agent.parts["second"], params=params(other, "second")
        )
    }
    supervised = dataclasses.replace(supervised.agent, parts=learned)
    algorithm, plain = salsa(ENV, OWN), token_ppo(ENV, OWN)
    run = start(algorithm, random.key(0)).state
    run = take_over(run, algorithm.agent.adopt(run.agent, supervised))
    assert_same(run.agent.parts["actor_critic"].target, params(supervised), rtol=0)
    _, batch, _ = algorithm.source.collect(run.source, algorithm.policy(run), random.key(3))
    update, expect = jax.jit(algorithm.agent.update), jax.jit(plain.agent.update)
    begun = start(plain, random.key(0)).state.agent
    ends = []
    for share in (0.0, 0.25, 1.0):
        now, info = update(replace_hyper(run.agent, {"share": share}), batch, random.key(4))
        mix = lambda x, y, share=share: share * x + (1 - share) * y
        soup = jax.tree.map(mix, params(supervised), params(supervised, "second"))
        policy = dataclasses.replace(run.agent.parts["actor_critic"], target=soup)
        state = dataclasses.replace(begun, parts={"actor_critic": policy})
        expected, known = expect(state, batch, random.key(4))
        assert_same(params(now), params(expected), rtol=1e-4, atol=1e-6)
        assert_same(info.metrics["kl_to_reference"], known.metrics["kl_to_reference"], rtol=1e-3)
        # Both ends of the soup stay.
        assert_same(now.parts["actor_critic"].target, params(supervised), rtol=0)
        assert_same(params(now, "second"), params(supervised, "second"), rtol=0)
        ends.append(params(now))
    assert differ(ends[0], ends[1]) and differ(ends[1], ends[2])


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"texts\.num_envs is 6; .* multiple of 4"):
        salsa_supervised(ENV, SIZES | {"num_envs": 6, "num_shards": 2})
    algorithm = salsa(ENV, OWN)
    run = start(algorithm, random.key(0)).state
    alone = start(token_supervised(ENV, TEXTS), random.key(0)).state.agent
    with pytest.raises(UserError, match="has other parts than this configuration's"):
        take_over(run, algorithm.agent.adopt(run.agent, alone))
