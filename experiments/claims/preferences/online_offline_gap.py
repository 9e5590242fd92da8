"""Preferences online and offline at equal divergence, by sums over all answers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.claims.preferences._flows import (
    DIVERGENCES,
    Problem,
    excess,
    mean_over_problems,
    offline,
    online,
    path,
    with_beta,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.exact.preference_flows import at_divergence, expected_pairs, of_pairs

Loss = Callable[..., Array]  # like `losses.dpo`


def figures(x: Problem, dpo: Loss) -> dict[str, Array]:
    """Return gold rewards at equal divergences, and accuracies on all pairs, of each side."""
    policies, own = online(x, dpo)
    # All that online DPO has written and seen labeled, as a dataset.
    seen = jax.vmap(lambda p: expected_pairs(p, x.proxy))(policies).mean(0)
    sides = {
        "online": own,
        "offline": offline(x, dpo)[1],
        "shuffled": path(x, of_pairs(with_beta(dpo), seen, x.reference))[1],
    }
    gold = lambda reached: at_divergence(reached, reached.gold, jnp.asarray(DIVERGENCES))
    found = {name: gold(reached) for name, reached in sides.items()}
    return found | {f"{name}, pairs": reached.accuracy[-1] for name, reached in sides.items()}


def errors_of(key: Key, dpo: Loss) -> dict[str, Array]:
    """Return by how much each finding is missed."""
    x = mean_over_problems(lambda problem: figures(problem, dpo), key)
    return {
        "offline above online": excess(x["offline"] - x["online"]),
        "a dataset of all online pairs above online": excess(x["shuffled"] - x["online"]),
        "pairs classified better online": excess(x["online, pairs"] - x["offline, pairs"]),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed by DPO."""
    return errors_of(key, losses.dpo)


@jax.jit
def reverse_labels(key: Key) -> dict[str, Array]:
    """Return the first error if online pairs are labeled the other way round."""

    def one(x: Problem) -> dict[str, Array]:
        gold = lambda reached: at_divergence(reached, reached.gold, jnp.asarray(DIVERGENCES))
        wrong, right = online(x, reverse(losses.dpo))[1], offline(x, losses.dpo)[1]
        return {"lead": gold(right) - gold(wrong)}

    return {"offline above online": excess(mean_over_problems(one, key)["lead"])}


def reverse(loss: Loss) -> Loss:
    """Prefer the rejected answer."""
    return lambda a, b, c, d, beta: loss(b, a, d, c, beta)


CLAIM = Exact(
    paper=Paper(
        "Understanding the performance gap between online and offline alignment algorithms",
        "Tang, Guo, Zheng, Calandriello, Cao, Tarassov, Munos, Avila Pires, Valko, Cheng and "
        "Dabney",
        2024,
        "2405.08448",
        "Online algorithms are better than offline ones at equal divergence. Coverage and quality "
        "of the data do not explain it; offline policies classify pairs better and generate worse, "
        "with contrastive and other losses, and larger networks do not help.",
    ),
    claim="At equal divergence online DPO has a higher gold reward than offline, and than from its "
    "own pairs as a dataset; the offline policy classifies pairs better.",
    left_out="Language models, scale, IPO, which was 0.0013 worse online than offline with one of "
    "three seeds of a trial, and losses that are not contrastive: here policies are log-linear "
    "over 48 answers, 100 pairs train reward model and offline policy, and divergences are 0.25 to "
    "1.",
    parts=("jaxrl/exact/preference_flows.py", "jaxrl/losses/preferences/pairs.py"),
    errors=errors,
    planted={"labels of online pairs reversed": reverse_labels},
    tolerance=1e-9,
    effect=1e-2,
    seeds=8,
    minutes=4.0,
    notes="Errors are by how much an order is violated in the mean of 32 problems, each with a "
    "reward, a dataset and a reward model of its own. A run before the recorded one was stopped, "
    "without a verdict, since it took longer than planned.",
    mutations=(Mutation("the rejected answer is preferred", "jaxrl.losses:dpo", reverse),),
)
