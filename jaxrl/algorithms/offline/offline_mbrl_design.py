"""The pipeline of Lu, Ball, Parker-Holder, Osborne and Roberts (2022, "Revisiting design choices in
offline model-based reinforcement learning", arXiv:2110.04135): MOPO with other penalties for the
model's uncertainty. In each evaluation the penalties are compared, all on the same predictions, by
their rank correlation with the true error of the model where the policy goes.

`sweep` tunes what the paper tunes together by Bayesian optimization: `penalty`, `penalty_weight`,
`members`, `horizon`. Here leave-one-out KL is the mean over members, and no penalty has a mean and
a deviation of its own.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.algorithms.offline import mopo
from jaxrl.algorithms.offline.shared.model_rollouts import PENALTIES, STEP, standardized_change
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.kit import Recipe, group, static
from jaxrl.sources.rollouts import rollouts

STREAMS, STEPS = 32, 64  # that are played to compare penalties

MEASURED = tuple(name for name in PENALTIES if name != "none")


@group
class Config(mopo.Config):
    """Settings of offline model-based RL with a choice of penalties, which are compared by their
    correlation with the model's true error (arXiv:2110.04135)."""

    penalty: str = static("ensemble_deviation", choices=PENALTIES)
    """Measure of the model's uncertainty that rewards of rollouts are lowered by."""


def rank_correlation(x: Array, y: Array) -> Array:
    """Return Spearman's correlation of two arrays [n], 0 where one is constant; ties are ranked by
    their places."""
    rank = lambda z: jnp.argsort(jnp.argsort(z)).astype(jnp.float32)
    a, b = (r - r.mean() for r in (rank(x), rank(y)))
    varies = (x.max() > x.min()) & (y.max() > y.min())
    return jnp.where(varies, (a * b).mean() / jnp.maximum(a.std() * b.std(), 1e-12), 0.0)


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the rank correlation of each penalty with the distance between what the ensemble
    predicts on average and what happens, along episodes of the policy; nothing where the
    environment runs on the host."""
    if env.host:
        return {}
    source, (start_key, key) = rollouts(env, STREAMS, STEPS), jax.random.split(key)
    x = source.collect(source.init(start_key, {}, policy), policy, key)[1].transitions
    led, scale = x.extras[STEP], policy.state.extra.scale
    wrong = led.mean.mean(-1) - standardized_change(scale, x.timestep, x.next_timestep)
    error = jnp.linalg.norm(wrong, axis=-1).reshape(-1)
    penalties = {name: PENALTIES[name](led.mean, led.scale).reshape(-1) for name in MEASURED}
    found = {f"{name}_correlation": rank_correlation(x, error) for name, x in penalties.items()}
    return found | {"model_error": error.mean()}


def recipe(env: Environment, config: Config) -> Recipe:
    scores = {f"{name}_correlation": name.replace("_", " ") for name in MEASURED}
    plain = mopo.recipe(env, config)
    return dataclasses.replace(plain, scores={**scores, "model_error": "model error"})


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as MOPO does, and for a model of one member."""
    mopo.check(env, config, name)
    if config.model.members < 2:
        raise UserError(f"{name} compares the members of a model, so it needs at least 2.")


offline_mbrl_design = mopo.mopo.variant(
    "offline_mbrl_design", Config=Config, recipe=recipe, measure=measure, check=check
)

TINY = mopo.TINY
