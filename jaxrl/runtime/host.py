"""Gymnasium environments on the host, stepped beside the jitted learner.

    environments = Environments("CartPole-v1", num_envs=8)
    config = settings.replace(ppo.Config(), {"num_envs": 8, "num_steps": 64})
    algorithm = learner(ppo(environments.env, config))
    run = start(algorithm, environments, random.key(0))
    run, row = train(algorithm, environments, run, 100)
    episodes = evaluate(environments.env, algorithm.policy(run.state), key)

`learner` replaces the source of an algorithm that learns from rollouts by one that is handed its
windows. `collect` fills a window [T, B] as `sources.rollouts` does: with the true last time step of
an episode, separate termination and truncation, and a memory reset at `first`. So the agent's `act`
and `update`, the divergence guard, metrics and checkpoints are the same as in every other run. The
same key gives the same run, as far as the environments respect their seeds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core import stream, trees
from jaxrl.core import train as loop
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.types import (
    Algorithm,
    Batch,
    Environment,
    Hyper,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
    struct,
)
from jaxrl.envs import adapters
from jaxrl.envs.adapters import gymnasium as conversions
from jaxrl.evaluation.evaluate import Episodes, episode_limit
from jaxrl.runtime.driver import Halted
from jaxrl.runtime.worker import Worker

POLL_SECONDS = 0.1  # between two checks whether to keep waiting for an environment
EPISODES, ACTIONS = np.uint32(2**32 - 2), np.uint32(2**32 - 3)  # branches of a run's key


def on_host(env: Environment | str) -> bool:
    """Return whether an environment, or one of this name, runs on the host."""
    return (env if isinstance(env, str) else env.name).startswith(conversions.PREFIX)


class EnvironmentFailed(Halted):
    """An environment that raised, or returned unusable values; the message says what."""


class Abandoned(Halted):
    """An environment that was no longer waited for, because `Environments.stopping` said so."""


class Environments:
    """`num_envs` (B) copies of a Gymnasium environment, and their present state.

    All calls of the environment, including its construction, are made in one thread of their own,
    so that a call that never returns can be abandoned.

    Args:
        make: a name that Gymnasium knows, or a function that returns a `gymnasium.Env`.
        asynchronous: run each copy in a process of its own, for environments slower than messages
            between processes. They are spawned (forking JAX's threads may hang), so a script needs
            its `__main__` guard.
        stopping: returns whether to stop. It is asked before each call of the environment and
            repeatedly during one; then `Abandoned` is raised, and the environments are unusable.

    Raises:
        UserError: for an environment that cannot be made.
        EnvironmentFailed: also later, if an environment raises, or returns values that are not
            finite or do not have the shape of its spaces.
    """

    def __init__(
        self,
        make: str | Callable[[], Any],
        num_envs: int,
        asynchronous: bool = False,
        stopping: Callable[[], bool] = lambda: False,
    ):
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, got {num_envs}.")
        gym, vector = adapters.package("gymnasium"), adapters.package("gymnasium.vector")
        if isinstance(make, str):
            conversions.builder(make)  # raises an error that explains a wrong name
            one = functools.partial(gym.make, make)
        else:
            one = make
        kind = vector.SyncVectorEnv
        if asynchronous:
            kind = functools.partial(vector.AsyncVectorEnv, context="spawn")
        # Disabled, so that a step returns its true successor; `step` below resets by itself.
        mode = vector.AutoresetMode.DISABLED
        copies = [lambda: conversions.with_shape_checks(one())] * num_envs

        def build():
            example = adapters.construct(str(make), one)
            name = make if isinstance(make, str) else type(example.unwrapped).__name__
            env = conversions.describe(example, conversions.PREFIX + name)
            example.close()
            return env, adapters.construct(str(make), lambda: kind(copies, autoreset_mode=mode))

        self.num_envs = num_envs
        self.stopping = stopping
        self._worker = Worker()
        self.env, self.vector = self._call(str(make), "its constructor", build)
        self.timestep: Any = None  # a TimeStep [B] of NumPy arrays; None before the first reset
        self.memory: Tree = None  # [B], after the last action
        self.episode_return: Any = None  # float32 [B], so far
        self.episode_length: Any = None  # int32 [B], so far

    def reset(self, key: Key) -> None:
        """Begin an episode in every copy, with seeds drawn from `key`."""
        seeds = jax.random.randint(key, (self.num_envs,), 0, np.iinfo(np.int32).max)
        seen = self._reset(seed=np.asarray(seeds).tolist())
        self.timestep = self._timestep(seen, first=np.ones(self.num_envs, bool))
        self.memory = None
        self.episode_return = np.zeros(self.num_envs, np.float32)
        self.episode_length = np.zeros(self.num_envs, np.int32)

    def step(self, action: Tree) -> tuple[TimeStep, stream.Endings]:
        """Act [B] and return the true successors and the episodes that ended.

        Copies whose episode ended continue with a fresh one in `timestep`.
        """
        taken = conversions.action(self.vector.single_action_space, action)
        seen, reward, terminated, truncated = self._step(taken)
        reward, done = np.asarray(reward, np.float32), np.asarray(terminated | truncated)
        following = self._timestep(seen, reward, terminated, truncated & ~terminated)
        self.episode_return = self.episode_return + reward
        self.episode_length = self.episode_length + 1
        ended: Any = done
        endings = stream.Endings(ended, self.episode_return, self.episode_length, {})
        if done.any():
            seen = self._reset(options={"reset_mask": done})
            self.episode_return = np.where(done, np.float32(0), self.episode_return)
            self.episode_length = np.where(done, 0, self.episode_length).astype(np.int32)
        self.timestep = self._timestep(seen, np.where(done, np.float32(0), reward), first=done)
        return following, endings

    def close(self) -> None:
        """Close the environments."""
        self._call(self.env.name, "close", self.vector.close)

    def _reset(self, **kwargs: Any) -> Any:
        def reset():
            seen, _ = self.vector.reset(**kwargs)
            conversions.check_finite(seen)
            return seen

        return self._call(self.env.name, "reset", reset)

    def _step(self, action: Any) -> Any:
        def step():
            *result, _ = self.vector.step(action)
            conversions.check_finite(*result[:2])
            return result

        return self._call(self.env.name, "step", step)

    def _call(self, name: str, where: str, function: Callable[[], Any]) -> Any:
        """Return the result of `function`, which runs code of the environment `name`."""
        call = None
        while not self.stopping():
            call = call or self._worker.begin(function)
            if call.done.wait(POLL_SECONDS):
                break
        else:
            raise Abandoned(f"Stopped waiting for the environment '{name}'.")
        if isinstance(call.error, UserError):
            raise call.error
        if call.error is not None:
            complaint = conversions.complaint(call.error, where)
            raise EnvironmentFailed(f"The environment '{name}' {complaint}.") from call.error
        return call.value

    def _timestep(
        self, seen: Any, reward: Any = None, terminated: Any = None, truncated: Any = None,
        first: Any = None,
    ) -> TimeStep:  # fmt: skip
        no: Any = np.zeros(self.num_envs, bool)
        return TimeStep(
            conversions.observation(self.vector.single_observation_space, seen),
            no.astype(np.float32) if reward is None else reward,
            no if terminated is None else terminated,
            no if truncated is None else truncated,
            no if first is None else first,
        )


@struct
class Window:
    """A batch [T, B] collected on the host, and the episodes that ended in it."""

    batch: Batch
    endings: stream.Endings


@functools.cache
def learner(algorithm: Algorithm) -> Algorithm:
    """Return `algorithm` with a source of windows that `collect` hands to it.

    Raises:
        UserError: unless it is an agent that learns from rollouts.
    """
    agent, source = algorithm.agent, algorithm.source
    wrong = UserError(
        f"'{algorithm.name}' cannot learn on the host; only an agent that learns from rollouts "
        "can, such as PPO."
    )
    if agent is None or source is None or not source.num_envs:
        raise wrong

    def window(key, hyper):
        policy = Policy(agent.act, agent.memory, agent.init(key, hyper))
        state, fresh, _ = source.collect(source.init(key, hyper, policy), policy, key)
        return source.sample(state, fresh, key)

    shapes = jax.eval_shape(window, jax.random.key(0), algorithm.hyper)
    if not isinstance(shapes, Batch) or shapes.mask is not None or shapes.tail is None:
        raise wrong

    def collect(state, policy, key):
        handed = state
        if not isinstance(state, Window):  # traced only for its shapes
            flag = jnp.zeros(shapes.transitions.reward.shape, bool)
            endings = stream.Endings(flag, flag.astype(jnp.float32), flag.astype(jnp.int32), {})
            handed = conversions.refuse(algorithm.name, Window(trees.zeros(shapes), endings))
        return (), handed.batch, stream.statistics(handed.endings)

    return learn(
        agent,
        Source(
            f"host({source.name})",
            init=lambda key, hyper, policy: (),
            collect=collect,
            sample=lambda state, fresh, key: fresh,
            env_steps=source.env_steps,
            num_envs=source.num_envs,
        ),
    )


@functools.partial(jax.jit, static_argnums=5)
def _act(policy: Policy, timestep: TimeStep, memory: Tree, key: Key, t: int, greedy: bool):
    memory = trees.where(timestep.first, policy.memory(timestep.first.shape[0]), memory)
    return policy.act(policy.state, timestep, memory, jax.random.fold_in(key, t), greedy)


def collect(
    environments: Environments, policy: Policy, key: Key, num_steps: int
) -> tuple[Batch, Any]:
    """Take `num_steps` (T) steps in all environments (B), from where they are.

    Returns a batch [T, B] and the episodes that ended. `Batch.env_steps` is left at 0.
    """
    before = environments.memory
    if before is None:
        before = environments.memory = policy.memory(environments.num_envs)
    rows = []
    env_steps: Any = np.float32(0)
    for t in range(num_steps):
        timestep = environments.timestep
        action, environments.memory, extras = _act(
            policy, timestep, environments.memory, key, t, False
        )
        action, extras = jax.device_get((action, extras))
        following, endings = environments.step(action)
        rows.append((Transition(timestep, action, following, (), extras), endings))
    transitions, endings = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    tail = (environments.timestep, environments.memory)
    return Batch(transitions, env_steps, memory=before, tail=tail), endings


def start(
    algorithm: Algorithm, environments: Environments, key: Key, hyper: Hyper | None = None
) -> loop.Run:
    """Start a new run, and its first episodes. As `jaxrl.core.train.start`."""
    environments.reset(jax.random.fold_in(key, EPISODES))
    return loop.start(algorithm, key, hyper)


def advance(
    algorithm: Algorithm, environments: Environments, run: loop.Run
) -> tuple[loop.Run, dict[str, Any]]:
    """Collect a window, learn from it, and return the metrics. `algorithm` is from `learner`."""
    num_envs = algorithm.source.num_envs if algorithm.source else 0
    if num_envs != environments.num_envs:
        raise UserError(
            f"There are {environments.num_envs} environments, but num_envs of '{algorithm.name}' "
            f"is {num_envs}; the numbers must be equal."
        )
    if environments.timestep is None:  # a resumed run: its episodes were not saved
        environments.reset(jax.random.fold_in(jax.random.fold_in(run.key, EPISODES), run.step))
    key = jax.random.fold_in(jax.random.fold_in(run.key, ACTIONS), run.step)
    num_steps = algorithm.env_steps // num_envs
    batch, endings = collect(environments, algorithm.policy(run.state), key, num_steps)
    env_steps: Any = np.float32((int(run.step) + 1) * algorithm.env_steps)
    window = Window(dataclasses.replace(batch, env_steps=env_steps), endings)
    handed = dataclasses.replace(run.state, source=window)
    return loop.advance(algorithm, dataclasses.replace(run, state=handed))


merge = jax.jit(m.merge)


def train(
    algorithm: Algorithm, environments: Environments, run: loop.Run, num_steps: int
) -> tuple[loop.Run, dict[str, Any]]:
    """Train on `num_steps` windows, and return their metrics in one row.

    As `jaxrl.core.train.train`.
    """
    row = None
    for _ in range(num_steps):
        run, metrics = advance(algorithm, environments, run)
        row = metrics if row is None else merge(row, metrics)
    return run, row or {}


def evaluate(
    env: Environment | Environments,
    policy: Policy,
    key: Key,
    episodes: int = 32,
    greedy: bool = True,
    max_steps: int | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Episodes:
    """Play `episodes` episodes side by side, each counted once.

    As `jaxrl.evaluation.evaluate.evaluate`, but on the host. `Environments` that are passed as
    `env` begin new episodes, one in each copy, and `episodes` is ignored.

    stopping: as in `Environments`, for the environments that are made here.

    Raises:
        UserError: if there is no time limit, or as `Environments` does.
    """
    if isinstance(env, Environments):
        return _play(env, policy, key, greedy, max_steps)
    environments = Environments(
        env.name.removeprefix(conversions.PREFIX), episodes, stopping=stopping
    )
    played = _play(environments, policy, key, greedy, max_steps)
    environments.close()  # does nothing to environments that failed or were abandoned
    return played


def _play(
    environments: Environments, policy: Policy, key: Key, greedy: bool, max_steps: int | None
) -> Episodes:
    max_steps = episode_limit(environments.env, max_steps)
    reset_key, key = jax.random.split(key)
    environments.reset(reset_key)
    memory = policy.memory(environments.num_envs)
    finished: Any = np.zeros(environments.num_envs, bool)
    returns, lengths = finished.astype(np.float32), finished.astype(np.int32)
    for t in range(max_steps):
        action, memory, _ = _act(policy, environments.timestep, memory, key, t, greedy)
        following, _ = environments.step(jax.device_get(action))
        returns += np.where(finished, 0, following.reward)
        lengths += ~finished
        finished |= following.done
        if finished.all():
            break
    return Episodes(returns, lengths, finished, {})
