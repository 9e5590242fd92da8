"""Stein variational goal generation (SVGG; Castanet, Lamprier and Sigaud, 2023, "Stein variational
goal generation for adaptive exploration in multi-goal reinforcement learning", arXiv:2206.06719,
and the authors' code): a curriculum of goals that are neither too easy nor too hard.

The goals of episodes are drawn from particles. Stein variational gradient descent moves them toward
the density

    p(g) ~ exp(sharpness Beta(D(g); alpha, beta)) p_valid(g)

where D(g) is a learned probability that the policy reaches g, and p_valid(g) keeps goals close to
what has been achieved. Adam moves the particles, and an episode's goal is one of them, drawn
uniformly. D learns by cross-entropy whether episodes ended at their own goals. The policy is DDPG's
on goals in hindsight, each achieved later in the same episode (Andrychowicz et al., 2017). In
evaluations the goals are the environment's own, which the algorithm never sees while it learns.

Validity is that of a one-class support vector machine on achieved goals in the paper; here it is
d(g) / (d(g) + c), d a kernel density of the batch's achieved goals and c the quantile `outside` of
that density at these goals themselves, so that about this share of what is achieved counts as
outside, as with the machine's nu (0.01 in the authors' code). The density, the Beta parameters (2
and 2, their "medium"), the sizes of D and the particles' optimizer are those of that code. It
differs in other things: D reads the start beside the goal, has layer normalization, and learns from
300 of the last 1,000 episodes with as many successes as failures, where here it learns from all
ends in the replay buffer; the kernel's width is 1, here the median heuristic's; particles begin at
standard normal draws, but for the Fetch arms, where they begin as here at what the first states of
episodes achieve; goals in hindsight come from the whole rest of an episode, here from the next
`window` steps; and of ten goals one is the episode's own and three are drawn from those that the
environment set, one from those that the policy set, and one from what was achieved at any time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.ddpg import Config as DDPGConfig
from jaxrl.algorithms.continuous_control.ddpg import ddpg
from jaxrl.algorithms.continuous_control.shared.deterministic import TINY as TINY_DDPG
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Source, Tasks, Transition
from jaxrl.envs.goals import Given, given_goals, relabel
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import Act
from jaxrl.kit.composing import around
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks.scalar import ScalarMLP


@group
class Particles:
    """Particles that goals are drawn from."""

    number: int = static(100, low=2, high=MANY)
    """Number of particles."""
    optimizer: Optimizer = Optimizer(learning_rate=0.1)
    """Optimizer settings of the particles, in units of the goal; Adam, 0.1, is the default of the
    authors' code."""
    every: int = static(20, low=1)
    """Number of updates between two steps of the particles; 20 is the default of the authors'
    code."""
    alpha: float = hyper(2.0, above=0, high=INF)
    """First parameter of the Beta density of success; above beta, easier goals are preferred."""
    beta: float = hyper(2.0, above=0, high=INF)
    """Second parameter of the Beta density of success."""
    sharpness: float = hyper(10.0, low=0)
    """Weight of the Beta density in the log-density of goals: the inverse of a temperature."""
    outside: float = hyper(0.1, low=0, high=1)
    """Quantile of the density of achieved goals that separates valid goals from others."""
    bandwidth: float = hyper(0.5, above=0, high=INF)
    """Bandwidth of the density of achieved goals, in units of the goal."""


