"""Generated experience: a diffusion model of a dataset's transitions or trajectories, and
actor-critics that learn from its samples.

The model is that of `experience_model`, which is trained first (`--warm-start`) and is frozen here.
Observations, actions and rewards are standardized by the data's moments, which are frozen too;
whether the task ends is generated as a number, and is true above 0.5 (SynthER's code).

    def recipe(env, config):
        return learn_from_generated(td3_bc.recipe(env, config), env, config)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.policies import action_size, from_units, to_units
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.spaces import Box
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
)
from jaxrl.diffusion import EDM, Hooks
from jaxrl.diffusion.sampling import NO_HOOKS, Predict
from jaxrl.kit import Net, Part, Recipe, group, static
from jaxrl.kit.groups import Optimizer, Target
from jaxrl.kit.normalization import Moments, Normalizer, no_moments, normalizer
from jaxrl.kit.parts import copy
from jaxrl.kit.state import State
from jaxrl.networks.denoisers import CONTINUOUS, TrajectoryDenoiser, VectorDenoiser
from jaxrl.sources.dataset import mixed
from jaxrl.sources.replay import replay

EXPERIENCE = "experience"  # the extra that holds what the model generates
MEASURED = 1024  # generated steps that are compared with the true dynamics


@group
class Generator:
    """Diffusion model of experience; the same in both phases."""

    horizon: int = static(1, low=1, high=MANY)
    """Number of steps that are generated together: 1 for transitions, more for trajectories."""
    width: int = static(256, low=1, high=WIDE)
    """Width of the denoiser's layers, or channels of its convolutions along a trajectory."""
    blocks: int = static(3, low=1)
    """Number of residual blocks of the denoiser."""
    steps: int = static(32, low=2)
    """Number of denoising steps, each with two predictions."""
    churn: float = static(0.0, low=0)
    """Noise that is added before denoising steps, S_churn of EDM; 0 for none."""


@group
class Generated:
    """Generated experience that is kept to learn from."""

    samples: int = static(256, low=1, high=MANY)
    """Number of transitions or trajectories that are generated in each round."""
    rounds: int = static(50, low=1, high=MANY)
    """Number of rounds whose samples are kept."""
    real_share: float = static(0.0, low=0, below=1)
    """Fraction of each batch that is from the data."""


