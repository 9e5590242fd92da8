"""SEPO, score entropy policy optimization (Zekri and Boullé, 2025, "Fine-tuning discrete diffusion
models with policy gradient methods", arXiv:2502.01384, and its published code): a clipped policy
gradient of a discrete diffusion model, through the ratios of probabilities that it has learned.

What a discrete diffusion model knows of a string x is not q(x) but how q changes where one letter
changes, the score s(x)_y = q(y) / q(x) of its neighbors y. For all strings y

    sum_y q(y) grad log s(x)_y = -grad log q(x),

which gives the gradient of the expected reward; here, as in the code, y runs over the neighbors of
x alone and x itself, so that the gradient is an approximation. Ratios of the new model to the one
that drew x are clipped as in PPO, and advantages are rewards that are standardized, as in GRPO.

The score of y that differs in letter l is the ratio of a masked diffusion model's probabilities of
both letters where l alone is masked; the code reads it from the model's output at
a small time. It estimates q(y) by self-normalized importance sampling; here it is normalized over
the neighbors and x, sum q = 1, which takes no samples. The paper's model has no frozen reference by
default, and neither has this one. The reward is never differentiated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared.fine_tuning import begin_as_cloned
from jaxrl.algorithms.diffusion.shared.token_diffusion import (
    Logits,
    TokenTuning,
    check_strings,
    denoiser_part,
    one_hot,
    sample_strings,
    sizes_of,
)
from jaxrl.core.types import Array, Batch, Environment, struct
from jaxrl.kit import (
    STEP,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import INF, Epochs


@group
class Config(TokenTuning):
    """Settings of SEPO: a clipped policy gradient by the scores of a masked diffusion model
    (arXiv:2502.01384)."""

    passes: Epochs = Epochs(epochs=5, minibatches=1)
    """Gradient steps on each set of strings; 5 of all: authors' code."""

    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of the ratio around 1. 0.2: authors' code."""


@struct
class Drawn:
    """Strings [n, L], the log-scores of their neighbors [n, L * V] under the model that drew them,
    and their advantages [n]."""

    string: Array
    log_score: Array
    advantage: Array


def neighbor_scores(logits: Logits, string: Array, letters: int) -> Array:
    """Return log q(y) / q(x) [..., L * V] of strings x [..., L], y with another letter at one
    place; 0 where that is the letter that is there."""
    length = string.shape[-1]
    here = jnp.eye(length, dtype=bool)
    masked = jnp.where(here, letters, string[..., None, :])  # [..., L, L], row l without letter l
    level = jnp.full(masked.shape[:-1], 1 / length)
    found = jax.nn.log_softmax(logits(one_hot(masked, letters), level))
    own = jnp.moveaxis(jnp.diagonal(found, axis1=-3, axis2=-2), -1, -2)  # [..., L, V]
    score = own - jnp.take_along_axis(own, string[..., None], -1)
    return score.reshape(*string.shape[:-1], -1)


def neighbor_log_probs(log_score: Array, string: Array, letters: int) -> Array:
    """Return log q(y) [..., L * V] of the neighbors, normalized over them and x, which counts once
    though it is among them at each place."""
    here = jax.nn.one_hot(string, letters, dtype=bool).reshape(log_score.shape)
    others = jnp.where(here, -jnp.inf, log_score)
    total = jnp.logaddexp(jax.nn.logsumexp(others, -1), 0.0)
    return log_score - total[..., None]


def recipe(env: Environment, config: Config) -> Recipe:
    size = _, letters = sizes_of(env)

    @loss("denoiser")
    def denoiser_loss(net: Net, x: Drawn) -> LossOutput:
        """Compute SEPO's clipped objective over the neighbors of strings [n]."""
        log_score = neighbor_scores(net.denoiser, x.string, letters)
        log_prob, old = (
            neighbor_log_probs(score, x.string, letters) for score in (log_score, x.log_score)
        )
        value = losses.sepo(log_score, x.log_score, log_prob, old, x.advantage, net.hyper.clip)
        moved = jnp.abs(log_score - x.log_score).mean(-1)
        return LossOutput(value, {"score_change": moved})

    def step(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(denoiser_loss, minibatch)

    def update(net: Net, batch: Batch) -> Net:
        x = batch.transitions
        advantage = losses.standardize(x.reward, batch.mask)
        score = jax.lax.stop_gradient(neighbor_scores(net.denoiser, x.action, letters))
        window = Minibatch(Drawn(x.action, score, advantage), batch.mask, batch.weight)
        return net.epochs(config.passes, window, step, unit=STEP)

    def act(net, timestep, memory, key, greedy):
        count = timestep.reward.shape[0]
        return sample_strings(key, net.denoiser, count, size, config.steps), memory, {}

    return Recipe(
        parts={"denoiser": denoiser_part(env, config, optimizer=config.optimizer)},
        act=act,
        losses=(denoiser_loss,),
        update=update,
        adopt=begin_as_cloned,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are strings, and strings divide into minibatches."""
    check_strings(env, config, name)
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards, STEP)


sepo = AlgorithmBuilder("sepo", Config, recipe, check=check, goes_on_from="mdlm")

TINY = {
    "env": "strings", "env_params": {"length": 3, "letters": 2}, "num_envs": 8, "num_shards": 4,
    "hidden": (8,), "steps": 2, "epochs": 2,
}  # fmt: skip
