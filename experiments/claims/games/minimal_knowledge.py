"""Classes of strategically equivalent partners, by a backup and by sets of best responses."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.core.types import Array, Key
from jaxrl.envs.grids import kitchen as kitchens
from jaxrl.exact import partner_classes as partners
from jaxrl.exact.partner_classes import SparseGame

STATES, ACTIONS, STEPS = 2, 2, 3
HISTORIES = [h for n in range(STEPS) for h in itertools.product(range(STATES), repeat=n)]
TREES = np.array(list(itertools.product(range(ACTIONS), repeat=len(HISTORIES))))
HORIZON, HABITS = 8, 4
Equivalent = Callable[..., Array]  # like `partners.equivalent`


def random_problem(key: Key) -> tuple[SparseGame, Array]:
    """Return a game with rewards of 0 and 1, and eight partners of whom one is stochastic."""
    keys = jax.random.split(key, 3)
    shape = (STATES, ACTIONS, ACTIONS)
    kinds = jnp.array([[1.0, 0], [0, 1], [0.5, 0.5]])
    game = SparseGame(
        jnp.broadcast_to(jnp.arange(STATES), (*shape, STATES)),
        kinds[jax.random.randint(keys[0], shape, 0, 3)],
        jax.random.bernoulli(keys[1], 0.5, shape).astype(float),
    )
    chosen = jax.random.randint(keys[2], (7, STEPS, STATES), 0, ACTIONS)
    mixed = jnp.full((1, STEPS, STATES, ACTIONS), 1 / ACTIONS)
    return game, jnp.concatenate([jax.nn.one_hot(chosen, ACTIONS), mixed])


def best_trees(game: SparseGame, policy: Array, start: int) -> Array:
    """Return which of all policies on histories of states are best responses, bool [128]."""
    nodes = {h: i for i, h in enumerate(HISTORIES)}

    def value(history: tuple[int, ...], state: int) -> Array:
        step, total = len(history), jnp.zeros(len(TREES))
        for a, b in itertools.product(range(ACTIONS), repeat=2):
            worth = jnp.full(len(TREES), game.reward[state, a, b])
            for after in range(STATES) if step + 1 < STEPS else ():
                chance = game.probability[state, a, b, after]
                worth += chance * value((*history, after), after)
            total += (TREES[:, nodes[history]] == a) * policy[step, state, b] * worth
        return total

    returns = value((), start)
    return returns >= returns.max() - 1e-9


def unlike_brute_force(key: Key, equivalent: Equivalent) -> Array:
    """Return the share of pairs of partners that are classed unlike their best responses."""
    game, policies = random_problem(key)
    wrong = []
    for start in range(STATES):
        sets = jax.vmap(lambda policy, start=start: best_trees(game, policy, start))(policies)
        same = (sets[:, None] == sets).all(-1)
        wrong.append(same != equivalent(game, policies)[0, start])
    return jnp.stack(wrong).astype(float).mean()


@functools.cache
def stove() -> tuple[SparseGame, Array]:
    """Return the game of the kitchen "stove", paid for onions in the pot, and five cooks: two
    that follow the script and turn one way or the other first, two that yield, and one that does
    nothing."""
    env = envs.make("kitchen", layout="stove", counters=False, placement=1.0, delivery=0.0)
    plan = kitchens.read_layout("stove")
    game, states = partners.enumerate_play(env, HORIZON)

    def script(last: bool, yields: bool) -> Callable[[Any], Array]:
        return lambda state: kitchens.cook(plan, 3, state.inner, 1, last=last, yields=yields)

    acts = [script(*kind) for kind in itertools.product((False, True), repeat=2)]
    acts.append(lambda state: jnp.int32(0))
    tables = [partners.partner_table(a, states, kitchens.ACTIONS, HORIZON) for a in acts]
    return game, jnp.stack(tables)


def cooks(key: Key, kitchen: tuple[SparseGame, Array]) -> tuple[SparseGame, Array]:
    """Return the kitchen, and each cook with `HABITS` habits: it does something else at one pair of
    a step and a state in a hundred, or nowhere."""
    game, tables = jax.tree.map(lambda x: x if x.dtype == jnp.int32 else x.astype(float), kitchen)
    where, what = jax.random.split(key)
    shape = (HABITS, 1, *tables.shape[1:3])
    other = jax.nn.one_hot(jax.random.randint(what, shape, 0, kitchens.ACTIONS), kitchens.ACTIONS)
    differs = jax.random.bernoulli(where, 0.01, shape)[..., None].at[0].set(False)
    policies = jnp.where(differs, other, tables).reshape(-1, *tables.shape[1:])
    return game, policies


def least_return(game: SparseGame, policies: Array) -> Array:
    """Return what a best response to one cook may earn with another at worst, [K, K], from the
    start of a deterministic game.

    The state knows whether the first cook could have led to it by a best response; if not, the
    response is free to do anything.
    """
    best = partners.responses(game, policies)[1]  # [H, S, K, A]
    moves = policies.argmax(-1)  # [K, H, S]
    states = jnp.arange(len(game.reward))
    count = len(policies)

    def back(following: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        """Go back from [2, S, K, K], by on or off the first cook's paths."""
        best, moves = step  # [S, K, A], [K, S]
        after = game.successor[states, :, moves, 0]  # [K, S, A]
        paid = game.reward[states, :, moves]
        on = after[:, None] == after[None]  # [K, K, S, A]: the first leads there too
        one, two = jnp.arange(count)[:, None, None, None], jnp.arange(count)[:, None, None]
        off_worth = following[0, after[None], one, two]
        worth = jnp.where(on, following[1, after[None], one, two], off_worth)
        allowed = best.transpose(1, 0, 2)[:, None]  # [K, 1, S, A]
        bound = jnp.where(allowed, paid[None] + worth, jnp.inf).min(-1)
        free = (paid[None] + off_worth).min(-1)
        return jnp.stack([free, bound]).transpose(0, 3, 1, 2), None

    last = jnp.zeros((2, len(states), count, count))
    end, _ = jax.lax.scan(back, last, (best, moves.swapaxes(0, 1)), reverse=True)
    return end[1, 0]


