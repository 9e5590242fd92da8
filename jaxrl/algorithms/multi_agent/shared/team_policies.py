"""PPO of several agents that act at once: policies of one agent or of several alike ones, critics
of the team or of each agent, and how all of them learn from one window.

What is of agents has an axis [K] of them after the batch, [..., K], also where K is 1. Policies may
have a memory, and so may critics that see no more than an agent does.

An agent that has died neither learns nor counts until the next episode: its steps are in no loss of
its policy, and advantages are standardized by the steps of living agents. A critic of agents ends
an agent's episode at its death.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared.views import View, check_agents, check_state, stack
from jaxrl.algorithms.policy_gradient.shared.actor_critic import standardize, surrogate
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.kit import SEQUENCE, STEP, Loss, LossOutput, Minibatch, Net, Part, Recipe, group, hyper
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts, Torso
from jaxrl.kit.minibatches import Unit
from jaxrl.kit.normalization import Moments, add, no_moments
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.recalling import Recalling

ADAM = Optimizer(learning_rate=7e-4, max_grad_norm=10.0, eps=1e-5, flat=True)
LEAST_DEVIATION = 0.1  # of targets; the code of MAPPO's authors bounds their variance below by 0.01


@group
class Settings:
    """Settings of PPO of several agents. Defaults are those of the code of MAPPO's authors for its
    particle environments."""

    rollouts: Rollouts = Rollouts(num_envs=128, num_steps=25)
    passes: Passes = Passes(epochs=15, minibatches=1)
    torso: Torso = Torso(hidden=(64, 64), activation="relu", initializer="orthogonal")
    """Torsos of each policy and of each critic; none is shared."""
    actor: Optimizer = ADAM
    """Optimizer of each policy."""
    critic: Optimizer = ADAM
    """Optimizer of each critic."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of a probability ratio around 1, beyond which its gradient is zero."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero, in standard
    deviations of the targets."""
    huber: float = hyper(10.0, above=0)
    """Huber threshold of value errors, in standard deviations of the targets; larger errors count
    linearly."""
    entropy_weight: float = hyper(0.01, low=0, log=True)
    """Weight of the entropy bonus."""


@dataclasses.dataclass(frozen=True, eq=False)
class Actors:
    """One policy of one agent, or of several alike ones.

    agents: names. view: what the policy sees, observations [..., K, *shape].
    critic: name of the critic whose advantages it follows.
    """

    agents: tuple[str, ...]
    view: View
    critic: str


@dataclasses.dataclass(frozen=True, eq=False)
class Critic:
    """One critic.

    view: what it sees. space: of an observation in that view, of one agent where it is of several.
    agents: those of whom it has a value each, [..., K]; none for the value of all, [...].
    recurrent: width of its memory; 0 for none.
    """

    view: View
    space: Space
    agents: tuple[str, ...] = ()
    recurrent: int = 0


@struct
class Sample:
    """Fields of each transition that a gradient step reads, [T, B] or rows of it.

    memory: of each network that has one, [1, B, K, D], before the window.
    """

    timestep: TimeStep
    action: Tree  # by policy, [..., K], like log_prob
    log_prob: Tree
    value: Tree  # by critic, like advantage and target; value and target are standardized
    advantage: Tree
    target: Tree
    memory: Tree = ()


def over_window(net: Net, name: str, timestep: TimeStep, memory: Tree) -> Any:
    """Apply a network to the time steps of a sample, or to windows if it has a memory, which was
    `memory[name]` [1, ...] before them."""
    part = getattr(net, name)
    if name not in (memory or {}):
        return part(timestep)
    return part(timestep, jax.tree.map(lambda m: m[0], memory[name]), unroll=True)[0]


def policy_loss(
    net: Net, x: Sample, policy: str, critic: str, view: View, numbers: np.ndarray
) -> LossOutput:
    """Compute the mean over a policy's living agents, by their `numbers`, of the clipped surrogate,
    with the advantages of `critic`, minus an entropy bonus."""
    action, log_prob, advantage = x.action[policy], x.log_prob[policy], x.advantage[critic]
    if advantage.ndim < log_prob.ndim:
        advantage = advantage[..., None]
    now = over_window(net, policy, view(x.timestep), x.memory)
    each = surrogate(now, action, log_prob, advantage, net.hyper.clip)
    terms = {name: mean_of_living(value, x.timestep, numbers) for name, value in each.items()}
    total = terms["policy_loss"] - net.hyper.entropy_weight * terms["entropy"]
    metrics = {f"{policy}_{name}": value for name, value in terms.items()}
    return LossOutput(total, metrics, drift=terms["approximate_kl"])


def value_loss(
    net: Net, x: Sample, critic: str, view: View, numbers: np.ndarray | None = None
) -> Array:
    """Compute the maximum of the Huber losses of the value and the clipped value.

    numbers: of the agents of whom the critic has a value each, for the mean over living ones.
    """
    h, old, target = net.hyper, x.value[critic], x.target[critic]
    value = over_window(net, critic, view(x.timestep), x.memory)
    near = old + jnp.clip(value - old, -h.value_clip, h.value_clip)
    error = jnp.maximum(losses.huber(value, target, h.huber), losses.huber(near, target, h.huber))
    return error if numbers is None else mean_of_living(error, x.timestep, numbers)


def estimate_advantages(
    net: Net,
    batch: Any,
    views: Mapping[str, View],
    rewards: Mapping[str, Array] | None = None,
    owners: Mapping[str, np.ndarray] | None = None,
    memory: Mapping[str, Tree] | None = None,
) -> tuple[Sample, dict[str, Moments]]:
    """Return the window with each critic's generalized advantages, standardized values and targets,
    and the statistics that include these targets; values are unstandardized by the statistics
    before them.

    rewards: what each critic predicts, shaped as its values, [T, B] or [T, B, K] for K agents; by
        default the reward that all share.
    owners: of critics with a value for each of K agents, their numbers [K] among those that may
        die.
    memory: of the networks that have one, [B, K, D], before the window.
    """
    x, h, memory = batch.transitions, net.hyper, memory or {}
    values, gains, targets, moments = {}, {}, {}, {}
    for name, view in views.items():
        before = net.extra[name]
        values[name], following = _values(
            getattr(net, name), view(x.timestep), view(x.next_timestep), memory.get(name)
        )
        value, next_value = (_unstandardize(v, before) for v in (values[name], following))
        reward = x.reward if rewards is None else rewards[name]
        dead, counts = _dead(x.next_timestep, name, owners), None
        terminated, done = (_like(reward, end) for end in (x.terminated, x.done))
        if dead is not None:
            terminated, done = terminated | dead, done | dead
            counts = ~_dead(x.timestep, name, owners)
        gains[name] = losses.gae(
            reward, value, next_value, terminated, done, h.discount, h.gae_lambda
        )
        target = gains[name] + value
        moments[name] = add(before, target, counts)
        targets[name] = (target - moments[name].mean) / _deviation(moments[name])
    memory = jax.tree.map(lambda m: m[None], memory)
    log_prob = x.extras["log_prob"]
    return Sample(x.timestep, x.action, log_prob, values, gains, targets, memory), moments


def _values(
    critic: Any, timestep: TimeStep, next_timestep: TimeStep, memory: Tree | None
) -> tuple[Array, Array]:
    """Return a critic's values of a window's time steps and of their successors; None for the
    memory of a critic that has none."""
    if memory is None:
        return critic(timestep), critic(next_timestep)
    value, memories = critic(timestep, memory, unroll=True)
    return value, jax.vmap(lambda t, m: critic(t, m)[0])(next_timestep, memories)


def _dead(timestep: TimeStep, critic: str, owners: Mapping[str, np.ndarray] | None) -> Any:
    """Return where the agents that a critic's values are of have died, shaped as these; None for
    critics of all, and where nobody dies."""
    if timestep.alive is None or critic not in (owners or {}):
        return None
    return ~timestep.alive[..., owners[critic]]  # type: ignore[index]


def living(minibatch: Minibatch, numbers: np.ndarray | None) -> Minibatch:
    """Mask the steps of a minibatch of samples in which none of some agents is alive; others weigh
    as much as there are living ones, for a loss that is a mean over these (`mean_of_living`).

    numbers: of the agents, [K]; None for a loss of all.
    """
    alive = minibatch.x.timestep.alive
    if alive is None or numbers is None:
        return minibatch
    count = alive[..., numbers].sum(-1)
    mask = count > 0 if minibatch.mask is None else minibatch.mask & (count > 0)
    weight = count / jnp.maximum(losses.masked_mean(count.astype(jnp.float32), mask), 1e-8)
    weight = weight if minibatch.weight is None else minibatch.weight * weight
    return dataclasses.replace(minibatch, mask=mask, weight=weight)


def mean_of_living(values: Array, timestep: TimeStep, numbers: np.ndarray) -> Array:
    """Return the mean [...] of values [..., K] over those of K agents, by their numbers, that are
    alive; 0 where none is."""
    if timestep.alive is None:
        return values.mean(-1)
    return losses.masked_mean(jnp.asarray(values, jnp.float32), timestep.alive[..., numbers], -1)


def standardize_living(
    sample: Sample, followers: Mapping[str, Sequence[int] | np.ndarray]
) -> Sample:
    """Standardize the advantages of a sample over the steps of agents that are alive.

    followers: numbers of the agents that follow each critic's advantages; a step counts as often as
        there are living ones. Advantages [..., K] of K agents are those of each follower.
    """
    alive = sample.timestep.alive
    if alive is None:
        return standardize(sample)

    def of(advantage: Array, agents: Sequence[int] | np.ndarray) -> Array:
        weight = alive[..., np.array(agents)]
        weight = weight if advantage.ndim == weight.ndim else weight.sum(-1)
        weight = weight / jnp.maximum(weight.sum(), 1)
        mean = (weight * advantage).sum()
        deviation = jnp.sqrt((weight * jnp.square(advantage - mean)).sum())
        return (advantage - mean) / (deviation + 1e-8)

    advantage = {name: of(gain, followers[name]) for name, gain in sample.advantage.items()}
    return dataclasses.replace(sample, advantage=advantage)


def _like(reward: Array, end: Array) -> Array:
    """Repeat the end of a step [T, B] for every agent that `reward` has, [T, B] or [T, B, K]."""
    return end if end.ndim == reward.ndim else jnp.broadcast_to(end[..., None], reward.shape)


def _unstandardize(value: Array, moments: Moments) -> Array:
    return value * _deviation(moments) + moments.mean


def _deviation(moments: Moments) -> Array:
    return jnp.maximum(moments.deviation, LEAST_DEVIATION)


def unit_of(memory: Tree) -> Unit:
    """Return what minibatches keep together: sequences if networks have a memory."""
    return SEQUENCE if jax.tree.leaves(memory) else STEP


def descend_in_passes(
    net: Net,
    sample: Sample,
    batch: Any,
    passes: Passes,
    policy_losses: Sequence[Loss],
    value_losses: Sequence[Loss],
    numbers: Mapping[str, np.ndarray],
) -> Net:
    """Descend all losses in passes over a window of a sample whose advantages are standardized,
    until a policy has moved too far from the one that acted.

    numbers: of the agents of each loss that is not of all, by its name (`living`).
    """

    def step(net: Net, minibatch: Any) -> Net:
        drifts = []
        for loss in policy_losses:
            net = net.descend(loss, living(minibatch, numbers.get(loss.name)))
            drifts.append(net.drift)
        for loss in value_losses:
            net = net.descend(loss, living(minibatch, numbers.get(loss.name)))
        return net.replace(drift=jnp.stack(drifts).max())

    window, limit = Minibatch(sample, batch.mask, batch.weight), net.hyper.passes.target_kl
    return net.epochs(passes, window, step, unit=unit_of(sample.memory), max_drift=limit)


@dataclasses.dataclass(frozen=True, eq=False)
class Cast:
    """Policies and critics by name, of the agents of `env`."""

    env: Environment
    actors: Mapping[str, Actors]
    critics: Mapping[str, Critic]

    @functools.cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """Numbers of the agents of each policy, and of each critic that is of some."""
        order = agent_names(self.env)
        several = {n: x.agents for n, x in (*self.actors.items(), *self.critics.items())}
        return {n: np.array([order.index(a) for a in x]) for n, x in several.items() if x}

    @functools.cached_property
    def owners(self) -> dict[str, np.ndarray]:
        """Numbers of the agents of each critic that is of some."""
        return {name: own for name, own in self.numbers.items() if name in self.critics}

    def sample(self, net: Net, batch: Any) -> tuple[Sample, dict[str, Moments]]:
        """Return the window with actions by policy and standardized advantages, and the new
        statistics of the targets."""
        x, views = batch.transitions, {name: c.view for name, c in self.critics.items()}
        ndim, rewards = x.terminated.ndim, {}
        for name in self.critics:
            rewards[name], own = x.reward, self.owners.get(name)
            if own is not None and x.reward.ndim > ndim:
                rewards[name] = x.reward[..., own]
            elif own is not None:
                rewards[name] = jnp.repeat(x.reward[..., None], len(own), -1)
        sample, moments = estimate_advantages(
            net, batch, views, rewards, self.owners, batch.memory or None
        )
        action = {name: stack(x.action, own.agents, ndim) for name, own in self.actors.items()}
        followers: dict[str, list[int]] = {name: [] for name in self.critics}
        for name, actors in self.actors.items():
            followers[actors.critic] += list(self.numbers[name])
        sample = dataclasses.replace(sample, action=action)
        return standardize_living(sample, followers), moments


def cast_recipe(cast: Cast, config: Any, recurrent: int = 0) -> Recipe:
    """Return the recipe of PPO of these policies and critics.

    config: `Settings`. recurrent: width of the memory of each policy; 0 for none.
    """
    env, torso = cast.env, config.torso
    example, spaces = example_timestep(env, agents=True), env.observation_space
    sizes = torso.hidden, torso.activation, torso.initializer
    parts, shapes, policy_losses, value_losses = {}, {}, [], []

    def part(name: str, make: Any, space: Space, view: View, width: int, optimizer: Any) -> Part:
        """Return the part of the network that `make` makes for a space, behind a memory if any."""
        if not width:
            return Part(make(space), (view(example),), optimizer)
        shapes[name] = len(cast.numbers[name]), width
        within = make(Box(-INF, INF, (width,)))
        network = Recalling(within, space, width, torso.activation, torso.initializer)
        return Part(network, (view(example), jnp.zeros((1, *shapes[name]))), optimizer)

    for name, actors in cast.actors.items():
        first, view = actors.agents[0], actors.view
        acts = env.action_space[first]  # type: ignore[index]
        make = lambda space, acts=acts: Actor(space, acts, *sizes)
        parts[name] = part(name, make, spaces[first], view, recurrent, config.actor)
        learn = functools.partial(
            policy_loss, policy=name, critic=actors.critic, view=view, numbers=cast.numbers[name]
        )
        policy_losses.append(Loss(learn, (name,), f"{name}_loss"))
    for name, critic in cast.critics.items():
        make = lambda space: Value(space, *sizes)
        parts[name] = part(name, make, critic.space, critic.view, critic.recurrent, config.critic)
        own = cast.owners.get(name)
        fit = functools.partial(value_loss, critic=name, view=critic.view, numbers=own)
        value_losses.append(Loss(fit, (name,), f"{name}_loss"))
    of_loss = {f"{name}_loss": own for name, own in cast.numbers.items()}

    def remember(net: Net, name: str, timestep: TimeStep, memory: dict[str, Array]) -> Any:
        """Apply a network as it acts; put its new memory in the place of the old one."""
        if name not in memory:
            return getattr(net, name)(timestep)
        output, memory[name] = getattr(net, name)(timestep, memory[name])
        return output

    def act(net, timestep, memory, key, greedy):
        action, log_prob, after = {}, {}, dict(memory or {})
        for name, actors in cast.actors.items():
            policy = remember(net, name, actors.view(timestep), after)
            chosen = jax.lax.stop_gradient(choose(policy, net.key(name), greedy))
            log_prob[name] = policy.log_prob(chosen)
            for i, agent in enumerate(actors.agents):
                action[agent] = jax.tree.map(lambda x, i=i: x[:, i], chosen)
        for name, critic in cast.critics.items():
            if critic.recurrent:
                remember(net, name, critic.view(timestep), after)
        return action, after if shapes else memory, {"log_prob": log_prob}

    def update(net, batch):
        sample, moments = cast.sample(net, batch)
        return descend_in_passes(
            net.replace(extra=moments),
            sample,
            batch,
            config.passes,
            policy_losses,
            value_losses,
            of_loss,
        )

    blank = lambda n: {name: jnp.zeros((n, *shape)) for name, shape in shapes.items()}
    return Recipe(
        parts=parts,
        act=act,
        losses=(*policy_losses, *value_losses),
        update=update,
        extra={critic: no_moments(()) for critic in cast.critics},
        memory=blank if shapes else (lambda n: ()),
        needs=("transitions.extras.log_prob", *(("memory",) if shapes else ())),
        num_shards=config.rollouts.num_shards,
    )


def check_windows(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless `env` has several agents, and for a window that does not divide into
    the minibatches."""
    check_agents(env, name)
    x, unit = config.rollouts, SEQUENCE if getattr(config, "recurrent", 0) else STEP
    config.passes.check(x.num_envs, x.num_steps, x.num_shards, unit)


def check_central(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where `check_windows` does, and for an environment that does not expose its
    state, which the critic sees."""
    check_windows(env, config, name)
    check_state(env, f"The critic of {name}", "ippo")
