"""Credit underwriting as a bandit with a logistic model (Kiatsupaibul et al., 2024, "Reinforcement
learning in credit scoring and underwriting", arXiv:2212.07632): grant the loans that look best, or
explore by Thompson sampling or information-directed sampling.

Applicants are new in every round, several are chosen at once, and only their labels come. The model
is Bayesian logistic regression, and grants that are greedy by its mean are what credit scoring
does. Thompson sampling grants what is best by weights that are drawn from the belief.
Information-directed sampling prefers applicants whose expected loss is small compared with what
their label tells of who is best.

The abstract and summaries of the paper could be read, not its formulas: that the belief is
Laplace's approximation, and the variance-based ratio of Russo and Van Roy (2018), "Learning to
optimize via information-directed sampling", by samples of the weights, with the quota filled by the
lowest ratios, are our choices.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.games.shared.selection import check_selection, read_labels
from jaxrl.core.types import Array, Batch, Environment, Key
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.groups import Rollouts
from jaxrl.networks.logistic import Logistic, extend


@group
class Config:
    """Settings of credit underwriting. Defaults are ours."""

    rollouts: Rollouts = Rollouts(num_envs=1, num_steps=1)
    rule: str = static("thompson", choices=("greedy", "thompson", "ids"))
    """Rule that grants: by the mean of the belief (greedy), by a sample (thompson), or by
    information-directed sampling (ids)."""
    deviation: float = static(1.0, above=0)
    """Standard deviation of each weight of the model before any label."""
    scale: float = hyper(1.0, low=0)
    """Scale of the deviations of sampled weights; 0 is greedy, above 1 explores more."""
    samples: int = static(64, low=2)
    """Number of samples of the weights that information-directed sampling compares."""


def information_scores(odds: Array, available: Array) -> Array:
    """Return minus the ratio of squared regret to information of each applicant, [..., n].

    odds: probabilities of a label of 1 by each sample of the weights, [S, ..., n].
    available: bool [..., n].

    Regret is the expected best probability minus an applicant's; information, the variance of an
    applicant's expected probability given who is best.
    """
    shown = jnp.where(available, odds, -jnp.inf)
    count = odds.shape[-1]
    best = jax.nn.one_hot(shown.argmax(-1), count)  # [S, ..., n]
    mean = odds.mean(0)
    regret = shown.max(-1).mean(0)[..., None] - mean
    share = best.mean(0)  # [..., n]: how probably each is best
    given = jnp.einsum("s...b,s...n->...bn", best, odds) / odds.shape[0]
    given = given / jnp.where(share > 0, share, 1)[..., None]
    square = jnp.square(given - mean[..., None, :])
    information = (share[..., None] * square).sum(-2)
    return -jnp.square(regret) / jnp.maximum(information, 1e-9)


def recipe(env: Environment, config: Any) -> Recipe:
    space: Any = env.observation_space
    network = Logistic(space["candidates"].shape[-1], config.deviation)

    def act(net: Net, timestep: Any, memory: Any, key: Key, greedy: bool) -> Any:
        seen = timestep.observation
        x, belief = extend(seen["candidates"]), net.parts["model"].params
        if greedy or config.rule == "greedy":
            scores = net.model(seen["candidates"])
        elif config.rule == "thompson":  # each lender draws its own weights
            weights = net.network("model").draw(belief, key, len(x), net.hyper.scale)
            scores = jnp.einsum("bnf,bf->bn", x, weights)
        else:
            weights = net.network("model").draw(belief, key, config.samples, net.hyper.scale)
            odds = jax.nn.sigmoid(jnp.einsum("bnf,sf->sbn", x, weights))
            scores = information_scores(odds, seen["available"] > 0)
        return scores, memory, {}

    def update(net: Net, batch: Batch) -> Net:
        features, labels, known = read_labels(batch.transitions)
        odds = jax.nn.sigmoid(net.model(features))
        belief = net.network("model").infer(net.parts["model"].params, features, labels, known)
        count = jnp.maximum(known.sum(), 1)
        return net.with_params(model=belief).report(
            calibration=(known * (labels - odds)).sum() / count
        )

    example = jnp.zeros((1, network.width))
    return Recipe(parts={"model": Part(network, (example,))}, act=act, losses=(), update=update)


credit_underwriting = AlgorithmBuilder("credit_underwriting", Config, recipe, check=check_selection)

TINY = {
    "env": "selective_labels",
    "env_params": {"quota": 2, "delay": 1, "rounds": 4},
    "num_envs": 4,
    "num_steps": 2,
    "num_shards": 4,
    "rule": "ids",
    "samples": 3,
}
