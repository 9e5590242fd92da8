"""SEPO's gradient over all strings of a tabular model, beside REINFORCE's, in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims.diffusion._strings import Strings
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.diffusion import sepo
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Array, Key

ONE, MANY = Strings(1, 6), Strings(3, 2)
PROBLEMS, CLIP, COSINE = 64, 0.2, 0.85
WIDE = 1e9  # clips nothing


def expected_gradient(
    of: Strings, theta: Array, old: Array, advantage: Array, clip: float = CLIP
) -> Array:
    """Return the ascent direction [N] of SEPO's loss, expected over the strings that a model draws.

    theta, old: logits [N] of all strings under the model, and under the one that drew them.
    """
    recipe = sepo.recipe(of.environment(), Static(replace(sepo.Config(), {"clip": clip})))  # pyright: ignore[reportArgumentType]
    model = lambda theta: of.logits(of.table(jax.nn.log_softmax(theta)))
    string = jnp.asarray(of.strings)
    score = sepo.neighbor_scores(model(old), string, of.letters)

    def surrogate(theta: Array) -> Array:
        net: Any = SimpleNamespace(denoiser=model(theta), hyper=SimpleNamespace(clip=clip))
        drawn: Any = sepo.Drawn(string, score, advantage)
        found: Any = recipe.losses[0](net, drawn)
        return jax.nn.softmax(old) @ found.value

    return -jax.grad(surrogate)(theta)


def standardize(law: Array, reward: Array) -> Array:
    apart = reward - law @ reward
    return apart / jnp.sqrt(law @ jnp.square(apart))


def reinforce(theta: Array, advantage: Array) -> Array:
    """Return the gradient [N] of the expected advantage."""
    return jax.grad(lambda theta: jax.nn.softmax(theta) @ advantage)(theta)


def among_neighbors(theta: Array, advantage: Array) -> Array:
    """Return the expected gradient of the log-probability of a string among its neighbors, times
    its advantage."""
    string = MANY.strings
    near = (string[:, None] != string).sum(-1) <= 1
    law = jax.nn.softmax(theta)

    def log_share(theta: Array) -> Array:
        return theta - jax.nn.logsumexp(jnp.where(near, theta, -jnp.inf), -1)

    return jax.grad(lambda theta: (law * advantage) @ log_share(theta))(theta)


def errors_of(key: Key, baseline: float = 0.0, own: float = 1.0) -> dict[str, Array]:
    """Return how far each of these is from what it should be.

    "one letter": the gradient beside REINFORCE's, of strings of one letter, all of which are
    neighbors. "another model's": the same of strings that another model drew, unclipped. "three
    letters": the gradient beside that of log-probabilities among neighbors. "away": by how much the
    least cosine of that one with REINFORCE's is below 0. "cosine": what its mean lacks of `COSINE`.
    baseline: added to all advantages. own: factor on the logits of the model that drew strings.
    """
    keys = jax.random.split(key, 5)
    theta, old = jax.random.normal(keys[0], (2, len(ONE.strings)))
    reward = jax.random.normal(keys[1], theta.shape)
    law = jax.nn.softmax(old)
    advantage = standardize(jax.nn.softmax(theta), reward) + baseline
    alone = expected_gradient(ONE, theta, theta * own, advantage)
    weighted = standardize(law, reward) + baseline
    other = expected_gradient(ONE, theta, old, weighted, WIDE)

    def compare(key: Key) -> tuple[Array, Array]:
        theta, reward = jax.random.normal(key, (2, len(MANY.strings)))
        advantage = standardize(jax.nn.softmax(theta), reward) + baseline
        found = expected_gradient(MANY, theta, theta * own, advantage)
        exact = reinforce(theta, advantage)
        error = jnp.abs(found - among_neighbors(theta, advantage)).max()
        length = jnp.linalg.norm(found) * jnp.linalg.norm(exact)
        return error, found @ exact / length

    error, cosine = jax.vmap(compare)(jax.random.split(keys[2], PROBLEMS))
    return {
        "one letter": jnp.abs(alone - reinforce(theta, advantage)).max(),
        "another model's": jnp.abs(other - reinforce(theta, weighted)).max(),
        "three letters": error.max(),
        "away": jnp.maximum(-cosine.min(), 0.0),
        "cosine": jnp.maximum(COSINE - cosine.mean(), 0.0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the loss as it is."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Fine-Tuning Discrete Diffusion Models with Policy Gradient Methods",
        "Zekri and Boullé",
        2025,
        "2502.01384",
        "The gradient of the expected reward of a discrete diffusion model is one of its scores, "
        "and gives scalable policy gradients for rewards that are never differentiated.",
    ),
    claim="Where all strings are neighbors, the loss has REINFORCE's gradient, also for strings "
    "that another model drew; with neighbors alone, three letters long, it has that of "
    "log-probabilities among neighbors, whose cosine with REINFORCE's is never negative and on "
    "average at least 0.85.",
    left_out="Networks, clipping, sampled gradients and their variance, and learning. The scores "
    "of models here are exact ratios of one law; those of a network are not, and in a table of "
    "masked strings the loss would move the model at one mask alone, from which nothing follows "
    "for the letters that are drawn first. The gradient over neighbors depends on the baseline.",
    parts=(
        "jaxrl/algorithms/diffusion/sepo.py",
        "jaxrl/losses/generative/discrete_diffusion.py",
    ),
    errors=errors,
    planted={
        "no baseline": jax.jit(lambda key: errors_of(key, baseline=3.0)),
        "scores of a flatter model": jax.jit(lambda key: errors_of(key, own=0.5)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation(
            "the string counts at each of its places",
            "jaxrl.algorithms.diffusion.sepo:neighbor_log_probs",
            lambda log_probs: (
                lambda log_score, string, letters: (
                    log_score - jax.nn.logsumexp(log_score, -1, keepdims=True)
                )
            ),
        ),
        Mutation(
            "ratios leave out the scores",
            "jaxrl.losses:sepo",
            lambda loss: (
                lambda score, old_score, log_prob, old, advantage, clip: loss(
                    score, score, log_prob, old, advantage, clip
                )
            ),
        ),
    ),
)
