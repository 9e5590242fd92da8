"""Planning by gradients through a learned model (S V, Jalagam, LeCun and Sobal, 2023,
"Gradient-based planning with world models", arXiv:2312.17227): in each step the first action of a
sequence whose predicted return was climbed by its gradient through the model. The rest of the
sequence begins the next plan.

Other planners (`planner.how`) search with as many calls of the model. With `begin=policy`, the
paper's hybrid, a search begins around the actions of a policy in the model; the policy climbs the
same predicted return, from all states of the replay.

The model is an ensemble in the space of observations, learned online from what the plans led to,
and predicts by the mean of its members. (The paper's is a recurrent one of images.) The formulas
were not compared with the authors' code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.soft import Replayed
from jaxrl.algorithms.planning.shared.planners import Planner, make_plan, shift
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, TimeStep, Transition, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Replay, Torso
from jaxrl.networks import encoders
from jaxrl.networks.critics import DeterministicActor
from jaxrl.networks.heads import check_bounded, scale
from jaxrl.networks.rewarded_dynamics import RewardedDynamics


@group
class Config(Replayed):
    """Settings of planning by gradients through a model that is learned online
    (arXiv:2312.17227)."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    planner: Planner = Planner()
    torso: Torso = Torso(hidden=(200, 200), activation="silu")
    """Hidden layers of each member of the model, and of the policy."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of model and policy, separately."""
    normalization: Normalization = Normalization(observation=True)

    members: int = static(3, low=1, high=MANY)
    """Number of members of the model, whose mean is planned with."""
    horizon: int = static(15, low=1, high=MANY)
    """Number of actions in a plan."""
    begin: str = static("plan", choices=("plan", "policy"))
    """First guess of a plan: the rest of the last one (plan), or a policy's actions (policy)."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step of a plan."""
    exploration_noise: float = hyper(0.1, low=0)
    """Standard deviation of the noise on actions while learning, in half-widths of their bounds."""


def predict(net: Any, timestep: TimeStep, action: Tree) -> tuple[TimeStep, Array]:
    """Return the time steps [...] that the members' means lead to, and the rewards [...]. After an
    end nothing changes and nothing is paid."""
    prediction = net.model(timestep, action)
    mean, over = prediction.mean.mean(0), timestep.terminated
    observation = timestep.observation
    change = jnp.where(over[..., None], 0, mean[..., :-1]).reshape(observation.shape)
    ended = over | (prediction.ended.mean(0) > 0)
    after = dataclasses.replace(timestep, observation=observation + change, terminated=ended)
    return after, jnp.where(over, 0, mean[..., -1])


def recipe(env: Environment, config: Config) -> Recipe:
    space: Any = env.action_space
    observations: Any = env.observation_space
    center, half_width = scale(space)
    torso, hybrid = config.torso, config.begin == "policy"

    @loss("model")
    def model_loss(net: Net, x: Transition) -> LossOutput:
        """Compute the negative log-likelihood of the next observation, reward and end, summed over
        members."""
        prediction = net.model(x.timestep, x.action)
        before, after = (
            encoders.flatten(observations, t.observation) for t in (x.timestep, x.next_timestep)
        )
        target = jnp.concatenate([after - before, x.reward[..., None]], -1)
        ended = jnp.broadcast_to(x.terminated, prediction.ended.shape)
        each = losses.gaussian_nll(prediction.mean, prediction.log_variance, target)
        each += losses.binary_cross_entropy(prediction.ended, ended)
        error = jnp.square(prediction.mean.mean(0) - target).mean(-1)
        return LossOutput(each.sum(0), {"squared_error": error})

    @loss("policy")
    def policy_loss(net: Net, x: Transition) -> Array:
        """Compute minus the predicted return of the policy's actions over a plan's horizon."""
        return -follow_policy(net, x.timestep)[1]

    def follow_policy(net: Any, timestep: TimeStep) -> tuple[Array, Array]:
        """Return the policy's actions [H, ..., *shape] in the model and their return [...]."""

        def step(timestep, weight):
            action = net.policy(timestep)
            after, reward = predict(net, timestep, action)
            return after, (action, weight * reward)

        weights = net.hyper.discount ** jnp.arange(config.horizon)
        actions, rewards = jax.lax.scan(step, begin_plan(timestep), weights)[1]
        return actions, rewards.sum(0)

    def act(net, timestep, memory, key, greedy):
        key, noise_key = jax.random.split(key)

        def plan(key, timestep, rest):
            warm = follow_policy(net, timestep)[0] if hybrid else rest
            model = lambda state, action, key: predict(net, state, action)
            start = begin_plan(timestep)
            h = net.hyper
            return make_plan(
                key,
                model,
                start,
                config.horizon,
                space,
                config.planner,
                warm=warm,
                discount=h.discount,
            )

        keys = jax.random.split(key, len(timestep.reward))
        found = jax.vmap(plan)(keys, timestep, memory)
        action = found.actions[:, 0]
        if not greedy:
            noise = jax.random.normal(noise_key, action.shape)
            action = action + net.hyper.exploration_noise * half_width * noise
        return spaces.clip(space, action), jax.vmap(shift)(found.actions), {}

    example = example_timestep(env)
    model = RewardedDynamics(
        observations, space, torso.hidden, config.members, torso.activation, torso.initializer
    )
    parts = {"model": Part(model, (example, spaces.example(space)[None]), config.optimizer)}
    descended = (model_loss,)
    if hybrid:
        policy = DeterministicActor(
            observations, space, torso.hidden, torso.activation, torso.initializer
        )
        parts["policy"] = Part(policy, (example,), config.optimizer)
        descended = (model_loss, policy_loss)
    middle = jnp.broadcast_to(jnp.asarray(center), (config.horizon, *center.shape))
    return Recipe(
        parts=parts,
        act=act,
        losses=descended,
        memory=lambda n: jnp.broadcast_to(middle, (n, *middle.shape)),
    )


def begin_plan(timestep: TimeStep) -> TimeStep:
    """Return time steps [...] as the first of a plan, which nothing has ended."""
    return dataclasses.replace(timestep, terminated=jnp.zeros_like(timestep.terminated))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and observations one box of real
    numbers, and for more elites than candidates."""
    check_bounded(env.action_space, name)
    space, planner = env.observation_space, config.planner
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(
            f"{name} learns a model of observations that are one box of real numbers; those of "
            f"'{env.name}' are {space!r}."
        )
    if planner.how == "cem" and planner.elites > planner.candidates:
        raise UserError(
            f"planner.elites is {planner.elites}; there are only {planner.candidates} candidates."
        )


gradient_planning = AlgorithmBuilder("gradient_planning", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 8,
    "hidden": (8,),
    "members": 2,
    "horizon": 3,
    "candidates": 4,
    "iterations": 2,
    "begin": "policy",
}
