"""The driver's program for environments on the host."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core.types import Algorithm, Environment, Hyper, Key
from jaxrl.envs.adapters.gymnasium import PREFIX
from jaxrl.evaluation.evaluate import episode_limit
from jaxrl.runtime import driver, host


@dataclasses.dataclass(eq=False)
class HostProgram:
    """The counterpart of `driver.Program` for one run in Gymnasium environments.

    A checkpoint holds no environments, so a resumed run begins new episodes. If an environment
    fails, or `stopping` returns True, `driver.Halted` is raised; a chunk attaches what it had done.
    """

    learner: driver.Program  # the program of an algorithm from `host.learner`
    env: str  # such as gymnasium/CartPole-v1
    num_envs: int
    members: None = None
    ahead = False  # a chunk plays on the host and may hang there, so other work is done first
    stopping: Callable[[], bool] = lambda: False

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm

    @functools.cached_property
    def environments(self) -> host.Environments:
        return host.Environments(
            self.env.removeprefix(PREFIX), self.num_envs, stopping=lambda: self.stopping()
        )

    def notice(self, resumed: bool) -> str:
        """Return what the user should know about resuming such a run."""
        if resumed:
            return (
                f"The episodes of '{self.env}' were not saved: new ones begin, so this run differs "
                "from one that was not interrupted."
            )
        return (
            f"'{self.env}' runs on the host: checkpoints hold none of its episodes, so a resumed "
            "run begins new ones and differs from one that was not interrupted."
        )

    def start(self, keys: Key, hyper: Hyper | None = None) -> driver.Progress:
        self.environments.reset(jax.random.fold_in(keys, host.EPISODES))
        return self.learner.start(keys, hyper)

    def shapes(self, keys: Key) -> driver.Progress:
        return self.learner.shapes(keys)

    def place(self, progress: driver.Progress) -> driver.Progress:
        return self.learner.place(progress)

    def compile(self, progress: driver.Progress) -> Callable[..., driver.Progress]:
        """Return the chunk function `(progress, steps) -> progress`; its first call compiles."""

        def chunk(progress: driver.Progress, steps: int) -> driver.Progress:
            for done in range(steps):
                try:
                    run, row = host.advance(self.algorithm, self.environments, progress.run)
                except driver.Halted as halted:
                    halted.progress, halted.steps = progress, done
                    raise
                progress = driver.Progress(run, host.merge(progress.row, row))
            return progress

        return chunk

    def evaluation(self, env: Environment, episodes: int, greedy: bool) -> Callable[..., Any]:
        """Return an evaluation as `Program.evaluation` does, in environments made for each one."""
        if not host.on_host(env):
            return self.learner.evaluation(env, episodes, greedy)
        return HostEvaluation(self, env, episodes, greedy)

    def check_evaluation(self, evaluation: Callable[..., Any], run: Any) -> None:
        """Raise the errors of `evaluation` that are known before it runs."""
        if isinstance(evaluation, HostEvaluation):
            episode_limit(evaluation.env)
        else:
            self.learner.check_evaluation(evaluation, run)

    def compile_evaluation(self, evaluation: Callable[..., Any], run: Any) -> Callable[..., Any]:
        return evaluation


@dataclasses.dataclass(frozen=True, eq=False)
class HostEvaluation:
    """A function from a run to {name: mean over episodes}."""

    program: HostProgram
    env: Environment
    episodes: int
    greedy: bool

    def __call__(self, run: Any) -> dict[str, Any]:
        played = host.evaluate(
            self.env,
            self.program.algorithm.policy(run.state),
            driver.evaluation_key(run),
            self.episodes,
            self.greedy,
            stopping=lambda: self.program.stopping(),
        )
        numbers = {"return": played.returns, "length": played.lengths, "finished": played.finished}
        return {name: np.mean(np.asarray(x, np.float32)) for name, x in numbers.items()}
