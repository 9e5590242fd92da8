"""SePPO: pairs, checkpoints, and the good answers that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.preferences.seppo import choose_pair, seppo
from jaxrl.algorithms.preferences.shared.measures import all_answers, log_probs
from jaxrl.algorithms.preferences.sppo import sppo
from jaxrl.core import random
from jaxrl.core.train import advance, start, train
from jaxrl.exact.answers import best_of_n

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 3e-3}
SMALL = SIZES | {"prompts": 4, "answers": 3, "steps": 2, "checkpoints": 2}


def test_the_best_of_the_first_answers_is_good_and_the_last_is_the_sample():
    reward = np.random.default_rng(0).normal(size=(100, 5))
    preference = 1 / (1 + np.exp(reward[:, None] - reward[:, :, None]))
    found = np.asarray(choose_pair(jnp.asarray(preference)))
    np.testing.assert_array_equal(found[:, 0], reward[:, :4].argmax(-1))
    assert (found[:, 1] == 4).all()


def test_the_reference_is_one_of_the_last_checkpoints():
    algorithm = seppo(ENV, SMALL)
    run, policies, drawn = start(algorithm, random.key(0)), [], set()
    flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    begun = flat(run.state.agent.parts["actor_critic"].params)
    for update in range(1, 25):
        run, _ = advance(algorithm, run)
        parts = run.state.agent.parts
        anchor, policy = (flat(parts[name].params) for name in ("anchor", "actor_critic"))
        np.testing.assert_array_equal(flat(parts["actor_critic"].target), begun)
        if update % 2:
            expected = policies[-2:] or [begun]
        else:
            policies.append(policy)
            expected = policies[-2:]
        which = [i for i, x in enumerate(expected) if np.array_equal(x, anchor)]
        assert which, update
        drawn |= {which[0]} if update > 4 else set()
    assert drawn == {0, 1}  # not always the same one


def test_a_policy_that_was_taken_over_writes_both_answers_first():
    agent = seppo.agent(ENV, seppo.complete_config(SMALL))
    own = agent.init(random.key(0), agent.hyper)
    other = sppo.agent(ENV, sppo.complete_config(SIZES | {"prompts": 4}))
    other = other.init(random.key(1), other.hyper)
    adopted = agent.adopt(own, other)
    assert jax.tree.structure(adopted) == jax.tree.structure(own)
    policy = other.parts["actor_critic"].params
    parts = adopted.parts
    for found in (
        parts["actor_critic"].params,
        parts["actor_critic"].target,
        parts["anchor"].params,
    ):
        assert all(map(np.array_equal, *map(jax.tree.leaves, (found, policy))))


@pytest.mark.slow
def test_it_approaches_the_distribution_of_the_good_answers():
    """The distribution is exactly the best of four answers of the first policy."""
    sizes = SIZES | {"prompts": 128, "answers": 5, "steps": 25, "beta": 0.1}
    algorithm = seppo(ENV, sizes)
    begun = start(algorithm, random.key(0))
    after, _ = train(algorithm, begun, 300)
    found = all_answers(ENV)
    first, last = (
        log_probs(ENV, algorithm.config, run.state.agent.parts["actor_critic"].params)
        for run in (begun, after)
    )
    good = best_of_n(first, found.reward, 4)
    kl = lambda x: losses.categorical_kl(good, x).mean()
    worth = lambda x: (jnp.exp(x) * found.reward).sum(-1).mean()
    assert worth(good) > worth(first) + 0.5
    assert kl(last) < 0.25 * kl(first), (
        kl(first),
        kl(last),
        worth(first),
        worth(good),
        worth(last),
    )
