"""Stackelberg mean-field reinforcement learning, SMFRL (Mi et al., 2024, "Learning macroeconomic
policies based on microfoundations: a Stackelberg mean field game approach", arXiv:2403.12093).

A leader, such as a government, acts on a population of followers, who share one policy. In each
step the leader acts by what all see; each follower then acts by its own observation and the
leader's action. All learn by DDPG from one replay buffer. A follower's critic sees its observation
and action, the leader's action, and of all others only the means of observations and actions; the
leader's critic sees what the leader sees and does, and both means. For the next action values the
leader acts first and the followers answer it; and the leader's policy maximizes its critic at the
followers' mean answer to its own action, where no gradient goes through that answer. Followers
first clone the environment's expert for `cloning_steps`, in which nobody learns from rewards.

From the authors' code are the inputs of policies and critics, who is a target network and who is
not (own policies are, those of the others are not), the rate of target networks and the discount,
as well as a gradient of the followers' policy that passes through the mean action, so that they
move the population together. With `through_mean` false a follower takes the mean as given, as a
player of a mean field game does. There the cloned behavior is that of households in survey data,
noise is one vector of size 0.01 for all, and inputs of critics have layers of their own before they
meet; the expert, noise for each follower, one network on all inputs and Adam's settings are ours.

Each evaluation asks how much a single follower could gain: `follower_gain` is the most that the
first one gains in return if it alone shifts all its actions by one of `shifts` x `shifts` vectors,
each of whose components is at most half of the action's half-width. That is a lower bound of what
it can gain by any other policy.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Policy, Source, TimeStep, Transition
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION, expert_channel
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.composing import descend_where
from jaxrl.kit.groups import INF, Optimizer, Replay, Target, Torso
from jaxrl.networks.critics import DeterministicActor, Value
from jaxrl.networks.heads import check_bounded, scale

LEADER, FOLLOWERS = "government", "households"
REWARDS = "rewards"  # of each follower, in `TimeStep.privileged`
GAIN = "follower_gain"
ADAM = Optimizer(learning_rate=3e-4, max_grad_norm=1.0)


@group
class Config:
    """Settings of SMFRL. Rates and discount are those of the authors' code."""

    replay: Replay = Replay(num_envs=16, num_steps=1, updates=1, batch_size=64, capacity=20_000)
    torso: Torso = Torso(hidden=(128, 128), activation="relu")
    """Hidden layers of each policy and each critic."""
    actor: Optimizer = ADAM
    """Optimizer of each policy."""
    critic: Optimizer = ADAM
    """Optimizer of each critic."""
    target: Target = Target(rate=0.05)
    """Target networks of policies and critics."""
    through_mean: bool = True
    """Let the gradient of the followers' policy pass through their mean action."""
    shifts: int = static(3, low=0)
    """Shifts of each action component that an evaluation tries for one follower; 0 for none."""
    shifted: int = static(64, low=1)
    """Episodes of each shift."""

    discount: float = hyper(0.975, low=0, high=1)
    """Discount factor per step."""
    noise: float = hyper(0.1, low=0, high=INF)
    """Standard deviation of the noise on actions, in half-widths of their bounds."""
    cloning_steps: float = hyper(16_384.0, low=0, high=INF)
    """Environment steps at first in which followers clone the environment's expert."""


def join(timestep: TimeStep, *inputs: Array) -> TimeStep:
    """Return the time step whose observation is all `inputs` [..., D], joined along the last axis;
    inputs without the axis of followers are repeated for each."""
    shape = jnp.broadcast_shapes(*(x.shape[:-1] for x in inputs))
    joined = jnp.concatenate([jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in inputs], -1)
    changes = {"observation": joined, "legal_actions": None, "privileged": None}
    return dataclasses.replace(timestep, **changes)


def lead(actor: Any, timestep: TimeStep) -> Array:
    """Return the leader's action [..., A] by its policy."""
    return actor(join(timestep, timestep.observation[LEADER]))


def follow(actor: Any, timestep: TimeStep, action: Array) -> Array:
    """Return the followers' actions [..., N, B], by their policy, after the leader's `action`."""
    return actor(join(timestep, timestep.observation[FOLLOWERS], action[..., None, :]))


def follower_values(critic: Any, timestep: TimeStep, action: Array, answers: Array, mean: Array):
    """Return the value [..., N] of each follower's action in `answers`, where all others together
    do `mean` [..., 1, B]."""
    own = timestep.observation[FOLLOWERS]
    return critic(
        join(timestep, own, action[..., None, :], answers, own.mean(-2, keepdims=True), mean)
    )


