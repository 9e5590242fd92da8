"""Diffuser (Janner, Du, Tenenbaum and Levine, 2022, "Planning with diffusion for flexible behavior
synthesis", arXiv:2205.09991): plans are samples of a diffusion model of whole trajectories,
observations and actions.

What is known of a plan, the observation that it begins with and the goal that it must end at, is
put back at every denoising step (inpainting). Returns can guide it too: a second network predicts
the return of a noisy trajectory, and its gradient moves the mean of each step (algorithm 1). The
actions of a plan are followed for `execute` steps; then the next one is made.

The network is a temporal convolution without the authors' U-shape. What each observation achieves
of a goal is a part of the trajectory, so that a goal can be put in without knowing where in an
observation it lies. After the end of an episode its last step is repeated, so plans may arrive
early and stay. In the authors' code a plan's states in mazes are followed by a controller, and
predictions are clipped; here its actions are followed. In locomotion they weigh the first action's
error by 10, clip nothing, guide twice at each level but the last two by returns to the end of the
episode (here of the plan), and follow the best of 64 plans by the predicted return.
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
    """Settings of Diffuser: planning by a diffusion model of trajectories (arXiv:2205.09991)."""

    data: Data = Data(name="demonstrations", batch_size=32)
    optimizer: Optimizer = Optimizer(learning_rate=2e-4)
    """Optimizer settings of the denoiser and of the guide, separately. Adam, 2e-4: authors'
    code."""
    average: Target = Target(rate=0.005)
    """Running average of the denoiser, which plans. Decay 0.995: authors' code."""
    normalization: Normalization = Normalization(observation=True)

    horizon: int = static(32, low=2)
    """Number of steps in a plan."""
    execute: int = static(1, low=1)
    """Number of steps of a plan that are followed."""
    levels: int = static(20, low=1)
    """Number of denoising steps."""
    width: int = static(64, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(4, low=1)
    """Number of residual blocks of the denoiser, whose reach doubles."""
    guided: bool = False
    """Guide plans toward high returns, which needs a gradient at each denoising step."""
    guidance: float = hyper(0.1, low=0)
    """Strength of the guidance; 0.1 in most of the authors' tasks."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step of the returns that the guide predicts."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, moves, horizon = env.action_space, action_size(env.action_space), config.horizon
    example = example_timestep(env)
    see = lambda timestep: encoders.flatten(env.observation_space, timestep.observation)
    seen = see(example).shape[-1]
    goals = goal_features(example.goal, (1,)).shape[-1]
    size = seen + moves + goals
    process = VariancePreserving(config.levels, "cosine", prediction="clean", axes=2)
    begins = np.arange(size) < seen
    ends = np.arange(size) >= seen + moves
    step = np.arange(horizon)[:, None]
    # The first observation, and the last goal.
    known = jnp.asarray(((step == 0) & begins) | ((step == horizon - 1) & ends))

    def trajectories(x: Transition) -> tuple[Array, Array]:
        """Return windows [H, B] as trajectories [B, H, D], and the rows [H, B] of their steps."""
        rows = rows_within_episodes(x, 0)
        achieved = x.extras.get("achieved", ())
        parts = (see(x), to_units(space, x.action), goal_features(achieved, x.reward.shape))
        steps = [take_rows(part, rows) for part in parts]
        return jnp.moveaxis(jnp.concatenate(steps, -1), 0, 1), rows

    def corrupt(net: Net, clean: Array) -> tuple[Array, Array]:
        """Return trajectories with noise, but for what is known of them, and their levels."""
        found = process.add_noise(net.key(), clean)
        return diffusion.inpaint(found.noisy, clean, known), found.level

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Predict clean trajectories from noisy ones."""
        clean, _ = trajectories(x)
        output = diffusion.inpaint(net.denoiser(*corrupt(net, clean)), clean, known)
        error = losses.prediction_error(output, clean).mean(-1)
        return jnp.broadcast_to(error, x.reward.shape)

    @loss("guide")
    def guide_loss(net, x):
        """Predict the discounted rewards of noisy trajectories."""
        clean, rows = trajectories(x)
        reward = jnp.where(rows == step, net.hyper.discount**step * x.reward, 0).sum(0)
        error = losses.squared_error(predict_return(net, *corrupt(net, clean)), reward)
        return jnp.broadcast_to(error, x.reward.shape)

    def predict_return(net: Net, noisy: Array, level: Array) -> Array:
        return net.guide(noisy, level)[..., 0].mean(-1)

    def make_plan(net: Net, timestep: TimeStep, key: Any) -> Array:
        """Return actions [B, H, A] of plans from the present observation to the goal."""
        batch = timestep.reward.shape
        told = jnp.zeros((*batch, horizon, size)).at[:, 0, :seen].set(see(timestep))
        told = told.at[:, -1, seen + moves :].set(goal_features(timestep.goal, batch))

        def adjust(mean, variance, level):
            predict = lambda x: predict_return(net, x, jnp.full(batch, level)).sum()
            gradient = jax.grad(predict)(mean)
            return diffusion.classifier_guidance(mean, gradient, variance, net.hyper.guidance)

        hooks = Hooks(
            known=lambda x: diffusion.inpaint(x, told, known),
            adjust=adjust if config.guided else None,
        )
        plans = process.sample(key, net.target.denoiser, told.shape, hooks=hooks)
        return jnp.clip(plans[..., seen : seen + moves], -1.0, 1.0)

    def act(net, timestep, memory, key, greedy):
        plan = lambda timestep, past, key: make_plan(net, timestep, key)
        now = see(timestep)
        action, memory = follow_plan(
            plan, timestep, memory, key, features=now, execute=config.execute
        )
        return from_units(space, action), memory, {}

    inputs = jnp.zeros((1, horizon, size)), jnp.ones(1)
    network = TrajectoryDenoiser(size, config.width, config.blocks)
    guide = TrajectoryDenoiser(1, config.width, config.blocks)
    parts = {"denoiser": Part(network, inputs, config.optimizer, config.average)}
    if config.guided:
        parts["guide"] = Part(guide, inputs, config.optimizer)
    return Recipe(
        parts=parts,
        act=act,
        losses=(denoiser_loss, guide_loss) if config.guided else (denoiser_loss,),
        memory=lambda n: no_plan(n, horizon, moves, 0, seen),
        needs=("transitions.extras.achieved",) if goals else (),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows [H, B] of the dataset, and of each observation what it achieves of a goal."""
    return goal_windows(env, config.data, config.horizon)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, plans are as long as they are followed,
    and there is a dataset alone."""
    policies.check(env, config, name)
    check_plans(config, name)


diffuser = AlgorithmBuilder("diffuser", Config, recipe, source, check=check)

TINY = {
    "env": "point_maze",
    "env_params": {"dt": 0.05},
    "data.size": 600,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "horizon": 4,
    "execute": 2,
    "levels": 2,
    "width": 8,
    "blocks": 1,
    "guided": True,
}