@group
class FromGenerated:
    """Settings of what learns from generated experience."""

    generator: Generator = Generator()
    generated: Generated = Generated()


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places of the parts of a trajectory in an array [B, T + 1, S + A + 2]: observation, action,
    reward and end of each of T steps, and the observation after them with zeros beside it. A single
    transition (T = 1) is a vector [B, 2 S + A + 2]: its step, and the observation after it."""

    env: Environment
    horizon: int

    @property
    def seen_size(self) -> int:
        """Number S of an observation's numbers."""
        space: Any = self.env.observation_space
        return int(np.prod(space.shape))

    @property
    def moves(self) -> int:
        """Number A of an action's numbers."""
        return action_size(self.env.action_space)

    @property
    def axes(self) -> int:
        """Number of last axes of a sample that share a level of noise."""
        return 1 if self.horizon == 1 else 2

    def shape(self, count: int) -> tuple[int, ...]:
        """Return the shape of `count` samples."""
        if self.horizon == 1:
            return count, 2 * self.seen_size + self.moves + 2
        return count, self.horizon + 1, self.seen_size + self.moves + 2

    def process(self) -> EDM:
        """Return the process of noise, for data of unit variance."""
        return EDM(data_scale=1.0, axes=self.axes)

    def numbers(self, x: Transition) -> Array:
        """Return what is standardized of steps [...]: observation, action in half-widths and
        reward, [..., S + A + 1]."""
        seen = x.timestep.observation.reshape(*x.reward.shape, -1)
        moved = to_units(self.env.action_space, x.action)
        return jnp.concatenate([seen, moved, x.reward[..., None]], -1)

    def encode(self, scale: Moments, x: Transition) -> Array:
        """Return windows [T, B] as samples of the model."""
        size = self.seen_size
        step = (self.numbers(x) - scale.mean) / scale.deviation
        step = jnp.concatenate([step, x.terminated[..., None].astype(step.dtype)], -1)
        after = x.next_timestep.observation[-1].reshape(x.reward.shape[1], -1)
        after = (after - scale.mean[:size]) / scale.deviation[:size]
        if self.horizon == 1:
            return jnp.concatenate([step[0], after], -1)
        last = jnp.pad(after, ((0, 0), (0, step.shape[-1] - size)))
        return jnp.moveaxis(jnp.concatenate([step, last[None]]), 0, 1)

    def decode(self, scale: Moments, samples: Array) -> Transition:
        """Undo `encode`: return samples as transitions [T, B], whose actions are within bounds."""
        size = self.seen_size
        if self.horizon == 1:
            step, after = samples[:, :-size], samples[:, -size:]
            step, after = step[None], after[None]
        else:
            both = jnp.moveaxis(samples, 1, 0)
            step, after = both[:-1], both[1:, :, :size]
        numbers = scale.mean + scale.deviation * step[..., :-1]
        after = scale.mean[:size] + scale.deviation[:size] * after
        action = from_units(self.env.action_space, numbers[..., size : size + self.moves])
        no = jnp.zeros(step.shape[:-1], bool)
        seen = lambda x: x.reshape(*no.shape, *self._space.shape).astype(self._space.dtype)
        before = TimeStep(seen(numbers[..., :size]), jnp.zeros(no.shape), no, no, no)
        ended = step[..., -1] > 0.5
        return Transition(
            before, action, TimeStep(seen(after), numbers[..., -1], ended, no, no), (), {}
        )

    def actions_of(self, samples: Array) -> Array:
        """Return the standardized actions [B, T, A] of samples."""
        place = slice(self.seen_size, self.seen_size + self.moves)
        return samples[:, None, place] if self.horizon == 1 else samples[:, :-1, place]

    def replace_actions(self, samples: Array, action: Array) -> Array:
        """Return samples with other standardized actions [B, T, A]."""
        place = slice(self.seen_size, self.seen_size + self.moves)
        if self.horizon == 1:
            return samples.at[:, place].set(action[:, 0])
        return samples.at[:, :-1, place].set(action)

    def observations_of(self, samples: Array) -> Array:
        """Return the standardized observations [B, T, S] that the actions of samples belong to."""
        if self.horizon == 1:
            return samples[:, None, : self.seen_size]
        return samples[:, :-1, : self.seen_size]

    @property
    def _space(self) -> Box:
        space: Any = self.env.observation_space
        return space


def denoiser_part(
    env: Environment,
    generator: Generator,
    optimizer: Optimizer | None = None,
    average: Target | None = None,
) -> Part:
    """Return the denoiser as a part, which no loss descends without an optimizer."""
    shape = Layout(env, generator.horizon).shape(1)
    network = VectorDenoiser if generator.horizon == 1 else TrajectoryDenoiser
    sizes = shape[-1], generator.width, generator.blocks
    built = network(*sizes, level_scale=CONTINUOUS)
    return Part(built, (jnp.zeros(shape), jnp.ones(1)), optimizer, average)


def first_scale(env: Environment) -> Moments:
    """Return the moments of data of which nothing was seen."""
    layout = Layout(env, 1)
    return no_moments((layout.seen_size + layout.moves + 1,))


def observation_scale(env: Environment, scale: Moments) -> Normalizer:
    """Return the standardization of observations by the data's moments."""
    layout, space = Layout(env, 1), env.observation_space
    place = lambda x: x[: layout.seen_size].reshape(space.shape)  # type: ignore[union-attr]
    own = Moments(place(scale.mean), place(scale.squares), scale.count)
    return dataclasses.replace(normalizer(env), moments=[own])


