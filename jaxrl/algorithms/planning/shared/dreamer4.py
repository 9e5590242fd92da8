"""Dreamer 4: a policy improved inside a world model that was learned from data alone (Hafner et
al., 2025, "Training agents inside of scalable world models", arXiv:2509.24527). This file holds
what its two phases share: settings, parts, acting, and the data.

The first phase (`dreamer4_world_model`) learns from whole episodes of a dataset, only some of which
are labeled with actions. A transformer learns the frames by shortcut forcing; heads on its features
learn rewards, terminations and, by cloning, the policy. The second phase (`dreamer4_imagination`)
continues from that state: the model is frozen, the cloned policy is the prior, and the policy
follows PMPO in episodes that the model imagines from contexts in the data. Neither phase takes a
step in the environment.

Left out: the paper's tokenizer (a causal autoencoder with masked patches, its first phase), and
with it all attention within a frame. Frames are flat vectors of features, one token each: this is
for small observations, not for video. Other differences: a frame is denoised after contexts, as in
imagination, and not after frames of any noise (diffusion forcing); half of the denoising steps are
the finest; the heads read the contexts' own tokens instead of agent tokens, and predict only the
next action and reward, not the next eight; world model and cloning are one phase. The losses of
that phase are divided by their running root mean squares (section 3), those of imagination are not:
its two losses train separate heads, and policy losses are "all measured in nats".
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
    """Dataset of episodes that the environment's expert plays with mixed skill. Steps of the run
    are gradient steps."""

    of_a_source: ClassVar[bool] = True

    episodes: int = static(512, low=1, high=MANY)
    """Number of episodes in the dataset."""
    batch_size: int = static(32, low=1, high=MANY)
    """Number of episodes in a gradient step."""
    skills: tuple[float, ...] = static((-1.0, 0.5), low=-1, high=1, least_length=1)
    """Skills of the players that record the dataset, see `envs.policies.mixed_skill`. By default
    half never take the best action, and half ask an expert every second time."""
    labeled: float = hyper(0.1, low=0, high=1)
    """Fraction of the episodes that are labeled with their actions."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of a batch: the most devices that can share a run."""

    def source(self, env: Environment, path: str = "data.") -> Source:
        """Return a source of these episodes; the settings are at `path`.

        Raises `UserError` for an environment without an expert or a time limit.
        """
        advised = expert_channel(env)
        players = mixed_skill(advised, self.skills)
        sizes = self.episodes, self.batch_size
        return recordings(advised, players, *sizes, self.labeled, path, num_shards=self.num_shards)


TERMS = ("frame_loss", "reward_loss", "continue_loss", "cloning_loss")


@struct
class Squares:
    """Running mean of the squares of each of `TERMS`, [4], and its total weight so far."""

    mean: Array
    weight: Array

    @property
    def root(self) -> Array:
        """Root mean squares [4]; 1 before the first update."""
        known = self.mean / jnp.maximum(self.weight, jnp.finfo(jnp.float32).tiny)
        return jnp.where(self.weight > 0, jnp.sqrt(jnp.maximum(known, 1e-12)), 1.0)

    def add(self, terms: Array, decay: Array) -> Squares:
        """Add `terms` [4], with earlier ones decayed by `decay`."""
        mean = decay * self.mean + (1 - decay) * jnp.square(terms)
        return Squares(mean, decay * self.weight + (1 - decay))


