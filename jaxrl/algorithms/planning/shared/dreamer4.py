"""Dreamer 4: a policy improved inside a world model that was learned from data alone (Hafner et
al., 2025, "Training agents inside of scalable world models", arXiv:2509.24527). What its two phases
share: settings, parts, how to act, and the data.

The first (`dreamer4_world_model`) learns from whole episodes of a dataset, of which only some say
which actions were taken: a transformer learns the frames by shortcut forcing, and on its features
rewards, ends and, by cloning, the policy. The second (`dreamer4_imagination`) goes on from its
state: the model stands still, the cloned policy is the prior, and the policy follows PMPO in
episodes that the model imagines from the data's contexts. No step of the environment is taken in
either.

What is left out of the paper: the tokenizer (a causal autoencoder with masked patches, its first
phase) and with it all attention within a frame. Frames are flat vectors of features, one token
each: this is for small observations, not for video. What else differs: a frame is denoised after
contexts, as it will be in imagination, and not after frames of any noise (diffusion forcing); half
of the denoising steps are the finest; the heads read the contexts' own tokens instead of agent
tokens, and predict the next action and reward only, not the next eight; world model and cloning are
one phase. Its losses are divided by their running root mean squares (section 3), those of
imagination are not: its two train separate heads, and policies' are "all measured in nats".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, struct
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import Loss, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Optimizer
from jaxrl.networks import encoders
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.imagination import Actor, Critic
from jaxrl.networks.shortcut_world_model import ShortcutWorldModel, Token
from jaxrl.networks.transformer import Cache
from jaxrl.sources.recordings import recordings


@group
class Data:
    """Whose episodes are learned from: those that the environment's expert played with mixed skill.
    Steps are gradient steps."""

    of_a_source: ClassVar[bool] = True

    episodes: int = static(512, low=1, high=MANY)
    """How many there are."""
    batch_size: int = static(32, low=1, high=MANY)
    """Of them in a gradient step."""
    skills: tuple[float, ...] = static((-1.0, 0.5), low=-1, high=1, least_length=1)
    """Of the players, see `envs.policies.mixed_skill`: here half of them never do what is best, and
    half ask an expert every second time."""
    labeled: float = hyper(0.1, low=0, high=1)
    """The share of the episodes that tell their actions."""
    num_shards: int = static(1, low=1)
    """Logical shards of a batch: how many devices can share a run at most."""

    def source(self, env: Environment, path: str = "data.") -> Source:
        """These episodes; the settings are at `path`. Raises `UserError` for an environment without
        an expert or a time limit."""
        advised = expert_channel(env)
        players = mixed_skill(advised, self.skills)
        sizes = self.episodes, self.batch_size
        return recordings(advised, players, *sizes, self.labeled, path, num_shards=self.num_shards)


TERMS = ("frame_loss", "reward_loss", "continue_loss", "cloning_loss")


@struct
class Squares:
    """A running mean of the squares of each of `TERMS`, [4], and how much has entered it."""

    mean: Array
    weight: Array

    @property
    def root(self) -> Array:
        """Root mean squares [4], 1 before anything was counted."""
        known = self.mean / jnp.maximum(self.weight, jnp.finfo(jnp.float32).tiny)
        return jnp.where(self.weight > 0, jnp.sqrt(jnp.maximum(known, 1e-12)), 1.0)

    def add(self, terms: Array, decay: Array) -> Squares:
        """With `terms` [4] counted, and what was counted before times `decay`."""
        mean = decay * self.mean + (1 - decay) * jnp.square(terms)
        return Squares(mean, decay * self.weight + (1 - decay))


@group
class Config:
    """What both phases are told. Imagination goes on from a world model of the same sizes, and
    imagines in the same data where seeds and `data` are the same."""

    data: Data = Data()
    model: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0, eps=1e-5, flat=True)
    """Of the world model and of cloning, together. (The paper tells of no optimizer that we know
    of: both are ours.)"""
    behavior: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0, eps=1e-5, flat=True)
    """Of policy and value in imagination, together."""

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
    context: int = static(15, low=0)
    """Noise level of frames that are looked back at, of `levels`: a little noise keeps errors of
    imagined ones from mattering."""
    horizon: int = static(8, low=1)
    """Frames that are imagined."""
    bins: int = static(41, low=3, high=WIDE)
    """Atoms of the two-hot codes of rewards and values."""
    symlog_range: float = static(4.0, above=0, high=80)
    """The atoms reach from -symexp to symexp of this."""

    conditioned: float = hyper(1.0, low=0, high=1)
    """1: the model is told the labeled actions. 0: it never is, while cloning is (an ablation)."""


@struct
class Memory:
    """What the policy knows while acting, [B]."""

    cache: Cache
    action: Array  # int32: the last one; `num_actions` at first


def network(env: Environment, config: Config) -> ShortcutWorldModel:
    """The world model, which is told of an action that nobody said as `num_actions`."""
    c, space = config, env.action_space
    size = encoders.features(env.observation_space, example_timestep(env)).shape[-1]
    length = env.max_steps + 1 + c.horizon  # type: ignore[operator]
    sizes = c.width, c.layers, c.heads, c.levels, c.context, c.hidden, c.bins
    return ShortcutWorldModel(size, space.n, length, *sizes)  # type: ignore[union-attr]


def frame_of(env: Environment, timestep: TimeStep, scale: float) -> Array:
    """What the model is to imagine [..., D]: a time step's features, times `scale`."""
    return scale * encoders.features(env.observation_space, timestep)


