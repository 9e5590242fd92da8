"""Equilibria of Markov games from data that cover them in part: intervals and bounds of gaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.core.types import Array, Key
from jaxrl.exact import offline_games
from jaxrl.exact.markov_games import MarkovGame
from jaxrl.exact.offline_games import Estimate

STEPS, STATES, ACTIONS, POLICIES = 2, 2, 2, 64
SHAPE = (STEPS, STATES, ACTIONS, ACTIONS)
SINGLE = np.eye(ACTIONS)[np.indices((2,) * 4).reshape(4, -1).T.reshape(-1, STEPS, STATES)]
KINDS = {"coarse": False, "correlated": True}


def draw(key: Key) -> tuple[MarkovGame, Array]:
    """Draw a game with rewards in [0, 1], and a deterministic equilibrium of it, [H, S, A, B].

    A player who leaves it alone loses more at once than it can gain later; both may gain, or lose,
    where both leave.
    """
    keys = jax.random.split(key, 5)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), SHAPE)
    initial = jax.random.dirichlet(keys[1], jnp.ones(STATES))
    first, second = jnp.eye(ACTIONS)[jax.random.randint(keys[2], (2, STEPS, STATES), 0, ACTIONS)]
    stays = first[..., :, None] > 0, second[..., None, :] > 0
    own, lone, both = (jax.random.uniform(k, (2, *SHAPE)) for k in jax.random.split(keys[3], 3))
    reward = jnp.where(stays[0] & stays[1], 0.6 + 0.2 * own, 0.3 * lone)
    reward = jnp.where(stays[0] | stays[1], reward, both)
    return MarkovGame(transition, reward, initial), offline_games.join((first, second))


def draw_joints(key: Key) -> Array:
    """Return all pairs of deterministic policies, and random independent and correlated ones."""
    pairs = [SINGLE[x.ravel()] for x in np.meshgrid(*(np.arange(16),) * 2, indexing="ij")]
    keys = jax.random.split(key, 3)
    mixed = [
        jax.random.dirichlet(k, jnp.ones(ACTIONS), (POLICIES, STEPS, STATES)) for k in keys[:2]
    ]
    correlated = jax.random.dirichlet(keys[2], jnp.ones(ACTIONS**2), (POLICIES, STEPS, STATES))
    return jnp.concatenate(
        [
            offline_games.join((jnp.asarray(pairs[0]), jnp.asarray(pairs[1]))),
            offline_games.join((mixed[0], mixed[1])),
            correlated.reshape(POLICIES, *SHAPE),
        ]
    )


def know(game: MarkovGame, seen: Array) -> Estimate:
    """Return what any number of data tell of a game where `seen` [H, S, A, B]: all, and elsewhere
    nothing."""
    transition = jnp.where(seen[..., None], game.transition, 1 / STATES)
    learned = MarkovGame(transition, jnp.where(seen, game.reward, 0.5), game.initial)
    return Estimate(learned, jnp.where(seen, 0.0, jnp.inf), 0.0, 1.0)


def imagine(estimate: Estimate) -> Estimate:
    """Believe the estimate as it is: without data, mean rewards and all successors alike."""
    return estimate._replace(radius=jnp.zeros_like(estimate.radius))


def errors_of(believe: Callable[[Estimate], Estimate]) -> Callable[[Key], Mapping[str, Any]]:
    """Return the errors of bounds by an estimate that `believe` may change."""

    @jax.jit
    def errors(key: Key) -> Mapping[str, Any]:
        keys = jax.random.split(key, 4)
        game, equilibrium = draw(keys[0])
        truth = Estimate(game, jnp.zeros(SHAPE), 0.0, 1.0)
        joints = draw_joints(keys[1])
        part = jax.random.bernoulli(keys[2], 0.6, SHAPE)
        counts = jax.random.multinomial(keys[3], jnp.full(SHAPE, 60.0), game.transition)
        counted = offline_games.from_counts(
            counts * part[..., None], game.reward, game.initial, failure=1e-4
        )
        two = (believe(know(game, part)), believe(counted))
        estimates = jax.tree.map(lambda *x: jnp.stack(jnp.broadcast_arrays(*x)), *two)
        of_all = lambda estimate: jax.vmap(lambda x: offline_games.return_bounds(estimate, x))
        returns = of_all(truth)(joints)[0]
        low, high = jax.vmap(lambda estimate: of_all(estimate)(joints))(estimates)
        above, worse = [], []
        for correlated in KINDS.values():
            find = lambda estimate, kind=correlated: offline_games.select(estimate, joints, kind)
            gaps = find(truth)[1]
            chosen, bounds = jax.vmap(find)(estimates)
            above.append((gaps - bounds).max())
            worse.append((gaps[chosen] - bounds.min(1)).max())
        # Data of an equilibrium and of single players who leave it are enough.
        own, other = equilibrium.sum(-1), equilibrium.sum(-2)
        covered = know(game, (own[..., :, None] > 0) | (other[..., None, :] > 0))
        chosen = offline_games.select(believe(covered), joints)[0]  # of coarse equilibria
        return {
            "gaps above their bounds": jnp.maximum(jnp.stack(above).max(), 0),
            "returns outside of their intervals": jnp.maximum(
                jnp.maximum(low - returns, returns - high).max(), 0
            ),
            "gaps of chosen policies above the least bound": jnp.maximum(jnp.stack(worse).max(), 0),
            "gap with all single deviations covered": jnp.maximum(
                offline_games.gap_bound(truth, joints[chosen]), 0
            ),
        }

    return errors


def drop_radius(widen: Callable[..., Array]) -> Callable[..., Array]:
    """Take the middle of an interval for both of its ends."""
    return lambda values, radius, *rest: widen(values, jnp.zeros_like(radius), *rest)


CLAIM = Exact(
    paper=Paper(
        "Offline Learning in Markov Games with General Function Approximation",
        "Zhang, Bai and Jiang",
        2023,
        "2302.02571",
        "Bellman-consistent pessimism gives intervals of returns and bounds of gaps; the policy "
        "with the least bound is nearly a Nash, correlated or coarse correlated equilibrium, under "
        "coverage weaker than that of all unilateral deviations.",
    ),
    claim="In random Markov games of which data show a part, intervals contain the returns of all "
    "policies and bounds are above their gaps, for all three equilibria; the least bound holds for "
    "the chosen policy, and data of an equilibrium and its single deviations suffice to find one.",
    left_out="Function classes other than tables, rates in samples, policy classes that are not "
    "finite, and the paper's examples in which its coverage is weaker than unilateral coverage. "
    "Gaps are sums over players.",
    parts=("jaxrl/exact/offline_games.py", "jaxrl/exact/markov_games.py"),
    errors=errors_of(lambda estimate: estimate),
    planted={"the estimate believed as it is": errors_of(imagine)},
    tolerance=1e-9,
    effect=0.05,
    seeds=20,
    minutes=2.0,
    notes="Intervals from counts fail with probability 1e-4 a seed at most.",
    mutations=(Mutation("no intervals", "jaxrl.exact.offline_games:widen", drop_radius),),
)
