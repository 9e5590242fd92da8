"""CoT2's thoughts of several tokens against exact gradients, by sums over all tokens.

Two thoughts, each the mean of K tokens, and an answer of one token, which is rewarded. The second
thought depends on the first and the answer on both, by networks with random weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key
from jaxrl.networks.heads import Mixture

TOKENS, HIDDEN, DRAWS = 4, 5, (1, 3)
Likelihood = Callable[[Any, Array], Array]  # like `Mixture.log_prob`


class Case(NamedTuple):
    """Logits [V] of the first thought, weights of the second one's [V, H] and [H, V], those of the
    answer's [2 V, H] and [H, V], and rewards [V] of answers."""

    first: Array
    second: tuple[Array, Array]
    answer: tuple[Array, Array]
    reward: Array


def draw(key: Key) -> Case:
    """Draw a policy and rewards."""
    keys = jax.random.split(key, 6)
    normal = jax.random.normal
    second = normal(keys[1], (TOKENS, HIDDEN)), normal(keys[2], (HIDDEN, TOKENS))
    answer = normal(keys[3], (2 * TOKENS, HIDDEN)), normal(keys[4], (HIDDEN, TOKENS))
    return Case(normal(keys[0], (TOKENS,)), second, answer, normal(keys[5], (TOKENS,)))


def texts(draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all tokens [N, K] that thoughts can be drawn as, and the thoughts [N, V]."""
    said = np.array(list(itertools.product(range(TOKENS), repeat=draws)))
    return said, np.eye(TOKENS)[said].mean(1)


def logits_of(x: Case, thoughts: Array) -> tuple[Array, Array, Array]:
    """Return the logits of first thoughts [V], second ones after each first [N, V], and answers
    after both [N, N, V]."""
    of = lambda weights, read: jnp.tanh(read @ weights[0]) @ weights[1]
    many = len(thoughts)
    both = [jnp.broadcast_to(y, (many, many, TOKENS)) for y in (thoughts[:, None], thoughts)]
    return x.first, of(x.second, thoughts), of(x.answer, jnp.concatenate(both, -1))


def chances(x: Case, draws: int) -> Array:
    """Return the probability of all tokens and answers by definition, [N, N, V]."""
    said, thoughts = texts(draws)
    first, second, answer = logits_of(x, jnp.asarray(thoughts))
    tokens = lambda logits: jax.nn.log_softmax(logits / draws)[..., said].sum(-1)
    return jnp.exp(tokens(first)[:, None] + tokens(second))[..., None] * jax.nn.softmax(answer)


def likelihood(x: Case, draws: int, log_prob: Likelihood, joint: bool) -> Array:
    """Return the log-probability that the policy's distributions say, [N, N, V]."""
    _, found = texts(draws)
    thoughts = jnp.asarray(found)
    first, second, answer = logits_of(x, thoughts)
    no, yes = (jnp.full((), single) for single in (False, True))
    one = log_prob(Mixture(first, no, draws, joint), thoughts)
    two = log_prob(Mixture(second[:, None], no, draws, joint), thoughts)
    said = log_prob(Mixture(answer[..., None, :], yes, draws, joint), jnp.eye(TOKENS))
    return (one[:, None] + two)[..., None] + said


def distance(found: Any, exact: Any) -> Array:
    """Return the largest difference of two trees, relative to the largest entry of the second."""
    both = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    apart = jnp.array([jnp.abs(a - b).max() for a, b in both]).max()
    return apart / jnp.array([jnp.abs(b).max() for b in jax.tree.leaves(exact)]).max()


def errors_of(log_prob: Likelihood, x: Case) -> dict[str, Array]:
    """Return the errors of a log-probability like `Mixture.log_prob`."""
    found = {}
    for draws in DRAWS:
        chance = chances(x, draws)
        value = lambda y, draws=draws: (chances(y, draws) * y.reward).sum()

        def loss(y, draws=draws, chance=chance):
            advantage = jnp.broadcast_to(x.reward - (chance * x.reward).sum(), chance.shape)
            return (chance * losses.policy_gradient(
                likelihood(y, draws, log_prob, True), advantage)).sum()  # fmt: skip

        exact, own = jax.grad(value)(x), jax.grad(loss)(x)
        policy = lambda y: (y.first, y.second, y.answer)
        less = jax.tree.map(jnp.negative, policy(exact))
        found[f"the gradient with {draws} tokens"] = distance(policy(own), less)
        found[f"probabilities with {draws} tokens"] = distance(
            jnp.exp(likelihood(x, draws, log_prob, True)), chance
        )
    # A token's policy gradient needs no mixtures.
    tokens = jax.nn.log_softmax(x.first)
    one = log_prob(Mixture(x.first, jnp.full((), False), 1, True), jnp.eye(TOKENS))
    found["one token, a categorical's"] = distance(one, tokens)
    p = jax.nn.softmax(x.first)
    spread = jnp.diag(p) - jnp.outer(p, p)
    for draws in DRAWS:
        thoughts = jnp.asarray(texts(draws)[1])
        share = jnp.exp(log_prob(Mixture(draws * x.first, jnp.full((), False), draws), thoughts))
        mean = share @ thoughts
        own = (share[:, None] * (thoughts - mean)).T @ (thoughts - mean)
        found[f"mean and spread of {draws} tokens"] = distance((mean, own), (p, spread / draws))
    return found


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of CoT2's likelihoods."""
    return errors_of(Mixture.log_prob, draw(key))


def wrong(log_prob: Likelihood) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of another log-probability."""
    return jax.jit(lambda key: errors_of(log_prob, draw(key)))


def of_one(log_prob: Likelihood) -> Likelihood:
    """Take a thought for a single token."""
    return lambda self, value: log_prob(self, value) / self.weight


def of_softmax(log_prob: Likelihood) -> Likelihood:
    """Score the softmax in the place of what was drawn."""
    return lambda self, value: jnp.where(
        self.single, log_prob(self, value), log_prob(self, jnp.exp(self.log_probs) + 0 * value)
    )


CLAIM = Exact(
    paper=Paper(
        "Continuous Chain of Thought Enables Parallel Exploration and Reasoning",
        "Gozeten, Ildiz, Zhang, Harutyunyan, Rawat and Oymak",
        2025,
        "2505.23648",
        "Thoughts that are mixtures of tokens follow several traces at once. Means of K sampled "
        "tokens have a likelihood, so that policies of thoughts learn by GRPO, and K = 1 is the "
        "usual chain; they improve on their supervised beginning.",
    ),
    claim="With thoughts that are means of K tokens policy gradients are exact; they have the "
    "softmax as mean and 1/K of its spread; K = 1 is a token.",
    left_out="Transformers, supervision by several traces, training and its gains, GRPO's clip, "
    "and exploration by Dirichlet distributions.",
    parts=("jaxrl/networks/heads.py", "jaxrl/algorithms/tokens/cot2.py"),
    errors=errors,
    planted={
        "a thought taken for one token": wrong(of_one(Mixture.log_prob)),
        "the softmax scored": wrong(of_softmax(Mixture.log_prob)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=4.0,
    notes="Logits of thoughts are divided by K, as in the published code; for mean and spread they "
    "are multiplied by K before, so that tokens have the same softmax for all K.",
    mutations=(
        Mutation("a thought taken for one token", "jaxrl.networks.heads:Mixture.log_prob", of_one),
        Mutation("the softmax scored", "jaxrl.networks.heads:Mixture.log_prob", of_softmax),
    ),
)
