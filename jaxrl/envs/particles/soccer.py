"""Soccer: two teams of discs push a ball toward the other team's goal.

The field is 2.4 m x 1.6 m, with a goal of 0.6 m in the middle of each short side. The ball bounces
off the lines beside the goals, players may go 0.2 m beyond them. The team `left` attacks to the
right, `right` to the left, and a player of `right` sees and pushes in a field that is turned by 180
degrees, so that one policy can play on both sides. At first the ball lies in the middle, up to 0.4
m to the side, and players are anywhere in their own half.

Observation: of each player, float32 [8 + 4 (N - 1)]: its velocity and place, where the ball is from
here and its velocity, then the places (from here) and velocities of the others of its team, and of
the other team. Reward: 1 to each of the team that scores, which ends the episode, and -1 to each of
the other; besides, `progress` times the meters that the ball is about to roll in a step toward the
other team's goal. Metrics: `won`, 1 if the left team scored, 0 if the right one did, and 1/2
otherwise; `scored`, whether any did. Time limit 100 steps.

Privileged, beside the state: `event`, whether the ball was just touched by another player than the
one who touched it last, bool; and `skills`, float32 [N, 3], rewards by which a player could learn
skills: to attack (how fast it approaches the place behind the ball, and the ball the goal, m/s), to
guard (minus the distance to the middle between ball and own goal, m), and to support (minus that to
a place ahead of the ball, on the side of the field that the player is on, m).

Mechanics and actions are those of `particles.mechanics`; that balls lose 5 % of their velocity in a
step, and other numbers, are ours. Expert: who is nearest to the ball goes behind it and pushes it
toward the goal; the others of its team stay between ball and own goal.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs import drawing
from jaxrl.envs.options import at_least
from jaxrl.envs.particles import mechanics
from jaxrl.envs.particles.mechanics import Scenario, make_particles, others
from jaxrl.envs.planar import vectors

TEAMS = ("left", "right")
SKILLS = ("attack", "guard", "support")
LENGTH, WIDTH, GOAL = 1.2, 0.8, 0.3  # m, half of the field's length and width, and of a goal's
OUTSIDE = 0.2  # m that players may go beyond the lines
MAX_STEPS = 100
PLAYER, BALL = 0.1, 0.06  # m, radii
BEHIND = 0.2  # m from the ball to the place behind it
LEAD = 0.2  # s of the ball's roll that players foresee
AHEAD = 0.4  # m from the ball to the place of those who support


@struct
class Params(mechanics.Params):
    """Parameters of soccer."""

    bounce: float = 0.8  # share of the ball's speed that it keeps when it bounces off a line
    progress: float = 0.1  # 1/m, reward for the ball's way toward the other team's goal


@struct
class State(mechanics.State):
    """State of soccer: that of particles, and who touched the ball."""

    toucher: Any = 0  # int32, the player who touched the ball last; the number of players at first
    event: Any = False  # bool, whether that changed in this step


def play(view: Array) -> Array:
    """Return the push [..., 2] that takes a player behind the ball, around it if need be, and the
    ball toward the other team's goal, from an observation [..., D]."""
    velocity, here, ball, roll = read(view)
    ball = ball + LEAD * roll  # where it will be
    heading = _unit(jnp.asarray([LENGTH, 0.0]) - here - ball)
    along = (ball * heading).sum(-1, keepdims=True)  # m from here to the ball along its way
    beside = ball - along * heading
    ready = (along > 0) & (vectors.norm(beside)[..., None] < 0.2 * along + 0.02)
    # In front of the ball: pass it on the nearer side.
    front = along < BEHIND / 2
    place = ball - BEHIND * heading - front * (2 * BEHIND * _unit(beside))
    approach = 8.0 * place - 2.0 * (velocity - roll)
    return jnp.clip(jnp.where(ready, 10.0 * ball, approach), -1.0, 1.0)


