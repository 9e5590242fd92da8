"""Value decomposition: the values of a team from those of its agents, and how they are learned.

A `Team` has networks that value each agent's actions, and a function that mixes the values of the
actions that agents choose into the team's. Agents that have died have the value 0 there, whatever
their networks say, so nothing of them is learned until the next episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared.views import own_view, state_view
from jaxrl.algorithms.value.shared.heads import action_outputs, legal_values
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition, Tree
from jaxrl.kit import Loss, LossOutput, Net, Part, Recipe
from jaxrl.kit.acting import epsilon, sample_epsilon_greedy
from jaxrl.kit.agents import agent_names, seen_by
from jaxrl.networks.mixing import MonotonicMixer


class Mix(Protocol):
    """A function that computes the value of a team."""

    def __call__(self, parts: Any, timestep: TimeStep, values: Array, /) -> Array:
        """Return the team's value [B].

        parts: the net, or its target networks.
        timestep: what all agents see, [B].
        values: of an action of each agent, [B, N]; 0 for agents that have died.
        """
        ...


class AgentValues(Protocol):
    """A function that computes the values of the actions of all agents."""

    def __call__(self, parts: Any, timestep: TimeStep, /) -> dict[str, Array]:
        """Return the values [B, A] of each agent's actions, those of illegal ones far below all
        others.

        parts: the net, or its target networks.
        timestep: what all agents see, [B].
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """Agents whose values are mixed into a team's.

    agents: names, in the order of the mixed values.
    parts: networks of the agents and of the mixing, by name.
    values: the values of each agent's actions.
    mix: the team's value.
    """

    agents: tuple[str, ...]
    parts: Mapping[str, Part]
    values: AgentValues
    mix: Mix

    def of_actions(
        self, parts: Any, timestep: TimeStep, values: Mapping[str, Array], action: Tree
    ) -> Array:
        """Return the team's value [B] of a joint action, by agent, [B]."""
        chosen = [action_outputs(values[agent], action[agent]) for agent in self.agents]
        each = jnp.stack(chosen, -1)
        if timestep.alive is not None:
            each = jnp.where(timestep.alive, each, 0)
        return self.mix(parts, timestep, each)

    def best(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return each agent's best action [B], which together are the team's best."""
        return {agent: values[agent].argmax(-1) for agent in self.agents}

    def target(self, net: Net, x: Transition, double: bool) -> Array:
        """Return r + gamma times the team's value of the best next actions, [B].

        double: whether the networks that learn choose the best actions, which the target networks
            evaluate; else the target networks choose too.
        """
        q = self.values(net.target, x.next_timestep)
        chooser = self.values(net, x.next_timestep) if double else q
        following = self.of_actions(net.target, x.next_timestep, q, self.best(chooser))
        return losses.td_target(x.reward, x.terminated, net.hyper.discount, following)


def add(parts: Any, timestep: TimeStep, values: Array) -> Array:
    """Return the sum of the agents' values."""
    return losses.vdn(values)


def own_networks(env: Environment, config: Any) -> tuple[dict[str, Part], AgentValues]:
    """Return a network for each agent, of its own observation, and the values that they compute.

    config: settings with a `torso`, an `optimizer` and a `target`.
    """
    agents, example = agent_names(env), example_timestep(env)
    parts = {
        agent: Part(
            q_network(seen_by(env, agent), config.torso),
            (own_view(example, agent),),
            config.optimizer,
            config.target,
        )
        for agent in agents
    }

    def values(parts: Any, timestep: TimeStep) -> dict[str, Array]:
        seen = {agent: own_view(timestep, agent) for agent in agents}
        return {a: legal_values(getattr(parts, a)(seen[a]), seen[a]) for a in agents}

    return parts, values


def state_of(timestep: TimeStep) -> Array:
    """Return the environment's state as one vector, [..., S]."""
    state = state_view(timestep).observation
    return state.reshape(*timestep.first.shape, -1)


def mix_by_state(parts: Any, timestep: TimeStep, values: Array) -> Array:
    """Return the value that the part `mixer` computes of the agents' values and the state."""
    return parts.mixer(state_of(timestep), values)


def mixer(env: Environment, config: Any, normalize_state: bool = False) -> Part:
    """Return the part `mixer` that `mix_by_state` reads: (state [B, S], values [B, N]) -> [B].

    config: settings with `mixing`, an `optimizer` and a `target`.
    normalize_state: see `MonotonicMixer`.
    """
    inputs = state_of(example_timestep(env)), jnp.zeros((1, len(agent_names(env))))
    module = MonotonicMixer(config.mixing, normalize_state)
    return Part(module, inputs, config.optimizer, config.target)


def mixing(env: Environment, config: Any) -> tuple[dict[str, Part], Mix]:
    """Return the parts and the function that mix values as `config.decomposition` says: vdn, their
    sum, or qmix, by a network of the state.

    config: as in `mixer`.
    """
    if config.decomposition == "vdn":
        return {}, add
    return {"mixer": mixer(env, config)}, mix_by_state


def act_epsilon_greedily(env: Environment, team: Team, config: Any) -> Any:
    """Return an `Act` by which each agent takes its best action, and a random one as often as
    `config.exploration` says."""

    def act(net, timestep, memory, key, greedy):
        action, values = {}, team.values(net, timestep)
        for agent in team.agents:
            chosen = values[agent].argmax(-1)
            if not greedy:
                rate = epsilon(net, config.exploration)
                chosen = sample_epsilon_greedy(values[agent], rate, net.key(agent))
            action[agent] = chosen.astype(env.action_space[agent].dtype)  # type: ignore[index]
        return action, memory, {}

    return act


def act_greedily(env: Environment, team: Team) -> Any:
    """Return an `Act` by which each agent takes its best action."""

    def act(net, timestep, memory, key, greedy):
        best = team.best(team.values(net, timestep))
        spaces: Any = env.action_space
        return {a: x.astype(spaces[a].dtype) for a, x in best.items()}, memory, {}

    return act


def team_recipe(env: Environment, config: Any, team: Team) -> Recipe:
    """Return the recipe of Q-learning of a team.

    config: settings with `double` and `exploration`, and a hyperparameter `discount`.
    """

    def team_loss(net: Net, x: Transition) -> LossOutput:
        """Regress the team's value on r + gamma times its value of the best next actions."""
        target = team.target(net, x, config.double)
        value = team.of_actions(net, x.timestep, team.values(net, x.timestep), x.action)
        return LossOutput(losses.squared_error(value, target), {"team_value": value})

    loss = Loss(team_loss, tuple(team.parts), "team_loss")

    def update(net, batch):
        net = net.descend(loss, batch).update_targets()
        return net.report(epsilon=epsilon(net, config.exploration))

    act = act_epsilon_greedily(env, team, config)
    return Recipe(parts=team.parts, act=act, losses=(loss,), update=update)
