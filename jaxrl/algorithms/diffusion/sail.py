"""SAIL (Luo et al., 2025, "Self-adapting improvement loops for robotic learning",
arXiv:2506.06658): a planner is fine-tuned on what it did itself, while a general model lends it
what it has not seen.

Two diffusion models of trajectories are conditioned on the task. The general one was trained on
much that is not of this domain, and is frozen; the one of the domain was trained on few tasks.
Plans for tasks that it has not seen are samples of both, composed (inverse probabilistic
adaptation; Luo et al., 2025, "Solving new tasks by adapting internet video knowledge", and its
published code), in which the general model leads:

    noise = general() + w (mix - general()),  mix = (general(c) + strength own(c)) / (1 + strength)

where () is without a task. An inverse dynamics model tells the actions between the states of a
plan. The domain's model goes on learning from its demonstrations and from played windows in which
the goal is reached: of a long episode only its end, where the paper keeps whole trajectories.

The paper's models make videos of what a text asks for, and the general one knows the videos of the
web. Here they make sequences of positions and velocities for a goal. The general model has seen
all goals of the maze, but of a ball with another force (`foreign_gear`); the demonstrations of the
domain are of half of the goals, those on the left, and what is played is of the others. The code
does not divide the mix by 1 + strength. That all models learn in the same run, the general one
before the loop begins (`pretraining`), is a choice of ours.
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
    check_length,
    follow_plan,
    no_plan,
    rows_within_episodes,
    take_rows,
)
from jaxrl.algorithms.diffusion.shared.data import demonstrations
from jaxrl.algorithms.diffusion.shared.policies import action_size, from_units, to_units
from jaxrl.algorithms.offline.shared.inverse_dynamics import InverseDynamics, keep
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Batch, Environment, Key, Source, TimeStep, Transition
from jaxrl.diffusion import Hooks, VariancePreserving
from jaxrl.envs.planar.point_maze import Params
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Target, Torso
from jaxrl.networks.denoisers import TrajectoryDenoiser
from jaxrl.sources.dataset import dataset, mixed
from jaxrl.sources.imagined import label
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts

STATE = 4  # numbers of position and velocity
FASTEST = 5.0  # m/s that count as 1
FOREIGN, SHOWN, PLAYED = range(3)  # origins of trajectories


@group
class Data:
    """Trajectories of the general model, demonstrations of the domain, and what is played."""

    size: int = static(20_000, low=1, high=MANY)
    """Number of steps that the general model learns from."""
    shown: int = static(2_000, low=1, high=MANY)
    """Number of demonstrated steps of the domain."""
    foreign_gear: float = static(0.5, above=0)
    """Factor on the force of the ball that the general model has seen."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of both datasets."""
    batch_size: int = static(32, low=1, high=MANY)
    """Number of windows of each of the three origins in a gradient step."""
    num_envs: int = static(16, low=1, high=MANY)
    """Number of environments that run in parallel."""
    num_steps: int = static(32, low=1, high=MANY)
    """Steps of each environment between two groups of updates."""
    updates: int = static(64, low=1)
    """Number of updates after each of these."""
    capacity: int = static(50_000, low=1)
    """Number of played steps that are kept."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of batches and environments."""

    def source(self, env: Environment, horizon: int) -> Source:
        """Return windows [horizon, 3 n]: foreign, demonstrated, and played for the goals that are
        not demonstrated; the extra `origin` says which."""
        left, right = split_goals(env)
        gear = self.foreign_gear * env.params.gear
        foreign = dataclasses.replace(env, params=dataclasses.replace(env.params, gear=gear))
        shards = self.num_shards

        def windows(env: Environment, size: int, name: str, origin: int) -> Source:
            steps = demonstrations(env, size, self.seed)
            options: dict[str, Any] = {"updates": self.updates, "num_shards": shards}
            fixed = dataset(steps, self.batch_size, horizon, name=name, **options)
            return label(fixed, origin, "origin")

        shown = mixed(
            windows(foreign, self.size, "foreign", FOREIGN),
            windows(left, self.shown, "demonstrations", SHOWN),
            shards,
        )
        collected = rollouts(right, self.num_envs, self.num_steps)
        warmup = self.num_envs * horizon
        ring = replay(
            collected, self.capacity, self.batch_size, horizon, warmup=warmup, num_shards=shards
        )
        return mixed(shown, label(ring, PLAYED, "origin"), shards)


