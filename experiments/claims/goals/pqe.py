"""Poisson quasimetric embeddings, exactly: what any latents give, and what some can give, in
float64."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, xlogy

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

POINTS, COMPONENTS, SIZE = 16, 3, 4
COUNTS = 60  # of a Poisson process, beyond which there is no probability left
EDGES = 0.12  # share of steps in a random graph
SPREAD, FAR = 0.3, 1e3  # of latents
Distance = Callable[[Array, Array, Array], Array]  # latents x, y [..., K, D], weight [K] -> [...]


def probability_of_no_more(exceeds: Array, exceeded: Array) -> Array:
    """Return the probability that a Poisson number of mean `exceeds` is at most an independent one
    of mean `exceeded`, by summation."""
    number = jnp.arange(COUNTS, dtype=float)
    chances = lambda mean: jnp.exp(
        xlogy(number, mean[..., None]) - mean[..., None] - gammaln(number + 1)
    )
    return (jnp.cumsum(chances(exceeds), -1) * chances(exceeded)).sum(-1)


def distance_of_processes(x: Array, y: Array, weight: Array) -> Array:
    """Return what the embedding stands for: the weighted chances that some of D Poisson processes
    has more points on the half-line up to x than on that up to y. Only the part of one half-line
    beyond the other counts."""
    no_more = probability_of_no_more(jax.nn.relu(x - y), jax.nn.relu(y - x))
    return (weight * (1 - no_more.prod(-1))).sum(-1)


def reachable(steps: Array) -> Array:
    """Return which states [S, S] each state of a directed graph can reach."""
    found = steps | jnp.eye(len(steps), dtype=bool)
    for k in range(len(steps)):
        found |= found[:, k, None] & found[None, k]
    return found


def errors_of(key: Key, distance: Distance) -> dict[str, Array]:
    """Return the largest breach of each of these, over all pairs or triples of points.

    "itself": distances of points to themselves are 0. "detour": no detour is shorter. "processes":
    distances are those of Poisson processes. "order": latents that say which states of a random
    directed graph each state reaches have distance 0 to these, and the weight to all others.
    """
    latent_key, weight_key, graph_key = jax.random.split(key, 3)
    x = SPREAD * jax.random.normal(latent_key, (POINTS, COMPONENTS, SIZE), float)
    weight = jax.random.uniform(weight_key, (COMPONENTS,), float, 0.5, 2.0)
    d = distance(x[:, None], x[None], weight)
    detour = (d[:, :, None] + d[None]).min(1)
    reach = reachable(jax.random.bernoulli(graph_key, EDGES, (POINTS, POINTS)))
    latent = FAR * reach[:, None, :].astype(float)  # one component, a number for each state
    order = distance(latent[None], latent[:, None], weight[:1])
    return {
        "itself": jnp.abs(jnp.diagonal(d)).max(),
        "detour": jnp.maximum(d - detour, 0.0).max(),
        "processes": jnp.abs(d - distance_of_processes(x[:, None], x[None], weight)).max(),
        "order": jnp.abs(order - weight[0] * ~reach).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of Poisson quasimetric embeddings."""
    return errors_of(key, losses.pqe)


def plant(excess: Callable[[Array], Array]) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of distances with another excess of x over y, a function of x - y
    [..., K, D]."""

    def distance(x: Array, y: Array, weight: Array) -> Array:
        return -(weight * jnp.expm1(-excess(x - y))).sum(-1)

    return jax.jit(lambda key: errors_of(key, distance))


CLAIM = Exact(
    paper=Paper(
        "On the Learning and Learnability of Quasimetrics",
        "Wang and Isola",
        2022,
        "2206.15478",
        "Poisson quasimetric embeddings are learnable by gradients and represent quasimetrics "
        "with guarantees, as unconstrained networks cannot.",
    ),
    claim="With any latents and weights, PQE-LH is a quasimetric, the distance of Poisson "
    "processes on half-lines; some latents give the reachability of any directed graph.",
    left_out="Networks, learning, PQE-GG, and the bound on the distortion of other quasimetrics.",
    parts=("jaxrl/losses/representations/quasimetrics.py",),
    errors=errors,
    planted={
        "a squared excess": plant(lambda gap: jnp.square(jax.nn.relu(gap)).sum(-1)),
        "an excess in both directions": plant(lambda gap: jnp.abs(gap).sum(-1)),
        "a mean in the place of the sum": plant(lambda gap: jax.nn.relu(gap).mean(-1)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "distances are symmetric",
            "jaxrl.losses:pqe",
            lambda pqe: lambda x, y, weight: (pqe(x, y, weight) + pqe(y, x, weight)) / 2,
        ),
    ),
)
