"""MC returns (Abdulhai et al., 2023, "LMRL Gym: benchmarks for multi-turn reinforcement learning
with language models", arXiv:2311.18232): Q of tokens regresses on the discounted returns of texts
of a dataset, and steers the policy that is cloned from them.

    Q(s, a)   <- sum_k gamma^k r[t + k],   over the tokens of the agent
    pi(a | s) ~ pi_data(a | s) exp(beta Q(s, a))

So it is one step of policy improvement over who wrote the texts. As in the authors' code there is a
conservative term, the cross-entropy of Q with the tokens of the texts. There the policy is cloned
first; here both learn at once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import token_values
from jaxrl.algorithms.tokens.shared.token_values import (
    SMALL_VALUED,
    Valued,
    conservative_term,
    on_valued_texts,
    read_values,
)
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss
from jaxrl.kit.groups import Target


@group
class Config(token_values.Config):
    """Settings of MC returns: Q of tokens by regression on the returns of texts
    (arXiv:2311.18232)."""

    target: Target = Target(rate=1.0)
    """Target network of the values, which steers the policy: at a rate of 1 the values as they
    are."""


def returns_to_come(x: Valued, discount: Array | float) -> Array:
    """Return the discounted rewards from each decision on, [T, B]; only decisions take time."""
    zero = jnp.zeros_like(x.reward)
    own = (x.reward, zero, zero, x.terminated, x.done, x.decides)
    return losses.masked_gae(*own, discount, 1.0)


@loss("values", name="values_loss")
def values_loss(net: Net, x: Valued) -> LossOutput:
    """Compute the error of Q, and the conservative term, of each token."""
    q, _ = read_values(net.values, net, x)
    q_loss = losses.squared_error(q[..., 0], returns_to_come(x, net.hyper.discount))
    total = q_loss + net.hyper.conservative * conservative_term(net, x)
    return LossOutput(total, {"q_loss": q_loss, "mean_value": q[..., 0]})


def recipe(env: Environment, config: Any) -> Recipe:
    return on_valued_texts(env, config, values_loss, critics=1)


mc_returns = AlgorithmBuilder("mc_returns", Config, recipe, check=token_values.check)

TINY = SMALL_VALUED
