"""The gradient of DPPO's loss beside that of the expected reward, which is computed on a grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims.diffusion._chains import (
    HOOKS,
    LAST_SCALE,
    SAMPLES,
    Problem,
    distance,
    draw,
    objective,
    output,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import dppo
from jaxrl.core.types import Array, Key
from jaxrl.diffusion import VariancePreserving

STEPS, TUNED = 5, 3
SETTINGS = {"horizon": 1, "execute": 1, "observations": 1, "levels": STEPS, "steps": STEPS}
ON_GRID = VariancePreserving(STEPS, "cosine")  # of points instead of plans
Change = Callable[[Array], Array]


def exact_of(x: Problem, theta: Array) -> Array:
    """Return the expected reward, of which only the last steps' weights are learned."""
    return objective(ON_GRID, x, theta, STEPS, learned=slice(-TUNED, None))


def errors_of(
    key: Key, discount: float = 1.0, change: Change = lambda advantage: advantage
) -> dict[str, Array]:
    """Return the distance of the loss's gradient from that of the expected reward, relative to the
    latter: of a smooth reward, and of one that jumps. Both are of the last steps of the chain,
    which are fine-tuned. discount: per denoising step. change: of the advantages."""
    env = envs.make("pendulum")  # plans are of one action, a number within bounds
    config = dataclasses.replace(dppo.Config(), fine_tuned=TUNED, **SETTINGS)
    recipe = dppo.recipe(env, config)
    process, found = VariancePreserving(STEPS, "cosine", axes=2), {}
    for name, own in zip(("smooth", "jumps"), jax.random.split(key), strict=True):
        problem_key, key = jax.random.split(own)
        x = draw(problem_key, name == "jumps")
        predict = lambda noisy, level, x=x: output(x.theta, noisy, level[..., None])
        chain = process.sample(key, predict, (SAMPLES, 1, 1), hooks=HOOKS, record=True)
        kept = chain.samples[-TUNED - 1 :]
        moments = chain.mean[-TUNED:], chain.scale[-TUNED:]
        log_prob = dppo.step_log_probs(kept, *moments, 1, jnp.asarray(LAST_SCALE))
        reward = x.reward(kept[-1, :, 0, 0])
        advantage, unused = change(reward - reward.mean()), jnp.zeros(SAMPLES)
        sample = dppo.Sample(jnp.moveaxis(kept, 0, 1), unused, log_prob.T, advantage, unused)

        def surrogate(theta: Array, sample: dppo.Sample = sample) -> Array:
            hyper = {"eta": 1.0, "least_scale": LAST_SCALE, "denoising_discount": discount}
            net: Any = SimpleNamespace(
                denoiser=lambda noisy, level, seen: output(theta, noisy, level[..., None]),
                hyper=SimpleNamespace(clip=0.01, first_clip=0.001, **hyper),
            )
            return recipe.losses[0](net, sample).value.mean()  # type: ignore[union-attr]

        exact = jax.grad(lambda theta, x=x: exact_of(x, theta))
        found[name] = distance(-TUNED * jax.grad(surrogate)(x.theta), exact(x.theta))
    return found


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the loss as it is."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Diffusion Policy Policy Optimization",
        "Ren et al.",
        2024,
        "2409.00588",
        "Policy gradients over the denoising steps, a decision process within the environment's, "
        "fine-tune diffusion policies better than weighted regression and other RL methods.",
    ),
    claim="At the weights that drew the chains and without a denoising discount, the loss has the "
    "gradient of the expected reward through the steps that are fine-tuned, for a smooth reward "
    "and for one that jumps.",
    left_out="Networks, environments of many steps, learning, other methods, and the authors' "
    "discount, which makes the gradient another one on purpose. Expectations of the loss are of "
    "80,000 chains, which set the tolerance.",
    parts=("jaxrl/algorithms/diffusion/dppo.py", "jaxrl/losses/generative/diffusion_policies.py"),
    errors=errors,
    planted={
        "advantages of other plans": jax.jit(
            lambda key: errors_of(key, change=lambda advantage: jnp.roll(advantage, 1))
        ),
        "a denoising discount of 0.6": jax.jit(lambda key: errors_of(key, 0.6)),
        "rewards below the mean are left out": jax.jit(
            lambda key: errors_of(key, change=jax.nn.relu)
        ),
    },
    tolerance=0.06,
    effect=0.12,
    seeds=10,
    minutes=2.0,
    mutations=(
        Mutation(
            "likelihoods of the last step alone",
            "jaxrl.algorithms.diffusion.dppo:step_log_probs",
            lambda log_probs: lambda *given: log_probs(*given).at[:-1].multiply(0.0),
        ),
        Mutation(
            "likelihoods have twice the scale",
            "jaxrl.algorithms.diffusion.dppo:step_log_probs",
            lambda log_probs: (
                lambda chain, mean, scale, *more: log_probs(chain, mean, 2 * scale, *more)
            ),
        ),
    ),
)
