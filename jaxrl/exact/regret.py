"""Solvers of games given as trees: counterfactual regret, mirror descent and regularized leaders.

Each is one `scan` over iterations, with the exploitability along the way. Expected payoffs are
exact; `algorithms.games.adaptive_ftrl` learns from sampled games.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import solvers
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array
from jaxrl.exact import trees
from jaxrl.exact.trees import Forest, Player

INFINITY = float("inf")
Tables = tuple[Array, ...]
Rate = float | Callable[[Array], Array]  # a constant, or a function of the iteration, from 1


@dataclasses.dataclass(frozen=True)
class Discount:
    """Weights of past iterations t in counterfactual regret minimization.

    Summed regrets are multiplied by t^a / (t^a + 1) after iteration t, with a = `positive` where
    they are positive and a = `negative` where they are not; averages weigh iteration t by
    t^`average`. A `negative` of minus infinity clips regrets at 0 (regret matching+).
    Source: Brown and Sandholm, 2019, "Solving imperfect-information games via discounted regret
    minimization".
    """

    positive: float = INFINITY
    negative: float = INFINITY
    average: float = 0.0


CFR = Discount()
"""Zinkevich et al., 2007, "Regret minimization in games with incomplete information"."""
CFR_PLUS = Discount(negative=-INFINITY, average=1.0)
"""Tammelin, 2014, "Solving large imperfect information games using CFR+"."""
LINEAR_CFR = Discount(1.0, 1.0, 1.0)
"""Linear CFR: iteration t counts t times (Brown and Sandholm, 2019)."""
DISCOUNTED_CFR = Discount(1.5, 0.0, 2.0)
"""Discounted CFR with the authors' exponents (Brown and Sandholm, 2019)."""


class Solution(NamedTuple):
    """Tables that a solver has found, and gaps on the way there."""

    average: Tables  # [I, A] of each player: the tables of the averages of plans
    last: Tables  # [I, A] of each player: the last tables
    curve: Array  # [looks, N]: gains of best responses to the averages
    last_curve: Array  # [looks, N]: gains of best responses to the last tables


def counterfactual_regret(
    forest: Forest, iterations: int, discount: Discount = CFR, looks: int = 1
) -> Solution:
    """Minimize counterfactual regrets; players take turns within an iteration.

    In a zero-sum game for two the averages approach an equilibrium, at a rate of at least
    1 / sqrt(iterations). looks: number of evenly spaced points at which gaps are measured; raises
    `UserError` unless they divide the iterations.
    """
    tables = forest.uniform
    plans = _plans(forest, tables)
    regrets = tuple(jnp.zeros(player.legal.shape) for player in forest.players)

    def iterate(state, t):
        regrets, tables, plans, totals = (list(x) for x in state)
        for p, player in enumerate(forest.players):
            payoff = trees.gradient(forest, plans, p)
            new = _regrets(player, tables[p], payoff)
            totals[p] = _fade(t, discount.average) * totals[p] + plans[p]
            regrets[p] = _add_regrets(regrets[p], new, t, discount)
            tables[p] = solvers.regret_matching(regrets[p], jnp.asarray(player.legal))
            plans[p] = trees.plan(player, tables[p])
        return tuple(map(tuple, (regrets, tables, plans, totals)))

    begin = regrets, tables, plans, tuple(jnp.zeros_like(x) for x in plans)
    return _run(forest, iterate, begin, iterations, looks, lambda state: (state[1], state[3]))


def _regrets(player: Player, table: Array, payoff: Array) -> Array:
    """Return the counterfactual regrets [I, A] of a table against a gradient [S]."""

    def respond(sets, values):
        value = (table[sets] * values).sum(1)
        return values - value[:, None], value

    return trees.walk_back(player, payoff, respond)[0]


def _add_regrets(regret: Array, new: Array, t: Array, discount: Discount) -> Array:
    if discount.negative == -INFINITY:
        regret = solvers.regret_matching_plus(regret, new)
    else:
        regret = regret + new
    share = lambda power: 1.0 if np.isinf(power) else t**power / (t**power + 1)
    return regret * jnp.where(regret > 0, share(discount.positive), share(discount.negative))


def _fade(t: Array, power: float) -> Array | float:
    """Return the factor of a sum at iteration t by which iterations count as t^power."""
    return ((t - 1) / t) ** power if power else 1.0


def mirror_descent(
    forest: Forest,
    iterations: int,
    step_size: Rate = 0.1,
    temperature: Rate = 0.0,
    *,
    looks: int = 1,
) -> Solution:
    """Magnetic mirror descent with dilated entropy.

    All players step at once to the best answer to the current gradient, with entropy of weight
    `temperature` and a divergence from the current table of weight 1 / `step_size` at each
    information set, times the own part in the probability of getting there. With a constant
    temperature the last tables of a zero-sum game approach its equilibrium with that entropy, at a
    linear rate if steps are small; with one that falls they approach a Nash equilibrium. Without a
    temperature it is mirror descent, whose averages converge.
    Source: Sokota et al., 2023, "A unified approach to reinforcement learning, quantal response
    equilibria, and two-player zero-sum games".
    """
    tables = forest.uniform

    def iterate(state, t):
        tables, totals = state
        step, heat = _rate(step_size, t), _rate(temperature, t)
        plans = _plans(forest, tables)
        after = []
        for p, player in enumerate(forest.players):
            respond = _near(player, tables[p], step, heat)
            after.append(trees.walk_back(player, trees.gradient(forest, plans, p), respond)[0])
        return tuple(after), tuple(x + y for x, y in zip(totals, plans, strict=True))

    begin = tables, tuple(jnp.zeros_like(x) for x in _plans(forest, tables))
    return _run(forest, iterate, begin, iterations, looks, lambda state: state)


