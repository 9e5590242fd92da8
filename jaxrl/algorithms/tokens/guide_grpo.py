"""Guide-GRPO (Nath et al., 2025, "Adaptive guidance accelerates reinforcement learning of reasoning
models", arXiv:2506.13923): GRPO whose prompts are asked again with a hint where all answers are
wrong. Answers to a hinted prompt take the place of those without, and are learned as answers to the
prompt without the hint: their ratio is p(y | x) / p_old(y | x, hint).

As in the authors' code, only groups with a signal are learned, the mean is over tokens, and the
ratio r of hinted answers is shaped instead of clipped, to r / (r + gamma). There gamma may be a
quantile of the ratios of a minibatch, which the published runs use; here it is a constant. All
prompts are played with a hint too, whether or not that is used."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    evaluate,
    judge_by_groups,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.informative import informative_source, wait_for_informative
from jaxrl.algorithms.tokens.shared.settings import SMALL, Clipped, Groups
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Passes
from jaxrl.sources import episodes, with_hints
from jaxrl.sources.rollouts import check_shards
from jaxrl.tasks import hinted_starts


@group
class Guided(Groups):
    """Groups of answers to the same prompt, with a hint if all answers without are wrong."""

    prompts: int = static(128, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one group of answers."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes, with those of a group adjacent. Raises `UserError` for
        an environment without hints, and if a group would be split between shards."""
        check_shards(self.num_shards, prompts=self.prompts)
        starts = hinted_starts(env.params, Start, self.answers)
        played = episodes(start_key(env), 2 * self.num_envs, starts, self.num_shards)
        return with_hints(played, self.answers)


@group
class Config(Clipped):
    """Settings of Guide-GRPO: GRPO with hints where all answers are wrong (arXiv:2506.13923). The
    defaults are those of the authors' scripts."""

    groups: Guided = Guided()
    passes: Passes = Passes(epochs=1, minibatches=2, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    informative: float = hyper(1.0, low=0, high=1)
    """Fraction of an update's groups that must contain different rewards; with fewer, the update
    waits for more."""
    shaping: float = hyper(1.0, above=0)
    """Ratio of hinted answers at which its shaped value is a half (gamma)."""


def shaped_surrogate(
    log_prob: Array, behavior_log_prob: Array, advantage: Array, shaping: Array | float
) -> Array:
    """Return the surrogate -A r / (r + shaping) of tokens that were written with a hint, [...].

    log_prob: [...], without the hint. behavior_log_prob: [...], with it, when they were written.
    """
    ratio = losses.importance_ratio(log_prob, behavior_log_prob)
    return -advantage * ratio / (ratio + shaping)


@loss("actor_critic", name="loss")
def guide_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the clipped surrogate of each token, or the shaped one of hinted answers."""
    now, h = evaluate(net, x), net.hyper
    clipped = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, h.clip)
    shaped = shaped_surrogate(now.log_prob, x.log_prob, x.advantage, h.shaping)
    output = token_output(net, x, now, jnp.where(x.target > 0, shaped, clipped))
    assert output.drift is not None  # `token_output`
    # What hinted answers are away from the policy with the hint is no drift of the policy.
    drift = jnp.where(x.target > 0, 0.0, output.drift)
    metrics = {**output.metrics, "approximate_kl": drift}
    return dataclasses.replace(output, metrics=metrics, drift=drift)


def recipe(env: Environment, config: Config) -> Recipe:
    answers = config.groups.answers
    by_groups = judge_by_groups(losses.group_relative, answers)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        hinted = batch.transitions.extras["hinted"].astype(jnp.float32)
        return {**by_groups(net, batch), "target": hinted}

    plain = wait_for_informative(on_answers(env, config, judge, (guide_loss,)), answers)

    def update(net: Net, batch: Batch) -> Net:
        hinted = batch.transitions.extras["hinted"][0].astype(jnp.float32)
        return plain.update(net, batch).report(hinted=hinted.mean())

    return dataclasses.replace(plain, update=update)


guide_grpo = AlgorithmBuilder("guide_grpo", Config, recipe, informative_source, check=check)

TINY = SMALL | {"env": "hinted_addition", "env_params": {"digits": 1}, "informative": 0.0}
TINY |= {"prompts": 4, "answers": 2, "num_shards": 4}