@group
class Success:
    """Predictor of success: a network from goals to probabilities."""

    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the predictor."""


@group
class Config(DDPGConfig):
    """Settings of SVGG: DDPG in hindsight, on goals of intermediate difficulty
    (arXiv:2206.06719)."""

    particles: Particles = Particles()
    success: Success = Success()
    window: int = static(32, low=2, high=MANY)
    """Number of steps within which a goal in hindsight is achieved."""
    relabeled: float = hyper(0.8, low=0, high=1)
    """Share of steps whose goal is one in hindsight."""


class Places(nn.Module):
    """Goals [number, D], which are parameters: at first those that first states achieve."""

    env: Environment
    number: int

    @nn.compact
    def __call__(self) -> Array:
        return self.param("places", lambda key: first_goals(self.env, key, self.number))


def first_goals(env: Environment, key: Key, number: int) -> Array:
    """Return the goals [number, D] that are achieved by the first states of as many episodes."""
    assert env.goals is not None
    achieved = env.goals.achieved
    first = lambda key: achieved(env.reset(key, env.params)[1].observation)
    return jax.vmap(first)(jax.random.split(key, number))


def log_validity(goals: Array, achieved: Array, bandwidth: Array, outside: Array) -> Array:
    """Return log d / (d + c) [N] of goals [N, D]: d is the kernel density of achieved goals [M, D],
    and c the quantile `outside` of it among themselves."""

    def log_density(x: Array) -> Array:
        return jax.nn.logsumexp(-losses.squared_distances(x, achieved) / (2 * bandwidth**2), -1)

    level = jnp.quantile(log_density(achieved), outside)
    return -jax.nn.softplus(jax.lax.stop_gradient(level) - log_density(goals))


def log_density_of_goals(net: Net, goals: Array, achieved: Array) -> Array:
    """Return the log-density [N] that particles follow, up to a constant."""
    h = net.hyper.particles
    success = jax.nn.sigmoid(net.success(goals))
    difficulty = losses.goal_difficulty(success, h.alpha, h.beta, sharpness=h.sharpness)
    return difficulty + log_validity(goals, achieved, h.bandwidth, h.outside)


def direction_of_goals(net: Net, achieved: Array) -> Array:
    """Return the Stein variational direction [N, D] of the particles."""
    goals = jax.lax.stop_gradient(net.particles())
    score = jax.grad(lambda x: log_density_of_goals(net, x, achieved).sum())(goals)
    return losses.svgd(goals, score, losses.median_bandwidth(goals))


@loss("particles")
def particle_loss(net: Net, direction: Array) -> Array:
    """Return the loss [N] whose descent moves the particles along a direction [N, D]."""
    return -(jax.lax.stop_gradient(direction) * net.particles()).sum(-1)


@loss("success")
def success_loss(net: Net, x: Transition) -> LossOutput:
    """Compute the cross-entropy of whether episodes end at their goals, from their last steps."""
    logits, reached = net.success(x.timestep.goal), x.terminated
    error = losses.binary_cross_entropy(logits, reached.astype(logits.dtype))
    return LossOutput(error, {"success_accuracy": (logits > 0) == reached})


def in_hindsight(env: Environment, x: Transition, key: Key, share: Array) -> Transition:
    """Return the first steps [n] of windows [T, n], of which a share has a goal that the step, or a
    later one of its episode, achieves."""
    assert env.goals is not None
    share_key, key = jax.random.split(key)
    first = jax.tree.map(lambda a: a[0], x)
    going = jnp.cumprod(~x.done[:-1], axis=0, dtype=jnp.int32).sum(0)  # steps after the first one
    uniform = jax.random.uniform(key, going.shape)
    later = jnp.minimum((uniform * (going + 1)).astype(jnp.int32), going)
    pick = lambda a: jax.vmap(lambda row, i: row[i], (1, 0))(a, later)
    goal = jax.vmap(env.goals.achieved)(jax.tree.map(pick, x.next_observation))
    told = jax.vmap(lambda x, goal: relabel(env, x, goal))(first, goal)
    chosen = jax.random.uniform(share_key, going.shape) < share

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(chosen.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, told, first)


def recipe(env: Environment, config: Config) -> Recipe:
    settings, goals = config.particles, env.goals
    assert goals is not None
    places = Places(env, settings.number)
    example = jax.eval_shape(lambda: first_goals(env, jax.random.key(0), 1))
    torso = config.success.torso
    predictor = ScalarMLP(torso.hidden, torso.activation, torso.initializer)  # log-odds of a goal

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        x = batch.transitions
        ends = x.done if batch.mask is None else x.done & batch.mask
        net = net.descend(success_loss, Minibatch(x, ends))
        first = in_hindsight(env, x, net.key("hindsight"), net.hyper.relabeled)
        achieved = jax.vmap(goals.achieved)(first.next_observation)
        direction = direction_of_goals(net, achieved)
        net = net.descend(particle_loss, direction, every=settings.every)
        predicted = jax.nn.sigmoid(net.success(net.particles()))
        net = net.report(particle_success=predicted.mean(), particle_spread=predicted.std())
        mask = None if batch.mask is None else batch.mask[0]
        return net, dataclasses.replace(batch, transitions=first, mask=mask), None

    def tell_goals(act: Act) -> Act:
        def act_and_draw(net: Net, timestep: Any, memory: Any, key: Key, greedy: bool):
            action, memory, extras = act(net, timestep, memory, key, greedy)
            drawn = jax.random.randint(
                jax.random.fold_in(key, 1), timestep.first.shape, 0, settings.number
            )
            return action, memory, {**extras, "next_goal": net.particles()[drawn]}

        return act_and_draw

    return around(
        ddpg.recipe(env, config),
        parts={
            "particles": Part(places, (), settings.optimizer),
            "success": Part(predictor, (jnp.zeros(example.shape),), config.success.optimizer),
        },
        losses=(success_loss, particle_loss),
        before=before,
        act=tell_goals,
    )


def goals_of_the_policy(env: Environment, number: int) -> Tasks:
    """Return tasks of `given_goals(env)`: each episode has a goal that the policy told, as the
    extra `next_goal`, at the end of the latest window; at first, one that a first state achieves.

    number: of streams, each of which tells a goal. The id of a task is its goal.
    """

    def sample(state: Array, key: Key, n: int) -> Array:
        return state[jax.random.randint(key, (n,), 0, number)]

    return Tasks(
        "goals of the policy",
        init=lambda key, policy, hyper: first_goals(env, key, number),
        sample=sample,
        params=lambda state, goal: Given(env.params, goal),
        update=lambda state, policy, transitions: transitions.extras["next_goal"][-1],
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows [window, n] of a replay buffer of episodes with the particles' goals."""
    x = config.replay
    tasks = goals_of_the_policy(env, x.num_envs)
    return x.source(given_goals(env), length=config.window, tasks=tasks)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless DDPG can learn in `env`, whose goals are vectors that can be given,
    and observations are as they are."""
    ddpg.check(env, config, name)
    given_goals(env)
    shape = jax.eval_shape(lambda: first_goals(env, jax.random.key(0), 1))
    if not hasattr(shape, "shape") or len(shape.shape) != 2:
        raise UserError(f"{name} moves goals that are vectors; those of '{env.name}' are {shape}.")
    if config.normalization.observation:
        raise UserError(
            f"normalization.observation is on, but {name} compares goals with observations; turn "
            "it off."
        )


svgg = AlgorithmBuilder("svgg", Config, recipe, source, check=check)

TINY = TINY_DDPG | {
    "env": "point_maze",
    "env_params": {"maze": "#### #..# #..# ####"},
    "hidden": (8,),
    "success.torso.hidden": (8,),
    "particles.number": 4,
    "particles.every": 1,
    "window": 4,
    "normalization.observation": False,
}