def leader_value(critic: Any, timestep: TimeStep, action: Array, answers: Array) -> Array:
    """Return the value [...] of the leader's action, with the followers' mean state and answer."""
    own = timestep.observation[FOLLOWERS].mean(-2)
    return critic(join(timestep, timestep.observation[LEADER], action, own, answers.mean(-2)))


def mean_of(answers: Array) -> Array:
    """Return the mean action [..., 1, B] of all followers."""
    return answers.mean(-2, keepdims=True)


@loss("households_critic")
def follower_critic_loss(net: Net, x: Transition) -> LossOutput:
    """Regress each follower's value on its reward and the next value, where the leader is first."""
    after = x.next_timestep
    action = lead(net.government, after)
    answers = follow(net.target.households, after, action)
    following = follower_values(
        net.target.households_critic, after, action, answers, mean_of(answers)
    )
    target = losses.td_target(
        after.privileged[REWARDS], x.terminated[..., None], net.hyper.discount, following
    )
    done = x.action[FOLLOWERS]
    value = follower_values(
        net.households_critic, x.timestep, x.action[LEADER], done, mean_of(done)
    )
    error = losses.squared_error(value, target).mean(-1)
    return LossOutput(error, {"households_value": value.mean(-1)})


def follower_loss(net: Net, x: Transition, through_mean: bool = True) -> Array:
    """Maximize the followers' values of their answers to the leader's action in the data.

    through_mean: let the gradient pass through their mean action.
    """
    action = x.action[LEADER]
    answers = follow(net.households, x.timestep, action)
    mean = mean_of(answers)
    mean = mean if through_mean else jax.lax.stop_gradient(mean)
    return -follower_values(net.households_critic, x.timestep, action, answers, mean).mean(-1)


@loss("government_critic")
def leader_critic_loss(net: Net, x: Transition) -> LossOutput:
    """Regress the leader's value on its reward and the next one, which the followers answer."""
    after = x.next_timestep
    action = lead(net.target.government, after)
    answers = follow(net.households, after, action)
    following = leader_value(net.target.government_critic, after, action, answers)
    target = losses.td_target(x.reward[..., 0], x.terminated, net.hyper.discount, following)
    value = leader_value(net.government_critic, x.timestep, x.action[LEADER], x.action[FOLLOWERS])
    return LossOutput(losses.squared_error(value, target), {"government_value": value})


@loss("government")
def leader_loss(net: Net, x: Transition) -> Array:
    """Maximize the leader's value at the followers' answer to its action."""
    action = lead(net.government, x.timestep)
    answers = jax.lax.stop_gradient(follow(net.households, x.timestep, action))
    return -leader_value(net.government_critic, x.timestep, action, answers)


@loss("households", name="cloning_loss")
def cloning_loss(net: Net, x: Transition) -> Array:
    """Compute the squared error of the followers' answers to the expert leader's action."""
    expert = x.timestep.privileged[EXPERT_ACTION]
    answers = follow(net.households, x.timestep, expert[LEADER])
    return losses.squared_error(answers, expert[FOLLOWERS]).sum(-1).mean(-1)


def one_of(space: Any) -> Any:
    """Return the space of one follower, a vector, from that of all [N, B]."""
    low, high = (tuple(x[0].tolist()) for x in spaces.bounds(space))
    return Box(low, high, space.shape[1:])


