"""Online iterative DPO by a preference model: pairs, temperatures, and what a round learns."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences import dpo as of_dpo
from jaxrl.algorithms.preferences import rlhf_workflow as of_workflow
from jaxrl.algorithms.preferences.rlhf_workflow import best_and_worst, rlhf_workflow
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.train import start
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3, "planes": 2}
SMALL = SIZES | {"prompts": 4, "answers": 4, "minibatches": 2}


def test_best_and_worst_have_the_highest_and_the_lowest_mean_win_rate():
    rng = np.random.default_rng(0)
    score = rng.normal(size=(50, 5, 5))
    preference = 1 / (1 + np.exp(score.swapaxes(1, 2) - score))
    found = np.asarray(best_and_worst(jnp.asarray(preference)))
    others = ~np.eye(5, dtype=bool)
    rates = np.array([[p[i][others[i]].mean() for i in range(5)] for p in preference])
    np.testing.assert_array_equal(found[:, 0], rates.argmax(-1))
    np.testing.assert_array_equal(found[:, 1], rates.argmin(-1))
    tied = np.asarray(best_and_worst(jnp.full((1, 3, 3), 0.5)))
    assert tied[0, 0] != tied[0, 1]  # two answers, not one twice


def test_a_round_learns_from_the_models_pairs(monkeypatch):
    """DPO sees whole pairs of the answers that were played, ranked by the part `preference`."""
    algorithm = rlhf_workflow(ENV, SMALL)
    state = start(algorithm, random.key(0)).state
    _, batch, _ = algorithm.source.collect(state.source, algorithm.policy(state), random.key(1))
    columns, steps = batch.mask.shape[1], batch.mask.shape[0]
    value = np.random.default_rng(0).normal(size=(steps + 1, columns, 4)).astype(np.float32)
    seen, config = [], Static(algorithm.config)
    plain = dataclasses.replace(
        of_dpo.recipe(ENV, config), update=lambda net, batch: seen.append(batch) or net
    )
    monkeypatch.setattr(of_dpo, "recipe", lambda env, config: plain)
    reports = {}
    net = stub(
        network=lambda name: type("", (), {"initial": lambda self, n: ()})(),
        preference=lambda text, memory, method: (None, jnp.asarray(value)),
        report=lambda **x: reports.update(x),
    )
    of_workflow.recipe(ENV, config).update(net, batch)
    ended = np.asarray(batch.mask & batch.transitions.done)
    last = ended.argmax(0) + 1
    groups = value[last, np.arange(columns)].reshape(-1, 4, 4)
    expected, leads = [], []
    for group, e in enumerate(groups):
        a, b, c, d = e.T
        score = np.outer(a, b) - np.outer(b, a) + np.outer(c, d) - np.outer(d, c)
        p = 1 / (1 + np.exp(-score))
        rates = [(p[i].sum() - 0.5) / 3 for i in range(4)]
        best, worst = int(np.argmax(rates)), int(np.argmin(rates))
        leads.append(p[best, worst])
        expected += [4 * group + best, 4 * group + worst]
    action = np.asarray(batch.transitions.action)
    np.testing.assert_array_equal(seen[0].transitions.action, action[:, expected])
    np.testing.assert_allclose(reports["proxy_lead"], np.mean(leads), rtol=1e-5)
    returns = np.where(batch.mask, batch.transitions.reward, 0).sum(0)[expected]
    np.testing.assert_allclose(reports["chosen_return"], returns[::2].mean(), rtol=1e-5)
    np.testing.assert_allclose(reports["rejected_return"], returns[1::2].mean(), rtol=1e-5)


def test_answers_have_their_temperatures_in_turns():
    """The answers to a prompt at a temperature near 0 are all the likeliest one."""
    factors = {"prompts": 64, "answers": 8, "factors": (1.0, 1e-4)}
    algorithm = rlhf_workflow(ENV, SMALL | factors)
    state = start(algorithm, random.key(0)).state
    _, batch, _ = algorithm.source.collect(state.source, algorithm.policy(state), random.key(1))
    mask = np.asarray(batch.mask)
    said = np.where(mask, batch.transitions.action, -1).T.reshape(64, 8, -1)
    distinct = lambda rows: np.mean([len(np.unique(x, axis=0)) for x in rows])
    assert distinct(said[:, 1::2]) == 1
    assert distinct(said[:, ::2]) > 2


def test_answers_that_do_not_divide_among_temperatures_are_refused():
    with pytest.raises(UserError, match=r"The 4 answers to a prompt do not divide among 3"):
        rlhf_workflow(ENV, SMALL | {"factors": (0.5, 1.0, 1.5)})
