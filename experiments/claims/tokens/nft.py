"""NFT against GRPO on answers of its own policy, in tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.nft import PROMPT_WEIGHTS
from jaxrl.core.types import Array, Key

PROMPTS, ANSWERS, LENGTH, TOKENS = 6, 8, 3, 5
Loss = Callable[..., Array]  # like `losses.nft`


class Groups(NamedTuple):
    """Logits [P, L, V, V] of a token by its place and the token before it, answers [P, G, L], and
    which of them are right, bool [P, G]: some and not all of each group."""

    logits: Array
    answers: Array
    right: Array


def draw(key: Key) -> Groups:
    """Draw a policy, its answers, and which are right."""
    keys = jax.random.split(key, 3)
    logits = jax.random.normal(keys[0], (PROMPTS, LENGTH, TOKENS, TOKENS))

    def place(before, given):
        key, at = given
        said = jax.random.categorical(key, at[jnp.arange(PROMPTS)[:, None], before])
        return said, said

    begin = jnp.zeros((PROMPTS, ANSWERS), int)
    given = jax.random.split(keys[1], LENGTH), logits.swapaxes(0, 1)
    _, answers = jax.lax.scan(place, begin, given)
    # One is right and one is wrong for certain; the others by chance.
    right = jax.random.bernoulli(keys[2], 0.4, (PROMPTS, ANSWERS))
    return Groups(
        logits, jnp.moveaxis(answers, 0, -1), right.at[:, 0].set(True).at[:, 1].set(False)
    )


def log_probs(logits: Array, answers: Array) -> Array:
    """Return the log-probability of each token, [L, P, G]."""
    before = jnp.pad(answers[..., :-1], ((0, 0), (0, 0), (1, 0)))
    prompt, place = jnp.arange(PROMPTS)[:, None, None], jnp.arange(LENGTH)
    found = jax.nn.log_softmax(logits)[prompt, place, before, answers]
    return jnp.moveaxis(found, -1, 0)


def gradient_of_grpo(x: Groups) -> Array:
    """Return the gradient of GRPO's loss with the deviation of the population and no epsilon."""
    advantage = losses.group_relative(x.right.astype(x.logits.dtype), epsilon=0.0)
    old = log_probs(x.logits, x.answers)

    def total(logits):
        now = log_probs(logits, x.answers)
        return losses.grpo(now, old, old, jnp.broadcast_to(advantage, now.shape), 0.2, 0.0).sum()

    return jax.grad(total)(x.logits)


def gradient_of_nft(loss: Loss, x: Groups, weight: str = "grpo", epsilon: float = 1.0) -> Array:
    """Return the gradient of a loss like NFT's, weighted by prompt, where the policy is the one
    that wrote the answers."""
    old = log_probs(x.logits, x.answers)
    rate = x.right.astype(x.logits.dtype).mean(-1, keepdims=True)
    of_prompt = PROMPT_WEIGHTS[weight](rate)

    def total(logits):
        now = log_probs(logits, x.answers)
        return (of_prompt * loss(now, old, x.right, rate, epsilon)).sum()

    return jax.grad(total)(x.logits)


def error(found: Array, exact: Array) -> Array:
    """Return the largest error relative to the largest entry."""
    return jnp.abs(found - exact).max() / jnp.abs(exact).max()


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of NFT for two of its bounds."""
    x = draw(key)
    exact = gradient_of_grpo(x)
    found = {f"bound {e:g}": gradient_of_nft(losses.nft, x, epsilon=e) for e in (1.0, 0.5)}
    return {name: error(gradient, exact) for name, gradient in found.items()}


def wrong(loss: Loss, weight: str = "grpo") -> Callable[[Key], dict[str, Array]]:
    """Return the error of a wrong loss, up to the gradient's length."""

    def least(key):
        x = draw(key)
        exact, found = gradient_of_grpo(x), gradient_of_nft(loss, x, weight)
        return {"least": error(found * (found * exact).sum() / jnp.square(found).sum(), exact)}

    return jax.jit(least)


def right_alone(nft: Loss) -> Loss:
    """Learn from right answers alone, as rejection sampling does."""
    return lambda now, old, right, *others: jnp.where(right, nft(now, old, right, *others), 0)


def other_policy(nft: Loss) -> Loss:
    """Take the share of wrong answers for that of right ones."""
    return lambda now, old, right, rate, epsilon: nft(now, old, right, 1 - rate, epsilon)


CLAIM = Exact(
    paper=Paper(
        "Bridging Supervised Learning and Reinforcement Learning in Math Reasoning",
        "Chen, Zheng, Zhang, Cui, Cui, Ye, Lin, Liu, Zhu and Wang",
        2025,
        "2505.18116",
        "Negative-aware fine-tuning, supervised learning of right and wrong answers, exceeds "
        "rejection sampling, matches or exceeds GRPO and DAPO at 7B and 32B, and is equivalent to "
        "GRPO in strict on-policy training.",
    ),
    claim="On answers of its own policy NFT, which weights prompts by sqrt((1 - q) / q), has "
    "GRPO's gradient.",
    left_out="Language models, and what follows the first gradient step, where the two differ in "
    "their clips.",
    parts=("jaxrl/losses/tokens/fine_tuning.py", "jaxrl/algorithms/tokens/nft.py"),
    errors=errors,
    planted={
        "right answers alone": wrong(right_alone(losses.nft)),
        "the share of wrong answers": wrong(other_policy(losses.nft)),
        "prompts weighted alike": wrong(losses.nft, "equal"),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("right answers alone", "jaxrl.losses:nft", right_alone),
        Mutation("the share of wrong answers", "jaxrl.losses:nft", other_policy),
    ),
)
