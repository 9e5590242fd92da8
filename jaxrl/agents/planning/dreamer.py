"""Dreamer: a policy learnt in a world model's imagination (Hafner et al., 2023, "Mastering diverse
domains through world models", Dreamer v3, arXiv:2301.04104).

A recurrent state-space model is learnt on windows from replay. From every latent that it found
there, the policy acts in the model alone for `horizon` steps; the critic learns lambda-returns
of it and the policy follows REINFORCE with returns divided by their range. The latent is the
agent's memory while it acts.

What differs from the paper: perceptrons without normalisation layers and a plain GRU; Adam with a
limit on the gradient's norm (their first version) instead of LaProp with adaptive clipping; windows
begin with a fresh latent instead of a stored one; the critic learns in imagination only, not on
replayed rewards too. What is 0 or 1 by its kind has a Bernoulli likelihood: the squared errors of a
few cells would be worth less than the free nats.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.agents.planning.imagination import Dreams, imagine, judge, until
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, select, static
from jaxrl.core.learn import learn
from jaxrl.core.types import (
    Agent,
    Algorithm,
    Array,
    Environment,
    Info,
    Key,
    Transition,
    Tree,
    struct,
)
from jaxrl.kit.optimisation import as_one, minimise, transform
from jaxrl.networks import encoders
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.imagination import Actor, Critic, symexp_atoms
from jaxrl.networks.recurrent_world_model import Latent, RecurrentWorldModel, model_loss
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Dreamer."""

    num_envs: int = static(16, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(8, low=1, high=MANY)
    """Steps of each environment between two rounds of updates."""
    updates: int = static(4, low=1)
    """Updates in a round."""
    capacity: int = static(100_000, low=1)
    """Environment steps that replay holds."""
    warmup: int = static(1024, low=0)
    """Environment steps before the first update."""
    batch_size: int = static(16, low=1, high=MANY)
    """Windows in an update."""
    length: int = static(16, low=1)
    """Steps of a window."""
    horizon: int = static(15, low=1)
    """Steps that are imagined from each latent of a window."""

    deterministic: int = static(64, low=1, high=WIDE)
    """Width of the GRU."""
    groups: int = static(8, low=1, high=WIDE)
    """Categorical variables of a latent."""
    classes: int = static(8, low=1, high=WIDE)
    """Classes of each."""
    hidden: tuple[int, ...] = static((64,), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of every part."""
    bins: int = static(41, low=3, high=WIDE)
    """Atoms of the two-hot codes of rewards and values."""
    symlog_range: float = static(4.0, above=0, high=80)
    """The atoms reach from -symexp to symexp of this (4: about 54)."""

    learning_rate: float = hyper(1e-3, low=0)
    """Step size of the model."""
    behaviour_learning_rate: float = hyper(1e-3, low=0)
    """Step size of policy and critic."""
    max_grad_norm: float = hyper(100.0, above=0, high=math.inf)
    """Longer gradients are scaled down to this norm: of the model, and of policy and critic;
    infinite for none."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    trace: float = hyper(0.95, low=0, high=1)
    """Lambda of the returns."""
    entropy_weight: float = hyper(3e-4, low=0)
    """Weight of the policy's entropy, once returns are divided by their range."""
    range_decay: float = hyper(0.99, low=0, high=1)
    """Of the running range of returns, per update."""
    slow_decay: float = hyper(0.98, low=0, high=1)
    """Of the slow critic, per update, to which the critic is drawn."""
    free_nats: float = hyper(1.0, low=0)
    """Divergences of a latent below this are left alone. What a step leaves unknown should be more:
    tiny observations want less."""


@struct
class State:
    model: Tree
    behaviour: dict[str, Tree]  # actor and critic
    slow: Tree  # the critic's running average
    optimisers: tuple[Tree, Tree]  # of the model, of the behaviour
    range: Array  # running range of imagined returns
    hyper: Tree


@struct
class Memory:
    """What the policy knows while acting, [B]."""

    latent: Latent
    action: Tree  # the last one


def agent(env: Environment, config: Config) -> Agent:
    """The Dreamer agent for `env`."""
    _check(env, config)
    example = example_timestep(env)
    size = encoders.features(env.observation_space, example).shape[-1]
    model: Any = RecurrentWorldModel(
        env.observation_space,
        env.action_space,
        size,
        config.hidden,
        config.deterministic,
        config.groups,
        config.classes,
        config.bins,
    )
    actor: Any = Actor(env.action_space, config.hidden)
    critic: Any = Critic(config.bins, config.hidden)
    atoms = symexp_atoms(config.bins, config.symlog_range)
    optimiser = transform("adam")
    no_action = jax.tree.map(lambda x: x[None], spaces.example(env.action_space))

    def init(key, hyper):
        model_key, actor_key, critic_key = jax.random.split(key, 3)
        window = jax.tree.map(lambda x: x[None], (example, no_action))
        transitions = Transition(window[0], window[1], window[0], (), {})
        params = model.init(model_key, transitions)
        features = model.initial(1).features
        behaviour = {
            "actor": actor.init(actor_key, features),
            "critic": critic.init(critic_key, features),
        }
        return State(
            params,
            behaviour,
            jax.tree.map(jnp.copy, behaviour["critic"]),
            (optimiser.init(as_one(params)), optimiser.init(as_one(behaviour))),
            jnp.float32(0.0),
            select(config, hyper),
        )

    def memory(n):
        return Memory(
            model.initial(n),
            jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape[1:])), no_action),
        )

    def act(state, timestep, memory, key, greedy):
        latent_key, action_key = jax.random.split(key)
        latent = model.apply(
            state.model,
            memory.latent,
            memory.action,
            timestep,
            None if greedy else latent_key,
            method="filter",
        )
        policy = actor.apply(state.behaviour["actor"], latent.features, timestep.legal_actions)
        action = policy.mode() if greedy else policy.sample(seed=action_key)
        return action, Memory(latent, action), {}

    def behaviour_loss(behaviour, dreams, state):
        before = dreams.features[:-1]
        policy = actor.apply(behaviour["actor"], before)
        logits = critic.apply(behaviour["critic"], before)
        value = losses.categorical_mean(logits, atoms)
        slow = losses.categorical_mean(critic.apply(state.slow, before), atoms)
        entropy = policy.entropy()
        actor_loss = losses.dreamer_actor(
            policy.log_prob(dreams.action),
            dreams.returns,
            value,
            entropy,
            state.hyper["entropy_weight"],
            scale=state.range,
        )
        critic_loss = sum(
            losses.two_hot_cross_entropy(logits, target, atoms) for target in (dreams.returns, slow)
        )
        weight = until(state.hyper["discount"] * dreams.continue_prob)
        info = {
            "actor_loss": (weight * actor_loss).mean(),
            "critic_loss": (weight * critic_loss).mean(),
            "entropy": entropy.mean(),
        }
        return info["actor_loss"] + info["critic_loss"], info

    def dream(state: State, latent: Latent, key: Key) -> Dreams:
        def dynamics(latent, action, key):
            after = model.apply(state.model, latent, action, key, method="imagine")
            return after.features, after

        outcome = functools.partial(model.apply, state.model, method="outcome")
        policy, value = (state.behaviour[name] for name in ("actor", "critic"))
        features, action = imagine(
            functools.partial(actor.apply, policy),
            dynamics,
            (latent.features, latent),
            key,
            config.horizon,
        )
        judged = functools.partial(critic.apply, value)
        returns = state.hyper["discount"], state.hyper["trace"]
        return judge(features, action, outcome, judged, atoms, *returns)

    def update(state, batch, key):
        hyper = state.hyper
        model_key, dream_key = jax.random.split(key)

        def loss(params):
            apply = functools.partial(model.apply, params)
            unrolled, values = model_loss(
                model, apply, batch.transitions, atoms, model_key, hyper["free_nats"]
            )
            info = {name: x.mean() for name, x in values.items()}
            return sum(info.values()), (unrolled, info)

        params, model_optimiser, model_norm, (unrolled, info) = minimise(
            optimiser,
            loss,
            state.optimisers[0],
            state.model,
            hyper["learning_rate"],
            hyper["max_grad_norm"],
        )

        # Imagination begins where an action was to be taken, so never in an episode's last step.
        start = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), unrolled.before)
        dreams = dream(state, start, dream_key)
        spread = losses.percentile_range(dreams.returns)
        average = hyper["range_decay"] * state.range + (1 - hyper["range_decay"]) * spread
        state = dataclasses.replace(state, range=average)
        behaviour, behaviour_optimiser, behaviour_norm, behaviour_info = minimise(
            optimiser,
            lambda behaviour: behaviour_loss(behaviour, dreams, state),
            state.optimisers[1],
            state.behaviour,
            hyper["behaviour_learning_rate"],
            hyper["max_grad_norm"],
        )
        decay = hyper["slow_decay"]
        slow = jax.tree.map(
            lambda old, new: decay * old + (1 - decay) * new, state.slow, behaviour["critic"]
        )
        metrics = {
            "imagined_return": dreams.returns.mean(),
            "return_range": average,
            "model_grad_norm": model_norm,
            "behaviour_grad_norm": behaviour_norm,
            "weight_norm": jnp.linalg.norm(as_one((params, behaviour))),
        }
        optimisers = (model_optimiser, behaviour_optimiser)
        state = State(params, behaviour, slow, optimisers, average, hyper)
        return state, Info(info | behaviour_info | metrics)

    return Agent("dreamer", init, act, update, memory, hypers(config), config=config)


def dreamer(env: Environment, config: Config = Config()) -> Algorithm:
    """Dreamer on `env`, learning from windows of replay. The same arguments give the same object.

    Raises `UserError` for an action space without a policy head, and for sizes that do not fit.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    learner = agent(env, config)
    source = replay(
        rollouts(env, config.num_envs, config.num_steps),
        config.capacity,
        config.batch_size,
        config.length,
        warmup=config.warmup,
    )
    return learn(learner, source, config.updates)


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_action_space(env.action_space, "dreamer")
    if config.bins % 2 == 0:
        raise UserError(f"bins is {config.bins}; it must be odd.")
