"""Skills that a policy is told in the goal channel: their judge, and a choice among them by a few
tries."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses, tasks
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep, Transition
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import LossOutput, Net, Part, group, loss
from jaxrl.kit.groups import Epochs, Optimizer, Torso
from jaxrl.networks.q_network import QNetwork


@group
class SkillDiscriminator:
    """Discriminator of skills: a classifier of the states that they lead to."""

    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the discriminator."""
    passes: Epochs = Epochs(epochs=1, minibatches=4)
    """Gradient steps of the discriminator on each batch of episodes."""


def count_skills(env: Environment) -> int:
    """Return the number of skills of an environment of the wrapper `skills`; 0 without them."""
    goals = jax.tree.leaves(example_timestep(env).goal)
    return goals[0].shape[-1] if hasattr(env.params, "skill") and goals else 0


def skill_discriminator(env: Environment, settings: SkillDiscriminator) -> Part:
    """Return the part `discriminator`: a time step's observation -> logits [..., K, 1]."""
    torso = settings.torso
    network = QNetwork(
        env.observation_space,
        count_skills(env),
        widths=torso.hidden,
        activation=torso.activation,
        initializer=torso.initializer,
    )
    return Part(network, (without_goal(example_timestep(env)),), settings.optimizer)


def check_skills(env: Environment, name: str) -> None:
    """Raise `UserError` unless time steps of `env` tell a skill."""
    if not count_skills(env):
        raise UserError(
            f"{name} needs skills, which '{env.name}' does not tell; put it into the wrapper "
            "'skills', such as wrappers: [{skills: {number: 3}}]."
        )


def without_goal(timestep: TimeStep) -> TimeStep:
    """Return a time step that does not tell its skill."""
    return dataclasses.replace(timestep, goal=None)


def skill_logits(net: Net, x: Transition) -> Array:
    """Return the discriminator's logits [..., K] of the states that steps led to."""
    return net.discriminator(without_goal(x.next_timestep))[..., 0]


def skill_of(x: Transition) -> Array:
    """Return the numbers [...] of the skills that steps were taken by."""
    return x.timestep.goal.argmax(-1)


def skill_rewards(net: Net, x: Transition) -> Array:
    """Return log q(z | s') - log p(z) [...] of the steps' skills z, which are drawn uniformly."""
    logits = skill_logits(net, x)
    return losses.skill_reward(logits, skill_of(x), jnp.zeros(logits.shape[-1]))


@loss("discriminator", name="discriminator_loss")
def discriminator_loss(net: Net, x: Transition) -> LossOutput:
    """Compute the cross-entropy of the skill, given the state that a step led to."""
    logits, skill = skill_logits(net, x), skill_of(x)
    return LossOutput(
        losses.categorical_nll(logits, skill), {"skill_accuracy": logits.argmax(-1) == skill}
    )


def few_shot(
    env: Environment, policy: Policy, key: Key, tries: int = 1, greedy: bool = True
) -> tuple[Array, Array]:
    """Try each skill for a few episodes; return the best skill, and the mean return [K] of each.

    env: an environment of the wrapper `skills` in which the policy can act, such as one that
        differs from that of training.
    """
    number = count_skills(env)
    if not number:
        check_skills(env, "few_shot")
    stack = lambda x: jnp.stack([jnp.asarray(x)] * number)
    params: Any = jax.tree.map(stack, env.params)
    params = dataclasses.replace(params, skill=jnp.arange(number))
    played = evaluate(env, policy, key, tries * number, greedy, None, tasks.each(params))
    returns = played.returns.reshape(tries, number).mean(0)
    return returns.argmax(), returns
