"""The losses of SAC, against NumPy."""

import types

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.crossq import crossq
from jaxrl.algorithms.continuous_control.redq import redq
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.algorithms.continuous_control.tqc import tqc
from jaxrl.core import random
from jaxrl.core.settings import Static
from tests.kit.stub import losses_of, stub, transitions

N = 64
RNG = np.random.default_rng(4)
DRAWN, LOG_PROB = RNG.normal(size=(2, 2 * N)).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
IN_HALF_WIDTHS = LOG_PROB + np.log(2.0)  # actions are in [-2, 2]
TEMPERATURE = 0.3


def loss_of(name):
    """Evaluate a loss on tables; return the inputs it read and its output."""
    recipe = sac.recipe(envs.make("pendulum"), Static(sac.Config()))
    losses = losses_of(recipe)

    def policy(s):
        said = DRAWN[s.observation], LOG_PROB[s.observation]
        return types.SimpleNamespace(sample_and_log_prob=lambda seed: said)

    net = stub(
        actor=policy,
        critic=lambda s, a: CRITICS[s.observation] + np.asarray(a)[..., None],
        temperature=lambda: np.float32(TEMPERATURE),
        target={"critic": lambda s, a: COPIES[s.observation] + np.asarray(a)[..., None]},
        hyper={"discount": 0.9, "target_entropy": -1.5},
        key=lambda: None,
        aux={losses["actor_loss"]: IN_HALF_WIDTHS[:N]},
    )
    x = transitions(N, actions=0)
    return x, losses[name](net, x)


def test_critics_regress_on_the_soft_value_of_the_next_action():
    x, output = loss_of("critic_loss")
    following = (COPIES[N:] + DRAWN[N:, None]).min(-1) - TEMPERATURE * IN_HALF_WIDTHS[N:]
    # Terminated steps are worth their reward; truncated ones go on.
    target = x.reward + 0.9 * ~x.terminated * following
    q = CRITICS[:N] + x.action[:, None]
    np.testing.assert_allclose(output.value, 0.5 * ((q - target[:, None]) ** 2).sum(-1), rtol=1e-4)
    assert x.truncated.any() and x.terminated.any()


def test_the_actor_climbs_the_cautious_value_and_its_entropy():
    output = loss_of("actor_loss")[1]
    value = (CRITICS[:N] + DRAWN[:N, None]).min(-1)
    expected = TEMPERATURE * IN_HALF_WIDTHS[:N] - value
    np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output.aux, IN_HALF_WIDTHS[:N], rtol=1e-5)
    np.testing.assert_allclose(output.metrics["entropy"], -IN_HALF_WIDTHS[:N], rtol=1e-5)


def test_the_temperature_draws_the_entropy_to_its_target():
    output = loss_of("temperature_loss")[1]
    np.testing.assert_allclose(output.value, -TEMPERATURE * (IN_HALF_WIDTHS[:N] - 1.5), rtol=1e-4)


@pytest.mark.parametrize("builder", [sac, tqc, redq, crossq], ids=lambda b: b.name)
@pytest.mark.parametrize("fixed", [0.1, 0.0])
def test_a_fixed_temperature_is_not_learned(builder, fixed):
    recipe = builder.recipe(envs.make("pendulum"), Static(builder.Config(fixed_temperature=fixed)))
    network = recipe.parts["temperature"].network
    start = network.apply(network.init(random.key(0)))
    np.testing.assert_allclose(start, fixed or 1.0, rtol=1e-6)
    assert ("temperature_loss" in losses_of(recipe)) == (not fixed)
    descended = []
    net = types.SimpleNamespace(update_targets=lambda: descended)
    net.descend = lambda loss, batch, every=1: descended.append(loss.name) or net
    recipe.update(net, None)
    assert ("temperature_loss" in descended) == (not fixed) and "actor_loss" in descended
