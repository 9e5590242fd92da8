"""An ensemble of probabilistic models of an environment's dynamics and reward (Chua et al., 2018,
"Deep reinforcement learning in a handful of trials using probabilistic dynamics models",
arXiv:1805.12114), learned from a dataset: the first phase of `mopo`, `ravl`, `combo` and
`morec`.

Each member learns from a bootstrap sample of its own. Some transitions are held out of learning;
the error on them is logged, and chooses the members that draw rollouts later, as in MOPO (Yu et
al., 2020, appendix). The policy is random.

MOPO's code stops when the held-out error no longer falls, learns bounds of the variances and decays
the weights; here the number of steps is fixed, bounds are constants, and `optimizer.weight_decay`
is there to set.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.offline.shared.model_rollouts import (
    TINY_MODEL,
    Ensemble,
    Fit,
    best_members,
    check_model,
    first_fit,
    model_part,
    standardize,
    standardized_change,
)
from jaxrl.core import metrics as m
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, Transition
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss, static
from jaxrl.kit.groups import Optimizer
from jaxrl.kit.normalization import add
from jaxrl.kit.recipe import Act
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.rewarded_dynamics import StepPrediction
from jaxrl.sources.held_out import held_out

RATE = 0.02  # of the running mean of the held-out errors


@group
class Config:
    """Settings of an ensemble of models of dynamics and reward, learned from data
    (arXiv:1805.12114)."""

    data: Data = Data()
    model: Ensemble = Ensemble()
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of all members together. Adam, 1e-3: authors' code of MOPO."""
    held_out: float = static(0.1, above=0, below=1)
    """Fraction of the transitions that no member learns from."""
    elites: int = static(5, low=1, high=MANY)
    """Number of best members whose held-out error is logged."""


def squared_errors(prediction: StepPrediction, target: Array) -> Array:
    """Return the mean squared error [E, B] of each member's prediction of `target` [B, D + 1]."""
    return jnp.square(prediction.mean - target).mean(-1)


@loss("model")
def model_loss(net: Net, x: Transition) -> LossOutput:
    """Compute the negative log-likelihood of the next observation, reward and termination, of all
    members, each weighted by how often its sample has the transition."""
    scale = net.extra.scale
    prediction = net.model(standardize(scale, x.timestep), x.action)
    target = standardized_change(scale, x.timestep, x.next_timestep)
    ended = jnp.broadcast_to(x.terminated, prediction.ended.shape)
    each = losses.gaussian_nll(prediction.mean, prediction.log_variance, target)
    each += losses.binary_cross_entropy(prediction.ended, ended)
    weight = jnp.moveaxis(x.extras["bootstrap"], -1, 0)
    error = squared_errors(prediction, target).mean(0)
    return LossOutput((weight * each).sum(0), {"squared_error": error})


def act_at_random(env: Environment) -> Act:
    """Return a policy of random actions, for a phase that learns no policy."""

    def act(net, timestep, memory, key, greedy):
        keys = jax.random.split(key, len(timestep.reward))
        return jax.vmap(lambda key: spaces.sample(env.action_space, key))(keys), memory, {}

    return act


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net: Net, batch: Batch) -> Net:
        x, fit = batch.transitions, net.extra
        observation = x.timestep.observation.reshape(len(x.reward), -1)
        seen = jnp.concatenate([observation, x.reward[:, None]], -1)
        net = net.replace(extra=Fit(add(fit.scale, seen, batch.mask), fit.error))
        net = net.descend(model_loss, batch)

        held = ~batch.mask  # type: ignore[operator]
        fit, count = net.extra, held.sum()
        prediction = net.model(standardize(fit.scale, x.timestep), x.action)
        target = standardized_change(fit.scale, x.timestep, x.next_timestep)
        errors = jnp.where(held, squared_errors(prediction, target), 0).sum(-1)
        errors = errors / jnp.maximum(count, 1)
        moved = jnp.where(count > 0, fit.error + RATE * (errors - fit.error), fit.error)
        best = errors[best_members(moved, config.elites)].mean()
        return net.replace(extra=Fit(fit.scale, moved)).report(
            held_out_error=m.mean(errors.mean(), count > 0),
            elite_error=m.mean(best, count > 0),
        )

    return Recipe(
        parts={"model": model_part(env, config.model, config.optimizer)},
        act=act_at_random(env),
        losses=(model_loss,),
        update=update,
        extra=first_fit(env, config.model),
        needs=("mask", "transitions.extras.bootstrap"),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the dataset, with a part of it held out."""
    data = config.data.dataset(env, config.data.batch_size)
    return held_out(data, config.held_out, config.model.members)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, as the phases that follow do,
    for observations that are not one box, for an environment beside the dataset, and for more
    elites than members."""
    check_action_space(env.action_space, name)
    check_model(env, config, name)
    if config.elites > config.model.members:
        raise UserError(
            f"elites is {config.elites}; the model has only {config.model.members} members."
        )


dynamics_model = AlgorithmBuilder("dynamics_model", Config, recipe, source, check=check)

TINY = TINY_MODEL | {"elites": 1, "held_out": 0.3}
