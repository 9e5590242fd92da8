"""Policy mirror ascent in mean-field games on a ring: a contraction to the equilibrium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.core.types import Array, Key
from jaxrl.exact import mean_field
from jaxrl.exact.mean_field import MeanFieldGame

SIZE, DISCOUNT, TEMPERATURE, RATE, STEPS, STARTS = 6, 0.8, 0.5, 0.5, 120, 4
RATIO, SETTLED = 0.99, 1e-6  # bound of contraction; below, the end is too near to measure it
Step = Callable[[MeanFieldGame, Array], Array]


def ascend(game: MeanFieldGame, policy: Array) -> Array:
    """Take a step of policy mirror ascent."""
    return mean_field.mirror_ascent(game, policy, RATE, TEMPERATURE)


def ascend_in_an_even_population(game: MeanFieldGame, policy: Array) -> Array:
    """Take the step as if the population was even, whatever the policy is."""
    even = jnp.full(SIZE, 1 / SIZE)
    q = mean_field.action_values(game, policy, even, TEMPERATURE)
    return mean_field.improve(policy, q, RATE, TEMPERATURE)


def ascend_by_far(game: MeanFieldGame, policy: Array) -> Array:
    """Take the step without entropy, which a best response is the limit of."""
    return mean_field.mirror_ascent(game, policy, 50.0, 0.0)


def errors_of(step: Step) -> Callable[[Key], Mapping[str, Any]]:
    """Return the errors of a step from several policies in a random game."""

    @jax.jit
    def errors(key: Key) -> Mapping[str, Any]:
        game_key, begin_key = jax.random.split(key)
        aversion, slip, jam = jax.random.uniform(game_key, (3,))
        game = mean_field.beach_bar(SIZE, 0.5 + aversion, 0.1 + 0.4 * slip, 0.5 * jam, DISCOUNT)
        begin = jax.random.dirichlet(begin_key, jnp.ones(3), (STARTS, SIZE))

        def move(policies: Array, _: None) -> tuple[Array, Array]:
            policies = jax.vmap(lambda policy: step(game, policy))(policies)
            return policies, policies

        end, path = jax.lax.scan(move, begin, None, STEPS)
        path = jnp.concatenate([begin[None], path])
        # The largest span of differences of log-probabilities in a state, [STEPS + 1, STARTS].
        log = lambda policy: jnp.log(jnp.maximum(policy, 1e-12))
        away = jnp.ptp(log(path) - log(end[0]), -1).max(-1)
        ratio = jnp.where(away[:-1] > SETTLED, away[1:] / jnp.maximum(away[:-1], SETTLED), 0)
        gaps = jax.vmap(lambda policy: mean_field.exploitability(game, policy, TEMPERATURE))(end)
        hard = mean_field.exploitability(game, end[0])
        bound = TEMPERATURE * jnp.log(3.0) / (1 - DISCOUNT)
        return {
            "gap of the regularized game": jnp.abs(gaps).max(),
            "distance between the ends": jnp.abs(end - end[0]).max(),
            "steps that do not contract": jnp.maximum(ratio.max() - RATIO, 0),
            "gap without entropy above its bound": jnp.maximum(hard - bound, 0),
        }

    return errors


def forget_old_policy(mirror_descent: Callable[..., Array]) -> Callable[..., Array]:
    """Take a step from an even policy instead of the last one."""
    return lambda logits, *rest: mirror_descent(jnp.zeros_like(logits), *rest)


CLAIM = Exact(
    paper=Paper(
        "Policy Mirror Ascent for Efficient and Independent Learning in Mean Field Games",
        "Yardim, Cayci, Geist and He",
        2023,
        "2212.14449",
        "Policy mirror ascent is a contraction whose fixed point is the equilibrium of the "
        "regularized mean-field game; so players who learn from one path of the game of N players "
        "find it, up to 1 / sqrt(N).",
    ),
    claim="In random beach-bar games, policy mirror ascent with entropy contracts in every step "
    "from every start to one policy, which is the equilibrium of the regularized game.",
    left_out="Learning from one path of N players, of which a test compares the temporal "
    "differences with exact values; independent learners, rates in samples and in N. The "
    "distance of a step is the KL divergence.",
    parts=("jaxrl/exact/mean_field.py", "jaxrl/solvers/dynamics.py"),
    errors=errors_of(ascend),
    planted={
        "an even population": errors_of(ascend_in_an_even_population),
        "large steps without entropy": errors_of(ascend_by_far),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=10,
    minutes=2.0,
    notes="A step contracts where the largest span of differences of log-probabilities to the end "
    "falls by 1 % at least. In total variation single steps from random policies fell by less.",
    mutations=(
        Mutation("the last policy forgotten", "jaxrl.solvers:mirror_descent", forget_old_policy),
    ),
)