def recipe(env: Environment, config: Config) -> Recipe:
    example = example_timestep(env, agents=True)
    acts: Any = env.action_space
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    done = {name: spaces.example(space)[None] for name, space in acts.items()}
    common, own = (example.observation[name] for name in (LEADER, FOLLOWERS))
    leading, following = done[LEADER], done[FOLLOWERS]
    mean = following.mean(-2)
    inputs = {
        LEADER: join(example, common),
        FOLLOWERS: join(example, own, leading[..., None, :]),
        "government_critic": join(example, common, leading, own.mean(-2), mean),
        "households_critic": join(
            example, own, leading[..., None, :], following, own, mean[..., None, :]
        ),
    }
    parts = {}
    for name, view in inputs.items():
        sees = Box(-INF, INF, view.observation.shape[-1:])
        if name.endswith("critic"):
            network: Any = Value(sees, *torso)
        else:
            space = acts[name] if name == LEADER else one_of(acts[name])
            network = DeterministicActor(sees, space, *torso)
        optimizer = config.critic if name.endswith("critic") else config.actor
        parts[name] = Part(network, (view,), optimizer, config.target)
    improve = Loss(
        functools.partial(follower_loss, through_mean=config.through_mean),
        ("households",),
        "follower_loss",
    )

    def disturb(net: Net, name: str, action: Array, greedy: bool) -> Array:
        if greedy:
            return action
        size = net.hyper.noise * scale(acts[name])[1]
        noisy = action + size * jax.random.normal(net.key(name), action.shape)
        return spaces.clip(acts[name], noisy)

    def act(net, timestep, memory, key, greedy):
        action = disturb(net, LEADER, lead(net.government, timestep), greedy)
        answers = disturb(net, FOLLOWERS, follow(net.households, timestep, action), greedy)
        return {LEADER: action, FOLLOWERS: answers}, memory, {}

    learning = (follower_critic_loss, leader_critic_loss, improve, leader_loss)

    def update(net: Net, batch: Any) -> Net:
        def learn(net: Net) -> Net:
            for each in learning:
                net = net.descend(each, batch)
            return net

        cloning = net.env_steps < net.hyper.cloning_steps
        net = descend_where(net, cloning, lambda net: net.descend(cloning_loss, batch))
        return descend_where(net, ~cloning, learn).update_targets()

    return Recipe(
        parts=parts,
        act=act,
        losses=(*learning, cloning_loss),
        update=update,
        scores={GAIN: "gain of one follower"} if config.shifts else {},
    )


def source(env: Environment, config: Config) -> Source:
    return config.replay.source(expert_channel(env))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless a government and households, each with a reward and continuous
    actions, act at once, and there is an expert to clone."""
    acts = env.action_space
    agents = env.agents == (LEADER, FOLLOWERS) and isinstance(acts, dict)
    if not agents or REWARDS not in (example_timestep(env, agents=True).privileged or {}):
        raise UserError(
            f"{name} cannot act in '{env.name}': it needs the agents {LEADER} and {FOLLOWERS}, and "
            "a reward for each household, like tax_economy."
        )
    for agent, space in acts.items():
        check_bounded(space, f"{name}'s agent '{agent}'")
    if env.expert is None:
        raise UserError(f"{name} clones an expert; '{env.name}' has none.")


@functools.cache
def of_first(env: Environment) -> Environment:
    """Return `env` with the reward of its first follower alone, to evaluate in."""

    def pay(result: tuple[Any, TimeStep]) -> tuple[Any, TimeStep]:
        state, timestep = result
        return state, dataclasses.replace(timestep, reward=timestep.privileged[REWARDS][0])

    return dataclasses.replace(
        env,
        reset=lambda key, params: pay(env.reset(key, params)),
        step=lambda key, state, action, params: pay(env.step(key, state, action, params)),
        agents=(),
    )


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the most that one follower gains by a shift of its actions."""
    if not config.shifts:
        return {}
    acts: Any = env.action_space
    half_width = scale(one_of(acts[FOLLOWERS]))[1]
    line = jnp.linspace(-0.5, 0.5, config.shifts)
    grids = jnp.meshgrid(*[line] * len(half_width))
    shifts = jnp.stack(grids, -1).reshape(-1, len(half_width)) * half_width
    shifts = jnp.concatenate([jnp.zeros((1, len(half_width))), shifts])

    def act(state, timestep, memory, key, greedy):
        inner, shift = state
        action, memory, extras = policy.act(inner, timestep, memory, key, greedy)
        moved = action[FOLLOWERS].at[..., 0, :].add(shift)
        return action | {FOLLOWERS: spaces.clip(acts[FOLLOWERS], moved)}, memory, extras

    def returns(shift: Array) -> Array:
        shifted = Policy(act, policy.memory, (policy.state, shift))
        return evaluate(of_first(env), shifted, key, config.shifted).returns.mean()

    found = jax.lax.map(returns, shifts)
    return {GAIN: found.max() - found[0]}


smfg = AlgorithmBuilder("smfg", Config, recipe, source=source, check=check, measure=measure)

TINY = {
    "env": "tax_economy",
    "env_params": {"households": 10, "years": 6},
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (5,),
    "cloning_steps": 25,
    "shifts": 1,
    "shifted": 2,
}
