"""Datasets of teams, of four qualities, from one training run of VDN:

    good     steps of the best policy of the run
    medium   steps of the first policy that came 2/3 of the way from random play to the best one
    poor     steps of the first policy that came 1/3 of the way
    replay   experience that the run collected, from random play to its end

The qualities are those of OG-MARL (Formanek et al., 2023, "Off-the-Grid MARL: Datasets with
Baselines for Offline Multi-Agent Reinforcement Learning", arXiv:2302.00521), whose datasets come
from agents of several algorithms; one run, and the two thirds, are choices made here. Policies act
as they did when they were taken from the run, so poorer ones also explore more. Datasets hold all
channels of the time steps: legal actions, who is alive, and the state.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.multi_agent.vdn import Config as VDNConfig
from jaxrl.algorithms.multi_agent.vdn import vdn
from jaxrl.algorithms.offline.shared.making import EPISODES, check_making, train_in_parts
from jaxrl.algorithms.offline.shared.recording import record
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Policy, Source
from jaxrl.datasets import cache
from jaxrl.datasets.data import Dataset, References
from jaxrl.datasets.transitions import from_streams
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import group, static
from jaxrl.sources.dataset import dataset

NAMES = ("good", "medium", "poor", "replay")
SHARES = {"medium": 2 / 3, "poor": 1 / 3}  # of the way from random play to the best policy


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of the training run that makes datasets."""

    steps: int
    """Environment steps of the training run."""
    agent: VDNConfig
    """Settings of VDN in the training run."""


RECIPE = Recipe(
    100_000,
    settings.replace(
        VDNConfig(),
        {
            "num_envs": 32,
            "num_steps": 4,
            "updates": 2,
            "capacity": 50_000,
            "learning_rate": 1e-3,
            "exploration.steps": 50_000,
        },
    ),
)


@group
class TeamData:
    """Source of data: a dataset of a team. Steps of the run are gradient steps."""

    name: str = static("medium", choices=NAMES)
    """Dataset: good, medium, poor or replay, made at first use by a training run of VDN."""
    size: int = static(20_000, low=1)
    """Number of steps in a dataset."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of a dataset."""
    batch_size: int = static(128, low=1, high=MANY)
    """Number of transitions in a gradient step."""
    updates: int = static(8, low=1)
    """Number of gradient steps per update."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of batches: the most devices that can share a run."""

    def source(self, env: Environment) -> Source:
        """Return the source of the dataset; one that is not in the cache is made now."""
        data = load(env, self.name, self.size, self.seed)
        options = {"updates": self.updates, "name": data.name, "num_shards": self.num_shards}
        return dataset(data.transitions, self.batch_size, **options)


def load(env: Environment, name: str, size: int, seed: int) -> Dataset:
    """Return the dataset `name`, one of `NAMES`, of about `size` steps, from the cache if it was
    made before.

    Raises `UserError` for another name, where VDN cannot act, and where `making.make` does.
    """
    if name not in NAMES:
        raise unknown("dataset", name, NAMES)
    recipe: dict[str, Any] = {"team": dataclasses.asdict(RECIPE), "shares": SHARES}
    make_all = lambda: make(env, size, seed)
    return cache.load(env, name, size=size, seed=seed, recipe=recipe, make=make_all)


def make(env: Environment, size: int, seed: int = 0, how: Recipe = RECIPE) -> dict[str, Dataset]:
    """Make the datasets of all `NAMES` for `env`, by name, which takes the training run `how`.

    Raises `UserError` as `load` does, and for a run that did not learn.
    """
    check_making(env, size)
    keys = jax.random.split(random.key(seed), 6)
    algorithm = vdn(env, how.agent)
    windows, policies, scores = train_in_parts(
        env, algorithm, how.steps, keys[0], keys[1], greedy=False
    )
    played = evaluate(env, random_policy(env), keys[2], 4 * EPISODES, greedy=False)
    low, best = float(played.returns.mean()), int(np.argmax(scores))
    agent = algorithm.agent
    assert agent is not None
    as_policy = lambda part: Policy(agent.act, agent.memory, policies[part])
    played = evaluate(env, as_policy(best), keys[2], 4 * EPISODES, greedy=False)
    high = float(played.returns.mean())
    if not high > low:
        raise UserError(
            f"Training for datasets of '{env.name}' did not get better than a random policy "
            f"({high:.4g} and {low:.4g})."
        )
    chosen = {"good": best} | {n: first_above(scores, low, x) for n, x in SHARES.items()}
    replayed = jax.tree.map(lambda *x: np.concatenate(x), *windows)
    found = {
        name: record(env, as_policy(part), key, size)
        for (name, part), key in zip(chosen.items(), keys[3:], strict=True)
    }
    found["replay"] = from_streams(replayed, size)
    return {n: Dataset(n, x, References(low, high)) for n, x in found.items()}


def first_above(scores: list[float], low: float, share: float) -> int:
    """Return the first part of a run whose score came the `share` of the way from `low` to the best
    score."""
    return int(np.argmax(np.asarray(scores) >= low + share * (max(scores) - low)))
