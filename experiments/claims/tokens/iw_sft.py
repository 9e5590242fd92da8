"""iw-SFT's bound of the return and its gradient, in tables.

A reference policy writes answers, a reward that is 0 or 1 filters them, and J is the chance that
another policy's answer is paid. With weights w of a third policy q, w = q / ref,

    J >= E_ref[r w (1 + log(p / q))],  since p / q >= 1 + log(p / q),

and it is equal where p = q; q = ref is supervised learning of filtered answers, up to constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

ANSWERS = 12
Loss = Callable[..., Array]  # like `losses.iw_sft`


class Case(NamedTuple):
    """Log-probabilities [A] by the policy and the reference, and rewards [A], 0 or 1."""

    policy: Array
    reference: Array
    reward: Array


def draw(key: Key) -> Case:
    """Draw two policies and a reward that pays 2 to 6 answers, the first and the second among
    them."""
    keys = jax.random.split(key, 2)
    policies = jax.nn.log_softmax(jax.random.normal(keys[0], (2, ANSWERS)))
    paid = jax.random.randint(keys[1], (), 2, 7)
    return Case(*policies, (jnp.arange(ANSWERS) < paid).astype(policies.dtype))  # pyright: ignore[reportCallIssue]


def chance(log_prob: Array, x: Case) -> Array:
    """Return the expected reward."""
    return jnp.exp(log_prob) @ x.reward


def lower_bound(log_prob: Array, weights: Array, x: Case) -> Array:
    """Return the bound with weights of a policy [A]."""
    return (jnp.exp(weights) * x.reward * (1 + log_prob - weights)).sum()


def expectation(loss: Loss, log_prob: Array, x: Case) -> Array:
    """Return the expected loss of the reference's answers that are paid."""
    return (jnp.exp(x.reference) * x.reward * loss(log_prob, x.reference, 0.0, jnp.inf)).sum()


def of_logits(function: Callable[[Array], Array], policy: Array) -> Array:
    """Return the gradient with respect to logits."""
    return jax.grad(lambda z: function(jax.nn.log_softmax(z)))(policy)


def gradient_error(loss: Loss, x: Case) -> Array:
    """Return the error of the expected gradient, relative to the largest entry."""
    found = of_logits(lambda p: expectation(loss, p, x), x.policy)
    exact = -of_logits(lambda p: chance(p, x), x.policy)
    return jnp.abs(found - exact).max() / jnp.abs(exact).max()


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of iw-SFT."""
    x, J = draw(key), chance
    nearer = jnp.logaddexp(x.policy, x.reference) - jnp.log(2.0)  # a mixture of both
    bounds = [lower_bound(x.policy, q, x) for q in (x.reference, nearer, x.policy)]
    above = jnp.array([bounds[0] - J(x.policy, x), bounds[1] - J(x.policy, x)])
    return {
        "a bound above the return": jnp.maximum(above, 0).max(),
        "a nearer policy's bound is looser": jnp.maximum(bounds[0] - bounds[1], 0),
        "the policy's own bound": jnp.abs(bounds[2] - J(x.policy, x)),
        "the gradient": gradient_error(losses.iw_sft, x),
    }


@jax.jit
def without_weights(key: Key) -> dict[str, Array]:
    """Return the errors of supervised learning of filtered answers: its gradient, up to its length,
    and its bound."""
    x = draw(key)
    found = of_logits(lambda p: -expectation(plain(losses.iw_sft), p, x), x.policy)
    exact = of_logits(lambda p: chance(p, x), x.policy)
    scaled = found * (found * exact).sum() / jnp.square(found).sum()
    loose = chance(x.policy, x) - lower_bound(x.policy, x.reference, x)
    return {
        "the gradient": jnp.abs(scaled - exact).max() / jnp.abs(exact).max(),
        "the bound": loose,
    }


def plain(iw_sft: Loss) -> Loss:
    """Learn filtered answers without weights."""
    return lambda now, reference, *clip: iw_sft(now, jax.lax.stop_gradient(now), *clip)


def inverse(iw_sft: Loss) -> Loss:
    """Divide by the ratio instead of multiplying with it."""
    return lambda now, reference, *clip: iw_sft(
        now, 2 * jax.lax.stop_gradient(now) - reference, *clip
    )


CLAIM = Exact(
    paper=Paper(
        "Supervised Fine Tuning on Curated Data is Reinforcement Learning (and can be improved)",
        "Qin and Springenberg",
        2025,
        "2507.12856",
        "Supervised fine-tuning on filtered data maximizes a lower bound of the return, which "
        "importance weights tighten. The change improves language models' reasoning, and policies "
        "of continuous control.",
    ),
    claim="Fine-tuning on filtered answers has a bound below the return; iw-SFT's weights make it "
    "tight, and its gradient the return's.",
    left_out="Language models, continuous control, and the clip of weights: here policies are "
    "tables over twelve answers, and expectations are sums.",
    parts=("jaxrl/losses/tokens/fine_tuning.py", "jaxrl/algorithms/tokens/iw_sft.py"),
    errors=errors,
    planted={
        "no weights": without_weights,
        "inverse weights": jax.jit(
            lambda key: {"the gradient": gradient_error(inverse(losses.iw_sft), draw(key))}
        ),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation("no weights", "jaxrl.losses:iw_sft", plain),
        Mutation("inverse weights", "jaxrl.losses:iw_sft", inverse),
    ),
)
