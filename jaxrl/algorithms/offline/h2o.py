"""H2O (Niu, Sharma, Qiu, Li, Zhou, Hu and Zhan, 2022, "When to trust your simulator:
dynamics-aware hybrid offline-and-online reinforcement learning", arXiv:2206.13464): soft
actor-critic on data of the true environment and on its own rollouts in a simulator whose dynamics
are wrong. Two discriminators tell how wrong each simulated transition is:

    critics  (Q - y)^2 of the data + w (Q - y)^2 of the simulator
             + beta (log sum exp(Q + log omega) of the simulator - mean Q of the data)

w, the probability of the next state in reality over that in the simulator, is clipped to
[1e-5, 1], and omega is a batch's share of the dynamics gap u(s, a) = E log(p_sim / p_real), over
next states near the simulated one. So values fall where the simulator is wrong, and rise on data.

The environment of the run is the true one, which evaluations are in and which the dataset is of;
the simulator is the same environment with one parameter changed, and its steps are those that are
counted. Discriminators, bounds, noise and the absent entropy bonus of targets are as in the
authors' code, but a gradient step of the discriminators has the critics' batch (there, one of its
own, as large for either source), and next states are spread by the standard deviation of the
data's observations in the batch (there, of the whole buffer). The order of updates is SAC's (the
policy's gradient is taken before the critics' step there).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline.shared import soft_offline
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.offline.shared.variation import Variation, check_variation, make_variant
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import scale
from jaxrl.sources.imagined import REAL

LARGEST_LOGIT = 4.0  # bound of either discriminator's log-odds: two logits in [-2, 2] in the code
LARGEST_GAP = 10.0  # bound of the dynamics gap: authors' code


@group
class Discriminators:
    """Classifiers of real and simulated data: one of observation and action, and one that also sees
    the next observation."""

    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of both discriminators. Adam, 3e-4: authors' code."""
    noise: float = hyper(0.1, low=0)
    """Standard deviation of the noise on what the discriminators learn from, in half-widths for
    actions. 0.1: authors' code."""


@group
class Config(soft_offline.SoftOffline):
    """Settings of H2O: SAC on real data and in a simulator, whose critics are lowered where the
    simulator is wrong (arXiv:2206.13464)."""

    data: Data = Data(num_envs=1, num_steps=1, updates=1, offline_share=0.5)
    """Dataset of the environment of the run; `num_envs` and what follows are of the simulator. One
    gradient step per step and half of each batch: authors' code."""
    simulator: Variation = Variation(vary="gravity", value=20.0)
    """Parameter of the environment that the simulator has wrong."""
    discriminators: Discriminators = Discriminators()
    next_samples: int = static(10, low=1)
    """Number of next states in the estimate of each dynamics gap."""

    beta: float = hyper(0.005, low=0)
    """Weight of the term that lowers values where the simulator is wrong. Half of the authors'
    0.01, since the squared errors beside it are halved here and not there."""
    softness: float = hyper(1.0, above=0)
    """Temperature of that term's soft maximum."""
    spread: float = hyper(1.0, low=0)
    """Standard deviation of the next states in the estimate of a dynamics gap, in standard
    deviations of the data."""
    lowest_ratio: float = hyper(1e-5, above=0, high=1)
    """Smallest weight of a simulated transition's squared error."""


def see_next(timestep: TimeStep, observation: Array) -> TimeStep:
    """Return time steps that show the next observation too, in the channel of goals."""
    return dataclasses.replace(timestep, goal=(timestep.goal, observation))


def discriminator_parts(env: Environment, settings: Discriminators) -> dict[str, Part]:
    """Return the two discriminators, of pairs and of transitions."""
    torso, action = settings.torso, spaces.example(env.action_space)[None]
    network = ActionValues(
        env.observation_space,
        env.action_space,
        torso.hidden,
        1,
        torso.activation,
        torso.initializer,
    )
    timestep = example_timestep(env)
    both = see_next(timestep, timestep.observation)
    return {
        "pairs": Part(network, (timestep, action), settings.optimizer),
        "transitions": Part(network, (both, action), settings.optimizer),
    }


def log_odds(net: Any, timestep: TimeStep, action: Array, after: Array) -> tuple[Array, Array]:
    """Return the log-odds that transitions [...] to the observations `after` are real, and those of
    their pairs of observation and action. The first are the second and a difference, as in the
    authors' code."""
    bounded = lambda x: LARGEST_LOGIT * jnp.tanh(x[..., 0] / LARGEST_LOGIT)
    pairs = bounded(net.pairs(timestep, action))
    return pairs + bounded(net.transitions(see_next(timestep, after), action)), pairs


def real_and_simulated(x: Transition) -> tuple[Array, Array]:
    """Return weights [B] that make means over a batch those of the real and of the simulated
    transitions."""
    real = x.extras[REAL].astype(jnp.float32)
    share = real.mean()
    return real / share, (1 - real) / (1 - share)


