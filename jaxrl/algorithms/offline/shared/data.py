"""Sources of offline algorithms: a dataset, an environment, or both.

The same agent learns from either, so an agent that learned offline can continue online
(`--warm-start`), with its optimizers' states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxrl.algorithms.offline.shared import making
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Source, Transition, Tree
from jaxrl.kit import group, static
from jaxrl.sources.dataset import dataset, mixed
from jaxrl.sources.imagined import label
from jaxrl.sources.played import View, viewed_dataset
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts

# The smallest settings of a dataset alone.
TINY_DATA = {
    "data.name": "random",
    "data.size": 256,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
}


@group
class Data:
    """Source of data: a dataset (offline), an environment (online), or both. Steps of the run are
    environment steps if there is an environment, else gradient steps."""

    name: str = "medium-replay"
    """Dataset made at first use, path of a file (Minari's, D4RL's or Parquet), or empty for none.
    Made are random, medium, expert, medium-replay, mixed, state-hole and action-hole;
    demonstrations, scripted, play and conservative (of environments with an expert); imaginary and
    all-tasks (of point mazes). Mixed (or medium-expert) has steps of medium and of expert, and
    those with a hole are medium-replay without a region."""
    size: int = static(50_000, low=1)
    """Number of steps in a dataset that is made."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of a dataset that is made."""
    batch_size: int = static(256, low=1, high=MANY)
    """Number of transitions in a gradient step."""
    offline_share: float = static(0.5, above=0, below=1)
    """Fraction of each batch that is from the dataset, if there is an environment too."""
    updates: int = static(8, low=1)
    """Number of gradient steps per update; with an environment, after each window."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of batches and environments: the most devices that can share a
    run."""

    num_envs: int = static(0, low=0, high=MANY)
    """Number of parallel environments; 0 for none."""
    num_steps: int = static(1, low=1, high=MANY)
    """Steps of each environment in a window."""
    capacity: int = static(100_000, low=1)
    """Capacity of the replay buffer of online transitions."""
    warmup: int = static(1_000, low=0)
    """Environment steps before the first gradient step, taken by the initial policy."""

    def source(self, env: Environment, simulator: Environment | None = None) -> Source:
        """Return the source that these settings describe. A dataset that is not in the cache is
        made now, which takes a training run.

        simulator: environment that is played in the place of `env`, beside the dataset of `env`.
            Transitions then have the extra `real`, True for those of the dataset.

        Raises `UserError` if there is neither dataset nor environment, and for a share that leaves
        one of the two without a transition.
        """
        if not self.name and not self.num_envs:
            raise UserError("There is nothing to learn from: name a dataset, or set num_envs.")
        if not self.num_envs:
            return self.dataset(env, self.batch_size)
        shards = self.num_shards
        share = round(self.offline_share * self.batch_size / shards) * shards
        offline = share if self.name else 0
        if self.name and not 0 < offline < self.batch_size:
            raise UserError(
                f"offline_share is {self.offline_share}; in a batch of {self.batch_size}, at least "
                "one transition must be from the dataset and one from the environment."
            )
        online = replay(
            rollouts(simulator or env, self.num_envs, self.num_steps),
            self.capacity,
            self.batch_size - offline,
            warmup=self.warmup,
            num_shards=shards,
        )
        if not offline:
            return online
        data = self.dataset(env, offline)
        if simulator is not None:
            data, online = label(data, True), label(online, False)
        return mixed(data, online, shards)

    def dataset(
        self,
        env: Environment,
        batch_size: int,
        select: Callable[[Transition], Transition] = lambda transitions: transitions,
    ) -> Source:
        """Return a source of the dataset alone.

        select: transitions [N] of the dataset -> those that are drawn, in whole episodes.
        """
        data = making.load(env, self.name, self.size, self.seed)
        options = {"updates": self.updates, "name": data.name, "num_shards": self.num_shards}
        return dataset(select(data.transitions), batch_size, **options)

    def view_source(
        self,
        env: Environment,
        view: View,
        extras: Callable[[Transition], dict[str, Tree]] = lambda transitions: {},
    ) -> Source:
        """Return a source of the dataset alone whose batches are drawn through `view`.

        extras: transitions [N] of the dataset -> what the view is to know of each besides, by name.
        """
        data = making.load(env, self.name, self.size, self.seed)
        more = extras(data.transitions)
        options = {"updates": self.updates, "name": data.name, "num_shards": self.num_shards}
        steps = dataclasses.replace(data.transitions, extras=more)
        return viewed_dataset(steps, self.batch_size, view, keep=tuple(more), **options)

    def check_alone(self, name: str, why: str) -> None:
        """Raise `UserError`, giving the reason `why`, unless the source of the algorithm `name` is
        a dataset without an environment."""
        if self.num_envs or not self.name:
            raise UserError(
                f"{name} learns from a dataset alone, since {why}: name one, and leave "
                "data.num_envs at 0."
            )
