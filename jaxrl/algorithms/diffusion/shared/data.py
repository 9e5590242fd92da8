"""Datasets of generative policies: those of offline algorithms, and demonstrations."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.offline.shared import data as offline
from jaxrl.algorithms.offline.shared import making
from jaxrl.algorithms.offline.shared.scripted import demonstrations
from jaxrl.core.types import Array, Environment, Source, Transition, Tree
from jaxrl.kit import group
from jaxrl.sources.dataset import dataset

DEMONSTRATIONS = "demonstrations"


@group
class Data(offline.Data):
    """Source of data: a dataset (offline), an environment (online), or both. The dataset
    `demonstrations` is played by the environment's own expert."""

    name: str = "medium-replay"
    """Dataset: random, medium, expert, medium-replay, medium-expert (mixed), demonstrations; a file
    (Minari's, D4RL's or Parquet); or empty for none. It is made at first use; demonstrations are
    played by the environment's own expert."""

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


def goal_features(goal: Tree, batch: tuple[int, ...]) -> Array:
    """Return a goal, or what is achieved of it, as a vector [*batch, G]; G is 0 without goals."""
    parts = [x.reshape(*batch, -1) for x in jax.tree.leaves(goal)]
    return jnp.concatenate(parts, -1) if parts else jnp.zeros((*batch, 0))


def goal_windows(env: Environment, data: Data, length: int) -> Source:
    """Return windows [length, B] of the dataset, and of each observation what it achieves of a
    goal."""
    steps = data.steps(env)
    if env.goals is not None:
        # From observations as they are, before they are normalized.
        achieved = jax.vmap(env.goals.achieved)(steps.observation)
        extras = steps.extras | {"achieved": jax.tree.map(np.asarray, achieved)}
        steps = dataclasses.replace(steps, extras=extras)
    return data.windows(steps, data.batch_size, length)
