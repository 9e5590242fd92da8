"""BESO (Reuss, Li, Jia and Lioutikov, 2023, "Goal-conditioned imitation learning using score-based
diffusion policies", arXiv:2304.02532): goals in hindsight, and a policy that is a score-based
diffusion model of actions in continuous noise levels (EDM), which three deterministic steps suffice
to sample from.

The goal is dropped in a part of the cases, so one network is a policy of goals and one without.
The two are mixed when acting: `guidance` 0 is the policy without goals, 1 the one of the goal, and
more goes beyond it. Steps are DDIM's, which in continuous levels are Euler's, with levels evenly
spaced in their logarithm; training levels are log-logistic, between the same ends (authors' code).

The authors' network is a transformer over the last five observations and actions; here a perceptron
sees the present observation. A goal is what the environment calls one, such as a place.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import diffusion
from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_denoiser,
    action_size,
    denoiser_inputs,
    denoising_error,
    from_units,
    to_units,
)
from jaxrl.algorithms.goals.shared.conditioned import GoalConditioned, make_source, with_goal
from jaxrl.algorithms.goals.shared.data import check_goals
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.diffusion import EDM
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Target, Torso
from jaxrl.networks.denoisers import CONTINUOUS


@group
class Config(GoalConditioned):
    """Settings of BESO: a score-based diffusion policy of goals in hindsight (arXiv:2304.02532)."""

    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings. Adam, 1e-4: authors' code."""
    average: Target = Target(rate=0.001)
    """Running average of the policy, which acts. Decay 0.999: authors' code."""

    steps: int = static(3, low=2)
    """Number of denoising steps to act. 3: authors' code."""
    largest: float = static(1.0, above=0)
    """Largest noise level, in half-widths of the actions. 1: authors' code."""
    smallest: float = static(0.05, above=0)
    """Smallest noise level before the clean action. 0.05: authors' code."""
    drop: float = hyper(0.1, low=0, high=1)
    """Probability that the policy is not told the goal in training. 0.1: authors' code."""
    guidance: float = hyper(1.0, low=0)
    """Weight of the goal when acting: 0 for no goal, 1 for the policy of the goal, more to go
    beyond it; 2 in the authors' code for a policy of both kinds."""


def tell_goal(timestep: TimeStep, known: Array) -> tuple[TimeStep, Array]:
    """Return time steps [B] whose goal is 0 unless it is `known` [B], and what the network is told
    of that, [B, 1]."""
    hide = lambda x: jnp.where(known.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.zeros_like(x))
    goal = jax.tree.map(hide, timestep.goal)
    return with_goal(timestep, goal), known[:, None].astype(jnp.float32)


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    process = EDM(0.5, config.largest, config.smallest, rho=float("inf"), density="log_logistic")

    @loss("actor")
    def actor_loss(net, x):
        """Denoise the data's actions, given a goal that the episode achieved later, or none."""
        known = jax.random.uniform(net.key("drop"), x.reward.shape) >= net.hyper.drop
        timestep, flag = tell_goal(x.timestep, known)
        predict = lambda noisy, level: net.actor(timestep, noisy, level, flag)
        return denoising_error(process, predict, net.key("noise"), to_units(space, x.action))

    def act(net, timestep, memory, key, greedy):
        batch = timestep.reward.shape

        def predict(noisy, level):
            def ask(known: bool) -> Array:
                shown, flag = tell_goal(timestep, jnp.full(batch, known))
                return net.target.actor(shown, noisy, level, flag)

            return diffusion.classifier_free_guidance(ask(True), ask(False), net.hyper.guidance)

        options = {"steps": config.steps, "heun": False, "hooks": WITHIN_BOUNDS}
        action = process.sample(key, predict, (*batch, size), **options)
        return from_units(space, action), memory, {}

    network = dataclasses.replace(action_denoiser(env, config.torso), level_scale=CONTINUOUS)
    inputs = denoiser_inputs(env, jnp.zeros((1, 1)))
    return Recipe(
        parts={"actor": Part(network, inputs, config.optimizer, config.average)},
        act=act,
        losses=(actor_loss,),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, there are goals, and noise levels
    fall."""
    policies.check(env, config, name)
    check_goals(env, name)
    if config.smallest >= config.largest:
        raise UserError(
            f"smallest is {config.smallest}; it must be below the largest noise level, "
            f"{config.largest}."
        )


beso = AlgorithmBuilder("beso", Config, recipe, make_source, check=check)

TINY = {
    "env": "point_maze",
    "env_params": {"dt": 0.05},
    "data.size": 128,
    "data.streams": 4,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "torso.hidden": (8,),
}
