"""Datasets of generative policies: those of offline algorithms, and demonstrations."""

from __future__ import annotations

from jaxrl.algorithms.offline.shared import data as offline
from jaxrl.algorithms.offline.shared import making
from jaxrl.algorithms.offline.shared.scripted import demonstrations
from jaxrl.core.types import Environment, Source, Transition
from jaxrl.kit import group
from jaxrl.sources.dataset import dataset

DEMONSTRATIONS = "demonstrations"


@group
class Data(offline.Data):
    """Source of data: a dataset (offline), an environment (online), or both. The dataset
    `demonstrations` is played by the environment's own expert."""

    name: str = "medium-replay"
    """Dataset: random, medium, expert, medium-replay or medium-expert (mixed), made at first use;
    demonstrations; a file in Minari's format; or empty for none. Demonstrations are played by the
    environment's own expert."""

    def steps(self, env: Environment) -> Transition:
        """Return the steps [N] of the dataset, which is made now if it is not in the cache.

        Raises `UserError` for demonstrations of an environment that has no expert.
        """
        if self.name == DEMONSTRATIONS:
            return demonstrations(env, self.size, self.seed)
        return making.load(env, self.name, self.size, self.seed).transitions

    def dataset(self, env: Environment, batch_size: int) -> Source:
        """Return a source of the dataset alone."""
        return self.windows(self.steps(env), batch_size)

    def windows(self, steps: Transition, batch_size: int, length: int | None = None) -> Source:
        """Return a source of windows of `length` steps of `steps` [N]; of single ones for None."""
        options = {"updates": self.updates, "name": self.name, "num_shards": self.num_shards}
        return dataset(steps, batch_size, length, **options)
