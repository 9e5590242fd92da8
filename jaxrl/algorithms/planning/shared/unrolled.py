"""Targets of a model that is unrolled along a sequence, as in MuZero."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.planning.shared.search import mover_reward
from jaxrl.core.types import Array, Transition, struct


@struct
class Targets:
    """Targets of each step, [K + 1, B]; step k is after k actions.

    Steps after a termination are absorbing: value and reward 0, no policy (as in the pseudocode
    that came with Schrittwieser et al., 2020). Steps after a truncation have no known targets,
    except for the value of the step at which the episode was cut off (ours).
    """

    policy: Array  # [K + 1, B, actions]; zeros where there is none
    value: Array
    reward: Array  # of the previous action
    known: Array  # bool: whether the targets are known
    over: Array  # bool: the episode has ended; actions from here on are arbitrary


def targets(
    transitions: Transition, policy: Array, next_value: Array, unroll: int, n: int, discount: Array
) -> Targets:
    """Compute the targets along `transitions` [K + n, B] (K = `unroll`).

    policy: [K + 1, B, actions], of the search at each observation.
    next_value: [K + n, B], of each `next_timestep`, for the player to move there.
    discount: negative if players alternate. (A reward is that of the player who moved.)
    """
    reward = mover_reward(transitions.timestep, transitions.reward)
    returns = losses.n_step_returns(
        reward, next_value, transitions.terminated, transitions.done, discount, n
    )
    ended = jnp.cumsum(transitions.done[:unroll], 0) > 0  # after each of the first K actions
    over = jnp.concatenate([jnp.zeros_like(ended[:1]), ended])
    before = lambda x: jnp.concatenate(
        [jnp.zeros_like(x[:1]), x[:unroll]]
    )  # of the previous action
    just = before(transitions.done) & ~jnp.concatenate([over[:1], over[:-1]])
    cut = jnp.cumsum(before(transitions.truncated & ~transitions.terminated) & just, 0) > 0
    bootstrap = jnp.where(before(transitions.terminated), 0.0, before(next_value))
    return Targets(
        policy=jnp.where(over[..., None], 0.0, policy),
        value=jnp.where(over, jnp.where(just, bootstrap, 0.0), returns[: unroll + 1]),
        reward=jnp.where(over & ~just, 0.0, before(reward)),
        known=~cut | just,
        over=over,
    )
