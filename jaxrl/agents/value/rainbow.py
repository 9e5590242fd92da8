"""Rainbow, and everything between it and DQN: each of its six parts is an option.

Hessel et al. (2018), "Rainbow: combining improvements in deep reinforcement learning"
(arXiv:1710.02298), of: Mnih et al. (2015), "Human-level control through deep reinforcement
learning"; double Q-learning (van Hasselt et al., 2016); prioritised replay (Schaul et al., 2016);
duelling networks (Wang et al., 2016); n-step returns (Sutton, 1988); C51 (Bellemare et al., 2017,
arXiv:1707.06887); noisy networks (Fortunato et al., 2018).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import losses
from jaxrl.agents.value.n_step import n_step
from jaxrl.core import schedules, trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, static
from jaxrl.core.learn import learn
from jaxrl.core.spaces import Box
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info, TimeStep, Tree, struct
from jaxrl.kit.optimisation import TRANSFORMS, descend, transform
from jaxrl.networks.heads import ILLEGAL, check_discrete
from jaxrl.networks.q_network import QNetwork
from jaxrl.networks.torsos import ACTIVATIONS
from jaxrl.sources import proportional, replay, rollouts
from jaxrl.sources.samplers import UNIFORM


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Rainbow."""

    double: bool = True
    """The online network chooses the next action, the target network values it."""
    dueling: bool = True
    """Two streams, value and advantages."""
    num_atoms: int = static(51, low=1, high=WIDE)
    """Atoms of a return's distribution; 1 for its mean alone."""
    noisy: bool = True
    """Explore by noisy weights; else by a random action with probability `epsilon`."""
    prioritised: bool = True
    """Replay what was least expected more often."""
    n_step: int = static(3, low=1)
    """Rewards in a target before the value that it bootstraps from."""

    num_envs: int = static(16, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(4, low=1, high=MANY)
    """Steps of each environment between two updates."""
    updates: int = static(16, low=1)
    """Gradient steps after each window of num_envs * num_steps steps."""
    batch_size: int = static(32, low=1, high=MANY)
    """Transitions in a gradient step."""
    capacity: int = static(100_000, low=1)
    """Transitions that the replay holds."""
    warmup: int = static(1000, low=0)
    """Environment steps, of the initial policy, before the first update."""
    target_period: int = static(500, low=1)
    """Gradient steps between two moves of the target network."""
    num_shards: int = static(1, low=1)
    """Logical shards of the environments: how many devices can share a run at most."""

    channels: tuple[int, ...] = static((), low=1, high=WIDE)
    """Channels of 3 x 3 convolutions, for images [height, width, channels]; none flattens them."""
    hidden: tuple[int, ...] = static((128, 128), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers; the last one is the head's."""
    activation: str = static("relu", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    optimiser: str = static("adam", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(5e-4, low=0)
    """Step size."""
    max_grad_norm: float = hyper(10.0, above=0, high=math.inf)
    """Longer gradients are scaled down to this global norm; infinite for none."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    target_step: float = hyper(1.0, low=0, high=1)
    """How far the target network moves towards the online one; 1 for a copy."""
    lowest_return: float = hyper(-10.0)
    """The first atom, where there is more than one."""
    highest_return: float = hyper(10.0)
    """The last atom."""
    huber: float = hyper(1.0, above=0)
    """Errors above this count linearly, where there is one atom."""

    epsilon: float = hyper(1.0, low=0, high=1)
    """Probability of a random action at the start, unless noisy."""
    epsilon_end: float = hyper(0.05, low=0, high=1)
    """Probability of a random action after `epsilon_steps`."""
    epsilon_steps: float = hyper(10_000.0, above=0, high=math.inf)
    """Environment steps over which it falls; infinite: it does not."""
    priority_exponent: float = hyper(0.5, low=0)
    """Of priorities; 0 draws uniformly."""
    importance_exponent: float = hyper(0.4, low=0, high=1)
    """Of importance weights, at the start; 1 corrects for the priorities in full."""
    importance_steps: float = hyper(math.inf, above=0, high=math.inf)
    """Environment steps over which it grows to 1; infinite: it does not."""


SAMPLING = ("priority_exponent", "importance_exponent", "importance_steps")  # the replay's


@dataclasses.dataclass(frozen=True)
class DQNConfig(Config):
    """DQN's: each part of Rainbow is off unless it is asked for."""

    double: bool = False
    """The online network chooses the next action, the target network values it."""
    dueling: bool = False
    """Two streams, value and advantages."""
    num_atoms: int = static(1, low=1, high=WIDE)
    """Atoms of a return's distribution; 1 for its mean alone."""
    noisy: bool = False
    """Explore by noisy weights; else by a random action with probability `epsilon`."""
    prioritised: bool = False
    """Replay what was least expected more often."""
    n_step: int = static(1, low=1)
    """Rewards in a target before the value that it bootstraps from."""


@dataclasses.dataclass(frozen=True)
class C51Config(DQNConfig):
    """DQN's with a distribution in place of its mean."""

    num_atoms: int = static(51, low=1, high=WIDE)
    """Atoms of a return's distribution; 1 for its mean alone."""


@struct
class State:
    params: Tree
    target: Tree
    optimiser: Tree
    updates: Array  # int32
    frames: Array  # float32: environment steps at the last update; drives epsilon
    hyper: dict[str, Any]


def agent(env: Environment, config: Config, name: str = "rainbow") -> Agent:
    """Rainbow's agent for `env`, which learns from windows [n_step, B], weighted or not, and feeds
    priorities [B] back. `name` is what this choice of its parts is called."""
    _check(env, config, name)
    network: Any = QNetwork(
        env.observation_space,
        env.action_space.n,
        config.num_atoms,
        config.channels,
        config.hidden,
        config.activation,
        config.dueling,
        config.noisy,
    )
    optimiser = transform(config.optimiser)
    distributional = config.num_atoms > 1
    own = {name: value for name, value in hypers(config).items() if name not in SAMPLING}

    def init(key, hyper):
        params = network.init(key, example_timestep(env))
        return State(
            params,
            jax.tree.map(jnp.copy, params),
            optimiser.init(params),
            jnp.int32(0),
            jnp.float32(0),
            {name: jnp.asarray(hyper[name]) for name in own},
        )

    def outputs(params, timestep: TimeStep, key=None) -> Array:
        """[B, actions, atoms]; by mean weights unless there is a `key`."""
        noise = {"noise": key} if config.noisy and key is not None else {}
        return network.apply(params, timestep, rngs=noise)

    def support(hyper) -> Array:
        fraction = jnp.linspace(0.0, 1.0, config.num_atoms)
        return schedules.linear(hyper["lowest_return"], hyper["highest_return"], fraction)

    def values(outputs, timestep: TimeStep, hyper) -> Array:
        """[B, actions], those that are illegal far below all others."""
        q = losses.categorical_mean(outputs, support(hyper)) if distributional else outputs[..., 0]
        legal = timestep.legal_actions
        return q if legal is None else jnp.where(legal, q, ILLEGAL)

    def act(state, timestep, memory, key, greedy):
        noise_key, explore_key, action_key = jax.random.split(key, 3)
        q = values(
            outputs(state.params, timestep, None if greedy else noise_key), timestep, state.hyper
        )
        action = q.argmax(-1).astype(env.action_space.dtype)
        if greedy or config.noisy:
            return action, memory, {}
        random = jax.random.categorical(action_key, jnp.where(q > ILLEGAL, 0.0, ILLEGAL))
        explore = jax.random.uniform(explore_key, action.shape) < epsilon(state)
        return jnp.where(explore, random.astype(action.dtype), action), memory, {}

    def epsilon(state) -> Array:
        h = state.hyper
        done = schedules.progress(state.frames, h["epsilon_steps"])
        return schedules.linear(h["epsilon"], h["epsilon_end"], done)

    def target(state, transition, discount, keys) -> Array:
        """[B], or probabilities [B, atoms]."""
        following = transition.next_timestep
        evaluated = outputs(state.target, following, keys[0])
        chosen = outputs(state.params, following, keys[1]) if config.double else evaluated
        if not distributional:
            q = values(evaluated, following, state.hyper)
            selector = values(chosen, following, state.hyper)
            return losses.double_q_target(
                transition.reward, transition.terminated, discount, q, selector
            )
        # What is illegal has all its mass at the lowest return, so that it is never chosen before
        # what is legal.
        return losses.categorical_double_q_target(
            transition.reward,
            transition.terminated,
            discount,
            evaluated,
            _lowest(chosen, following.legal_actions),
            support(state.hyper),
        )

    def errors(params, transition, target, key, hyper) -> tuple[Array, Array]:
        """Loss and priority of each transition, [B]."""
        taken = jax.vmap(lambda row, action: row[action])
        predicted = taken(outputs(params, transition.timestep, key), transition.action)
        if not distributional:
            error = losses.huber(predicted[..., 0], target, hyper["huber"])
            return error, jnp.abs(predicted[..., 0] - target)
        cross_entropy = losses.categorical_cross_entropy(predicted, target)
        entropy = -jax.scipy.special.xlogy(target, target).sum(-1)
        return cross_entropy, jnp.maximum(cross_entropy - entropy, 0.0)  # Rainbow: the KL

    def update(state, batch, key):
        *target_keys, key = jax.random.split(key, 3)
        hyper = state.hyper
        transition = n_step(batch, hyper["discount"]).transitions
        discount = transition.extras["discount"]
        goal = target(state, transition, discount, target_keys)

        def loss(params):
            error, priority = errors(params, transition, goal, key, hyper)
            weight = 1.0 if batch.weight is None else batch.weight
            return (weight * error).mean(), priority

        (value, priority), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        params, optimiser_state, norm = descend(
            optimiser,
            gradient,
            state.optimiser,
            state.params,
            hyper["learning_rate"],
            hyper["max_grad_norm"],
        )
        updates = state.updates + 1
        moved = optax.incremental_update(params, state.target, hyper["target_step"])
        target_params = trees.where(updates % config.target_period == 0, moved, state.target)
        metrics = {
            "loss": value,
            "priority": priority.mean(),
            "grad_norm": norm,
            "weight_norm": optax.tree.norm(params),
        }
        if not config.noisy:
            metrics["epsilon"] = epsilon(state)
        state = State(params, target_params, optimiser_state, updates, batch.frames, hyper)
        return state, Info(metrics, feedback=priority)

    return Agent(name, init, act, update, hyper=own, config=config)


def _lowest(logits: Array, legal_actions: Array | None) -> Array:
    """Logits [..., actions, atoms], those of an illegal action all at the first atom."""
    if legal_actions is None:
        return logits
    first = jnp.where(jnp.arange(logits.shape[-1]) == 0, 0.0, ILLEGAL)
    return jnp.where(legal_actions[..., None], logits, first)


def rainbow(env: Environment, config: Config = Config()) -> Algorithm:
    """Rainbow on `env`, learning from replay. The same arguments give the same object.

    Raises `UserError` where env and config do not fit: actions that are not Discrete, channels for
    what is no image, a replay that is too small, a setting that is out of its range.
    """
    return _build(env, config, "rainbow")  # however arguments are passed, one cached object


def dqn(env: Environment, config: DQNConfig = DQNConfig()) -> Algorithm:
    """DQN on `env`: see `rainbow`."""
    return _build(env, config, "dqn")


def c51(env: Environment, config: C51Config = C51Config()) -> Algorithm:
    """C51 on `env`: see `rainbow`."""
    return _build(env, config, "c51")


@functools.cache
def _build(env: Environment, config: Config, name: str) -> Algorithm:
    learner = agent(env, config, name)
    sampler = UNIFORM
    if config.prioritised:
        sampler = proportional(
            config.priority_exponent, config.importance_exponent, config.importance_steps
        )
    source = replay(
        rollouts(env, config.num_envs, config.num_steps),
        config.capacity,
        config.batch_size,
        config.n_step,
        sampler,
        max(config.warmup, config.n_step * config.num_envs),
        num_shards=config.num_shards,
    )
    return learn(learner, source, config.updates)


def _check(env: Environment, config: Config, name: str) -> None:
    check(config)
    check_discrete(env.action_space, name)
    space = env.observation_space
    if config.channels and not (isinstance(space, Box) and len(space.shape) == 3):
        raise UserError(
            f"channels is {config.channels}, but '{env.name}' observes {space!r}; convolutions need"
            " images [height, width, channels]."
        )
    if config.num_atoms > 1 and not config.lowest_return < config.highest_return:
        raise UserError(
            f"lowest_return is {config.lowest_return} and highest_return {config.highest_return}; "
            "the atoms lie between them, in this order."
        )
