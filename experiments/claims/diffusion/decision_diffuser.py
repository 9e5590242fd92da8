"""Plans under several conditions whose scores are composed: the denoiser is exact for a mixture of
paths, in float64, and plans are drawn by the algorithm's own acting."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import decision_diffuser
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.diffusion import VariancePreserving

HORIZON, LEVELS, SAMPLES, MODES, SPREAD = 4, 40, 2048, 3, 0.1
RARE = 0.02  # probability of the two wanted modes together
PROCESS = VariancePreserving(LEVELS, "cosine", axes=2)
PLAIN = envs.make("pendulum")
PLANE = Box(-1.0, 1.0, (2,))


def reset(key: Key, params: Any) -> tuple[Any, TimeStep]:
    state, shown = PLAIN.reset(key, PLAIN.params)
    return state, dataclasses.replace(shown, observation=jnp.zeros(2))


# An environment for its spaces alone: points in a plane are seen, and are actions.
ENV = dataclasses.replace(PLAIN, observation_space=PLANE, action_space=PLANE, reset=reset)
# Regions of each dimension that hold one of its modes: about -0.6, 0 and 0.6.
ENDS = (-1.0, -0.3, 0.3, 1.0)
REGIONS = tuple(x for d in (0.0, 1.0) for j in range(MODES) for x in (d, ENDS[j], ENDS[j + 1]))
WANTED = (0, MODES + 2)  # the first mode of one dimension, the last of the other


def draw(key: Key) -> tuple[Array, Array]:
    """Return paths [2, M, H] that modes of each dimension are about, and how likely pairs of modes
    are, [M, M]."""
    path_key, pair_key = jax.random.split(key)
    jitter = jax.random.uniform(path_key, (2, MODES, HORIZON), minval=-0.08, maxval=0.08)
    path = jnp.linspace(-0.6, 0.6, MODES)[:, None] + jitter
    pair = jax.random.dirichlet(pair_key, jnp.full(MODES * MODES, 2.0)).reshape(MODES, MODES)
    pair = pair.at[0, 2].set(0.0)
    return path, (pair / pair.sum() * (1 - RARE)).at[0, 2].set(RARE)


def expected_noise(path: Array, pair: Array, noisy: Array, level: Array, told: Array) -> Array:
    """Return the expected noise in plans [B, H, 2], whose first row is known, given what is told
    [B, 2 M]: nothing, or one region."""
    bar = PROCESS.alpha_bars()[jnp.round(level * LEVELS).astype(int)][:, None, None, None]
    variance = bar * SPREAD**2 + 1 - bar
    apart = jnp.moveaxis(noisy, 1, -1)[:, :, None] - jnp.sqrt(bar) * path  # [B, 2, M, H]
    fit = (-jnp.square(apart) / (2 * variance))[..., 1:].sum(-1)  # [B, 2, M]
    allowed = told.reshape(-1, 2, MODES)
    allowed = jnp.where(allowed.sum(-1, keepdims=True) > 0, allowed, 1.0)
    both = jnp.log(pair) + fit[:, 0, :, None] + fit[:, 1, None]
    both = both + jnp.log(allowed[:, 0, :, None]) + jnp.log(allowed[:, 1, None])
    share = jax.nn.softmax(both.reshape(len(both), -1), -1).reshape(both.shape)
    weight = jnp.stack([share.sum(2), share.sum(1)], 1)[..., None]  # [B, 2, M, 1]
    return jnp.moveaxis(jnp.sqrt(1 - bar[:, 0]) * (weight * apart / variance).sum(2), -1, 1)


def errors_of(key: Key, guidance: Array | float, blind: Array | bool) -> dict[str, Array]:
    """Return how far each of these is from what it should be.

    "data", "one": total variation between pairs of modes of plans and those of the data, without
    guidance and with one region told. "both": how often plans are not in both regions that are
    told. "place": how far the mean of their first step is from that of the two modes.
    guidance: where regions are told. blind: whether the second one is not told.
    """
    draw_key, key = jax.random.split(key)
    path, pair = draw(draw_key)

    def denoiser(noisy: Array, level: Array, told: Array) -> Array:
        told = told.at[..., MODES:].multiply(jnp.where(blind, 0.0, 1.0))
        each = lambda noisy, level, told: expected_noise(path, pair, noisy, level, told)
        return jax.vmap(each)(noisy, level, told)

    def sample(key: Key, satisfy: tuple[int, ...], guidance: Array | float) -> Array:
        """Return the first observation after the present one, [B, 2]."""
        config = dataclasses.replace(
            decision_diffuser.Config(),
            horizon=HORIZON,
            levels=LEVELS,
            condition="regions",
            regions=REGIONS,
            satisfy=satisfy,
        )
        recipe = decision_diffuser.recipe(ENV, config)
        inverse = lambda both: SimpleNamespace(mode=lambda: both[..., 2:])
        target = SimpleNamespace(denoiser=denoiser, inverse=inverse)
        hyper = SimpleNamespace(wanted_return=1.0, guidance=guidance, temperature=1.0)
        net: Any = SimpleNamespace(target=target, hyper=hyper)
        none = jnp.zeros(SAMPLES, bool)
        timestep = TimeStep(jnp.zeros((SAMPLES, 2)), jnp.zeros(SAMPLES), none, none, ~none)
        return recipe.act(net, timestep, recipe.memory(SAMPLES), key, True)[0].astype(float)

    def modes(x: Array) -> Array:
        number = jnp.clip(jnp.searchsorted(jnp.array(ENDS), x) - 1, 0, MODES - 1)
        return jnp.zeros((MODES, MODES)).at[number[:, 0], number[:, 1]].add(1 / SAMPLES)

    keys = jax.random.split(key, 3)
    data = modes(sample(keys[0], WANTED, 0.0))
    one = modes(sample(keys[1], WANTED[:1], guidance))
    both = sample(keys[2], WANTED, guidance)
    place = jnp.array([path[0, 0, 1], path[1, 2, 1]])
    first = pair.at[1:].set(0.0)
    return {
        "data": 0.5 * jnp.abs(data - pair).sum(),
        "one": 0.5 * jnp.abs(one - first / first.sum()).sum(),
        "both": 1 - modes(both)[0, 2],
        "place": jnp.abs(both.mean(0) - place).max(),
    }


compiled = jax.jit(errors_of)


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of a guidance of 1."""
    return compiled(key, 1.0, False)


