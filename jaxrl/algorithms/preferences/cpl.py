"""Contrastive preference learning (CPL; Hejna, Rafailov, Sikchi, Finn, Niekum, Knox and Sadigh,
2023, "Contrastive preference learning: learning from human feedback without RL", arXiv:2310.13639).

People are taken to prefer the segment with the lower regret, the larger discounted sum of optimal
advantages. The optimal maximum-entropy policy has log pi(a|s) = A(s, a) / alpha, so preferences are
likely or not under a policy, without a reward model or values: with the score
s = sum_t discount^t alpha log pi(a_t|s_t) of a segment, the policy minimizes

    -log sigmoid(s(preferred) - bias s(other))

A bias below 1 is the conservative variant, which favors segments that the policy finds likely. The
policy is first cloned from all segments; then its optimizer begins anew.

As in the authors' code a policy of real numbers is deterministic, and the "log-probability" of an
action is its negative squared distance from the policy's, in half-widths of the bounds. Their
policies have dropout, and their second optimizer a warm-up, which are not here.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import segment_policies as policies
from jaxrl.algorithms.preferences.shared.segments import (
    PAIR,
    SMALL_SEGMENTS,
    Segments,
    accuracy,
)
from jaxrl.core import trees
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Transition
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import INF, Optimizer, Torso


@group
class Config:
    """Settings of contrastive preference learning: a policy whose log-probabilities are advantages
    (arXiv:2310.13639)."""

    segments: Segments = Segments()
    torso: Torso = Torso(hidden=(512, 512), initializer="orthogonal")
    """Hidden layers. Two of 512, orthogonal: authors' code."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of both phases. Adam, 1e-4: authors' code."""

    pretraining: float = hyper(200_000.0, low=0, high=INF)
    """Number of gradient steps of cloning before the contrastive ones. 200,000 of 500,000: authors'
    code."""
    temperature: float = hyper(0.1, above=0, high=INF, log=True)
    """Temperature alpha of the maximum-entropy policy. 0.1: authors' code."""
    bias: float = hyper(0.5, above=0, high=1)
    """Factor lambda on the score of the other segment; 1 is no bias. 0.5: authors' code."""
    discount: float = hyper(1.0, above=0, high=1)
    """Discount factor per step from the beginning of a segment on. 1: authors' code."""
    cloning: float = hyper(0.0, low=0, high=INF)
    """Weight of cloning after the pretraining. 0: authors' code."""


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor", name="loss", unit=PAIR)
    def policy_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the loss of each pair: cloning of both segments at first, then the contrast."""
        h, t = net.hyper, x.x
        log_prob = policies.log_likelihood(env, net.actor(t.timestep), t.action)
        chosen, rejected = log_prob[:, ::2], log_prob[:, 1::2]
        cloning = losses.behavior_cloning(0.5 * (chosen + rejected).mean(0))
        contrast = losses.cpl(chosen, rejected, h.temperature, h.discount, h.bias)
        early = net.updates < h.pretraining
        metrics = {
            "contrast": contrast,
            "cloning": cloning,
            "accuracy": accuracy(*(discounted_sum(x, h.discount) for x in (chosen, rejected))),
        }
        return LossOutput(jnp.where(early, cloning, contrast + h.cloning * cloning), metrics)

    def update(net: Net, batch: Batch) -> Net:
        restarted = net.restart(actor=net.parts["actor"].params)
        begins = net.updates == jnp.ceil(net.hyper.pretraining)
        net = net.replace(parts=trees.where(begins, restarted.parts, net.parts))
        return net.descend(policy_loss, batch)

    return Recipe(
        parts={"actor": policies.make_actor(env, config.torso, config.optimizer)},
        act=policies.act_by_actor(env),
        losses=(policy_loss,),
        update=update,
        needs=("mask",),
        scores={
            **policies.accuracy_scores(config.segments),
            **(policies.DISTANCE if config.segments.teacher.score == "regret" else {}),
        },
    )


def discounted_sum(log_prob: Array, discount: Array) -> Array:
    """Return the discounted sums [B] of the log-probabilities of segments [T, B]."""
    return jnp.tensordot(jnp.power(discount, jnp.arange(len(log_prob))), log_prob, 1)


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `segment_policies.measure_accuracy` of segments' log-probabilities, and
    `segment_policies.measure_distance`."""
    network, state = policies.network_of(env, config.torso), policy.state
    params, discount = state.parts["actor"].params, state.hyper["discount"]

    def score(t: Transition) -> Array:
        choice = network.apply(params, t.timestep)
        return discounted_sum(policies.log_likelihood(env, choice, t.action), discount)

    found = policies.measure_accuracy(env, config.segments, policy, key, score)
    choose = lambda timestep: network.apply(params, timestep)
    return {**found, **policies.measure_distance(env, config.segments, choose)}


cpl = AlgorithmBuilder("cpl", Config, recipe, check=policies.check, measure=measure)

TINY = SMALL_SEGMENTS | {"hidden": (8,), "pretraining": 2.0, "teacher.equal": 0.1}
