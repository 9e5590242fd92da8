"""Environments on the host, stepped beside the jitted learner.

    environments = Environments("CartPole-v1", num_envs=8)
    config = settings.replace(ppo.Config(), {"num_envs": 8, "num_steps": 64})
    algorithm = ppo(environments.env, config)
    run = start(algorithm, environments, random.key(0))
    run, row = train(algorithm, environments, run, 100)
    episodes = evaluate(environments.env, algorithm.policy(run.state), key)

Algorithms are built as everywhere; in an environment on the host their source is handed its windows
(`sources.handed`). A window [T, B] is filled as `sources.rollouts` does: with the true last time
step of an episode, separate termination and truncation, and a memory reset at `first`. So replay
buffers, the agent's `act` and `update`, the divergence guard, metrics and checkpoints are the same
as in every other run. The same key gives the same run, as far as the environments respect their
seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core import learn, random, shared
from jaxrl.core import metrics as m
from jaxrl.core import train as loop
from jaxrl.core.types import Algorithm, Environment, Hyper, Key, Policy
from jaxrl.evaluation.evaluate import Episodes, episode_limit
from jaxrl.evaluation.render import Recording
from jaxrl.runtime.driver import Program, Progress
from jaxrl.runtime.environments import Abandoned, EnvironmentFailed, Environments
from jaxrl.runtime.players import Players, by_member, move
from jaxrl.sources.handed import Window, check_played, hand

__all__ = [
    "Abandoned",
    "EnvironmentFailed",
    "Environments",
    "Players",
    "advance",
    "evaluate",
    "record",
    "start",
    "train",
]

EPISODES, ACTIONS = np.uint32(2**32 - 2), np.uint32(2**32 - 3)  # branches of a run's key


def players(
    algorithm: Algorithm, environments: Environments | Players, members: int | None = None
) -> Players:
    """Return who plays the windows of an algorithm.

    Raises `UserError` for an algorithm that plays inside of its program, and unless there are as
    many environments as it steps.
    """
    if isinstance(environments, Players):
        return environments
    return Players([environments], check_played(algorithm.source, algorithm.name), members=members)


@functools.cache
def program(algorithm: Algorithm, members: int | None = None) -> Program:
    """Return the compiled functions that the learner of an algorithm runs as."""
    return Program(algorithm, members)


def start(
    algorithm: Algorithm,
    environments: Environments | Players,
    key: Key,
    hyper: Hyper | None = None,
) -> loop.Run:
    """Start a new run, its first episodes and its warm-up. As `jaxrl.core.train.start`.

    With members, `key` and `hyper` have a leading axis [members].
    """
    playing = players(algorithm, environments)
    started = program(algorithm, playing.members).start(key, hyper)
    playing.reset(_first(_fold_in(key, EPISODES)))
    return warm_up(algorithm, playing, started.run)


def warm_up(algorithm: Algorithm, playing: Players, run: loop.Run) -> loop.Run:
    """Play what the source of a new run collects before the first update."""
    source = algorithm.source
    assert source is not None
    policy, key = algorithm.policy(run.state), _fold_in(run.key, ACTIONS)
    for number in range(source.warmup):
        window = playing.window(policy, lambda ahead, n=number: _fold_in(key, n + ahead))
        held, rest = _take_apart(run)
        run = _fill(program(algorithm, playing.members), held, rest, window, np.int32(number))
    return run


def advance(
    algorithm: Algorithm, environments: Environments | Players, run: loop.Run
) -> tuple[loop.Run, dict[str, Any]]:
    """Play a window, learn from it, and return the metrics.

    The buffers of the source of `run` are reused, so `run` cannot be used afterwards.
    """
    return train(algorithm, environments, run, 1)


def train(
    algorithm: Algorithm, environments: Environments | Players, run: loop.Run, num_steps: int
) -> tuple[loop.Run, dict[str, Any]]:
    """Train on `num_steps` windows, and return their metrics in one row.

    As `jaxrl.core.train.train`. The buffers of the source of `run` are reused, so `run` cannot be
    used afterwards.
    """
    playing = players(algorithm, environments)
    own = program(algorithm, playing.members)
    progress, step = Progress(run, own.empty_row(run)), stepper(own, playing, run)
    for _ in range(num_steps):
        progress = step(progress)
    return progress.run, progress.row


def stepper(own: Program, playing: Players, run: loop.Run) -> Callable[[Progress], Progress]:
    """Return the function that takes the next step of an algorithm, beginning with that of `run`.

    It reuses the buffers of the source of its argument's run.
    """
    algorithm, source = own.algorithm, own.algorithm.source
    assert source is not None
    done = int(np.max(jax.device_get(run.step)))
    numbers = itertools.count(source.warmup + done)
    key = _fold_in(run.key, ACTIONS)
    if playing.environments[0].timestep is None:  # a resumed run: its episodes were not saved
        playing.reset(_first(_fold_in(_fold_in(run.key, EPISODES), np.int32(done))))

    def step(progress: Progress) -> Progress:
        number = next(numbers)
        policy = algorithm.policy(progress.run.state)
        window = playing.window(policy, lambda ahead: _fold_in(key, np.int32(number + ahead)))
        held, rest = _take_apart(progress.run)
        return _learn(own, held, rest, progress.row, window)

    return step


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _learn(own: Program, held: Any, rest: loop.Run, row: dict[str, Any], window: Any) -> Progress:
    """Take one step of the algorithm, whose source, in the state `held`, collects a window."""

    def one(run, window):
        return loop.advance(own.algorithm, _hand(run, window))

    run = dataclasses.replace(rest, state=dataclasses.replace(rest.state, source=held))
    run, metrics = _each(own, run, one)(run, by_member(window, own.members))
    return Progress(run, m.merge(row, metrics))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _fill(own: Program, held: Any, rest: loop.Run, window: Any, number: Any) -> loop.Run:
    """Collect one window of the warm-up."""
    source: Any = own.algorithm.source

    def one(run, window):
        key = learn.warmup_keys(source, jax.random.fold_in(run.key, 0))[number]
        run = _hand(run, window)
        policy = own.algorithm.policy(run.state)
        held, _, _ = source.collect(run.state.source, policy, key)
        return dataclasses.replace(run, state=dataclasses.replace(run.state, source=held)), {}

    run = dataclasses.replace(rest, state=dataclasses.replace(rest.state, source=held))
    return _each(own, run, one)(run, by_member(window, own.members))[0]


def _each(own: Program, run: loop.Run, function: Callable[..., Any]) -> Callable[..., Any]:
    """Vmap a function of a run and its window to (run, metrics) over the members."""
    if own.members is None:
        return function
    axes = shared.axes(run)
    return jax.vmap(function, (axes, 0), (axes, 0))


def _take_apart(run: loop.Run) -> tuple[Any, loop.Run]:
    """Return the state of a run's source, whose buffers the learner reuses, and the rest, which a
    player may still be acting by."""
    rest = dataclasses.replace(run, state=dataclasses.replace(run.state, source=None))
    return run.state.source, rest


def _hand(run: loop.Run, window: Window) -> loop.Run:
    held = hand(run.state.source, window)
    return dataclasses.replace(run, state=dataclasses.replace(run.state, source=held))


@jax.jit
def _fold_in(key: Key, number: Any) -> Key:
    """Fold a number into a key, or into the keys of members."""
    fold = lambda key: jax.random.fold_in(key, number)
    return jax.vmap(fold)(key) if key.ndim else fold(key)


def _first(key: Key) -> Key:
    return key[0] if key.ndim else key


def evaluate(
    env: Environment | Environments,
    policy: Policy,
    key: Key,
    episodes: int = 32,
    greedy: bool = True,
    max_steps: int | None = None,
    stopping: Callable[[], bool] = lambda: False,
    members: int | None = None,
) -> Episodes:
    """Play `episodes` episodes side by side, each counted once.

    As `jaxrl.evaluation.evaluate.evaluate`, but on the host. `Environments` that are passed as
    `env` begin new episodes, one in each copy, and `episodes` is ignored.

    stopping: as in `Environments`, for the environments that are made here.
    members: number of policies, each of which plays `episodes`; results and `key` then have a
        leading axis.

    Raises:
        UserError: if there is no time limit, or as `Environments` does.
    """
    if isinstance(env, Environments):
        return _play(env, policy, key, greedy, max_steps, members)
    environments = Environments(env, episodes * (members or 1), stopping=stopping)
    played = _play(environments, policy, key, greedy, max_steps, members)
    environments.close()
    return played


def _play(
    environments: Environments, policy: Policy, key: Key, greedy: bool, max_steps: int | None,
    members: int | None,
) -> Episodes:  # fmt: skip
    max_steps = episode_limit(environments.env, max_steps)
    reset_key, key = _fold_in(key, np.int32(0)), _fold_in(key, np.int32(1))
    environments.reset(_first(reset_key))
    finished: Any = np.zeros(environments.num_envs, bool)
    returns, lengths = finished.astype(np.float32), finished.astype(np.int32)
    metrics = {name: finished.astype(np.float32) for name in environments.env.host.metrics}
    moves = move(environments, policy, key, greedy=greedy, members=members)
    for transition, endings, valid in itertools.islice(moves, max_steps):
        counted = ~finished & valid
        returns += np.where(counted, transition.next_timestep.reward, np.float32(0))
        lengths += counted
        ended = endings.done & counted
        finished |= ended
        metrics = {k: np.where(ended, endings.metrics[k], x) for k, x in metrics.items()}
        if finished.all():
            break
    parts = lambda x: x if members is None else x.reshape(members, -1)
    return Episodes(
        parts(returns), parts(lengths), parts(finished), {k: parts(x) for k, x in metrics.items()}
    )


def check_pictures(env: Environment) -> None:
    """Raise `UserError` or `EnvironmentFailed` if `env` cannot draw a picture."""
    environments = Environments(env, 1, render=True)
    environments.reset(random.key(0))
    environments.render()
    environments.close()


def record(
    env: Environment,
    policy: Policy,
    key: Key,
    *,
    max_steps: int | None = None,
    greedy: bool = True,
    stopping: Callable[[], bool] = lambda: False,
) -> Recording:
    """Record one episode on the host, as `jaxrl.evaluation.render.record` does.

    stopping: as in `Environments`.

    Raises `UserError` if there is no time limit, and `EnvironmentFailed` if the environment draws
    no pictures.
    """
    limit = episode_limit(env, max_steps)
    environments = Environments(env, 1, render=True, stopping=stopping)
    environments.reset(jax.random.fold_in(key, 0))
    frames = environments.render()
    for _, endings, _ in itertools.islice(move(environments, policy, key, greedy=greedy), limit):
        if endings.done[0]:  # the next episode's first picture is not shown
            break
        frames += environments.render()
    environments.close()
    return Recording([np.asarray(x) for x in frames], environments.copies.fps)
