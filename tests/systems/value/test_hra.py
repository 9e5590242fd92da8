"""HRA's targets and its policy, against NumPy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.systems.value.hra import hra
from tests.kit.stub import huber, masked, stub, transitions

N, A, PLACES = 64, 4, 5
ENV, ROWS = envs.make("fruit_collection", places=PLACES), np.arange(N)
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, A, PLACES)).astype(np.float32)
REWARDS = RNG.normal(size=(PLACES, N)).astype(np.float32)
WEIGHTS = (1.0, -2.0, 0.5, 1.0, 3.0)
HYPER = {"discount": 0.9, "huber": 0.5}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}


def net_of():
    of = lambda table: lambda s: jnp.asarray(table)[s.observation]
    return stub(q=of(TABLE), target={"q": of(COPY)}, hyper=HYPER, frames=jnp.float32(0))


def recipe(**changes):
    return hra.recipe(ENV, settings.replace(hra.Config(), {"weights": WEIGHTS} | changes))


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("valued", ["greedy", "random"])
def test_each_component_has_a_target_of_its_own(valued, legal):
    x = transitions(N, A)
    x = masked(x, A) if legal else x
    parts = {f"fruit_{i:02d}": r for i, r in enumerate(REWARDS)}
    after = dataclasses.replace(x.next_timestep, reward_components=parts)
    x = dataclasses.replace(x, next_timestep=after)
    loss, report = recipe(valued=valued).losses["q_loss"].function(net_of(), x)

    may = after.legal_actions if legal else np.ones((N, A), bool)
    following = COPY[N:]
    if valued == "greedy":  # each as is best for itself
        value = np.where(may[..., None], following, -np.inf).max(1)
    else:
        value = (may[..., None] * following).sum(1) / may.sum(1)[:, None]
        whole = following.sum(-1)  # the heads' sum is the value of the sum
        np.testing.assert_allclose(value.sum(-1), (may * whole).sum(1) / may.sum(1), atol=1e-4)
    goal = REWARDS.T + 0.9 * ~x.terminated[:, None] * value  # a truncated step bootstraps
    error = TABLE[ROWS, x.action] - goal
    np.testing.assert_allclose(loss, huber(error, 0.5).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["priority"], np.abs(error).sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_it_acts_by_the_weighted_sum_on_what_is_legal(weights):
    x = masked(transitions(N, A), A).timestep
    sums = (TABLE[:N] * np.float32(weights or (1.0,) * PLACES)).sum(-1)
    action = recipe(weights=weights).act(net_of(), x, (), random.key(2), True)[0]
    np.testing.assert_array_equal(action, np.where(x.legal_actions, sums, -np.inf).argmax(-1))
    action = recipe(weights=weights).act(net_of(), x, (), random.key(2), False)[0]
    assert x.legal_actions[ROWS, action].all()


@pytest.mark.parametrize(
    ("env", "changes", "sentence"),
    [
        (envs.make("cartpole"), {}, "'cartpole' has no components, which hra learns from"),
        (ENV, {"weights": (1.0,)}, "weights has 1 entries; .* has 5 components"),
    ],
)
def test_what_does_not_fit_is_one_sentence(env, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        hra(env, settings.replace(hra.Config(), changes))
