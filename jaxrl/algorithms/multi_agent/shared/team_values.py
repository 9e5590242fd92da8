"""Value decomposition: the values of a team from those of its agents, and how they are learned.

A `Team` has networks that value each agent's actions, and a function that mixes the values of the
actions that agents choose into the team's. Agents that have died have the value 0 there, whatever
their networks say, so nothing of them is learned until the next episode. Agents with a memory learn
from replayed sequences, which begin with the memory that they were collected with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared.views import (
    players,
    stack,
    state_view,
    view_of,
)
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition, Tree, struct
from jaxrl.kit import Loss, LossOutput, Net, Part, Recipe
from jaxrl.kit.acting import epsilon, sample_epsilon_greedy
from jaxrl.kit.agents import agent_names, seen_by
from jaxrl.networks.mixing import MonotonicMixer
from jaxrl.networks.q_network import QNetwork, RecurrentQNetwork


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


@struct
class Sequences:
    """Replayed sequences, as a gradient step sees them."""

    window: Transition  # [T, B]
    memory: Tree  # [B]: before the window
    mask: Array | None = None  # [T, B]: which steps count; None for all


@dataclasses.dataclass(frozen=True, eq=False)
class OwnNetworks:
    """Networks of the agents' own observations, by which these value their actions.

    players: agents of each network, by its name.
    recurrent: width of each network's memory; 0 for none.
    """

    players: Mapping[str, tuple[str, ...]]
    recurrent: int

    def __call__(self, parts: Any, timestep: TimeStep) -> dict[str, Array]:
        """Return the values of all actions, as `AgentValues` do, of networks without memory."""
        seen = self.views(timestep)
        return self._by_agent({n: getattr(parts, n)(view) for n, view in seen.items()}, seen)

    def views(self, timestep: TimeStep) -> dict[str, TimeStep]:
        """Return what each network sees, of K agents each, [..., K, *shape]."""
        return {name: view_of(agents)(timestep) for name, agents in self.players.items()}

    def step(
        self, parts: Any, timestep: TimeStep, memory: Tree
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the values of all actions at time steps [B], and the new memory of each network
        without the actions that will be taken, [B, K, D]."""
        seen, outputs, after = self.views(timestep), {}, {}
        for name, view in seen.items():
            hidden, last = memory[name]
            outputs[name], after[name] = getattr(parts, name)(view, last, hidden)
        return self._by_agent(outputs, seen), after

    def unroll(self, parts: Any, x: Sequences) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the values [T, B, A] of all actions at each step of sequences, and at its
        successor."""
        window, outputs, after = x.window, {}, {}
        seen, following = self.views(window.timestep), self.views(window.next_timestep)
        for name, agents in self.players.items():
            part, (hidden, last) = getattr(parts, name), x.memory[name]
            actions = stack(window.action, agents, window.first.ndim)
            before = jnp.concatenate([last[None], actions[:-1]])
            before = jnp.where(window.first[..., None], -1, before)
            outputs[name], memories = part(seen[name], before, hidden, unroll=True)
            after[name], _ = jax.vmap(part)(following[name], actions, memories)
        return self._by_agent(outputs, seen), self._by_agent(after, following)

    def blank(self, n: int) -> Tree:
        """Return the memory of n episodes before their first step: of each network's agents what it
        remembers, and the last action, none."""
        if not self.recurrent:
            return ()
        of = lambda k: (jnp.zeros((n, k, self.recurrent)), jnp.full((n, k), -1, jnp.int32))
        return {name: of(len(agents)) for name, agents in self.players.items()}

    def remember(self, hidden: Mapping[str, Array], action: Tree) -> Tree:
        """Return the memory after actions [B] by agent have been taken."""
        last = {n: stack(action, agents, 1) for n, agents in self.players.items()}
        return {n: (hidden[n], last[n].astype(jnp.int32)) for n in self.players}

    def _by_agent(
        self, outputs: Mapping[str, Array], seen: Mapping[str, TimeStep]
    ) -> dict[str, Array]:
        values = {name: legal_values(q, seen[name]) for name, q in outputs.items()}
        return {
            agent: values[name][..., i, :]
            for name, agents in self.players.items()
            for i, agent in enumerate(agents)
        }


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

    @property
    def memory(self) -> OwnNetworks | None:
        """The networks of agents with a memory; None for others."""
        own = self.values
        return own if isinstance(own, OwnNetworks) and own.recurrent else None

    def of_actions(
        self, parts: Any, timestep: TimeStep, values: Mapping[str, Array], action: Tree
    ) -> Array:
        """Return the team's value [...] of a joint action, by agent, [...]."""
        chosen = [losses.at_action(values[agent], action[agent]) for agent in self.agents]
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
        return self.bootstrap(net, x, q, self.values(net, x.next_timestep) if double else q)

    def bootstrap(
        self, net: Net, x: Transition, q: Mapping[str, Array], chooser: Mapping[str, Array]
    ) -> Array:
        """Return r + gamma times the team's value by `q` of the next actions that are best by
        `chooser`, [...]."""
        following = self.of_actions(net.target, x.next_timestep, q, self.best(chooser))
        return losses.td_target(x.reward, x.terminated, net.hyper.discount, following)


