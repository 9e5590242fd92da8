"""Plans of Diffuser in random linear systems, whose denoiser and guide are exact, in float64; plans
are drawn by the algorithm's own acting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.diffusion._plans import (
    ENV,
    LOUD,
    SIZE,
    draw,
    errors_of_actions,
    show,
)
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.diffusion import diffuser
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Array, Key
from jaxrl.diffusion import VariancePreserving

HORIZON, LEVELS, SAMPLES = 5, 200, 8192
RISE = 1.2  # deviations by which the goal, or the return, moves an action's mean
WIDTH = 2 * SIZE + 1
PROCESS = VariancePreserving(LEVELS, "cosine", prediction="clean", axes=2)
KNOWN = np.zeros((HORIZON, WIDTH), bool)
KNOWN[0, :SIZE] = KNOWN[-1, SIZE + 1 :] = True  # the first observation, and the last goal
ACTION = np.zeros((HORIZON, WIDTH), bool)
ACTION[:, SIZE] = True
CONFIG = replace(
    diffuser.Config(), {"horizon": HORIZON, "levels": LEVELS, "guided": True, "discount": 1.0}
)


def rows(states: Array, actions: Array) -> Array:
    """Return the rows [H, F] of a trajectory: state, action and what it achieves of a goal."""
    return jnp.concatenate([states[:-1], actions, states[:-1]], -1)


def errors_of(key: Key, guidance: float = 1.0, told: float = 1.0) -> dict[str, Array]:
    """Return the errors of the actions of plans, of means in deviations, of covariances relative.

    "mean", "covariance": beside the law of the data's actions between the observation and the goal.
    "guided", "guided covariance": beside that law times exp(strength * return), for a return that
    was drawn after the model was made.
    The goal and the return each move an action's mean by as many deviations.
    guidance: factor on its strength. told: factor on how far the goal is from its mean.
    """
    keys = jax.random.split(key, 6)
    x = draw(keys[0])
    law = x.law(HORIZON, rows)
    own, known = ACTION.ravel(), KNOWN.ravel()
    # An observation about as far from its mean as those of data.
    begun = law.mean[known].at[:SIZE].add(LOUD * jax.random.normal(keys[1], (SIZE,)))
    deviation = jnp.sqrt(jnp.diag(law.condition(known, begun).covariance)[own])
    away = jax.random.normal(keys[5], (SIZE,))
    away = RISE * away / jnp.abs(law.gain(known)[own, SIZE:] @ away / deviation).max()
    values = begun.at[SIZE:].add(away)
    exact = law.condition(known, values)
    pay = (
        jnp.zeros((HORIZON, WIDTH))
        .at[:, : SIZE + 1]
        .set(jax.random.normal(keys[2], (HORIZON, SIZE + 1)))
    )
    pay = pay.ravel()
    tilt = exact.covariance @ pay
    strength = RISE / jnp.abs(tilt[own] / deviation).max()
    predict = law.denoiser(PROCESS, KNOWN)

    def guide(noisy: Array, level: Array) -> Array:
        """Return the expected return of noisy trajectories, at each of their steps."""
        said = predict(noisy, level).reshape(len(noisy), -1) @ pay
        return jnp.broadcast_to(said[:, None, None], (*noisy.shape[:2], 1))

    recipe = diffuser.recipe(ENV, Static(CONFIG))  # pyright: ignore[reportArgumentType]

    def plan(key: Key, guidance: Array | float) -> Array:
        net: Any = SimpleNamespace(
            target=SimpleNamespace(denoiser=predict),
            guide=guide,
            hyper=SimpleNamespace(guidance=guidance),
        )
        timestep = show(begun[:SIZE], begun[SIZE:] + told * away, SAMPLES)
        found = recipe.act(net, timestep, recipe.memory(SAMPLES), key, True)[1]
        return found.steps[..., 0].astype(float)

    only = lambda law: type(law)(law.mean[own], law.covariance[np.ix_(own, own)])
    mean, covariance = errors_of_actions(plan(keys[3], 0.0), only(exact))
    tilted = type(exact)(exact.mean + strength * tilt, exact.covariance)
    guided = errors_of_actions(plan(keys[4], guidance * strength), only(tilted))
    return {
        "mean": mean,
        "covariance": covariance,
        "guided": guided[0],
        "guided covariance": guided[1],
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of plans as they are."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Planning with Diffusion for Flexible Behavior Synthesis",
        "Janner, Du, Tenenbaum and Levine",
        2022,
        "2205.09991",
        "Plans are samples of one diffusion model of trajectories: goals are inpainted and returns "
        "guide it, and both can be others at each planning, without training.",
    ),
    claim="With exact denoisers, actions of plans have the means, within a quarter of a deviation, "
    "and the covariances, within 25 %, of the data's law between the observation and the goal, and "
    "with guidance of that law times exp(strength * return), for goals and returns drawn "
    "afterwards.",
    left_out="Networks, local receptive fields, data from which plans are stitched, and long "
    "horizons. Systems are linear with Gaussian noise, plans have five steps, and the denoiser is "
    "told what is known without noise, as in training here. The tolerance is of 200 denoising "
    "steps, which leave covariances a tenth too small, and of 8,192 plans.",
    notes="In the first design goals were drawn as in the data, some of which hardly moved an "
    "action, so that half the way to the goal went unnoticed on a seed of ten. In the second so "
    "did half the guidance, which raised returns by 1.5 deviations and no action by as much. The "
    "1.2 deviations of the third were chosen on eight other seeds.",
    parts=(
        "jaxrl/algorithms/diffusion/diffuser.py",
        "jaxrl/diffusion/guidance.py",
        "jaxrl/diffusion/processes.py",
        "jaxrl/diffusion/sampling.py",
    ),
    errors=errors,
    planted={
        "half the guidance": jax.jit(lambda key: errors_of(key, guidance=0.5)),
        "half the way to the goal": jax.jit(lambda key: errors_of(key, told=0.5)),
    },
    tolerance=0.25,
    effect=0.4,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "what is known is not put back",
            "jaxrl.diffusion:inpaint",
            lambda inpaint: lambda noisy, known, mask: noisy,
        ),
        Mutation(
            "guidance by half the variance",
            "jaxrl.diffusion:classifier_guidance",
            lambda guide: (
                lambda mean, gradient, variance, scale: guide(mean, gradient, variance / 2, scale)
            ),
        ),
    ),
)