@group
class Config:
    """Settings of SAIL: a planner composed with a general one, in a loop of what it plays
    (arXiv:2506.06658)."""

    data: Data = Data()
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of both denoisers and of inverse dynamics, separately."""
    average: Target = Target(rate=0.01)
    """Running averages of the domain's denoiser and of inverse dynamics, which plan."""
    torso: Torso = Torso(hidden=(128, 128), activation="relu")
    """Hidden layers of inverse dynamics."""

    horizon: int = static(32, low=2)
    """Number of states in a plan."""
    execute: int = static(8, low=1)
    """Number of actions of a plan that are followed."""
    levels: int = static(10, low=1)
    """Number of denoising steps."""
    width: int = static(32, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(3, low=1)
    """Number of residual blocks of a denoiser, whose reach doubles."""
    composed: bool = True
    """Compose plans with the general model; off for the domain's model alone."""
    filtered: bool = True
    """Learn only from played windows in which the goal is reached; off for all."""
    pretraining: float = hyper(1_000.0, low=0)
    """Gradient steps of the general model, in which nothing played is learned from."""
    strength: float = hyper(1.0, low=0)
    """Weight of the domain's model beside the general one."""
    guidance: float = hyper(1.5, low=0)
    """Weight w of the task; 1 for the conditional models."""
    drop: float = hyper(0.25, low=0, high=1)
    """Probability that a model is told no task in training."""


def split_goals(env: Environment) -> tuple[Environment, Environment]:
    """Return the maze with the goal cells on the left, and with the others."""
    p = env.params
    cells = np.unique(np.asarray(p.goals)[: int(p.num_goals)])
    cells = cells[np.argsort(cells % p.walls.shape[1], kind="stable")]
    half = len(cells) // 2

    def only(own: np.ndarray) -> Environment:
        goals = np.resize(own, p.goals.shape).astype(np.int32)
        params = dataclasses.replace(p, goals=goals, num_goals=len(own))
        return dataclasses.replace(env, params=params)

    return only(cells[:half]), only(cells[half:])


def compose(
    general: Array, blank: Array, own: Array, strength: Array | float, guidance: Array | float
) -> Array:
    """Return the composed prediction [...] of the general model and the domain's `own`, both told
    the task, and of the general model without one, `blank`."""
    mix = (general + strength * own) / (1 + strength)
    return diffusion.classifier_free_guidance(mix, blank, guidance)


def recipe(env: Environment, config: Config) -> Recipe:
    space, moves, horizon = env.action_space, action_size(env.action_space), config.horizon
    half = max(env.params.walls.shape) / 2 * float(env.params.cell)
    units = jnp.asarray([half, half, FASTEST, FASTEST])
    process = VariancePreserving(config.levels, "cosine", axes=2)
    known = jnp.asarray(np.arange(horizon) == 0)[:, None]
    told = lambda goal: jnp.concatenate([goal / half, jnp.ones_like(goal[..., :1])], -1)

    def denoising_error(net: Net, x: Transition, part: str) -> Array:
        """Return the error [H, B] of a denoiser at the windows [H, B]."""
        clean = take_rows(x.observation / units, rows_within_episodes(x, 0))
        clean = jnp.moveaxis(clean, 0, 1)
        noise_key, drop_key = net.key(part), net.key(f"{part} drop")
        noised = process.add_noise(noise_key, clean)
        dropped = jax.random.uniform(drop_key, clean.shape[:1]) < net.hyper.drop
        task = jnp.where(dropped[:, None], 0.0, told(x.timestep.goal[0]))
        noisy = diffusion.inpaint(noised.noisy, clean, known)
        output = getattr(net, part)(noisy, noised.level, task)
        error = losses.prediction_error(output, noised.target)[:, 1:].mean(-1)
        return jnp.broadcast_to(error, x.reward.shape)

    @loss("general")
    def general_loss(net, x):
        """Predict the noise in foreign trajectories."""
        return denoising_error(net, x, "general")

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Predict the noise in trajectories of the domain."""
        return denoising_error(net, x, "denoiser")

    @loss("inverse")
    def inverse_loss(net, x):
        """Predict the action between two states."""
        both = jnp.concatenate([x.observation / units, x.next_observation / units], -1)
        found = to_units(space, net.inverse(both).mode())
        return losses.prediction_error(found, to_units(space, x.action))

    def update(net: Net, batch: Batch) -> Net:
        x, begun = batch.transitions, net
        first = net.updates < net.hyper.pretraining
        origin = x.extras["origin"]
        net = keep(
            net.descend(general_loss, x, mask=origin == FOREIGN), begun, ("general",), ~first
        )
        played = (origin == PLAYED) & ~first
        if config.filtered:
            inside = jnp.arange(horizon)[:, None] == rows_within_episodes(x, 0)
            played = played & (x.terminated & inside).any(0)
        net = net.descend(denoiser_loss, x, mask=(origin == SHOWN) | played)
        net = net.descend(inverse_loss, x, mask=origin != FOREIGN).update_targets()
        return net.report(kept=played.sum() / jnp.maximum((origin == PLAYED).sum(), 1))

    def make_plan(net: Net, timestep: TimeStep, key: Key) -> Array:
        """Return actions [B, H - 1, A] between the states of plans."""
        batch, h = timestep.reward.shape, net.hyper
        begin = jnp.zeros((*batch, horizon, STATE)).at[:, 0].set(timestep.observation / units)
        task = told(timestep.goal)

        def predict(noisy: Array, level: Array) -> Array:
            own = net.target.denoiser(noisy, level, task)
            if not config.composed:
                blank = net.target.denoiser(noisy, level, jnp.zeros_like(task))
                return diffusion.classifier_free_guidance(own, blank, h.guidance)
            general = net.general(noisy, level, task)
            blank = net.general(noisy, level, jnp.zeros_like(task))
            return compose(general, blank, own, h.strength, h.guidance)

        hooks = Hooks(known=lambda x: diffusion.inpaint(x, begin, known), bound=1.0)
        plan = process.sample(key, predict, begin.shape, hooks=hooks)
        both = jnp.concatenate([plan[:, :-1], plan[:, 1:]], -1)
        return to_units(space, net.target.inverse(both).mode())

    def act(net, timestep, memory, key, greedy):
        plan = lambda timestep, past, key: make_plan(net, timestep, key)
        now, execute = timestep.observation, config.execute
        action, memory = follow_plan(plan, timestep, memory, key, features=now, execute=execute)
        return from_units(space, action), memory, {}

    inputs = jnp.zeros((1, horizon, STATE)), jnp.ones(1), jnp.zeros((1, 3))
    network = TrajectoryDenoiser(STATE, config.width, config.blocks)
    torso, between = config.torso, (jnp.zeros((1, 2 * STATE)),)
    inverse = InverseDynamics(space, torso.hidden, torso.activation, torso.initializer)
    return Recipe(
        parts={
            "general": Part(network, inputs, config.optimizer),
            "denoiser": Part(network, inputs, config.optimizer, config.average),
            "inverse": Part(inverse, between, config.optimizer, config.average),
        },
        act=act,
        losses=(general_loss, denoiser_loss, inverse_loss),
        update=update,
        memory=lambda n: no_plan(n, horizon - 1, moves, 0, STATE),
        needs=("transitions.extras.origin",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows [H, 3 n]: foreign, demonstrated, and played."""
    return config.data.source(env, config.horizon)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, `env` is a maze with at least two
    goals, and plans are as long as they are followed."""
    policies.check(env, config, name)
    check_length(dataclasses.replace(config, horizon=config.horizon - 1))
    if not isinstance(env.params, Params) or int(env.params.num_goals) < 2:
        raise UserError(f"{name} splits the goals of a point maze; '{env.name}' has none to split.")


sail = AlgorithmBuilder("sail", Config, recipe, source, check=check)

TINY = {
    "env": "point_maze", "env_params": {"dt": 0.05}, "data.size": 600, "data.shown": 400,
    "data.batch_size": 8, "data.num_envs": 8, "data.num_steps": 4, "data.updates": 2,
    "data.capacity": 800, "data.num_shards": 4, "torso.hidden": (8,), "horizon": 4, "execute": 2,
    "levels": 2, "width": 8, "blocks": 1, "pretraining": 1.0,
}  # fmt: skip
