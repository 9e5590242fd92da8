"""GILD: the objective's gradient through the policy's step, and what is left without it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.continuous_control import td3
from jaxrl.algorithms.offline import gild
from jaxrl.algorithms.offline.shared.recording import record
from jaxrl.core import hyper, random
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch
from jaxrl.envs.policies import random_policy

ENV = envs.make("pendulum")
SIZE = 16
SETTINGS = {
    "replay.num_envs": 4,
    "replay.batch_size": SIZE,
    "replay.capacity": 256,
    "replay.warmup": 64,
    "replay.updates": 1,
    "torso.hidden": (8,),
    "delay": 1,
}
OWN = {
    "demonstrations.name": "random",
    "demonstrations.size": 200,
    "objective.torso.hidden": (8,),
    "optimizer.learning_rate": 0.1,
}


def draw_batch(builder, config):
    """Return an agent, its state, and a batch of random steps beside others."""
    agent = builder.agent(ENV, config)
    state = agent.init(random.key(0), hyper.hypers(config))
    steps = record(ENV, random_policy(ENV), random.key(1), 200)
    mine = jax.tree.map(lambda a: jnp.asarray(a[: 2 * SIZE]), steps)
    shown = jax.tree.map(lambda a: jnp.asarray(a[100 : 100 + 2 * SIZE]), steps)
    x = dataclasses.replace(mine, extras={"expert": shown})
    return agent, state, Batch(x, jnp.float32(100))


def mlp(params, *inputs):
    """Apply the hidden layer, which is nested, and then the last one."""
    kernels = lambda tree: list(jax.tree.leaves(tree, is_leaf=lambda x: "kernel" in x))
    layers = sorted(kernels(params), key=lambda layer: layer["kernel"].shape[-2] == 8)
    x = jnp.concatenate(inputs, -1)
    for last, layer in enumerate(layers):
        kernel, bias = layer["kernel"], layer["bias"]
        if kernel.ndim == 3:  # an ensemble, whose first member counts
            kernel, bias = kernel[0], bias[0]
        x = x @ kernel + bias
        x = x if last else jax.nn.relu(x)
    return x


def test_the_objective_climbs_the_advantage_of_the_step_it_leads_to():
    config = replace(gild.Config(), SETTINGS | OWN)
    agent, state, batch = draw_batch(gild.gild, config)
    x = batch.transitions
    half = lambda a, i: a[i * SIZE : (i + 1) * SIZE]
    parts = {n: p.params["params"] for n, p in state.parts.items()}
    shown = x.extras["expert"]
    shown_o, shown_a = half(shown.observation, 0), half(shown.action, 0)

    new, told = jax.jit(agent.update)(state, batch, random.key(0))
    metrics = told.metrics
    values = new.parts["critic"].params["params"]  # the critic descends first
    critic = lambda o, a: mlp(values, o, a / 2)[..., 0]
    policy = lambda params, o: 2 * jnp.tanh(mlp(params, o))  # the bounds are -2 and 2

    def take_step(term):
        def total(params):
            o = half(x.observation, 0)
            value = critic(o, policy(params, o)).mean()
            return -value + term(policy(params, shown_o))

        gradient = jax.grad(total)(parts["actor"])
        return jax.tree.map(lambda p, g: p - 0.1 * g, parts["actor"], gradient)

    def utility(objective):
        learned = lambda a: jax.nn.softplus(mlp(objective, shown_o, a / 2, shown_a / 2)).mean()
        cloning = lambda a: (((a - shown_a) / 2) ** 2).mean()
        o = half(x.observation, 1)
        value = lambda params: critic(o, policy(params, o)).mean()
        return jnp.tanh(value(take_step(learned)) - value(take_step(cloning)))

    # The first step of Adam is the sign of the gradient, where it is not 0.
    expected = jax.grad(utility)(parts["objective"])
    moved = jax.tree.map(
        lambda b, a: b - a, new.parts["objective"].params["params"], parts["objective"]
    )
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(expected)))
    np.testing.assert_allclose(metrics["objective_grad_norm"], norm, rtol=1e-3)
    np.testing.assert_allclose(
        metrics["meta_loss"], -utility(parts["objective"]), rtol=1e-3, atol=1e-6
    )
    for step, gradient in zip(jax.tree.leaves(moved), jax.tree.leaves(expected), strict=True):
        clear = np.abs(gradient) > 1e-2 * norm
        np.testing.assert_array_equal(np.sign(step[clear]), np.sign(gradient[clear]))
    assert norm > 1e-4


def test_without_imitation_it_is_td3():
    config = replace(gild.Config(), SETTINGS | OWN | {"until": 0.0})
    agent, state, batch = draw_batch(gild.gild, config)
    plain = replace(td3.Config(), SETTINGS | {"optimizer.learning_rate": 0.1})
    other = td3.td3.agent(ENV, plain)
    begun = other.init(random.key(0), hyper.hypers(plain))
    begun = dataclasses.replace(begun, parts={n: state.parts[n] for n in begun.parts})
    x = jax.tree.map(lambda a: a[:SIZE], dataclasses.replace(batch.transitions, extras={}))
    theirs = other.update(begun, Batch(x, batch.env_steps), random.key(0))[0]
    mine = agent.update(state, batch, random.key(0))[0]
    for name in begun.parts:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
            mine.parts[name].params,
            theirs.parts[name].params,
        )


def test_cloning_has_no_objective():
    config = replace(gild.Config(), SETTINGS | OWN | {"imitation": "cloning"})
    agent, state, batch = draw_batch(gild.gild, config)
    assert "objective" not in state.parts
    metrics = jax.jit(agent.update)(state, batch, random.key(0))[1].metrics
    x = batch.transitions.extras["expert"]
    own = jax.vmap(lambda o: 2 * jnp.tanh(mlp(state.parts["actor"].params["params"], o)))
    error = ((own(x.observation) - x.action)[:SIZE] / 2) ** 2
    np.testing.assert_allclose(metrics["imitation"], error.mean(), rtol=1e-4)
