"""Relabeling of experience as if another goal had been set (hindsight), and play that goes on where
a goal is reached."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, TimeStep, Transition, Tree, struct
from jaxrl.envs.wrappers.lifting import lift_fields


def relabel(
    env: Environment, transition: Transition, goal: Tree, params: Tree = None
) -> Transition:
    """Return `transition` as it would have been in an episode with the goal `goal`.

    Takes one transition; `jax.vmap(relabel, in_axes=(None, 0, 0))` relabels a batch. It rewrites
    the goal and the reward of both time steps, and whether the next one terminates or is truncated.
    Whatever the old goal does not explain stays: a part of the reward (the price of an action), an
    end (a fall, a clock). An episode that ended at the old goal and would not have ended at the new
    one is truncated there, since nothing is known of what comes after; one that would have ended
    and went on is terminated. `true_reward`, `metrics` and all other channels keep what happened.

    params: the parameters that the transition was played with; `env.params` by default.

    Andrychowicz et al. (2017), "Hindsight Experience Replay". Raises `UserError` if `env` has no
    `goals`, and for a goal of another shape or a batch.
    """
    goals = env.goals
    if goals is None:
        raise UserError(f"'{env.name}' has no goals; only experience with goals can be relabeled.")
    new, old = (jax.tree.map(jnp.shape, g) for g in (goal, transition.next_timestep.goal))
    if new != old or jnp.ndim(transition.terminated):
        raise UserError(
            f"The goal for '{env.name}' has shape {new} and the transition's goal {old}; both "
            "must be of one transition (use jax.vmap for a batch)."
        )
    params = env.params if params is None else params

    def outcome(timestep: TimeStep, goal: Tree) -> tuple[Array, Array]:
        reward, terminated = goals.outcome(goals.achieved(timestep.observation), goal, params)
        return jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool)

    def with_goal(timestep: TimeStep, **changes: Array) -> TimeStep:
        return dataclasses.replace(timestep, goal=goal, **changes)

    def relabeled_reward(timestep: TimeStep) -> Array:
        # In this order nothing is rounded where the goal explains all of the reward.
        return outcome(timestep, goal)[0] + (timestep.reward - outcome(timestep, timestep.goal)[0])

    before, after = transition.timestep, transition.next_timestep
    terminated, explained = outcome(after, goal)[1], outcome(after, after.goal)[1]
    terminated |= after.terminated & ~explained
    return dataclasses.replace(
        transition,
        timestep=with_goal(before, reward=jnp.where(before.first, 0.0, relabeled_reward(before))),
        next_timestep=with_goal(
            after,
            reward=relabeled_reward(after),
            terminated=terminated,
            truncated=after.done & ~terminated,
        ),
    )


@functools.cache
def set_new_goals(env: Environment) -> Environment:
    """Set a new goal wherever one is reached, instead of ending the episode there: for play.

    The step that reaches a goal keeps its reward, and its time step holds the next goal, by
    `Goals.next` or that of a new episode of `env`. Clocks begin anew with each goal, so that an
    episode is truncated only where a goal was not reached in time; `max_steps` is None. For mazes
    that are the same in every episode: a new goal is not checked against this one's walls.

    Raises `UserError` if `env` has no goals, or if its time steps do not tell its state
    (`state_of`).
    """
    goals, state_of = env.goals, env.state_of
    if goals is None:
        raise UserError(f"'{env.name}' has no goals, so no new ones can be set.")
    if state_of is None:
        raise UserError(
            f"The time steps of '{env.name}' do not tell its state, so no new goal can be set; a "
            "maze must be the same in every episode (`layout` or `maze`)."
        )

    def step(key, state, action, params):
        step_key, goal_key = jax.random.split(key)
        state, timestep = env.step(step_key, state, action, params)
        achieved = goals.achieved(timestep.observation)
        reached = timestep.terminated & goals.outcome(achieved, timestep.goal, params)[1]
        if goals.next is None:
            goal = env.reset(goal_key, params)[1].goal
        else:
            goal = goals.next(goal_key, achieved, params)
        other = dataclasses.replace(timestep, goal=goal)
        state = trees.where(reached, state_of(other), state)
        ended = timestep.terminated & ~reached
        goal = trees.where(reached, goal, timestep.goal)
        return state, dataclasses.replace(timestep, goal=goal, terminated=ended)

    return dataclasses.replace(env, step=step, max_steps=None)


@functools.cache
def stay_at_goals(env: Environment) -> Environment:
    """Let episodes go on where a goal is reached, with the same goal, until another end of `env`.

    Raises `UserError` if `env` has no goals.
    """
    goals = env.goals
    if goals is None:
        raise UserError(f"'{env.name}' has no goals to stay at.")

    def step(key, state, action, params):
        state, timestep = env.step(key, state, action, params)
        achieved = goals.achieved(timestep.observation)
        reached = goals.outcome(achieved, timestep.goal, params)[1]
        return state, dataclasses.replace(timestep, terminated=timestep.terminated & ~reached)

    return dataclasses.replace(env, step=step)


@struct
class Given:
    """Parameters of `given_goals`."""

    inner: Tree
    goal: Tree  # the goal of every episode


@functools.cache
def given_goals(env: Environment) -> Environment:
    """Let the parameters say the goal of an episode (`params.goal`), for tasks that choose it. The
    rest of an episode begins as in `env`, by default with a goal of zeros.

    Raises `UserError` if `env` has no goals, or if its time steps do not tell its state
    (`state_of`).
    """
    state_of = env.state_of
    if env.goals is None or state_of is None:
        raise UserError(
            f"The goal of an episode of '{env.name}' cannot be given; the environment must have "
            "goals, and time steps that tell its state (a maze must be the same in every episode)."
        )

    def reset(key, params):
        _, timestep = env.reset(key, params.inner)
        goal = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), params.goal, timestep.goal)
        timestep = dataclasses.replace(timestep, goal=goal)
        return state_of(timestep), timestep

    def step(key, state, action, params):
        return env.step(key, state, action, params.inner)

    example = jax.eval_shape(lambda key: env.reset(key, env.params)[1].goal, jax.random.key(0))
    none = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), example)
    fields = lift_fields(env, params=True) | {"state_of": state_of}
    return dataclasses.replace(
        env, reset=reset, step=step, params=Given(env.params, none), **fields
    )