@group
class Config:
    """Settings that both phases share. Imagination needs a world model of the same sizes, and
    starts from the same data if the seed and `data` are the same."""

    data: Data = Data()
    model: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0, eps=1e-5, flat=True)
    """Optimizer settings of the world model and of cloning, together. (Our choice: we know of none
    in the paper.)"""
    behavior: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0, eps=1e-5, flat=True)
    """Optimizer settings of policy and value in imagination, together. (Our choice.)"""

    width: int = static(48, low=1, high=WIDE)
    """Width of the transformer."""
    layers: int = static(2, low=1, high=WIDE)
    """Number of the transformer's blocks."""
    heads: int = static(2, low=1, high=WIDE)
    """Number of the transformer's attention heads."""
    hidden: tuple[int, ...] = static((48,), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of the heads for reward, termination, policy and value."""
    scale: float = static(1.0, above=0)
    """Factor on the features of frames; they should be about as large as the noise, which has
    variance 1."""
    levels: int = static(16, low=1, high=WIDE)
    """Number of noise levels, a power of two; the finest denoising step is one level."""
    context: int = static(15, low=0)
    """Noise level of context frames, below `levels`; a little noise makes the model robust to
    errors in imagined frames."""
    horizon: int = static(8, low=1)
    """Number of frames that are imagined."""
    bins: int = static(41, low=3, high=WIDE)
    """Number of atoms in the two-hot codes of rewards and values."""
    symlog_range: float = static(4.0, above=0, high=80)
    """Range of the atoms in symlog space: they reach from -symexp to symexp of it."""

    conditioned: float = hyper(1.0, low=0, high=1)
    """Action conditioning: 1 to show labeled actions to the model; 0 to show them to cloning only
    (an ablation)."""


@struct
class Memory:
    """Memory of the policy while it acts, [B]."""

    cache: Cache
    action: Array  # int32: the last action; `num_actions` at first


def network(env: Environment, config: Config) -> ShortcutWorldModel:
    """Return the world model, for which action `num_actions` means an unknown action."""
    c, space = config, env.action_space
    size = encoders.features(env.observation_space, example_timestep(env)).shape[-1]
    length = env.max_steps + 1 + c.horizon  # type: ignore[operator]
    sizes = c.width, c.layers, c.heads, c.levels, c.context, c.hidden, c.bins
    return ShortcutWorldModel(size, space.n, length, *sizes)  # type: ignore[union-attr]


def frame_of(env: Environment, timestep: TimeStep, scale: float) -> Array:
    """Return the frame [..., D] that the model imagines: a time step's features times `scale`."""
    return scale * encoders.features(env.observation_space, timestep)


def whole_episodes(
    env: Environment, batch: Batch, visible: Array | bool, scale: float
) -> tuple[Array, Array, Array]:
    """Return frames [T + 1, B, D], with the true successor of every step; the actions that led to
    them, the unknown action where not `visible`; and which frames exist."""
    t = batch.transitions
    none = jnp.full_like(t.action, env.action_space.n)  # type: ignore[union-attr]
    start = jax.tree.map(lambda x: x[:1], t.timestep)
    return (
        jnp.concatenate([frame_of(env, x, scale) for x in (start, t.next_timestep)]),
        jnp.concatenate([none[:1], jnp.where(visible, t.action, none)]),
        jnp.concatenate([jnp.ones_like(batch.mask[:1]), batch.mask]),  # type: ignore[index]
    )


def visible_episodes(
    net: Net, env: Environment, batch: Batch, scale: float
) -> tuple[Array, Array, Array]:
    """Return `whole_episodes` as the model sees them: with the labeled actions, or with none."""
    visible = batch.transitions.extras["labeled"] & (net.hyper.conditioned > 0.5)
    return whole_episodes(env, batch, visible, scale)


def visible_action(net: Net, action: Array, unknown: int) -> Array:
    """Return the policy's action as the model sees it: `unknown` without action conditioning."""
    return jnp.where(net.hyper.conditioned > 0.5, action, unknown)


def make_recipe(
    env: Environment,
    config: Config,
    losses: Sequence[Loss],
    update: Callable[[Net, Batch], Net],
) -> Recipe:
    """Return the recipe of a world model and a policy on its features.

    Batches are whole episodes [T, B] from their first steps, with a `mask` and with bool
    `extras["labeled"]` [T, B], which says which actions may be seen (`sources.recordings`).

    Both phases have the same parts. The policy is there twice, as cloned (the prior) and as it is
    now, so that each has the optimizer state of its own phase.
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
        return action, Memory(cache, visible_action(net, action, model.num_actions)), {}

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
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for an environment without discrete actions or a time limit, or for sizes
    that do not fit together."""
    check_discrete(env.action_space, name)
    if env.max_steps is None:
        raise UserError(f"{name} learns whole episodes; '{env.name}' has no time limit.")
    check_power_of_two("levels", config.levels)
    if config.context >= config.levels:
        raise UserError(f"context must be below levels={config.levels}, got {config.context}.")
    if config.width % config.heads:
        raise UserError(f"width={config.width} does not divide into heads={config.heads}.")


def check_power_of_two(name: str, value: int) -> None:
    """Raise `UserError` unless the value is a power of two."""
    if value & (value - 1):
        raise UserError(f"{name} must be a power of two, got {value}.")
