"""REINFORCE (Williams, 1992): the policy gradient from complete episodes, without a critic."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import losses
from jaxrl.agents.policy_gradient.ppo import State
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, hyper, hypers, select, static
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info
from jaxrl.kit.normalization import normalize_observation
from jaxrl.kit.optimisation import TRANSFORMS, descend, transform
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.initialisers import INITIALISERS
from jaxrl.networks.torsos import ACTIVATIONS
from jaxrl.sources.episodes import episodes


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of REINFORCE."""

    num_envs: int = static(16, low=1, high=MANY)
    """Episodes in one update."""
    baseline: bool = True
    """Subtract from each return the mean return, at that time step, of the other episodes that
    still run: it does not depend on the action, so the gradient stays unbiased."""

    hidden: tuple[int, ...] = static((64, 64), low=1, high=WIDE, least_length=1)
    """Widths of the policy's hidden layers."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    initialiser: str = static("lecun", choices=INITIALISERS)
    """Initial weights: lecun (normal), or orthogonal with a first policy close to uniform."""
    optimiser: str = static("adam", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(1e-3, low=0)
    """Step size."""
    max_grad_norm: float = hyper(0.5, above=0, high=math.inf)
    """Longer gradients are scaled down to this global norm; infinite for none."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""

    normalize_observation: bool = False
    """Standardise observations with running statistics."""


def leave_one_out(returns: Array, mask: Array) -> Array:
    """`returns` [T, B] less the mean return of the *other* episodes that run at that time; less
    nothing where there is no other. 0 where `mask` is False."""
    returns = jnp.where(mask, returns, 0.0)
    others = mask.sum(1, keepdims=True) - 1
    rest = returns.sum(1, keepdims=True) - returns
    return jnp.where(mask, returns - rest / jnp.maximum(others, 1) * (others > 0), 0.0)


def agent(env: Environment, config: Config) -> Agent:
    """The REINFORCE agent for `env`; it needs batches of whole episodes."""
    own = hypers(config)
    check_action_space(env.action_space, "reinforce")
    network: Any = ActorCritic(
        env.observation_space,
        env.action_space,
        config.hidden,
        config.activation,
        initialiser=config.initialiser,
    )
    optimiser = transform(config.optimiser)

    def init(key, hyper):
        params = network.init(key, example_timestep(env), ())
        return State(params, optimiser.init(params), select(config, hyper))

    def act(state, timestep, memory, key, greedy):
        policy, _, memory = network.apply(state.params, timestep, memory)
        return (policy.mode() if greedy else policy.sample(seed=key)), memory, {}

    def loss(params, transitions, advantage, mask, entropy_weight):
        policy, _, _ = network.apply(params, transitions.timestep, (), method="unroll")
        average = lambda x: jnp.where(mask, x, 0.0).sum() / mask.sum()
        policy_loss = average(
            losses.policy_gradient(policy.log_prob(transitions.action), advantage)
        )
        entropy = average(policy.entropy())
        return policy_loss - entropy_weight * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
        }

    def update(state, batch, key):
        hyper, transitions = state.hyper, batch.transitions
        advantage = losses.discounted_returns(
            jnp.where(batch.mask, transitions.reward, 0.0),
            transitions.next_timestep.done,
            jnp.zeros_like(transitions.reward[0]),
            hyper["discount"],
        )
        if config.baseline:
            advantage = leave_one_out(advantage, batch.mask)
        gradient, info = jax.grad(loss, has_aux=True)(
            state.params, transitions, advantage, batch.mask, hyper["entropy_weight"]
        )
        params, optimiser_state, norm = descend(
            optimiser,
            gradient,
            state.optimiser,
            state.params,
            hyper["learning_rate"],
            hyper["max_grad_norm"],
        )
        info |= {"grad_norm": norm, "weight_norm": optax.tree.norm(params)}
        return State(params, optimiser_state, hyper), Info(info)

    return Agent(
        "reinforce",
        init,
        act,
        update,
        hyper=own,
        needs=("mask",),
        config=config,
    )


def reinforce(env: Environment, config: Config = Config()) -> Algorithm:
    """REINFORCE on `env`, learning from whole episodes. Raises `UserError` where env and config do
    not fit: an action space without a policy head, an environment without a time limit, a setting
    that is out of its range."""
    return _build(env, config)  # however the arguments are passed, one entry of the cache


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    learner = agent(env, config)
    if config.normalize_observation:
        learner = normalize_observation(learner, env)
    return learn(learner, episodes(env, config.num_envs))
