"""SMERL's reward exactly, over all pairs of solutions of a small problem, in float64.

A solution is a set of states that it visits once each, at a cost of 1 and a little more. Two skills
follow one solution each; the discriminator is the best one, which knows how often each skill visits
a state. What changes an environment is a state that can no longer be entered.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

STATES, SOLUTIONS = 40, 14
SHORTEST, LONGEST = 6, 15  # states of a solution
MORE = 0.4  # largest cost beyond that of the states
TOLERANCE, WEIGHT = 0.5, 3.0  # epsilon and alpha
FAILURE = -100.0  # return of a solution with a state that cannot be entered
Reward = Callable[[Array, Array, Array, Array], Array]  # (reward, diversity, return, best return)


def draw(key: Key) -> tuple[Array, Array]:
    """Draw the states of solutions, bool [M, S], and their returns [M]. The first two have no state
    in common and are about as short as a solution can be; others may be, and may share states."""
    length_key, order_key, more_key = jax.random.split(key, 3)
    length = jax.random.randint(length_key, (SOLUTIONS,), SHORTEST, LONGEST + 1)
    length = length.at[:2].set(SHORTEST)
    orders = jax.vmap(lambda k: jax.random.permutation(k, STATES))(
        jax.random.split(order_key, SOLUTIONS)
    )
    orders = orders.at[1].set((orders[0] + SHORTEST) % STATES)
    visited = orders < length[:, None]
    return visited, -length - jax.random.uniform(more_key, (SOLUTIONS,), float, 0.0, MORE)


def smerl_reward(reward: Array, diversity: Array, episode_return: Array, best: Array) -> Array:
    """Return SMERL's reward."""
    return losses.gated_diversity(reward, diversity, episode_return, best, TOLERANCE, WEIGHT)


def value_of(visited: Array, returns: Array, best: Array, reward: Reward) -> Array:
    """Return what two skills earn together. visited: bool [2, S]; returns: [2], without diversity;
    best: the best return."""
    logits = jnp.where(visited.T, 0.0, -1e3)  # [S, 2], of the best discriminator
    skill = jnp.arange(2)[:, None]
    diversity = losses.skill_reward(
        jnp.broadcast_to(logits, (2, STATES, 2)),
        jnp.broadcast_to(skill, (2, STATES)),
        jnp.zeros(2, logits.dtype),
    )
    step = (returns / visited.sum(1))[:, None]  # all steps of a solution cost alike
    each = jnp.broadcast_to(step, (2, STATES)), diversity
    earned = reward(*each, jnp.broadcast_to(returns[:, None], (2, STATES)), best)
    return jnp.where(visited, earned, 0).sum()


def errors_of(key: Key, reward: Reward) -> dict[str, Array]:
    """Return two errors of the pair of skills that earns most.

    "here": how far the worse skill is beyond the tolerance. "changed": the same of the better one,
    where the worst single state cannot be entered.
    """
    visited, returns = draw(key)
    best, number = returns.max(), jnp.arange(SOLUTIONS)
    first, second = (x.reshape(-1) for x in jnp.meshgrid(number, number))
    value = jax.vmap(lambda i, j: value_of(visited[jnp.stack([i, j])], returns[jnp.stack([i, j])],
                                           best, reward))(first, second)  # fmt: skip
    chosen = value.argmax()
    pair = jnp.stack([first[chosen], second[chosen]])
    bound = best - TOLERANCE
    left = jnp.where(visited[pair], FAILURE, returns[pair][:, None])  # [2, S], by blocked state
    return {
        "here": jnp.maximum(bound - returns[pair].min(), 0),
        "changed": jnp.maximum(bound - left.max(0).min(), 0),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the skills that SMERL's reward prefers."""
    return errors_of(key, smerl_reward)


def plant(reward: Reward) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of the skills that another reward prefers."""
    return jax.jit(lambda key: errors_of(key, reward))


CLAIM = Exact(
    paper=Paper(
        "One Solution is Not All You Need: Few-Shot Extrapolation via Structured MaxEnt RL",
        "Kumar, Kumar, Levine and Finn",
        2020,
        "2010.14484",
        "Skills that are diverse where they are near-optimal, learned in one environment, contain "
        "one that works where that environment has changed.",
    ),
    claim="Where there are two near-optimal solutions without a common state, the two skills that "
    "SMERL's reward prefers are near-optimal, and one of them stays so whichever state is blocked; "
    "without the gate, or without diversity, this is not so.",
    left_out="Learning, networks, discriminators that are not the best ones, changes of dynamics "
    "other than blocked states, and the paper's benchmarks.",
    parts=("jaxrl/losses/exploration/diversity.py",),
    errors=errors,
    planted={
        "diversity is paid for in all episodes": plant(
            lambda reward, diversity, episode_return, best: reward + WEIGHT * diversity
        ),
        "diversity is not paid for": plant(lambda reward, diversity, episode_return, best: reward),
        "diversity is paid for where the return is not near the best": plant(
            lambda reward, diversity, episode_return, best: jnp.where(
                episode_return >= best - TOLERANCE, reward, reward + WEIGHT * diversity
            )
        ),
    },
    tolerance=1e-9,
    effect=0.1,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "the tolerance is subtracted from the return and not from the best one",
            "jaxrl.losses:gated_diversity",
            lambda plain: (
                lambda reward, diversity, episode_return, best, tolerance, weight: plain(
                    reward, diversity, episode_return - 10 * tolerance, best, tolerance, weight
                )
            ),
        ),
    ),
)
