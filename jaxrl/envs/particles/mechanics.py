"""The mechanics that particle environments share, and what a scenario adds to them.

Agents are discs that push themselves about in a plane, among landmarks that cannot move; one that
does not move may speak. Balls are discs that nobody controls and contacts move. Observations and
actions are dicts by agent. A step takes `dt` seconds: places move by the velocities, then
velocities lose the share `damping` and gain acceleration times `dt`, of the agent's own force
(`accel` at action 1) and of soft contacts; speeds above an agent's limit are cut. Two things that
can collide and overlap by d are pushed away from each other, each with the force `contact_force` *
`contact_margin` * log(1 + exp(d / `contact_margin`)); all masses are 1. Episodes are truncated
after 25 steps. Starts are uniform in the square from -1 to 1, unless a scenario says otherwise.

Actions are continuous, float32 [2] in [-1, 1] (or float32 [words], of one that speaks), or
discrete: 0 rests, 1 and 2 push left and right, 3 and 4 down and up (or a word). With reward="each"
there is a reward for every agent, float32 [N] in the order of `Environment.agents`; with "sum" all
share their sum. Privileged: `state`, all observations in this order.

Source: the particle environments of Lowe et al. (2017), "Multi-agent actor-critic for mixed
cooperative-competitive environments", arXiv:1706.02275, and Mordatch and Abbeel (2018), with the
numbers and the order of integration of PettingZoo and JaxMARL, with whose steps they agree. Two
things differ: episodes have 25 steps (26 in JaxMARL), and a continuous action is the force itself
instead of five numbers of which it is the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, Space
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import vectors
from jaxrl.envs.wrappers.time_limit import time_limit

MAX_STEPS = 25
ACTIONS, REWARDS = ("continuous", "discrete"), ("each", "sum")
# Pushes of the discrete actions: rest, left, right, down, up.
PUSHES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)
PIXELS = 400  # side of a picture, of the square from -1.4 to 1.4


@struct
class Params:
    """Parameters of particles: N agents and balls, then L landmarks."""

    radius: np.ndarray  # m, float32 [N + L]
    accel: np.ndarray  # m/s^2 at action 1, float32, of each agent
    max_speed: np.ndarray  # m/s, float32 [N]; infinite for no limit
    dt: float = 0.1  # s, length of a step
    damping: Any = 0.25  # share of the velocity that a step loses: float, or float32 [N, 1]
    contact_force: float = 100.0  # N/m
    contact_margin: float = 1e-3  # m, over which a contact grows hard


@struct
class State:
    place: Array  # float32 [N + L, 2], of agents and balls, then of landmarks
    velocity: Array  # float32 [N, 2], of agents and balls
    said: Array  # float32 [words], what was said in the last step; zeros at first
    target: Array  # int32, number of the landmark that matters


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """The agents, balls and landmarks of an environment, what each agent sees and is paid for.

    agents: names, in the order of their rewards. landmarks: their number.
    collides: which of the agents, balls and landmarks can collide, bool [N + L].
    see: state -> observation of each agent, by name.
    reward: state, params -> float32 [agents].
    steer: state, params -> the expert's force of each agent as an action, float32 [agents, 2]; with
        words, what the speaker says is the target.
    words: number of words of the first agent, which then speaks and does not move; 0 for none.
    metrics: state, params -> metrics by name.
    colors: of agents, balls and landmarks, given the target.
    balls: number of discs, after the agents, that contacts alone move.
    signs: factor of each agent's push, [agents]: -1 for one that sees and pushes in a plane that is
        turned by 180 degrees.
    begin: key, state -> the state at the start; by default the uniform one that is given.
    follow: state before a step, state after the mechanics, params -> state after it, such as within
        walls.
    over: state, params -> whether the episode has ended, bool; by default it never has.
    tell: state, params -> entries of `TimeStep.privileged` beside the state.
    scenery: draws on the canvas what lies below all discs.
    steps: time limit.
    """

    agents: tuple[str, ...]
    landmarks: int
    params: Params
    collides: np.ndarray
    see: Callable[[Any], Mapping[str, Array]]
    reward: Callable[[Any, Any], Array]
    steer: Callable[[Any, Any], Array]
    colors: Callable[[int], Sequence[tuple[int, int, int]]]
    words: int = 0
    metrics: Callable[[Any, Any], dict[str, Array]] = lambda state, params: {}
    balls: int = 0
    signs: np.ndarray | None = None
    begin: Callable[[Key, Any], Any] = lambda key, state: state
    follow: Callable[[Any, Any, Any], Any] = lambda before, after, params: after
    over: Callable[[Any, Any], Array] | None = None
    tell: Callable[[Any, Any], dict[str, Array]] = lambda state, params: {}
    scenery: Callable[[drawing.Canvas, Any], None] = lambda canvas, params: None
    steps: int = MAX_STEPS


def touching(state: State, params: Params) -> Array:
    """Return which agents and landmarks overlap, bool [N + L, N + L]; none overlaps itself."""
    every = np.arange(len(state.place))
    gap, _ = _gaps(state.place, params, every, every)
    return (gap < 0) & ~jnp.eye(len(gap), dtype=bool)


def others(x: Array, i: int) -> Array:
    """Return the rows of `x` [N, ...] without row i."""
    return jnp.concatenate([x[:i], x[i + 1 :]])


def seek(state: State, i: int, goal: Array) -> Array:
    """Return the force [2], as an action, that takes agent i to the place `goal` [2] and stops it
    there."""
    return jnp.clip(4.0 * (goal - state.place[i]) - 2.0 * state.velocity[i], -1.0, 1.0)


def nearest_push(force: Array) -> Array:
    """Return the discrete actions [...], int32, whose pushes are nearest to forces [..., 2]."""
    return (force @ PUSHES.T - 0.5 * jnp.square(PUSHES).sum(1)).argmax(-1).astype(jnp.int32)


def make_particles(
    name: str, scenario: Scenario, actions: str, reward: str, rewards: tuple[str, ...] = REWARDS
) -> Environment:
    """Build the environment of a scenario.

    actions: one of `ACTIONS`. reward: one of `rewards`, those of `REWARDS` that it offers.
    Raises `UserError` for others.
    """
    one_of(name, "actions", actions, ACTIONS)
    one_of(name, "reward", reward, rewards)
    s, discrete = scenario, actions == "discrete"
    count = len(s.agents)
    bodies = count + s.balls
    movers = np.arange(bodies) >= bool(s.words)
    # Forces come from what can collide alone, and act on movers: other pairs are not computed.
    hitting = np.flatnonzero(s.collides)
    pairs = (s.collides[:bodies, None] & s.collides) & ~np.eye(bodies, len(s.collides), dtype=bool)
    pairs = pairs[:, hitting]

    def channels(state: State, params: Params) -> tuple[dict[str, Array], dict[str, Tree]]:
        seen = dict(s.see(state))
        whole = {"state": jnp.concatenate([seen[agent] for agent in s.agents])}
        told = whole | s.tell(state, params)
        return seen, {"privileged": told, "metrics": s.metrics(state, params)}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        place_key, target_key = jax.random.split(key)
        shape = (bodies + s.landmarks, 2)
        place = jax.random.uniform(place_key, shape, jnp.float32, -1.0, 1.0)
        target = jax.random.randint(target_key, (), 0, max(s.landmarks, 1))
        state = State(place, jnp.zeros((bodies, 2)), jnp.zeros(s.words), target)
        state = s.begin(place_key, state)
        seen, more = channels(state, params)
        return state, timesteps.first(seen, jnp.zeros(count if reward == "each" else ()), **more)

    def force_of(action: Tree) -> Array:
        """Return the movers' pushes, [agents, 2]."""
        still = jnp.zeros(2)
        push = lambda x: jnp.asarray(PUSHES)[x] if discrete else jnp.clip(x, -1.0, 1.0)
        pairs = zip(s.agents, movers, strict=False)  # balls come last
        force = jnp.stack([push(action[agent]) if moves else still for agent, moves in pairs])
        return force if s.signs is None else force * s.signs[:, None]

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        del key
        force = force_of(action) * params.accel[:, None]
        if s.balls:
            force = jnp.concatenate([force, jnp.zeros((s.balls, 2))])
        gap, away = _gaps(state.place, params, np.arange(bodies), hitting)
        margin = params.contact_margin
        depth = jnp.maximum(-gap, 0) + margin * jnp.log1p(jnp.exp(-jnp.abs(gap) / margin))
        press = params.contact_force * depth * pairs
        force += (press[..., None] * away).sum(1) * movers[:, None]
        place = state.place.at[:bodies].add(state.velocity * params.dt)
        velocity = (1 - params.damping) * state.velocity + force * params.dt
        speed = vectors.norm(velocity)[:, None]
        most = jnp.asarray(params.max_speed)[:, None]
        velocity = jnp.where(speed > most, velocity / speed * most, velocity)
        said = state.said
        if s.words:
            word = action[s.agents[0]]
            said = jax.nn.one_hot(word, s.words) if discrete else jnp.clip(word, -1.0, 1.0)
        moved = dataclasses.replace(state, place=place, velocity=velocity, said=said)
        state = s.follow(state, moved, params)
        paid = s.reward(state, params)
        seen, more = channels(state, params)
        over = False if s.over is None else s.over(state, params)
        paid = paid if reward == "each" else paid.sum()
        return state, timesteps.following(seen, paid, over, **more)

    def expert(state: State, params: Params) -> dict[str, Array]:
        force = s.steer(state, params)
        chosen = nearest_push(force)
        moves = {agent: (chosen if discrete else force)[i] for i, agent in enumerate(s.agents)}
        word = state.target if discrete else jax.nn.one_hot(state.target, s.words)
        return moves | dict.fromkeys(s.agents[: bool(s.words)], word)

    def space(agent: str) -> Space:
        size = s.words if s.words and agent == s.agents[0] else 0
        if discrete:
            return Discrete(size or len(PUSHES))
        return Box(-1.0, 1.0, (size or 2,))

    def render(state: State, params: Params) -> np.ndarray:
        canvas = drawing.Canvas(PIXELS, PIXELS, PIXELS / 2.8, (PIXELS / 2, PIXELS / 2))
        s.scenery(canvas, params)
        kinds = zip(s.colors(int(state.target)), np.asarray(state.place).tolist(), strict=True)
        drawn = list(zip(kinds, np.asarray(params.radius).tolist(), strict=True))
        for (color, (x, y)), radius in reversed(drawn):  # agents last, on top
            canvas.circle((x, y), max(radius, 0.04), color)
        return canvas.frame()

    shapes = jax.eval_shape(lambda key: reset(key, s.params)[1].observation, jax.random.key(0))
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=s.params,
        observation_space={a: Box(-np.inf, np.inf, shapes[a].shape) for a in s.agents},
        action_space={agent: space(agent) for agent in s.agents},
        render=render,
        step_seconds=lambda state, params: params.dt,
        expert=jax.jit(expert, inline=True),
        agents=s.agents,
    )
    return time_limit(environment, s.steps)


def _gaps(
    place: Array, params: Params, these: np.ndarray, those: np.ndarray
) -> tuple[Array, Array]:
    """Return the distances [M, N] between the edges of `these` [M] and `those` [N], numbers of
    bodies and landmarks, negative where two overlap, and the unit vectors [M, N, 2] from those to
    these."""
    between = place[these][:, None] - place[those]
    distance = vectors.norm(between)
    radius: Any = jnp.asarray(params.radius)
    return distance - radius[these][:, None] - radius[those], between / distance[..., None]
