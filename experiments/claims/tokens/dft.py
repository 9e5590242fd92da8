"""DFT's gradient and that of fine-tuning as policy gradients, in tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

TOKENS, LENGTH, TEXTS = 5, 3, 7
CONTEXTS = sum(TOKENS**n for n in range(LENGTH))  # beginnings of texts, each with logits
Loss = Callable[..., Array]  # like `losses.dft`


class Case(NamedTuple):
    """Logits [contexts, V] of a policy of tokens, and texts [N, L] that it learns from."""

    logits: Array
    texts: Array


def draw(key: Key) -> Case:
    """Draw a policy and texts, some of which are unlikely."""
    keys = jax.random.split(key)
    logits = 2 * jax.random.normal(keys[0], (CONTEXTS, TOKENS))
    return Case(logits, jax.random.randint(keys[1], (TEXTS, LENGTH), 0, TOKENS))


def contexts(texts: Array) -> Array:
    """Return the number [N, L] of what precedes each token."""
    before, found = jnp.zeros(texts.shape[0], int), []
    offset = 0
    for place in range(LENGTH):
        found.append(offset + before)
        before = before * TOKENS + texts[:, place]
        offset += TOKENS**place
    return jnp.stack(found, -1)


def log_probs(logits: Array, texts: Array) -> Array:
    """Return the log-probability [N, L] of each token."""
    return jax.nn.log_softmax(logits)[contexts(texts), texts]


def policy_gradient(x: Case, reward: Callable[[Array], Array]) -> Array:
    """Return the sum over texts and places of E[r(p) 1(a = the token) grad log p(a)], a by the
    policy, with the reward of the token by its probability: REINFORCE by a sum over all actions."""
    place = contexts(x.texts)
    p = jax.nn.softmax(x.logits)[place]  # [N, L, V]
    paid = jax.nn.one_hot(x.texts, TOKENS) * reward(p)

    def surrogate(logits):
        return (jax.lax.stop_gradient(p * paid) * jax.nn.log_softmax(logits)[place]).sum()

    return jax.grad(surrogate)(x.logits)


def errors_of(loss: Loss, x: Case) -> dict[str, Array]:
    """Return the errors of a loss like DFT's."""
    of = lambda f: jax.grad(lambda z: f(log_probs(z, x.texts)))(x.logits)
    found = of(lambda p: loss(p).sum())
    chance = -of(lambda p: jnp.exp(p).sum())
    tuning = of(lambda p: -p.sum())
    far = lambda a, b: jnp.abs(a - b).max() / jnp.abs(b).max()
    one, inverse = (lambda p: jnp.ones_like(p)), (lambda p: 1 / p)
    own = log_probs(x.logits, x.texts)
    # The length of each token's own gradient with respect to the logits before it.
    slope = jax.vmap(jax.grad(lambda p: loss(p)))(own.reshape(-1)).reshape(own.shape)
    all_of_place = jax.nn.softmax(x.logits)[contexts(x.texts)]
    score = jax.nn.one_hot(x.texts, TOKENS) - all_of_place
    pull = jnp.abs(slope) * jnp.linalg.norm(score, axis=-1)
    p = jnp.exp(own)
    return {
        "DFT, the policy gradient of a reward of 1": far(found, -policy_gradient(x, one)),
        "fine-tuning, that of a reward of 1 / p": far(tuning, -policy_gradient(x, inverse)),
        "DFT, the gradient of the tokens' probabilities": far(found, chance),
        "a token pulls with more than sqrt(2) p (1 - p)": jnp.maximum(
            (pull - 2**0.5 * p * (1 - p)).max(), 0
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of DFT."""
    return errors_of(losses.dft, draw(key))


def wrong(loss: Loss) -> Callable[[Key], dict[str, Array]]:
    """Return the error of a wrong loss, up to the gradient's length."""

    def error(key):
        x = draw(key)
        found = jax.grad(lambda z: loss(log_probs(z, x.texts)).sum())(x.logits)
        exact = -policy_gradient(x, lambda p: jnp.ones_like(p))
        scaled = found * (found * exact).sum() / jnp.square(found).sum()
        return {"the gradient": jnp.abs(scaled - exact).max() / jnp.abs(exact).max()}

    return jax.jit(error)


def plain(dft: Loss) -> Loss:
    """Fine-tune without weights."""
    return lambda log_prob: -log_prob


def of_weight(dft: Loss) -> Loss:
    """Let the gradient flow through the weight."""
    return lambda log_prob: -jnp.exp(log_prob) * log_prob


CLAIM = Exact(
    paper=Paper(
        "On the Generalization of SFT: A Reinforcement Learning Perspective with Reward "
        "Rectification",
        "Wu, Zhou, Ziheng, Peng, Ye, Hu, Zhu, Qi, Yang and Yang",
        2025,
        "2508.05629",
        "The gradient of supervised fine-tuning is a policy gradient with a sparse reward over the "
        "token's probability, whose variance explodes for unlikely tokens. Weighting each token's "
        "loss by its probability takes that out and generalizes much better.",
    ),
    claim="DFT's gradient is the on-policy policy gradient of a reward of 1 for a text's token, "
    "fine-tuning's that of 1 / p.",
    left_out="Language models and what generalizes; the paper derives it for whole answers and "
    "applies it to tokens, as is tested here: policies are tables over texts of "
    "three tokens.",
    parts=("jaxrl/losses/tokens/fine_tuning.py", "jaxrl/algorithms/tokens/dft.py"),
    errors=errors,
    planted={
        "no weights": wrong(plain(losses.dft)),
        "a gradient through the weight": wrong(of_weight(losses.dft)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("no weights", "jaxrl.losses:dft", plain),
        Mutation("a gradient through the weight", "jaxrl.losses:dft", of_weight),
    ),
)
