"""The objective of inverse soft Q-learning, for a step of an expert and one of the policy."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.imitation.shared.adversarial import Beside
from jaxrl.core.types import Array, TimeStep, Transition
from jaxrl.kit import LossOutput

Values = Callable[[TimeStep], tuple[Array, Array]]
"""A function of time steps [...]: action values Q [..., A], and the soft value V [...]."""


def inverse_objective(
    values: Values,
    x: Beside,
    action: Callable[[Transition], Array],
    discount: Array | float,
    alpha: Array | float,
) -> LossOutput:
    """Compute IQ-Learn's objective of steps beside each other; its mean is `losses.iq_learn` of all
    steps.

    action: returns the actions [...] of transitions whose values are learned.
    discount, alpha: as for `losses.iq_learn`.
    """

    def terms(x: Transition) -> tuple[Array, Array]:
        """Return the rewards that Q implies, and V(s) - discount V(s')."""
        q, value = values(x.timestep)
        _, following = values(x.next_timestep)
        gain = lambda v: losses.inverse_bellman_reward(v, following, x.terminated, discount)
        return gain(losses.at_action(q, action(x))), gain(value)

    (shown, at_shown), (played, at_played) = terms(x.shown), terms(x.played)
    cost = (at_shown + at_played) / 2
    cost += (jnp.square(shown) + jnp.square(played)) / (8 * alpha)
    return LossOutput(cost - shown, {"expert_reward": shown, "policy_reward": played})
