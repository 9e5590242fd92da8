"""Pairs by policies of several times: who writes what, whose weights are where, and contrast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences.temporal_self_rewarding import (
    PAST,
    PRESENT,
    choose_pair,
    temporal_self_rewarding,
)
from jaxrl.core import metrics, random
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start, train

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 3e-3}
SMALL = SIZES | {"prompts": 4, "answers": 6, "steps": 1}


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("rejected", [PAST, PRESENT])
def test_chosen_and_rejected_are_extremes_of_their_writers(guided, rejected):
    rate = np.random.default_rng(0).normal(size=(200, 9))
    found = np.asarray(choose_pair(jnp.asarray(rate), guided, rejected))
    may = [i for i in range(9) if i % 3 == 0 or (guided and i % 3 == 2)]
    must = [i for i in range(9) if i % 3 == rejected]
    for row, (best, worst) in zip(rate, found, strict=True):
        assert best == max(may, key=lambda i: row[i])
        assert worst == min(must, key=lambda i: row[i])


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def parts_of(run):
    parts = run.state.agent.parts
    own = parts["actor_critic"]
    return {name: flat(parts[name].params) for name in parts} | {"past": flat(own.target)}


def test_an_iteration_trains_the_future_first_then_the_present_again():
    algorithm = temporal_self_rewarding(ENV, SMALL)
    runs = [start(algorithm, random.key(0))]
    for _ in range(4):
        runs.append(advance(algorithm, runs[-1])[0])
    zero, one, two, three, four = map(parts_of, runs)
    begun = zero["actor_critic"]
    for name, params in zero.items():
        np.testing.assert_array_equal(params, begun, err_msg=name)
    for now in (one, two, three, four):
        np.testing.assert_array_equal(now["past"], begun)
    np.testing.assert_array_equal(one["actor_critic"], begun)  # again from the beginning
    np.testing.assert_array_equal(one["anchor"], begun)
    assert (one["future"] != begun).any()
    for name in ("anchor", "future"):
        np.testing.assert_array_equal(two[name], two["actor_critic"])
        np.testing.assert_array_equal(four[name], four["actor_critic"])
    assert (two["anchor"] != one["future"]).any() and (two["anchor"] != begun).any()
    np.testing.assert_array_equal(three["actor_critic"], two["actor_critic"])
    assert (three["future"] != two["future"]).any()


def test_present_past_and_future_write_in_turns():
    """The log-probabilities of what was said are those of the writer's weights."""
    algorithm = temporal_self_rewarding(ENV, SMALL | {"learning_rate": 0.05, "steps": 1})
    run = start(algorithm, random.key(0))
    for _ in range(3):
        run, _ = advance(algorithm, run)
    state, agent = run.state, run.state.agent
    _, batch, _ = algorithm.source.collect(state.source, algorithm.policy(state), random.key(1))
    config, own = algorithm.config, agent.parts["actor_critic"]
    network = policy_network(ENV, config.torso, config.memory)
    writers = [agent.parts["anchor"].params, own.target, agent.parts["future"].params]
    t, size = batch.transitions, batch.mask.shape[1]
    by_writer = [
        network.apply(params, t.timestep, network.initial(size), method="unroll")[0].log_prob(
            t.action
        )
        for params in writers
    ]
    assert np.abs(by_writer[0] - by_writer[1]).max() > 0.05
    assert np.abs(by_writer[0] - by_writer[2]).max() > 0.05
    expected = np.choose(np.arange(size) % 3, [np.asarray(x) for x in by_writer])
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(t.extras["log_prob"][mask], expected[mask], atol=1e-5)


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(UserError, match=r"pairs\.answers is 8; it must be a multiple of 3"):
        temporal_self_rewarding(ENV, SMALL | {"answers": 8})


def test_one_answer_of_the_present_cannot_be_chosen_and_rejected():
    with pytest.raises(UserError, match=r"pairs\.answers is 3, of which the present policy"):
        temporal_self_rewarding(ENV, SMALL | {"answers": 3, "rejected_by": "present"})


@pytest.mark.slow
def test_pairs_of_the_past_keep_their_contrast():
    """The probability that the chosen answer beats the rejected one, after the same updates."""
    env = envs.make("judged_words")
    sizes = SIZES | {"recurrent": 32, "prompts": 32, "answers": 12, "steps": 25, "beta": 0.1}
    leads = {}
    for rejected, chosen in (("past", "future"), ("present", "present")):
        writers = {"rejected_by": rejected, "chosen_by": chosen}
        algorithm = temporal_self_rewarding(env, sizes | writers | {"optimizer.name": "adam"})
        run = start(algorithm, random.key(0))
        means = []
        for updates in (25, 100, 25):  # means over the first, the middle and the last of them
            run, log = train(algorithm, run, updates)
            means.append(float(metrics.values(log)["lead"]))
        leads[rejected] = means
    past, present = leads["past"], leads["present"]
    assert abs(past[0] - present[0]) < 0.1, leads
    assert past[-1] > present[-1] + 0.1, leads
