"""The slope of a discriminator's reward, and of values that it implies, where the discriminator is
any piecewise linear function of a line, in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.imitation.shared.adversarial import (
    Beside,
    Discriminator,
    discriminator_loss,
    log_odds,
)
from jaxrl.core.types import Array, Key, TimeStep, Transition

CELLS, STEPS, SHARES, ITERATIONS = 20, 8, 64, 30
SLOPE, WEIGHT, DISCOUNT = 1.0, 10.0, 0.95
HORIZON = 400  # steps of a return
STEP = 1e-5  # of the differences that slopes are
TOUCH = 0.05  # slope that the reward may have where expert and policy do the same
EDGES = jnp.linspace(0, 1, CELLS + 1)[:-1]
PLACES = (jnp.arange(10 * CELLS) + 0.5) / (10 * CELLS)


def logits_of(table: Array, x: Array) -> Array:
    """Return the log-odds [...] of places: the table holds that of 0, and the slopes of cells."""
    return table[0] + jnp.clip(x[..., None] - EDGES, 0, 1 / CELLS) @ table[1:]


def steps_at(place: Array) -> Transition:
    none = jnp.zeros(place.shape)
    see = TimeStep(place[:, None], none, none > 0, none > 0, none > 0)
    return Transition(see, none[:, None], see, (), {})


def fit(key: Key, shown: Array, played: Array, penalized: bool, one_sided: bool) -> Array:
    """Return the table [1 + CELLS] that descends the discriminator's loss on all pairs of an
    expert's and a policy's steps, by Newton's method with the best of a few step sizes."""
    settings = Discriminator(penalized=penalized, one_sided=one_sided)
    function = discriminator_loss(("discriminator",), log_odds, settings)
    one, other = (x.ravel() for x in jnp.meshgrid(shown, played))
    many = lambda x: steps_at(jnp.tile(x, SHARES))
    beside = Beside(played=many(other), shown=many(one))
    hyper = SimpleNamespace(discriminator=SimpleNamespace(slope=SLOPE, penalty_weight=WEIGHT))

    def loss(table: Array) -> Array:
        net: Any = SimpleNamespace(
            discriminator=lambda t, action: logits_of(table, t.observation[..., 0])[..., None],
            key=lambda name: key,
            hyper=hyper,
        )
        output: Any = function(net, beside)
        return output.value.mean()

    def improve(table: Array, _: None) -> tuple[Array, None]:
        matrix = jax.hessian(loss)(table) + 1e-6 * jnp.eye(len(table))
        way = jnp.linalg.solve(matrix, jax.grad(loss)(table))
        tried = table - 2.0 ** -jnp.arange(8)[:, None] * way
        return tried[jax.lax.map(loss, tried).argmin()], None

    return jax.lax.scan(improve, jnp.zeros(1 + CELLS), None, length=ITERATIONS)[0]


