"""GMAH: subgoal-based hierarchical reinforcement learning for teams (Xu et al., 2024,
"Subgoal-based hierarchical reinforcement learning for multi-agent collaboration", arXiv:2408.11416,
and the authors' code): each agent sets itself subgoals, and a mixing network gives the team's
credit to them.

A task is divided into a few kinds of subgoals that an environment knows, such as picking up,
compressing and putting down trash. A high-level policy of each agent chooses one, which holds until
it is reached or has become impossible (because another agent was faster), for `patience` steps at
most; a low-level policy is told the subgoal and is paid for reaching it, the sooner the more:

    1 - decay * steps / patience in the step that reaches the subgoal, else 0

The team's reward is learned from by the high level alone. As in QMIX, a network whose output never
falls in any of its inputs mixes the agents' high-level values into the value of the team.

From the paper (its abstract, summaries and code were read): the fixed set of subgoals, two levels,
the reward for being soon, a new choice when a subgoal is reached, and the monotonic mixing of
high-level values. Choices made here, where the paper's equations were not read: both levels are
double DQN that learn at the same time from one replay buffer (the authors train PPO, the low level
first), agents choose at different times, so values learn at every step as those of options do,

    Q_team(s, g) <- r + gamma Q_team'(s', g'),   g'_i = g_i until agent i's subgoal ends, then
                                                        argmax_h Q_i(o'_i, h)

and subgoals adapt to the environment by the end of those that are impossible. The paper's adaptive
strategy, which judges by an auto-encoder when subgoals are to change, is not here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent import qmix, vdn
from jaxrl.algorithms.multi_agent.shared.team_values import mix_by_state, mixer
from jaxrl.algorithms.multi_agent.shared.views import own_view
from jaxrl.algorithms.value.shared.heads import action_outputs, legal_values
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, TimeStep, Transition, struct
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import epsilon, sample_epsilon_greedy
from jaxrl.kit.agents import agent_names, seen_by

CHANNELS = ("reached", "possible")  # of `TimeStep.privileged`, bool [N, G]


@group
class Config(qmix.Settings):
    """Settings of GMAH: QMIX over subgoals, and a low level that reaches them
    (arXiv:2408.11416)."""

    patience: int = static(15, low=1)
    """Number of steps after which an agent chooses again, if its subgoal has not ended by then."""
    decay: float = hyper(0.5, low=0, high=1)
    """Share of the low level's reward that is lost over `patience` steps; 0.5 as in the authors'
    code."""
    low_discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per step of the low level."""


@struct
class Kept:
    """Memory of agents that keep subgoals: the subgoals and for how many steps they were kept,
    int32 [B, N]."""

    subgoal: Array
    age: Array


def is_over(timestep: TimeStep, subgoal: Array, age: Array, patience: int) -> Array:
    """Return which subgoals [B, N], kept for `age` steps, end at a time step: bool [B, N]."""
    reached, possible = (_of_subgoal(timestep, name, subgoal) for name in CHANNELS)
    return reached | ~possible | (age >= patience)


def low_reward(reached: Array, age: Array, patience: int, decay: Array | float) -> Array:
    """Return the low level's reward of steps after which a subgoal was kept for `age` steps."""
    return jnp.where(reached, 1 - decay * age / patience, 0.0)


def _of_subgoal(timestep: TimeStep, channel: str, subgoal: Array) -> Array:
    values = timestep.privileged[channel]
    return jnp.take_along_axis(values, subgoal[..., None], -1)[..., 0]


def count_subgoals(env: Environment) -> int:
    """Return the number of subgoals that an environment tells; 0 for one that does not."""
    channels = example_timestep(env).privileged or {}
    return channels["reached"].shape[-1] if set(CHANNELS) <= set(channels) else 0


