"""MA-RLHF: macro actions, their advantages against loops, and token_ppo as a special case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.ma_rlhf import (
    fixed_macros,
    ma_rlhf,
    macro_advantages,
    perplexity_macros,
    random_macros,
)
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.core import random
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch
from tests.kit.stub import stub, transitions

ENV = envs.make("judged_words", letters=2, length=4)
SMALL = {"prompts": 4, "answers": 4, "recurrent": 8, "transformer": 0, "optimizer.eps": 0.01}
SMALL |= {"kl.weight": 0.05, "optimizer.learning_rate": 0.01, "gae_lambda": 0.9, "weight_decay": 0}
SMALL |= {"optimizer.beta2": 0.95}
# Two steps of a prompt, then answers of 6 and 3 tokens, the first of which is interrupted.
MASK = np.array([[0, 0, 1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0, 0, 0]], bool).T


def test_fixed_macro_actions_count_decisions():
    found = np.asarray(fixed_macros(jnp.asarray(MASK), 2))
    np.testing.assert_array_equal(found[:, 0][MASK[:, 0]], [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(found[:, 1][MASK[:, 1]], [0, 0, 1])


def test_random_macro_actions_have_the_sizes():
    mask = jnp.ones((40, 50), bool).at[:3].set(False)
    found = np.asarray(random_macros(mask, (1, 4), random.key(0)))[3:]
    assert (found[0] == 0).all() and np.isin(np.diff(found, axis=0), [0, 1]).all()
    sizes = [n for row in found.T for n in np.bincount(row)[:-1]]  # the last one may be cut off
    assert set(sizes) == {1, 4} and 0.4 < np.mean(np.array(sizes) == 1) < 0.6


def test_a_macro_action_ends_before_a_less_likely_token():
    log_prob = np.array([[0, 0, -3, -2, -9, -2, -4, -1, -5], [0, 0, -1, -1, -2, 0, 0, 0, 0.0]]).T
    found = np.asarray(perplexity_macros(jnp.asarray(MASK), jnp.asarray(log_prob)))
    np.testing.assert_array_equal(found[:, 0][MASK[:, 0]], [0, 0, 0, 1, 1, 2])
    np.testing.assert_array_equal(found[:, 1][MASK[:, 1]], [0, 0, 1])


def test_advantages_go_from_macro_action_to_macro_action():
    x, rng = transitions(18), np.random.default_rng(1)
    x = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(2, 9).T, x)
    value, next_value = rng.normal(size=(2, 9, 2))
    ends = np.zeros((9, 2), bool)
    ends[8, 0] = ends[4, 1] = True
    object.__setattr__(x.next_timestep, "terminated", jnp.asarray(ends))
    object.__setattr__(x.next_timestep, "truncated", jnp.zeros((9, 2), bool))
    reward = np.where(np.cumsum(ends, 0) - ends > 0, 0, np.asarray(x.reward))
    object.__setattr__(x.next_timestep, "reward", jnp.asarray(reward))
    net = stub(hyper={"discount": 0.9, "gae_lambda": 0.8})
    batch = Batch(x, jnp.zeros(()), mask=jnp.asarray(MASK))
    macro = fixed_macros(batch.mask, 2)
    found, target = macro_advantages(net, batch, macro, jnp.asarray(value), jnp.asarray(next_value))
    # The reward of a step between two decisions belongs to the macro action before it.
    for b, runs in ((0, [[2, 3], [5, 6], [7, 8]]), (1, [[2, 3], [4]])):
        begins = [run[0] for run in runs] + [9]
        worth = [value[run, b].mean() for run in runs] + [0.0]
        after = 0.0
        for k in reversed(range(len(runs))):
            earned = reward[begins[k] : begins[k + 1], b].sum()
            after = earned + 0.9 * worth[k + 1] - worth[k] + 0.9 * 0.8 * after
            np.testing.assert_allclose(found[runs[k], b], after, rtol=1e-4)
            np.testing.assert_allclose(target[runs[k], b], after + worth[k], rtol=1e-4)
    assert not np.asarray(found)[~MASK].any()


def after(builder, **settings):
    algorithm = builder(ENV, SMALL | settings)
    run = jax.jit(lambda key: train(algorithm, start(algorithm, key), 2)[0])(random.key(0))
    leaves = jax.tree.leaves(run.state.agent.parts["actor_critic"].params)
    return np.concatenate([np.ravel(x) for x in leaves])


@pytest.mark.slow
def test_macro_actions_of_one_token_are_token_ppo():
    same = after(token_ppo)
    np.testing.assert_allclose(after(ma_rlhf, **{"macro.size": 1}), same, atol=1e-6)
    assert np.abs(after(ma_rlhf, **{"macro.size": 2}) - same).max() > 1e-3


@pytest.mark.slow
def test_it_learns():
    more = {"prompts": 16, "answers": 4, "macro.size": 2, "epochs": 2, "kl.weight": 0.0}
    algorithm = ma_rlhf(ENV, SMALL | more)

    @jax.jit
    def learn(key):
        run, first = train(algorithm, start(algorithm, key), 5)
        return first, train(algorithm, train(algorithm, run, 40)[0], 5)[1]

    first, last = (metrics["episode_return"].value() for metrics in learn(random.key(0)))
    assert last > first + 0.5
