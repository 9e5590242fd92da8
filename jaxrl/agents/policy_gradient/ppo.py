"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347).

Act for a window of steps; then, for several epochs over shuffled minibatches of it, descend the
clipped surrogate of the policy, a value loss and an entropy bonus (their equation 9), with
generalised advantages (Schulman et al., 2016). Details follow Andrychowicz et al. (2021).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl import losses
from jaxrl.core import schedules, shuffle, trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, select, static
from jaxrl.core.learn import learn
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import (
    Agent,
    Algorithm,
    Array,
    Environment,
    Info,
    TimeStep,
    Tree,
    struct,
)
from jaxrl.kit import minibatches
from jaxrl.kit.normalization import normalize_observation, normalize_reward
from jaxrl.kit.optimisation import TRANSFORMS, accumulated_gradient, descend, transform
from jaxrl.networks.actor_critic import ActorCritic, check_transformer, context, unroll
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.initialisers import INITIALISERS
from jaxrl.networks.torsos import ACTIVATIONS
from jaxrl.sources.rollouts import rollouts


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PPO."""

    num_envs: int = static(64, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(128, low=1, high=MANY)
    """Steps of each environment between two updates."""
    epochs: int = static(4, low=1, high=MANY)
    """Passes over each window of experience."""
    minibatches: int = static(4, low=1, high=MANY)
    """Gradient steps in one pass."""
    num_shards: int = static(1, low=1)
    """Logical shards of the environments: how many devices can share a run at most."""
    shuffle: str = static("auto", choices=shuffle.METHODS)
    """How minibatches are drawn: exact (a uniform permutation, by sorting), bijection (cheap, for
    powers of two), or auto (bijection where it can be)."""
    chunk_rows: int = static(-1, low=-1)
    """Rows of a minibatch that the gradient is computed on at once; 0 for all, -1 for what suits
    the device (2048 on a CPU, all elsewhere)."""
    reset_pool: int | None = static(None, low=1, high=MANY)
    """Fresh episodes drawn ahead per window, for environments whose reset is slow."""

    hidden: tuple[int, ...] = static((64, 64), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of policy and value, each."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    recurrent: int = static(0, low=0, high=WIDE)
    """Width of a GRU before both; 0 for a policy without memory."""
    transformer: int = static(0, low=0, high=WIDE)
    """Layers of a transformer of that width in the GRU's place; 0 for the GRU."""
    initialiser: str = static("lecun", choices=INITIALISERS)
    """Initial weights: lecun (normal), or orthogonal with a first policy close to uniform."""
    heads: int = static(0, low=0, high=WIDE)
    """Linear heads of policy and value, one for each task, chosen by a one-hot in the goal channel;
    0 for one head that all tasks share."""
    record: tuple[str, ...] = static((), choices=("logits", "value"))
    """What the policy says of every step beside its log-probability: logits (of discrete actions),
    value."""
    optimiser: str = static("adam", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(3e-4, low=0)
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
    trace: float = hyper(0.95, low=0, high=1)
    """Lambda of generalised advantage estimation."""
    clip: float = hyper(0.2, above=0, high=math.inf)
    """How far the probability ratio may move from 1 before its gradient stops;
    infinite for no limit."""
    value_clip: float = hyper(math.inf, above=0, high=math.inf)
    """How far a value may move from its old one before its gradient stops; infinite for no
    limit."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""
    early_stop: bool = False
    """Take no more gradient steps on a window once a minibatch's estimated KL to the policy that
    collected it exceeds target_kl."""
    target_kl: float = hyper(0.02, low=0, high=math.inf)
    """See early_stop; infinite for never."""
    normalize_advantage: bool = True
    """Standardise the advantages of each minibatch."""

    normalize_observation: bool = False
    """Standardise observations with running statistics."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


Surrogate = Callable[[Array, Array, Array, Array], Array]


@struct
class State:
    params: Tree
    optimiser: Tree
    hyper: Tree


@struct
class Sample:
    """What a gradient step sees of each transition, [T, B] (or rows of it)."""

    timestep: TimeStep
    action: Tree
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    memory: Tree  # [1, B]: before the window


def agent(
    env: Environment, config: Config, surrogate: Surrogate = losses.clipped_surrogate
) -> Agent:
    """The PPO agent for `env`. `surrogate(log_prob, old_log_prob, advantage, clip)` is the policy's
    loss per transition."""
    _check(env, config)
    network = policy_network(env, config)
    optimiser = transform(config.optimiser)
    schedule = schedules.SCHEDULES[config.learning_rate_schedule]
    sequences = config.recurrent > 0
    chunk = _chunk(config)

    def init(key, hyper):
        timestep = example_timestep(env)
        params = network.init(key, timestep, network.initial(1))
        return State(params, optimiser.init(ravel_pytree(params)[0]), select(config, hyper))

    def act(state, timestep, memory, key, greedy):
        policy, value, memory = network.apply(state.params, timestep, memory)
        # Stopped, so that the gradient of the log-probability is the score, also of a normal.
        action = jax.lax.stop_gradient(policy.mode() if greedy else policy.sample(seed=key))
        said = {"log_prob": policy.log_prob(action), "value": value}
        if "logits" in config.record:
            said["logits"] = policy.logits
        return action, memory, {name: said[name] for name in ("log_prob", *config.record)}

    def loss(params, sample, hyper):
        memory = jax.tree.map(lambda x: x[0], sample.memory)
        method = "unroll" if sequences else "__call__"
        policy, value, _ = network.apply(params, sample.timestep, memory, method=method)
        log_prob = policy.log_prob(sample.action)
        rows = {
            "policy_loss": surrogate(log_prob, sample.log_prob, sample.advantage, hyper["clip"]),
            "value_loss": losses.clipped_squared_error(
                value, sample.value, sample.target, hyper["value_clip"]
            ),
            "entropy": policy.entropy(),
            "approximate_kl": losses.kl_k3(sample.log_prob, log_prob),
            "clip_fraction": jnp.abs(jnp.expm1(log_prob - sample.log_prob)) > hyper["clip"],
        }
        # One reduction instead of five.
        means = jnp.stack([x.reshape(-1) for x in rows.values()]).mean(1)
        info = dict(zip(rows, means, strict=True))
        total = (
            info["policy_loss"]
            + hyper["value_weight"] * info["value_loss"]
            - hyper["entropy_weight"] * info["entropy"]
        )
        return total, info

    def update(state, batch, key):
        hyper, transitions = state.hyper, batch.transitions
        before = unroll(network, state.params, transitions, batch.memory)
        advantage = losses.gae(
            transitions.reward,
            before.value,
            before.next_value,
            transitions.terminated,
            transitions.next_timestep.done,
            hyper["discount"],
            hyper["trace"],
        )
        sample = Sample(
            transitions.timestep,
            transitions.action,
            transitions.extras["log_prob"],
            before.value,
            advantage,
            target=advantage + before.value,
            memory=jax.tree.map(lambda x: x[None], batch.memory),
        )
        rows = minibatches.to_rows(sample, config.num_shards, sequences)
        before_window = batch.frames - transitions.reward.size
        learning_rate = schedule(
            hyper["learning_rate"],
            hyper["learning_rate_end"],
            schedules.progress(before_window, hyper["learning_rate_steps"]),
        )

        # One vector instead of many small arrays: the optimiser is then a few operations, not
        # dozens, which at small minibatches is a third of a gradient step's time on a CPU.
        flat, unravel = ravel_pytree(state.params)

        def step(carry, index):
            params, optimiser_state, stopped = carry
            chosen = minibatches.from_rows(minibatches.take(rows, index), sequences)
            if config.normalize_advantage:
                a = chosen.advantage
                a = (a - a.mean()) / (a.std() + 1e-8)
                chosen = dataclasses.replace(chosen, advantage=a)
            gradient, info = accumulated_gradient(
                lambda params, sample: loss(unravel(params), sample, hyper),
                params,
                chosen,
                axis=1 if sequences else 0,
                rows=chunk,
            )
            *new, norm = descend(
                optimiser, gradient, optimiser_state, params, learning_rate, hyper["max_grad_norm"]
            )
            if config.early_stop:  # static, so that without it there is nothing to select
                stopped = stopped | (info["approximate_kl"] > hyper["target_kl"])
                new = trees.where(stopped, [params, optimiser_state], new)
            return (*new, stopped), info | {"grad_norm": norm}

        index = minibatches.indices(
            key,
            jax.tree.leaves(rows)[0].shape[1],
            config.num_shards,
            config.epochs,
            config.minibatches,
            config.shuffle,
        )
        (params, optimiser_state, stopped), info = jax.lax.scan(
            step, (flat, state.optimiser, jnp.bool_(False)), index
        )
        metrics = {name: x.mean() for name, x in info.items()} | {
            "explained_variance": losses.explained_variance(before.value, sample.target),
            "learning_rate": learning_rate,
            "stopped_early": stopped.astype(jnp.float32),
            "weight_norm": jnp.linalg.norm(params),
        }
        return State(unravel(params), optimiser_state, hyper), Info(metrics)

    return Agent(
        "ppo",
        init,
        act,
        update,
        memory=network.initial,
        hyper=hypers(config),
        needs=("transitions.extras.log_prob", "memory"),
        config=config,
    )


def ppo(env: Environment, config: Config = Config()) -> Algorithm:
    """PPO on `env`, learning from rollouts. The same arguments give the same object.

    Raises `UserError` where env and config do not fit: an action space without a policy head, a
    window that does not divide into the minibatches, a setting that is out of its range.
    """
    return _build(env, config)  # however the arguments are passed, one entry of the cache


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    return on_rollouts(env, agent(env, config), config)


def on_rollouts(env: Environment, agent: Agent, config: Config) -> Algorithm:
    """`agent` with the normalisations that `config` asks for, on rollouts of `env`."""
    if config.normalize_reward:
        agent = normalize_reward(agent, config.num_envs)
    if config.normalize_observation:
        agent = normalize_observation(agent, env)
    return learn(agent, rollouts(env, config.num_envs, config.num_steps, None, config.reset_pool))


def policy_network(env: Environment, config: Config) -> Any:
    """The module whose weights are `State.params`: for who wants to know more than `act` says."""
    return ActorCritic(
        env.observation_space,
        env.action_space,
        config.hidden,
        config.activation,
        config.recurrent,
        config.initialiser,
        config.heads,
        layers=config.transformer,
        context=context(env) if config.transformer else 0,
    )


def _chunk(config: Config) -> int:
    """How many rows of a minibatch (sequences, where there is memory) the gradient takes at once;
    0 for all. Raises `UserError` for a `chunk_rows` that does not divide them."""
    limit = config.chunk_rows
    if limit < 0:
        limit = 2048 if jax.default_backend() == "cpu" else 0
    rows = config.num_envs * (1 if config.recurrent else config.num_steps) // config.minibatches
    if limit and config.recurrent:
        limit = max(limit // config.num_steps, 1)
    if not limit or rows <= limit:
        return 0
    if config.chunk_rows < 0:
        divisor = next(n for n in range(limit, 0, -1) if rows % n == 0)
        return divisor if divisor > limit // 4 else 0  # many small chunks would be slower than one
    if rows % limit:
        raise UserError(
            f"chunk_rows={config.chunk_rows} does not divide a minibatch of {rows} rows."
        )
    return limit


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_action_space(env.action_space, "ppo")
    check_transformer(config.recurrent, config.transformer, ActorCritic.attention_heads)
    if "logits" in config.record and not isinstance(env.action_space, Discrete):
        raise UserError(
            f"record asks for logits, which only discrete actions have; '{env.name}' has "
            f"{env.action_space!r}."
        )
    _check_heads(env, config)
    if config.learning_rate_schedule == "exponential" and config.learning_rate_end <= 0:
        raise UserError(
            f"learning_rate_end is {config.learning_rate_end}; an exponential schedule needs a "
            "positive one."
        )
    minibatches.check(
        config.num_envs,
        config.num_steps,
        config.minibatches,
        config.num_shards,
        config.recurrent > 0,
    )
    rows = config.num_envs // config.num_shards * (1 if config.recurrent else config.num_steps)
    order = lambda key: shuffle.permutation(key, rows, config.shuffle)
    jax.eval_shape(order, jax.random.key(0))


def _check_heads(env: Environment, config: Config) -> None:
    """Raises `UserError` unless every time step says which of the heads is meant."""
    goals = jax.tree.leaves(example_timestep(env).goal)
    if config.heads and (not goals or goals[-1].shape != (1, config.heads)):
        raise UserError(
            f"heads is {config.heads}, but no time step of '{env.name}' says which is meant; its "
            f"goal channel must end in a one-hot of {config.heads} (see infer_task)."
        )
