"""The driver's program for environments on the host."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core import shared
from jaxrl.core.errors import UserError
from jaxrl.core.learn import evaluation_policy
from jaxrl.core.types import Algorithm, Environment, Hyper, Key
from jaxrl.evaluation.evaluate import episode_limit
from jaxrl.runtime import driver, host
from jaxrl.runtime.configuration import HostSettings
from jaxrl.sources.handed import Play, check_played


@dataclasses.dataclass(eq=False)
class HostProgram:
    """The counterpart of `driver.Program` for environments on the host.

    A checkpoint holds no environments, so a resumed run begins new episodes. If an environment
    fails, or `stopping` returns True, `driver.Halted` is raised; a chunk attaches what it had done.
    """

    learner: driver.Program
    settings: HostSettings
    ahead = False  # a chunk plays on the host and may hang there, so other work is done first
    stopping: Callable[[], bool] = lambda: False

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm

    @property
    def members(self) -> int | None:
        return self.learner.members

    @functools.cached_property
    def play(self) -> Play:
        return check_played(self.algorithm.source, self.algorithm.name)

    @functools.cached_property
    def players(self) -> host.Players:
        play = self.play
        actors, num_envs = self.settings.actors, play.num_envs * (self.members or 1)
        if num_envs % actors:
            raise UserError(f"host.actors={actors} does not divide the {num_envs} environments.")
        make = lambda: host.Environments(
            play.env, num_envs // actors, self.settings.mode, stopping=lambda: self.stopping()
        )
        return host.Players(
            [make() for _ in range(actors)],
            play,
            staleness=self.settings.staleness,
            members=self.members,
        )

    def close(self) -> None:
        """Close the environments, unless one of them hangs or failed."""
        if "players" in self.__dict__:
            with contextlib.suppress(driver.Halted):
                self.players.close()

    def notice(self, resumed: bool) -> str:
        """Return what the user should know about resuming such a run."""
        if resumed:
            return (
                f"The episodes of '{self.play.env.name}' were not saved: new ones begin, so this "
                "run differs from one that was not interrupted."
            )
        return (
            f"'{self.play.env.name}' runs on the host: checkpoints hold the parameters, the "
            "optimizer and the replay buffer, but no episodes: a resumed run begins new ones and "
            "differs from one that was not interrupted."
        )

    def start(self, keys: Key, hyper: Hyper | None = None) -> driver.Progress:
        run = host.start(self.algorithm, self.players, keys, hyper)
        return driver.Progress(run, self.learner.empty_row(run))

    def shapes(self, keys: Key) -> driver.Progress:
        return self.learner.shapes(keys)

    def bytes(self, progress: driver.Progress) -> int:
        return self.learner.bytes(progress)

    def place(self, progress: driver.Progress) -> driver.Progress:
        return self.learner.place(progress)

    def compile(self, progress: driver.Progress) -> Callable[..., driver.Progress]:
        """Return the chunk function `(progress, steps) -> progress`; its first call compiles."""

        def chunk(progress: driver.Progress, steps: int) -> driver.Progress:
            step = host.stepper(self.learner, self.players, progress.run)
            for done in range(steps):
                try:
                    progress = step(progress)
                except driver.Halted as halted:
                    halted.progress, halted.steps = progress, done
                    raise
            return progress

        return chunk

    def evaluation(self, env: Environment, episodes: int, greedy: bool) -> Callable[..., Any]:
        """Return an evaluation as `Program.evaluation` does, in environments made for each one."""
        if env.host is None:
            return self.learner.evaluation(env, episodes, greedy)
        return HostEvaluation(self, env, episodes, greedy)

    def check_evaluation(self, evaluation: Callable[..., Any], run: Any) -> None:
        """Raise the errors of `evaluation` that are known before it runs."""
        if isinstance(evaluation, HostEvaluation):
            episode_limit(evaluation.env)
        else:
            self.learner.check_evaluation(evaluation, run)

    def compile_evaluation(self, evaluation: Callable[..., Any], run: Any) -> Callable[..., Any]:
        if isinstance(evaluation, HostEvaluation):
            return evaluation
        return self.learner.compile_evaluation(evaluation, run)


@dataclasses.dataclass(frozen=True, eq=False)
class HostEvaluation:
    """A function from a run to {name: mean over episodes}, with what the algorithm itself measures,
    each [members] if there are any."""

    program: HostProgram
    env: Environment
    episodes: int
    greedy: bool

    def __call__(self, run: Any) -> dict[str, Any]:
        members = self.program.members
        played = host.evaluate(
            self.env,
            evaluation_policy(self.program.algorithm, run.state),
            driver.evaluation_key(run) if members is None else _evaluation_keys(run),
            self.episodes,
            self.greedy,
            stopping=lambda: self.program.stopping(),
            members=members,
        )
        numbers: dict[str, Any] = {"return": played.returns, "length": played.lengths}
        numbers |= {"finished": played.finished, **played.metrics}
        means = {
            name: np.asarray(x, np.float32).mean(-1, dtype=np.float32)
            for name, x in numbers.items()
        }
        return means | self.measure(run)

    @functools.cached_property
    def measure(self) -> Callable[[Any], dict[str, Any]]:
        """The algorithm's own measurements of a run, compiled, with a leading axis of members."""
        algorithm, members = self.program.algorithm, self.program.members

        def one(run):
            key = jax.random.fold_in(driver.evaluation_key(run), 1)
            return algorithm.measure(run.state, key)

        if members is None:
            return jax.jit(one)
        return jax.jit(lambda run: jax.vmap(one, (shared.axes(run),))(run))


@jax.jit
def _evaluation_keys(run: Any) -> Key:
    """Return the evaluation's key of each member."""
    keyed = dataclasses.replace(run, state=None)
    return jax.vmap(driver.evaluation_key)(keyed)