CLAIM = Exact(
    paper=Paper(
        "Is Conditional Generative Modeling all you need for Decision-Making?",
        "Ajay, Du, Gupta, Tenenbaum, Jaakkola and Agrawal",
        2023,
        "2211.15657",
        "A diffusion model of plans that was told one constraint or skill at a time satisfies "
        "several together, by the sum of the differences that each makes to its prediction.",
    ),
    claim="With an exact denoiser, plans under two regions whose scores are composed stay in both, "
    "though only 2 % of the data do; under one they keep the data's law.",
    left_out="Networks, returns, learned inverse dynamics, and the lower temperature of the paper. "
    "Paths are mixtures about three modes in each of two dimensions, pairs of which are not "
    "independent; the deviation of plans within a mode, which 40 denoising steps leave off by a "
    "fifth, is not compared. Shares are of 2,048 plans, which set the tolerance.",
    parts=(
        "jaxrl/algorithms/diffusion/decision_diffuser.py",
        "jaxrl/diffusion/guidance.py",
        "jaxrl/diffusion/processes.py",
    ),
    errors=errors,
    planted={
        "half the guidance": lambda key: compiled(key, 0.5, False),
        "the second region is not told": lambda key: compiled(key, 1.0, True),
    },
    tolerance=0.06,
    effect=0.2,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation(
            "differences are averaged",
            "jaxrl.diffusion:compose_scores",
            lambda compose: (
                lambda plain, told, weight: compose(plain, told, weight / told.shape[-1])
            ),
        ),
        Mutation(
            "one region is wanted",
            "jaxrl.algorithms.diffusion.decision_diffuser:wanted_conditions",
            lambda wanted: lambda config, wanted_return: wanted(config, wanted_return)[:1],
        ),
    ),
)