def kitchen_errors(key: Key, kitchen: Any, equivalent: Equivalent) -> Mapping[str, Array]:
    """Return the errors of classes of cooks."""
    game, policies = cooks(key, kitchen)
    equal = equivalent(game, policies)[0, 0]
    value = partners.responses(game, policies)[0][0, 0]
    merged = partners.merged_responses(game, policies, partners.classes(equal))
    lost = value - partners.returns(game, policies, merged)[0]
    within = least_return(game, policies) >= value - 1e-9  # best for one is best for the other
    return {
        "pairs of cooks that are classed unlike their best responses": (
            (within & within.T) != equal
        )
        .astype(float)
        .mean(),
        "return lost by seeing the class alone": jnp.abs(lost).max(),
    }


@functools.partial(jax.jit, static_argnames="equivalent")
def measure(key: Key, kitchen: Any, equivalent: Equivalent) -> Mapping[str, Any]:
    """Return the errors of the classes that `equivalent` finds."""
    game_key, cook_key = jax.random.split(key)
    wrong = unlike_brute_force(game_key, equivalent)
    return {
        "pairs that are classed unlike their best responses": wrong,
        **kitchen_errors(cook_key, kitchen, equivalent),
    }


def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of the backup."""
    return measure(key, stove(), partners.equivalent)


def now_alone(equivalent: Equivalent) -> Equivalent:
    """Compare the best actions of the step alone, not what follows."""
    del equivalent
    return compare_now


def compare_now(game: SparseGame, policies: Array) -> Array:
    """Return which partners have the same best actions: bool [H, S, K, K]."""
    best = partners.responses(game, policies)[1]
    return (best[:, :, :, None] == best[:, :, None]).all(-1)


CLAIM = Exact(
    paper=Paper(
        "Who Needs to Know? Minimal Knowledge for Optimal Coordination",
        "Lauffer et al.",
        2023,
        "2306.09309",
        "What must be known of a partner to coordinate optimally is the class of those with the "
        "same best responses, which a Bellman backup computes for dynamic games, far more "
        "efficiently than by enumerating policies.",
    ),
    claim="The backup's classes are those of equal sets of best responses, in random games by "
    "enumerating all policies on histories, in a small kitchen by comparing best responses pair by "
    "pair; whoever sees the class of a cook alone loses no return.",
    left_out="Partial observability, the search over all partner policies (here a set is given), "
    "the Overcooked layouts of the paper, and its times.",
    parts=("jaxrl/exact/partner_classes.py", "jaxrl/envs/grids/kitchen.py"),
    errors=errors,
    planted={
        "what follows is not compared": lambda key: measure(
            key, stove(), now_alone(partners.equivalent)
        ),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=4.0,
    mutations=(
        Mutation(
            "what follows is not compared", "jaxrl.exact.partner_classes:equivalent", now_alone
        ),
    ),
)
