"""Penalties for a model's uncertainty beside its true error, for ensembles of Gaussian models that
are fitted in closed form to few transitions of a noisy system on a line, in float64."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.offline.offline_mbrl_design import MEASURED, rank_correlation
from jaxrl.algorithms.offline.shared.model_rollouts import PENALTIES
from jaxrl.core.types import Array, Key

MEMBERS, DATA, POINTS, BUMPS, SYSTEMS = 7, 120, 200, 16, 200
CENTERS = jnp.linspace(-2.2, 2.2, BUMPS)
RIDGE = 1e-3
Change = Callable[[Array, Array], tuple[Array, Array]]  # of means and scales [n, 1, members]


def features(x: Array) -> Array:
    return jnp.exp(-jnp.square((x[..., None] - CENTERS) / 0.3) / 2)


def fit(x: Array, y: Array) -> Array:
    """Return the weights of a ridge regression."""
    phi = features(x)
    return jnp.linalg.solve(phi.T @ phi + RIDGE * len(x) / BUMPS * jnp.eye(BUMPS), phi.T @ y)


def correlations(key: Key, change: Change) -> Array:
    """Return the rank correlation of each penalty with the model's error, in a random system.

    The data lie about 0, with noise that is largest there; points are anywhere from -2 to 2, as
    where another policy would go.
    """
    keys = jax.random.split(key, 5)
    slope, phase = jax.random.uniform(keys[0], (2,), minval=1.5, maxval=3.0)
    change_of = lambda x: jnp.sin(slope * x + phase) + 0.3 * x
    loud = jax.random.uniform(keys[4], (), minval=-2.0, maxval=2.0)
    noise_of = lambda x: 0.05 + 0.2 * jnp.exp(-jnp.square(x - loud))
    x = 0.7 * jax.random.normal(keys[1], (DATA,))
    y = change_of(x) + noise_of(x) * jax.random.normal(keys[2], (DATA,))
    at = jnp.linspace(-2.0, 2.0, POINTS)

    def member(key: Key) -> tuple[Array, Array]:
        """Fit a mean to drawn data, then the logarithm of the noise to what is left."""
        drawn = jax.random.choice(key, DATA, (DATA,))
        weight = fit(x[drawn], y[drawn])
        left = jnp.log(jnp.abs(y[drawn] - features(x[drawn]) @ weight) + 1e-3)
        # The mean of log |N(0, 1)| is -0.635.
        scale = jnp.exp(features(at) @ fit(x[drawn], left + 0.635))
        return features(at) @ weight, scale

    mean, scale = jax.lax.map(member, jax.random.split(keys[3], MEMBERS))
    mean, scale = change(mean.T[:, None], scale.T[:, None])
    error = jnp.abs(mean.mean(-1)[:, 0] - change_of(at))
    return jnp.stack([rank_correlation(PENALTIES[n](mean, scale), error) for n in MEASURED])


def errors_of(key: Key, change: Change = lambda mean, scale: (mean, scale)) -> dict[str, Array]:
    """Return what the mean correlation of each penalty lacks of that of the largest predicted
    noise plus 0.05."""
    found = jax.lax.map(lambda key: correlations(key, change), jax.random.split(key, SYSTEMS))
    mean = dict(zip(MEASURED, found.astype(float).mean(0), strict=True))
    least = mean.pop("max_aleatoric") + 0.05
    return {name: jnp.maximum(least - value, 0.0) for name, value in mean.items()}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of ensembles as they are."""
    return errors_of(key)


def agree(mean: Array, scale: Array) -> tuple[Array, Array]:
    """Return predictions of members whose means are all the ensemble's."""
    return jnp.broadcast_to(mean.mean(-1, keepdims=True), mean.shape), scale


CLAIM = Exact(
    paper=Paper(
        "Revisiting Design Choices in Offline Model-Based Reinforcement Learning",
        "Lu, Ball, Parker-Holder, Osborne and Roberts",
        2022,
        "2110.04135",
        "Penalties for a model's uncertainty differ in how well they are calibrated to its true "
        "error where the policy goes, and interact with other design choices; tuned together they "
        "are much stronger.",
    ),
    claim="On average over random noisy systems, all penalties that see how the members disagree "
    "follow the model's true error by a rank correlation that is larger by 0.05 than that of the "
    "largest predicted noise.",
    left_out="Neural networks, policies, returns, and tuning. Members are ridge regressions on "
    "bootstrapped data, of which there are 120 about 0; noise is loudest somewhere. Correlations "
    "are means over 200 systems for each seed.",
    parts=(
        "jaxrl/losses/offline/model_penalties.py",
        "jaxrl/algorithms/offline/offline_mbrl_design.py",
    ),
    errors=errors,
    planted={
        "members agree": jax.jit(lambda key: errors_of(key, agree)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "the smallest difference of two members",
            "jaxrl.losses:max_pairwise_difference",
            lambda penalty: lambda mean: 0.0 * penalty(mean),
        ),
        Mutation(
            "correlations have the other sign",
            "jaxrl.algorithms.offline.offline_mbrl_design:rank_correlation",
            lambda correlation: lambda x, y: -correlation(x, y),
        ),
    ),
)