def recipe(env: Environment, config: Config) -> Recipe:
    agents, example, number = agent_names(env), example_timestep(env), count_subgoals(env)
    patience = config.patience

    def high_view(timestep: TimeStep, i: int) -> TimeStep:
        possible = timestep.privileged["possible"][..., i, :]
        return dataclasses.replace(own_view(timestep, agents[i]), legal_actions=possible)

    def low_view(timestep: TimeStep, i: int, subgoal: Array) -> TimeStep:
        told = jax.nn.one_hot(subgoal, number)
        return dataclasses.replace(own_view(timestep, agents[i]), goal=told)

    def high_values(parts: Any, timestep: TimeStep, i: int) -> Array:
        """Return an agent's values [B, G] of its subgoals."""
        seen = high_view(timestep, i)
        return legal_values(getattr(parts, f"{agents[i]}_high")(seen), seen)

    def low_values(parts: Any, timestep: TimeStep, i: int, subgoal: Array) -> Array:
        """Return an agent's values [B, A] of its actions under subgoals [B]."""
        seen = low_view(timestep, i, subgoal)
        return legal_values(getattr(parts, f"{agents[i]}_low")(seen), seen)

    def high_loss(net: Net, x: Transition) -> LossOutput:
        """Regress the team's value of its subgoals on r + gamma times that of the next ones."""
        subgoal, age = x.extras["subgoal"], x.extras["age"]
        over = is_over(x.next_timestep, subgoal, age + 1, patience)
        chooser = net if config.double else net.target
        taken, following = [], []
        for i in range(len(agents)):
            taken.append(action_outputs(high_values(net, x.timestep, i), subgoal[..., i]))
            best = high_values(chooser, x.next_timestep, i).argmax(-1)
            chosen = jnp.where(over[..., i], best, subgoal[..., i])
            target_values = high_values(net.target, x.next_timestep, i)
            following.append(action_outputs(target_values, chosen))
        value = mix_by_state(net, x.timestep, jnp.stack(taken, -1))
        next_value = mix_by_state(net.target, x.next_timestep, jnp.stack(following, -1))
        target = losses.td_target(x.reward, x.terminated, net.hyper.discount, next_value)
        return LossOutput(losses.squared_error(value, target), {"team_value": value})

    def low_loss(net: Net, x: Transition) -> LossOutput:
        """Regress each agent's value of its action on the reward for reaching its subgoal. Running
        out of patience does not end the subgoal's value, since the clock is not observed."""
        subgoal, age = x.extras["subgoal"], x.extras["age"] + 1
        reached, possible = (_of_subgoal(x.next_timestep, name, subgoal) for name in CHANNELS)
        reward = low_reward(reached, age, patience, net.hyper.decay)
        ended = reached | ~possible | x.terminated[..., None]
        total = jnp.zeros_like(x.reward)
        chooser = net if config.double else net.target
        for i, agent in enumerate(agents):
            q = low_values(net, x.timestep, i, subgoal[..., i])
            best = low_values(chooser, x.next_timestep, i, subgoal[..., i]).argmax(-1)
            later = low_values(net.target, x.next_timestep, i, subgoal[..., i])
            next_value = action_outputs(later, best)
            target = losses.td_target(
                reward[..., i], ended[..., i], net.hyper.low_discount, next_value
            )
            total += losses.squared_error(action_outputs(q, x.action[agent]), target)
        return LossOutput(total, {"reached": reached.mean(-1)})

    def act(net: Net, timestep: TimeStep, memory: Kept, key, greedy):
        del key
        rate = epsilon(net, config.exploration)

        def choose(q: Array, name: str) -> Array:
            best = q.argmax(-1)
            return best if greedy else sample_epsilon_greedy(q, rate, net.key(name))

        over = is_over(timestep, memory.subgoal, memory.age, patience)
        over |= timestep.first[..., None]
        new = [choose(high_values(net, timestep, i), f"{n}_high") for i, n in enumerate(agents)]
        subgoal = jnp.where(over, jnp.stack(new, -1), memory.subgoal).astype(jnp.int32)
        age = jnp.where(over, 0, memory.age)
        action = {}
        for i, agent in enumerate(agents):
            chosen = choose(low_values(net, timestep, i, subgoal[..., i]), agent)
            action[agent] = chosen.astype(env.action_space[agent].dtype)  # type: ignore[index]
        return action, Kept(subgoal, age + 1), {"subgoal": subgoal, "age": age}

    parts, none = {"mixer": mixer(env, config, config.normalize_state)}, jnp.zeros(1, jnp.int32)
    for i, agent in enumerate(agents):
        own = seen_by(env, agent)
        chooser = dataclasses.replace(own, action_space=Discrete(number))
        both = config.optimizer, config.target
        high, low = (q_network(e, config.torso) for e in (chooser, own))
        parts[f"{agent}_high"] = Part(high, (high_view(example, i),), *both)
        parts[f"{agent}_low"] = Part(low, (low_view(example, i, none),), *both)
    high_level = ("mixer", *(f"{agent}_high" for agent in agents))
    team_loss = Loss(high_loss, high_level, "high_loss")
    subgoal_loss = Loss(low_loss, tuple(f"{agent}_low" for agent in agents), "low_loss")

    def update(net, batch):
        net = net.descend(team_loss, batch).descend(subgoal_loss, batch).update_targets()
        return net.report(epsilon=epsilon(net, config.exploration))

    def memory(n: int) -> Kept:
        zeros = jnp.zeros((n, len(agents)), jnp.int32)
        return Kept(zeros, zeros)

    return Recipe(
        parts=parts,
        act=act,
        losses=(team_loss, subgoal_loss),
        update=update,
        memory=memory,
        needs=("transitions.extras.subgoal", "transitions.extras.age"),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where QMIX does, and for an environment that tells no subgoals."""
    qmix.check(env, config, name)
    if not count_subgoals(env):
        raise UserError(
            f"{name} needs subgoals, privileged['reached'] and privileged['possible'], which "
            f"'{env.name}' does not tell; trash_grid does."
        )


gmah = AlgorithmBuilder("gmah", Config, recipe, check=check)

TINY = vdn.TINY_TRANSITIONS | {
    "env": "trash_grid",
    "env_params": {"size": 4},
    "mixing": 4,
    "patience": 3,
}
