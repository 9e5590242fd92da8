"""REINFORCE (Williams, 1992, "Simple statistical gradient-following algorithms for connectionist
reinforcement learning"): the policy gradient from complete episodes, without a critic."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.episodes import episode_recipe, leave_one_out
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper
from jaxrl.kit.groups import Episodes, Normalization, Optimizer, Torso
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of REINFORCE."""

    episodes: Episodes = Episodes(num_envs=16)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer("sgd", learning_rate=1e-2)
    """Plain gradient steps, as in the definition of REINFORCE (section 4), which leaves their size
    open."""
    normalization: Normalization = Normalization()
    baseline: bool = True
    """Subtract from each return the mean return of the other episodes still running at that time
    step. It does not depend on the action, so the gradient stays unbiased."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""


def recipe(env: Environment, config: Config) -> Recipe:
    def returns_minus_baseline(net, batch):
        x = batch.transitions
        reward = jnp.where(batch.mask, x.reward, 0.0)
        nothing = jnp.zeros_like(reward[0])
        returns = losses.discounted_returns(reward, x.done, nothing, net.hyper.discount)
        return net, leave_one_out(returns, batch.mask) if config.baseline else returns

    return episode_recipe(env, config.torso, config.optimizer, returns_minus_baseline)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, and for several rewards."""
    check_action_space(env.action_space, name)
    example_timestep(env)


reinforce = AlgorithmBuilder("reinforce", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "hidden": (8,),
    "normalization.observation": True,
}