def generate(
    env: Environment,
    generator: Generator,
    predict: Predict,
    *,
    scale: Moments,
    count: int,
    key: Key,
    hooks: Hooks = NO_HOOKS,
) -> Transition:
    """Generate `count` transitions or trajectories, [count, T].

    predict: the denoiser. scale: the data's moments. hooks: of the sampler.
    """
    layout = Layout(env, generator.horizon)
    samples = layout.process().sample(
        key,
        predict,
        layout.shape(count),
        steps=generator.steps,
        churn=generator.churn,
        hooks=hooks,
    )
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), layout.decode(scale, samples))


def learn_from_generated(
    plain: Recipe,
    env: Environment,
    config: Any,
    hooks: Callable[[Net], Hooks] = lambda net: NO_HOOKS,
) -> Recipe:
    """Let a recipe of an actor-critic learn from generated experience, and show it observations
    that are standardized by the data's moments.

    The policy says what the model generates (`EXPERIENCE`) where it is not greedy, which the source
    reads. In a warm start the average of the denoiser and the moments are taken over, and nothing
    else.

    plain: its update keeps nothing in `net.extra`.
    config: settings with `FromGenerated`.
    hooks: parts -> hooks of the sampler.
    """

    def act(net, timestep, memory, key, greedy):
        act_key, key = jax.random.split(key)
        see = observation_scale(env, net.extra)
        action, memory, extras = plain.act(net, see(timestep), memory, act_key, greedy)
        if greedy:
            return action, memory, extras
        found = generate(
            env,
            config.generator,
            net.denoiser,
            scale=net.extra,
            count=len(timestep.reward),
            key=key,
            hooks=hooks(net),
        )
        return action, memory, {**extras, EXPERIENCE: found}

    def update(net, batch):
        x, see = batch.transitions, observation_scale(env, net.extra)
        x = dataclasses.replace(x, timestep=see(x.timestep), next_timestep=see(x.next_timestep))
        return plain.update(net, dataclasses.replace(batch, transitions=x))

    return dataclasses.replace(
        plain,
        parts={**plain.parts, "denoiser": denoiser_part(env, config.generator)},
        act=act,
        update=update,
        extra=first_scale(env),
        adopt=adopt_generator,
        scores=experience_scores(env),
    )


def adopt_generator(state: State, other: Tree) -> Tree:
    """Take over the denoiser of another agent, or its average where it has one, and the moments."""
    if not isinstance(other, State) or "denoiser" not in other.parts:
        return other  # which will not fit
    part = other.parts["denoiser"]
    params = part.params if part.target is None else part.target
    own = dataclasses.replace(state.parts["denoiser"], params=copy(params))
    return dataclasses.replace(state, parts=state.parts | {"denoiser": own}, extra=other.extra)


def ask_for_experience(env: Environment, policy: Policy, count: int, key: Key) -> Transition:
    """Return what a policy's model generates, transitions [count, T]."""
    wide = lambda x: jnp.broadcast_to(x, (count, *x.shape[1:]))
    timestep = jax.tree.map(wide, example_timestep(env))
    extras = policy.act(policy.state, timestep, policy.memory(count), key, False)[2]
    return extras[EXPERIENCE]


def generated_experience(env: Environment, count: int, env_steps: int) -> Source:
    """Collect windows [T, B] of `count` (B) transitions or trajectories that the policy's model
    generates.

    env_steps: what a window counts as, since no environment is played. Logs `generated_reward` and
    `generated_ends`, means over the window's steps.
    """

    def collect(state, policy, key):
        x = ask_for_experience(env, policy, count, key)
        x = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), x)
        rounds = state + 1
        metrics = {
            "generated_reward": m.mean(x.reward.mean()),
            "generated_ends": m.mean(x.terminated.mean(dtype=jnp.float32)),
        }
        counted = rounds.astype(jnp.float32) * env_steps
        return rounds, Batch(x, env_steps=counted), metrics

    return Source(
        "generated_experience",
        lambda key, hyper, policy: jnp.int32(0),
        collect,
        lambda state, fresh, key: fresh,
        env_steps=env_steps,
        partition=REPLICATED,
    )


