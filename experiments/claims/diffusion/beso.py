"""BESO's policy with exact denoisers of actions that lie in separate groups on a line, one of which
hardly leads to a goal, in float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import beso
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.diffusion.edm import edm_preconditioning

GROUPS, GOALS, SPREAD, NEAR, SAMPLES = 4, 3, 0.04, 0.12, 49_152  # a multiple of GOALS
ENV = envs.make("pendulum")  # for its actions alone, one number in half-widths of 2
DATA_SCALE = 0.5


def draw(key: Key) -> tuple[Array, Array]:
    """Return the centers of groups of actions, [K], and how often each leads to a goal, [G, K].

    Every goal has one group that hardly leads to it.
    """
    place_key, share_key = jax.random.split(key)
    center = jnp.linspace(-0.75, 0.75, GROUPS)
    center += jax.random.uniform(place_key, (GROUPS,), minval=-0.06, maxval=0.06)
    share = jax.random.uniform(share_key, (GOALS, GROUPS), minval=0.5, maxval=1.5)
    share = share.at[jnp.arange(GOALS), jnp.arange(GOALS)].multiply(0.02)
    return center, share / share.sum(-1, keepdims=True)


def predict(center: Array, share: Array, scaled: Array, level: Array) -> Array:
    """Return the raw output [N, 1] of the exact denoiser of mixtures, with shares [N, K]."""
    sigma = jnp.exp(4 * level)[:, None]
    skip, out, into, _ = edm_preconditioning(sigma, DATA_SCALE)
    noisy = scaled / into
    variance = SPREAD**2 + sigma**2
    log_weight = jnp.log(share) - (noisy - center) ** 2 / (2 * variance)
    each = center + SPREAD**2 / variance * (noisy - center)
    clean = (jax.nn.softmax(log_weight, -1) * each).sum(-1, keepdims=True)
    return (clean - skip * noisy) / out


def errors_of(key: Key, steps: int = 3, guidance: float = 1.0, moved: int = 0) -> dict[str, Array]:
    """Return the errors of the policy, with as many actions of each goal.

    "rest": the slope of the loss with respect to a number that is added to what the denoiser says
    of a goal, or without one. The others are shortfalls. "coverage": the smallest share of a group
    that leads to the goal, and without goals of any group, should be 0.05. "astray": the share of
    the group that hardly leads to the goal should be at most 0.15. "between": that of actions near
    no group at most 0.1.
    steps: of denoising. guidance: toward goals. moved: by how much the goals that the loss is told
    are others.
    """
    problem_key, act_key, data_key, loss_key = jax.random.split(key, 4)
    center, share = draw(problem_key)
    laws = jnp.concatenate([share, share.mean(0)[None]])
    goal = jnp.arange(SAMPLES) % GOALS
    none = jnp.zeros(SAMPLES)
    timestep = TimeStep(none, none, none > 0, none > 0, none > 0, goal=goal + 1)
    member = jax.nn.one_hot(goal, GOALS)

    def actor(timestep: Any, noisy: Array, level: Array, told: Array, shift: Array) -> Array:
        known = told[:, 0] > 0
        row = jnp.where(known, timestep.goal - 1, GOALS)
        return predict(center, laws[row], noisy, level) + shift[row][:, None]

    def told_by(shift: Array) -> Any:
        return lambda timestep, noisy, level, told: actor(timestep, noisy, level, told, shift)

    still = jnp.zeros(GOALS + 1)

    acting = beso.recipe(ENV, dataclasses.replace(beso.Config(), steps=steps)).act

    def rates(guidance: float) -> tuple[Array, Array]:
        """Return the shares of groups by goal, [G, K], and of actions that are near none."""
        net: Any = SimpleNamespace(
            hyper=SimpleNamespace(guidance=guidance),
            target=SimpleNamespace(actor=told_by(still)),
        )
        action = acting(net, timestep, (), act_key, True)[0] / 2
        apart = jnp.abs(action - center)
        kind = jax.nn.one_hot(apart.argmin(-1), GROUPS)
        return member.T @ kind / (SAMPLES / GOALS), (apart.min(-1) > NEAR).mean(dtype=float)

    told, between = rates(guidance)
    free, between_free = rates(0.0)
    leads = ~jnp.eye(GOALS, GROUPS, dtype=bool)
    covered = jnp.minimum(jnp.where(leads, told, 1.0).min(), free.min())
    astray = jnp.where(leads, 0.0, told).max()
    group_key, noise_key = jax.random.split(data_key)
    shown = (goal + moved) % GOALS
    group = jax.random.categorical(group_key, jnp.log(share[shown]))
    action = 2 * (center[group] + SPREAD * jax.random.normal(noise_key, (SAMPLES,)))[:, None]
    x = Transition(timestep, action, timestep, (), {})
    denoiser_loss = beso.recipe(ENV, beso.Config()).losses[0]

    def total(shift: Array) -> Array:
        net: Any = SimpleNamespace(
            hyper=SimpleNamespace(drop=0.1),
            actor=told_by(shift),
            key=lambda name: jax.random.fold_in(loss_key, len(name)),
        )
        return denoiser_loss(net, x).mean()  # type: ignore[union-attr]

    return {
        "rest": jnp.abs(jax.grad(total)(still)).max(),
        "coverage": jnp.maximum(0.05 - covered, 0),
        "astray": jnp.maximum(astray - 0.15, 0),
        "between": jnp.maximum(jnp.maximum(between, between_free) - 0.1, 0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the policy with three steps."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Goal-Conditioned Imitation Learning using Score-based Diffusion Policies",
        "Reuss, Li, Jia and Lioutikov",
        2023,
        "2304.02532",
        "A score-based diffusion policy of goals imitates play with all its ways to a goal in "
        "three denoising steps, and one network is the policy with goals and without.",
    ),
    claim="The loss is at rest at exact denoisers of each goal's actions and of all. With these, "
    "three steps put nine of ten actions near a group of the data's, into every group that leads "
    "to the goal, and at most 0.15 into one that hardly does; without goals into all groups. One "
    "step, a clone's mean action, does not.",
    left_out="Networks, states, and tasks. Shares of groups are not those of the data: with three "
    "steps they were up to 0.2 from these in trials, and with 30 up to 0.15, since sampling begins "
    "at noise of scale 1 alone. Slopes are of 49,152 actions, which set the tolerance.",
    notes="In trials on other seeds, before it was declared, the claim was that shares are the "
    "data's, which they are not. In the first design a mistake had to change a number by 0.06; one "
    "in the loss changed it by 0.048 on a seed, beside errors of at most 0.02.",
    parts=("jaxrl/algorithms/diffusion/beso.py", "jaxrl/diffusion/processes.py"),
    errors=errors,
    planted={
        "one step": jax.jit(lambda key: errors_of(key, steps=1)),
        "no guidance": jax.jit(lambda key: errors_of(key, guidance=0.0)),
        "the loss is told other goals": jax.jit(lambda key: errors_of(key, moved=1)),
    },
    tolerance=0.02,
    effect=0.03,
    seeds=10,
    minutes=2.0,
    mutations=(
        Mutation(
            "guidance is away from the goal",
            "jaxrl.diffusion:classifier_free_guidance",
            lambda guide: lambda conditional, plain, weight: guide(plain, conditional, weight),
        ),
        Mutation(
            "actions are in other units",
            "jaxrl.algorithms.diffusion.shared.policies:to_units",
            lambda to_units: lambda space, action: 2 * to_units(space, action),
        ),
    ),
)