def recipe(env: Environment, config: Config) -> Recipe:
    sample = soft.sample_in_half_widths(env.action_space)
    half_width = scale(env.action_space)[1]  # type: ignore[arg-type]

    @loss("pairs", "transitions")
    def discriminator_loss(net, x):
        """Classify real (1) and simulated (0) pairs and transitions, with noise on the inputs."""
        size = net.hyper.discriminators.noise
        keys = jax.random.split(net.key("noise"), 3)
        add = lambda key, value, unit: value + size * unit * jax.random.normal(key, value.shape)
        before = dataclasses.replace(x.timestep, observation=add(keys[0], x.observation, 1.0))
        after = add(keys[1], x.next_timestep.observation, 1.0)
        logits = log_odds(net, before, add(keys[2], x.action, half_width), after)
        label = x.extras[REAL]
        weight = sum(real_and_simulated(x))
        error_of = lambda logit: losses.binary_cross_entropy(logit, label)
        value = error_of(logits[0]) + error_of(logits[1])
        metrics = {
            f"{name}_accuracy": weight / 2 * ((logit > 0) == label)
            for name, logit in zip(("transitions", "pairs"), logits, strict=True)
        }
        return LossOutput(weight * value, metrics)

    def weight(net, x):
        """Weigh each source's squared errors as a mean of its own, simulated ones by how likely
        their next states are in reality."""
        real, simulated = real_and_simulated(x)
        logits = log_odds(net, x.timestep, x.action, x.next_timestep.observation)
        return real + simulated * losses.dynamics_ratio(*logits, net.hyper.lowest_ratio, 1.0)

    def dynamics_gap(net, x):
        """Estimate the dynamics gap u(s, a) of each transition, [B], at least 0."""
        real, _ = real_and_simulated(x)
        wide = lambda w, o: w.reshape(-1, *(1,) * (o.ndim - 1))
        seen, after = x.timestep.observation, x.next_timestep.observation
        center = (wide(real, seen) * seen).mean(0)
        deviation = jnp.sqrt((wide(real, seen) * (seen - center) ** 2).mean(0))

        def at(key):
            offset = net.hyper.spread * deviation * jax.random.normal(key, after.shape)
            return losses.dynamics_gap(*log_odds(net, x.timestep, x.action, after + offset))

        keys = jax.random.split(net.key("next_states"), config.next_samples)
        gap = jax.vmap(at)(keys).mean(0)
        return jax.lax.stop_gradient(jnp.clip(gap, 0.0, LARGEST_GAP))

    def lower_where_wrong(net, x):
        """Compute beta (log sum exp(Q + log omega) - mean Q(data)), summed over critics."""
        q, gap = jnp.moveaxis(net.critic(x.timestep, x.action), -1, 0), dynamics_gap(net, x)
        real = jnp.broadcast_to(x.extras[REAL], q.shape)
        wide = jnp.broadcast_to(gap, q.shape)
        term = losses.dynamics_gap_regularizer(q, wide, q, net.hyper.softness, ~real, real)
        value = jnp.broadcast_to(net.hyper.beta * term.sum(), gap.shape)
        simulated = real_and_simulated(x)[1]
        return LossOutput(value, {"simulated_gap": simulated * gap})

    def next_values(net, timestep):
        """Return the target networks' values [B, E] of an action of the policy, and 0 for its
        log-probability: there is no entropy bonus."""
        q = net.target.critic(timestep, sample(net.actor(timestep), net.key())[0])
        return q, jnp.zeros(len(q))

    plain = sac.recipe(
        env,
        config,
        reward=scaled_reward,
        weight=weight,
        next_values=next_values,
        critic_terms=(lower_where_wrong,),
    )

    def update(net, batch):
        return plain.update(net.descend(discriminator_loss, batch), batch)

    return dataclasses.replace(
        plain,
        parts={**plain.parts, **discriminator_parts(env, config.discriminators)},
        losses=(discriminator_loss, *plain.losses),
        update=update,
        needs=(f"transitions.extras.{REAL}",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the source of batches of real data and of steps in the simulator."""
    return config.data.source(env, make_variant(env, config.simulator))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, observations are one box of real
    numbers, and there are both a dataset and a simulator, which has another value."""
    soft.check(env, config, name)
    space = env.observation_space
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(
            f"{name} adds noise to observations, so they must be one Box of real numbers; those of "
            f"'{env.name}' are {space!r}."
        )
    if not (config.data.name and config.data.num_envs):
        raise UserError(
            f"{name} learns from real data and in a simulator: name a dataset, and set "
            "data.num_envs to at least 1."
        )
    check_variation(env, config.simulator)


h2o = AlgorithmBuilder("h2o", Config, recipe, source, check=check)

TINY = soft_offline.TINY | {
    "data.num_envs": 4,
    "data.capacity": 64,
    "data.warmup": 16,
    "discriminators.torso.hidden": (8,),
    "next_samples": 2,
}