def generated_source(env: Environment, config: Any) -> Source:
    """Return the source of batches of which `real_share` is from the dataset and the rest from the
    last rounds of generated experience. A round is generated before every `data.updates` gradient
    steps, which count as steps."""
    data, own = config.data, config.generated
    rounds = generated_experience(env, own.samples, data.updates)
    kept = own.rounds * own.samples * config.generator.horizon
    real, shards = real_rows(config), data.num_shards
    synthetic = replay(rounds, kept, data.batch_size - real, num_shards=shards)
    return mixed(data.dataset(env, real), synthetic, shards) if real else synthetic


def real_rows(config: Any) -> int:
    """Return how many transitions of a batch are from the dataset."""
    shards, share = config.data.num_shards, config.generated.real_share
    return round(share * config.data.batch_size / shards) * shards


def experience_scores(env: Environment) -> dict[str, str]:
    """Return what `measure_experience` measures in `env`, each with its label."""
    if env.state_of is None:
        return {}
    return {
        "dynamics_error": "error of generated steps",
        "reward_error": "error of generated rewards",
    }


def measure_experience(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Measure how far generated steps are from what the environment itself does, where a time step
    tells its state.

    `dynamics_error` is the mean squared error of the next observation, in variances of each of its
    numbers, and `reward_error` that of the reward.
    """
    if env.state_of is None:
        return {}
    count = -(-MEASURED // config.generator.horizon)
    draw_key, key = jax.random.split(key)
    x = ask_for_experience(env, policy, count, draw_key)
    x = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
    state = jax.vmap(env.state_of)(x.timestep)
    keys = jax.random.split(key, len(x.reward))
    true = jax.vmap(env.step, (0, 0, 0, None))(keys, state, x.action, env.params)[1]
    error = lambda told, found: (jnp.square(told - found).mean(0) / (found.var(0) + 1e-8)).mean()
    return {
        "dynamics_error": error(x.next_observation, true.observation),
        "reward_error": error(x.reward, true.reward),
    }


def check_model(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and observations one box of real
    numbers, for goals, which no model generates, and for an environment beside the dataset."""
    policies.check(env, config, name)
    space = env.observation_space
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        raise UserError(
            f"{name} generates observations that are one box of real numbers; those of "
            f"'{env.name}' are {space!r}."
        )
    if env.goals is not None:
        raise UserError(f"{name} generates no goals, and episodes of '{env.name}' have some.")
    config.data.check_alone(name, "it learns from generated experience")
    if env.max_steps is not None and config.generator.horizon > env.max_steps:
        raise UserError(
            f"generator.horizon is {config.generator.horizon}, but episodes of '{env.name}' have "
            f"at most {env.max_steps} steps."
        )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `check_model`, for running statistics of observations, which would move
    away from the model's, and for batches without a generated transition."""
    check_model(env, config, name)
    if config.normalization.observation:
        raise UserError(
            f"normalization.observation is on, but {name} standardizes observations by the data's "
            "moments; turn it off."
        )
    if real_rows(config) >= config.data.batch_size:
        raise UserError(
            f"generated.real_share is {config.generated.real_share}; in a batch of "
            f"{config.data.batch_size}, at least one transition must be generated."
        )


# The smallest settings.
TINY_MODEL = TINY_DATA | {
    "env": "pendulum",
    "generator.width": 8,
    "generator.blocks": 1,
    "generator.steps": 2,
}
TINY = TINY_MODEL | {
    "torso.hidden": (8,),
    "samples": 8,
    "rounds": 2,
    "real_share": 0.5,
}
