"""GPG against GRPO at the same number of tokens; without its baseline and its rescaling."""

from __future__ import annotations

import jax

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.token_rl._arithmetic import built, warm_up_details, warmed_up, went_on
from jaxrl.systems.tokens.gpg import gpg
from jaxrl.systems.tokens.grpo import grpo
from jaxrl.systems.tokens.rloo import rloo
from jaxrl.systems.tokens.token_reinforce import token_reinforce

PAPER = {
    "title": "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning",
    "authors": "Chu, Huang, Zhang, Wei and Wang",
    "year": 2025,
    "arxiv": "2504.02546",
}
CLAIM = "Without critic, clip and KL, GPG is at least as good as GRPO at the same tokens."
PARTS = ("jaxrl/systems/tokens/", "jaxrl/losses/advantages/groups.py")

METRIC = "pass@1 on 256 prompts, 16 answers each, after training"
MARGIN = -0.02  # "at least as good": not lower by more than this
UPDATES = 300
TRAINING = {"prompts": 16, "answers": 8, "learning_rate": 3e-4}
SYSTEMS = {
    "gpg": (gpg, TRAINING),
    "grpo": (grpo, TRAINING | {"kl.weight": 0.01}),
    "reinforce": (token_reinforce, TRAINING),
    "rloo": (rloo, TRAINING),
}
NOTES = (
    "Sums of two-digit numbers, a transformer of 2 layers and width 32 after 600 supervised "
    "updates (how far these go is in the details; after the 300 of the first attempt, pass@1 about "
    "0.05, no method learnt). GRPO with one gradient step on each batch and a KL weight of 0.01. "
    "The same learning rate, else each paper's optimizer and average over tokens. Mechanism "
    "switched off: no baseline (REINFORCE). RLOO is GPG without the rescaling by informative "
    "groups, but for a factor of each batch, which Adam hardly sees. Computing time is not "
    "compared, since all report the KL divergence. The learning rate, of 1e-3 and 3e-4, is GRPO's "
    "better one on other seeds; GPG was not tuned."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """pass@1 of GPG, GRPO, REINFORCE and RLOO from the same warmed-up policies."""
    keys = jax.random.split(key, budget.num_seeds(2, 5, 10))
    updates = budget.choose(2, UPDATES)
    agents = warmed_up(keys, budget)
    of = {name: built(system, settings) for name, (system, settings) in SYSTEMS.items()}
    found = {name: went_on(keys, agents, a, updates, budget)[1] for name, a in of.items()}
    details = warm_up_details(keys, agents, of["gpg"], budget) + [
        figure(f"{metric}: {name}", values[metric], rate=metric.startswith("pass@"))
        for name, values in found.items()
        for metric in ("pass@1", "pass@8", "entropy", "kl_to_reference")
    ]
    measured, baseline, without = (
        figure(n, found[n]["pass@1"], rate=True) for n in ("gpg", "grpo", "reinforce")
    )
    return compare(CLAIM, METRIC, measured, baseline, budget, MARGIN, without, details, NOTES)
