"""RPG's losses against the exact gradient of a KL-regularised objective, and in training."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, agreement, figure
from experiments.systems.token_rl._arithmetic import built, warmed_up, went_on
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.systems.tokens.grpo import grpo
from jaxrl.systems.tokens.rpg import rpg
from jaxrl.systems.tokens.rpg_clipped import rpg_clipped

PAPER = {
    "title": "On the Design of KL-Regularized Policy Gradient Algorithms for LLM Reasoning",
    "authors": "Zhang, Liu, Yuan, Yuan, Gu and Yao",
    "year": 2025,
    "arxiv": "2505.17508",
}
CLAIM = (
    "RPG's losses have the exact gradient of reward less a KL penalty from another policy's "
    "samples, where GRPO's unweighted penalty has not."
)
PARTS = (
    "jaxrl/losses/tokens/policies.py",
    "jaxrl/systems/tokens/",
)

METRIC = "largest error of the expected gradient, relative to the largest entry of the exact one"
TOLERANCE = 1e-5
EFFECT = 1e-2
BETA = 0.3
VOCABULARY, LENGTH = 5, 3  # 125 answers, all of them enumerated
LOSSES = tuple(itertools.product(("forward", "reverse"), (True, False), (False, True)))
UPDATES = 100  # of two epochs of two minibatches: off-policy
TRAINING = {"prompts": 16, "answers": 8, "epochs": 2, "minibatches": 2}
TRAINING |= {"learning_rate": 1e-3, "kl.weight": 0.05}
NOTES = (
    "Exact part: answers of 3 tokens out of 5 by a tabular autoregressive softmax, the expectation "
    "over all 125 answers of the policy that acted, which differs from the one that is learnt and "
    "from the reference; the worst of the 8 losses (forward or reverse, normalized or not, "
    "differentiable or REINFORCE's style). Holds if all agree on every seed and GRPO's k3 penalty, "
    "which lacks the importance weight, with the gradient of its own divergence on none. Baseline "
    "and mechanism switched off: GRPO's. Details: from 300 supervised updates on two-digit sums, "
    "off-policy training with each loss; REINFORCE++ and DAPO are not part of it."
)


def log_probs(logits: Array) -> Array:
    """log p(y) of all answers y, [V^3], where logits [1 + V + V^2, V] are those after each
    beginning of an answer."""
    tables = jax.nn.log_softmax(logits)
    begin, one = tables[0], tables[1 : 1 + VOCABULARY]
    two = tables[1 + VOCABULARY :].reshape(VOCABULARY, VOCABULARY, VOCABULARY)
    return (begin[:, None, None] + one[:, :, None] + two).reshape(-1)


def objective(logits, reference, reward, kl, normalized) -> Array:
    """What is to be minimised, exactly: -E[reward] + BETA * divergence."""
    ours = log_probs(logits)
    p, q = jnp.exp(ours), jnp.exp(reference)
    if kl == "forward":
        divergence = q * (reference - ours)
        excess = p - q
    else:
        divergence = p * (ours - reference)
        excess = q - p
    return -(p * reward).sum() + BETA * (divergence + (0.0 if normalized else excess)).sum()


def worst(error: Array, exact: Array) -> Array:
    return jnp.abs(error - exact).max() / jnp.abs(exact).max()


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Of one seed: each loss's error."""
    sizes = 1 + VOCABULARY + VOCABULARY**2, VOCABULARY
    ours, acting, reference = jax.random.normal(key, (3, *sizes))
    reward = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.3, (VOCABULARY**LENGTH,)) * 1.0
    old, reference = log_probs(acting), log_probs(reference)
    expected = lambda loss: lambda logits: (jnp.exp(old) * loss(log_probs(logits))).sum()

    def error(kl, normalized, reinforce):
        loss = lambda now: losses.rpg(now, old, reference, reward, BETA, kl, normalized, reinforce)
        exact = jax.grad(objective)(ours, reference, reward, kl, normalized)
        return worst(jax.grad(expected(loss))(ours), exact)

    found = {
        f"{kl}, {'' if normalized else 'un'}normalized{', REINFORCE' * reinforce}": error(
            kl, normalized, reinforce
        )
        for kl, normalized, reinforce in LOSSES
    }
    # Far from the edge of any clip: the penalty alone is what differs.
    penalized = lambda now: losses.grpo(now, old, reference, reward, jnp.inf, BETA)
    exact = jax.grad(objective)(ours, reference, reward, "reverse", False)
    return found | {"GRPO": worst(jax.grad(expected(penalized))(ours), exact)}


def check(key: jax.Array, budget: Budget) -> Check:
    """Errors of the expected gradients, and a table of off-policy training."""
    keys = jax.random.split(key, budget.num_seeds(2, 5, 10))
    found = {k: np.asarray(v, np.float64) for k, v in jax.vmap(errors)(keys).items()}
    penalty = figure("GRPO's penalty", found.pop("GRPO"))
    worst_rpg = figure("worst of RPG's losses", np.max(list(found.values()), axis=0))
    details = [figure(f"error: {name}", values) for name, values in found.items()]
    agents = warmed_up(keys, budget)
    for system in (rpg, rpg_clipped, grpo):
        algorithm = built(system, TRAINING)
        trained = went_on(keys, agents, algorithm, budget.choose(2, UPDATES), budget)[1]
        details += [
            figure(f"{metric}, training: {system.name}", trained[metric], rate=metric == "pass@1")
            for metric in ("pass@1", "kl_to_reference", "entropy")
        ]
    return Check(
        CLAIM,
        METRIC,
        measured=worst_rpg,
        baseline=penalty,
        verdict=agreement(worst_rpg.per_seed, TOLERANCE, penalty.per_seed, EFFECT),
        budget=budget,
        margin=TOLERANCE,
        ablation=penalty,
        details=tuple(details),
        notes=NOTES,
    )
