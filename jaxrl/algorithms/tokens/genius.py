"""Genius (Xu et al., 2025, "Genius: A Generalizable and Purely Unsupervised Self-Training Framework
For Advanced Reasoning", arXiv:2504.08672): a policy learns from what it is sure of itself, without
any reward. Stepwise foresight re-sampling simulates how each candidate for the next step of an
answer would go on; the more probable the future of a step is to the policy, the better the step
(`sources.foresight_pairs`). The best candidate's text is chosen, and a rejected one is drawn. The
loss is DPO's, which penalizes rejected texts less where their advantage over the step before is the
higher one (advantage-calibrated optimization, `losses.aco`, equation 12).

A step is a fixed number of tokens. The paper samples a dataset of pairs once, at a temperature of
0.6; here the policy writes new ones for every update. The reference stays the policy of the
beginning. Pairs of equal texts are left out. As `losses.aco` says, the published code differs from
the paper's equation 11, which this follows; it also draws the rejected text evenly, and here it is
drawn as in equation 5.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.pairs import Answers, check, loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED, ReferencePolicy
from jaxrl.algorithms.tokens.shared.answers import decisions, returns_of
from jaxrl.algorithms.tokens.shared.outcomes import place_at_last
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.composing import with_rewards
from jaxrl.kit.groups import INF, Epochs, Optimizer
from jaxrl.sources import foresight_pairs


@group
class Foresight:
    """Pairs of answers by stepwise foresight re-sampling."""

    prompts: int = static(32, low=1, high=MANY)
    """Number of prompts (P) in an update; each has a pair for every step."""
    beams: int = static(2, low=1, high=MANY)
    """Number of texts of a prompt that are gone on from (M)."""
    rollouts: int = static(4, low=2, high=MANY)
    """Number of candidates for the next step of a text (N)."""
    steps: int = static(4, low=1, high=MANY)
    """Number of steps of an answer (K)."""
    step_length: int = static(4, low=1, high=MANY)
    """Number of tokens in a step."""
    temperature: float = static(0.1, above=0, high=INF)
    """Temperature of the scores by which candidates are drawn. 0.1: the published code."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the prompts: the most devices that can share a run."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return self.prompts * self.steps

    def source(self, env: Environment) -> Source:
        """Return a source of these pairs."""
        groups = Groups(prompts=self.prompts, answers=self.beams, num_shards=self.num_shards)
        return foresight_pairs(
            groups.episodes(env, keep_states=True),
            env,
            beams=self.beams,
            rollouts=self.rollouts,
            steps=self.steps,
            step_length=self.step_length,
            temperature=self.temperature,
        )


@group
class Config(ReferencePolicy):
    """Settings of Genius: DPO from what the policy is sure of, with calibrated advantages
    (arXiv:2504.08672)."""

    pairs: Foresight = Foresight()
    passes: Epochs = Epochs(epochs=1, minibatches=1, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0)
    """Optimizer settings. 5e-7: appendix B.2. (Small networks need larger steps.)"""
    alpha: float = hyper(1.0, above=0, high=INF)
    """Temperature by which the penalty on a rejected text decays with its advantage over the chosen
    one. 1: appendix B.2."""


def calibrated_loss(net: Net, chosen: Answers, rejected: Answers) -> Array:
    """Compute the calibrated loss of each pair, [n] (equation 12); advantages are the rewards."""
    log_probs = chosen.log_prob, rejected.log_prob, chosen.reference, rejected.reference
    h = net.hyper
    return losses.aco(*log_probs, chosen.reward, rejected.reward, h.beta, h.alpha)


def differing_pairs(batch: Batch) -> Array:
    """Return which texts [2 n] differ from the other one of their pair.

    batch: whole episodes [T, 2 n], those of a pair side by side.
    """
    assert batch.mask is not None
    decided = decisions(batch.transitions.timestep, batch.mask)
    said = jnp.where(decided, batch.transitions.action, -1)
    return jnp.repeat((said[:, ::2] != said[:, 1::2]).any(0), 2)


def recipe(env: Environment, config: Config) -> Recipe:
    plain = on_pairs(env, config, loss_of_pairs(calibrated_loss), rewards=True)

    def update(net: Net, batch: Batch) -> Net:
        assert batch.mask is not None
        right, advantage = returns_of(batch), batch.transitions.extras["advantage"][0]
        differ = differing_pairs(batch)
        paid = with_rewards(batch, place_at_last(advantage, batch.mask))
        net = plain.update(net, dataclasses.replace(paid, mask=batch.mask & differ))
        calibrated = differ[1::2] & (advantage[1::2] > advantage[::2])
        return net.report(
            differing=differ.mean(),
            calibrated=calibrated.mean(),
            chosen_return=right[::2].mean(),
            rejected_return=right[1::2].mean(),
        )

    needs = ("mask", "transitions.extras.advantage")
    return dataclasses.replace(plain, update=update, needs=needs)


genius = AlgorithmBuilder("genius", Config, recipe, check=check, measure=measure_return)

TINY = SMALL_PLAYED | {"prompts": 4, "beams": 2, "rollouts": 2, "steps": 2, "step_length": 1}
