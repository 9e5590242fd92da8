"""The driver's program where the environments are on the host."""

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
    """What `driver.Program` is, for one run whose environments are Gymnasium's.

    A checkpoint holds no environments: a run that goes on from one begins new episodes. Where an
    environment fails, or `stopping` says that it is to be waited for no longer, `driver.Halted` is
    raised, by a chunk with what it had done so far.
    """

    learner: driver.Program  # of an algorithm from `host.learner`
    env: str  # such as gymnasium/CartPole-v1
    num_envs: int
    members: None = None
    ahead = False  # a chunk plays on the host, and may hang there: what is left is done before
    stopping: Callable[[], bool] = lambda: False

    @property
    def algorithm(self) -> Algorithm:
        return self.learner.algorithm

    @functools.cached_property
    def environments(self) -> host.Worlds:
        return host.Worlds(
            self.env.removeprefix(PREFIX), self.num_envs, stopping=lambda: self.stopping()
        )

    def notice(self, resumed: bool) -> str:
        """What to know about going on with such a run."""
        if resumed:
            return (
                f"The episodes of '{self.env}' were not saved: new ones begin, so this run does "
                "not go on exactly as it would have without a break."
            )
        return (
            f"'{self.env}' runs on the host: checkpoints hold none of its episodes, so a resumed "
            "run begins new ones and is not exactly the run without a break."
        )

    def start(self, keys: Key, hyper: Hyper | None = None) -> driver.Progress:
        self.environments.reset(jax.random.fold_in(keys, host.EPISODES))
        return self.learner.start(keys, hyper)

    def shapes(self, keys: Key) -> driver.Progress:
        return self.learner.shapes(keys)

    def place(self, progress: driver.Progress) -> driver.Progress:
        return self.learner.place(progress)

    def compile(self, progress: driver.Progress) -> Callable[..., driver.Progress]:
        """The chunk function `(progress, steps) -> progress`; its first call compiles."""

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
        """As `Program.evaluation`, in environments of its own that live for one evaluation."""
        if not host.on_host(env):
            return self.learner.evaluation(env, episodes, greedy)
        return HostEvaluation(self, env, episodes, greedy)

    def check_evaluation(self, evaluation: Callable[..., Any], run: Any) -> None:
        """Raises what `evaluation` would raise, as far as it is known before it runs."""
        if isinstance(evaluation, HostEvaluation):
            episode_limit(evaluation.env)
        else:
            self.learner.check_evaluation(evaluation, run)

    def compile_evaluation(self, evaluation: Callable[..., Any], run: Any) -> Callable[..., Any]:
        return evaluation


@dataclasses.dataclass(frozen=True, eq=False)
class HostEvaluation:
    """run -> {name: mean over episodes}."""

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
