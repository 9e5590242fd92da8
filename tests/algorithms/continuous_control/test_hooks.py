"""Changes that the recipes of SAC and TD3 allow: by tables, against NumPy."""

import types

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control import sac, td3
from jaxrl.core import random
from jaxrl.core.settings import Static
from jaxrl.kit import LossOutput, Part
from jaxrl.kit.groups import Optimizer
from jaxrl.networks.scalars import Positive
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")
N = 64
RNG = np.random.default_rng(4)
DRAWN, LOG_PROB = RNG.normal(size=(2, 2 * N)).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
BY_ACTION = {
    "critic": lambda s, a: CRITICS[s.observation] + np.asarray(a)[..., None],
    "target": {
        "critic": lambda s, a: COPIES[s.observation] + np.asarray(a)[..., None],
        "actor": lambda s: DRAWN[s.observation],
    },
}
HOOKS = {
    "reward": lambda net, x: 3 * x.reward,
    "weight": lambda net, x: x.timestep.observation + 1.0,
    "critic_terms": [lambda net, x: LossOutput(x.reward**2, {"more": x.reward})],
    "actor_terms": [lambda net, x: 0.5 * x.reward, lambda net, x: x.action],
}


def policy(s):
    said = DRAWN[s.observation], LOG_PROB[s.observation]
    return types.SimpleNamespace(sample_and_log_prob=lambda seed: said)


SOFT = stub(
    actor=policy,
    temperature=lambda: np.float32(0.3),
    hyper={"discount": 0.9, "target_entropy": -1.0},
    key=lambda: None,
    **BY_ACTION,
)
KEY = random.key(0)
CALM = {"discount": 0.9, "target_noise": 0.0, "target_noise_clip": 0.0}
PLAIN = stub(actor=lambda s: DRAWN[s.observation], key=lambda: KEY, hyper=CALM, **BY_ACTION)
X = transitions(N, actions=0)


def squares(target):
    q = CRITICS[:N] + X.action[:, None]
    return 0.5 * ((q - target[:, None]) ** 2).sum(-1)


def test_hooks_of_sac():
    parts = {"multiplier": Part(Positive(), (), Optimizer())}
    recipe = sac.recipe(ENV, Static(sac.Config()), critic_parts=parts, **HOOKS)
    assert losses_of(recipe)["critic_loss"].parts == ("critic", "multiplier")
    assert recipe.parts.keys() == {"actor", "critic", "temperature", "multiplier"}
    output = losses_of(recipe)["critic_loss"](SOFT, X)
    soft = (COPIES[N:] + DRAWN[N:, None]).min(-1) - 0.3 * (LOG_PROB[N:] + np.log(2))
    target = 3 * X.reward + 0.9 * ~X.terminated * soft
    expected = (np.arange(N) + 1) * squares(target) + X.reward**2
    np.testing.assert_allclose(output.value, expected, rtol=1e-4)
    np.testing.assert_allclose(output.metrics["more"], X.reward)

    plain = losses_of(sac.recipe(ENV, Static(sac.Config())))["actor_loss"](SOFT, X)
    output = losses_of(recipe)["actor_loss"](SOFT, X)
    more = 0.5 * X.reward + X.action
    np.testing.assert_allclose(output.value, plain.value + more, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(output.aux, plain.aux)  # which the temperature's loss reads


def test_what_sac_bootstraps_from():
    told = RNG.normal(size=(N, 2)).astype(np.float32), np.zeros(N, np.float32)
    recipe = sac.recipe(ENV, Static(sac.Config()), next_values=lambda net, timestep: told)
    value = losses_of(recipe)["critic_loss"](SOFT, X).value
    target = X.reward + 0.9 * ~X.terminated * told[0].min(-1)
    np.testing.assert_allclose(value, squares(target), rtol=1e-4)


def test_hooks_of_td3():
    far = lambda net, x, action: action**2
    recipe = td3.recipe(ENV, Static(td3.Config()), next_penalty=far, **HOOKS)
    output = losses_of(recipe)["critic_loss"](PLAIN, X)
    there = np.clip(DRAWN[N:], -2, 2)
    least = (COPIES[N:] + there[:, None]).min(-1) - there**2
    target = 3 * X.reward + 0.9 * ~X.terminated * least
    expected = (np.arange(N) + 1) * squares(target) + X.reward**2
    np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.metrics["more"], X.reward)
    value = losses_of(recipe)["actor_loss"](PLAIN, X).value
    expected = -CRITICS[:N, 0] - DRAWN[:N] + 0.5 * X.reward + X.action
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_layers_of_td3s_critics(layer_norm):
    recipe = td3.recipe(ENV, Static(td3.Config()), layer_norm=layer_norm)
    params = jax.eval_shape(recipe.parts["critic"].init, KEY)
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert any("LayerNorm" in name for name in names) is layer_norm
