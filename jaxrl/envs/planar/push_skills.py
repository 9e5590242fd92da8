"""Track demonstrations of pushing an object: one recorded clip for each of several skills.

The table is that of `push`, with a disc. Each skill has one short, noisy clip of states, played by
the scripted expert of `push`: from the middle of the table the disc is pushed to the right, up, to
the left or down. An episode begins at a state of a clip, and each step is paid for the similarity
of the state to the clip's next one.

Observation: float32 [11], that of `push`. Goal, in `timestep.goal`: float32 [4], the skill as a
one-hot; the moment of the clip is not shown. Action: float32 [2], the pusher's velocity in units of
`max_speed`, clipped to [-1, 1]. Reward: in [0, 1], the similarity times exp(-`contact_weight`)
where the pusher touches the disc in one of the two states only. The similarity of two states is
exp of minus the squared differences of the pusher's position, the disc's, and the one seen from the
other, in units of `place_scale`, and of both velocities, in units of `velocity_scale`.

Starts: with probability `noisy`, a state near that of a clip (normal noise of `noise` and
`velocity_noise`), which is followed by the most similar state of the same clip; with probability
`switched`, the state of another skill's clip that is most similar to the clip's. Between a start
and a clip that is less similar than 0.5, -floor(log10 similarity) steps, 10 at most, are not
compared: their reward is 0 and `privileged["masked"]` is true. Truncated at the end of the clip.
Metrics: `success`, whether the disc is within `goal_radius` of where the clip leaves it, and
`tracking`, the mean reward of the steps that are compared.

A small stand-in for the humanoids and balls of Yu et al. (2025), "SkillMimic-V2: learning robust
and generalizable interaction skills from sparse and noisy demonstrations", whose rewards, starts
and masked steps these are (authors' code), with scales of our own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.random import key as make_key
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.planar import push_pictures, vectors
from jaxrl.envs.planar.push import State as PushState
from jaxrl.envs.planar.push import push
from jaxrl.envs.wrappers.time_limit import State as LimitedState

SKILLS = ("right", "up", "left", "down")
AIMS = np.array([[0.25, 0.0], [0.0, 0.25], [-0.25, 0.0], [0.0, -0.25]], np.float32)  # m
START = np.array([-0.2, -0.2], np.float32)  # m, where the pusher begins in every clip
LENGTH = 36  # of a clip, at most
DEMONSTRATION_NOISE = 0.005  # m, standard deviation of each recorded coordinate
MOST_MASKED = 10
TOUCH = 0.01  # m between the surfaces, below which pusher and disc are in contact


@struct
class Params:
    inner: Any  # parameters of `push`
    clips: np.ndarray  # [K, L, 10]: pusher (position, velocity), disc (both, angle, spin)
    lengths: np.ndarray  # int32 [K], states of each clip; the last one is repeated
    links: np.ndarray  # int32 [K, K, L]: the state of clip j most similar to each of clip i
    start: int = -1  # clip * L + state of the next start; -1 draws clips and states uniformly
    noisy: float = 0.1  # probability of a start near a clip
    switched: float = 0.1  # probability of a start in another skill
    noise: float = 0.05  # m, standard deviation of a position of a noisy start
    velocity_noise: float = 0.1  # m/s, standard deviation of a velocity of a noisy start
    place_scale: float = 0.1  # m, difference of positions at which the similarity is 1/e
    velocity_scale: float = 0.5  # m/s, the same of velocities
    contact_weight: float = 1.0  # weight of a difference in contact


@struct
class State:
    inner: LimitedState
    clip: Array  # int32
    frame: Array  # int32, state of the clip that is followed
    masked: Array  # int32, steps that are not compared yet
    steps: Array  # int32, since the start
    paid: Array  # sum of rewards
    compared: Array  # number of steps that were compared


def similarity(a: Array, b: Array, params: Params) -> Array:
    """Return the similarity [...] in (0, 1] of states [..., 10], without contacts."""
    away = a - b
    square = lambda x: jnp.square(x).sum(-1)
    places = square(away[..., :2]) + square(away[..., 4:6]) + square(away[..., :2] - away[..., 4:6])
    speeds = square(away[..., 2:4]) + square(away[..., 6:8])
    scale = lambda x: jnp.square(jnp.asarray(x))
    return jnp.exp(-places / scale(params.place_scale) - speeds / scale(params.velocity_scale))


def touches(state: Array, params: Params) -> Array:
    """Return whether the pusher touches the disc in states [..., 10]."""
    clear = params.inner.object_radius + params.inner.pusher_radius + TOUCH
    return vectors.norm(state[..., :2] - state[..., 4:6]) < clear


def masked_steps(similar: Array) -> Array:
    """Return how many steps are not compared after a start of this similarity, int32 [...]."""
    steps = -jnp.floor(jnp.log10(jnp.maximum(similar, 10.0 ** -(MOST_MASKED + 1))))
    return jnp.where(similar > 0.5, 0, jnp.minimum(steps, MOST_MASKED)).astype(jnp.int32)


def most_similar(state: Array, clip: Array, length: Array, params: Params) -> tuple[Array, Array]:
    """Return the index of the state of a clip [L, 10] that is most similar to `state` [10], not its
    last one, and the similarity."""
    similar = similarity(clip, state, params)
    similar = jnp.where(jnp.arange(len(clip)) < length - 1, similar, -1.0)
    return similar.argmax().astype(jnp.int32), similar.max()


def stitch(params: Params) -> Array:
    """Return the links [K, K, L]: for each state of clip i the most similar one of clip j."""
    clips, lengths = jnp.asarray(params.clips), jnp.asarray(params.lengths)
    nearest = lambda state, clip, length: most_similar(state, clip, length, params)[0]
    to_clips = lambda state: jax.vmap(nearest, (None, 0, 0))(state, clips, lengths)
    return jnp.moveaxis(jax.vmap(jax.vmap(to_clips))(clips), -1, 1)


def as_vector(state: PushState) -> Array:
    return jnp.concatenate([state.pusher, state.object])


@functools.cache
def _demonstrate() -> tuple[np.ndarray, np.ndarray]:
    """Play the expert of `push`; return the clips [K, L, 10] and their lengths."""
    env = push()
    params = dataclasses.replace(env.params, continuing=True, goal_radius=0.01)
    expert = env.expert
    assert expert is not None

    def play(aim: Array) -> tuple[Array, Array]:
        still = jnp.zeros(2)
        begun = PushState(jnp.concatenate([START, still]), jnp.zeros(6), still, aim)

        def step(state, _):
            limited = LimitedState(state, jnp.int32(0))
            action = expert(limited, params)
            after = env.step(jax.random.key(0), limited, action, params)[0].inner
            near = vectors.norm(after.object[:2] - aim) <= params.goal_radius
            return after, (as_vector(state), near)

        _, (states, near) = jax.lax.scan(step, begun, None, LENGTH)
        return states, near

    with jax.ensure_compile_time_eval():
        states, near = jax.device_get(jax.jit(jax.vmap(play))(jnp.asarray(AIMS)))
        noise = jax.random.normal(make_key(0), (*states.shape[:2], 4))
        noise = DEMONSTRATION_NOISE * np.asarray(noise)
    states = np.array(states)
    states[..., :2] += noise[..., :2]
    states[..., 4:6] += noise[..., 2:]
    lengths = np.where(near.any(1), near.argmax(1) + 2, LENGTH).clip(max=LENGTH)
    last = np.minimum(np.arange(LENGTH), lengths[:, None] - 1)
    return np.take_along_axis(states, last[..., None], 1), lengths.astype(np.int32)


@functools.cache
def push_skills() -> Environment:
    """The four skills of pushing a disc."""
    inner = push()
    clips, lengths = _demonstrate()
    count = len(SKILLS)
    bare = Params(
        dataclasses.replace(inner.params, continuing=True),
        clips,
        lengths,
        np.zeros((count, count, LENGTH), np.int32),
    )
    with jax.ensure_compile_time_eval():
        params = dataclasses.replace(bare, links=np.asarray(jax.jit(stitch)(bare)))
    return Environment(
        name="push_skills",
        reset=jax.jit(_reset, inline=True),
        step=jax.jit(functools.partial(_step, inner), inline=True),
        params=params,
        observation_space=Box(-math.inf, math.inf, (11,)),
        action_space=Box(-1.0, 1.0, (2,)),
        max_steps=LENGTH + MOST_MASKED,
        render=_render,
        step_seconds=lambda state, params: params.inner.dt,
        scores={"success": "success", "tracking": "tracking"},
    )


def _render(state: State, params: Params) -> np.ndarray:
    """Draw the table, and as the goal where the clip leaves the disc."""
    aim = np.asarray(params.clips)[int(state.clip), -1, 4:6]
    return push_pictures.draw(state.inner.inner, params.inner, aim)


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    clips, lengths = jnp.asarray(params.clips), jnp.asarray(params.lengths)
    links = jnp.asarray(params.links)
    clip_key, frame_key, kind_key, other_key, noise_key = jax.random.split(key, 5)
    count, length = clips.shape[:2]
    clip = jax.random.randint(clip_key, (), 0, count)
    # Not at a clip's last state, after which there is nothing to follow.
    frame = jax.random.randint(frame_key, (), 0, lengths[clip] - 1)
    start = jnp.asarray(params.start)
    clip = jnp.where(start < 0, clip, start // length)
    frame = jnp.where(start < 0, frame, start % length)
    shown = _apart(clips[clip, frame], params)
    # Near the clip.
    scale = jnp.repeat(
        jnp.stack([params.noise, params.velocity_noise, params.noise, params.velocity_noise]), 2
    )
    near = _apart(shown.at[:8].add(scale * jax.random.normal(noise_key, (8,))), params)
    found, alike = most_similar(near, clips[clip], lengths[clip], params)
    # In another skill.
    other = (clip + jax.random.randint(other_key, (), 1, count)) % count
    away = _apart(clips[other, links[clip, other, frame]], params)
    kind = jax.random.uniform(kind_key)
    noisy = kind < params.noisy
    switched = ~noisy & (kind < jnp.asarray(params.noisy) + params.switched)
    begun = jnp.where(noisy, near, jnp.where(switched, away, shown))
    followed = jnp.where(noisy, found, frame)
    similar = jnp.where(noisy, alike, similarity(begun, shown, params))
    still = jnp.zeros(2)
    inner = LimitedState(PushState(begun[:4], begun[4:], still, begun[4:6]), jnp.int32(0))
    nothing = jnp.zeros(())
    state = State(inner, clip, followed, masked_steps(similar), jnp.int32(0), nothing, nothing)
    return state, timesteps.first(**_channels(state, params, jnp.bool_(False)))


def _apart(state: Array, params: Params) -> Array:
    """Return a state [10] in which the pusher is moved off the disc if it would overlap it."""
    clear = params.inner.object_radius + params.inner.pusher_radius
    away = state[:2] - state[4:6]
    distance = vectors.norm(away)
    outward = jnp.where(distance > 1e-6, away / distance, jnp.asarray([-1.0, 0.0]))
    moved = jnp.where(distance < clear, state[4:6] + clear * outward, state[:2])
    return state.at[:2].set(moved)


def _channels(state: State, params: Params, masked: Array) -> dict[str, Any]:
    """Return the channels of a time step besides its reward."""
    last = jnp.asarray(params.clips)[state.clip, -1]
    pushed = state.inner.inner
    angle = pushed.object[4]
    success = vectors.norm(pushed.object[:2] - last[4:6]) <= params.inner.goal_radius
    turned = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    parts = [pushed.pusher, pushed.object[:2], turned, pushed.object[2:4], pushed.object[5:]]
    return {
        "observation": jnp.concatenate(parts),
        "goal": jax.nn.one_hot(state.clip, len(SKILLS), dtype=jnp.float32),
        "privileged": {"masked": masked},
        "metrics": {
            "success": success.astype(jnp.float32),
            "tracking": state.paid / jnp.maximum(state.compared, 1.0),
        },
    }


def _step(
    env: Environment, key: Key, state: State, action: Array, params: Params
) -> tuple[State, TimeStep]:
    before = dataclasses.replace(state.inner, steps=jnp.int32(0))
    inner, _ = env.step(key, before, action, params.inner)
    clips, length = jnp.asarray(params.clips), jnp.asarray(params.lengths)[state.clip]
    masked = state.masked > 0
    frame = jnp.where(masked, state.frame, jnp.minimum(state.frame + 1, length - 1))
    now, shown = as_vector(inner.inner), clips[state.clip, frame]
    differs = touches(now, params) != touches(shown, params)
    reward = similarity(now, shown, params) * jnp.exp(-params.contact_weight * differs)
    reward = jnp.where(masked, 0.0, reward)
    state = State(
        inner,
        state.clip,
        frame,
        jnp.maximum(state.masked - 1, 0),
        state.steps + 1,
        state.paid + reward,
        state.compared + ~masked,
    )
    over = ~masked & (frame >= length - 1)
    timestep = timesteps.following(reward=reward, **_channels(state, params, masked))
    return state, dataclasses.replace(timestep, truncated=over)
