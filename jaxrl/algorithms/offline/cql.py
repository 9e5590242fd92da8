"""Conservative Q-learning (Kumar, Zhou, Tucker and Levine, 2020, "Conservative Q-learning for
offline reinforcement learning", arXiv:2006.04779): SAC on a dataset, whose critics' loss also
lowers a soft maximum of the values over all actions and raises the values of the data's actions.

This is CQL(H), with alpha log integral_a exp Q(s, a) - Q(s, a_data) for each critic (equation 4).
The integral is estimated from uniform actions, actions of the policy, and actions of the policy in
the next state, each over its density (appendix F). With `lagrange` a multiplier takes the place of
alpha and grows while the difference exceeds a threshold.

The estimate is a mean over samples; in published code it is a sum, which adds the logarithm of
their number to the difference and only shifts the threshold. As by default in that code (that of
Cal-QL, and CORL), targets have no entropy bonus. The authors' code also clones in its first steps.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import Quantity, scaled_reward
from jaxrl.algorithms.offline.shared import soft_offline
from jaxrl.core import spaces
from jaxrl.core.types import Array, Environment, Key
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, static
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks.scalars import Positive


@group
class Config(soft_offline.SoftOffline):
    """Settings of CQL: SAC on a dataset, whose critics are lowered where they are high and raised
    on the data (arXiv:2006.04779)."""

    torso: Torso = Torso(hidden=(256, 256, 256))
    actor: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of policy and temperature, separately; `optimizer` is that of the critics
    and of the multiplier. Adam, 1e-4 and 3e-4: published code of Cal-QL."""
    num_samples: int = static(10, low=1)
    """Number of actions of each of the three kinds in the estimate of the soft maximum."""
    next_samples: int = static(1, low=1)
    """Number of actions of the policy in the next state, of which the best one's value is
    bootstrapped from."""
    lagrange: bool = False
    """Learn the weight of the conservative term, so that it stays near `threshold`."""

    alpha: float = hyper(2.5, low=0)
    """Weight of the conservative term, without `lagrange`. Published code has 5 beside squared
    errors that are not halved, as they are here and in equation 4."""
    threshold: float = hyper(5.0, low=0)
    """Size of each critic's conservative term at which the multiplier neither grows nor falls, tau
    in the paper."""


class Shares(Protocol):
    """Shares of each transition in the two halves of the conservative term."""

    def __call__(self, net: Any, x: Any, /) -> tuple[Array, Array]:
        """Return by how much values of all actions are lowered at each transition, and by how much
        the value of its own action is raised, [B]; both have a mean of 1.

        net: the `Net`. x: transitions [B].
        """
        ...


def recipe(
    env: Environment, config: Any, *, bound: Quantity | None = None, shares: Shares | None = None
) -> Recipe:
    """Return CQL's recipe, or that of a variant.

    bound: of each transition; the values of the policy's actions that are lower count as if they
        were that, so that these are not lowered further. None for no bound.
    shares: of each transition in the conservative term; None for 1.
    """
    space, size = env.action_space, soft.action_size(env.action_space)
    sample = soft.sample_in_half_widths(space)
    low, high = spaces.bounds(space)  # type: ignore[arg-type]

    def draw(policy: Any, key: Key, count: int) -> tuple[Array, Array]:
        """Draw actions [count, B, *shape] and their log-probabilities [count, B]."""
        return jax.vmap(lambda key: sample(policy, key))(jax.random.split(key, count))

    def next_values(net, timestep):
        """Return the target networks' values [B, E] of the best of some actions, and 0 for its
        log-probability: there is no entropy bonus."""
        actions, _ = draw(net.actor(timestep), net.key(), config.next_samples)
        q = jax.vmap(lambda action: net.target.critic(timestep, action))(actions)
        best = q.min(-1).argmax(0)[None, :, None]
        return jnp.take_along_axis(q, best, 0)[0], jnp.zeros(q.shape[1])

    def conservative(net, x):
        """Compute log integral_a exp Q(s, a) - Q(s, a_data), summed over critics, times its
        weight."""
        count = config.num_samples
        unit = jax.random.uniform(net.key("uniform"), (count, *x.action.shape))
        here = draw(net.actor(x.timestep), net.key("here"), count)
        after = draw(net.actor(x.next_timestep), net.key("after"), count)
        values = jax.vmap(lambda action: net.critic(x.timestep, action))
        of_uniform = values(low + (high - low) * unit)
        of_policy = values(jnp.concatenate([here[0], after[0]]))
        if bound is not None:
            of_policy = jnp.maximum(of_policy, bound(net, x)[..., None])
        sampled = jnp.moveaxis(jnp.concatenate([of_uniform, of_policy]), 0, -1)
        density = jnp.full(of_uniform.shape[:2], -size * math.log(2.0))
        log_prob = jnp.moveaxis(jnp.concatenate([density, here[1], after[1]]), 0, -1)
        log_prob = jnp.broadcast_to(log_prob[:, None], sampled.shape)
        own = net.critic(x.timestep, x.action)
        gap = losses.cql_sampled(own, sampled, log_prob)
        if shares is not None:
            lowered, raised = (share[..., None] for share in shares(net, x))
            gap = lowered * (gap + own) - raised * own
        if not config.lagrange:
            return LossOutput(net.hyper.alpha * gap.sum(-1), {"gap": gap.mean(-1)})
        violation, multiplier = gap - net.hyper.threshold, net.multiplier()
        value = losses.lagrangian_penalty(violation, multiplier)
        value = (value + losses.lagrangian_dual(violation, multiplier)).sum(-1)
        return LossOutput(value, {"gap": gap.mean(-1), "multiplier": multiplier})

    multiplier = {"multiplier": Part(Positive(), (), config.optimizer)} if config.lagrange else {}
    plain = sac.recipe(
        env,
        config,
        reward=scaled_reward,
        next_values=next_values,
        critic_terms=(conservative,),
        critic_parts=multiplier,
    )
    slower = {
        name: dataclasses.replace(plain.parts[name], optimizer=config.actor)
        for name in ("actor", "temperature")
    }
    return dataclasses.replace(plain, parts={**plain.parts, **slower})


cql = AlgorithmBuilder("cql", Config, recipe, check=soft.check)

TINY = soft_offline.TINY | {
    "num_samples": 2,
    "next_samples": 2,
    "lagrange": True,
}
