"""Likelihood, negative gradients and own answers, if the optimum is outside of the reference."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._flows import (
    LINE,
    blind_to_rejected,
    bumps,
    excess,
    with_beta,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.exact.answers import best_of_n
from jaxrl.exact.preference_flows import (
    draw_pairs,
    follow,
    measure_path,
    of_pairs,
    of_reward,
    of_texts,
)

OPTIMUM, APART = 0.7, -0.7  # places on the line: of the best answer, and of the reference
BETAS, SIZES = (0.02, 0.1, 0.5), (4, 16, 64)
DATASETS, PAIRS, STEPS = 8, 1000, 400
Loss = Callable[..., Array]  # like `losses.dpo`


def gold_of(key: Key, center: float, dpo: Loss) -> dict[str, Array]:
    """Return the gold reward of each method with its best strength after as many steps."""
    reference = jax.nn.log_softmax(jnp.asarray(-(((LINE - center) / 0.3) ** 2) / 2))
    reward = jnp.asarray(-4 * np.abs(LINE - OPTIMUM))
    pairs = draw_pairs(key, reference, reward, PAIRS)
    written = (pairs + pairs.T).sum(1) / 2

    def end(objective):
        policies = follow(objective, reference, bumps(12, 0.25), STEPS, 0.05)
        return measure_path(policies, reference, reward, pairs).gold[-1]

    def by_reward(beta):
        share = written * jnp.exp((reward - reward.max()) / beta)
        return of_texts(share / share.sum())

    def best(n):
        share = jnp.exp(best_of_n(jnp.log(jnp.maximum(written, 1e-30)), reward, n))
        return of_texts(share / share.sum())

    most = lambda objectives: jnp.stack([end(x) for x in objectives]).max()
    return {
        "cloning": end(of_texts(pairs.sum(1))),
        "best of n": most(best(n) for n in SIZES),
        "weighted by reward": most(by_reward(b) for b in BETAS),
        "DPO": most(of_pairs(with_beta(dpo, b), pairs, reference) for b in BETAS),
        "policy gradient": most(of_reward(reward, reference, b) for b in BETAS),
    }


LIKELIHOOD = ("cloning", "best of n", "weighted by reward")
OTHERS = ("DPO", "policy gradient")


def errors_of(key: Key, center: float, dpo: Loss) -> dict[str, Array]:
    """Return by how much maximum likelihood is above each other method."""
    keys = jax.random.split(key, DATASETS)
    gold = jax.vmap(lambda key: gold_of(key, center, dpo))(keys)
    likelihood = jnp.stack([gold[name].mean() for name in LIKELIHOOD])
    lead = {name: likelihood - gold[name].mean() for name in OTHERS}
    return {f"likelihood above {name}": excess(x) for name, x in lead.items()}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return by how much the order is violated where the optimum is outside of the reference."""
    return errors_of(key, APART, losses.dpo)


@jax.jit
def inside(key: Key) -> dict[str, Array]:
    """Return the errors where the optimum is in the middle of the reference."""
    return errors_of(key, OPTIMUM, losses.dpo)


@jax.jit
def without_negative_gradient(key: Key) -> dict[str, Array]:
    """Return the errors of a loss that does not push rejected answers down."""
    return errors_of(key, APART, blind_to_rejected(losses.dpo))


CLAIM = Exact(
    paper=Paper(
        "Preference Fine-Tuning of LLMs Should Leverage Suboptimal, On-Policy Data",
        "Tajwar, Singh, Sharma, Rafailov, Schneider, Xie, Ermon, Finn and Kumar",
        2024,
        "2404.14367",
        "On-policy sampling and negative gradients outperform maximum likelihood offline, since "
        "they seek modes and move probability mass faster, most where the best answers have little "
        "probability under the reference.",
    ),
    claim="Where the reference hardly writes the best answer, DPO and the policy gradient end "
    "with a higher reward than cloning, best-of-n and reward-weighted regression.",
    left_out="Language models, learned rewards, PPO's clipped ratios, and IPO, which in a "
    "trial was at times below reward-weighted regression by up to 0.16: here policies are "
    "log-linear over 48 answers, on-policy gradients are expectations, and each method has the "
    "best of three strengths.",
    parts=("jaxrl/exact/preference_flows.py", "jaxrl/losses/preferences/pairs.py"),
    errors=errors,
    planted={
        "the optimum inside of the reference": inside,
        "no gradient of rejected answers": without_negative_gradient,
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=10,
    minutes=3.0,
    notes="Errors are by how much an order is violated in the mean of eight datasets of 1,000 "
    "pairs. The first attempt gave NaN, since constants that were float32 underflowed; it had the "
    "same design.",
    mutations=(Mutation("no gradient of rejected answers", "jaxrl.losses:dpo", blind_to_rejected),),
)
