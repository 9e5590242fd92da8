"""A population within one conditional policy: its interaction graph, and who plays next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, Policy, Tasks, Transition, Tree, struct

OUTCOME = "outcome"  # metric of the environment: the agent's payoff in the game


@struct
class Pair:
    """Id of a task: the row that plays, and the earlier row that it plays against."""

    row: Array
    """The row that learns: int32."""
    opponent: Array
    """The row before it that is the opponent: int32."""


@struct
class Answer:
    """Id of a task: an opponent, and the mixture that is answered."""

    row: Array
    """The row that learns; the number of rows where no row has this mixture: int32."""
    opponent: Array
    """The row that is the opponent: int32."""
    sigma: Array
    """The mixture over rows that the learner is conditioned on: float32 [N]."""


@struct
class Population:
    """State of a population of N rows."""

    shared: Tree
    """Parameters that all rows play by, in one copy."""
    total: Array
    """Sum of the outcomes of games of row i against row j < i, the recent ones counting most:
    float32 [N, N]."""
    games: Array
    """Number of these games, counted alike: float32 [N, N]."""
    graph: Array
    """Interaction graph: row i is trained to answer the mixture graph[i] of the rows before it.
    float32 [N, N]."""


def payoff(population: Population) -> Array:
    """Return the mean payoff of row i against row j, [N, N]: antisymmetric, and 0 for a row against
    itself and for rows that have not met."""
    mean = jnp.tril(population.total / jnp.maximum(population.games, 1e-6), -1)
    return mean - mean.T


class PairParams(Protocol):
    def __call__(self, shared: Tree, goal: Array, opponent_goal: Array, /) -> Tree:
        """Return the environment parameters of an episode between two rows.

        shared: parameters that all rows play by.
        goal: float32 [N], the mixture that the row is conditioned on.
        opponent_goal: float32 [N], the mixture that its opponent is conditioned on.
        """
        ...


class Solve(Protocol):
    def __call__(self, payoff: Array, mask: Array, /) -> Array:
        """Return the mixture [N] over the rows in the mask that the next row is to answer.

        payoff: float32 [N, N], mean payoffs between rows.
        mask: bool [N], the rows that may have a share.
        """
        ...


def population(
    params: PairParams,
    snapshot: Callable[[Tree], Tree],
    solve: Solve,
    rows: int,
    exploration: float = 0.1,
    memory: float = 0.98,
    simplex: float = 0.0,
) -> Tasks:
    """Play by the interaction graph of a neural population (Liu et al., 2022, "NeuPL").

    Row i is the shared policy conditioned on graph[i], and learns to answer that mixture of the
    rows before it. Row 0 answers nobody and never plays to learn. After each window the payoffs
    between rows are estimated from the games, and `solve` computes the graph anew.

    params: makes the environment parameters of an episode.
    snapshot: the parameters that opponents play by, from the state of the policy; taken anew after
        each window.
    solve: computes a row of the graph.
    rows: number of rows N.
    exploration: share of opponents that are drawn uniformly from the rows before, so that every
        payoff is known. The mixture that a row answers is a little wider for it.
    memory: factor by which games count less with each window.
    simplex: share of the games in which the learner is conditioned on a mixture of all rows, drawn
        uniformly from the simplex, and meets one row of it (Liu et al., 2022, "Simplex neural
        population learning"). They say nothing about payoffs between rows.

    The id of a task is a `Pair`, or with `simplex` an `Answer`. Raises `UserError` for fewer than
    two rows.
    """
    if rows < 2:
        raise UserError(f"A population needs at least 2 rows, got {rows}.")
    before = np.tril(np.ones((rows, rows), bool), -1)

    def graph(payoffs):
        solved = jax.vmap(solve, (None, 0))(payoffs, jnp.asarray(before))
        return jnp.where(before, solved, 0.0)

    def init(key, policy, hyper):
        nothing = jnp.zeros((rows, rows), jnp.float32)
        shared = jax.tree.map(jnp.asarray, snapshot(policy.state))
        return Population(shared, nothing, nothing, graph(nothing))

    def sample(state, key, n):
        row_key, opponent_key = jax.random.split(key)
        row = jax.random.randint(row_key, (n,), 1, rows, jnp.int32)
        evenly = before / np.maximum(before.sum(1, keepdims=True), 1)
        mixed = (1 - exploration) * state.graph + exploration * evenly
        opponent = jax.random.categorical(opponent_key, jnp.log(mixed[row]))
        pair = Pair(row, opponent.astype(jnp.int32))
        return pair if not simplex else widen(state, pair, jax.random.fold_in(key, 1))

    def widen(state: Population, pair: Pair, key: Key) -> Answer:
        """Replace part of the pairs by an answer to any mixture."""
        share_key, sigma_key, opponent_key = jax.random.split(key, 3)
        n = len(pair.row)
        any_mixture = jax.random.bernoulli(share_key, simplex, (n,))
        sigma = jax.random.dirichlet(sigma_key, jnp.ones(rows), (n,))
        drawn = jax.random.categorical(opponent_key, jnp.log(sigma)).astype(jnp.int32)
        return Answer(
            jnp.where(any_mixture, rows, pair.row),
            jnp.where(any_mixture, drawn, pair.opponent),
            jnp.where(any_mixture[:, None], sigma, state.graph[pair.row]),
        )

    def update(state: Population, policy: Policy, transitions: Transition) -> Population:
        pair: Any = transitions.task
        metrics: Any = transitions.next_timestep.metrics
        ended = transitions.done.astype(jnp.float32)
        # Where no row plays, the place is beyond all pairs and is dropped.
        place = (pair.row * rows + pair.opponent).reshape(-1)
        add = lambda x: jax.ops.segment_sum(x.reshape(-1), place, rows * rows).reshape(rows, rows)
        total = memory * state.total + add(ended * metrics[OUTCOME])
        games = memory * state.games + add(ended)
        following = Population(snapshot(policy.state), total, games, state.graph)
        return Population(following.shared, total, games, graph(payoff(following)))

    def params_of_task(state: Population, task: Any) -> Tree:
        sigma = task.sigma if simplex else state.graph[task.row]
        return params(state.shared, sigma, state.graph[task.opponent])

    return Tasks(f"population({rows})", init, sample, params=params_of_task, update=update)
