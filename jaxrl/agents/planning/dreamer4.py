"""Dreamer 4: a policy improved inside a world model that was learnt from data alone (Hafner et al.,
2025, "Training agents inside of scalable world models", arXiv:2509.24527).

The first of two agents learns from whole episodes of a data set, of which only some say which
actions were taken: a transformer learns the frames by shortcut forcing, and on its features
rewards, ends and, by cloning, the policy. The second goes on from its state: the model stands
still, the cloned policy is the prior, and the policy follows PMPO in episodes that the model
imagines from the data's contexts. No step of the environment is taken in either.

What is left out of the paper: the tokenizer (a causal autoencoder with masked patches, its first
phase) and with it all attention within a frame. Frames are flat vectors of features, one token
each: this is for small observations, not for video. What else differs: a frame is denoised after
contexts, as it will be in imagination, and not after frames of any noise (diffusion forcing); half
of the denoising steps are the finest; the heads read the contexts' own tokens instead of agent
tokens, and predict the next action and reward only, not the next eight; world model and cloning are
one phase, with equal weights of the losses.
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
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE, check, hyper, hypers, select, static
from jaxrl.core.types import Agent, Array, Batch, Environment, Info, TimeStep, Tree, struct
from jaxrl.kit.optimisation import as_one, minimise, transform
from jaxrl.networks import encoders
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.imagination import Actor, Critic, symexp_atoms
from jaxrl.networks.shortcut_world_model import ShortcutWorldModel, Token, frame_loss, next_frame
from jaxrl.networks.transformer import Cache


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Dreamer 4."""

    width: int = static(48, low=1, high=WIDE)
    """Width of the transformer."""
    layers: int = static(2, low=1, high=WIDE)
    """Its blocks."""
    heads: int = static(2, low=1, high=WIDE)
    """Heads of its attention."""
    hidden: tuple[int, ...] = static((48,), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of rewards, ends, policy and value."""
    scale: float = static(1.0, above=0)
    """By what the features of frames are multiplied: to be about as large as the noise, which has a
    variance of 1."""
    levels: int = static(16, low=1, high=WIDE)
    """Levels of noise, a power of two; the finest denoising step is one of them."""
    steps: int = static(4, low=1, high=WIDE)
    """Denoising steps of an imagined frame, a power of two (K)."""
    context: int = static(15, low=0)
    """Noise level of frames that are looked back at, of `levels`: a little noise keeps errors of
    imagined ones from mattering."""
    horizon: int = static(8, low=1)
    """Frames that are imagined."""
    bins: int = static(41, low=3, high=WIDE)
    """Atoms of the two-hot codes of rewards and values."""
    symlog_range: float = static(4.0, above=0, high=80)
    """The atoms reach from -symexp to symexp of this."""

    learning_rate: float = hyper(1e-3, low=0)
    """Step size of the world model and of cloning."""
    behaviour_learning_rate: float = hyper(1e-3, low=0)
    """Step size of policy and value in imagination."""
    max_grad_norm: float = hyper(1.0, above=0, high=math.inf)
    """Longer gradients are scaled down to this norm; infinite for none."""
    discount: float = hyper(0.997, low=0, high=1)
    """Gamma, per step."""
    trace: float = hyper(0.95, low=0, high=1)
    """Lambda of the returns."""
    alpha: float = hyper(0.5, low=0, high=1)
    """PMPO's weight of actions that did better than expected; the others have the rest."""
    beta: float = hyper(0.3, low=0)
    """PMPO's weight of the divergence to the cloned policy."""
    conditioned: float = hyper(1.0, low=0, high=1)
    """1: the model is told the labelled actions. 0: it never is, while cloning is (an ablation)."""
    bootstrap: float = hyper(1.0, low=0, high=1)
    """1: shortcut forcing. 0: steps of every size learn the clean frame (an ablation)."""


@struct
class State:
    model: Tree
    policy: Tree
    prior: Tree  # the policy as it was cloned
    value: Tree
    optimisers: tuple[Tree, Tree]  # of (model, policy) while cloning, of (policy, value) after
    hyper: Tree


@struct
class Memory:
    """What the policy knows while acting, [B]."""

    cache: Cache
    action: Array  # int32: the last one; `num_actions` at first


def network(env: Environment, config: Config) -> ShortcutWorldModel:
    """The world model. Raises as `agents`."""
    _check(env, config)
    return ShortcutWorldModel(
        encoders.features(env.observation_space, example_timestep(env)).shape[-1],
        env.action_space.n,  # type: ignore
        env.max_steps + 1 + config.horizon,  # type: ignore
        config.width,
        config.layers,
        config.heads,
        config.levels,
        config.context,
        config.hidden,
        config.bins,
    )


def frame_of(env: Environment, timestep: TimeStep, scale: float) -> Array:
    """What the model is to imagine [..., D]: a time step's features, times `scale`."""
    return scale * encoders.features(env.observation_space, timestep)


def whole_episodes(env: Environment, batch: Batch, told: Array | bool, scale: float):
    """Frames [T + 1, B, D], the true successor after every step; the actions that led to them, one
    that there is not where they are not `told`; and which of the frames there are."""
    t = batch.transitions
    none = jnp.full_like(t.action, env.action_space.n)  # type: ignore
    start = jax.tree.map(lambda x: x[:1], t.timestep)
    return (
        jnp.concatenate([frame_of(env, x, scale) for x in (start, t.next_timestep)]),
        jnp.concatenate([none[:1], jnp.where(told, t.action, none)]),
        jnp.concatenate([jnp.ones_like(batch.mask[:1]), batch.mask]),  # type: ignore
    )


@functools.cache
def agents(env: Environment, config: Config) -> tuple[Agent, Agent]:
    """The agent that learns the world and clones, and the one that goes on from its state and
    improves the policy by imagination. The same arguments give the same objects.

    Both need batches of whole episodes [T, B] from their first steps with a `mask`, and bool
    `extras["labelled"]` [T, B]: which actions may be seen (`sources.recorded`).

    Raises `UserError` for a world without discrete actions or a time limit, and for sizes that do
    not fit.
    """
    model: Any = network(env, config)
    actor: Any = Actor(env.action_space, config.hidden)
    critic: Any = Critic(config.bins, config.hidden)
    atoms = symexp_atoms(config.bins, config.symlog_range)
    optimiser = transform("adam")

    def init(key, hyper):
        model_key, policy_key, value_key = jax.random.split(key, 3)
        none = jnp.zeros(1, jnp.int32)
        token = Token(jnp.zeros((1, model.size)), none, none, none)
        params = model.init(model_key, token, model.initial(1))
        features = jnp.zeros((1, config.width))
        policy, value = actor.init(policy_key, features), critic.init(value_key, features)
        optimisers = (
            optimiser.init(as_one((params, policy))),
            optimiser.init(as_one((policy, value))),
        )
        prior = jax.tree.map(jnp.copy, policy)
        return State(params, policy, prior, value, optimisers, select(config, hyper))

    def memory(n):
        return Memory(model.initial(n), jnp.full(n, model.num_actions, jnp.int32))

    def known(action: Array, hyper) -> Array:
        return jnp.where(hyper["conditioned"] > 0.5, action, model.num_actions)

    def act(state, timestep, memory, key, greedy):
        noise_key, key = jax.random.split(key)
        token = model.as_context(frame_of(env, timestep, config.scale), memory.action, noise_key)
        features, cache = model.apply(state.model, token, memory.cache)
        policy = actor.apply(state.policy, features, timestep.legal_actions)
        action = policy.mode() if greedy else policy.sample(seed=key)
        return action, Memory(cache, known(action, state.hyper)), {}

    def episodes(batch: Batch, hyper):
        told = batch.transitions.extras["labelled"] & (hyper["conditioned"] > 0.5)
        return whole_episodes(env, batch, told, config.scale)

    # ------------------------------------------------------------------- the world and cloning

    def model_loss(params, batch, hyper, key):
        model_params, policy_params = params
        t, there = batch.transitions, batch.mask
        frames, action, exists = episodes(batch, hyper)
        apply = functools.partial(model.apply, model_params)
        error, features = frame_loss(model, apply, frames, action, key, hyper["bootstrap"])
        reward, going_on = model.apply(model_params, features[1:], method="outcome")
        reward_loss = losses.two_hot_cross_entropy(reward, t.reward, atoms)
        going_on_loss = losses.binary_cross_entropy(going_on, ~t.terminated)
        cloning = -actor.apply(policy_params, features[:-1]).log_prob(t.action)
        info = {
            "frame_loss": losses.masked_mean(error, exists),
            "reward_loss": losses.masked_mean(reward_loss, there),
            "going_on_loss": losses.masked_mean(going_on_loss, there),
            "cloning_loss": losses.masked_mean(cloning, there & t.extras["labelled"]),
        }
        return sum(info.values()), info

    def learn_world(state, batch, key):
        hyper = state.hyper
        (params, policy), new, norm, info = minimise(
            optimiser,
            lambda params: model_loss(params, batch, hyper, key),
            state.optimisers[0],
            (state.model, state.policy),
            hyper["learning_rate"],
            hyper["max_grad_norm"],
        )
        weight = jnp.linalg.norm(as_one((params, policy)))
        optimisers = (new, state.optimisers[1])
        state = State(params, policy, policy, state.value, optimisers, hyper)
        return state, Info(info | {"grad_norm": norm, "weight_norm": weight})

    # ------------------------------------------------------------------- imagination

    def contexts(state, batch, key):
        """Of every episode what came before a step of it, drawn at random: features [B, width],
        cache [B]."""
        key, time_key = jax.random.split(key)
        frames, action, _ = episodes(batch, state.hyper)
        tokens = model.as_context(frames, action, key)
        both = model.apply(state.model, tokens, method="unroll")
        steps = batch.mask.sum(0)
        at = jnp.floor(jax.random.uniform(time_key, steps.shape) * steps).astype(jnp.int32)
        return jax.tree.map(lambda x: x[at, jnp.arange(len(at))], both)

    def dream(state, batch, key) -> Dreams:
        def dynamics(cache, action, key):
            action = known(action, state.hyper)
            apply = functools.partial(model.apply, state.model)
            return next_frame(model, apply, cache, action, key, config.steps)[1:]

        context_key, key = jax.random.split(key)
        start = contexts(state, batch, context_key)
        policy = functools.partial(actor.apply, state.policy)
        features, action = imagine(policy, dynamics, start, key, config.horizon)
        outcome = functools.partial(model.apply, state.model, method="outcome")
        value = functools.partial(critic.apply, state.value)
        returns = state.hyper["discount"], state.hyper["trace"]
        return judge(features, action, outcome, value, atoms, *returns)

    def behaviour_loss(params, prior, dreams, there, hyper):
        policy_params, value_params = params
        before = dreams.features[:-1]
        policy = actor.apply(policy_params, before)
        logits = critic.apply(value_params, before)
        advantage = dreams.returns - losses.categorical_mean(logits, atoms)
        divergence = losses.categorical_kl(policy.logits, actor.apply(prior, before).logits)
        policy_loss = losses.pmpo(
            policy.log_prob(dreams.action),
            jax.lax.stop_gradient(advantage),
            divergence,
            hyper["alpha"],
            hyper["beta"],
            there,
        )
        value_loss = losses.two_hot_cross_entropy(logits, dreams.returns, atoms)
        info = {
            "policy_loss": losses.masked_mean(policy_loss, there),
            "value_loss": losses.masked_mean(value_loss, there),
            "prior_kl": losses.masked_mean(divergence, there),
        }
        return info["policy_loss"] + info["value_loss"], info

    def improve(state, batch, key):
        hyper = state.hyper
        dream_key, end_key = jax.random.split(key)
        dreams = dream(state, batch, dream_key)
        # Signs of advantages have no weights: steps after an imagined end are left out.
        there = until(jax.random.bernoulli(end_key, dreams.continue_prob)).astype(bool)
        (policy, value), new, norm, info = minimise(
            optimiser,
            lambda params: behaviour_loss(params, state.prior, dreams, there, hyper),
            state.optimisers[1],
            (state.policy, state.value),
            hyper["behaviour_learning_rate"],
            hyper["max_grad_norm"],
        )
        optimisers = (state.optimisers[0], new)
        state = State(state.model, policy, state.prior, value, optimisers, hyper)
        info |= {
            "imagined_return": losses.masked_mean(dreams.returns, there),
            "grad_norm": norm,
            "weight_norm": jnp.linalg.norm(as_one((policy, value))),
        }
        return state, Info(info)

    def agent(name, update):
        needs = ("mask", "transitions.extras.labelled")
        return Agent(name, init, act, update, memory, hypers(config), needs, config)

    return agent("dreamer4 world model", learn_world), agent("dreamer4 imagination", improve)


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_discrete(env.action_space, "dreamer4")
    if env.max_steps is None:
        raise UserError(f"dreamer4 learns whole episodes; '{env.name}' has no time limit.")
    for name in ("levels", "steps"):
        value = getattr(config, name)
        if value & (value - 1):
            raise UserError(f"{name} is {value}; it must be a power of two.")
    if config.steps > config.levels or config.context >= config.levels:
        raise UserError(
            f"steps and context must fit levels={config.levels}, got {config.steps} and "
            f"{config.context}."
        )
    if config.width % config.heads:
        raise UserError(f"width={config.width} does not divide into heads={config.heads}.")
