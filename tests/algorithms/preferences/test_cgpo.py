"""CGPO: violations, calibrated rewards, who is learned from, and words that keep the rule."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences import cgpo as of_cgpo
from jaxrl.algorithms.preferences.cgpo import broken_answers, cgpo, violations
from jaxrl.algorithms.preferences.shared.measures import all_answers, log_probs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.exact.answers import enumerate_answers

ENV = envs.make("ruled_words", letters=2, length=3, seed=6)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}
SMALL = SIZES | {"prompts": 4, "answers": 3}


@pytest.fixture(scope="module")
def rollout():
    algorithm = cgpo(ENV, SMALL)
    state = start(algorithm, random.key(0)).state
    _, batch, _ = algorithm.source.collect(state.source, algorithm.policy(state), random.key(1))
    return algorithm, state, batch


def words(batch):
    """Prompt and letters of each episode."""
    t, mask = batch.transitions, np.asarray(batch.mask)
    decision = np.asarray(t.timestep.tokens["decision"]) & mask
    for i in range(mask.shape[1]):
        said = np.asarray(t.action)[decision[:, i], i]
        yield int(t.timestep.observation[0, i]), [int(x) for x in said if x < 2]


def breaks(prompt, letters):
    return any(a == b for a, b in zip([prompt, *letters], letters, strict=False))


def test_violations_are_words_that_break_the_rule(rollout):
    found = np.asarray(violations(rollout[2]))
    assert found.tolist() == [breaks(*x) for x in words(rollout[2])]
    assert 0 < found.mean() < 1
    enumerated = enumerate_answers(ENV)
    expected = [
        [breaks(p, [x for x in word if x < 2]) for word in np.asarray(enumerated.text)]
        for p in range(2)
    ]
    np.testing.assert_array_equal(broken_answers(enumerated), expected)


def test_answers_are_paid_by_how_probably_they_beat_the_reference(rollout, monkeypatch):
    """Nothing for those that break the rule; the reference's own answers are not learned."""
    algorithm, _, batch = rollout
    seen = {}

    def capture(env, config, judge, losses, learned):
        seen.update(judge=judge, learned=learned)
        return plain(env, config, judge, losses, learned=learned)

    plain = of_cgpo.on_answers
    monkeypatch.setattr(of_cgpo, "on_answers", capture)
    of_cgpo.recipe(ENV, algorithm.config)
    t = batch.transitions  # as `on_answers` hands it over
    after = dataclasses.replace(t.next_timestep, reward=jnp.where(batch.mask, t.reward, 0))
    within = dataclasses.replace(batch, transitions=dataclasses.replace(t, next_timestep=after))
    found = np.asarray(seen["judge"](None, within)["advantage"])
    tables = ENV.params.tastes.mean(0)
    reward = [
        sum(tables[p, a, b] for a, b in zip([p, *letters], letters, strict=False))
        for p, letters in words(batch)
    ]
    for i, (prompt, letters) in enumerate(words(batch)):
        baseline = reward[i - i % 3 + 2]
        expected = 0 if breaks(prompt, letters) else 1 / (1 + np.exp(baseline - reward[i]))
        np.testing.assert_allclose(found[:, i], expected, rtol=1e-4)
    sample = type("", (), {"action": batch.transitions.action})
    own = np.asarray(seen["learned"](sample))
    assert (own == (np.arange(own.shape[1]) % 3 < 2)).all()


def test_an_environment_without_costs_is_refused():
    with pytest.raises(UserError, match="cgpo has constraints, the costs of an environment"):
        cgpo(envs.make("judged_words"), SMALL)


@pytest.mark.slow
def test_it_learns_better_words_that_keep_the_rule(monkeypatch):
    """Most words break the rule where it does not count, as the best ones do."""
    sizes = SIZES | {"prompts": 64, "answers": 5, "learning_rate": 1e-2}
    found = all_answers(ENV)
    broken, gold = np.asarray(broken_answers(found)), np.asarray(found.reward)
    assert np.take_along_axis(broken, gold.argmax(-1)[:, None], -1).all()

    def learn(limit):
        algorithm = cgpo(ENV, sizes | {"limit": limit})
        runs = [start(algorithm, random.key(0))]
        runs.append(train(algorithm, runs[0], 100)[0])
        params = (run.state.agent.parts["actor_critic"].params for run in runs)
        first, last = (np.exp(log_probs(ENV, algorithm.config, x)) for x in params)
        return algorithm, runs[1], first, last

    algorithm, after, first, last = learn(10.0)
    rate = lambda p: (p * broken).sum(-1).mean()
    kept = lambda p: (p * np.where(broken, 0, gold)).sum(-1).mean()
    assert rate(first) > 0.3 and rate(last) < 0.02, (rate(first), rate(last))
    best = np.where(broken, -np.inf, gold).max(-1).mean()
    assert kept(last) > 0.8 * best > kept(first) + 0.3, (kept(first), kept(last), best)
    measured = jax.jit(algorithm.measure)(after.state, random.key(0))
    np.testing.assert_allclose(measured["violation"], rate(last), atol=1e-4)
    np.testing.assert_allclose(measured["exact_proxy"], kept(last), rtol=1e-3)
    monkeypatch.setattr(of_cgpo, "violations", lambda batch: jnp.zeros(batch.mask.shape[1], bool))
    *_, free = learn(10.5)  # built anew, with the judge above
    assert rate(free) > 0.5, rate(free)
