"""Offline learning in which each run draws a dataset of its own, from its own training run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.course import once
from experiments.evidence.declare import Arena
from jaxrl import envs, losses
from jaxrl.algorithms.offline.shared import making
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import hyper as hypers
from jaxrl.core import metrics, spaces, trees
from jaxrl.core.learn import LearnerState, learn
from jaxrl.core.train import Run, advance, start
from jaxrl.core.types import (
    Algorithm,
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    Transition,
    struct,
)
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit.normalization import add_normalization
from jaxrl.sources.rollouts import rollouts

STREAMS = 16  # columns of every dataset, as in PPO's training
HELD_OUT = 2  # columns from which nothing is learned
EPISODES = 6  # of each column, where a policy is recorded
MEDIUM = making.MEDIUM / 100  # share of the way from a new policy's return to the best one's
PARTS = 20  # moments of the training run at which its policy is evaluated


@struct
class Dataset:
    """A dataset of one run, as the state of its source."""

    transitions: Transition  # [T, B]: B columns of complete episodes
    rows: Array  # int32: number of T that are filled
    batches: Array  # float32: number of batches sampled so far


@dataclasses.dataclass(frozen=True)
class OnOwnData:
    """An algorithm in which each run first draws its dataset, the kind `data.name` of `draw`."""

    builder: Any

    @property
    def Config(self) -> type:
        return self.builder.Config

    @property
    def name(self) -> str:
        return f"{self.builder.name} on data of its own"

    def __call__(self, env: Environment, config: Any) -> Algorithm:
        return _build(self.builder, env, config)


@functools.cache
def _build(builder: Any, env: Environment, config: Any) -> Algorithm:
    agent = add_normalization(builder.agent(env, config), env, config)
    updates, data = builder.updates(config), config.data
    size = data.updates * data.batch_size // updates
    return learn(agent, source(env, data, config.discount, size), updates)


def source(env: Environment, data: Any, discount: float, size: int) -> Source:
    """Sample batches of `size` from a dataset without its held-out columns.

    Steps are gradient steps.
    """

    def collect(state: Dataset, policy, key):
        batches = state.batches + data.updates
        return dataclasses.replace(state, batches=batches), batches, {}

    def sample(state: Dataset, fresh, key) -> Batch:
        keys = jax.random.split(key)
        row = jax.random.randint(keys[0], (size,), 0, state.rows)
        column = jax.random.randint(keys[1], (size,), 0, STREAMS - HELD_OUT)
        return Batch(jax.tree.map(lambda x: x[row, column], state.transitions), env_steps=fresh)

    init = lambda key, hyper, policy: draw(env, data.name, discount, key)
    return Source(f"drawn({data.name})", init, collect, sample, env_steps=data.updates)


def draw(env: Environment, kind: str, discount: float, key: Key, tiny: bool = False) -> Dataset:
    """Draw a dataset as `making` makes them, all of it from `key`.

    kind: medium-replay, medium, expert, or mixed (medium and expert). The extras are the next
    action and the discounted return, which Uni-O4 learns from. A tiny dataset is of a training run
    that is too short.
    """
    how = making.recipe(env)
    algorithm = ppo(env, how.agent)
    assert algorithm.agent is not None and algorithm.source is not None
    assert env.max_steps is not None
    agent, length = algorithm.agent, EPISODES * env.max_steps
    recording = learn(algorithm.agent, making.with_newest(algorithm.source))
    train_key, medium_key, expert_key, *keys = jax.random.split(key, 3 + 1 + PARTS)
    steps = 1 if tiny else how.steps // recording.env_steps // PARTS
    reached = lambda run, key: evaluate(env, recording.policy(run.state), key, 32).returns.mean()

    def step(run, _):
        run, _ = advance(recording, run)
        return run, run.state.source.transitions

    def part(run, key):
        run, window = jax.lax.scan(step, run, None, steps)
        return run, (window, run.state.agent, reached(run, key))

    run = start(recording, train_key)
    low = reached(run, keys[0])
    _, (windows, policies, scores) = jax.lax.scan(part, run, jnp.stack(keys[1:]))
    best = scores.argmax()
    middle = (scores >= low + MEDIUM * (scores[best] - low)).argmax()

    def record(which, key):
        policy = Policy(agent.act, agent.memory, jax.tree.map(lambda x: x[which], policies))
        played = rollouts(env, STREAMS, length)
        keys = jax.random.split(key)
        return played.collect(played.init(keys[0], {}, policy), policy, keys[1])[1].transitions

    if kind == "medium-replay":
        x = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), windows)
        rows = (middle + 1) * (len(x.reward) // PARTS)
    else:
        wanted = {"medium": [(middle, medium_key)], "expert": [(best, expert_key)]}
        wanted["mixed"] = wanted["medium"] + wanted["expert"]
        parts = [record(*one) for one in wanted[kind]]
        x = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        rows = jnp.int32(len(x.reward))
    action = spaces.clip(env.action_space, x.action)  # as an environment does
    nothing = jnp.zeros(STREAMS)
    came = {
        "next_action": jax.tree.map(lambda x: jnp.roll(x, -1, 0), action),
        "return": losses.discounted_returns(x.reward, x.done, nothing, discount),
    }
    x = dataclasses.replace(x, action=action, task=(), extras=came)
    # Episodes of all columns begin and end together, unless one terminates.
    rows = jnp.maximum(1, rows // env.max_steps) * env.max_steps
    return Dataset(x, rows, jnp.float32(0))


def draw_all(
    env: Environment, kind: str, discount: float, keys: Key, tiny: bool = False
) -> Dataset:
    """Draw the datasets of `keys` [runs]."""
    return once(_draw, keys, env, kind, discount, tiny)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _draw(keys, env, kind, discount, tiny):
    return jax.vmap(lambda key: draw(env, kind, discount, key, tiny))(keys)


def own(arena: Arena, tiny: bool) -> Callable[[Key], Dataset]:
    """Return the function that draws a run's dataset from its key."""
    env = envs.make(arena.env, **arena.params)
    kind, discount = arena.settings["data.name"], arena.settings["discount"]
    return lambda key: draw(env, kind, discount, key, tiny)


def begin(algorithm: Algorithm, key: Key, data: Dataset, hyper: Any = None) -> Run:
    """Start a run on a dataset that is drawn already."""
    assert algorithm.agent is not None
    agent = algorithm.agent.init(key, hypers.override(algorithm.hyper, hyper))
    state = LearnerState(agent, data, jnp.int32(0), jnp.int32(metrics.NEVER))
    return Run(state, key, jnp.int32(0))


def held_out_error(policy: Policy, data: Dataset, key: Key, size: int = 2048) -> Array:
    """Return the mean squared error of greedy actions on a held-out sample."""
    keys = jax.random.split(key)
    row = jax.random.randint(keys[0], (size,), 0, data.rows)
    column = STREAMS - 1 - jax.random.randint(keys[1], (size,), 0, HELD_OUT)
    x = jax.tree.map(lambda x: x[row, column], data.transitions)
    action = policy.act(policy.state, x.timestep, policy.memory(size), key, True)[0]
    return jnp.square(action - x.action).mean()


def better(new: Any, new_error: Array, old: Any, old_error: Array) -> tuple[Any, Array]:
    """Return the one with the lower error, and that error."""
    return trees.where(new_error < old_error, new, old), jnp.minimum(new_error, old_error)
