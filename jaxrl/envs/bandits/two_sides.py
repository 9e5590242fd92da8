"""A continuous bandit that pays on two sides and nothing between them: its demonstrations have two
modes, whose mean is worthless.

Observation: float32 [1]: a context x, uniform in [-1, 1], fresh for each pull. Action: a number
from -1 to 1. Reward: `left` exp(-((a + c) / width)^2 / 2) + `right` exp(-((a - c) / width)^2 / 2),
where c = 0.6 + 0.2 x; so the two peaks are at -c and c, and nearly nothing is paid at 0. Terminates
after `pulls` pulls (1). Metrics: `regret`, the highest reward less what was paid, summed over the
episode, and `success`, whether the last action was within 2 widths of a peak. The expert is a
demonstrator who takes either side, each time as likely, with Gaussian noise of standard deviation
`spread`: the context does not say which. The best Gaussian policy of its demonstrations has mean 0
and standard deviation sqrt(c^2 + spread^2). Modeled on the two-dimensional bandits of Wang, Hunt
and Zhou (2023), "Diffusion policies as an expressive policy class for offline reinforcement
learning".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.bandits import pulling


@struct
class Params:
    left: float = 1.0  # reward at the peak on the left, nonnegative
    right: float = 1.0  # reward at the peak on the right, nonnegative
    width: float = 0.1  # standard deviation of the peaks
    spread: float = 0.05  # standard deviation of the demonstrator's noise


@struct
class State:
    context: Array  # float32: x
    demonstration: Array  # float32: what the demonstrator would do
    pulls: Array  # int32
    regret: Array  # float32: regret of the episode so far


def place(context: Array) -> Array:
    """Return how far from 0 the peaks are."""
    return 0.6 + 0.2 * context


def pay(context: Array, action: Array, params: Params) -> Array:
    """Return the reward of an action, both scalars."""
    at = place(context)
    bump = lambda distance: jnp.exp(-0.5 * jnp.square(distance / params.width))
    return params.left * bump(action + at) + params.right * bump(action - at)


@functools.cache
def two_sides(pulls: int = 1) -> Environment:
    """The bandit with two peaks. Raises `UserError` for no pull."""
    pulling.check("two_sides", 1, pulls)

    def situation(key: Key, params: Params) -> tuple[Array, Array]:
        """Draw a context, and what the demonstrator would do."""
        keys = jax.random.split(key, 3)
        context = jax.random.uniform(keys[0], (), jnp.float32, -1.0, 1.0)
        side = jnp.where(jax.random.bernoulli(keys[1]), 1.0, -1.0)
        noise = params.spread * jax.random.normal(keys[2], (), jnp.float32)
        return context, jnp.clip(side * place(context) + noise, -1.0, 1.0)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        context, demonstration = situation(key, params)
        regret = jnp.zeros((), jnp.float32)
        state = State(context, demonstration, jnp.zeros((), jnp.int32), regret)
        metrics = {"regret": regret, "success": jnp.zeros((), jnp.float32)}
        return state, timesteps.first(context[None], metrics=metrics)

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        action = jnp.clip(action[0], -1.0, 1.0)
        reward = pay(state.context, action, params)
        regret = state.regret + jnp.maximum(params.left, params.right) - reward
        near = jnp.abs(jnp.abs(action) - place(state.context)) < 2 * params.width
        metrics = {"regret": regret, "success": near.astype(jnp.float32)}
        context, demonstration = situation(key, params)
        state = State(context, demonstration, state.pulls + 1, regret)
        ended = state.pulls >= pulls
        return state, timesteps.following(context[None], reward, ended, metrics=metrics)

    return Environment(
        name="two_sides",
        reset=reset,
        step=step,
        params=Params(),
        observation_space=Box(-1.0, 1.0, (1,)),
        action_space=Box(-1.0, 1.0, (1,)),
        max_steps=pulls,
        scores=pulling.SCORES,
        render=_draw,
        expert=lambda state, params: state.demonstration[None],
    )


def _draw(state: State, params: Params) -> np.ndarray:
    """Draw the reward of each action in the state's context."""
    canvas = drawing.Canvas(400, 280, scale=1.0, origin=(200, 260))
    actions = np.linspace(-1.0, 1.0, 101)
    top = max(float(params.left), float(params.right), 1e-6)
    heights = [240 * float(pay(state.context, a, params)) / top for a in actions]
    points = list(zip(180 * actions, heights, strict=True))
    canvas.line(points, drawing.BLUE, 3.0)
    canvas.line([(-180.0, 0.0), (180.0, 0.0)], drawing.INK, 2.0)
    return canvas.frame()
