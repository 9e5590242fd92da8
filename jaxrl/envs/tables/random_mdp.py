"""A random finite MDP (Garnet), drawn from a seed, or from a key inside a program.

Every state and action leads to `branching` different states, drawn without replacement, with the
probabilities given by uniform cuts of the unit interval; the expected reward of each state and
action is standard normal, observed with Gaussian noise of standard deviation `reward_noise` (0).
Observation: float32 [num_states], one-hot. Action: one of `num_actions`. Starts uniformly at
random, never terminates; time limit 100 steps (ours). The expert is optimal at a discount of 0.99.
`tasks.randomize(lambda key: draw(key, 20, 4, 3))` plays another MDP in every episode. Archibald,
McKinnon and Thomas (1995), "On the generation of Markov decision processes"; Bhatnagar, Sutton,
Ghavamzadeh and Lee (2009), "Natural actor-critic algorithms".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Key
from jaxrl.envs.tables import mdp, pictures


@functools.cache
def random_mdp(
    num_states: int = 20,
    num_actions: int = 4,
    branching: int = 3,
    seed: int = 0,
    reward_noise: float = 0.0,
    observation: str = "one_hot",
) -> Environment:
    """The Garnet MDP of `seed`, limited to 100 steps. Raises `UserError` as `garnet` does."""
    table = garnet(num_states, num_actions, branching, seed, reward_noise)
    return mdp.environment(
        "random_mdp", table, observation=observation, max_steps=100, render=pictures.ring
    )


def garnet(
    num_states: int, num_actions: int, branching: int, seed: int, reward_noise: float = 0.0
) -> mdp.Table:
    """Draw the table of one Garnet MDP: `params` for a `random_mdp` of the same sizes.

    Raises `UserError` unless 1 <= branching <= num_states and there are actions.
    """
    _check(num_states, num_actions, branching)
    rng = np.random.default_rng(seed)
    pairs = (num_states, num_actions)
    successor = rng.random((*pairs, num_states)).argsort(-1)[..., :branching]
    cuts = np.sort(rng.random((*pairs, branching - 1)))
    return mdp.build(
        successor,
        np.diff(cuts, prepend=0.0, append=1.0),
        rng.standard_normal(pairs)[..., None],
        start=np.arange(num_states),
        noise=reward_noise if reward_noise else None,
    )


def draw(key: Key, num_states: int, num_actions: int, branching: int) -> mdp.Table:
    """Draw a table as `garnet` does, but from a key and traceable: `params` for a `random_mdp` of
    the same sizes, without noise on the reward. Raises `UserError` as `garnet` does."""
    _check(num_states, num_actions, branching)
    pairs = (num_states, num_actions)
    keys = jax.random.split(key, 3)
    # Floyd's sampling without replacement, and exponential numbers for the cuts: no sorts.
    last = np.arange(num_states - branching, num_states)
    tries = (jax.random.uniform(keys[0], (*pairs, branching)) * (last + 1)).astype(jnp.int32)
    chosen = []
    for k, number in enumerate(last):
        taken = functools.reduce(jnp.logical_or, [tries[..., k] == x for x in chosen], False)
        chosen.append(jnp.where(taken, number, tries[..., k]).astype(jnp.int32))
    share = jax.random.exponential(keys[1], (*pairs, branching))
    reward = jax.random.normal(keys[2], (*pairs, 1))
    return mdp.solve(
        mdp.Table(
            successor=jnp.stack(chosen, -1),
            probability=share / jnp.sum(share, axis=-1, keepdims=True),
            reward=jnp.broadcast_to(reward, (*pairs, branching)),
            start=np.arange(num_states, dtype=np.int32),
            start_probability=np.full(num_states, 1 / num_states),
            terminal=np.zeros(num_states, bool),
            optimal=None,
        )
    )


def _check(num_states: int, num_actions: int, branching: int) -> None:
    if not 1 <= branching <= num_states or num_actions < 1:
        raise UserError(
            f"'random_mdp' has {num_states} states, {num_actions} actions and a branching of "
            f"{branching}; it needs an action, and a branching from 1 to the number of states."
        )