def _near(player: Player, table: Array, step: Array, heat: Array) -> trees.Respond:
    """Answer by max_p <p, payoff> + heat H(p) - KL(p || table) / step."""

    def respond(sets, values):
        here = player.legal[sets]
        old = jnp.maximum(jnp.where(here, table[sets], 1.0), jnp.finfo(table.dtype).tiny)
        payoff = jnp.where(here, values + jnp.log(old) / step, -jnp.inf)
        return solvers.dilated_entropy_response(payoff, heat + 1 / step)

    return respond


def regularized_leader(
    forest: Forest, iterations: int, step_size: float, *, balanced: bool = False, looks: int = 1
) -> Solution:
    """Follow the regularized leader with dilated entropy, and all expected payoffs known.

    balanced: weigh the entropy and start as `balance` says, for the tree's structure; otherwise all
    information sets alike. The averages of plans converge in zero-sum games for two.
    Source: Fiegel et al., 2023, "Adapting to game trees in zero-sum imperfect information games"
    (balanced, there with sampled games).
    """
    starts = [
        balance(player) if balanced else (player.uniform, np.ones(len(player.legal)))
        for player in forest.players
    ]

    def leaders(payoffs):
        return tuple(
            leader(player, payoff, prior, weight / step_size)
            for player, payoff, (prior, weight) in zip(forest.players, payoffs, starts, strict=True)
        )

    def iterate(state, t):
        tables, totals, payoffs = state
        plans = _plans(forest, tables)
        payoffs = tuple(x + trees.gradient(forest, plans, p) for p, x in enumerate(payoffs))
        totals = tuple(x + y for x, y in zip(totals, plans, strict=True))
        return leaders(payoffs), totals, payoffs

    zero = tuple(jnp.zeros(player.sequences) for player in forest.players)
    begin = leaders(zero), zero, zero
    return _run(forest, iterate, begin, iterations, looks, lambda state: state[:2])


def leader(player: Player, payoff: Array, prior: Any, weight: Any) -> Array:
    """Return the table [I, A] of max_p <p, payoff> - sum_i weight_i reach_i KL(p_i || prior_i).

    payoff: [S], summed. prior: [I, A], probabilities. weight: [I], positive, of the divergence at
    each information set; reach_i is the own part in the probability of getting there.
    """
    prior, weight = jnp.asarray(prior, payoff.dtype), jnp.asarray(weight, payoff.dtype)
    log_prior = jnp.where(player.legal, jnp.log(jnp.where(player.legal, prior, 1)), -jnp.inf)

    def respond(sets, values):
        weights = weight[sets][:, None]
        return solvers.dilated_entropy_response(values + weights * log_prior[sets], weights)

    return trees.walk_back(player, payoff, respond)[0]


def balance(player: Player) -> tuple[np.ndarray, np.ndarray]:
    """Return balanced probabilities [I, A], and the reach [I] under balanced transitions.

    A set counts for the number of legal actions at it and at all sets that follow. Balanced
    probabilities of its actions, and balanced transitions to the sets that follow an action, are in
    proportion to what lies behind; a first set has a reach of 1.
    Source: Fiegel et al., 2023, "Adapting to game trees in zero-sum imperfect information games",
    as in the authors' code, but for the transitions: there the action itself counts among what
    lies behind it, so that the transitions that follow it sum to less than 1.
    """
    shape = player.legal.shape
    behind = np.where(player.legal, 1.0, 0.0)  # the action itself and all actions that follow it
    for level in reversed(range(len(player.children))):
        begin, end = player.levels[level]
        after = player.levels[level + 1]
        size = np.append(behind[after[0] : after[1]].sum(1), 0.0)
        behind[begin:end] += size[player.children[level]].sum(-1)
    size = behind.sum(1)
    reach = np.ones(shape[0])
    flat = behind.ravel()
    for begin, end in player.levels[1:]:
        parent = player.parent[begin:end] - 1
        reach[begin:end] = reach[parent // shape[1]] * size[begin:end] / (flat[parent] - 1)
    return behind / size[:, None], reach


def _plans(forest: Forest, tables: Sequence[Array]) -> Tables:
    return tuple(trees.plan(p, table) for p, table in zip(forest.players, tables, strict=True))


def _rate(rate: Rate, t: Array) -> Array:
    return jnp.asarray(rate(t) if callable(rate) else rate, float)


def _run(
    forest: Forest,
    iterate: Callable[[Any, Array], Any],
    state: Any,
    iterations: int,
    looks: int,
    found: Callable[[Any], tuple[Tables, Tables]],
) -> Solution:
    """Iterate, with gaps at `looks` points. found: state -> (last tables, sums of plans)."""
    if looks < 1 or iterations < looks or iterations % looks:
        raise UserError(
            f"{looks} looks do not divide {iterations} iterations; both must be at least 1 and "
            "iterations a multiple of looks."
        )
    length = iterations // looks

    def average(totals):
        return tuple(
            trees.behavior(player, total)
            for player, total in zip(forest.players, totals, strict=True)
        )

    def stretch(state, begin):
        times = jnp.asarray(begin + jnp.arange(1, length + 1), float)
        state, _ = jax.lax.scan(lambda state, t: (iterate(state, t), None), state, times)
        last, totals = found(state)
        gaps = (trees.gains(forest, _plans(forest, x)) for x in (average(totals), last))
        return state, tuple(gaps)

    begins = length * jnp.arange(looks)
    state, (curve, last_curve) = jax.jit(functools.partial(jax.lax.scan, stretch))(state, begins)
    last, totals = found(state)
    return Solution(average(totals), last, curve, last_curve)
