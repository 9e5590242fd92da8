"""What is learned from offline: a dataset, an environment, or both. The same agent learns from
either, so
what was learned offline goes on online (`--warm-start`), with its optimizers' states."""

from __future__ import annotations

from jaxrl.algorithms.offline.shared import making
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Source
from jaxrl.kit import group, static
from jaxrl.sources.dataset import dataset, mixed
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts


@group
class Data:
    """A dataset alone (offline), an environment alone (online), or both. Steps are gradient steps
    where there is no environment, and environment steps where there is one."""

    name: str = "medium-replay"
    """random, medium, expert, medium-replay, medium-expert (or mixed), made when first asked for;
    the path of a file in Minari's format; or empty for none."""
    size: int = static(50_000, low=1)
    """Steps of a dataset that is made."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """The seed it is made from."""
    batch_size: int = static(256, low=1, high=MANY)
    """Transitions in one gradient step."""
    offline_share: float = static(0.5, above=0, below=1)
    """The part of each batch that is from the dataset, where there is an environment too."""
    updates: int = static(8, low=1)
    """Gradient steps at once; in an environment, after each window."""
    num_shards: int = static(1, low=1)
    """Logical shards of batches and environments: how many devices can share a run at most."""

    num_envs: int = static(0, low=0, high=MANY)
    """Environments that run side by side; 0 for none."""
    num_steps: int = static(1, low=1, high=MANY)
    """Steps of each in one window."""
    capacity: int = static(100_000, low=1)
    """Own transitions that are kept."""
    warmup: int = static(1_000, low=0)
    """Environment steps before the first gradient step, by the policy as it is."""

    def source(self, env: Environment) -> Source:
        """What these settings describe. A dataset that is not in the cache is made now, which
        takes a training run. Raises `UserError` where nothing is left to learn from, and for a
        share that leaves one of two sources without a transition."""
        if not self.name and not self.num_envs:
            raise UserError("There is nothing to learn from: name a dataset, or say num_envs.")
        if not self.num_envs:
            return self.set(env, self.batch_size)
        shards = self.num_shards
        share = round(self.offline_share * self.batch_size / shards) * shards
        offline = share if self.name else 0
        if self.name and not 0 < offline < self.batch_size:
            raise UserError(
                f"offline_share is {self.offline_share}; of a batch of {self.batch_size} at least "
                "one transition must be from the dataset, and one from the environment."
            )
        online = replay(
            rollouts(env, self.num_envs, self.num_steps),
            self.capacity,
            self.batch_size - offline,
            warmup=self.warmup,
            num_shards=shards,
        )
        return mixed(self.set(env, offline), online, shards) if offline else online

    def set(self, env: Environment, batch_size: int) -> Source:
        """The dataset alone."""
        data = making.load(env, self.name, self.size, self.seed)
        options = {"updates": self.updates, "name": data.name, "num_shards": self.num_shards}
        return dataset(data.transitions, batch_size, **options)
