"""H2O's losses in random finite Markov decision processes with another one as the simulator, with
discriminators that are exact, in float64."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.exact.dynamic_programming import action_values, policy_evaluation

STATES, ACTIONS, DISCOUNT, ITERATIONS = 5, 3, 0.8, 250
Weigh = Callable[[Array, Array], Array]  # log-odds of transitions and of pairs -> weights


def weigh(transition_logits: Array, pair_logits: Array) -> Array:
    """Return the weights of simulated transitions, without bounds that bind."""
    return losses.dynamics_ratio(transition_logits, pair_logits, 1e-30, 1e30)


def errors_of(key: Key, weigh: Weigh = weigh, swapped: bool = False) -> dict[str, Array]:
    """Return the largest errors of these.

    "values": fitted values of a policy, by weighted squared errors on simulated transitions alone,
    beside those in reality. "gap": the mean dynamics gap beside KL(simulator || reality). "push":
    how the regularizer moves values, beside shares in proportion to KL exp(Q) downward on simulated
    pairs, and equal shares upward on real ones. swapped: take the simulator for reality.
    """
    keys = jax.random.split(key, 6)
    chances = lambda key: jax.random.dirichlet(key, jnp.ones(STATES), (STATES, ACTIONS))
    real, simulated = chances(keys[0]), chances(keys[1])
    reward = jax.random.normal(keys[2], (STATES, ACTIONS))
    policy = jax.random.dirichlet(keys[3], jnp.ones(ACTIONS), (STATES,))
    pairs = jax.random.dirichlet(keys[4], jnp.ones(STATES * ACTIONS), (2,))
    q = jax.random.normal(keys[5], (STATES * ACTIONS,))
    # The log-odds of exact discriminators, real transitions being as many as simulated ones.
    pair_logits = jnp.log(pairs[0] / pairs[1]).reshape(STATES, ACTIONS, 1)
    logits = pair_logits + jnp.log(real / simulated)
    if swapped:
        logits = pair_logits - jnp.log(real / simulated)
    pair_logits = jnp.broadcast_to(pair_logits, logits.shape)
    weight = simulated * weigh(logits, pair_logits)

    def fit(values: Array, _: None) -> tuple[Array, None]:
        """Minimize the weighted squared errors: the mean of targets, by their weights."""
        paid, following = jnp.broadcast_arrays(reward[..., None], values)
        target = losses.td_target(paid, jnp.zeros(paid.shape), DISCOUNT, following)
        fitted = (weight * target).sum(-1) / weight.sum(-1)
        return (policy * fitted).sum(-1), fitted  # type: ignore[return-value]

    _, fitted = jax.lax.scan(fit, jnp.zeros(STATES), None, length=ITERATIONS)
    exact = policy_evaluation(real, reward, policy, DISCOUNT)
    exact_q = action_values(real, reward, exact, DISCOUNT)
    divergence = (simulated * jnp.log(simulated / real)).sum(-1)
    gap = (simulated * losses.dynamics_gap(logits, pair_logits)).sum(-1)
    slope = jax.grad(losses.dynamics_gap_regularizer, (0, 2))(q, gap.clip(0).ravel(), q)
    share = divergence.ravel() * jnp.exp(q)
    return {
        "values": jnp.abs(fitted[-1] - exact_q).max(),  # type: ignore[index]
        "gap": jnp.abs(gap - divergence).max(),
        "push": jnp.maximum(
            jnp.abs(slope[0] - share / share.sum()).max(), jnp.abs(slope[1] + 1 / len(q)).max()
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the losses as they are."""
    return errors_of(key)


def clip_weights(transition_logits: Array, pair_logits: Array) -> Array:
    """Return weights within the authors' bounds, of which the upper one is 1."""
    return losses.dynamics_ratio(transition_logits, pair_logits)


CLAIM = Exact(
    paper=Paper(
        "When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online Reinforcement "
        "Learning",
        "Niu, Sharma, Qiu, Li, Zhou, Hu and Zhan",
        2022,
        "2206.13464",
        "Values are learned from a simulator's transitions as far as its dynamics can be trusted: "
        "errors are weighted by a dynamics ratio, and values fall where the dynamics gap is large.",
    ),
    claim="With exact discriminators, weighted errors on simulated transitions alone give a "
    "policy's values in reality, if weights may exceed 1; mean gaps are KL divergences; the "
    "regularizer lowers simulated pairs in proportion to gap times exp(Q).",
    left_out="Learned discriminators, and control. The authors bound weights by 1, with which "
    "values are no longer those of reality: that is among the planted mistakes.",
    parts=("jaxrl/losses/offline/hybrid.py",),
    errors=errors,
    planted={
        "weights of at most 1": jax.jit(lambda key: errors_of(key, clip_weights)),
        "no weights": jax.jit(lambda key: errors_of(key, lambda logits, _: jnp.ones_like(logits))),
        "the simulator is taken for reality": jax.jit(lambda key: errors_of(key, swapped=True)),
    },
    tolerance=1e-8,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "the gap has the other sign",
            "jaxrl.losses:dynamics_gap",
            lambda gap: lambda transition_logits, pair_logits: -gap(transition_logits, pair_logits),
        ),
        Mutation(
            "the regularizer has another temperature",
            "jaxrl.losses:dynamics_gap_regularizer",
            lambda regularizer: lambda q, gap, data: regularizer(q, gap, data, 2.0),
        ),
    ),
)
