"""Implicit Q-learning (Kostrikov, Nair and Levine, 2022, "Offline reinforcement learning with
implicit Q-learning", arXiv:2110.06169).

The value V(s) is an expectile of the critics' values of the data's actions (equation 5), the
critics regress on r + discount V(s') (equation 6): no action outside of the data is ever valued.
The policy imitates the data's actions, weighted by exp(A / temperature) (equation 7). The same
agent learns on from its own experience.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import optax

from jaxrl import losses
from jaxrl.agents.offline.experience import DEFAULT, Experience
from jaxrl.core import schedules, spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, hyper, hypers, select, static
from jaxrl.core.types import Agent, Array, Environment, Info, Transition, Tree, struct
from jaxrl.kit.optimisation import descend, transform
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import ActionValues, Value
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.torsos import ACTIVATIONS

LARGEST_WEIGHT = 100.0  # of an action that is imitated, as in the authors' code


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of IQL."""

    experience: Experience = DEFAULT
    """What is learnt from."""

    hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of policy, value and each critic."""
    activation: str = static("relu", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    members: int = static(2, low=1, high=MANY)
    """Critics, of which the most cautious counts."""
    normalize_observation: bool = False
    """Standardise observations with running statistics."""

    learning_rate: float = hyper(3e-4, low=0)
    """Step size of value and critics."""
    actor_learning_rate: float = hyper(3e-4, low=0)
    """Step size of the policy at the start; it falls to 0 like a cosine."""
    actor_learning_rate_steps: float = hyper(math.inf, above=0, high=math.inf)
    """Steps after which it is 0; infinite for a constant one."""
    target_rate: float = hyper(0.005, low=0, high=1)
    """Share of the critics that goes into the target critics in each step."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    reward_scale: float = hyper(1.0, above=0)
    """What rewards are multiplied by; the authors divide by the range of the data's returns."""
    expectile: float = hyper(0.7, above=0, below=1)
    """0.5 is the mean over the data's actions, towards 1 their best."""
    temperature: float = hyper(1 / 3, above=0, high=math.inf)
    """In which advantages count; infinite for plain cloning. The inverse of the paper's beta."""


@struct
class Critics:
    """Value, critics and what trains them."""

    value: Tree
    critic: Tree
    target: Tree
    value_optimiser: Tree
    critic_optimiser: Tree


@struct
class State:
    actor: Tree
    actor_optimiser: Tree
    critics: Critics
    hyper: Tree


@dataclasses.dataclass(frozen=True)
class CriticNetworks:
    """The functions by which `Critics` are made, read and trained."""

    value: Any
    critic: Any
    optimiser: Any

    def init(self, key: Any, timestep: Any, action: Any) -> Critics:
        keys = jax.random.split(key)
        value = self.value.init(keys[0], timestep)
        critic = self.critic.init(keys[1], timestep, action)
        target = jax.tree.map(lambda x: x.copy(), critic)
        optimisers = self.optimiser.init(value), self.optimiser.init(critic)
        return Critics(value, critic, target, *optimisers)

    def advantage(self, critics: Critics, timestep: Any, action: Any) -> Array:
        """Q - V [...], of the target critics."""
        q = self.critic.apply(critics.target, timestep, action).min(-1)
        return q - self.value.apply(critics.value, timestep)

    def update(
        self, critics: Critics, x: Transition, hyper: Tree
    ) -> tuple[Critics, dict[str, Array]]:
        """One gradient step of the value (equation 5), then one of the critics (equation 6), and
        the target critics follow. Also means to report."""
        rate = hyper["learning_rate"]
        chosen = self.critic.apply(critics.target, x.timestep, x.action).min(-1)

        def value_loss(params):
            value = self.value.apply(params, x.timestep)
            return losses.expectile_error(value, chosen, hyper["expectile"]).mean(), value.mean()

        (loss, level), gradient = jax.value_and_grad(value_loss, has_aux=True)(critics.value)
        value, value_optimiser, _ = descend(
            self.optimiser, gradient, critics.value_optimiser, critics.value, rate
        )
        # The true successor's: 0 after a termination, but not after a truncation.
        next_value = self.value.apply(value, x.next_timestep)
        reward = hyper["reward_scale"] * x.reward
        target = losses.td_target(reward, x.terminated, hyper["discount"], next_value)

        def critic_loss(params):
            q = self.critic.apply(params, x.timestep, x.action)
            return losses.squared_error(q, target[..., None]).sum(-1).mean()

        error, gradient = jax.value_and_grad(critic_loss)(critics.critic)
        critic, critic_optimiser, norm = descend(
            self.optimiser, gradient, critics.critic_optimiser, critics.critic, rate
        )
        followed = optax.incremental_update(critic, critics.target, hyper["target_rate"])
        metrics = {
            "value": level,
            "value_loss": loss,
            "critic_loss": error,
            "critic_grad_norm": norm,
            "critic_norm": optax.tree.norm(critic),
        }
        return Critics(value, critic, followed, value_optimiser, critic_optimiser), metrics


def agent(env: Environment, config: Config) -> Agent:
    """The IQL agent for `env`, of single transitions [n]. Discrete or continuous actions."""
    own = hypers(config)
    check_action_space(env.action_space, "iql")
    sizes = (env.observation_space, env.action_space, config.hidden)
    actor: Any = Actor(*sizes, config.activation)
    optimiser = transform("adam")
    networks = CriticNetworks(
        Value(env.observation_space, config.hidden, config.activation),
        ActionValues(*sizes, config.members, config.activation),
        optimiser,
    )

    def init(key, hyper):
        keys, timestep = jax.random.split(key), example_timestep(env)
        action = jax.tree.map(lambda x: x[None], spaces.example(env.action_space))
        params = actor.init(keys[0], timestep)
        critics = networks.init(keys[1], timestep, action)
        return State(params, optimiser.init(params), critics, select(config, hyper))

    def act(state, timestep, memory, key, greedy):
        policy = actor.apply(state.actor, timestep)
        action = policy.mode() if greedy else policy.sample(seed=key)
        # What is stored and learnt from is what the world clips a sample to.
        return spaces.clip(env.action_space, action), memory, {}

    def update(state, batch, key):
        hyper, x = state.hyper, batch.transitions
        critics, metrics = networks.update(state.critics, x, hyper)
        # As in the authors' code: the target critics before this step, the value after it.
        judges = dataclasses.replace(critics, target=state.critics.target)
        advantage = networks.advantage(judges, x.timestep, x.action)

        def actor_loss(params):
            log_prob = actor.apply(params, x.timestep).log_prob(x.action)
            return losses.awr(log_prob, advantage, hyper["temperature"], LARGEST_WEIGHT).mean()

        loss, gradient = jax.value_and_grad(actor_loss)(state.actor)
        rate = schedules.cosine(
            hyper["actor_learning_rate"],
            0.0 * hyper["actor_learning_rate"],
            schedules.progress(batch.frames, hyper["actor_learning_rate_steps"]),
        )
        params, actor_optimiser, _ = descend(
            optimiser, gradient, state.actor_optimiser, state.actor, rate
        )
        metrics |= {
            "actor_loss": loss,
            "advantage": advantage.mean(),
            "actor_norm": optax.tree.norm(params),
        }
        return State(params, actor_optimiser, critics, hyper), Info(metrics)

    return Agent("iql", init, act, update, hyper=own, config=config)
