"""Nested fitted Q-iteration (Mandyam, Jones, Laudanski and Engelhardt, 2021, "Nested policy
reinforcement learning"): values for two groups whose dynamics differ a little, of which the
foreground has few data. The values of the background are shared, and the foreground adds its own:

    Q(s, a; group) = Q_shared(s, a) + [group is the foreground] Q_foreground(s, a)

First the shared values learn from the background alone; then they are frozen, and the added values
learn from the foreground alone. So structure is shared, and the small group changes nothing for the
large one. As in the authors' code, except that the first phase has a fixed length (there it ends
when three evaluations in a row have succeeded), that targets are clipped to `bound` (there, both
networks end in a sigmoid, which bounds values too), and that the added values count from the second
phase on (there, their weights begin at 0).

The environment of the run is the foreground; in the background one parameter differs. Both datasets
are played at random, in each run anew.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.shared.discrete_values import outputs
from jaxrl.algorithms.offline.shared.variation import Variation, check_variation, make_variant
from jaxrl.algorithms.value.shared.q_learning import check_q_learning, q_network
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Transition
from jaxrl.envs.policies import random_policy
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.composing import descend_where
from jaxrl.kit.groups import INF, ImageTorso, Normalization, Optimizer, Target
from jaxrl.losses.reductions import at_action
from jaxrl.sources.dataset import mixed
from jaxrl.sources.imagined import label
from jaxrl.sources.played import played_dataset

FOREGROUND = "foreground"  # the extra that says whose transition it is, and a part


@group
class Groups:
    """Data of both groups, played at random. Gradient steps count as steps of the run."""

    background: Variation = Variation(vary="force", value=20.0)
    """Parameter of the environment that differs in the background."""
    background_size: int = static(20_000, low=1, high=MANY)
    """Number of steps of the background."""
    foreground_size: int = static(2_000, low=1, high=MANY)
    """Number of steps of the foreground."""
    batch_size: int = static(512, low=2, high=MANY)
    """Number of transitions in a batch, half of them of either group. Each phase learns from its
    half."""
    updates: int = static(50, low=1)
    """Number of gradient steps per update."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of a batch: the most devices that can share a run."""

    def source(self, env: Environment) -> Source:
        """Return the source of batches of both groups."""
        half, shards = self.batch_size // 2, self.num_shards
        more: Any = {"updates": self.updates, "num_shards": shards}
        other = make_variant(env, self.background)
        background = played_dataset(other, random_policy(other), self.background_size, half, **more)
        own = played_dataset(env, random_policy(env), self.foreground_size, half, **more)
        return mixed(label(background, False, FOREGROUND), label(own, True, FOREGROUND), shards)


@group
class Config:
    """Settings of nested FQI: values of a large group, to which a small one adds its own
    (Mandyam et al., 2021)."""

    groups: Groups = Groups()
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the shared values and of those that the foreground adds, separately."""
    target: Target = Target(rate=1.0, period=50)
    """Target networks. Between two copies values are fitted to fixed targets: one iteration."""
    normalization: Normalization = Normalization()
    plays: str = static(FOREGROUND, choices=(FOREGROUND, "background"))
    """Group whose values the policy acts by."""

    shared_steps: float = hyper(5_000.0, low=0, high=INF)
    """Gradient steps of the first phase. With inf the foreground adds nothing; with 0 it learns
    alone, beside values that nothing was learned for."""
    bound: float = hyper(math.inf, above=0, high=INF)
    """Largest magnitude of the values that are learned. Without a bound values of few data may grow
    beyond all that can be earned; max |reward| / (1 - discount) is safe."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per step. 0.95: authors' code."""


def bounded_target(net: Any, x: Transition, following: Array) -> Array:
    """Return r + discount max Q(s', .) by the next values [..., A], clipped to the bound."""
    h = net.hyper
    target = losses.q_learning_target(x.reward, x.terminated, h.discount, following)
    return jnp.clip(target, -h.bound, h.bound)


def values(net: Any, timestep: TimeStep, added: Array | float) -> Array:
    """Return the foreground's values [..., A] of the networks as they are, of which the added ones
    count `added` times."""
    return outputs(net.shared, timestep) + added * net.foreground(timestep)[..., 0]


@loss("shared")
def shared_loss(net: Any, x: Transition) -> LossOutput:
    """Regress the shared values of the background on r + discount max Q'(s', .)."""
    q = at_action(outputs(net.shared, x.timestep), x.action)
    target = bounded_target(net, x, outputs(net.target.shared, x.next_timestep))
    return LossOutput(losses.squared_error(q, target), {"shared_value": q})


@loss(FOREGROUND)
def foreground_loss(net: Any, x: Transition) -> LossOutput:
    """Regress the sum of shared and added values of the foreground on r + discount max Q'(s', .);
    in the target the added values are those of the target network."""
    q = at_action(values(net, x.timestep, 1.0), x.action)
    added = net.target.foreground(x.next_timestep)[..., 0]
    target = bounded_target(net, x, outputs(net.shared, x.next_timestep) + added)
    return LossOutput(losses.squared_error(q, target), {"foreground_value": q})


def recipe(env: Environment, config: Config) -> Recipe:
    part = Part(
        q_network(env, config.torso), (example_timestep(env),), config.optimizer, config.target
    )

    def act(net, timestep, memory, key, greedy):
        added = net.extra if config.plays == FOREGROUND else 0.0
        best = values(net, timestep, added).argmax(-1)
        return best.astype(env.action_space.dtype), memory, {}

    def update(net: Net, batch: Batch) -> Net:
        x, first = batch.transitions, net.env_steps < net.hyper.shared_steps
        own = x.extras[FOREGROUND]

        def learn_shared(net: Net) -> Net:
            return net.descend(shared_loss, x, mask=~own).update_targets("shared")

        def learn_added(net: Net) -> Net:
            return net.descend(foreground_loss, x, mask=own).update_targets(FOREGROUND)

        net = descend_where(net, first, learn_shared)
        net = descend_where(net, ~first, learn_added)
        return net.replace(extra=1.0 - first)

    return Recipe(
        parts={"shared": part, FOREGROUND: part},
        act=act,
        losses=(shared_loss, foreground_loss),
        update=update,
        extra=jnp.float32(0),  # whether the foreground's values have begun to learn
        needs=(f"transitions.extras.{FOREGROUND}",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for actions that are not Discrete, convolutions without images, a parameter
    that does not exist, and batches that cannot be halved."""
    check_q_learning(env, config, name)
    check_variation(env, config.groups.background)
    size, shards = config.groups.batch_size, config.groups.num_shards
    if size % (2 * shards):
        raise UserError(
            f"groups.batch_size is {size}; twice groups.num_shards={shards} must divide it."
        )


nfqi = AlgorithmBuilder("nfqi", Config, recipe, check=check)

TINY = {
    "env": "cartpole",
    "hidden": (5, 4),
    "normalization.observation": True,
    "background_size": 64,
    "foreground_size": 32,
    "batch_size": 8,
    "updates": 2,
    "num_shards": 4,
    "period": 3,
    "shared_steps": 3.0,
}
