"""MAICQ, a baseline of OG-MARL (Formanek et al., 2023, "Off-the-Grid MARL: Datasets with Baselines
for Offline Multi-Agent Reinforcement Learning", arXiv:2302.00521, and the authors' code): a team
learns from a dataset without bootstrapping from an action that is not in it, by implicit constraint
Q-learning (Yang et al., 2021, "Believe what you see: implicit constraint approach for offline
multi-agent reinforcement learning", arXiv:2106.03400, which was not read).

QMIX's team value of the data's joint actions regresses on that of the data's next ones, where w is
a softmax over the N transitions of the batch,

    y = r + gamma N w(Q'(s', u') / alpha) Q'(s', u')

and each agent i has a policy that clones its own actions, weighted by how much better they are than
the policy's average and by its share k_i of the team's value (`networks.mixing`):

    -1/n sum_i k_i(s) N w(A_i / beta) log pi_i(a_i | o_i)
    A_i = Q_i(o_i, a_i) - sum_a pi_i(a | o_i) Q_i(o_i, a)

From the authors' code: both losses, that they are one, so that the shares learn from the cloning
too, and the settings. Choices made here: steps at which the data were cut off do not count for
values, since the next action is unknown; the softmax of values leaves out terminal steps, and that
of advantages the steps at which an agent is dead. Unlike in the authors' code, agents have no
memory (theirs have a GRU) and share no weights.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent import qmix
from jaxrl.algorithms.multi_agent.shared.team_datasets import TeamData
from jaxrl.algorithms.multi_agent.shared.team_values import (
    Team,
    mix_by_state,
    mixer,
    own_networks,
    state_of,
)
from jaxrl.algorithms.multi_agent.shared.views import own_view
from jaxrl.algorithms.offline.shared.outcomes import add_outcomes
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Environment, Source, Transition
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import ImageTorso, Optimizer, Target
from jaxrl.networks.actor_critic import Actor


@group
class Config:
    """Settings of MAICQ (arXiv:2302.00521). Defaults are those of the authors' code."""

    data: TeamData = TeamData()
    torso: ImageTorso = ImageTorso(hidden=(64, 64))
    """Hidden layers of each agent's values and of its policy."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer of all networks."""
    target: Target = Target(rate=1.0, period=200)
    mixing: int = static(32, low=1, high=WIDE)
    """Number of hidden units of the mixing network."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    value_temperature: float = hyper(1000.0, above=0)
    """Temperature alpha by which targets are weighted to good next actions."""
    policy_temperature: float = hyper(0.1, above=0)
    """Temperature beta by which the policies clone good actions."""


def recipe(env: Environment, config: Config) -> Recipe:
    agents, example, torso = agent_names(env), example_timestep(env), config.torso
    networks, values = own_networks(env, config)
    team = Team(agents, networks | {"mixer": mixer(env, config)}, values, mix_by_state)
    policies = {}
    for agent in agents:
        spaces = env.observation_space[agent], env.action_space[agent]  # type: ignore[index]
        network = Actor(*spaces, torso.hidden, torso.activation, torso.initializer)
        policies[f"{agent}_policy"] = Part(network, (own_view(example, agent),), config.optimizer)

    def policy_of(net: Any, timestep: Any, agent: str) -> Any:
        return getattr(net, f"{agent}_policy")(own_view(timestep, agent))

    def team_loss(net: Net, x: Transition) -> LossOutput:
        """Regress the team's value on the data's next one, and clone the better actions."""
        h, seen = net.hyper, x.timestep
        q = team.values(net, seen)
        alive = seen.alive
        if alive is None:
            alive = jnp.ones((*x.reward.shape, len(agents)), bool)
        each = jnp.stack([losses.at_action(q[agent], x.action[agent]) for agent in agents], -1)
        value, shares = net.mixer(state_of(seen), jnp.where(alive, each, 0), shares=True)
        after = x.next_timestep
        following = team.of_actions(
            net.target, after, team.values(net.target, after), x.extras["next_action"]
        )
        target = losses.icq_target(
            x.reward, x.terminated, h.discount, following, h.value_temperature, mask=~x.truncated
        )
        error = jnp.where(x.truncated, 0, losses.squared_error(value, target))
        cloning = jnp.zeros_like(error)
        for i, agent in enumerate(agents):
            policy, action, counts = policy_of(net, seen, agent), x.action[agent], alive[..., i]
            advantage = losses.counterfactual_advantage(policy.logits, q[agent], action)
            weight = losses.boltzmann_weights(advantage, h.policy_temperature, counts)
            clone = losses.behavior_cloning(policy.log_prob(action), weight * counts.sum())
            cloning += shares[..., i] * clone / len(agents)
        return LossOutput(error + cloning, {"team_value": value, "cloning": cloning})

    def act(net, timestep, memory, key, greedy):
        action = {}
        for agent in agents:
            policy = policy_of(net, timestep, agent)
            action[agent] = jax.lax.stop_gradient(choose(policy, net.key(agent), greedy))
        return action, memory, {}

    parts = dict(team.parts) | policies
    loss = Loss(team_loss, tuple(parts), "team_loss")
    needs = ("transitions.extras.next_action",)
    return Recipe(parts=parts, act=act, losses=(loss,), needs=needs)


def source(env: Environment, config: Config) -> Source:
    """Return the dataset, with the next action of each step."""
    return add_outcomes(config.data.source(env))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where QMIX does, and for convolutions."""
    qmix.check(env, config, name)
    if config.torso.channels:
        raise UserError(f"{name} has no convolutions; leave channels empty.")


maicq = AlgorithmBuilder("maicq", Config, recipe, source, check=check)

TINY = {
    "env": "skirmish",
    "env_params": {"agents": 2, "enemies": 1, "size": 5},
    "hidden": (5,),
    "mixing": 4,
    "target.period": 3,
    "data.size": 256,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
}