def guard(view: Array) -> Array:
    """Return the push [..., 2] that takes a player to the middle between ball and own goal, from an
    observation [..., D]."""
    velocity, here, ball, _ = read(view)
    return jnp.clip(4.0 * (guard_place(here + ball) - here) - 2.0 * velocity, -1.0, 1.0)


def team(view: Array, players: int) -> Array:
    """Return the push [..., 2] of a player who plays if it is the nearest of its team to the ball,
    and guards otherwise; `players` of a team."""
    _, _, ball, _ = read(view)
    rest = view[..., 8:]
    mates = rest.reshape(*rest.shape[:-1], -1, 4)[..., : players - 1, :2]
    distance = vectors.norm(ball)[..., None]
    nearest = (distance <= vectors.norm(ball[..., None, :] - mates)).all(-1, keepdims=True)
    return jnp.where(nearest, play(view), guard(view))


def read(view: Array) -> tuple[Array, Array, Array, Array]:
    """Return own velocity, own place, the way to the ball and its velocity, all [..., 2], from
    observations [..., D]."""
    velocity, here, ball, roll = jnp.split(view[..., :8], 4, -1)
    return velocity, here, ball, roll


def guard_place(ball: Array) -> Array:
    """Return the middle [..., 2] between ball and own goal, in the field as its team sees it."""
    return (ball + jnp.asarray([-LENGTH, 0.0])) / 2


def goal_of(state: mechanics.State, players: int) -> Array:
    """Return 1 where the ball is in the right goal, -1 where it is in the left one, 0 elsewhere:
    float32."""
    ball = state.place[2 * players]
    inside = (jnp.abs(ball[0]) > LENGTH) & (jnp.abs(ball[1]) < GOAL)
    return jnp.where(inside, jnp.sign(ball[0]), 0.0)


def _unit(way: Array) -> Array:
    return way / (vectors.norm(way)[..., None] + 1e-6)


