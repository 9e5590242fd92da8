"""TD3's target: the minimum of the critics' values at a smoothed action of the target policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.hooks import ActionPenalty
from jaxrl.core import spaces
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Transition
from jaxrl.kit import Net, group, hyper, static
from jaxrl.networks.heads import scale


@group
class Cautious:
    """Settings that TD3 adds to DDPG. The defaults are those of the authors' code and of the
    paper's section 6.1, which leaves out the discount factor."""

    num_critics: int = static(2, low=1)
    """Number of critics; the target uses their minimum."""
    delay: int = static(2, low=1)
    """Number of critic updates per update of the policy and of all target networks."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    target_noise: float = hyper(0.2, low=0)
    """Standard deviation of the noise on the target policy's actions, in half-widths."""
    target_noise_clip: float = hyper(0.5, low=0)
    """Largest magnitude of the noise on the target policy's actions, in half-widths."""
    exploration_noise: float = hyper(0.1, low=0)
    """Standard deviation of the noise on actions that are not greedy, in half-widths."""


def td3_target(
    net: Net, x: Transition, space: Space, reward: Array, penalty: ActionPenalty | None = None
) -> Array:
    """Compute r + gamma min_i Q'_i(s', a'), a' of the target policy with clipped noise, [B].

    space: bounded action space. reward: [B]. penalty: what is subtracted from the value of a'.
    Source: Fujimoto et al., 2018, algorithm 1.
    """
    h = net.hyper
    (low, high), half_width = spaces.bounds(space), scale(space)[1]  # type: ignore[arg-type]
    noise = half_width * h.target_noise * jax.random.normal(net.key(), x.action.shape)
    action = losses.smoothed_action(
        net.target.actor(x.next_timestep),
        noise,
        half_width * h.target_noise_clip,
        jnp.asarray(low),
        jnp.asarray(high),
    )
    next_q = net.target.critic(x.next_timestep, action)
    if penalty is not None:
        next_q = next_q - penalty(net, x, action)[..., None]
    return losses.td3_target(reward, x.terminated, h.discount, next_q)
