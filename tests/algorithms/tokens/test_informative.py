"""Updates that wait: from how many informative groups on they learn, and which groups these are."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.dapo import dapo
from jaxrl.algorithms.tokens.nft import nft
from jaxrl.algorithms.tokens.shared.informative import (
    informative_source,
    right_and_wrong,
    wait_for_informative,
)
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition

ENV = envs.make("judged_words", letters=2, length=1)


@dataclasses.dataclass(frozen=True)
class Told:
    """A net that notes what its source is told."""

    hyper: types.SimpleNamespace
    parts: object = 0.0
    keep: object = None
    informative: object = None

    def replace(self, parts):
        return dataclasses.replace(self, parts=parts)

    def report(self, informative):
        return dataclasses.replace(self, informative=informative)

    def feed(self, keep):
        return dataclasses.replace(self, keep=keep)


def update(returns, share, learn=lambda net, batch: net.replace(parts=1.0), **options):
    """A net after an update by answers with `returns` [P, G], of which a share must be
    informative; `learn` is what the update does if it does not wait."""
    config = replace(dapo.Config(), {"prompts": 1, "answers": returns.shape[1], "transformer": 0})
    plain = dataclasses.replace(dapo.recipe(ENV, Static(config)), update=learn)
    reward, none = jnp.float32(returns.reshape(1, -1)), jnp.zeros((1, returns.size), bool)
    step = TimeStep(none, reward, ~none, none, none)
    batch = Batch(Transition(step, none, step, (), {}), jnp.float32(0), mask=~none)
    recipe = wait_for_informative(plain, returns.shape[1], **options)
    return recipe.update(Told(types.SimpleNamespace(informative=jnp.float32(share))), batch)


@pytest.mark.parametrize("prompts", [1, 41, 47, 55, 64, 110])
def test_all_groups_are_enough_whatever_their_number(prompts):
    """The float32 mean of 41 ones is below 1."""
    returns = np.tile([0.0, 1.0], (prompts, 1))
    net = update(returns, 1.0)
    assert not net.keep and net.parts == 1.0
    returns[-1] = 1.0
    net = update(returns, 1.0)
    assert net.keep and net.parts == 0.0


def test_right_answers_of_different_worth_are_no_signal_for_what_learns_right_from_wrong():
    returns = np.array([[0.5, 1.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(right_and_wrong(jnp.asarray(returns)), [0, 0, 1, 0])
    assert update(returns, 0.75).parts == 1.0
    net = update(returns, 0.5, informative=right_and_wrong)
    assert net.keep and net.informative == 0.25
    assert not update(returns, 0.25, informative=right_and_wrong).keep


def test_groups_of_one_answer_are_refused_where_the_update_waits():
    with pytest.raises(UserError, match=r"groups\.answers is 1, and such groups have no signal"):
        informative_source(ENV, replace(dapo.Config(), {"prompts": 2, "answers": 1}))


def test_nft_waits_for_and_keeps_prompts_with_right_and_wrong_answers(monkeypatch):
    """Answers to each prompt differ in worth; one prompt has right answers alone."""
    from jaxrl.algorithms.tokens import nft as module

    seen = {}
    wait = lambda recipe, answers, informative: seen.setdefault("update", informative)
    monkeypatch.setattr(module, "wait_for_informative", wait)
    keep = lambda env, config, informative: seen.setdefault("source", informative)
    monkeypatch.setattr(module, "informative_source", keep)
    config = replace(nft.Config(), {"prompts": 2, "answers": 2, "transformer": 0})
    module.recipe(ENV, Static(config))
    module.source(ENV, config)
    for informative in (seen["update"], seen["source"]):
        known = informative(jnp.array([[0.5, 1.0], [0.0, 1.0]]))
        np.testing.assert_array_equal(known, [False, True])
