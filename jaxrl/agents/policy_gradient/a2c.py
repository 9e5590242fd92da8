"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), synchronous.

It is PPO with one epoch of one minibatch (Huang et al., 2022, arXiv:2205.09123): the probability
ratio is 1 when the only gradient is taken, where the clipped surrogate's gradient is the policy
gradient. So it is built as that, with the policy gradient itself as the surrogate.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from jaxrl import losses
from jaxrl.agents.policy_gradient import ppo
from jaxrl.core import schedules
from jaxrl.core.hyper import MANY, WIDE, check, hyper, static
from jaxrl.core.types import Agent, Algorithm, Environment
from jaxrl.kit.optimisation import TRANSFORMS
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.initialisers import INITIALISERS
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of A2C."""

    num_envs: int = static(16, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(5, low=1, high=MANY)
    """Steps of each environment between two updates."""
    num_shards: int = static(1, low=1)
    """Logical shards of the environments: how many devices can share a run at most."""

    hidden: tuple[int, ...] = static((64, 64), low=1, high=WIDE)
    """Widths of the hidden layers of policy and value, each; none for linear ones."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    recurrent: int = static(0, low=0, high=WIDE)
    """Width of a GRU before both; 0 for a policy without memory."""
    initialiser: str = static("lecun", choices=INITIALISERS)
    """Initial weights: lecun (normal), or orthogonal with a first policy close to uniform."""
    optimiser: str = static("rmsprop", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(7e-4, low=0)
    """Step size at the start."""
    learning_rate_end: float = hyper(0.0, low=0)
    """Step size after `learning_rate_steps`."""
    learning_rate_steps: float = hyper(math.inf, above=0, high=math.inf)
    """Environment steps over which the step size changes; infinite for a constant one."""
    learning_rate_schedule: str = static("linear", choices=schedules.SCHEDULES)
    """How it changes: linear, cosine or exponential."""
    max_grad_norm: float = hyper(0.5, above=0, high=math.inf)
    """Longer gradients are scaled down to this global norm; infinite for none."""

    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    trace: float = hyper(1.0, low=0, high=1)
    """Lambda of generalised advantage estimation; 1 for n-step returns."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""

    normalize_observation: bool = False
    """Standardise observations with running statistics."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


@dataclasses.dataclass(frozen=True)
class _AsPPO(ppo.Config):
    """PPO's settings, with the widths that A2C may have."""

    hidden: tuple[int, ...] = static((), low=1, high=WIDE)


def as_ppo(config: Config) -> ppo.Config:
    """The settings under which PPO is A2C."""
    shared = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return _AsPPO(epochs=1, minibatches=1, normalize_advantage=False, **shared)


def agent(env: Environment, config: Config) -> Agent:
    """The A2C agent for `env`."""
    check(config)
    check_action_space(env.action_space, "a2c")
    surrogate = lambda log_prob, old, advantage, clip: losses.policy_gradient(log_prob, advantage)
    same = ppo.agent(env, as_ppo(config), surrogate)
    return dataclasses.replace(same, name="a2c", config=config)


def a2c(env: Environment, config: Config = Config()) -> Algorithm:
    """A2C on `env`, learning from rollouts. Raises as `ppo` does."""
    return _build(env, config)  # however the arguments are passed, one entry of the cache


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    return ppo.on_rollouts(env, agent(env, config), as_ppo(config))
