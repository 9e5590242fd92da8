"""Maximum a posteriori policy optimization (Abdolmaleki et al., 2018, arXiv:1806.06920).

E-step: at each state, sampled actions of the policy are weighted by exp(Q / temperature), as far
from equal weights as a bound allows. M-step: the policy maximizes their weighted likelihood, with
separate bounds on how far its mean and its deviation move (Abdolmaleki et al., 2018b, "Relative
entropy regularized policy iteration", arXiv:1812.02256). The temperature and both Lagrange
multipliers descend their duals in the same step. Q regresses on Retrace returns of replayed
windows.

As in DeepMind's code (Acme), the covariance is diagonal (full in the first paper), multipliers are
softpluses of learned numbers, and Q sees actions clipped to their bounds. Unlike here, Acme bounds
the divergence of each dimension of an action, not their sum as the papers do; it penalizes actions
out of bounds, acts by the target policy, and its Q is a mixture of Gaussians that learns five-step
returns, with Retrace as an option.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.bounds import lagrangian
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import sample_with_log_prob
from jaxrl.kit.groups import Optimizer, Replay, Target, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import check_bounded, gaussian
from jaxrl.networks.scalars import Softplus


@group
class Config:
    """Settings of MPO: weighted maximum likelihood with bounds on the policy's change
    (arXiv:1806.06920, arXiv:1812.02256). Unless noted, the defaults are Acme's."""

    replay: Replay = Replay(num_envs=1, num_steps=8, updates=1, batch_size=32, capacity=1_000_000)
    """Replay buffer; `batch_size` counts windows. A batch has 256 steps: 32 for each environment
    step taken."""
    torso: Torso = Torso(hidden=(256, 256), activation="elu")
    """Hidden layers of policy and critic, each. ELU as in Acme, whose networks are larger and have
    layer normalization."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, max_grad_norm=40.0)
    """Optimizer settings of policy and critic. Adam, 1e-4, norms up to 40."""
    dual: Optimizer = Optimizer(learning_rate=1e-2, max_grad_norm=40.0)
    """Optimizer settings of temperature and multipliers. Adam, 1e-2, norms up to 40."""
    target: Target = Target(rate=1.0, period=100)
    """Target networks of policy and critic, which the E-step and Retrace use."""
    unroll: int = static(8, low=1)
    """Steps of a window, over which Retrace corrects. (Our choice.)"""
    samples: int = static(20, low=1)
    """Number of actions sampled at each state."""
    temperature: float = static(10.0, above=0)
    """Initial temperature of the E-step; it is learned."""
    mean_multiplier: float = static(10.0, above=0)
    """Initial Lagrange multiplier of the bound on the mean; it is learned."""
    deviation_multiplier: float = static(1000.0, above=0)
    """Initial Lagrange multiplier of the bound on the deviation; it is learned."""

    bound: float = hyper(0.1, above=0)
    """Bound on the divergence of the E-step's weights from equal ones (epsilon). 0.1: also table 2
    of the first paper."""
    mean_bound: float = hyper(0.0025, above=0)
    """Bound on the divergence due to the change of the policy's mean."""
    deviation_bound: float = hyper(1e-6, above=0)
    """Bound on the divergence due to the change of the policy's deviation."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    retrace_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of Retrace. 1: the paper's equation 13; Acme has 0.95."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, timestep, torso = env.action_space, example_timestep(env), config.torso

    def value_of(critic, timestep: TimeStep, action: Array) -> Array:
        return critic(timestep, spaces.clip(space, action))[..., 0]

    def sample_actions(net: Net, timestep: TimeStep) -> tuple[Array, Array]:
        """Sample actions of the target policy at time steps [...], with their values by the target
        critic: [samples, ..., *shape] and [samples, ...]."""
        policy = net.target.actor(timestep)
        action = policy.sample(seed=net.key("actions"), sample_shape=config.samples)
        value = jax.vmap(lambda action: value_of(net.target.critic, timestep, action))(action)
        return jax.lax.stop_gradient((action, value))

    @loss("critic")
    def critic_loss(net: Net, x: Transition):
        """Regress Q on Retrace returns of the target policy (equation 13)."""
        log_prob = net.target.actor(x.timestep).log_prob(x.action)
        returns = losses.retrace_returns(
            losses.importance_ratio(log_prob, x.extras["log_prob"]),
            x.reward,
            value_of(net.target.critic, x.timestep, x.action),
            sample_actions(net, x.next_timestep)[1].mean(0),
            x.terminated,
            x.done,
            net.hyper.discount,
            net.hyper.retrace_lambda,
        )
        q = value_of(net.critic, x.timestep, x.action)
        return LossOutput(losses.squared_error(q, returns), {"value": q})

    def policy_loss(net: Net, x: Transition):
        """Compute the temperature's loss (equation 9 of the first paper), the weighted likelihood
        of actions separately for mean and deviation, and the Lagrangian of their bounds (section
        4.2 of the second)."""
        h, temperature = net.hyper, net.temperature()
        action, value = sample_actions(net, x.timestep)
        flat, q = action.reshape(*value.shape, -1), jnp.moveaxis(value, 0, -1)
        old, new = gaussian(net.target.actor(x.timestep)), gaussian(net.actor(x.timestep))
        (old_mean, old_deviation), (mean, deviation) = old, new  # type: ignore[misc]

        def likelihood_loss(mean, deviation):
            log_prob = losses.gaussian_log_prob(flat, mean, deviation)
            return losses.mpo(jnp.moveaxis(log_prob, 0, -1), q, temperature)

        moved, changed = losses.decoupled_gaussian_kl(mean, deviation, old_mean, old_deviation)
        total = losses.mpo_temperature(q, temperature, h.bound)
        total = total + likelihood_loss(mean, old_deviation) + likelihood_loss(old_mean, deviation)
        penalty, metrics = lagrangian(net, {"mean": moved, "deviation": changed})
        return LossOutput(total + penalty, metrics | {"temperature": temperature})

    sizes = env.observation_space, space, torso.hidden
    more = torso.activation, torso.initializer
    actor = Actor(*sizes, *more, bounded_mean=False, deviation="of_state")
    multipliers = {
        "temperature": Part(Softplus(config.temperature), (), config.dual),
        "mean_multiplier": Part(Softplus(config.mean_multiplier), (), config.dual),
        "deviation_multiplier": Part(Softplus(config.deviation_multiplier), (), config.dual),
    }
    inputs = timestep, spaces.example(space)[None]
    return Recipe(
        parts={
            "actor": Part(actor, (timestep,), config.optimizer, config.target),
            "critic": Part(ActionValues(*sizes, 1, *more), inputs, config.optimizer, config.target),
            **multipliers,
        },
        act=sample_with_log_prob("actor"),
        losses=(critic_loss, Loss(policy_loss, ("actor", *multipliers), "policy_loss")),
        needs=("transitions.extras.log_prob",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box."""
    check_bounded(env.action_space, name)


mpo = AlgorithmBuilder(
    "mpo",
    Config,
    recipe,
    source=lambda env, config: config.replay.source(env, config.unroll),
    check=check,
)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "num_steps": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 8,
    "unroll": 2,
    "samples": 3,
    "hidden": (8,),
    "period": 2,
}
