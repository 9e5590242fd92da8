"""Orchestrated value mapping: its channels, its mappings and its targets, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.value import orchestrated_value_mapping as ovm
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from tests.kit.stub import huber, masked, stub, transitions

N, A, ENV, ROWS = 64, 3, envs.make("cartpole"), np.arange(64)
D, C, STEP = 0.1, 0.5, 0.25
HYPER = {"discount": 0.9, "huber": 0.5, "resolution": D, "scale": C, "averaging": STEP}
HYPER |= {"exploration.start": 0.0, "exploration.end": 0.0, "exploration.steps": 1.0}
FOUR = {"levels": 2, "mappings": ("log_linear", "logarithmic", "identity", "log_linear")}


def tables(channels):
    return np.random.default_rng(1).uniform(0, 2, (2, 2 * N, A, channels)).astype(np.float32)


def net_of(table, copy, **hyper):
    of = lambda table: lambda s: jnp.asarray(table)[s.observation]
    known = {"env_steps": jnp.float32(0), "key": lambda name: random.key(5)}
    return stub(q=of(table), target={"q": of(copy)}, hyper=HYPER | hyper, **known)


def recipe(system=ovm.orchestrated_value_mapping, **changes):
    return system.recipe(ENV, settings.replace(system.Config(), changes))


def unmapped(outputs):
    """Values of the four channels of `FOUR`, by the formulas of the mappings."""
    curved, top = D * np.expm1(outputs / C), -C * np.log(D)
    line = np.where(outputs < top, curved, (outputs - top) / C + 1 - D)
    return np.stack([line[..., 0], curved[..., 1], outputs[..., 2], line[..., 3]], -1)


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_heads_follow_the_best_sum_and_average_before_they_map(legal):
    x, (table, copy) = transitions(N, A), tables(4)
    x = masked(x, A) if legal else x
    x.next_timestep.reward[:] *= 20
    loss, report = recipe(**FOUR).losses["q_loss"].function(net_of(table, copy), x)

    r = x.reward
    gain, loss_ = np.maximum(r, 0), np.maximum(-r, 0)
    reward = [np.minimum(gain, 1), np.maximum(gain - 1, 0) / 9]
    reward = np.stack([*reward, np.minimum(loss_, 1), np.maximum(loss_ - 1, 0) / 9], -1)
    assert ((reward > 0).sum(0) > 3).all()
    following = unmapped(copy[N:])
    total = following @ [1, 9, -1, -9]
    best = np.where(x.next_timestep.legal_actions, total, -np.inf) if legal else total
    keep = 0.9 * ~x.terminated[:, None]  # a truncated step bootstraps
    goal = reward + keep * following[ROWS, best.argmax(-1)]
    q = unmapped(table[:N])[ROWS, x.action]
    goal = q + STEP * (goal - q)
    curved, edge = C * np.log1p(goal / D), 1 - D
    line = np.where(goal < edge, curved, C * (goal - edge) - C * np.log(D))
    mapped = np.stack([line[:, 0], curved[:, 1], goal[:, 2], line[:, 3]], -1)
    error = table[ROWS, x.action] - mapped
    np.testing.assert_allclose(loss, huber(error, 0.5).sum(-1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(report["priority"], np.abs(error).sum(-1), rtol=1e-3, atol=1e-4)

    action = recipe(**FOUR).act(net_of(table, copy), x.timestep, (), random.key(2), True)[0]
    total = unmapped(table[:N]) @ [1, 9, -1, -9]
    total = np.where(x.timestep.legal_actions, total, -np.inf) if legal else total
    np.testing.assert_array_equal(action, total.argmax(-1))


def test_one_channel_without_a_mapping_is_dqn():
    x, (table, copy) = transitions(N, A), tables(1)
    net = net_of(table - 1, copy - 1, averaging=1.0)  # values of both signs
    changes = {"levels": 0, "mappings": ("identity",)}
    ours, theirs = (
        r.losses["q_loss"].function(net, x)[0] for r in (recipe(**changes), recipe(dqn))
    )
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
def test_mappings_are_undone(name):
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
def test_what_does_not_fit_is_one_sentence(changes, sentence):
    config = settings.replace(ovm.Config(), changes)
    with pytest.raises(UserError, match=sentence):
        ovm.orchestrated_value_mapping(ENV, config)
