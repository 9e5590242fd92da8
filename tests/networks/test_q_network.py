"""Networks of action values, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.examples import example_timestep
from jaxrl.networks.noisy import NoisyDense
from jaxrl.networks.q_network import QNetwork


@pytest.mark.slow
def test_a_dueling_head_adds_a_value_to_advantages_of_mean_zero_and_rescales_their_gradient():
    env = envs.make("cartpole")
    network = QNetwork(env.observation_space, 3, 4, (), (6, 5), dueling=True)
    timestep = jax.tree.map(lambda x: jnp.broadcast_to(x, (6, *x.shape[1:])), example_timestep(env))
    timestep = dataclasses.replace(timestep, observation=jax.random.normal(random.key(0), (6, 4)))
    params = network.init(random.key(1), timestep)

    def written_out(params):
        layer = lambda p, x: x @ p["kernel"] + p["bias"]
        params, relu = params["params"], lambda x: jnp.maximum(x, 0)
        x = relu(layer(params["MLP_0"]["Dense_0"], timestep.observation))
        stream = lambda a, b: layer(params[b], relu(layer(params[a], x)))
        advantage = stream("Dense_0", "Dense_1").reshape(6, 3, 4)
        value = stream("Dense_2", "Dense_3").reshape(6, 1, 4)
        return value + advantage - advantage.mean(1, keepdims=True)

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, network.apply(params, timestep), written_out(params))
    square = lambda q: lambda params: (q(params) ** 2).sum()
    plain = jax.grad(square(written_out))(params)["params"]
    rescaled = jax.grad(square(lambda params: network.apply(params, timestep)))(params)["params"]
    plain["MLP_0"] = jax.tree.map(lambda x: x / np.sqrt(2), plain["MLP_0"])
    jax.tree.map(close, rescaled, plain)


def test_noisy_layers_have_the_noise_of_the_paper():
    layer = NoisyDense(3)
    x = jax.random.normal(random.key(0), (5, 4))
    params = layer.init(random.key(1), x)
    p = {k: np.asarray(v, np.float64) for k, v in params["params"].items()}
    np.testing.assert_allclose(layer.apply(params, x), x @ p["weight"] + p["bias"], atol=1e-5)
    np.testing.assert_allclose(p["weight_scale"], 0.5 / 2)
    assert (np.abs(p["weight"]) <= 1 / 2).all()
    draw = jax.vmap(lambda key: layer.apply(params, x, rngs={"noise": key}))
    y = np.asarray(draw(jax.random.split(random.key(2), 40_000)), np.float64)
    # f(e) f(e') has variance (E |e|)^2 = 2 / pi, f(e') alone E |e| = sqrt(2 / pi).
    square = np.asarray(x, np.float64) ** 2
    variance = square @ p["weight_scale"] ** 2 * 2 / np.pi
    variance = variance + p["bias_scale"] ** 2 * np.sqrt(2 / np.pi)
    np.testing.assert_allclose(y.mean(0), x @ p["weight"] + p["bias"], atol=0.02)
    np.testing.assert_allclose(y.var(0), variance, rtol=0.06)