def add(parts: Any, timestep: TimeStep, values: Array) -> Array:
    """Return the sum of the agents' values."""
    return losses.vdn(values)


def own_networks(
    env: Environment, config: Any, share_weights: bool = False, recurrent: int = 0
) -> tuple[dict[str, Part], OwnNetworks]:
    """Return a network for each agent, of its own observation, and the values that they compute.

    config: settings with a `torso`, an `optimizer` and a `target`.
    share_weights: one network for agents whose names are alike up to the last underscore.
    recurrent: width of the memory of each network; 0 for none.
    """
    own = OwnNetworks(players(env, share_weights), recurrent)
    kind, options, parts = QNetwork, {}, {}
    if recurrent:
        kind, options = RecurrentQNetwork, {"recurrent": recurrent, "sees_reward": False}
    for name, view in own.views(example_timestep(env)).items():
        network = q_network(seen_by(env, own.players[name][0]), config.torso, kind, **options)
        hidden, last = own.blank(1)[name] if recurrent else ((), ())
        inputs = (view, last, hidden) if recurrent else (view,)
        parts[name] = Part(network, inputs, config.optimizer, config.target)
    return parts, own


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


def mixing(
    env: Environment, config: Any, normalize_state: bool = False
) -> tuple[dict[str, Part], Mix]:
    """Return the parts and the function that mix values as `config.decomposition` says: vdn, their
    sum, or qmix, by a network of the state.

    config, normalize_state: as in `mixer`.
    """
    if config.decomposition == "vdn":
        return {}, add
    return {"mixer": mixer(env, config, normalize_state)}, mix_by_state


def act_epsilon_greedily(env: Environment, team: Team, config: Any) -> Any:
    """Return an `Act` by which each agent takes its best action, and a random one as often as
    `config.exploration` says."""
    own = team.memory

    def act(net, timestep, memory, key, greedy):
        if own:
            values, hidden = own.step(net, timestep, memory)
        else:
            values, hidden = team.values(net, timestep), {}
        action = {}
        for agent in team.agents:
            chosen = values[agent].argmax(-1)
            if not greedy:
                rate = epsilon(net, config.exploration)
                chosen = sample_epsilon_greedy(values[agent], rate, net.key(agent))
            action[agent] = chosen.astype(env.action_space[agent].dtype)  # type: ignore[index]
        return action, own.remember(hidden, action) if own else memory, {}

    return act


def act_greedily(env: Environment, team: Team) -> Any:
    """Return an `Act` by which each agent takes its best action."""

    def act(net, timestep, memory, key, greedy):
        best = team.best(team.values(net, timestep))
        spaces: Any = env.action_space
        return {a: x.astype(spaces[a].dtype) for a, x in best.items()}, memory, {}

    return act


def team_recipe(env: Environment, config: Any, team: Team) -> Recipe:
    """Return the recipe of Q-learning of a team: from transitions, or from sequences where agents
    have a memory.

    config: settings with `double` and `exploration`, and a hyperparameter `discount`.
    """

    own = team.memory

    def team_loss(net: Net, x: Transition) -> LossOutput:
        """Regress the team's value on r + gamma times its value of the best next actions."""
        target = team.target(net, x, config.double)
        value = team.of_actions(net, x.timestep, team.values(net, x.timestep), x.action)
        return LossOutput(losses.squared_error(value, target), {"team_value": value})

    def sequence_loss(net: Net, x: Sequences) -> LossOutput:
        """Compute the mean of the same over the steps of each sequence."""
        assert own is not None
        q, chooser = own.unroll(net, x)
        _, evaluated = own.unroll(net.target, x)
        chooser = chooser if config.double else evaluated
        target = team.bootstrap(net, x.window, evaluated, chooser)
        value = team.of_actions(net, x.window.timestep, q, x.window.action)
        mean = lambda error: (
            error.mean(0) if x.mask is None else losses.masked_mean(error, x.mask, 0)
        )
        error = losses.squared_error(value, target)
        return LossOutput(mean(error), {"team_value": mean(value)})

    loss = Loss(sequence_loss if own else team_loss, tuple(team.parts), "team_loss")

    def update(net, batch):
        if own:
            x = Sequences(batch.transitions, batch.memory, batch.mask)
            net = net.descend(loss, x, weight=batch.weight)
        else:
            net = net.descend(loss, batch)
        return net.update_targets().report(epsilon=epsilon(net, config.exploration))

    act = act_epsilon_greedily(env, team, config)
    recalled = {"memory": own.blank, "needs": ("memory",)} if own else {}
    return Recipe(parts=team.parts, act=act, losses=(loss,), update=update, **recalled)
