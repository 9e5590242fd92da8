"""Hierarchical diffuser (Chen, Deng, Kawaguchi, Gulcehre and Ahn, 2024, "Simple hierarchical
planning with diffusion", arXiv:2401.02644): one diffusion model plans subgoals, every `jump`-th
observation of a long trajectory, and another one fills in the steps from one subgoal to the next.

The first model begins at the current observation and ends at the goal, both put back at every
denoising step (inpainting), and may be guided toward high returns as in Diffuser. The second one
begins at the current observation and ends at the first subgoal, `jump` steps later; its actions are
followed. It learns from all segments of a window. With `dense` subgoals also hold the actions of
the steps after them, which the second model does not use, so that returns can be guided through
them (dense actions in the paper).

Only the first segment is filled in, since plans are made anew before the second one; the authors
fill in all at once for open-loop control. They also guide the second model, by returns to the
episode's end, where here those of the window guide the first one. Both networks are temporal
convolutions without the authors' U-shape.
"""

from __future__ import annotations

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
from jaxrl.algorithms.diffusion.shared.data import Data, goal_features, goal_windows
from jaxrl.algorithms.diffusion.shared.policies import action_size, from_units, to_units
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition
from jaxrl.diffusion import Hooks, VariancePreserving
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Normalization, Optimizer, Target
from jaxrl.networks import encoders
from jaxrl.networks.denoisers import TrajectoryDenoiser


