"""Uni-O4 (Lei et al., 2024, "Uni-O4: Unifying online and offline deep reinforcement learning with
multi-step on-policy optimization", arXiv:2311.03351): PPO's objective offline and online.

Here its supervised phase, in which all that PPO needs offline is learned from the data: Q and V of
the policies that made them, a model of the dynamics, and an ensemble of clones that disagree.
`uni_o4_improvement` goes on from it, and PPO online from that (`--warm-start`).

The authors' code has two ways to learn Q and V, of which the first is its default: Sarsa and the
returns of the data, or implicit Q-learning, which most of its scripts ask for (not those for
medium-expert data of HalfCheetah and Hopper). Where a time limit ends an episode it goes on to the
next one as if that followed; here a return ends there, and V stands in for the action that is none.

A member is pushed from that other one which finds the data's action likeliest, by their divergence,
as in the authors' code with `kl_type=distribution`. (Their `heuristic`, `losses.diverse_cloning`,
has the gradient of cloning alone, times 1 + alpha.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.iql import critic_loss, value_loss
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.spaces import Box
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Environment,
    Key,
    Source,
    TimeStep,
    Transition,
    Tree,
    struct,
)
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper, in_order, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.dynamics import Dynamics, dynamics_loss
from jaxrl.networks.heads import Distribution, check_action_space


@group
class Config:
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


def sarsa_loss(net: Net, x: Transition) -> Array:
    """Q regresses on r + gamma Q(s', a') of the data's next action, each critic on its own copy.
    Where an episode was cut off there is no next action, and V(s') stands in."""
    h = net.hyper
    after = net.target.critic(x.next_timestep, x.extras["next_action"])
    after = jnp.where(x.truncated[..., None], net.value(x.next_timestep)[..., None], after)
    reward, terminated = h.reward_scale * x.reward[..., None], x.terminated[..., None]
    target = losses.td_target(reward, terminated, h.discount, after)
    return losses.squared_error(net.critic(x.timestep, x.action), target).sum(-1)


def return_loss(net: Net, x: Transition) -> tuple[Array, dict[str, Array]]:
    """V regresses on the discounted rewards that the data still had in the episode."""
    value = net.value(x.timestep)
    target = net.hyper.reward_scale * x.extras["return"]
    return losses.squared_error(value, target), {"mean_value": value}


# Of V and of Q, by `Config.values`.
LOSSES = {"sarsa": (return_loss, sarsa_loss), "iql": (value_loss, critic_loss)}


def disagreement(policies: Distribution, action: Tree) -> Array:
    """The divergence [n, B] of each of n policies [n, B] from that other one which finds `action`
    [B] likeliest. Others get no gradient."""
    log_prob: Any = policies.log_prob(action)
    count = log_prob.shape[0]
    other = jnp.where(jnp.eye(count, dtype=bool)[..., None], -jnp.inf, log_prob[None]).argmax(1)
    rows = jnp.arange(log_prob.shape[1])
    others = jax.tree.map(lambda x: jax.lax.stop_gradient(x[other, rows]), policies)
    return jnp.asarray(policies.kl_divergence(others))


def behaviors_loss(net: Net, x: Transition) -> tuple[Array, dict[str, Array]]:
    """All members imitate the data's actions, less alpha times how far each is from the others."""
    policies = net.behaviors(x.timestep)
    cloning = losses.behavior_cloning(policies.log_prob(x.action))
    apart = disagreement(policies, x.action)
    loss = (cloning - net.hyper.alpha * apart).sum(0)
    return loss, {"cloning_loss": cloning, "disagreement": apart}


def chosen(policies: Tree, scores: Array) -> Tree:
    """The policy with the highest score, the first among equals."""
    return jax.tree.map(lambda x: x[scores.argmax()], policies)


def act(net: Net, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
    """As that member does which has the highest score."""
    best = chosen(net.parts["policies"].params, net.extra["scores"])
    policy = net.network("policies").apply(best, timestep)
    return (policy.mode() if greedy else policy.sample(seed=key)), memory, {}


def on_data(
    env: Environment, config: Config, descended: Mapping[str, Loss], update: Any, **more: Any
) -> Recipe:
    """A phase. Both hold the same parts, so that one goes on with all that the other learned:
    policies, and the behavior policies against which PPO's ratios are measured, each an ensemble;
    V, Q and the model; and AM-Q of the policies after the last round, 0 before."""
    torso, timestep = config.torso, example_timestep(env)
    action = spaces.example(env.action_space)[None]
    network = ppo.policy_network(env, ppo.Config(torso=torso))  # type: ignore[arg-type]
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
            "policies": Part(policy, (timestep,), "improvement", members=n),
            "behaviors": Part(policy, (timestep,), members=n),
            "value": Part(value, (timestep,)),
            "critic": Part(critics, (timestep, action), config.optimizer, config.target),
            "model": Part(model, (timestep, action), config.model),
        },
        act=act,
        losses=descended,
        update=update,
        extra={"scores": jnp.zeros(n)},
        **more,
    )


