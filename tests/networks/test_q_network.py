"""Networks of action values, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.examples import example_timestep
from jaxrl.networks.noisy import NoisyDense
from jaxrl.networks.q_network import QNetwork


def test_a_dueling_head_adds_a_value_to_advantages_of_mean_zero():
    env = envs.make("cartpole")
    network = QNetwork(env.observation_space, 3, 4, (), (5,), dueling=True)
    timestep = jax.tree.map(lambda x: jnp.broadcast_to(x, (6, *x.shape[1:])), example_timestep(env))
    timestep = dataclasses.replace(timestep, observation=jax.random.normal(random.key(0), (6, 4)))
    params = network.init(random.key(1), timestep)
    layers = params["params"]
    stream = lambda a, b: (
        np.maximum(timestep.observation @ layers[a]["kernel"] + layers[a]["bias"], 0)
        @ layers[b]["kernel"]
        + layers[b]["bias"]
    )
    advantage = stream("Dense_0", "Dense_1").reshape(6, 3, 4)
    value = stream("Dense_2", "Dense_3").reshape(6, 1, 4)
    q = value + advantage - advantage.mean(1, keepdims=True)
    np.testing.assert_allclose(network.apply(params, timestep), q, atol=1e-5)


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
