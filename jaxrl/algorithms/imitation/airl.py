"""Adversarial inverse reinforcement learning (AIRL; Fu, Luo and Levine, 2018, "Learning robust
rewards with adversarial inverse reinforcement learning", arXiv:1710.11248): a discriminator whose
log-odds are f - log pi(a|s), with

    f(s, a, s') = g(s, a) + discount h(s') - h(s)        (equation 4)

so that g is a reward and h a potential that shapes it. The policy is paid the log-odds (algorithm
1), so it maximizes f and entropy. With `state_only` g is a function of the observation alone, which
can be recovered up to a constant where the dynamics are deterministic (section 6).

The policy learns by PPO where the paper has TRPO. Actions are clipped to their bounds before their
density is taken, the policy's as the expert's. At a bound that density is not the mass which a
Gaussian policy has there, so a policy of wide noise is paid too much at first.
"""

from __future__ import annotations

import dataclasses

from jaxrl import losses
from jaxrl.algorithms.imitation.shared import windows
from jaxrl.algorithms.imitation.shared.adversarial import adversarial, discriminator_loss
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group
from jaxrl.networks.critics import ActionValues, Value


@group
class Config(windows.Adversarial):
    """Settings of AIRL: PPO on the reward of a discriminator in which a reward and its shaping are
    apart (arXiv:1710.11248)."""

    state_only: bool = True
    """Let the learned reward see the observation alone, not the action."""


def recipe(env: Environment, config: Config) -> Recipe:
    torso, space = config.discriminator.torso, env.action_space
    more = (torso.activation, torso.initializer)
    value = Value(env.observation_space, torso.hidden, *more)
    timestep, optimizer = example_timestep(env), config.discriminator.optimizer
    reward = Part(value, (timestep,), optimizer)
    if not config.state_only:
        network = ActionValues(env.observation_space, space, torso.hidden, 1, *more)
        reward = Part(network, (timestep, spaces.example(space)[None]), optimizer)

    def learned_reward(net: Net, x: Transition) -> Array:
        if config.state_only:
            return net.reward(x.timestep)
        return net.reward(x.timestep, x.action)[..., 0]

    def logits(net: Net, x: Transition) -> Array:
        return losses.airl_logits(
            learned_reward(net, x),
            net.potential(x.timestep),
            net.potential(x.next_timestep),
            x.extras["log_prob"],
            x.terminated,
            net.hyper.discount,
        )

    def annotate(net: Net, x: Transition) -> Transition:
        """Add the density of actions under the policy as it is before the update."""
        policy = net.actor_critic(x.timestep, ())[0]
        return dataclasses.replace(x, extras={"log_prob": policy.log_prob(x.action)})

    return adversarial(
        ppo.recipe(env, config),
        env,
        {"reward": reward, "potential": Part(value, (timestep,), optimizer)},
        discriminator_loss(("reward", "potential"), logits, config.discriminator),
        windows.train_on_windows(config.discriminator.passes),
        logits,
        annotate,
    )


def check(env: Environment, config: Config, name: str) -> None:
    windows.check(env, config, name)
    if config.memory.recurrent or config.memory.transformer:
        raise UserError(
            f"{name} asks its policy for the density of an expert's single steps, which a policy "
            "with memory does not have; set memory.recurrent and memory.transformer to 0."
        )


airl = AlgorithmBuilder("airl", Config, recipe, windows.source, check=check)

TINY = windows.SMALL_WINDOWS | {"env": "pendulum", "state_only": False}