def whole_episodes(
    env: Environment, batch: Batch, told: Array | bool, scale: float
) -> tuple[Array, Array, Array]:
    """Frames [T + 1, B, D], the true successor after every step; the actions that led to them, one
    that there is not where they are not `told`; and which of the frames there are."""
    t = batch.transitions
    none = jnp.full_like(t.action, env.action_space.n)  # type: ignore[union-attr]
    start = jax.tree.map(lambda x: x[:1], t.timestep)
    return (
        jnp.concatenate([frame_of(env, x, scale) for x in (start, t.next_timestep)]),
        jnp.concatenate([none[:1], jnp.where(told, t.action, none)]),
        jnp.concatenate([jnp.ones_like(batch.mask[:1]), batch.mask]),  # type: ignore[index]
    )


def told_episodes(
    net: Net, env: Environment, batch: Batch, scale: float
) -> tuple[Array, Array, Array]:
    """`whole_episodes` as the model is told of them: with the labeled actions, or none."""
    told = batch.transitions.extras["labeled"] & (net.hyper.conditioned > 0.5)
    return whole_episodes(env, batch, told, scale)


def known(net: Net, action: Array, nobody_said: int) -> Array:
    """What the model is told of the actions that the policy takes."""
    return jnp.where(net.hyper.conditioned > 0.5, action, nobody_said)


def on_recorded(
    env: Environment,
    config: Config,
    losses: Sequence[Loss],
    update: Callable[[Net, Batch], Net],
    goes_on_from: str = "",
) -> Recipe:
    """A recipe of a world model and a policy on its features, which learn from batches of whole
    episodes [T, B] from their first steps with a `mask`, and bool `extras["labeled"]` [T, B]:
    which actions may be seen (`sources.recordings`).

    Both phases hold the same parts. That the policy is twice there, as it was cloned (the prior)
    and as it is, gives each the optimizer state of its own phase.
    """
    model = network(env, config)
    actor = Actor(env.action_space, config.hidden)
    none, features = jnp.zeros(1, jnp.int32), jnp.zeros((1, config.width))
    token = Token(jnp.zeros((1, model.size)), none, none, none)

    def memory(n):
        return Memory(model.initial(n), jnp.full(n, model.num_actions, jnp.int32))

    def act(net, timestep, memory, key, greedy):
        noise_key, key = jax.random.split(key)
        frame = frame_of(env, timestep, config.scale)
        features, cache = net.model(
            model.context_token(frame, memory.action, noise_key), memory.cache
        )
        policy = net.policy(features, timestep.legal_actions)
        action = choose(policy, key, greedy)
        return action, Memory(cache, known(net, action, model.num_actions)), {}

    return Recipe(
        parts={
            "model": Part(model, (token, model.initial(1)), config.model),
            "prior": Part(actor, (features,), config.model),
            "policy": Part(actor, (features,), config.behavior),
            "value": Part(Critic(config.bins, config.hidden), (features,), config.behavior),
        },
        act=act,
        losses=losses,
        update=update,
        extra=Squares(jnp.zeros(len(TERMS)), jnp.float32(0)),
        memory=memory,
        needs=("mask", "transitions.extras.labeled"),
        goes_on_from=goes_on_from,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` for an environment without discrete actions or a time limit, and for sizes
    that do not fit together."""
    check_discrete(env.action_space, name)
    if env.max_steps is None:
        raise UserError(f"{name} learns whole episodes; '{env.name}' has no time limit.")
    power_of_two("levels", config.levels)
    if config.context >= config.levels:
        raise UserError(f"context must be below levels={config.levels}, got {config.context}.")
    if config.width % config.heads:
        raise UserError(f"width={config.width} does not divide into heads={config.heads}.")


def power_of_two(name: str, value: int) -> None:
    """Raises `UserError` for what is none."""
    if value & (value - 1):
        raise UserError(f"{name} must be a power of two, got {value}.")
