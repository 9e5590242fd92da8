"""Actor-critics that learn offline from rollouts of a learned model: settings, the source, and a
recipe around a soft actor-critic's.

The model is that of `dynamics_model`, which is trained first (`--warm-start`) and is frozen here.
Its ensemble draws each step by a random member of those with the smallest error on held-out
transitions. Observations are standardized by the data's moments, which are frozen too, for the
model and for the actor-critic; rewards for the model alone.

    @group
    class Config(InModel, edac.Config):
        ...

    def recipe(env, config):
        return in_model(edac.recipe(env, config), env, config)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Policy, Source, TimeStep, Tree, struct
from jaxrl.kit import Net, Part, Recipe, group, static
from jaxrl.kit.groups import Optimizer
from jaxrl.kit.normalization import Moments, no_moments
from jaxrl.networks.rewarded_dynamics import RewardedDynamics, StepPrediction, draw_step
from jaxrl.sources.dataset import mixed
from jaxrl.sources.imagined import (
    ImaginedStep,
    follow,
    imagined_rollouts,
    label,
    true_step,
)
from jaxrl.sources.replay import replay

CLIP = 10.0  # bound of standardized observations
STEP = "imagined"  # the extra that says where the model would lead


@group
class Ensemble:
    """Sizes of the model; the same in both phases."""

    hidden: tuple[int, ...] = static((200, 200, 200, 200), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of each member. Four of 200: authors' code of MOPO."""
    members: int = static(7, low=1, high=MANY)
    """Number of members of the ensemble. 7: authors' code of MOPO."""


@group
class Branches:
    """Rollouts of the model that branch from the data."""

    starts: int = static(256, low=1, high=MANY)
    """Number of states of the data at which rollouts begin in each round."""
    horizon: int = static(5, low=1, high=MANY)
    """Number of steps of a rollout."""
    rounds: int = static(10, low=1, high=MANY)
    """Number of rounds whose rollouts are kept."""
    real_share: float = static(0.05, low=0, below=1)
    """Fraction of each batch that is from the data. 0.05: authors' code of MOPO."""
    elites: int = static(5, low=1, high=MANY)
    """Number of members that draw steps: those with the smallest held-out error. 5: authors' code
    of MOPO."""
    ends: str = static("learned", choices=("learned", "known"))
    """Ends of tasks in rollouts: those that the model predicts (learned), or the rule of the
    environment (known)."""
    dynamics: str = static("learned", choices=("learned", "true"))
    """Dynamics of rollouts: the model's (learned), or as a diagnosis the environment's (true), with
    its rewards and ends, without elites and penalties."""


@group
class InModel:
    """Settings of what learns from rollouts of a model beside its dataset."""

    model: Ensemble = Ensemble()
    branches: Branches = Branches()


@struct
class Fit:
    """Scale and errors of a model, beside its parameters."""

    scale: Moments
    """Moments of the data's observations and rewards: [D + 1]."""
    error: Array
    """Running mean squared error of each member on held-out transitions, standardized: [E]."""


@struct
class Imagined:
    """Step of a model from time steps [B], in the environment's units."""

    change: Array
    """Change of the observation: [B, D]."""
    reward: Array
    """Reward, less the penalty: [B]."""
    ended: Array
    """True where the task ends: bool [B]."""
    penalty: Array
    """Penalty for uncertainty, unweighted: [B]."""
    mean: Array
    """Means of all members, standardized: [B, D + 1, E]."""
    scale: Array
    """Standard deviations of all members, standardized: [B, D + 1, E]."""


class Penalty(Protocol):
    """A penalty for the uncertainty of a model."""

    def __call__(self, mean: Array, scale: Array, /) -> Array:
        """Return the penalty of each prediction, [B].

        mean, scale: of the members' Gaussians, [B, D + 1, E].
        """
        ...


class Draw(Protocol):
    """A choice of what follows by the predictions of an ensemble."""

    def __call__(
        self,
        net: Net,
        timestep: TimeStep,
        action: Tree,
        prediction: StepPrediction,
        elites: Array,
        key: Key,
        /,
    ) -> tuple[Array, Array]:
        """Return the standardized change of the observation and the reward, [B, D + 1], and whether
        the task ends, bool [B].

        net: parts. timestep: standardized, [B]. action: [B]. elites: members, int32 [K].
        """
        ...


# Penalties by name. All dimensions count alike, in standard deviations of the data.
PENALTIES: dict[str, Penalty] = {
    "none": lambda mean, scale: jnp.zeros(mean.shape[:-2]),
    "max_aleatoric": lambda mean, scale: losses.max_aleatoric(scale),
    "max_pairwise_difference": lambda mean, scale: losses.max_pairwise_difference(mean),
    "ensemble_variance": losses.ensemble_variance,
    "ensemble_deviation": losses.ensemble_deviation,
    "leave_one_out_kl": lambda mean, scale: losses.leave_one_out_kl(mean, scale).mean(-1),
}


