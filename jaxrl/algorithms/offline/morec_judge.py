"""The dynamics reward of MOREC (Luo, Xu, Cao and Yu, 2024, "Reward-consistent dynamics models are
strongly generalizable for offline reinforcement learning", arXiv:2310.05422): discriminators of the
data's transitions and of those of a model that learns to deceive them.

    discriminator  -log D(s, a, s') - log(1 - D(s, a, m)), m drawn from the generator at (s, a)
    generator      -log D(s, a, m)

Every `interval` gradient steps the discriminator is kept, and the last `judge.kept` of them judge
transitions together in `morec`. As in the authors' code, each one's log-odds are bounded by their
means over made-up and over true transitions when it was kept, and rescaled to -1 and 1 there. The
discriminator sees the change of the observation, and no reward.

The authors did not publish how the two learn. Here the generator begins untrained, and its loss is
differentiated through single steps from the data; the paper calls this inverse reinforcement
learning, in which the model is rewarded for what follows, too. (A generator that began as the model
was not told from the data in Pendulum: the accuracy was 0.5, and `morec` did not learn.) The model
of `dynamics_model`, which is trained first (`--warm-start`), stays as it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.dynamics_model import act_at_random
from jaxrl.algorithms.offline.h2o import see_next
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.offline.shared.model_rollouts import (
    TINY_MODEL,
    Ensemble,
    check_model,
    first_fit,
    model_part,
    observation_size,
    standardize,
    standardized_change,
)
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Transition, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss, static
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.kit.state import State
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.rewarded_dynamics import draw_step

PART = "judge"  # that judges transitions
NARROWEST = 0.1  # least range of log-odds that is rescaled


@group
class Judge:
    """Discriminators that judge transitions together; the same in both phases."""

    torso: Torso = Torso(hidden=(256, 256))
    kept: int = static(20, low=1, high=MANY)
    """Number of discriminators, the last ones that were kept. 20: authors' code (of the last 200,
    every tenth)."""


@group
class Config:
    """Settings of MOREC's dynamics reward: discriminators of the data's transitions and a model's
    (arXiv:2310.05422)."""

    data: Data = Data()
    model: Ensemble = Ensemble()
    judge: Judge = Judge()
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the discriminator."""
    generator: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the model that learns to deceive it."""
    interval: int = static(100, low=1)
    """Gradient steps from a discriminator that is kept to the next one."""


class Discriminators(nn.Module):
    """Discriminators whose log-odds are rescaled: time steps that show the change of the
    observation too, and actions [...] -> [..., K]."""

    values: ActionValues

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> Array:
        count = self.values.members
        low = self.param("low", nn.initializers.zeros, (count,))
        high = self.param("high", nn.initializers.ones, (count,))
        odds = jnp.clip(self.values(timestep, action), low, high)
        return 2 * (odds - low) / (high - low) - 1


def network(env: Environment, judge: Judge, members: int) -> ActionValues:
    """Return discriminators of transitions, of which `members` share no weights."""
    torso, more = judge.torso, (judge.torso.activation, judge.torso.initializer)
    return ActionValues(env.observation_space, env.action_space, torso.hidden, members, *more)


def seen_by_judges(env: Environment) -> tuple[TimeStep, Tree]:
    """Return an example of what discriminators see, [1]."""
    change = jnp.zeros((1, observation_size(env)))
    return see_next(example_timestep(env), change), spaces.example(env.action_space)[None]


def judge_part(env: Environment, judge: Judge) -> Part:
    """Return the discriminators that judge as a part, which no loss descends."""
    return Part(Discriminators(network(env, judge, judge.kept)), seen_by_judges(env))


def log_odds(part: Any, timestep: TimeStep, action: Tree, change: Array) -> Array:
    """Return the log-odds [B, K] of `part` that transitions [B] are true ones.

    timestep: standardized. change: of the observation, standardized, [B, D].
    """
    return part(see_next(timestep, change), action)


def recipe(env: Environment, config: Config) -> Recipe:
    def both(net: Any, x: Transition, name: str) -> tuple[Array, Array]:
        """Return the log-odds [B] of true transitions and of those that the generator makes up."""
        scale = net.extra.scale
        seen = standardize(scale, x.timestep)
        true = standardized_change(scale, x.timestep, x.next_timestep)[..., :-1]
        members = jnp.arange(config.model.members)
        drawn, _ = draw_step(net.generator(seen, x.action), members, net.key(name))
        odds = lambda change: log_odds(net.discriminator, seen, x.action, change)[..., 0]
        return odds(true), odds(drawn[..., :-1])

    @loss("discriminator")
    def discriminator_loss(net: Net, x: Transition) -> LossOutput:
        """Compute the cross-entropy of true transitions and of made-up ones."""
        true, drawn = both(net, x, "shown")
        value = losses.binary_cross_entropy(true, jnp.ones_like(true, bool))
        value += losses.binary_cross_entropy(drawn, jnp.zeros_like(drawn, bool))
        right = ((true > 0).astype(jnp.float32) + (drawn <= 0)) / 2
        return LossOutput(value, {"discriminator_accuracy": right})

    @loss("generator")
    def generator_loss(net: Net, x: Transition) -> Array:
        """Compute -log D of made-up transitions."""
        drawn = both(net, x, "deceiving")[1]
        return losses.binary_cross_entropy(drawn, jnp.ones_like(drawn, bool))

    def update(net: Net, batch: Batch) -> Net:
        net = net.descend(discriminator_loss, batch).descend(generator_loss, batch)
        true, drawn = both(net, batch.transitions, "kept")
        done = net.updates + 1
        number, place = done // config.interval, jnp.arange(config.judge.kept)
        # Places that nothing was kept in yet have the first one too.
        here = (place == (number - 1) % config.judge.kept) | (place >= number)
        here &= done % config.interval == 0
        held: Any = net.parts[PART].params["params"]
        one: Any = net.parts["discriminator"].params["params"]

        def put(held: Array, one: Array) -> Array:
            wide = here.reshape(-1, *(1,) * (held.ndim - 1))
            return jnp.where(wide, one, held)

        kept = {
            "values": jax.tree.map(put, held["values"], one),
            "low": put(held["low"], drawn.mean()),
            "high": put(held["high"], jnp.maximum(true.mean(), drawn.mean() + NARROWEST)),
        }
        spread = {"true_odds": true.mean(), "made_up_odds": drawn.mean()}
        return net.with_params(**{PART: {"params": kept}}).report(**spread)

    def adopt(own: State, other: Any) -> State:
        if PART in other.parts:  # more training of the same
            return other
        model = dataclasses.replace(own.parts["model"], params=other.parts["model"].params)
        return dataclasses.replace(own, parts=own.parts | {"model": model}, extra=other.extra)

    return Recipe(
        parts={
            "model": model_part(env, config.model),
            "generator": model_part(env, config.model, config.generator),
            "discriminator": Part(
                network(env, config.judge, 1), seen_by_judges(env), config.optimizer
            ),
            PART: judge_part(env, config.judge),
        },
        act=act_at_random(env),
        losses=(discriminator_loss, generator_loss),
        update=update,
        extra=first_fit(env, config.model),
        adopt=adopt,
    )


def source(env: Environment, config: Config) -> Source:
    """Return the dataset."""
    return config.data.dataset(env, config.data.batch_size)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, as the phase that follows does,
    for observations that are not one box, and for an environment beside the dataset."""
    check_action_space(env.action_space, name)
    check_model(env, config, name)


morec_judge = AlgorithmBuilder(
    "morec_judge", Config, recipe, source, check=check, goes_on_from="dynamics_model"
)

TINY = TINY_MODEL | {"judge.torso.hidden": (8,), "kept": 2, "interval": 2}
