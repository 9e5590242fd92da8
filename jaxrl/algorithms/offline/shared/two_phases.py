"""What both phases of Uni-O4 share: settings, parts, how the best member acts, checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Source, TimeStep, Tree
from jaxrl.kit import Loss, Net, Part, Recipe, Update, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.dynamics import Dynamics
from jaxrl.networks.heads import check_action_space


@group
class TwoPhases:
    """Settings of Uni-O4. A warm start needs the same sizes in both phases."""

    data: Data = Data()
    """A dataset. `updates` gradient steps are one round."""
    torso: Torso = Torso(hidden=(256, 256), activation="tanh")
    """Of policies, value and each critic; PPO's, where it goes on."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Of V, Q and the clones, each for itself. Adam, 1e-4: authors' code."""
    model: Optimizer = Optimizer(learning_rate=1e-3)
    """Of the models of the dynamics. Adam, 1e-3: authors' code, whose loss has a penalty on the
    weights, too."""
    improvement: Optimizer = Optimizer(
        learning_rate=1e-4, learning_rate_steps=10_000.0, max_grad_norm=0.5
    )
    """Of the policies' improvement; the norm is one member's. Adam, 1e-4, that falls to 0 over all
    of the 10,000 gradient steps, bounded by 0.5: authors' code."""
    target: Target = Target(rate=0.005)
    """Of the critics."""
    normalization: Normalization = Normalization(observation=True)

    num_policies: int = static(4, low=1, high=MANY)
    """Members of the ensemble of policies."""
    values: str = static("sarsa", choices=("sarsa", "iql"))
    """How Q and V are learned: by Sarsa and from returns, or by implicit Q-learning."""
    num_critics: int = static(1, low=1, high=MANY)
    """Critics, of which the most cautious counts. Authors' code: 1, and 2 with implicit
    Q-learning."""
    num_models: int = static(3, low=1, high=MANY)
    """Models, of which a random one draws each step."""
    model_hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of each model of the dynamics."""

    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    reward_scale: float = hyper(1.0, above=0)
    """What rewards are multiplied by offline; the same in both phases."""
    expectile: float = hyper(0.7, above=0, below=1)
    """Implicit Q-learning: 0.5 is the mean over the data's actions, toward 1 their best. Sarsa:
    what advantages above 0 are multiplied by in the improvement; the others by 1 less it."""
    alpha: float = hyper(0.1, low=0)
    """Weight of the clones' disagreement."""


@dataclasses.dataclass(frozen=True)
class Half:
    """The policy or the value of an actor-critic as a network of its own."""

    network: Any
    method: str

    def init(self, key: Key, timestep: TimeStep) -> Tree:
        return self.network.init(key, timestep, method=self.method)

    def apply(self, params: Tree, timestep: TimeStep) -> Any:
        return self.network.apply(params, timestep, method=self.method)


def best_policy(policies: Tree, scores: Array) -> Tree:
    """The policy with the highest score, the first among equals."""
    return jax.tree.map(lambda x: x[scores.argmax()], policies)


def act(net: Net, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
    """As that member does which has the highest score."""
    best = best_policy(net.parts["policies"].params, net.extra["scores"])
    policy = net.network("policies").apply(best, timestep)
    return choose(policy, key, greedy), memory, {}


def on_data(
    env: Environment, config: TwoPhases, losses: Sequence[Loss], update: Update, **more: Any
) -> Recipe:
    """A phase. Both hold the same parts, so that one goes on with all that the other learned:
    policies, and the behavior policies against which PPO's ratios are measured, each an ensemble;
    V, Q and the model; and AM-Q of the policies after the last round, 0 before."""
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


def data_alone(env: Environment, config: TwoPhases) -> Source:
    """A round's transitions [updates * batch_size] at once. Raises `UserError` for an
    environment."""
    data = config.data
    if data.num_envs or not data.name:
        raise UserError(
            "uni_o4 learns from a dataset alone: name one, and no num_envs. Online, ppo goes on "
            "from it (warm_start)."
        )
    return data.set(env, data.updates * data.batch_size)


def check(env: Environment, config: TwoPhases, name: str) -> None:
    """Raises `UserError` for an action space without a policy head, and for observations that are
    not one box of numbers."""
    check_action_space(env.action_space, name)
    if not isinstance(env.observation_space, Box):
        raise UserError(
            f"{name} learns a model of observations that are one Box; those of '{env.name}' are "
            f"{env.observation_space!r}."
        )
