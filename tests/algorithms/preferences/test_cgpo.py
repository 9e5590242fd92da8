"""CGPO: violations, calibrated rewards, who is learned from, and words that keep the rule."""

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

ENV = envs.make("ruled_words", letters=2, length=3)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}
SMALL = SIZES | {"prompts": 4, "answers": 3}


@pytest.fixture(scope="module")
def played():
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


def test_violations_are_words_that_break_the_rule(played):
    found = np.asarray(violations(played[2]))
    assert found.tolist() == [breaks(*x) for x in words(played[2])]
    assert 0 < found.mean() < 1
    enumerated = enumerate_answers(ENV)
    expected = [
        [breaks(p, [x for x in word if x < 2]) for word in np.asarray(enumerated.text)]
        for p in range(2)
    ]
    np.testing.assert_array_equal(broken_answers(enumerated), expected)


def test_answers_are_paid_by_how_probably_they_beat_the_reference(played, monkeypatch):
    """Nothing for those that break the rule; the reference's own answers are not learned."""
    algorithm, _, batch = played
    seen = {}

    def capture(env, config, judge, losses, learned):
        seen.update(judge=judge, learned=learned)
        return plain(env, config, judge, losses, learned=learned)

    plain = of_cgpo.on_answers
    monkeypatch.setattr(of_cgpo, "on_answers", capture)
    of_cgpo.recipe(ENV, algorithm.config)
    found = np.asarray(seen["judge"](None, batch)["advantage"])
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
def test_it_learns_better_words_that_keep_the_rule():
    """Without the rule, by the same rewards, more words break it, as the best ones do."""
    config = SIZES | {"prompts": 64, "answers": 5, "learning_rate": 1e-2}
    rates = {}
    for ruled in (True, False):
        algorithm = cgpo(ENV, config)
        begun = start(algorithm, random.key(0))
        if not ruled:  # the same words, none of which is forbidden
            with pytest.MonkeyPatch.context() as patch:
                none = lambda batch: jnp.zeros(batch.mask.shape[1], bool)
                patch.setattr(of_cgpo, "violations", none)
                algorithm = cgpo(ENV, config | {"limit": 10.001})
                after, _ = train(algorithm, begun, 100)
        else:
            after, _ = train(algorithm, begun, 100)
            measured = jax.jit(algorithm.measure)(after.state, random.key(0))
        found = all_answers(ENV)
        params = (run.state.agent.parts["actor_critic"].params for run in (begun, after))
        first, last = (np.exp(log_probs(ENV, algorithm.config, x)) for x in params)
        broken = np.asarray(broken_answers(found))
        rates[ruled] = (last * broken).sum(-1).mean()
        worth = lambda p, found=found: (p * found.reward).sum(-1).mean()
        assert worth(last) > worth(first) + 0.3
    assert (first * broken).sum(-1).mean() > 0.3
    assert rates[True] < 0.02 and rates[False] > 0.2, rates
    np.testing.assert_allclose(measured["violation"], rates[True], atol=1e-4)