def is_fallen(x: Array, params: Any) -> Array:
    """Return whether a hopper with observations [B, D] has fallen, bool [B]."""
    height, tilt = x[..., 0], jnp.abs(x[..., 1])
    fallen = (height <= params.min_height) | (height >= params.max_height)
    return fallen | (tilt >= params.max_tilt)


# Ends that environments have, by their names: observations [B, D] and parameters -> bool [B].
ENDS: dict[str, Callable[[Array, Any], Array]] = {
    "pendulum": lambda x, params: jnp.zeros(x.shape[:-1], bool),
    "hopper": is_fallen,
}


def standardize(scale: Moments, timestep: TimeStep) -> TimeStep:
    """Return time steps with standardized observations, at most `CLIP` from 0."""
    observation = timestep.observation
    flat = (*observation.shape[: timestep.reward.ndim], -1)
    x = (observation.reshape(flat) - scale.mean[:-1]) / scale.deviation[:-1]
    x = jnp.clip(x, -CLIP, CLIP).reshape(observation.shape)
    return dataclasses.replace(timestep, observation=x)


def standardized_change(scale: Moments, timestep: TimeStep, after: TimeStep) -> Array:
    """Return what a model is to predict of what came after time steps [B]: the standardized change
    of the observation and the standardized reward, [B, D + 1]."""
    flat = (*timestep.reward.shape, -1)
    change = (after.observation - timestep.observation).reshape(flat) / scale.deviation[:-1]
    reward = (after.reward - scale.mean[-1]) / scale.deviation[-1]
    return jnp.concatenate([change, reward[..., None]], -1)


def observation_size(env: Environment) -> int:
    """Return the number of dimensions of an observation."""
    space: Any = env.observation_space
    return int(np.prod(space.shape))


def model_part(env: Environment, model: Ensemble, optimizer: Optimizer | None = None) -> Part:
    """Return the model as a part, which no loss descends without an optimizer."""
    space: Any = env.observation_space
    network = RewardedDynamics(space, env.action_space, model.hidden, model.members)
    action = spaces.example(env.action_space)[None]
    return Part(network, (example_timestep(env), action), optimizer)


def first_fit(env: Environment, model: Ensemble) -> Fit:
    """Return the fit of a model that has learned nothing."""
    return Fit(no_moments((observation_size(env) + 1,)), jnp.zeros(model.members))


def best_members(error: Array, count: int) -> Array:
    """Return the `count` members with the smallest errors [E], int32 [count]."""
    return jnp.argsort(error)[:count]


def draw_by_elite(net, timestep, action, prediction, elites, key):
    """Draw what follows from a random member of the elites."""
    return draw_step(prediction, elites, key)


def in_model(
    plain: Recipe,
    env: Environment,
    config: Any,
    *,
    penalty: str = "none",
    draw: Draw = draw_by_elite,
    parts: tuple[str, ...] = (),
) -> Recipe:
    """Let a recipe of an actor-critic learn from rollouts of the model, and show it observations
    that are standardized by the data's moments.

    The policy says where the model would lead (`STEP`), which the source reads. In a warm start the
    model and its fit are taken over, and nothing else.

    plain: its update keeps nothing in `net.extra`.
    config: settings with `InModel`, and `penalty_weight` where there is a penalty.
    penalty: one of `PENALTIES`, which is subtracted from the rewards of rollouts.
    draw: what follows, by the predictions.
    parts: further frozen parts of `plain` that are taken over with the model.
    """
    uncertainty = PENALTIES[penalty]

    def imagine(net: Net, timestep: TimeStep, action: Tree, key: Key) -> Imagined:
        """Return where the model leads from standardized time steps [B]."""
        prediction = net.model(timestep, action)
        elites = best_members(net.extra.error, config.branches.elites)
        drawn, ended = draw(net, timestep, action, prediction, elites, key)
        mean, scale = prediction.members_last()
        moments = net.extra.scale
        reward = moments.mean[-1] + moments.deviation[-1] * drawn[..., -1]
        doubt = uncertainty(mean, scale)
        if penalty != "none":
            reward = losses.pessimistic_reward(reward, doubt, net.hyper.penalty_weight)
        change = moments.deviation[:-1] * drawn[..., :-1]
        return Imagined(change, reward, ended, doubt, mean, scale)

    def act(net, timestep, memory, key, greedy):
        act_key, key = jax.random.split(key)
        seen = standardize(net.extra.scale, timestep)
        action, memory, extras = plain.act(net, seen, memory, act_key, greedy)
        if greedy:
            return action, memory, extras
        return action, memory, {**extras, STEP: imagine(net, seen, action, key)}

    def update(net, batch):
        x = batch.transitions
        see = lambda timestep: standardize(net.extra.scale, timestep)
        x = dataclasses.replace(x, timestep=see(x.timestep), next_timestep=see(x.next_timestep))
        return plain.update(net, dataclasses.replace(batch, transitions=x))

    def adopt(state, other):
        taken = {
            name: dataclasses.replace(state.parts[name], params=other.parts[name].params)
            for name in ("model", *parts)
        }
        return dataclasses.replace(state, parts=state.parts | taken, extra=other.extra)

    return dataclasses.replace(
        plain,
        parts={**plain.parts, "model": model_part(env, config.model)},
        act=act,
        update=update,
        extra=first_fit(env, config.model),
        adopt=adopt,
    )


