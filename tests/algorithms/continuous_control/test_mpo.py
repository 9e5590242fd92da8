"""The losses of MPO, against NumPy."""

import dataclasses

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.mpo import mpo
from jaxrl.core import random
from jaxrl.core.settings import replace
from tests.kit.stub import losses_of, stub, transitions

T, B, N = 5, 4, 6
RNG = np.random.default_rng(0)
HYPER = {"bound": 0.1, "mean_bound": 0.02, "deviation_bound": 0.005}
HYPER |= {"discount": 0.9, "retrace_lambda": 0.8}
OLD = {"mean": RNG.normal(size=(2 * T * B, 1)), "log": 0.3 * RNG.normal(size=(2 * T * B, 1))}
NEW = {name: x + 0.2 * RNG.normal(size=x.shape) for name, x in OLD.items()}
OLD, NEW = (jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), x) for x in (OLD, NEW))
MULTIPLIERS = {"temperature": 0.7, "mean_multiplier": 3.0, "deviation_multiplier": 5.0}
RECIPE = mpo.recipe(envs.make("pendulum"), replace(mpo.Config(), {"samples": N}))


def actor(table):
    def policy(timestep):
        s = timestep.observation
        normal = distrax.Normal(table["mean"][s], jnp.exp(table["log"][s]))
        return distrax.Independent(normal, 1)

    return policy


def q_value(timestep, action):
    """Value of actions, clipped to [-2, 2]."""
    s = np.asarray(timestep.observation)[..., None] % 7
    return jnp.sin(s + 1.5 * action)


def loss_of(name, x, new=NEW, multipliers=MULTIPLIERS):
    net = stub(
        actor=actor(new),
        critic=lambda timestep, action: 2 * q_value(timestep, action),
        target={"actor": actor(OLD), "critic": q_value},
        hyper=HYPER,
        key=lambda name: random.key(0),
        **{n: lambda value=value: jnp.float32(value) for n, value in multipliers.items()},
    )
    return losses_of(RECIPE)[name](net, x)


def window():
    x = transitions(T * B, actions=0)
    x = dataclasses.replace(x, action=3 * x.action[:, None])  # some outside of the bounds
    log_prob = RNG.normal(size=T * B).astype(np.float32) - 1
    x = dataclasses.replace(x, extras={"log_prob": log_prob})
    return jax.tree.map(lambda leaf: leaf.reshape(T, B, *leaf.shape[1:]), x)


def density(x, table, s, mean=None):
    mean, log = np.asarray(table["mean"] if mean is None else mean)[s], np.asarray(table["log"])[s]
    return (-0.5 * ((x - mean) / np.exp(log)) ** 2 - log - 0.5 * np.log(2 * np.pi))[..., 0]


def draw_actions(timestep):
    """Draw actions [N, T, B, 1] of the old policy, with their values."""
    a = np.asarray(actor(OLD)(timestep).sample(seed=random.key(0), sample_shape=N))
    s = timestep.observation[..., None] % 7
    return a, np.sin(s + 1.5 * np.clip(a, -2, 2))[..., 0]


def test_the_critic_regresses_on_retrace_of_the_copies():
    x = window()
    loss, s = loss_of("critic_loss", x).value, x.timestep.observation
    ratio = np.exp(density(x.action, OLD, s) - x.extras["log_prob"])
    trace = 0.8 * np.minimum(ratio, 1)
    following = draw_actions(x.next_timestep)[1].mean(0)
    q = np.sin(s % 7 + 1.5 * np.clip(x.action, -2, 2)[..., 0])
    target, later = np.zeros((T, B)), np.zeros(B)
    for t in reversed(range(T)):
        # What comes after an end, of either kind, adds nothing.
        after = np.where(x.terminated[t], 0, following[t]) + np.where(x.done[t], 0, later)
        target[t] = x.reward[t] + 0.9 * after
        later = trace[t] * (target[t] - q[t])
    np.testing.assert_allclose(loss, 0.5 * (2 * q - target) ** 2, rtol=1e-3, atol=1e-5)
    assert (np.abs(x.action) > 2).any() and (ratio < 1).any() and (ratio > 1).any()
    assert x.truncated[:-1].any() and x.terminated[:-1].any()


def test_the_policy_loss_is_the_sum_of_the_papers():
    x = window()
    output, s = loss_of("policy_loss", x), x.timestep.observation
    action, q = draw_actions(x.timestep)
    weight = np.exp(q / 0.7) / np.exp(q / 0.7).sum(0)
    likely = density(action, OLD, s, mean=NEW["mean"]) + density(action, NEW, s, mean=OLD["mean"])
    dual = 0.7 * (0.1 + np.log(np.exp(q / 0.7).mean(0)))
    # A bound's price to the policy and its multiplier's own loss have the same size.
    np.testing.assert_allclose(output.value, dual - (weight * likely).sum(0), rtol=1e-3, atol=1e-4)
    old, new = (jax.tree.map(lambda v: np.asarray(v)[s][..., 0], p) for p in (OLD, NEW))
    shift = (new["mean"] - old["mean"]) / np.exp(old["log"])
    ratio = np.exp(old["log"] - new["log"])
    np.testing.assert_allclose(output.metrics["mean_kl"], shift**2 / 2, rtol=1e-3, atol=1e-6)
    grown = (ratio**2 - 1) / 2 - np.log(ratio)
    np.testing.assert_allclose(output.metrics["deviation_kl"], grown, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "deviation"])
def test_a_multiplier_presses_on_its_own_part_of_the_policy_and_grows_beyond_its_bound(name):
    x = window()
    mean = lambda new, own: loss_of(
        "policy_loss", x, new, MULTIPLIERS | {f"{name}_multiplier": own}
    ).value.mean()
    by_policy, by_multiplier = jax.grad(mean, (0, 1))(NEW, 2.0)
    harder = jax.grad(mean)(NEW, 4.0)
    moved = {n: np.abs(harder[n] - by_policy[n]).max() > 1e-4 for n in NEW}
    assert moved == {"mean": name == "mean", "log": name == "deviation"}
    kl = loss_of("policy_loss", x).metrics[f"{name}_kl"].mean()
    np.testing.assert_allclose(by_multiplier, HYPER[f"{name}_bound"] - kl, rtol=1e-4)


def test_the_temperatures_gradient_is_0_at_the_minimum_of_the_dual():
    """Found by brute force; there the weights are as far from equal ones as the bound says."""
    x = window()
    _, q = draw_actions(x.timestep)
    tried = np.geomspace(0.05, 20, 20_001)[:, None, None]
    mean = np.mean([np.exp(value / tried) for value in q], 0)
    dual = (tried[:, 0, 0]) * (0.1 + np.log(mean).mean((1, 2)))
    best = tried[dual.argmin(), 0, 0]
    slope = jax.grad(
        lambda t: loss_of(
            "policy_loss", x, multipliers=MULTIPLIERS | {"temperature": t}
        ).value.mean()
    )
    assert abs(slope(best)) < 1e-3
    assert slope(0.8 * best) < -1e-3 < 1e-3 < slope(1.2 * best)
    weight = np.exp(q / best) / np.exp(q / best).sum(0)
    np.testing.assert_allclose((weight * np.log(N * weight)).sum(0).mean(), 0.1, rtol=1e-2)
