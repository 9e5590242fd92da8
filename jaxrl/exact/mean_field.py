"""Stationary mean-field games in tables: populations, values, exploitability, policy mirror ascent.

A player among infinitely many like itself moves through `S` states by `A` actions; rewards and
moves depend on the population, the distribution [S] of all players' states. Policies are [S, A].
An equilibrium is a policy that is optimal in the population that it leads to.

Values are discounted, and `temperature` times the entropy of the policy at each step is added to
rewards; action values Q contain the entropies of later steps alone. Source: Yardim, Cayci, Geist
and He, 2023, "Policy mirror ascent for efficient and independent learning in mean field games",
arXiv:2212.14449. (Its abstract could be read; the regularizer here is the entropy and the distance
of a step the KL divergence.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl import solvers
from jaxrl.core import precise
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key
from jaxrl.exact import dynamic_programming


@dataclasses.dataclass(frozen=True, eq=False)
class MeanFieldGame:
    """A game of a player with a population.

    transition: population [S] -> probability of each successor, [S, A, S].
    reward: population [S] -> reward [S, A].
    discount: below 1.
    """

    transition: Callable[[Array], Array]
    reward: Callable[[Array], Array]
    discount: float


def beach_bar(
    size: int = 8,
    aversion: float = 1.0,
    slip: float = 0.2,
    jam: float = 0.5,
    discount: float = 0.9,
) -> MeanFieldGame:
    """Build a ring of `size` places with a bar at the first: players go left, stay or go right.

    Reward: the nearness of the bar, from 0 to 1, minus `aversion` times the share of the population
    at one's own place. A move ends one place to either side with probability `slip`, and with
    probability `jam` times that share it does not happen. Modeled on the beach bar of Perrin et al.
    (2020), "Fictitious play for mean field games: continuous time analysis and applications".

    Raises `UserError` for fewer than 3 places.
    """
    if size < 3:
        raise UserError(f"The ring has {size} places; it must have at least 3.")
    place = jnp.arange(size)
    near = 1 - jnp.minimum(place, size - place) / (size // 2)
    one_hot = lambda x: jax.nn.one_hot(x % size, size, dtype=float)
    goal = place[:, None] + jnp.array([-1, 0, 1])
    moves = (1 - slip) * one_hot(goal) + slip / 2 * (one_hot(goal - 1) + one_hot(goal + 1))
    stays = one_hot(place)[:, None]

    def transition(population: Array) -> Array:
        stuck = (jam * population)[:, None, None]
        return (1 - stuck) * moves + stuck * stays

    def reward(population: Array) -> Array:
        return jnp.broadcast_to((near - aversion * population)[:, None], (size, 3))

    return MeanFieldGame(transition, reward, discount)


def move_population(game: MeanFieldGame, population: Array, policy: Array) -> Array:
    """Return the population [S] a step later, if all follow `policy` [S, A]."""
    flow = population[:, None] * policy
    return precise.einsum("sa,sat->t", flow, game.transition(population))


def stationary_population(game: MeanFieldGame, policy: Array, steps: int = 500) -> Array:
    """Return the population [S] after many steps of `policy` [S, A] from an even one."""
    states = len(policy)
    begin = jnp.full(states, 1 / states, policy.dtype)
    return jax.lax.fori_loop(0, steps, lambda _, x: move_population(game, x, policy), begin)


def action_values(
    game: MeanFieldGame, policy: Array, population: Array, temperature: Array | float
) -> Array:
    """Return Q [S, A] of a player with `policy` in a population that stays as it is."""
    transition, reward = game.transition(population), game.reward(population)
    values = dynamic_programming.policy_evaluation(
        transition, reward, policy, game.discount, temperature=temperature
    )
    return dynamic_programming.action_values(transition, reward, values, game.discount)


def exploitability(game: MeanFieldGame, policy: Array, temperature: Array | float = 0.0) -> Array:
    """Return how much a player gains by its best response to the population of `policy`, on average
    over where the population is.

    temperature: above 0, entropy counts for both (the regularized game), and must be a float.
    """
    population = stationary_population(game, policy)
    transition, reward = game.transition(population), game.reward(population)
    arguments = transition, reward
    if isinstance(temperature, float | int) and temperature == 0:
        best = dynamic_programming.policy_iteration(*arguments, game.discount)[0]
    else:
        precision = 16 * float(jnp.finfo(reward.dtype).eps)
        best = dynamic_programming.soft_value_iteration(
            *arguments, game.discount, temperature, tolerance=precision
        )[0]
    own = dynamic_programming.policy_evaluation(
        *arguments, policy, game.discount, temperature=temperature
    )
    return precise.matmul(population, best - own)


def mirror_ascent(
    game: MeanFieldGame,
    policy: Array,
    step_size: Array | float,
    temperature: Array | float,
) -> Array:
    """Return the policy [S, A] after a step of policy mirror ascent in its own population.

    argmax_u <u, Q> + temperature H(u) - KL(u || policy) / step_size, in each state. An equilibrium
    of the regularized game is its fixed point.
    """
    q = action_values(game, policy, stationary_population(game, policy), temperature)
    return improve(policy, q, step_size, temperature)


def improve(policy: Array, q: Array, step_size: Array | float, temperature: Array | float) -> Array:
    """Return that policy from action values q [S, A], known or estimated."""
    return jnp.exp(solvers.mirror_descent(jnp.log(policy), q, step_size, temperature))


def estimate_values(
    key: Key,
    game: MeanFieldGame,
    policy: Array,
    places: Array,
    q: Array,
    *,
    steps: int,
    wait: int,
    rate: Array | float,
    temperature: Array | float,
) -> tuple[Array, Array]:
    """Estimate Q [S, A] by temporal differences along one path of N players who all follow
    `policy`.

    places: int [N], their states at first. q: [S, A], the first estimate.
    steps: updates, with the step size rate / (1 + number / 10). wait: steps of the path from one
        update to the next, so that what is learned from is nearly independent (conditional
        temporal differences).

    Rewards and moves are those of the players' own distribution: no other population can be asked
    for. One estimate is shared, and an update is the mean of all players' (in the paper's
    centralized variant one of them learns).

    Returns the estimate and the states after the last step.
    """
    states, number = len(policy), len(places)
    entropy = -(policy * jnp.log(policy)).sum(1)

    def advance(places: Array, key: Key) -> tuple[Array, tuple[Array, Array, Array]]:
        act_key, move_key = jax.random.split(key)
        population = jnp.bincount(places, length=states) / number
        action = jax.random.categorical(act_key, jnp.log(policy)[places])
        reward = game.reward(population)[places, action]
        chance = game.transition(population)[places, action]
        after = jax.random.categorical(move_key, jnp.log(chance))
        return after, (places, action, reward)

    def update(carry: tuple[Array, Array], inputs: tuple[Key, Array]) -> tuple[tuple, None]:
        places, q = carry
        key, count = inputs
        places, seen = jax.lax.scan(advance, places, jax.random.split(key, wait))
        state, action, reward = (x[-1] for x in seen)
        value = (policy * q).sum(1) + temperature * entropy
        error = reward + game.discount * value[places] - q[state, action]
        index = state * q.shape[1] + action
        total = jnp.zeros(q.size).at[index].add(error)
        visits = jnp.zeros(q.size).at[index].add(1.0)
        mean = (total / jnp.maximum(visits, 1)).reshape(q.shape)
        return (places, q + rate / (1 + count / 10) * mean), None

    inputs = jax.random.split(key, steps), jnp.arange(steps)
    (places, q), _ = jax.lax.scan(update, (places, q), inputs)
    return q, places
