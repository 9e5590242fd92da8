"""Channels, mappings and targets of orchestrated value mapping against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.value import orchestrated_value_mapping as ovm
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from tests.kit.stub import huber, mask_actions, stub, transitions

N, A, ENV, ROWS = 64, 3, envs.make("cartpole"), np.arange(64)
D, C, STEP = 0.1, 0.5, 0.25
HYPER = {"discount": 0.9, "huber": 0.5, "resolution": D, "scale": C, "averaging": STEP}
HYPER |= {"exploration.start": 0.0, "exploration.end": 0.0, "exploration.steps": 1.0}
FOUR = {"levels": 2, "mappings": ("log_linear", "logarithmic", "identity", "log_linear")}


def tables(channels):
    return np.random.default_rng(1).uniform(0, 2, (2, 2 * N, A, channels)).astype(np.float32)


def net_of(table, target, **hyper):
    network = lambda table: lambda s: jnp.asarray(table)[s.observation]
    known = {"env_steps": jnp.float32(0), "key": lambda name: random.key(5)}
    return stub(q=network(table), target={"q": network(target)}, hyper=HYPER | hyper, **known)


def recipe(algorithm=ovm.orchestrated_value_mapping, **changes):
    return algorithm.recipe(ENV, Static(settings.replace(algorithm.Config(), changes)))


def undo_mappings(outputs):
    """Return values of the four channels of `FOUR`, by the formulas of the mappings."""
    curved, top = D * np.expm1(outputs / C), -C * np.log(D)
    line = np.where(outputs < top, curved, (outputs - top) / C + 1 - D)
    return np.stack([line[..., 0], curved[..., 1], outputs[..., 2], line[..., 3]], -1)


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_heads_follow_the_best_sum_and_average_before_they_map(legal):
    x, (table, target) = transitions(N, A), tables(4)
    x = mask_actions(x, A) if legal else x
    x.next_timestep.reward[:] *= 20
    (q_loss,) = recipe(**FOUR).losses
    output = q_loss(net_of(table, target), x)

    r = x.reward
    gain, cost = np.maximum(r, 0), np.maximum(-r, 0)
    reward = [np.minimum(gain, 1), np.maximum(gain - 1, 0) / 9]
    reward = np.stack([*reward, np.minimum(cost, 1), np.maximum(cost - 1, 0) / 9], -1)
    assert ((reward > 0).sum(0) > 3).all()
    following = undo_mappings(target[N:])
    total = following @ [1, 9, -1, -9]
    best = np.where(x.next_timestep.legal_actions, total, -np.inf) if legal else total
    keep = 0.9 * ~x.terminated[:, None]  # a truncated step bootstraps
    goal = reward + keep * following[ROWS, best.argmax(-1)]
    q = undo_mappings(table[:N])[ROWS, x.action]
    goal = q + STEP * (goal - q)
    curved, edge = C * np.log1p(goal / D), 1 - D
    line = np.where(goal < edge, curved, C * (goal - edge) - C * np.log(D))
    mapped = np.stack([line[:, 0], curved[:, 1], goal[:, 2], line[:, 3]], -1)
    error = table[ROWS, x.action] - mapped
    np.testing.assert_allclose(output.value, huber(error, 0.5).sum(-1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(output.priority, np.abs(error).sum(-1), rtol=1e-3, atol=1e-4)

    action = recipe(**FOUR).act(net_of(table, target), x.timestep, (), random.key(2), True)[0]
    total = undo_mappings(table[:N]) @ [1, 9, -1, -9]
    total = np.where(x.timestep.legal_actions, total, -np.inf) if legal else total
    np.testing.assert_array_equal(action, total.argmax(-1))


def test_one_channel_without_a_mapping_is_dqn():
    x, (table, target) = transitions(N, A), tables(1)
    net = net_of(table - 1, target - 1, averaging=1.0)  # values of both signs
    changes = {"levels": 0, "mappings": ("identity",)}
    ours, theirs = (r.losses[0](net, x).value for r in (recipe(**changes), recipe(dqn)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("levels", [0, 1, 2, 4])
def test_the_weighted_channels_are_the_reward(levels):
    reward = np.float32([-12345, -7, -0.3, 0, 0.02, 1, 5, 100, 5000])
    found = np.asarray(ovm.channels(jnp.asarray(reward), levels))
    np.testing.assert_allclose(found @ ovm.weights(levels), reward, rtol=1e-5)
    if levels:
        assert found.shape[-1] == 2 * levels and (found >= 0).all()
        assert (np.delete(found, [levels - 1, 2 * levels - 1], -1) <= 1).all()


@pytest.mark.parametrize("name", ["logarithmic", "log_linear"])
def test_inverses_undo_mappings(name):
    x = jnp.asarray([0.0, 1e-3, 0.5, 1 - D, 1.0, 40.0])
    forward, inverse = ovm.MAPPINGS[name]
    mapped = np.asarray(forward(x, D, C))
    np.testing.assert_allclose(inverse(jnp.asarray(mapped), D, C), x, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(mapped[:3], losses.logarithmic(x[:3], D, C), rtol=1e-6)
    assert (np.diff(mapped) > 0).all() and mapped[0] == 0
    if name == "log_linear":
        assert mapped[5] - mapped[4] == pytest.approx(39 * C, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mappings": ("identity",) * 3}, "mappings has 3 entries; levels 1 makes 2 channels"),
        ({"levels": 0}, "log_linear of the reward as it is, .* must be identity"),
    ],
)
def test_bad_settings_are_one_sentence(changes, sentence):
    config = settings.replace(ovm.Config(), changes)
    with pytest.raises(UserError, match=sentence):
        ovm.orchestrated_value_mapping(ENV, config)