@group
class Config:
    """Settings of hierarchical diffuser: subgoals by one diffusion model, and the steps between
    them by another (arXiv:2401.02644)."""

    data: Data = Data(name="demonstrations", batch_size=32)
    optimizer: Optimizer = Optimizer(learning_rate=2e-4)
    """Optimizer settings of both denoisers and of the guide, separately. Adam, 2e-4: authors' code
    of Diffuser."""
    average: Target = Target(rate=0.005)
    """Running average of both denoisers, which plan."""
    normalization: Normalization = Normalization(observation=True)

    horizon: int = static(32, low=2)
    """Number of steps from the current observation to the last subgoal."""
    jump: int = static(8, low=1)
    """Number of steps from one subgoal to the next."""
    execute: int = static(4, low=1)
    """Number of steps of a segment that are followed."""
    dense: bool = False
    """Plan the actions between subgoals beside them."""
    levels: int = static(20, low=1)
    """Number of denoising steps."""
    width: int = static(64, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(3, low=1)
    """Number of residual blocks of each denoiser, whose reach doubles."""
    guided: bool = False
    """Guide subgoals toward high returns, which needs a gradient at each denoising step."""
    guidance: float = hyper(0.1, low=0)
    """Strength of the guidance."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step of the returns that the guide predicts."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, moves, jump = env.action_space, action_size(env.action_space), config.jump
    example, count = example_timestep(env), config.horizon // jump
    see = lambda timestep: encoders.flatten(env.observation_space, timestep.observation)
    seen = see(example).shape[-1]
    goals = goal_features(example.goal, (1,)).shape[-1]
    process = VariancePreserving(config.levels, "cosine", prediction="clean", axes=2)
    # A subgoal: observation, what it achieves of the goal, and perhaps actions.
    high = seen + goals + (jump * moves if config.dense else 0)
    low = seen + moves
    place, step = np.arange(high), np.arange(count + 1)[:, None]
    begins, ends = place < seen, (place >= seen) & (place < seen + goals)
    known_high = jnp.asarray(((step == 0) & begins) | ((step == count) & ends))
    step = np.arange(jump + 1)[:, None]
    known_low = jnp.asarray(((step == 0) | (step == jump)) & (np.arange(low) < seen))

    def subgoals(x: Transition, rows: Array) -> Array:
        """Return every `jump`-th step of windows [T, B] as trajectories [B, count + 1, D]."""
        achieved = goal_features(x.extras.get("achieved", ()), x.reward.shape)
        parts = [take_rows(part, rows)[::jump] for part in (see(x), achieved)]
        if config.dense:
            action = take_rows(to_units(space, x.action), rows)[:-1]
            action = action.reshape(count, jump, -1, moves).swapaxes(1, 2)
            flat = action.reshape(count, -1, jump * moves)
            parts.append(jnp.concatenate([flat, jnp.zeros_like(flat[:1])]))
        return jnp.moveaxis(jnp.concatenate(parts, -1), 0, 1)

    def segments(x: Transition, rows: Array) -> Array:
        """Return the segments between subgoals of windows [T, B], [B, count, jump + 1, D]."""
        parts = take_rows(see(x), rows), take_rows(to_units(space, x.action), rows)
        whole = jnp.moveaxis(jnp.concatenate(parts, -1), 0, 1)
        at = jump * np.arange(count)[:, None] + np.arange(jump + 1)
        return whole[:, at]

    def error_of(net: Net, name: str, clean: Array, known: Array) -> Array:
        """Return the error [...] of the denoiser `name` of trajectories [..., T, D]."""
        found = process.add_noise(net.key(name), clean)
        noisy = diffusion.inpaint(found.noisy, clean, known)
        output = diffusion.inpaint(getattr(net, name)(noisy, found.level), clean, known)
        return losses.prediction_error(output, clean).mean(-1)

    @loss("planner")
    def planner_loss(net, x):
        """Predict clean subgoals from noisy ones."""
        clean = subgoals(x, rows_within_episodes(x, 0))
        return jnp.broadcast_to(error_of(net, "planner", clean, known_high), x.reward.shape)

    @loss("filler")
    def filler_loss(net, x):
        """Predict clean segments from noisy ones, given their ends."""
        clean = segments(x, rows_within_episodes(x, 0))
        error = error_of(net, "filler", clean, known_low).mean(-1)
        return jnp.broadcast_to(error, x.reward.shape)

    @loss("guide")
    def guide_loss(net, x):
        """Predict the discounted rewards of a window from its noisy subgoals."""
        rows = rows_within_episodes(x, 0)
        clean, time = subgoals(x, rows), jnp.arange(len(rows))[:, None]
        found = process.add_noise(net.key(), clean)
        noisy = diffusion.inpaint(found.noisy, clean, known_high)
        # The last observation of a window has no step in it.
        counts = (rows == time) & (time < config.horizon)
        reward = jnp.where(counts, net.hyper.discount**time * x.reward, 0).sum(0)
        error = losses.squared_error(predict_return(net, noisy, found.level), reward)
        return jnp.broadcast_to(error, x.reward.shape)

    def predict_return(net: Net, noisy: Array, level: Array) -> Array:
        return net.guide(noisy, level)[..., 0].mean(-1)

    def make_plan(net: Net, timestep: TimeStep, key: Any) -> Array:
        """Return actions [B, jump, A] from the present observation to the first subgoal."""
        batch, now = timestep.reward.shape, see(timestep)
        told = jnp.zeros((*batch, count + 1, high)).at[:, 0, :seen].set(now)
        told = told.at[:, -1, seen : seen + goals].set(goal_features(timestep.goal, batch))

        def adjust(mean, variance, level):
            predict = lambda x: predict_return(net, x, jnp.full(batch, level)).sum()
            gradient = jax.grad(predict)(mean)
            return diffusion.classifier_guidance(mean, gradient, variance, net.hyper.guidance)

        plan_key, fill_key = jax.random.split(key)
        hooks = Hooks(
            known=lambda x: diffusion.inpaint(x, told, known_high),
            adjust=adjust if config.guided else None,
        )
        plan = process.sample(plan_key, net.target.planner, told.shape, hooks=hooks)
        ends = jnp.zeros((*batch, jump + 1, low)).at[:, 0, :seen].set(now)
        ends = ends.at[:, -1, :seen].set(plan[:, 1, :seen])
        hooks = Hooks(known=lambda x: diffusion.inpaint(x, ends, known_low))
        segment = process.sample(fill_key, net.target.filler, ends.shape, hooks=hooks)
        return jnp.clip(segment[:, :-1, seen:], -1.0, 1.0)

    def act(net, timestep, memory, key, greedy):
        plan = lambda timestep, past, key: make_plan(net, timestep, key)
        now = see(timestep)
        action, memory = follow_plan(
            plan, timestep, memory, key, features=now, execute=config.execute
        )
        return from_units(space, action), memory, {}

    def part(inputs: tuple[int, int], size: int, average: Target | None) -> Part:
        network = TrajectoryDenoiser(size, config.width, config.blocks)
        example = jnp.zeros((1, *inputs)), jnp.ones(1)
        return Part(network, example, config.optimizer, average)

    parts = {
        "planner": part((count + 1, high), high, config.average),
        "filler": part((jump + 1, low), low, config.average),
    }
    if config.guided:
        parts["guide"] = part((count + 1, high), 1, None)
    return Recipe(
        parts=parts,
        act=act,
        losses=(planner_loss, filler_loss, *([guide_loss] if config.guided else [])),
        memory=lambda n: no_plan(n, jump, moves, 0, seen),
        needs=("transitions.extras.achieved",) if goals else (),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows [H + 1, B] of the dataset, and of each observation what it achieves of a
    goal."""
    return goal_windows(env, config.data, config.horizon + 1)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, subgoals divide the horizon, segments
    are as long as they are followed, and there is a dataset alone."""
    policies.check(env, config, name)
    check_plans(config, name)
    if config.horizon % config.jump:
        raise UserError(
            f"jump is {config.jump}; it must divide the horizon of {config.horizon} steps."
        )
    if config.execute > config.jump:
        raise UserError(
            f"execute is {config.execute}; a segment (jump) has only {config.jump} steps."
        )


hierarchical_diffuser = AlgorithmBuilder(
    "hierarchical_diffuser", Config, recipe, source, check=check
)

TINY = {
    "env": "point_maze",
    "env_params": {"dt": 0.05},
    "data.size": 600,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "horizon": 4,
    "jump": 2,
    "execute": 2,
    "levels": 2,
    "width": 8,
    "blocks": 1,
    "dense": True,
    "guided": True,
}