def model_step(env: Environment, ends: str) -> ImaginedStep:
    """Return the step of a policy in the model that it holds.

    ends: as in `Branches`.
    """
    known = ENDS[env.name] if ends == "known" else None

    def step(policy: Policy, timestep: TimeStep, key: Key) -> tuple[Tree, TimeStep]:
        memory = policy.memory(len(timestep.reward))
        action, _, extras = policy.act(policy.state, timestep, memory, key, False)
        led: Imagined = extras[STEP]
        after = follow(timestep, led.change, led.reward, led.ended)
        if known is not None:
            after = dataclasses.replace(after, terminated=known(after.observation, env.params))
        return spaces.clip(env.action_space, action), after

    return step


def model_source(env: Environment, config: Any) -> Source:
    """Return the source of batches of which `real_share` is from the dataset and the rest from the
    last rounds of rollouts. A round is collected before every `data.updates` gradient steps, which
    count as steps."""
    data, branches = config.data, config.branches
    step = true_step(env) if branches.dynamics == "true" else model_step(env, branches.ends)
    rounds = imagined_rollouts(
        data.dataset(env, branches.starts), step, branches.horizon, env_steps=data.updates
    )
    real = real_rows(config)
    shards = data.num_shards
    kept = branches.rounds * branches.horizon * branches.starts
    online = replay(rounds, kept, data.batch_size - real, num_shards=shards)
    if not real:
        return online
    return mixed(label(data.dataset(env, real), True), online, shards)


def real_rows(config: Any) -> int:
    """Return how many transitions of a batch are from the dataset."""
    shards, share = config.data.num_shards, config.branches.real_share
    return round(share * config.data.batch_size / shards) * shards


def check_model(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for observations that are not one box of real numbers, and for an
    environment beside the dataset."""
    check_observations(env, name)
    config.data.check_alone(name, "it plays in a model")


def check_observations(env: Environment, name: str) -> None:
    """Raise `UserError` for observations that are not one box of real numbers."""
    space = env.observation_space
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(
            f"{name} learns a model of observations that are one box of real numbers; those of "
            f"'{env.name}' are {space!r}."
        )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `check_model`, unless actions are one bounded box, for settings of
    rollouts that do not fit the data, the ensemble or the environment, and for running
    statistics of observations, which rollouts would move away from the model's."""
    soft.check(env, config, name)
    check_model(env, config, name)
    branches, members = config.branches, config.model.members
    if branches.elites > members:
        raise UserError(
            f"branches.elites is {branches.elites}; the model has only {members} members."
        )
    if branches.ends == "known" and env.name not in ENDS:
        raise UserError(
            f"branches.ends is 'known', but there is no rule for '{env.name}', only for "
            f"{', '.join(sorted(ENDS))}; say 'learned'."
        )
    if branches.dynamics == "true":
        true_step(env)
        if branches.ends == "known":
            raise UserError(
                "branches.ends is 'known', but with branches.dynamics 'true' ends are those of the "
                "environment anyway; leave it out."
            )
    if getattr(config, "normalization", None) and config.normalization.observation:
        raise UserError(
            f"normalization.observation is on, but {name} standardizes observations by the data's "
            "moments; turn it off."
        )
    if real_rows(config) >= config.data.batch_size:
        raise UserError(
            f"branches.real_share is {branches.real_share}; in a batch of "
            f"{config.data.batch_size}, at least one transition must be from a rollout."
        )


# The smallest settings.
TINY_MODEL = TINY_DATA | {"env": "pendulum", "model.hidden": (8,), "members": 2}
TINY = TINY_MODEL | {
    "torso.hidden": (8,),
    "starts": 4,
    "horizon": 2,
    "rounds": 2,
    "elites": 1,
    "real_share": 0.5,
}
