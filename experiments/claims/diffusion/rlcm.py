"""The gradient of RLCM's loss beside that of the expected reward, which is computed on a grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims.diffusion._chains import (
    LAST_SCALE,
    SAMPLES,
    distance,
    draw,
    objective,
    output,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import rlcm
from jaxrl.core.types import Array, Key
from jaxrl.diffusion import Consistency

STEPS = 2
PROCESS = Consistency()
Change = Callable[[rlcm.Sample], rlcm.Sample]


def errors_of(key: Key, change: Change = lambda sample: sample) -> dict[str, Array]:
    """Return the distance of the loss's gradient from that of the expected reward, relative to the
    latter: of a smooth reward, and of one that jumps. change: of what the loss is given."""
    env = envs.make("pendulum")  # for its actions alone, one number within bounds
    recipe = rlcm.recipe(env, dataclasses.replace(rlcm.Config(), steps=STEPS))

    def net_of(theta: Array) -> Any:
        return SimpleNamespace(
            denoiser=lambda timestep, noisy, level: output(theta, noisy, level),
            hyper=SimpleNamespace(clip=0.1, last_scale=LAST_SCALE),
        )

    found = {}
    for name, own in zip(("smooth", "jumps"), jax.random.split(key), strict=True):
        problem_key, key = jax.random.split(own)
        x = draw(problem_key, name == "jumps")
        timestep: Any = SimpleNamespace(reward=jnp.zeros(SAMPLES))
        _, _, extras = recipe.act(net_of(x.theta), timestep, (), key, False)
        reward = x.reward(extras["chain"][:, -1, 0])
        sample = rlcm.Sample((), extras["chain"], extras["log_prob"], reward - reward.mean())  # type: ignore[arg-type]

        def surrogate(theta: Array, sample: rlcm.Sample = change(sample)) -> Array:
            return recipe.losses[0](net_of(theta), sample).value.mean()  # type: ignore[union-attr]

        exact = jax.grad(lambda theta, x=x: objective(PROCESS, x, theta, STEPS))
        found[name] = distance(-STEPS * jax.grad(surrogate)(x.theta), exact(x.theta))
    return found


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the loss as it is."""
    return errors_of(key)


def plant(change: Callable[[Array], Array]) -> Callable[[Key], dict[str, Array]]:
    """Return the errors with other advantages."""

    def mutant(sample: rlcm.Sample) -> rlcm.Sample:
        return dataclasses.replace(sample, advantage=change(sample.advantage))

    return jax.jit(lambda key: errors_of(key, mutant))


CLAIM = Exact(
    paper=Paper(
        "RL for Consistency Models: Faster Reward Guided Text-to-Image Generation",
        "Oertell, Chang, Zhang, Brantley and Sun",
        2024,
        "2404.03673",
        "The few steps of a consistency model are a decision process that a policy gradient "
        "fine-tunes on any reward, faster than diffusion models.",
    ),
    claim="At the weights that drew the samples, the loss has the gradient of the expected reward "
    "through all steps of the sampler, for a smooth reward and for one that jumps.",
    left_out="Networks, learning, and speed beside diffusion models. The sampler has two steps; "
    "expectations of the loss are of 80,000 chains, which set the tolerance.",
    parts=("jaxrl/algorithms/diffusion/rlcm.py", "jaxrl/diffusion/processes.py"),
    errors=errors,
    planted={
        "advantages of other samples": plant(lambda advantage: jnp.roll(advantage, 1)),
        "rewards below the mean are left out": plant(jax.nn.relu),
    },
    tolerance=0.06,
    effect=0.12,
    seeds=10,
    minutes=2.0,
    mutations=(
        Mutation(
            "likelihoods of the last step alone",
            "jaxrl.algorithms.diffusion.rlcm:step_log_probs",
            lambda log_probs: (
                lambda chain, mean, scale: log_probs(chain, mean, scale).at[:-1].multiply(0.0)
            ),
        ),
        Mutation(
            "likelihoods have twice the scale",
            "jaxrl.algorithms.diffusion.rlcm:step_log_probs",
            lambda log_probs: lambda chain, mean, scale: log_probs(chain, mean, 2 * scale),
        ),
    ),
)
