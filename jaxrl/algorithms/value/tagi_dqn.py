"""Bayesian deep Q-learning without gradients (Nguyen and Goulet, 2021, "Analytically tractable
Bayesian deep Q-learning", arXiv:2106.11086), off-policy.

Weights are independent normals, and so action values are too. Actions are the best ones of a
sample of the values (Thompson sampling), and a target is one more observation, from which all
weights are inferred in closed form (`jaxrl.networks.tagi`). There is no step size, no epsilon and
no target network. A target's noise has the variance of the value that it bootstraps from, and the
next action is sampled as well, as in the authors' code. There `noise` falls from 2 to 0.3 over many
updates, updates have no cap, and evaluations sample actions too, where here greedy actions are the
best by the mean.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.q_learning import TINY_Q_LEARNING
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Batch, Environment, Key, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import Replay
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.tagi import Normal, Tagi


@group
class Config:
    """Settings of TAGI-DQN. Where no source is named, the default is ours."""

    replay: Replay = Replay(batch_size=32)
    hidden: tuple[int, ...] = static((64, 64), low=1, high=WIDE)
    """Widths of the hidden layers; none for values that are linear in the observation."""
    gain: float = static(1.0, above=0)
    """Gain of the weights' initial standard deviations."""
    noise: float = hyper(1.0, above=0)
    """Standard deviation (sigma_V) of the noise of an observed value, besides the uncertainty of
    the value itself: the one number that is tuned."""
    cap: float = hyper(2.0, above=0)
    """Cap of updates: no weight moves further than its standard deviation divided by this. 2 is
    cuTAGI's for minibatches of 2 to 255."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor (gamma) per step."""


def sample_actions(net: Net, timestep: TimeStep, key: Key) -> Array:
    """Return the best actions [B] of a sample of the values."""
    q = net.q(timestep)
    values = q.mean + jnp.sqrt(q.variance) * jax.random.normal(key, q.mean.shape)
    return mask_illegal(values, timestep).argmax(-1)


def q_target(net: Net, x: Transition) -> Normal:
    """Return what is observed of the values of the taken actions, [B]: r + gamma Q(s', a') with a
    sampled action a'."""
    following, best = net.q(x.next_timestep), sample_actions(net, x.next_timestep, net.key("next"))
    mean, variance = (losses.at_action(q, best) for q in (following.mean, following.variance))
    discount = net.hyper.discount
    return Normal(
        losses.td_target(x.reward, x.terminated, discount, mean),
        jnp.square(net.hyper.noise) + jnp.where(x.terminated, 0, jnp.square(discount) * variance),
    )


def update(net: Net, batch: Batch) -> Net:
    """Infer all weights from one minibatch of targets, observed at once."""
    x, now = batch.transitions, net.q(batch.transitions.timestep)
    target = q_target(net, x)
    taken = jnp.arange(now.mean.shape[-1]) == x.action[:, None]
    taken = taken if batch.mask is None else taken & batch.mask[:, None]
    observed = Normal(target.mean[:, None], target.variance[:, None])
    layers, cap = net.parts["q"].params, net.hyper.cap
    net = net.with_params(q=net.network("q").infer(layers, x.timestep, observed, taken, cap))
    error = target.mean - losses.at_action(now.mean, x.action)
    return net.report(td_error=jnp.abs(error).mean(), deviation=jnp.sqrt(now.variance).mean())


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    network = Tagi(env.observation_space, space.n, config.hidden, config.gain)  # type: ignore[union-attr]

    def act(net, timestep, memory, key, greedy):
        if greedy:
            action = mask_illegal(net.q(timestep).mean, timestep).argmax(-1)
        else:
            action = sample_actions(net, timestep, key)
        return action.astype(space.dtype), memory, {}

    part = Part(network, (example_timestep(env),))
    return Recipe(parts={"q": part}, act=act, losses=(), update=update)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for actions that are not Discrete."""
    check_discrete(env.action_space, name)


tagi_dqn = AlgorithmBuilder("tagi_dqn", Config, recipe, check=check)

TINY = {name: value for name, value in TINY_Q_LEARNING.items() if name != "period"}
