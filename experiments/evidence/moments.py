"""Moments of a run, and looks at them: returns, reported metrics, pass@k, the share of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Trial
from experiments.evidence.trials import configure
from jaxrl import envs, losses
from jaxrl.core import hyper as hypers
from jaxrl.core import settings
from jaxrl.core.errors import unknown
from jaxrl.core.train import Run
from jaxrl.core.types import Algorithm, Array, Environment, Key, Policy, Tree
from jaxrl.evaluation.evaluate import Episodes, check_same_spaces, evaluate
from jaxrl.evaluation.pass_at_k import correct_answers


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """A run at the beginning, at a point of its arena, or at the end.

    trial: the phase that the run is in, with its settings; static.
    key: source of randomness of this moment, the same for all looks and sides.
    episodes: number of episodes (or prompts) to play. share: of the training that lies behind.
    begun: the beginning of the run (`Course.begin`); None if there is none.
    """

    trial: Trial
    env: Environment
    algorithm: Algorithm
    run: Run
    key: Key
    episodes: int
    share: Array
    begun: Tree
    _known: dict[Hashable, Any] = dataclasses.field(default_factory=dict)

    def policy(self, changes: Mapping[str, Any] = {}) -> Policy:
        """Return the policy, with settings `changes` that may differ from those of training."""
        algorithm, state = self.algorithm, self.run.state
        if changes:
            config = settings.replace(configure(self.trial), changes)
            hypers.check(config)
            with jax.ensure_compile_time_eval():
                algorithm = self.trial.side.algorithm(self.env, config)
            state = hypers.replace_hyper(
                state,
                {k: v for k, v in changes.items() if settings.candidates(k, algorithm.hyper)},
            )
        return algorithm.policy(state)

    def once(self, compute: Callable[..., Any], *given: Hashable) -> Any:
        """Return compute(self, *given), which looks at one moment share."""
        if (compute, given) not in self._known:
            self._known[compute, given] = compute(self, *given)
        return self._known[compute, given]


class Look(Protocol):
    """A function that measures a moment."""

    def __call__(self, moment: Moment, /) -> Any:
        """Return a scalar, or a tree of scalars that a reduction makes one of."""
        ...


Held = str | Callable[[Environment], Environment]
Words = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Returns:
    """Look at returns; see `returns`."""

    greedy: bool
    env: Held
    params: Words
    settings: Words
    worst: float

    def __call__(self, moment: Moment) -> Array:
        played = moment.once(_play, self.greedy, self.env, self.params, self.settings)
        if not self.worst:
            return played.returns.mean()
        return jnp.sort(played.returns)[: max(1, round(self.worst * moment.episodes))].mean()


def returns(
    *,
    greedy: bool = True,
    env: Held = "",
    params: Mapping[str, Any] = {},
    settings: Mapping[str, Any] = {},
    worst: float = 0.0,
) -> Look:
    """Look at the mean return of complete episodes.

    greedy: whether to act greedily; otherwise actions are sampled.
    env: another environment than that of training, by name, or a function of the latter, such as
        one that adds an opponent (`opponents.against`).
    params: parameters of that environment; without `env` those that differ in held-out levels.
    settings: settings of the policy that differ from those of training.
    worst: share of the episodes that count, those with the lowest returns; 0: all.
    """
    return Returns(greedy, env, tuple(params.items()), tuple(settings.items()), worst)


@dataclasses.dataclass(frozen=True)
class Reported:
    """Look at the mean of what the environment reports at the end of complete episodes.

    name: its metric, such as "success". greedy: whether to act greedily; otherwise actions are
    sampled.
    """

    name: str
    greedy: bool = True

    def __call__(self, moment: Moment) -> Array:
        played = moment.once(_play, self.greedy, "", (), ())
        if self.name not in played.metrics:
            raise unknown("metric of the environment", self.name, played.metrics)
        return played.metrics[self.name].mean()


def _play(moment: Moment, greedy: bool, env: Held, params: Words, changes: Words) -> Episodes:
    here, arena = moment.env, moment.trial.environment
    if env or params:
        with jax.ensure_compile_time_eval():  # builders cache what they compute
            if callable(env):
                here = env(moment.env)
            else:
                own = {} if env else arena.params
                here = envs.make(env or arena.env, **{**own, **dict(params)})
            check_same_spaces(moment.env, here)
    return evaluate(here, moment.policy(dict(changes)), moment.key, moment.episodes, greedy)


@dataclasses.dataclass(frozen=True)
class PassAtK:
    """Look at pass@k: the probability that one of `k` sampled answers to a prompt is right.

    samples: answers to each prompt, from which it is estimated.
    """

    k: int
    samples: int = 16

    def __call__(self, moment: Moment) -> Array:
        return losses.pass_at_k(moment.once(_answers, self.samples), self.k).mean()


def _answers(moment: Moment, samples: int) -> Array:
    return correct_answers(moment.env, moment.policy(), moment.key, moment.episodes, samples)


def share_of_training(moment: Moment) -> Array:
    """Look at the share of training that lies behind; at the end of a run that stops early, less
    than 1."""
    return moment.share
