"""Offline data beside PPO (Andres, Schäfer, Albrecht and Del Ser, 2023, "Using offline data to
speed-up reinforcement learning in procedurally generated environments", arXiv:2304.09825): after
PPO's gradient steps on each window, some of behavior cloning on a few demonstrations, by the same
optimizer.

The demonstrations are whole episodes from some of the levels that the environment draws: how many,
of how many levels, and how good they are, are what the paper varies. Pretraining on them is
`offline_data_procgen_pretraining`, with which a run may begin (`warm_start`); with the defaults it
goes on cloning, and with `cloning.epochs` 0 it does not.

That cloning comes after PPO's steps, is not weighted and does not end, and the defaults, are those
of the authors' code; it takes 5 gradient steps of 256 demonstrated steps after each window of 2,048
steps, where ours come to one for each of `cloning.minibatches`. Their policy and value have an
optimizer each, and cloning does not clip gradients. Their demonstrations are episodes of an agent
that trained with RAPID, kept at several levels of its return; ours are a scripted expert's, with a
share of random actions.
"""

from __future__ import annotations

from jaxrl.algorithms.imitation.shared.trajectories import (
    SMALL_TRAJECTORIES,
    Trajectories,
    check_demonstrations,
    cloning_loss,
)
from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Environment, Source
from jaxrl.kit import (
    AlgorithmBuilder,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    static,
)
from jaxrl.kit.composing import around
from jaxrl.kit.groups import INF, Epochs, Optimizer, Passes, Rollouts
from jaxrl.sources.beside import beside
from jaxrl.sources.dataset import dataset


@group
class Cloning(Epochs):
    """Gradient steps of cloning, on as many demonstrated steps as a window has."""

    epochs: int = static(1, low=0)
    """Number of epochs over them; 0 for no cloning beside PPO."""
    minibatches: int = static(8, low=1)
    """Number of minibatches in one epoch."""


@group
class Config(ppo.Config):
    """Settings of PPO beside demonstrations; defaults are those of the authors' code in MiniGrid,
    where it has them."""

    rollouts: Rollouts = Rollouts(num_envs=16, num_steps=128)
    passes: Passes = Passes(epochs=4, minibatches=4)
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, max_grad_norm=0.5, eps=1e-5, flat=True)
    demonstrations: Trajectories = Trajectories()
    cloning: Cloning = Cloning()

    value_clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero."""
    entropy_weight: float = hyper(0.01, low=0, log=True)
    """Weight of the entropy bonus."""


def recipe(env: Environment, config: Config) -> Recipe:
    def clone(net: Net, batch: Batch, kept: None) -> Net:
        del kept
        if not config.cloning.epochs:
            return net
        shown = Minibatch(batch.transitions.extras["expert"])
        after = net.epochs(
            config.cloning, shown, lambda net, minibatch: net.descend(cloning_loss, minibatch)
        )
        return after.replace(metrics=after.metrics | net.metrics)  # PPO's own early stop

    needs = ("transitions.extras.expert",) if config.cloning.epochs else ()
    return around(ppo.recipe(env, config), losses=(cloning_loss,), after=clone, needs=needs)


def source(env: Environment, config: Config) -> Source:
    """Return windows of rollouts, with a demonstrated step beside each of their steps."""
    x = config.rollouts
    rows, shown = x.num_envs * x.num_steps, config.demonstrations.load(env)
    steps = dataset(shown, rows, name="demonstrations", num_shards=x.num_shards)
    return beside(x.source(env), steps)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where PPO cannot learn in `env` with `config`, and for memory, observations
    that PPO alone would normalize, and windows that do not divide into cloning's minibatches."""
    ppo.ppo.check(env, config, name)
    check_demonstrations(env, config.memory.recurrent, name)
    if config.normalization.observation:
        raise UserError(
            f"normalization.observation is on, but '{name}' shows demonstrations as they are; it "
            "must be off."
        )
    if config.cloning.epochs:
        x = config.rollouts
        config.cloning.check(x.num_envs, x.num_steps, x.num_shards)


offline_data_procgen = AlgorithmBuilder("offline_data_procgen", Config, recipe, source, check=check)

TINY = SMALL_TRAJECTORIES | {
    "num_envs": 8, "num_steps": 4, "num_shards": 4, "passes.epochs": 2,
    "passes.minibatches": 2, "cloning.minibatches": 2, "early_stop": True,
    "normalization.reward": True,
}  # fmt: skip
