"""Adversarial imitation with a kernel reward in random finite Markov decision processes, with exact
gradients, in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.imitation import kernel_gail
from jaxrl.core.types import Array, Key
from jaxrl.exact.occupancy import occupancy

STATES, ACTIONS, FEATURES, DISCOUNT = 5, 3, 32, 0.8
PAIRS = STATES * ACTIONS
SIZES, DATASETS = (8, 32, 128, 512), 200
STEPS, RATE, RADIUS = 4000, 1.0, 10.0
START = jnp.full(STATES, 1 / STATES)


def occupancy_of(transition: Array, logits: Array) -> Array:
    """Return the discounted shares of state-action pairs, [S A]."""
    policy = jax.nn.softmax(logits, -1)
    return (1 - DISCOUNT) * occupancy(transition, policy, START, DISCOUNT).ravel()


def adversary_loss(
    features: Array, weights: Array, own: Array, expert: Array, penalty: float
) -> Array:
    """Return the algorithm's loss of a reward's weights, between two laws of pairs [S A]."""
    rows = jnp.arange(PAIRS)
    shown, played = (x.ravel() for x in jnp.meshgrid(rows, rows, indexing="ij"))
    net: Any = SimpleNamespace(
        features=lambda timestep, action: features[action],
        weights=lambda: weights,
        hyper=SimpleNamespace(kernel=SimpleNamespace(radius=RADIUS, penalty_weight=penalty)),
    )
    see = lambda index: SimpleNamespace(timestep=(), action=index)
    x: Any = SimpleNamespace(shown=see(shown), played=see(played))
    output: Any = kernel_gail.reward_loss(net, x)
    return (expert[shown] * own[played]) @ output.value


def errors_of(key: Key, penalty: float = 1.0, growth: float = 0.0) -> dict[str, Array]:
    """Return the errors of what the paper says, in one process with a random expert.

    "reward": of the algorithm's gradient at the reward that is best by a closed form, against the
    expert's and a random policy's pairs. "bound": by how much the mean of the largest error of the
    distance to the expert, over 16 policies and the expert's, exceeds sqrt(variance / n) for n
    demonstrated pairs. "rate": how far the slope of its logarithm is from -1/2. "stationary": by
    how much the smallest squared gradient of 4,000 alternating steps exceeds a tenth of that of
    400, as a share. "gap": by how much the share of the first feature gap that is left exceeds a
    tenth.
    penalty: weight of the reward's norm. growth: power of n by which rewards may grow.
    """
    keys = jax.random.split(key, 7)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), (STATES, ACTIONS))
    point = jax.random.normal(keys[1], (PAIRS, 4))
    phase = jax.random.uniform(keys[3], (FEATURES,), maxval=2 * jnp.pi)
    features = losses.random_features(point, jax.random.normal(keys[2], (4, FEATURES)), phase)
    logits = jax.random.normal(keys[4], (17, STATES, ACTIONS))
    laws = jax.lax.map(lambda x: occupancy_of(transition, x), logits)
    expert, means = laws[0], laws @ features

    own = laws[1]
    best = (means[0] - means[1]) / penalty if penalty else means[0] - means[1]
    slope = jax.grad(adversary_loss, 1)(features, best, own, expert, penalty)

    def worst(key: Key, size: int) -> Array:
        """Return the largest error of the distance to the expert that a dataset makes."""
        drawn = features[jax.random.choice(key, PAIRS, (size,), p=expert)]
        true = jax.vmap(lambda mean: losses.feature_gap(mean[None], means[:1]))(means)
        found = jax.vmap(lambda mean: losses.feature_gap(mean[None], drawn))(means)
        return size**growth * jnp.abs(found - true).max()

    variance = expert @ jnp.square(features - means[0]).sum(-1)
    bound, error = [], []
    for size, own_key in zip(SIZES, jax.random.split(keys[5], len(SIZES)), strict=True):
        each = jax.lax.map(lambda k, n=size: worst(k, n), jax.random.split(own_key, DATASETS))
        error.append(each.mean())
        bound.append(jnp.sqrt(variance / size))
    error, bound = jnp.stack(error), jnp.stack(bound)
    fitted = jnp.polyfit(jnp.log(jnp.array(SIZES, float)), jnp.log(error), 1)[0]

    def alternate(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Any]:
        logits, weights = carry
        gap = lambda logits, weights: adversary_loss(
            features, weights, occupancy_of(transition, logits), expert, penalty
        )
        of_policy, of_reward = jax.grad(gap, (0, 1))(logits, weights)
        size = jnp.square(of_policy).sum() + jnp.square(of_reward).sum()
        return (logits + RATE * of_policy, weights - 0.5 * RATE * of_reward), (logits, size)

    begin = (jnp.zeros((STATES, ACTIONS)), jnp.zeros(FEATURES))
    _, (path, sizes) = jax.lax.scan(alternate, begin, None, length=STEPS)
    least = jax.lax.cummin(sizes)
    gap = lambda x: losses.feature_gap((occupancy_of(transition, x) @ features)[None], means[:1])
    return {
        "reward": jnp.abs(slope).max(),
        "bound": jnp.maximum(error - bound, 0).max(),
        "rate": jnp.abs(fitted + 0.5),
        "stationary": jnp.maximum(least[-1] / least[STEPS // 10] - 0.1, 0.0),
        "gap": jnp.maximum(gap(path[-1]) / gap(path[0]) - 0.1, 0.0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of rewards in a ball with a penalty on their norm."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "On Computation and Generalization of Generative Adversarial Imitation Learning",
        "Chen, Wang, Liu, Yang, Li, Wang and Zhao",
        2020,
        "2001.02792",
        "Adversarial imitation generalizes if the class of rewards is controlled, and with kernel "
        "rewards alternating gradient steps converge to a stationary point at a sublinear rate.",
    ),
    claim="With kernel rewards the distance to an expert is estimated from n pairs with an error "
    "of at most sqrt(variance / n), whatever the policy; alternating steps of policy and reward "
    "lose squared gradients at least as 1 / steps and close nine tenths of the gap.",
    left_out="Stochastic gradients, neural rewards, and the paper's constants. Errors of the "
    "distance are means over 200 datasets of up to 512 pairs, which set the tolerance.",
    parts=("jaxrl/algorithms/imitation/kernel_gail.py", "jaxrl/losses/imitation/adversarial.py"),
    errors=errors,
    planted={
        "no penalty on the reward": jax.jit(lambda key: errors_of(key, 0.0)),
        "rewards that grow with the data": jax.jit(lambda key: errors_of(key, growth=0.5)),
    },
    tolerance=0.05,
    effect=0.2,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation(
            "rewards have the other sign",
            "jaxrl.losses:kernel_reward",
            lambda reward: lambda features, weight, radius: -reward(features, weight, radius),
        ),
        Mutation(
            "the gap is squared",
            "jaxrl.losses:feature_gap",
            lambda gap: lambda features, expert: jnp.square(gap(features, expert)),
        ),
    ),
)