@functools.cache
def soccer(players: int = 2, actions: str = "continuous") -> Environment:
    """Soccer of two teams. `players` of each, at least 1. `actions`: "continuous" or "discrete"."""
    at_least("soccer", "players", players, 1)
    count = 2 * players
    names = tuple(f"{side}_{i}" for side in TEAMS for i in range(players))
    signs = np.repeat(np.array([1, -1], np.float32), players)
    mates = [np.arange(players) + (i >= players) * players for i in range(count)]

    def views(state: State) -> Array:
        """Return what all players see, [N, D]."""
        rows = []
        for i in range(count):
            here, ball = state.place[i], state.place[count]
            both = jnp.concatenate([state.place[:count] - here, state.velocity[:count]], 1)
            own, other = both[mates[i]], both[mates[i - players]]
            around = jnp.concatenate([others(own, i % players), other])
            first = [state.velocity[i], here, ball - here, state.velocity[count]]
            rows.append(signs[i] * jnp.concatenate([*first, around.ravel()]))
        return jnp.stack(rows)

    def see(state: State) -> dict[str, Array]:
        return dict(zip(names, views(state), strict=True))

    def begin(key: Key, state: mechanics.State) -> State:
        ball_key, key = jax.random.split(key)
        place = jax.random.uniform(key, (count, 2), minval=-1.0)
        half = jnp.asarray([0.4, 0.7]) * place - jnp.asarray([0.6, 0.0])
        ball = jax.random.uniform(ball_key, (), minval=-0.4, maxval=0.4)
        place = jnp.concatenate([half * signs[:, None], jnp.stack([jnp.zeros(()), ball])[None]])
        return State(place, state.velocity, state.said, state.target, jnp.int32(count), ~(ball < 2))

    def follow(before: State, after: State, params: Params) -> State:
        """Keep players near the field, let the ball bounce, and note who touches it."""
        edge = jnp.asarray([LENGTH, WIDTH])
        place, velocity = after.place[:count], after.velocity[:count]
        inside = jnp.clip(place, -edge - OUTSIDE, edge + OUTSIDE)
        # A player stops at the edge, but may leave it.
        velocity = jnp.where((inside != place) & (velocity * place > 0), 0.0, velocity)
        ball, roll = after.place[count], after.velocity[count]
        out = jnp.abs(ball) > edge
        out = out.at[0].set(out[0] & (jnp.abs(ball[1]) >= GOAL))
        back = jnp.sign(ball) * (2 * edge - jnp.abs(ball))
        roll = jnp.where(out & (roll * ball > 0), -params.bounce * roll, roll)
        ball = jnp.where(out, back, ball)
        gap = vectors.norm(inside - ball) - jnp.asarray(params.radius)[:count]
        gap -= jnp.asarray(params.radius)[count]
        toucher = jnp.where((gap < 0).any(), gap.argmin(), before.toucher).astype(jnp.int32)
        return dataclasses.replace(
            after,
            place=jnp.concatenate([inside, ball[None]]),
            velocity=jnp.concatenate([velocity, roll[None]]),
            toucher=toucher,
            event=toucher != before.toucher,
        )

    def pay(state: State, params: Params) -> Array:
        ahead = goal_of(state, players) + params.progress * state.velocity[count, 0] * params.dt
        return ahead * jnp.asarray(signs)

    def skill_rewards(state: State) -> Array:
        """Return the rewards of all players for each of `SKILLS`, [N, 3]."""
        turned = jnp.asarray(signs)[:, None]
        here, velocity = state.place[:count] * turned, state.velocity[:count] * turned
        ball, roll = state.place[count] * turned, state.velocity[count] * turned
        heading = _unit(jnp.asarray([LENGTH, 0.0]) - ball)
        toward = _unit(ball - BEHIND * heading - here)
        attack = (velocity * toward + 2 * roll * heading).sum(-1)
        side = jnp.where(here[:, 1] < 0, -1.0, 1.0)
        ahead = jnp.stack([jnp.minimum(ball[:, 0] + AHEAD, LENGTH), side * WIDTH / 2], 1)
        distance = lambda place: vectors.norm(place - here)
        return jnp.stack([attack, -distance(guard_place(ball)), -distance(ahead)], 1)

    def tell(state: State, params: Params) -> dict[str, Array]:
        del params
        return {"event": state.event, "skills": skill_rewards(state)}

    def metrics(state: State, params: Params) -> dict[str, Array]:
        del params
        goal = goal_of(state, players)
        return {"won": (goal + 1) / 2, "scored": jnp.abs(goal)}

    scenario = Scenario(
        names,
        0,
        Params(
            np.array([PLAYER] * count + [BALL], np.float32),
            np.full(count, 4.0, np.float32),
            np.array([1.0] * count + [1.5], np.float32),
            damping=np.array([[0.25]] * count + [[0.05]], np.float32),
            contact_force=200.0,
        ),
        np.ones(count + 1, bool),
        see,
        pay,
        lambda state, params: team(views(state), players),
        lambda target: [drawing.BLUE] * players + [drawing.ORANGE] * players + [drawing.INK],
        metrics=metrics,
        balls=1,
        signs=signs,
        begin=begin,
        follow=follow,
        over=lambda state, params: goal_of(state, players) != 0,
        tell=tell,
        scenery=_draw_field,
        steps=MAX_STEPS,
    )
    env = make_particles("soccer", scenario, actions, "each", ("each",))
    return dataclasses.replace(env, scores={"won": "won"})


def _draw_field(canvas: drawing.Canvas, params: Params) -> None:
    """Draw the field, the line in its middle and both goals."""
    del params
    corners = [(-LENGTH, -WIDTH), (LENGTH, -WIDTH), (LENGTH, WIDTH), (-LENGTH, WIDTH)]
    canvas.polygon(corners, drawing.SHADE)
    canvas.line([(0.0, -WIDTH), (0.0, WIDTH)], drawing.PAPER, 0.02)
    for x in (-LENGTH, LENGTH):
        canvas.line([(x, -GOAL), (x, GOAL)], drawing.GREEN, 0.04)
