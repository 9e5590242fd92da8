"""A-LoL (Baheti et al., 2024, "Leftover lunch: advantage-based offline reinforcement learning for
language models", arXiv:2305.14718): policy gradient on a dataset of texts with rewards, of those
that are better than what a reference policy would have written.

A whole answer y to a prompt x is one action. Its advantage is R(x, y) - V(x), where V is the value
of the reference policy, learned from its own answers before (`a_lol_value`) and frozen. Answers
without a positive advantage are dropped, and the others are drawn in proportion to it. The loss is

    -A(x, y) clip(pi(y | x) / pi_ref(y | x), 1 - clip, 1 + clip) log pi(y | x),

with no gradient through the ratio: of the answer (A-LoL), of each token (A-LoL seq.), or none at
all (A-LoL ref. free; with `beta` above 0, which adds beta log(pi / pi_ref), A-LoL KL).

Warm-start it from a run of `a_lol_value`, whose policy is the reference, or from one of `a_lol`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.a_lol_value import PART, value_of_prompt
from jaxrl.algorithms.preferences.shared.measures import exact_scores, measure_return
from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate, returns_of, unroll
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.shared.texts import (
    Texts,
    on_texts,
    weigh_by_return,
    weigh_right,
)
from jaxrl.core import memory
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Policy, Source, Tree
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import INF, Optimizer
from jaxrl.kit.state import State
from jaxrl.sources.texts import Weigh

RATIOS = ("sequence", "token", "none")

# How often a text is drawn, by its advantage.
KEEP: dict[str, Weigh] = {
    "all": jnp.ones_like,
    "positive": weigh_right,
    "by_advantage": weigh_by_return,
}


@group
class Leftovers(Texts):
    """Texts to learn from, drawn by their advantage over the reference policy."""

    count: int = static(4096, low=1)
    """Number of texts in the dataset, which is written once."""
    keep: str = static("by_advantage", choices=KEEP)
    """Texts of the dataset that are drawn: all, positive (those with a positive advantage), or
    by_advantage (in proportion to it, where it is positive)."""

    @property
    def weigh(self) -> Weigh:
        """Function that says how often texts are drawn, by their advantages."""
        return KEEP[self.keep]

    def check(self, name: str) -> None:
        """Raise `UserError` for a file, whose texts are drawn as it says."""
        if self.file:
            raise UserError(f"{name} draws texts by their advantage; leave texts.file empty.")


@group
class Config(Tokens):
    """Settings of A-LoL: policy gradient on a dataset's texts that are better than a reference
    policy's (arXiv:2305.14718)."""

    texts: Leftovers = Leftovers()
    optimizer: Optimizer = Optimizer(learning_rate=2e-4, max_grad_norm=0.3)
    """Optimizer settings. Those of the authors' code for adapters of a model of 7B. (Small networks
    need larger steps.)"""
    ratio: str = static("sequence", choices=RATIOS)
    """Importance ratio: of the answer (sequence), of each token, or none (a ratio of 1)."""
    clip: float = hyper(0.9, low=0, high=INF)
    """Clip range of the ratio around 1. 0.9: the authors' code."""
    beta: float = hyper(0.0, low=0)
    """Weight of the divergence from the reference policy."""


def advantages(batch: Batch, value: Array) -> Array:
    """Return the advantages [B] of whole texts over the reference policy: their returns less the
    values of their prompts, from the values [T, B] of their steps."""
    assert batch.mask is not None
    return returns_of(batch) - value_of_prompt(value, batch.transitions.timestep, batch.mask)


def source(env: Environment, config: Config) -> Source:
    """Return batches of a dataset of texts, drawn by their advantages."""
    network = token_network(env, config)

    def score(policy: Policy, batch: Batch) -> Array:
        timestep = batch.transitions.timestep
        blank = memory.shrink(network.initial(timestep.first.shape[1]))
        params = policy.state.parts[PART].params
        apply: Any = network.apply
        return advantages(batch, apply(params, timestep, blank, method="unroll")[1])

    return config.texts.source(env, score=score)


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor_critic", name="loss", unit=SEQUENCE)
    def a_lol_loss(net: Net, x: Minibatch) -> LossOutput:
        """Compute the loss of each text, less an entropy bonus."""
        now, h = evaluate(net, x.x, as_sampled=False), net.hyper
        advantage, ratio = x.x.advantage[0], cast(Any, config.ratio)
        value = losses.a_lol(now.log_prob, x.x.reference, advantage, h.clip, ratio, h.beta, x.mask)
        of_texts = lambda y, mean: losses.sequence_log_prob(y, x.mask, normalize=mean)
        ours, reference = (of_texts(y, False) for y in (now.log_prob, x.x.reference))
        entropy = of_texts(now.entropy, True)
        metrics = {
            "policy_loss": value,
            "entropy": entropy,
            "advantage": advantage,
            "ratio": losses.importance_ratio(ours, reference),
            "kl_to_reference": of_texts(losses.kl_k3(now.log_prob, x.x.reference), True),
        }
        return LossOutput(value - h.entropy_weight * entropy, metrics)

    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        policy, _ = unroll(net.target.actor_critic, net, x.timestep)
        advantage = advantages(batch, unroll(net.critic, net, x.timestep)[1])
        spread = jnp.broadcast_to(advantage, batch.transitions.reward.shape)
        reference = policy.log_prob(x.action)
        return Sample(x.timestep, x.action, reference=reference, advantage=spread)

    def adopt(own: State, other: Tree) -> Tree:
        if not isinstance(other, State) or PART not in other.parts:
            return other  # which will not fit
        critic = dataclasses.replace(own.parts[PART], params=other.parts[PART].params)
        return dataclasses.replace(other, parts={**other.parts, PART: critic}, extra=own.extra)

    plain = on_texts(env, config, a_lol_loss, prepare)
    policy = plain.parts["actor_critic"]
    parts = {**plain.parts, PART: Part(policy.network, policy.inputs)}
    scores = exact_scores(env)
    return dataclasses.replace(plain, parts=parts, adopt=adopt, scores=scores)


a_lol = AlgorithmBuilder(
    "a_lol",
    Config,
    recipe,
    source,
    check=texts.check,
    measure=measure_return,
    goes_on_from="a_lol_value",
)

TINY = SMALL | {
    "env": "judged_words",
    "num_envs": 8,
    "num_shards": 4,
    "count": 16,
    "writer": "policy",
    "beta": 0.1,
}
