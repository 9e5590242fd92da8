"""Policy gradients with Polyak's step size (Li et al., 2024, "Enhancing policy gradient with the
Polyak step-size adaption", arXiv:2404.07525).

Each step along GPOMDP's gradient is as long as a linear return would need to reach the best one,
V*: its size is min((V* - V) / (c |g|^2), longest), with V and g estimated from the same episodes.
An entropy bonus keeps the gradient from vanishing, and the step from exploding, as the policy
becomes deterministic.

The paper estimates an unknown V* by twin models. Only its abstract and summaries of it could be
read, and they do not say how, so here V* is a setting: many environments have a known best return,
or a known bound on it. The form of the entropy bonus and the defaults are ours.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxrl import gradients, losses
from jaxrl.algorithms.policy_gradient.shared.episodes import leave_one_out
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Tree
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper
from jaxrl.kit.acting import sample_with_log_prob
from jaxrl.kit.groups import Episodes, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of policy gradients with Polyak's step size."""

    episodes: Episodes = Episodes(num_envs=16)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    best_return: float = hyper(100.0)
    """Discounted return of the best policy (V*), or an upper bound on it. 100 is that of a reward
    of 1 at each step, forever, discounted by 0.99."""
    scale: float = hyper(1.0, above=0)
    """Divisor of the step size (c); the smaller, the longer the steps."""
    longest: float = hyper(0.1, above=0)
    """Largest step size (gamma_b). At 1, a policy that is deterministic and bad may never move
    again."""
    entropy_weight: float = hyper(0.1, low=0, log=True)
    """Weight of the entropy of each step's policy, discounted as rewards are."""
    baseline: bool = True
    """Subtract from each return the mean return of the other episodes still running at that time
    step."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""


def objective(net: Net, params: Tree, batch: Batch, advantage: Array) -> Array:
    """Return a scalar whose gradient is GPOMDP's (Baxter and Bartlett, 2001) of the mean discounted
    return, plus an entropy bonus.

    advantage: [T, B], of each step's action, from the rewards that follow it.
    """
    x, mask = batch.transitions, batch.mask
    assert mask is not None
    policy = net.with_params(actor=params).actor(x.timestep)
    terms = advantage * policy.log_prob(x.action) + net.hyper.entropy_weight * policy.entropy()
    discounts = net.hyper.discount ** jnp.arange(len(x.reward))[:, None]
    return jnp.where(mask, discounts * terms, 0.0).sum(0).mean()


def estimates(net: Net, batch: Batch, baseline: bool) -> tuple[Array, Tree]:
    """Estimate the policy's discounted return, a scalar, and its gradient, shaped like the
    parameters. `baseline` is as in `Config`."""
    x, mask = batch.transitions, batch.mask
    assert mask is not None
    reward = jnp.where(mask, x.reward, 0.0)
    nothing = jnp.zeros_like(reward[0])
    returns = losses.discounted_returns(reward, x.done, nothing, net.hyper.discount)
    advantage = leave_one_out(returns, mask) if baseline else returns
    params = net.parts["actor"].params
    return returns[0].mean(), jax.grad(lambda p: objective(net, p, batch, advantage))(params)


def recipe(env: Environment, config: Config) -> Recipe:
    torso = config.torso
    sizes = torso.hidden, torso.activation, torso.initializer
    actor = Actor(env.observation_space, env.action_space, *sizes, bounded_mean=False)

    def update(net: Net, batch: Batch) -> Net:
        h, params = net.hyper, net.parts["actor"].params
        value, gradient = estimates(net, batch, config.baseline)
        norm = optax.tree.norm(gradient)
        step = gradients.polyak_step_size(value, h.best_return, norm**2, h.longest, h.scale)
        new = jax.tree.map(lambda p, g: p + step * g, params, gradient)
        return net.with_params(actor=new).report(step_size=step, value=value, actor_grad_norm=norm)

    return Recipe(
        parts={"actor": Part(actor, (example_timestep(env),))},
        act=sample_with_log_prob("actor"),
        losses=(),
        update=update,
        needs=("mask",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, and for several rewards."""
    check_action_space(env.action_space, name)
    example_timestep(env)


polyak_pg = AlgorithmBuilder("polyak_pg", Config, recipe, check=check)

TINY = {"env": "pendulum", "num_envs": 4, "num_shards": 4, "hidden": (8,)}
