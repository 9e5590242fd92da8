"""MVI(q)'s target against NumPy and against Munchausen DQN's."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.value.munchausen_dqn import munchausen_dqn
from jaxrl.algorithms.value.mvi import mvi
from jaxrl.core import random, settings
from jaxrl.core.settings import Static
from tests.kit.stub import huber, mask_actions, stub, transitions

N, A, TEMPERATURE, WEIGHT, LOWEST = 64, 3, 0.5, 0.9, -0.3
ROWS = np.arange(N)
TABLE, TARGET = np.random.default_rng(1).normal(size=(2, 2 * N, A)).astype(np.float32)
HYPER = {"temperature": TEMPERATURE, "weight": WEIGHT, "lowest": LOWEST, "huber": 0.5}
HYPER |= {"discount": 0.9, "exploration.start": 1.0, "exploration.end": 1.0}


def net_of():
    network = lambda table: lambda s: jnp.asarray(table[s.observation][..., None])
    hyper, target = HYPER | {"exploration.steps": 1.0}, {"q": network(TARGET)}
    return stub(q=network(TABLE), target=target, hyper=hyper, env_steps=jnp.float32(0))


def loss_of(algorithm, x, **changes):
    config = settings.replace(algorithm.Config(), changes)
    (q_loss,) = algorithm.recipe(envs.make("cartpole"), Static(config)).losses
    return np.asarray(q_loss(net_of(), x).value)


def sparsemax(q):
    """Project each row on the simplex (Martins and Astudillo, 2016, algorithm 1)."""
    z = -np.sort(-q, -1)
    support = 1 + np.arange(1, A + 1) * z > z.cumsum(-1)
    k = support.sum(-1)
    threshold = (z.cumsum(-1)[np.arange(len(q)), k - 1] - 1) / k
    return np.maximum(q - threshold[:, None], 0)


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("bonus", ["logarithm", "advantage"])
def test_the_target_at_index_2(bonus, legal):
    x = transitions(N, A)
    x = mask_actions(x, A) if legal else x
    q, following = TARGET[:N], TARGET[N:]
    if legal:  # the taken action is legal
        x.timestep.legal_actions[ROWS, x.action] = True
        q = np.where(x.timestep.legal_actions, q, -1e9)
        following = np.where(x.next_timestep.legal_actions, following, -1e9)
    pi, next_pi = sparsemax(q / TEMPERATURE), sparsemax(following / TEMPERATURE)
    assert (pi == 0).any()
    bonuses = TEMPERATURE * (pi - 1)  # log_2 p = p - 1
    if bonus == "advantage":
        bonuses = q - (pi * q).sum(-1, keepdims=True)
    bonuses = bonuses[ROWS, x.action]
    assert (bonuses < LOWEST).any() and (bonuses > LOWEST).any()
    reward = x.reward + WEIGHT * np.maximum(bonuses, LOWEST)
    value = (next_pi * (following - TEMPERATURE * (next_pi - 1))).sum(-1)
    goal = reward + 0.9 * ~x.terminated * value  # a truncated step bootstraps
    expected = huber(TABLE[ROWS, x.action] - goal, 0.5)
    np.testing.assert_allclose(loss_of(mvi, x, bonus=bonus), expected, rtol=1e-3, atol=1e-4)


def test_index_1_is_munchausen_dqn():
    x = transitions(N, A)
    theirs = loss_of(munchausen_dqn, x)
    ours = loss_of(mvi, x, index=1.0, bonus="logarithm")
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    near = loss_of(mvi, x, index=1.001, bonus="logarithm")
    np.testing.assert_allclose(near, theirs, atol=1e-2)
    assert np.abs(loss_of(mvi, x, index=2.0, bonus="logarithm") - theirs).max() > 0.1


def test_the_policy_excludes_illegal_actions():
    x = mask_actions(transitions(N, A), A).timestep
    q = np.where(x.legal_actions, TABLE[:N], -1e9)
    assert not np.asarray(losses.tsallis_policy(q, TEMPERATURE, 2.0))[~x.legal_actions].any()
    recipe = mvi.recipe(envs.make("cartpole"), Static(mvi.Config()))
    for greedy in (False, True):
        action = recipe.act(net_of(), x, (), random.key(2), greedy)[0]
        assert x.legal_actions[ROWS, action].all()
