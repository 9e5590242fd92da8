"""HRA's targets and its policy against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.hra import hra
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.envs.grids.fruit_collection import MOVES
from jaxrl.kit.groups import transformation
from tests.kit.stub import huber, mask_actions, stub, transitions

N, A, PLACES = 64, 4, 5
ENV, ROWS = envs.make("fruit_collection", places=PLACES), np.arange(N)
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, A, PLACES)).astype(np.float32)
REWARDS = RNG.normal(size=(PLACES, N)).astype(np.float32)
WEIGHTS = (1.0, -2.0, 0.5, 1.0, 3.0)
HYPER = {"discount": 0.9, "huber": 0.5}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}


def net_of():
    network = lambda table: lambda s: jnp.asarray(table)[s.observation]
    target = {"q": network(TARGET)}
    return stub(q=network(TABLE), target=target, hyper=HYPER, env_steps=jnp.float32(0))


def recipe(**changes):
    config = settings.replace(hra.Config(), {"weights": WEIGHTS} | changes)
    return hra.recipe(ENV, Static(config))


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("valued", ["greedy", "random"])
def test_each_component_has_a_target_of_its_own(valued, legal):
    x = transitions(N, A)
    x = mask_actions(x, A) if legal else x
    parts = {f"fruit_{i:02d}": r for i, r in enumerate(REWARDS)}
    after = dataclasses.replace(x.next_timestep, reward_components=parts)
    x = dataclasses.replace(x, next_timestep=after)
    (q_loss,) = recipe(valued=valued).losses
    output = q_loss(net_of(), x)

    allowed = after.legal_actions if legal else np.ones((N, A), bool)
    following = TARGET[N:]
    if valued == "greedy":  # each acts best for its own component
        value = np.where(allowed[..., None], following, -np.inf).max(1)
    else:
        value = (allowed[..., None] * following).sum(1) / allowed.sum(1)[:, None]
        whole = following.sum(-1)  # the heads' sum is the value of the sum
        uniform = (allowed * whole).sum(1) / allowed.sum(1)
        np.testing.assert_allclose(value.sum(-1), uniform, atol=1e-4)
    goal = REWARDS.T + 0.9 * ~x.terminated[:, None] * value  # a truncated step bootstraps
    error = TABLE[ROWS, x.action] - goal
    np.testing.assert_allclose(output.value, huber(error, 0.5).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.priority, np.abs(error).sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_the_best_legal_action_is_that_of_the_weighted_sum(weights):
    x = mask_actions(transitions(N, A), A).timestep
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
def test_bad_settings_are_one_sentence(env, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        hra(env, settings.replace(hra.Config(), changes))


def values_of_random_play(cells, discount=0.99):
    """Return Q [places, 10, 10, A] of a fruit in each of `cells`, by dynamic programming: the
    discounted chance that random play gets there."""
    at = np.stack(np.mgrid[:10, :10], -1)
    after = np.clip(at[:, :, None] + np.array(MOVES), 0, 9) @ (10, 1)  # [10, 10, A]
    moves = np.eye(100)[after].mean(2).reshape(100, 100)
    q = []
    for cell in cells @ (10, 1):
        on = moves * (np.arange(100) != cell)  # the fruit is gone once it is reached
        value = np.linalg.solve(np.eye(100) - discount * on, moves[:, cell])
        q.append(np.where(after == cell, 1.0, discount * value[after]))
    return np.stack(q)


def test_the_best_action_by_values_of_random_play_gathers_all():
    """A policy that goes back and forth between fruits has therefore not learned these values."""
    env = envs.make("fruit_collection")
    act = hra.recipe(env, Static(hra.Config())).act
    state, timestep = jax.vmap(env.reset, (0, None))(jax.random.split(random.key(3), N), env.params)
    cells = np.argwhere(timestep.observation[..., 1].any(0))
    tables = jnp.asarray(values_of_random_play(cells))

    def q(s):
        """Return values [N, A, places], 0 for a fruit that is not there."""
        row, column = jnp.divmod(s.observation[..., 0].reshape(N, -1).argmax(-1), 10)
        there = s.observation[:, cells[:, 0], cells[:, 1], 1]
        return jnp.einsum("pna,np->nap", tables[:, row, column], there)

    def play_step(_, now):
        state, timestep, total = now
        action = act(stub(q=q, hyper=HYPER), timestep, (), random.key(0), True)[0]
        after = jax.vmap(env.step, (0, 0, 0, None))
        state, following = after(jax.random.split(random.key(0), N), state, action, env.params)
        return state, following, total + following.reward

    total = jax.lax.fori_loop(0, 60, play_step, (state, timestep, jnp.zeros(N)))[2]
    np.testing.assert_array_equal(total, 5.0)


def test_small_gradients_are_not_lost_in_the_optimizer():
    """The gradients of values of rare rewards are a thousandth and less."""
    descent = transformation(hra.Config().optimizer)
    step = lambda size: descent.update(jnp.float32(size), descent.init(jnp.float32(0)))[0]
    np.testing.assert_allclose(step(1e-5), step(1.0), rtol=1e-3)
