"""Shared parts of Uni-O4's two phases: settings, networks, acting by the best member, checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.offline.shared.model_rollouts import check_observations
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Environment, Key, Source, TimeStep, Tree
from jaxrl.kit import Loss, Net, Part, Recipe, Update, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.dynamics import Dynamics
from jaxrl.networks.heads import check_action_space


@group
class TwoPhases:
    """Settings that both phases of Uni-O4 share. A warm start needs the same sizes in both."""

    data: Data = Data()
    """Dataset of the run, without an environment; `updates` gradient steps are one round."""
    torso: Torso = Torso(hidden=(256, 256), activation="tanh")
    """Hidden layers of policies, value and critics, each; PPO needs the same to continue."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of V, Q and the clones, separately. Adam, 1e-4: authors' code."""
    model: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the dynamics models. Adam, 1e-3: authors' code, whose loss also
    penalizes the weights."""
    improvement: Optimizer = Optimizer(
        learning_rate=1e-4, learning_rate_steps=10_000.0, max_grad_norm=0.5
    )
    """Optimizer settings of the policies' improvement; the norm is that of one member. Adam, 1e-4,
    falling to 0 over all 10,000 gradient steps, norms up to 0.5: authors' code."""
    target: Target = Target(rate=0.005)
    """Target networks of the critics."""
    normalization: Normalization = Normalization(observation=True)

    num_policies: int = static(4, low=1, high=MANY)
    """Number of policies in the ensemble."""
    values: str = static("sarsa", choices=("sarsa", "iql"))
    """Method to learn Q and V: sarsa (Q by Sarsa, V from returns) or iql (implicit Q-learning)."""
    num_critics: int = static(1, low=1, high=MANY)
    """Number of critics; the minimum of their values is used. Authors' code: 1, and 2 with implicit
    Q-learning."""
    num_models: int = static(3, low=1, high=MANY)
    """Number of dynamics models; a random one draws each step."""
    model_hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of each dynamics model."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards offline; it must be the same in both phases."""
    expectile: float = hyper(0.7, above=0, below=1)
    """Expectile. With iql, of the value over the data's actions: 0.5 is their mean, near 1 their
    maximum. With sarsa, the weight of positive advantages in the improvement; others have 1 minus
    it."""
    alpha: float = hyper(0.1, low=0)
    """Weight of the clones' disagreement in their loss."""


@dataclasses.dataclass(frozen=True)
class Half:
    """Policy or value of an actor-critic as a separate network."""

    network: Any
    method: str

    def init(self, key: Key, timestep: TimeStep) -> Tree:
        return self.network.init(key, timestep, method=self.method)

    def apply(self, params: Tree, timestep: TimeStep) -> Any:
        return self.network.apply(params, timestep, method=self.method)


def best_policy(policies: Tree, scores: Array) -> Tree:
    """Return the policy with the highest score, the first among equals."""
    return jax.tree.map(lambda x: x[scores.argmax()], policies)


def act(net: Net, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
    """Act by the member with the highest score."""
    best = best_policy(net.parts["policies"].params, net.extra["scores"])
    policy = net.network("policies").apply(best, timestep)
    return choose(policy, key, greedy), memory, {}


def make_recipe(
    env: Environment, config: TwoPhases, losses: Sequence[Loss], update: Update, **more: Any
) -> Recipe:
    """Return the recipe of a phase.

    Both phases have the same parts, so that the second continues with everything that the first
    learned: the policies and the behavior policies of PPO's ratios, each an ensemble; V, Q and the
    dynamics models. The extra state is AM-Q of the policies after the last round, 0 at first.
    """
    torso, timestep = config.torso, example_timestep(env)
    action = spaces.example(env.action_space)[None]
    network = policy_network(env, torso)
    policy, value = Half(network, "policy_alone"), Half(network, "value_alone")
    critics = ActionValues(
        env.observation_space,
        env.action_space,
        torso.hidden,
        config.num_critics,
        torso.activation,
        torso.initializer,
    )
    space: Any = env.observation_space
    model = Dynamics(space, env.action_space, config.model_hidden, config.num_models)
    n = config.num_policies
    return Recipe(
        parts={
            "policies": Part(policy, (timestep,), config.improvement, members=n),
            "behaviors": Part(policy, (timestep,), config.optimizer, members=n),
            "value": Part(value, (timestep,), config.optimizer),
            "critic": Part(critics, (timestep, action), config.optimizer, config.target),
            "model": Part(model, (timestep, action), config.model),
        },
        act=act,
        losses=losses,
        update=update,
        extra={"scores": jnp.zeros(n)},
        **more,
    )


def dataset_source(env: Environment, config: TwoPhases) -> Source:
    """Return a source of a round's transitions [updates * batch_size] at once.

    Raises `UserError` unless `data` is a dataset without an environment.
    """
    data = config.data
    if data.num_envs or not data.name:
        raise UserError(
            "uni_o4 learns from a dataset alone: name one, and leave num_envs at 0. Online, ppo "
            "continues from it (warm_start)."
        )
    return data.dataset(env, data.updates * data.batch_size)


def check(env: Environment, config: TwoPhases, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, or observations that are not one
    box of real numbers."""
    check_action_space(env.action_space, name)
    check_observations(env, name)
