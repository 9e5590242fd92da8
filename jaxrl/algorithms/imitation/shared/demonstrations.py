"""Settings of an expert's steps, from which algorithms imitate."""

from __future__ import annotations

import jax

from jaxrl.algorithms.offline.shared import making
from jaxrl.core.types import Environment, Source, Transition
from jaxrl.kit import group, static
from jaxrl.sources.beside import beside
from jaxrl.sources.dataset import dataset


@group
class Demonstrations:
    """Steps of an expert."""

    name: str = "expert"
    """Dataset to imitate: expert, medium, ..., made at first use, or the path of a file
    (Minari's, D4RL's or Parquet)."""
    size: int = static(50_000, low=1)
    """Number of steps in a dataset that is made."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of a dataset that is made."""
    steps: int = static(4_000, low=1)
    """Largest number of steps that are shown: the first of the dataset."""

    def load(self, env: Environment) -> Transition:
        """Return the steps that are shown [N]. Raises `UserError` as `making.load` does."""
        data = making.load(env, self.name, self.size, self.seed)
        return jax.tree.map(lambda x: x[: self.steps], data.transitions)

    def beside(self, env: Environment, played: Source, rows: int, num_shards: int) -> Source:
        """Return `played`, with an expert's step beside each of its `rows`, as the extra
        `expert`."""
        shown = dataset(self.load(env), rows, name=self.name, num_shards=num_shards)
        return beside(played, shown)


# The smallest settings.
SMALL_DEMONSTRATIONS = {
    "demonstrations.name": "random",
    "demonstrations.size": 256,
    "demonstrations.steps": 128,
}
