"""A-LoL: the value of a reference policy, and texts that are drawn by their advantage over it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline.a_lol import a_lol
from jaxrl.algorithms.offline.a_lol_value import a_lol_value, value_of_prompt
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import TimeStep
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.kit.stages import stages

ENV = envs.make("judged_words", letters=2, length=2)
FOUND = enumerate_answers(ENV)
SIZES = {"recurrent": 8, "transformer": 0}
VALUE = SIZES | {"prompts": 256, "answers": 1, "learning_rate": 0.02}
TEXTS = SIZES | {"count": 256, "writer": "policy", "num_envs": 64, "learning_rate": 0.02}
NETWORK = token_network(ENV, replace(a_lol.Config(), SIZES))


def expected_returns(params):
    """The exact expected return of a policy, for each prompt."""
    return (jnp.exp(answer_log_probs(NETWORK, params, FOUND)) * FOUND.reward).sum(-1)


def values_of(params):
    """The value that a critic gives to each prompt."""
    t = FOUND.transitions
    apply: Any = NETWORK.apply
    value = apply(params, t.timestep, NETWORK.initial(t.action.shape[1]), method="unroll")[1]
    of_answers = value_of_prompt(value, t.timestep, FOUND.mask).reshape(FOUND.reward.shape)
    np.testing.assert_allclose(of_answers, of_answers[:, :1].repeat(7, 1), rtol=1e-4)
    return of_answers[:, 0]  # whatever the answer


@functools.cache
def begin(**changes):
    """A-LoL after the value of an untrained policy is learned: the algorithm and its run."""
    algorithm = stages(a_lol_value(ENV, VALUE), 150, a_lol(ENV, TEXTS | changes))
    return algorithm, start(algorithm, random.key(0))


def params_of(run, part):
    return run.state.agent.parts[part].params


def test_the_value_of_a_prompt_is_read_where_the_answer_begins():
    value = jnp.arange(12.0).reshape(4, 3)
    decision = jnp.asarray([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 1, 1]], bool)
    nothing: Any = None
    timestep = TimeStep(*(nothing,) * 5, tokens={"decision": decision})
    np.testing.assert_array_equal(
        value_of_prompt(value, timestep, jnp.ones((4, 3), bool)), [0, 4, 11]
    )


def test_the_value_is_the_reference_policys_expected_return():
    algorithm = a_lol_value(ENV, VALUE)
    first = start(algorithm, random.key(0))
    run, _ = train(algorithm, first, 150)
    policies = [jax.tree.leaves(params_of(x, "actor_critic")) for x in (first, run)]
    for x, y in zip(*policies, strict=True):
        np.testing.assert_array_equal(x, y)  # it writes, and does not learn
    expected = expected_returns(params_of(run, "actor_critic"))
    np.testing.assert_allclose(values_of(params_of(run, "critic")), expected, atol=0.08)
    assert abs(values_of(params_of(first, "critic")) - expected).max() > 0.2  # untrained


def test_texts_are_drawn_by_their_advantage():
    _, run = begin(ratio="sequence")
    drawn = run.state.source
    data, mask = drawn.data
    prompt = np.asarray(data.timestep.observation[0])  # its only token
    value = np.asarray(values_of(params_of(run, "critic")))[prompt]
    advantage = np.where(mask, data.reward, 0).sum(0) - value
    assert (advantage > 0.1).any() and (advantage < -0.1).any()
    np.testing.assert_allclose(drawn.total, np.cumsum(np.maximum(advantage, 0)), rtol=1e-4)


@pytest.mark.parametrize("ratio", ["sequence", "token", "none"])
def test_the_policy_becomes_better_than_its_reference(ratio):
    algorithm, run = begin(ratio=ratio)
    critic, reference = (params_of(run, part) for part in ("critic", "actor_critic"))
    before = expected_returns(reference)
    for _ in range(40):
        run, _ = advance(algorithm, run)
    after = expected_returns(params_of(run, "actor_critic"))
    assert after.mean() > before.mean() + 0.4
    for x, y in zip(*map(jax.tree.leaves, (critic, params_of(run, "critic"))), strict=True):
        np.testing.assert_array_equal(x, y)  # frozen, as is the reference
    held = run.state.agent.parts["actor_critic"].target
    np.testing.assert_allclose(expected_returns(held), before, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "own.jsonl"}, r"draws texts by their advantage; leave texts\.file empty"),
        ({"writer": "expert"}, "has no expert"),
        ({"early_stop": True}, "cannot stop early"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        a_lol(ENV, TEXTS | changes)