def recipe(env: Environment, config: Config) -> Recipe:
    def model_loss(net, x):
        """Negative log-likelihood of what came next, of all models."""
        space: Any = env.observation_space
        prediction = net.model(x.timestep, x.action)
        return dynamics_loss(prediction, space, x.timestep, x.next_timestep).sum(0)

    def update(net, batch):
        net = net.minibatches(config.data.updates, batch, in_order)
        # Until improvement begins the policies are their own behavior policies.
        return net.with_params(policies=net.parts["behaviors"].params)

    of_value, of_critic = LOSSES[config.values]
    descended = {
        "value_loss": Loss(of_value, ("value",)),
        "critic_loss": Loss(of_critic, ("critic",)),
        "behaviors_loss": Loss(behaviors_loss, ("behaviors",)),
        "model_loss": Loss(model_loss, ("model",)),
    }
    extras = ("next_action", "return") if config.values == "sarsa" else ()
    needs = tuple(f"transitions.extras.{name}" for name in extras)
    return on_data(env, config, descended, update, needs=needs)


def data_alone(env: Environment, config: Config) -> Source:
    """A round's transitions [updates * batch_size] at once. Raises `UserError` for an
    environment."""
    data = config.data
    if data.num_envs or not data.name:
        raise UserError(
            "uni_o4 learns from a dataset alone: name one, and no num_envs. Online, ppo goes on "
            "from it (warm_start)."
        )
    return data.set(env, data.updates * data.batch_size)


@struct
class Outcomes:
    source: Tree
    returns: Array  # float32 [N], by the discount of this run


def with_outcomes(source: Source) -> Source:
    """`source`, a dataset, whose transitions also say in their extras what came of them:
    `next_action`, of the row after (no matter at an episode's end), and `return`, the discounted
    sum of the rewards from here to that."""

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        x = state.transitions.value
        nothing = jnp.zeros(x.reward.shape[1])
        returns = losses.discounted_returns(x.reward, x.done, nothing, hyper["discount"])
        return Outcomes(state, returns[:, 0])

    def collect(state, policy, key):
        inner, fresh, metrics = source.collect(state.source, policy, key)
        return Outcomes(inner, state.returns), fresh, metrics

    def sample(state, fresh, key):
        batch = source.sample(state.source, fresh, key)
        row = batch.index[0].reshape(-1)
        after = (row + 1) % len(state.returns)
        action = jax.tree.map(lambda x: x[after, 0], state.source.transitions.value.action)
        came = {"next_action": action, "return": state.returns[row]}
        extras = batch.transitions.extras | came
        return dataclasses.replace(
            batch, transitions=dataclasses.replace(batch.transitions, extras=extras)
        )

    return dataclasses.replace(
        source,
        init=init,
        collect=collect,
        sample=sample,
        feedback=lambda state, batch, feedback: dataclasses.replace(
            state, source=source.feedback(state.source, batch, feedback)
        ),
        partition=Outcomes(source.partition, REPLICATED),
    )


def source(env: Environment, config: Config) -> Source:
    """The data, with what came of each action where that is learned from. Raises `UserError` as
    `data_alone`."""
    data = data_alone(env, config)
    return with_outcomes(data) if config.values == "sarsa" else data


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` for an action space without a policy head, and for observations that are
    not one box of numbers."""
    check_action_space(env.action_space, name)
    if not isinstance(env.observation_space, Box):
        raise UserError(
            f"{name} learns a model of observations that are one Box; those of '{env.name}' are "
            f"{env.observation_space!r}."
        )


uni_o4 = AlgorithmBuilder(
    "uni_o4", Config, recipe, source, lambda config: 1, check
)  # a round at once

TINY = {
    "env": "pendulum",
    "data.name": "random",
    "data.size": 256,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "torso.hidden": (8,),
    "model_hidden": (8,),
    "num_policies": 2,
    "num_models": 2,
}
