"""Decision diffuser (Ajay, Du, Gupta, Tenenbaum, Jaakkola and Agrawal, 2023, "Is conditional
generative modeling all you need for decision-making?", arXiv:2211.15657): plans are samples of a
diffusion model of observations alone, and an inverse dynamics model tells the actions between them.

The model is told the return of a trajectory, or one constraint that it satisfies, and in a part of
the cases nothing. Plans are guided without a classifier: the noise predicted without a condition,
plus `guidance` times the difference that each condition makes (equation 9). Several conditions are
composed by adding their differences, though training has shown one at a time. Plans begin at the
current observation, which is put back at every step, and steps have less noise than those of the
diffusion (`temperature`).

Constraints are boxes: a trajectory satisfies one if all of its observations lie between two values
in one dimension (`regions`). The paper's are relations of blocks, and gaits as skills. Returns are
scaled to the range of the data; with `returns` as plan they are mean rewards of the plan, where the
paper has those of the rest of the episode. The network is a temporal convolution without the
authors' U-shape, and does not see earlier observations.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import diffusion, losses
from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.chunks import (
    check_plans,
    follow_plan,
    no_plan,
    rows_within_episodes,
    take_rows,
)
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.algorithms.diffusion.shared.policies import action_size, from_units, to_units
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.algorithms.offline.shared.inverse_dynamics import InverseDynamics
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Environment, Key, Source, TimeStep, Transition
from jaxrl.diffusion import Hooks, VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target, Torso
from jaxrl.networks import encoders
from jaxrl.networks.denoisers import TrajectoryDenoiser

BOUND = 5.0  # of predicted observations, which are standardized
FARTHEST = 1e9  # of a region's ends
CONDITIONS = ("return", "regions")
RETURNS = ("episode", "plan")
CONDITION = "condition"  # the extra that says of each step what the model may be told


@group
class Config:
    """Settings of decision diffuser: plans of observations by a conditional diffusion model, and
    inverse dynamics (arXiv:2211.15657)."""

    data: Data = Data(batch_size=32)
    optimizer: Optimizer = Optimizer(learning_rate=2e-4)
    """Optimizer settings of the denoiser. Adam, 2e-4: authors' code."""
    inverse: Optimizer = Optimizer(learning_rate=2e-4)
    """Optimizer settings of the inverse dynamics model. Adam, 2e-4: authors' code."""
    torso: Torso = Torso(hidden=(256, 256), activation="relu")
    """Hidden layers of the inverse dynamics model."""
    average: Target = Target(rate=0.005)
    """Running average of both networks, which plan. Decay 0.995: authors' code."""
    normalization: Normalization = Normalization(observation=True)

    horizon: int = static(32, low=2)
    """Number of observations in a plan."""
    execute: int = static(1, low=1)
    """Number of actions of a plan that are followed."""
    levels: int = static(20, low=1)
    """Number of denoising steps."""
    width: int = static(64, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(4, low=1)
    """Number of residual blocks of the denoiser, whose reach doubles."""
    condition: str = static("return", choices=CONDITIONS)
    """Condition that plans are told: their return, or regions that they stay in."""
    returns: str = static("episode", choices=RETURNS)
    """Return of a trajectory: of the rest of its episode, or its mean reward (plan)."""
    discount: float = static(0.99, low=0, high=1)
    """Discount factor per step of returns."""
    regions: tuple[float, ...] = static((), low=-FARTHEST, high=FARTHEST)
    """Regions of observations, three numbers each: dimension, least and largest value."""
    satisfy: tuple[int, ...] = static((), low=0, high=MANY)
    """Numbers of the regions that plans are to stay in together; empty for all."""
    wanted_return: float = hyper(0.9, low=0, high=1)
    """Return that plans are asked for, from 0 (least in the data) to 1 (largest). 0.9: authors'
    code."""
    drop: float = hyper(0.25, low=0, high=1)
    """Probability that the model is told nothing in training. 0.25: authors' code."""
    guidance: float = hyper(1.2, low=0)
    """Weight of each condition's difference; 0 for none, 1 for the conditional model. 1.2: authors'
    code."""
    temperature: float = hyper(0.5, low=0, high=1)
    """Factor on the standard deviation of the noise when planning. 0.5: authors' code."""


def condition_size(config: Config) -> int:
    """Return the number of numbers that the model is told: a return and whether it is known, or a
    flag for each region."""
    return 2 if config.condition == "return" else len(config.regions) // 3


def training_conditions(key: Key, known: Array, drop: Array, kind: str) -> Array:
    """Return what the model is told [B, C] of trajectories in training, zeros for nothing.

    known: scaled returns [B, 1], or which regions each satisfies, 0 or 1, [B, K], of which one is
        told.
    """
    choice_key, drop_key = jax.random.split(key)
    if kind == "return":
        said = jnp.concatenate([known, jnp.ones_like(known)], -1)
    else:
        one = jax.random.categorical(choice_key, jnp.where(known > 0, 0.0, -jnp.inf))
        # Without a satisfied region the choice is void, and nothing is told.
        said = jax.nn.one_hot(one, known.shape[-1]) * (known > 0)
    dropped = jax.random.uniform(drop_key, known.shape[:1]) < drop
    return jnp.where(dropped[:, None], 0.0, said)


def wanted_conditions(config: Config, wanted_return: Array) -> Array:
    """Return the conditions [K, C] that plans are to satisfy together."""
    if config.condition == "return":
        return jnp.stack([wanted_return, jnp.ones(())])[None]
    count = condition_size(config)
    return jnp.eye(count)[np.asarray(config.satisfy or range(count))]


def recipe(env: Environment, config: Config) -> Recipe:
    space, moves, horizon = env.action_space, action_size(env.action_space), config.horizon
    process = VariancePreserving(config.levels, "cosine", axes=2)
    see = lambda timestep: encoders.flatten(env.observation_space, timestep.observation)
    seen = see(example_timestep(env)).shape[-1]
    size = condition_size(config)
    known = jnp.asarray(np.arange(horizon) == 0)[:, None]

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Predict the noise in the observations of a window but the first, given its condition."""
        rows = rows_within_episodes(x, 0)
        clean = jnp.moveaxis(take_rows(see(x.timestep), rows), 0, 1)
        each = take_rows(x.extras[CONDITION], rows)
        # A return belongs to the window's first step; a region holds if all steps lie in it.
        held = each[0] if config.condition == "return" else each.min(0)
        condition = training_conditions(net.key("told"), held, net.hyper.drop, config.condition)
        noised = process.add_noise(net.key("noise"), clean)
        noisy = diffusion.inpaint(noised.noisy, clean, known)
        output = net.denoiser(noisy, noised.level, condition)
        error = losses.prediction_error(output, noised.target)[:, 1:].mean(-1)
        return jnp.broadcast_to(error, x.reward.shape)

    @loss("inverse")
    def inverse_loss(net, x):
        """Predict the action between two observations."""
        both = jnp.concatenate([see(x.timestep), see(x.next_timestep)], -1)
        found = to_units(space, net.inverse(both).mode())
        return losses.prediction_error(found, to_units(space, x.action))

    def make_plan(net: Net, timestep: TimeStep, key: Key) -> Array:
        """Return actions [B, H - 1, A] between the observations of plans."""
        conditions = wanted_conditions(config, net.hyper.wanted_return)
        each = jnp.concatenate([jnp.zeros((1, size)), conditions])[:, None]
        batch = timestep.reward.shape[0]
        begin = jnp.zeros((batch, horizon, seen)).at[:, 0].set(see(timestep))

        def predict(noisy, level):
            count = len(each)
            wide = lambda x: jnp.broadcast_to(x, (count, *x.shape))
            condition = jnp.broadcast_to(each, (count, batch, size))
            found = net.target.denoiser(wide(noisy), wide(level), condition)
            others = jnp.moveaxis(found[1:], 0, -1)
            return diffusion.compose_scores(found[0], others, net.hyper.guidance)

        start_key, key = jax.random.split(key)
        hooks = Hooks(
            known=lambda x: diffusion.inpaint(x, begin, known),
            bound=BOUND,
            temperature=net.hyper.temperature,
        )
        start = net.hyper.temperature * jax.random.normal(start_key, begin.shape)
        plan = process.sample(key, predict, begin.shape, hooks=hooks, start=start)
        both = jnp.concatenate([plan[:, :-1], plan[:, 1:]], -1)
        return to_units(space, net.target.inverse(both).mode())

    def act(net, timestep, memory, key, greedy):
        plan = lambda timestep, past, key: make_plan(net, timestep, key)
        now = see(timestep)
        action, memory = follow_plan(
            plan, timestep, memory, key, features=now, execute=config.execute
        )
        return from_units(space, action), memory, {}

    inputs = jnp.zeros((1, horizon, seen)), jnp.ones(1), jnp.zeros((1, size))
    network = TrajectoryDenoiser(seen, config.width, config.blocks)
    torso = config.torso
    inverse = InverseDynamics(space, torso.hidden, torso.activation, torso.initializer)
    return Recipe(
        parts={
            "denoiser": Part(network, inputs, config.optimizer, config.average),
            "inverse": Part(inverse, (jnp.zeros((1, 2 * seen)),), config.inverse, config.average),
        },
        act=act,
        losses=(denoiser_loss, inverse_loss),
        memory=lambda n: no_plan(n, horizon - 1, moves, 0, seen),
        needs=(f"transitions.extras.{CONDITION}",),
    )


def scaled_returns(x: Transition, config: Config) -> np.ndarray:
    """Return the returns [N] of a dataset's steps [N], from 0 (least) to 1 (largest)."""
    reward, done = np.asarray(x.reward, np.float64), np.asarray(x.done)
    length, rate = len(reward), config.discount
    if config.returns == "episode":
        found, later = np.zeros(length), 0.0
        for i in reversed(range(length)):
            later = reward[i] + rate * (0.0 if done[i] else later)
            found[i] = later
    else:
        total, weight, alive = np.zeros(length), np.zeros(length), np.ones(length)
        for k in range(config.horizon):
            there = np.minimum(np.arange(length) + k, length - 1)
            alive = alive * (np.arange(length) + k < length)
            total += rate**k * alive * reward[there]
            weight += rate**k * alive
            alive = alive * ~done[there]
        found = total / weight
    return (found - found.min()) / max(found.max() - found.min(), 1e-8)


def within_regions(x: Transition, config: Config) -> np.ndarray:
    """Return in which regions the observations of steps [N] lie, 0 or 1, [N, K]."""
    seen = np.asarray(x.observation).reshape(len(x.reward), -1)
    regions = np.asarray(config.regions).reshape(-1, 3)
    inside = [(low <= seen[:, int(d)]) & (seen[:, int(d)] <= high) for d, low, high in regions]
    return np.stack(inside, -1).astype(np.float32)


def source(env: Environment, config: Config) -> Source:
    """Return windows [H, B] of the dataset, and of each step what the model may be told."""
    data, steps = config.data, config.data.steps(env)
    if config.condition == "return":
        known = scaled_returns(steps, config)[:, None].astype(np.float32)
    else:
        known = within_regions(steps, config)
    steps = dataclasses.replace(steps, extras=steps.extras | {CONDITION: known})
    return data.windows(steps, data.batch_size, config.horizon)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, plans are longer than they are
    followed, there is a dataset alone, and regions are dimensions of the observation with a least
    and a largest value."""
    policies.check(env, config, name)
    check_plans(config, name)
    if config.execute >= config.horizon:
        raise UserError(
            f"execute is {config.execute}; a plan of {config.horizon} observations (horizon) has "
            "one action fewer."
        )
    if config.condition != "regions":
        return
    count, regions = len(config.regions), np.asarray(config.regions)
    if not count or count % 3:
        raise UserError(
            f"regions has {count} numbers; each region has three: dimension, least and largest "
            "value."
        )
    size = encoders.flatten(env.observation_space, example_timestep(env).observation).shape[-1]
    dimension, low, high = regions.reshape(-1, 3).T
    if ((dimension != np.round(dimension)) | (dimension < 0) | (dimension >= size)).any():
        raise UserError(
            f"regions are of dimensions 0 to {size - 1} of the observation, not "
            f"{', '.join(f'{d:g}' for d in dimension)}."
        )
    if (low >= high).any():
        raise UserError("The least value of each region must be below its largest value.")
    if max(config.satisfy, default=0) >= count // 3:
        raise UserError(f"satisfy has {max(config.satisfy)}; regions are 0 to {count // 3 - 1}.")


decision_diffuser = AlgorithmBuilder("decision_diffuser", Config, recipe, source, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "torso.hidden": (8,),
    "horizon": 4,
    "execute": 2,
    "levels": 2,
    "width": 8,
    "blocks": 1,
}
