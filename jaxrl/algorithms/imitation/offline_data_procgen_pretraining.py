"""Pretraining of Andres, Schäfer, Albrecht and Del Ser, 2023, "Using offline data to speed-up
reinforcement learning in procedurally generated environments", arXiv:2304.09825: behavior cloning
of a few demonstrations, by the network and the optimizer with which `offline_data_procgen` goes on.

The value is not trained. The paper's code takes 3,000 or 10,000 gradient steps of 256 demonstrated
steps.
"""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.imitation.shared.trajectories import (
    SMALL_TRAJECTORIES,
    Trajectories,
    check_demonstrations,
    cloning_loss,
)
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    actor_critic_recipe,
    check_policy,
    policy_network,
)
from jaxrl.core.types import Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static
from jaxrl.kit.composing import around
from jaxrl.kit.groups import ImageTorso, Memory, Optimizer
from jaxrl.sources.dataset import dataset


@group
class Pretraining:
    """Demonstrated steps in the place of an environment."""

    demonstrations: Trajectories = Trajectories()
    batch_size: int = static(256, low=1)
    """Number of demonstrated steps in a gradient step."""
    updates: int = static(16, low=1)
    """Gradient steps in one step of the run; they count as its steps."""
    num_shards: int = static(1, low=1)
    """Logical shards of a batch."""

    def source(self, env: Environment) -> Source:
        """Return batches of demonstrated steps."""
        return dataset(
            self.demonstrations.load(env),
            self.batch_size,
            updates=self.updates,
            name="demonstrations",
            num_shards=self.num_shards,
        )


@group
class Config:
    """Settings of behavior cloning before PPO. A run that goes on needs the same torso."""

    data: Pretraining = Pretraining()
    torso: ImageTorso = ImageTorso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, max_grad_norm=0.5, eps=1e-5, flat=True)


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net: Net, batch: Batch) -> Net:
        return net.descend(cloning_loss, batch)

    network = policy_network(env, config.torso)
    cloning = actor_critic_recipe(env, network, config.optimizer, (cloning_loss,), update)
    # Around it nothing, but the state of the recipe that goes on.
    return dataclasses.replace(around(cloning), needs=())


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where no policy can act in `env`, or nothing can be demonstrated."""
    check_policy(env, config.torso, Memory(), name)
    check_demonstrations(env, 0, name)


offline_data_procgen_pretraining = AlgorithmBuilder(
    "offline_data_procgen_pretraining", Config, recipe, check=check
)

TINY = SMALL_TRAJECTORIES | {"batch_size": 8, "updates": 2, "num_shards": 4}
