"""Direct preference-based policy optimization (DPPO; An, Lee, Zuo, Kosaka, Kim and Song, 2023,
"Direct preference-based policy optimization without reward modeling", arXiv:2301.12842).

A predictor of preferences scores whole segments. It learns from labeled pairs by the Bradley-Terry
loss, and scores a segment and the same one moved by a few steps alike:

    bradley_terry(f(preferred), f(other)) + smoothness (f(segment) - f(segment moved))^2

Then it is frozen and ranks the segments of each batch, of which nobody compared any. The policy,
deterministic, becomes nearer to the actions of the preferred one of each two:

    -log(exp(-d(preferred) / T) / (exp(-d(preferred) / T) + exp(-bias d(other) / T)))

with the mean distance d of its actions from those of a segment, in ranges of the actions. As in the
authors' code, all pairs of a batch are compared. There, half of the segments for the smoothness are
labeled ones, and a step of the transformer is two tokens, the observation and the action; here
these segments are any of the data, and a step is one token. Their policies may have dropout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import segment_policies as policies
from jaxrl.algorithms.preferences.shared.predictors import Predictor, SegmentScore
from jaxrl.algorithms.preferences.shared.segments import (
    SMALL_SEGMENTS,
    PartlyLabeled,
    accuracy,
    set_unit,
    split_sets,
)
from jaxrl.core import metrics as m
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source, Transition
from jaxrl.kit import (
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
from jaxrl.kit.composing import descend_where
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks.heads import check_bounded


@group
class Moved(PartlyLabeled):
    """Pairs of segments of recorded experience, and segments that nobody compared, each with the
    same segment some steps earlier or later."""

    length: int = static(100, low=1)
    """Number of steps of a segment. 100: authors' code."""
    batch_size: int = static(256, low=1)
    """Number of pairs in a gradient step. 256: authors' code."""
    others: int = static(1, low=1, high=MANY)
    """Number of segments that nobody compared, of all of the data, for each pair of a gradient
    step. The policy learns from these alone."""
    shift: float = static(20.0, above=0)
    """Standard deviation of the number of steps by which a segment is moved."""

    def source(self, env: Environment) -> Source:
        """Return a source of batches of all."""
        return self.pairs(env, others=self.others, shift=self.shift)


@group
class Config:
    """Settings of direct preference-based policy optimization: a predictor of preferences, and a
    policy near the actions that it prefers (arXiv:2301.12842)."""

    segments: Moved = Moved()
    predictor: Predictor = Predictor()
    predictor_optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the predictor. Authors' code: AdamW, up to 1e-3."""
    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the policy. Adam, 3e-4: authors' code."""

    predictor_steps: float = hyper(10_000.0, low=0, high=INF)
    """Number of gradient steps of the predictor, before those of the policy. Authors' code: 10,000
    epochs of the labeled pairs."""
    smoothness: float = hyper(1.0, low=0)
    """Weight nu of the squared difference between the scores of a segment and of the moved one."""
    temperature: float = hyper(0.1, above=0, log=True)
    """Temperature T of distances. 0.1: authors' code."""
    bias: float = hyper(1.0, low=0, high=1)
    """Factor lambda on the distance from the other segment; 1 is no bias."""


def predictor_of(env: Environment, config: Any) -> SegmentScore:
    """Return the network of the predictor."""
    h = config.predictor
    return SegmentScore(env.observation_space, env.action_space, h.width, h.layers, h.heads)


def rank_loss(distance: Array, score: Array, temperature: Any, bias: Any) -> m.Mean:
    """Return the mean of `losses.direct_pref_po` over all pairs of segments with different scores.

    distance, score: [K].
    """
    size = (len(distance), len(distance))
    chosen, rejected = (jnp.broadcast_to(x, size)[None] for x in (distance[:, None], distance))
    value = losses.direct_pref_po(chosen, rejected, temperature, bias)
    counts = score[:, None] > score
    return m.Mean(jnp.where(counts, value, 0).sum(), counts.sum().astype(jnp.float32))


def recipe(env: Environment, config: Config) -> Recipe:
    others, shift = config.segments.others, config.segments.shift
    unit = set_unit(others=others, shift=shift)

    @loss("predictor", unit=unit)
    def predictor_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the loss of the predictor for each pair, with that of the segments beside it."""
        score = net.predictor(x.x.timestep, x.x.action)
        chosen, rejected, alone = split_sets(score, others=others, shift=shift)
        likelihood = losses.bradley_terry(chosen, rejected)[:, 0]
        rough = jnp.square(alone[:, ::2] - alone[:, 1::2]).mean(-1)
        metrics = {"accuracy": accuracy(chosen, rejected)[:, 0], "roughness": rough}
        return LossOutput(likelihood + net.hyper.smoothness * rough, metrics)

    @loss("actor")
    def policy_loss(net: Net, x: tuple[Transition, Array]) -> LossOutput:
        """Return the mean over all pairs of segments that nobody compared."""
        t, score = x
        apart = policies.squared_distance(env, net.actor(t.timestep), t.action)
        distance = 0.5 * jnp.sqrt(jnp.where(apart > 0, apart, 1)) * (apart > 0)  # in whole ranges
        h = net.hyper
        return LossOutput(rank_loss(distance.mean(0), score, h.temperature, h.bias))

    def update(net: Net, batch: Batch) -> Net:
        early, t = net.updates < net.hyper.predictor_steps, batch.transitions
        window = Minibatch(t, batch.mask)
        net = descend_where(net, early, lambda net: net.descend(predictor_loss, window))

        def improve(net: Net) -> Net:
            sets = lambda x: x.reshape(x.shape[0], -1, unit.columns, *x.shape[2:])
            alone = lambda x: sets(x)[:, :, 2::2].reshape(x.shape[0], -1, *x.shape[2:])
            some = jax.tree.map(alone, t)
            return net.descend(policy_loss, (some, net.predictor(some.timestep, some.action)))

        return descend_where(net, ~early, improve)

    timestep, action = example_timestep(env), spaces.example(env.action_space)[None]
    length = config.segments.length
    window = jax.tree.map(lambda x: jnp.repeat(x[None], length, 0), (timestep, action))
    return Recipe(
        parts={
            "predictor": Part(predictor_of(env, config), window, config.predictor_optimizer),
            "actor": policies.make_actor(env, config.torso, config.optimizer),
        },
        act=policies.act_by_actor(env),
        losses=(predictor_loss, policy_loss),
        update=update,
        needs=("mask",),
        scores=policies.accuracy_scores(config.segments),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, in which there are distances."""
    check_bounded(env.action_space, name)


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the predictor's `segment_policies.measure_accuracy`."""
    network: Any = predictor_of(env, config)
    params = policy.state.parts["predictor"].params
    score = lambda t: network.apply(params, t.timestep, t.action)
    return policies.measure_accuracy(env, config.segments, policy, key, score)


dppo_preference = AlgorithmBuilder("dppo_preference", Config, recipe, check=check, measure=measure)

TINY = SMALL_SEGMENTS | {
    "hidden": (8,),
    "predictor.width": 8,
    "predictor.heads": 2,
    "predictor_steps": 2.0,
    "others": 2,
}