def errors_of(
    key: Key, penalized: bool = True, one_sided: bool = True, expanding: bool = False
) -> dict[str, Array]:
    """Return by how much slopes exceed their bounds.

    "reward": of the reward, beyond k + L / w: k the slope and w the weight of the penalty, L the
    largest distance between an expert's step and a policy's, which are apart. "value": of the
    value of a policy under which all distances shrink by the same factor c in a step, beyond the
    reward's bound / (1 - discount c). "action": of the action's value, beyond discount b times
    that, where an action moves the next place b times as far. "alike": of the reward where expert
    and policy take the same steps, beyond `TOUCH`.
    expanding: all distances grow, by the inverse of the factor.
    """
    keys = jax.random.split(key, 6)
    shown = jax.random.uniform(keys[0], (STEPS,), minval=0.65, maxval=1.0)
    played = jax.random.uniform(keys[1], (STEPS,), minval=0.0, maxval=0.35)
    shrink, strength = jax.random.uniform(keys[2], (2,), minval=0.5, maxval=0.95)
    rest = jax.random.uniform(keys[3], ())
    shrink = 1 / shrink if expanding else shrink

    def reward_of(table: Array, place: Array) -> Array:
        return losses.adversarial_reward(logits_of(table, place))

    def slopes(function: Callable[[Array], Array], at: Array) -> Array:
        """Return the slopes of a function by differences, since a reward has no gradient."""
        apart = lambda x: (function(x + STEP) - function(x - STEP)) / (2 * STEP)
        return jnp.abs(jax.vmap(apart)(at)).max()

    table = fit(keys[4], shown, played, penalized, one_sided)

    def value(place: Array) -> Array:
        """Return the value of a place whose distance from `rest` shrinks at every step."""
        time = jnp.arange(HORIZON)
        return DISCOUNT**time @ reward_of(table, rest + shrink**time * (place - rest))

    def value_of_action(action: Array) -> Array:
        """Return the value of an action in the middle, where the policy's own is 0."""
        after = rest + shrink * (0.5 - rest) + strength * action
        return reward_of(table, jnp.asarray(0.5)) + DISCOUNT * value(after)

    bound = SLOPE + (shown.max() - played.min()) / WEIGHT
    long = bound / (1 - DISCOUNT * shrink) if not expanding else bound / (1 - DISCOUNT)
    alike = fit(keys[5], shown, shown, penalized, one_sided)
    beyond = lambda slope, bound: jnp.nan_to_num(jnp.maximum(slope - bound, 0), nan=jnp.inf)
    return {
        "reward": beyond(slopes(lambda x: reward_of(table, x), PLACES), bound),
        "value": beyond(slopes(value, PLACES), long),
        "action": beyond(slopes(value_of_action, PLACES - 0.5), DISCOUNT * strength * long),
        "alike": beyond(slopes(lambda x: reward_of(alike, x), PLACES), TOUCH),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the penalty as it is."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Lipschitzness Is All You Need To Tame Off-policy Generative Adversarial Imitation "
        "Learning",
        "Blonde, Strasser and Kalousis",
        2022,
        "2006.16785",
        "Off-policy adversarial imitation needs a reward that is locally Lipschitz-continuous, as "
        "a gradient penalty makes it; then values are, too, with a constant that the discount and "
        "the dynamics decide.",
    ),
    claim="Where an expert's and a policy's steps lie apart on a line, the reward of a penalized "
    "discriminator of any shape is nowhere steeper than the penalty's slope and the distance over "
    "the penalty's weight; values, where distances shrink by c in a step, than that over one less "
    "discount times c. Without the penalty the reward, and with growing distances the value, are "
    "steeper. Where both take the same steps a one-sided penalty leaves no slope.",
    left_out="Networks, learning, more dimensions, stochastic policies, the pessimistic factor on "
    "rewards, and returns with and without the penalty. The bounds are derived here, by the "
    "triangle inequality; the paper's own could not be read.",
    parts=(
        "jaxrl/algorithms/imitation/shared/adversarial.py",
        "jaxrl/losses/imitation/adversarial.py",
    ),
    errors=errors,
    planted={
        "no penalty": jax.jit(lambda key: errors_of(key, penalized=False)),
        "a penalty on small slopes too": jax.jit(lambda key: errors_of(key, one_sided=False)),
        "distances grow": jax.jit(lambda key: errors_of(key, expanding=True)),
    },
    tolerance=1e-6,
    effect=1e-2,
    seeds=8,
    minutes=3.0,
    mutations=(
        Mutation(
            "the penalty is of half the slope",
            "jaxrl.losses:gradient_penalty",
            lambda penalty: lambda slope, *options: penalty(slope / 2, *options),
        ),
        Mutation(
            "rewards are of twice the log-odds",
            "jaxrl.losses:adversarial_reward",
            lambda reward: lambda logits, *form: reward(2 * logits, *form),
        ),
    ),
)
