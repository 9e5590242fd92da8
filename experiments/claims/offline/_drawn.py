"""Learning from datasets of which each run draws its own, from a training run of its own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
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
from jaxrl.kit.normalization import normalized
from jaxrl.sources.rollouts import rollouts

STREAMS = 16  # side by side in every set, as in PPO's training
HELD_OUT = 2  # of them, from which nothing is learned
EPISODES = 6  # of each, where a policy is recorded
MEDIUM = making.MEDIUM / 100  # of the way from a new policy's return to the best one's
PARTS = 20  # moments of the training run at which its policy is evaluated


@struct
class Drawn:
    transitions: Transition  # [T, B]: of B streams, each whole episodes
    rows: Array  # int32: how many of T there are
    batches: Array  # float32: drawn so far


@dataclasses.dataclass(frozen=True)
class OnDrawn:
    """`system`, in whose source each run draws a dataset first, `data.name` of `draw`."""

    system: Any

    @property
    def Config(self) -> type:  # as a system has it
        return self.system.Config

    @property
    def name(self) -> str:
        return f"{self.system.name} on data of its own"

    def __call__(self, env: Environment, config: Any) -> Algorithm:
        return _built(self.system, env, config)


@functools.cache
def _built(system: Any, env: Environment, config: Any) -> Algorithm:
    agent = normalized(system.agent(env, config), env, config)
    updates, data = system.updates(config), config.data
    size = data.updates * data.batch_size // updates
    return learn(agent, source(env, data, config.discount, size), updates)


def source(env: Environment, data: Any, discount: float, size: int) -> Source:
    """Batches of `size` from a drawn set less what is held out. Steps are gradient steps."""

    def collect(state: Drawn, policy, key):
        batches = state.batches + data.updates
        return dataclasses.replace(state, batches=batches), batches, {}

    def sample(state: Drawn, fresh, key) -> Batch:
        keys = jax.random.split(key)
        row = jax.random.randint(keys[0], (size,), 0, state.rows)
        column = jax.random.randint(keys[1], (size,), 0, STREAMS - HELD_OUT)
        return Batch(jax.tree.map(lambda x: x[row, column], state.transitions), env_steps=fresh)

    init = lambda key, hyper, policy: draw(env, data.name, discount, key)
    return Source(f"drawn({data.name})", init, collect, sample, env_steps=data.updates)


def draw(env: Environment, kind: str, discount: float, key: Key, tiny: bool = False) -> Drawn:
    """A set as `making` makes them, all of it from `key`: medium-replay, medium, expert,
    or mixed, the last two together. Its extras are what came of each action, which
    Uni-O4 learns from. A tiny one is of a training run that is too short."""
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

    def recorded(which, key):
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
        parts = [recorded(*one) for one in wanted[kind]]
        x = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        rows = jnp.int32(len(x.reward))
    action = spaces.clip(env.action_space, x.action)  # as an environment does
    nothing = jnp.zeros(STREAMS)
    came = {
        "next_action": jax.tree.map(lambda x: jnp.roll(x, -1, 0), action),
        "return": losses.discounted_returns(x.reward, x.done, nothing, discount),
    }
    x = dataclasses.replace(x, action=action, task=(), extras=came)
    # Episodes of all streams begin and end together, unless one terminates.
    rows = jnp.maximum(1, rows // env.max_steps) * env.max_steps
    return Drawn(x, rows, jnp.float32(0))


def drawn(env: Environment, kind: str, discount: float, keys: Key, tiny: bool = False) -> Drawn:
    """The sets of `keys` [runs]."""
    return once(_draw, keys, env, kind, discount, tiny)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _draw(keys, env, kind, discount, tiny):
    return jax.vmap(lambda key: draw(env, kind, discount, key, tiny))(keys)


def once(compute: Callable[..., Any], keys: Key, *more: Hashable) -> Any:
    """compute(keys, *more), of which row i depends on key i alone, each key once. What came last is
    kept for the next side on the same keys."""
    data = np.asarray(jax.random.key_data(keys))
    _, first, which = np.unique(data, axis=0, return_index=True, return_inverse=True)
    known = np.ascontiguousarray(data[first])
    generator = str(jax.random.key_impl(keys))
    found = _kept(compute, generator, known.tobytes(), known.shape, more)
    return jax.tree.map(lambda x: x[which.reshape(-1)], found)


@functools.lru_cache(maxsize=2)
def _kept(compute, generator: str, data: bytes, shape, more) -> Any:
    known = jnp.asarray(np.frombuffer(data, np.uint32).reshape(shape))
    return compute(jax.random.wrap_key_data(known, impl=generator), *more)


def begin(algorithm: Algorithm, key: Key, data: Drawn, hyper: Any = None) -> Run:
    """A new run on `data`, which it need not draw."""
    assert algorithm.agent is not None
    agent = algorithm.agent.init(key, hypers.override(algorithm.hyper, hyper))
    state = LearnerState(agent, data, jnp.int32(0), jnp.int32(metrics.NEVER))
    return Run(state, key, jnp.int32(0))


def held_out_error(policy: Policy, data: Drawn, key: Key, size: int = 2048) -> Array:
    """The mean squared error of greedy actions on a sample of what was held out."""
    keys = jax.random.split(key)
    row = jax.random.randint(keys[0], (size,), 0, data.rows)
    column = STREAMS - 1 - jax.random.randint(keys[1], (size,), 0, HELD_OUT)
    x = jax.tree.map(lambda x: x[row, column], data.transitions)
    action = policy.act(policy.state, x.timestep, policy.memory(size), key, True)[0]
    return jnp.square(action - x.action).mean()


def better(new: Any, new_error: Array, old: Any, old_error: Array) -> tuple[Any, Array]:
    """Whichever has the lower error."""
    return trees.where(new_error < old_error, new, old), jnp.minimum(new_error, old_error)
