"""A divergence weighted by the reference's certainty: by NumPy, and as GRPO's at a power of 0."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.tokens.critical_token_kl import critical_token_kl
from jaxrl.algorithms.tokens.grpo import grpo
from jaxrl.core.settings import Static
from jaxrl.core.types import Batch
from tests.algorithms.tokens.test_sampling import ENV, begin, exact, logits_of, net_of
from tests.kit.stub import losses_of

WEIGHT = 0.3


def token_loss(builder, exponent):
    """Loss [T, B] of every answer, and the logits [T, B, V] of policy and reference."""
    plain = {"nucleus": False, "sampling__top_p": 1.0, "sampling__temperature": 1.0}
    algorithm, run = begin(builder, **plain)
    build, params = net_of(algorithm, run)
    found = exact()[0]
    t, size = found.transitions, found.reward.shape[1]
    reference = jax.tree.map(lambda x: 0.5 * x, params)
    now, then = (logits_of(algorithm, x, t.timestep) for x in (params, reference))
    taken = jnp.take_along_axis(now, t.action[..., None], -1)[..., 0]
    t = dataclasses.replace(t, extras={"log_prob": taken - 0.1})
    net = build(params)
    net.hyper._values = {
        **net.hyper._values,
        "kl.weight": jnp.float32(WEIGHT),
        "kl.exponent": jnp.float32(exponent),
    }
    net.target = types.SimpleNamespace(actor_critic=build(reference).actor_critic)

    def epochs(passes, window, step, unit, max_drift):
        net.window = window
        return types.SimpleNamespace(update_targets=lambda *_: None)

    net.epochs = epochs
    groups = dataclasses.replace(algorithm.config.groups, answers=size)
    recipe = builder.recipe(ENV, Static(dataclasses.replace(algorithm.config, groups=groups)))
    inside = jnp.cumsum(t.done, 0) - t.done == 0
    recipe.update(net, Batch(t, jnp.float32(0), mask=inside))
    value = losses_of(recipe)["loss"](net, net.window.x).value
    return np.asarray(value), np.asarray(now), np.asarray(then), found


@pytest.mark.parametrize("exponent", [0.0, 2.5])
def test_the_penalty_is_weighted_by_negentropy_to_a_power(exponent):
    value, now, then, found = token_loss(critical_token_kl, exponent)
    plain = token_loss(grpo, 0.0)[0]
    p = np.where(then > -1e8, np.exp(then), 0)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    certainty = (1 - entropy / np.log(p.shape[-1])) ** exponent
    taken = np.asarray(found.transitions.action)[..., None]
    ratio = np.take_along_axis(then - now, taken, -1)[..., 0]
    k3 = np.exp(ratio) - 1 - ratio
    mask = np.asarray(found.mask)
    expected = plain - WEIGHT * (1 - certainty) * k3
    np.testing.assert_allclose(value[mask], expected[mask], rtol=1e-3, atol=1e-4)
    if exponent:
        assert np.abs(value - plain)[mask].max() > 0.01
