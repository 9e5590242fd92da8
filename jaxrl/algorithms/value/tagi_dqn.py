"""Bayesian deep Q-learning without gradients (Nguyen and Goulet, 2021, "Analytically tractable
Bayesian deep Q-learning", arXiv:2106.11086), off-policy.

Weights are independent normals, so that action values are too. Actions are the best ones of a
sample of the values (Thompson sampling), and a target is one more observation, from which all
weights are inferred in closed form (`jaxrl.networks.tagi`). There is no step size, no epsilon and
no copy of the network. Only the abstract and the authors' code for TAGI could be read: that a
target's noise has the variance of the value that it bootstraps from, and that the next action is
sampled as well, is derived here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Batch, Environment
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
    """Widths of the hidden layers; none for values that are linear in what is observed."""
    gain: float = static(1.0, above=0)
    """Of the weights' standard deviations at first."""
    noise: float = hyper(1.0, above=0)
    """Sigma_V, standard deviation of what is observed of a value besides what is uncertain in it:
    the one number that is tuned."""
    cap: float = hyper(2.0, above=0)
    """No weight moves further than its standard deviation divided by this: cuTAGI's for
    minibatches of 2 to 255."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""


def sampled(net: Net, timestep, key) -> jax.Array:
    """The best actions [B] of a sample of the values."""
    q = net.q(timestep)
    drawn = q.mean + jnp.sqrt(q.variance) * jax.random.normal(key, q.mean.shape)
    return mask_illegal(drawn, timestep).argmax(-1)


def target(net: Net, x) -> Normal:
    """What is observed of the values of the actions taken, [B]: r + gamma Q(s', a'), a' sampled."""
    following, best = net.q(x.next_timestep), sampled(net, x.next_timestep, net.key("next"))
    mean, variance = (losses.at_action(q, best) for q in (following.mean, following.variance))
    discount = net.hyper.discount
    return Normal(
        losses.td_target(x.reward, x.terminated, discount, mean),
        jnp.square(net.hyper.noise) + jnp.where(x.terminated, 0, jnp.square(discount) * variance),
    )


def update(net: Net, batch: Batch) -> Net:
    """One minibatch, observed at once."""
    x, now = batch.transitions, net.q(batch.transitions.timestep)
    seen = target(net, x)
    taken = jnp.arange(now.mean.shape[-1]) == x.action[:, None]
    wide = Normal(seen.mean[:, None], seen.variance[:, None])
    layers = net.parts["q"].params
    net = net.with_params(q=net.network("q").infer(layers, x.timestep, wide, taken, net.hyper.cap))
    error = seen.mean - losses.at_action(now.mean, x.action)
    return net.report(td_error=jnp.abs(error).mean(), deviation=jnp.sqrt(now.variance).mean())


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    network = Tagi(env.observation_space, space.n, config.hidden, config.gain)  # type: ignore[union-attr]

    def act(net, timestep, memory, key, greedy):
        if greedy:
            action = mask_illegal(net.q(timestep).mean, timestep).argmax(-1)
        else:
            action = sampled(net, timestep, key)
        return action.astype(space.dtype), memory, {}

    parts = {"q": Part(network, (example_timestep(env),), optimizer="")}
    return Recipe(parts=parts, act=act, losses={}, update=update)


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` for actions that are not Discrete."""
    check_discrete(env.action_space, name)


tagi_dqn = AlgorithmBuilder("tagi_dqn", Config, recipe, check=check)

TINY = {name: value for name, value in dqn_.TINY.items() if name != "period"}
