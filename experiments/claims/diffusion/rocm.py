"""The gradient of ROCM's loss beside that of the regularized expected reward, which is computed on
a grid."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims.diffusion._chains import (
    LAST_SCALE,
    SAMPLES,
    Problem,
    draw,
    objective,
    output,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import rocm
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.diffusion import Consistency

STEPS, BETA = 2, 0.5


def pay(x: Problem) -> Environment:
    """Return an environment of one step that pays a problem's reward for actions in half-widths.

    The action within bounds is paid, so rewards beyond the bounds are those at the bounds.
    """
    env = envs.make("pendulum")  # for its actions, one number from -2 to 2

    def step(key: Key, state: Any, action: Array, params: Any) -> tuple[Any, Any]:
        return state, SimpleNamespace(reward=x.reward(action[0].astype(float) / 2))

    changes: Any = {"state_of": lambda timestep: (), "step": step}
    return dataclasses.replace(env, **changes)


@struct
class Bounded(Problem):
    """A problem whose reward is that of the nearest sample within the bounds."""

    def reward(self, x: Array) -> Array:
        return Problem.reward(self, jnp.clip(x, -1.0, 1.0))


@jax.jit
def draw_problem(key: Key) -> tuple[Bounded, Key]:
    """Return a problem, and a key for its chains."""
    problem_key, key = jax.random.split(key)
    x = draw(problem_key)
    # JAX's own generator: with ours the gradients took minutes to compile on a CPU. And programs of
    # their own: as one program they did too.
    key = jax.random.key(jax.random.bits(key, dtype=jnp.uint32))
    return Bounded(x.theta, x.base, x.frequency, x.phase, False), key


@jax.jit
def loss_gradient(x: Bounded, key: Key, beta: Array | float) -> Array:
    """Return the gradient of minus the loss with a divergence of weight `beta`, for the weights
    [5]."""
    config = dataclasses.replace(rocm.Config(), steps=STEPS)
    loss = rocm.recipe(pay(x), config).losses[0]
    given: Any = SimpleNamespace(timestep=jnp.zeros((SAMPLES, 1)), reward=jnp.zeros(SAMPLES))

    def mean_loss(theta: Array) -> Array:
        net: Any = SimpleNamespace(
            denoiser=lambda timestep, noisy, level: output(theta, noisy, level),
            base=lambda timestep, noisy, level: output(x.base, noisy, level),
            key=lambda name: jax.random.fold_in(key, len(name)),
            hyper=SimpleNamespace(beta=beta, last_scale=LAST_SCALE),
        )
        return loss(net, given).value.mean()  # type: ignore[union-attr]

    return -jax.grad(mean_loss)(x.theta)


@jax.jit
def exact_gradient(x: Bounded, beta: Any) -> Array:
    """Return the gradient of the expected reward less `beta` times the KL divergences of all
    steps."""
    return jax.grad(lambda theta: objective(Consistency(), x, theta, STEPS, beta))(x.theta)


def errors_of(key: Key, beta: float) -> dict[str, Array]:
    """Return the distance of the loss's gradient from that of the expected reward less BETA times
    the KL divergences of all steps; and the same without a divergence.

    beta: weight of the divergence in the loss, where there is one.
    """
    x, key = draw_problem(key)
    apart = lambda told, wanted: jnp.linalg.norm(
        loss_gradient(x, key, told) - exact_gradient(x, wanted)
    )
    return {"regularized": apart(beta, BETA), "plain": apart(0.0, 0.0)}


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the loss as it is."""
    return errors_of(key, BETA)


CLAIM = Exact(
    paper=Paper(
        "ROCM: RLHF on consistency models",
        "Shekhar and Zhang",
        2025,
        "2503.06171",
        "Consistency models are fine-tuned by first-order gradients of a reward through their few "
        "steps, regularized by divergences from the frozen model, stably and without policy "
        "gradients.",
    ),
    claim="The loss has the gradient of the expected reward less beta times the KL divergences of "
    "all steps, through the whole sampler, with a divergence and without.",
    left_out="Networks, learning, other divergences, and efficiency beside policy gradients. The "
    "sampler has two steps; expectations of the loss are of 80,000 chains, which set the "
    "tolerance.",
    notes="It was declared twice before, and compiled too slowly to end on a busy machine (the "
    "first attempt on record): first with a smaller tolerance, 0.005, then with another generator. "
    "In between it was tried on other seeds, and both gradients of one problem were looked at. The "
    "second attempt had a weight of 0.1, whose absence changed one seed's gradient by only 0.009.",
    parts=("jaxrl/algorithms/diffusion/rocm.py", "jaxrl/diffusion/processes.py"),
    errors=errors,
    planted={
        "no divergence": lambda key: errors_of(key, 0.0),
        "a divergence of twice the weight": lambda key: errors_of(key, 2 * BETA),
    },
    tolerance=0.008,
    effect=0.02,
    seeds=10,
    minutes=4.0,
    mutations=(
        Mutation(
            "rewards have the other sign",
            "jaxrl.algorithms.diffusion.rocm:reward_of",
            lambda reward_of: lambda *given: -reward_of(*given),
        ),
        Mutation(
            "the reward has no gradient",
            "jaxrl.algorithms.diffusion.rocm:reward_of",
            lambda reward_of: lambda *given: jax.lax.stop_gradient(reward_of(*given)),
        ),
    ),
)
