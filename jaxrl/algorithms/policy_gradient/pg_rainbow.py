"""PG-Rainbow (Jeon, Lee and Lee, 2024, "PG-Rainbow: using distributional reinforcement learning in
policy gradient methods", arXiv:2407.13146): PPO whose critic sees the distribution of returns. An
implicit quantile network learns off-policy beside it, and a small network f, the paper's
distillation, computes the value V(s) = f(V'(s) q(s)) from the critic's V' times the quantiles q;
PPO's value loss descends f and V', not q.

Only the paper's abstract and that formula could be confirmed. These choices are ours: q are the
quantiles of all actions at the midpoints of equal parts of [0, 1]; f has one hidden layer; the
quantile network learns from PPO's windows, in its own epochs before PPO's, without replaying older
ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    Sample,
    actor_critic_recipe,
    policy_network,
    report,
    sample_of,
    standardize,
)
from jaxrl.algorithms.value.shared.quantiles import (
    ADAM,
    implicit_quantile_loss,
    implicit_quantiles,
    midpoints,
)
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Transition
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import WIDE, Optimizer, Target
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


@group
class Config(ppo.Config):
    """Settings of PG-Rainbow: PPO's, and IQN's unless noted otherwise. The value that `record`
    stores is V'."""

    quantile_optimizer: Optimizer = ADAM
    target: Target = Target(rate=1.0, period=500)
    """Target network of the quantile network; `period` counts the latter's gradient steps."""
    num_cosines: int = static(64, low=1)
    """Number of cosines that embed a quantile fraction."""
    num_fractions: int = static(64, low=1)
    """Number of quantile fractions of the prediction in a gradient step."""
    num_target_fractions: int = static(64, low=1)
    """Number of quantile fractions of the target in a gradient step."""
    num_quantiles: int = static(32, low=1)
    """Number of quantiles of each action that the critic sees."""
    distillation: int = static(64, low=1, high=WIDE)
    """Width of the hidden layer of f, the network that combines value and quantiles; our choice."""
    huber: float = hyper(1.0, above=0)
    """Huber threshold of quantile errors (kappa); larger errors count linearly."""


class Distillation(nn.Module):
    """Network f, from features [..., D] to a value [...]."""

    width: int
    activation: str
    initializer: str

    @nn.compact
    def __call__(self, features: Array) -> Array:
        x = MLP((self.width,), self.activation, self.initializer)(features)
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]


def quantiles_of(q: Any, timestep: TimeStep, num_quantiles: int) -> Array:
    """Return the quantiles [..., A, N] of the actions at `timestep` [...] by `q`, with gradients
    stopped."""
    tau = jnp.broadcast_to(midpoints(num_quantiles), (*timestep.reward.shape, num_quantiles))
    return jax.lax.stop_gradient(q(timestep, tau))


def policy_and_value(net: Net, timestep: TimeStep, num_quantiles: int) -> tuple[Any, Array]:
    """Return the policy and f(V' q) [...] at `timestep` [...]."""
    policy, value, _ = net.actor_critic(timestep, ())
    quantiles = quantiles_of(net.q, timestep, num_quantiles).reshape(*value.shape, -1)
    return policy, net.distillation(value[..., None] * quantiles)


def recipe(env: Environment, config: Config) -> Recipe:
    count = config.num_quantiles

    @loss("actor_critic", "distillation", name="loss")
    def ppo_loss(net: Net, x: Sample) -> LossOutput:
        """Compute PPO's loss with the value f(V' q)."""
        return ppo.objective(net, x, *policy_and_value(net, x.timestep, count))

    @loss("q")
    def quantile_loss(net: Net, x: Transition) -> Array:
        """Compute IQN's loss; the target network selects and evaluates the next action."""
        following = quantiles_of(net.target.q, x.next_timestep, count).mean(-1)
        best = mask_illegal(following, x.next_timestep).argmax(-1)
        return implicit_quantile_loss(
            net,
            x,
            best,
            num_fractions=config.num_fractions,
            num_target_fractions=config.num_target_fractions,
        )

    def step(net: Net, minibatch: Minibatch) -> Net:
        if config.normalize_advantage:
            minibatch = standardize(minibatch)
        return net.descend(ppo_loss, minibatch)

    def quantile_step(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(quantile_loss, minibatch).update_targets("q")

    def update(net: Net, batch: Batch) -> Net:
        net, x = net.epochs(config.passes, batch, quantile_step), batch.transitions
        both = (x.timestep, x.next_timestep)
        value, following = (policy_and_value(net, t, count)[1] for t in both)
        sample = sample_of(net, batch, value, following)
        window = Minibatch(sample, batch.mask, batch.weight)
        limit = net.hyper.passes.target_kl
        return report(net, sample).epochs(config.passes, window, step, max_drift=limit)

    q = implicit_quantiles(
        env,
        config.torso,
        config.num_cosines,
        optimizer=config.quantile_optimizer,
        target=config.target,
    )
    width = env.action_space.n * count  # pyright: ignore[reportAttributeAccessIssue]
    f = Distillation(config.distillation, config.torso.activation, config.torso.initializer)
    distillation = Part(f, (jnp.zeros((1, width)),), config.optimizer)
    network = policy_network(env, config.torso, config.memory, config.heads)
    plain = actor_critic_recipe(
        env, network, config.optimizer, (ppo_loss, quantile_loss), update, config.record
    )
    return dataclasses.replace(plain, parts={**plain.parts, "q": q, "distillation": distillation})


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where PPO does, for actions that are not Discrete, and for memory."""
    check_discrete(env.action_space, name)
    if config.memory.recurrent:
        raise UserError(
            f"recurrent is {config.memory.recurrent}; the quantile network of {name} sees only the "
            "current observation, so it must be 0."
        )
    ppo.check(env, config, name)


pg_rainbow = AlgorithmBuilder("pg_rainbow", Config, recipe, check=check)

TINY = {name: value for name, value in ppo.TINY.items() if name != "recurrent"} | {
    "num_cosines": 3,
    "num_fractions": 4,
    "num_target_fractions": 3,
    "num_quantiles": 2,
    "distillation": 4,
    "period": 3,
}
