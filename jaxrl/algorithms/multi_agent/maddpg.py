"""MADDPG (Lowe et al., 2017, "Multi-agent actor-critic for mixed cooperative-competitive
environments", arXiv:1706.02275, algorithm 1): DDPG whose critics see what all agents see and do.

Each agent i has a policy of its own observation, and a critic Q_i of all observations and actions
that regresses on r_i + gamma Q'_i of the target policies' next actions. The policy maximizes Q_i of
the replayed actions with its own in place of agent i's. Agents may have rewards of their own, or
share one; critics are not needed to act.

Discrete actions are drawn by adding Gumbel noise to the logits; the critics' gradient flows back
through the softmax of the noisy logits, straight through, so that critics see actions that can be
played. In the authors' code the soft samples themselves are played, replayed and valued. As there,
the policy's loss has 0.001 times the mean square of the logits. Continuous actions are
deterministic with normal noise. Not here: the policies of others that are inferred (section 4.2),
and ensembles of policies (section 4.3). An agent that has died does not learn until the next
episode, and its own episode ends at its death.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import gradients, losses
from jaxrl.algorithms.multi_agent.shared.views import check_agents, own_view
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete, Space
from jaxrl.core.types import Array, Environment, Key, TimeStep, Transition, Tree
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    hyper,
)
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import INF, Optimizer, Replay, Target, Torso
from jaxrl.networks import encoders
from jaxrl.networks.critics import DeterministicActor
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import check_bounded, scale
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP

ADAM = Optimizer(learning_rate=1e-2, max_grad_norm=0.5)


@group
class Config:
    """Settings of MADDPG. Defaults are those of the authors' code for its particle environments,
    but for the replay buffer (a million transitions, an update every 100 steps of one environment),
    and the gradient's norm, which is clipped for each variable there and for each network here."""

    replay: Replay = Replay(num_envs=25, num_steps=4, updates=1, batch_size=1024, warmup=25_600)
    torso: Torso = Torso(hidden=(64, 64), activation="relu")
    """Hidden layers of each policy and each critic."""
    actor: Optimizer = ADAM
    """Optimizer of each policy."""
    critic: Optimizer = ADAM
    """Optimizer of each critic."""
    target: Target = Target(rate=0.01)
    """Target networks of policies and critics."""

    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per step."""
    noise: float = hyper(0.1, low=0, high=INF)
    """Standard deviation of the noise on continuous actions, in half-widths of their bounds."""
    logit_penalty: float = hyper(1e-3, low=0, log=True)
    """Weight of the mean square of the logits of discrete actions."""


class JointValue(nn.Module):
    """The value [...] of what all agents see and do: time step [...] and features of each agent's
    action [..., D], by agent."""

    observation_spaces: tuple[tuple[str, Space], ...]
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep, action: dict[str, Array]) -> Array:
        seen = [encoders.flatten(s, timestep.observation[a]) for a, s in self.observation_spaces]
        done = [action[agent] for agent, _ in self.observation_spaces]
        x = MLP(self.widths, self.activation, self.initializer)(jnp.concatenate(seen + done, -1))
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]


class Logits(nn.Module):
    """Logits [..., A] of the actions of an agent, from its view of a time step [...]."""

    observation_space: Space
    actions: int
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Array:
        x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return mask_illegal(dense(self.actions, initializer(self.initializer, 1.0))(x), timestep)


def straight_through(logits: Array, key: Key) -> Array:
    """Draw one-hot actions [..., A], with the gradient of the softmax of the noisy logits (Jang et
    al., 2017, "Categorical reparameterization with Gumbel-softmax", section 2.2, temperature 1)."""
    noisy = logits + jax.random.gumbel(key, logits.shape)
    soft = jax.nn.softmax(noisy)
    hard = jax.nn.one_hot(noisy.argmax(-1), logits.shape[-1])
    return gradients.straight_through(hard, soft)


def reward_of(x: Transition, index: int) -> Array:
    """Return the reward [B] of an agent: its own, or the one that all share."""
    return x.reward if x.reward.ndim == x.terminated.ndim else x.reward[..., index]


def ended_for(timestep: TimeStep, index: int) -> Array:
    """Return whether the episode has ended for an agent, [B]: for all, or by its death."""
    alive = timestep.alive
    return timestep.terminated if alive is None else timestep.terminated | ~alive[..., index]


def recipe(env: Environment, config: Config) -> Recipe:
    agents, example = agent_names(env), example_timestep(env, agents=True)
    acts: Any = env.action_space
    sees: Any = env.observation_space
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    features = {a: functools.partial(encoders.action_features, acts[a]) for a in agents}
    plays = {agent: features[agent](spaces.example(acts[agent])[None]) for agent in agents}
    discrete = {agent: isinstance(acts[agent], Discrete) for agent in agents}

    parts = {}
    for agent in agents:
        if discrete[agent]:
            actor: Any = Logits(sees[agent], acts[agent].n, *torso)
        else:
            actor = DeterministicActor(sees[agent], acts[agent], *torso)
        parts[agent] = Part(actor, (own_view(example, agent),), config.actor, config.target)
        value = JointValue(tuple((a, sees[a]) for a in agents), *torso)
        parts[f"{agent}_critic"] = Part(value, (example, plays), config.critic, config.target)

    def data_actions(x: Transition) -> dict[str, Array]:
        """Features of the actions of the data."""
        return {agent: features[agent](x.action[agent]) for agent in agents}

    def policy_action(output: Array, agent: str, key: Key) -> Array:
        """Features of an action by the output of an agent's policy, with its gradient."""
        return straight_through(output, key) if discrete[agent] else features[agent](output)

    def critic_loss(net: Net, x: Transition, agent: str, index: int) -> LossOutput:
        """Regress on r_i + gamma Q'_i of the target policies' next actions (eq. 6)."""
        following = {
            a: policy_action(getattr(net.target, a)(own_view(x.next_timestep, a)), a, net.key(a))
            for a in agents
        }
        next_value = getattr(net.target, f"{agent}_critic")(x.next_timestep, following)
        ended = ended_for(x.next_timestep, index)
        target = losses.td_target(reward_of(x, index), ended, net.hyper.discount, next_value)
        value = getattr(net, f"{agent}_critic")(x.timestep, data_actions(x))
        return LossOutput(losses.squared_error(value, target), {f"{agent}_value": value})

    def actor_loss(net: Net, x: Transition, agent: str) -> Array:
        """Maximize Q_i of the data's actions, with the policy's own (eq. 5)."""
        output = getattr(net, agent)(own_view(x.timestep, agent))
        action = data_actions(x) | {agent: policy_action(output, agent, net.key())}
        loss = -getattr(net, f"{agent}_critic")(x.timestep, action)
        if discrete[agent]:
            legal = own_view(x.timestep, agent).legal_actions
            size = jnp.square(output if legal is None else jnp.where(legal, output, 0))
            loss += net.hyper.logit_penalty * size.mean(-1)
        return loss

    critic_losses, actor_losses = [], []
    for index, agent in enumerate(agents):
        learn = functools.partial(critic_loss, agent=agent, index=index)
        critic_losses.append(Loss(learn, (f"{agent}_critic",), f"{agent}_critic_loss"))
        improve = functools.partial(actor_loss, agent=agent)
        actor_losses.append(Loss(improve, (agent,), f"{agent}_loss"))

    def act(net, timestep, memory, key, greedy):
        action: dict[str, Tree] = {}
        for agent in agents:
            output, space = getattr(net, agent)(own_view(timestep, agent)), acts[agent]
            own_key = net.key(agent)
            if discrete[agent]:
                noisy = output if greedy else output + jax.random.gumbel(own_key, output.shape)
                action[agent] = noisy.argmax(-1).astype(space.dtype)
            elif greedy:
                action[agent] = output
            else:
                noise = net.hyper.noise * scale(space)[1]
                noisy = output + noise * jax.random.normal(own_key, output.shape)
                action[agent] = spaces.clip(space, noisy)
        return action, memory, {}

    def update(net, batch):
        alive = batch.transitions.timestep.alive
        for losses_of_agents in (critic_losses, actor_losses):
            for index, loss in enumerate(losses_of_agents):
                mask = batch.mask
                if alive is not None:
                    mask = alive[..., index] if mask is None else mask & alive[..., index]
                net = net.descend(loss, batch, mask=mask)
        return net.update_targets()

    return Recipe(parts=parts, act=act, losses=(*critic_losses, *actor_losses), update=update)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless `env` has several agents, each with Discrete actions or one bounded
    box."""
    check_agents(env, name)
    for agent in agent_names(env):
        space = env.action_space[agent]  # type: ignore[index]
        if not isinstance(space, Discrete):
            check_bounded(space, f"{name}'s agent '{agent}'")
    if example_timestep(env, agents=True).goal is not None:
        raise UserError(f"{name}'s critics do not see goals; '{env.name}' has some.")


maddpg = AlgorithmBuilder("maddpg", Config, recipe, check=check)

TINY = {
    "env": "simple_speaker_listener",
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (5,),
}
