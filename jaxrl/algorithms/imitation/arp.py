"""ARP, an adaptive return-conditioned policy (Kim et al., 2023, "Guide your agent with adaptive
multimodal rewards", arXiv:2309.10790, and its published code): a policy is told how well its
pictures match an instruction, instead of the instruction.

The reward of a step is the similarity of the picture after it and the instruction, under encoders
of both that were trained beforehand. A decision transformer clones demonstrations under the sum of
these rewards that was still to come; while it acts, it asks for `target_return`, less the rewards
so far. So where a demonstrated habit leads away from what is asked for, the policy notices.

Three stages follow each other, in gradient steps:

- `pretraining`: InfoNCE tells the instruction of a picture, and the picture of an instruction. The
  paper has CLIP, trained on the pictures of the web; here a small pair of encoders is trained on
  pictures of the environment, with a caption that says which object the agent is at.
- `fine_tuning`: value-implicit pretraining and inverse dynamics on the demonstrations, as the paper
  fine-tunes CLIP (adapters on CLIP there, all weights here); 0 for none.
- then the encoders are frozen, and the policy learns.

The weights of the fine-tuning's two losses, discount 0.98 and the similarity in units of the
temperature are those of the code. The weight of inverse dynamics is a number here, learned there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared.data import demonstrations
from jaxrl.algorithms.offline.shared.inverse_dynamics import keep
from jaxrl.algorithms.offline.shared.sequences import (
    Sequence,
    act_by_sequence,
    action_error,
    no_steps,
    read_window,
    sequence_part,
)
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Batch, Environment, Key, Source, TimeStep, Transition, struct
from jaxrl.envs.grids.goal_swap import Params, captioned_picture
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, PolicyHead
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, image_encoder
from jaxrl.sources.played import viewed_dataset, windows


@group
class Demonstrated:
    """Whole episodes of the environment's expert, none of which is swapped."""

    size: int = static(4_000, low=1, high=MANY)
    """Number of demonstrated steps."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of the demonstrations."""
    batch_size: int = static(32, low=1, high=MANY)
    """Number of windows in a gradient step."""
    updates: int = static(8, low=1)
    """Number of gradient steps per update, which are the steps of the run."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of batches: the most devices that can share a run."""

    def source(self, env: Environment) -> Source:
        """Return rests of episodes [max_steps, batch_size], from any step on."""
        assert env.max_steps is not None
        steps = demonstrations(without_swaps(env), self.size, self.seed)
        view = windows(env.max_steps, pad=True)
        options: dict[str, Any] = {"updates": self.updates, "num_shards": self.num_shards}
        return viewed_dataset(steps, self.batch_size, view, name="demonstrations", **options)


@group
class Config:
    """Settings of ARP: cloning under returns of multimodal rewards (arXiv:2309.10790)."""

    data: Demonstrated = Demonstrated()
    sequence: Sequence = Sequence(context=8, width=64, layers=2, heads=2)
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the policy, and of the encoders."""
    torso: Torso = Torso(hidden=(128, 128))
    """Hidden layers of the encoder of pictures, and of inverse dynamics."""

    channels: tuple[int, ...] = static((), low=1, high=WIDE)
    """Channels of 3 x 3 convolutions before the encoder of pictures; none for pixels as they
    are."""
    embedding: int = static(32, low=1, high=WIDE)
    """Number of numbers in an embedding."""
    pairs: int = static(32, low=1, high=MANY)
    """Number of pictures of each caption in a step of the pretraining."""
    return_prompted: bool = True
    """Tell the policy the return to go; off for plain cloning of pictures and instructions."""

    pretraining: float = hyper(1_000.0, low=0)
    """Gradient steps of the pretraining."""
    fine_tuning: float = hyper(0.0, low=0)
    """Gradient steps of the fine-tuning."""
    temperature: float = hyper(0.1, above=0)
    """Temperature of similarities."""
    inverse_weight: float = hyper(2.66, low=0)
    """Weight of inverse dynamics in the fine-tuning."""
    discount: float = hyper(0.98, low=0, high=1)
    """Discount factor of the fine-tuning."""
    target_return: float = hyper(1.0)
    """Return that an episode is asked for while the policy acts."""
    return_scale: float = hyper(10.0, above=0)
    """Divisor of returns before the network sees them."""


@struct
class Pairs:
    """Pictures uint8 [G, W, ...] of W captions each."""

    pictures: Array


@struct
class Around:
    """Demonstrated steps [T, B] with the first pictures of their windows [B, ...]."""

    steps: Transition
    first: Array


class PairEncoder(nn.Module):
    """Encoders of pictures and of instructions, into one space of unit vectors."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str
    initializer: str
    channels: tuple[int, ...]
    size: int

    def setup(self):
        self.convolution = image_encoder(self.observation_space, self.channels, self.activation)
        self.torso = MLP(self.widths, self.activation, self.initializer)
        plain = initializer("lecun", 1.0)
        self.of_picture, self.of_words = dense(self.size, plain), dense(self.size, plain)

    def see(self, observation: Array) -> Array:
        """Return the embeddings [..., D] of pictures."""
        if self.convolution:
            x = self.convolution(encoders.scale_pixels(self.observation_space, observation))
        else:
            x = encoders.flatten(self.observation_space, observation)
        return unit(self.of_picture(self.torso(x)))

    def read(self, words: Array) -> Array:
        """Return the embeddings [..., D] of instructions [..., V]."""
        return unit(self.of_words(words))

    def __call__(self, observation: Array, words: Array) -> Array:
        """Return the similarities [...], from -1 to 1."""
        return (self.see(observation) * self.read(words)).sum(-1)


class Inverse(nn.Module):
    """The action [...] between two pictures, from their embeddings and the instruction's."""

    action_space: Space
    widths: tuple[int, ...]
    activation: str
    initializer: str

    @nn.compact
    def __call__(self, here: Array, there: Array, words: Array) -> Distribution:
        x = jnp.concatenate([here, there, words], -1)
        return PolicyHead(self.action_space)(MLP(self.widths, self.activation, self.initializer)(x))


def unit(x: Array) -> Array:
    """Return vectors [..., D] of length 1."""
    return x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)


def without_swaps(env: Environment) -> Environment:
    """Return the environment in which the named object is always on the right."""
    return dataclasses.replace(env, params=dataclasses.replace(env.params, swapped=0.0))


def rewards_to_go(reward: Array, exists: Array) -> Array:
    """Return the sums [T, B] of the rewards from each step of windows [T, B] to the last that
    exists."""
    reward = jnp.where(exists, reward, 0.0)
    return jax.lax.cumsum(reward, axis=0, reverse=True)


@loss("encoder", name="contrast")
def pair_loss(net: Net, x: Pairs) -> LossOutput:
    """Compute the symmetric InfoNCE of pictures [G, W] and their captions."""
    number = x.pictures.shape[1]
    seen = net.encoder(x.pictures, method="see")
    read = net.encoder(jnp.eye(number), method="read")
    similar = seen @ read.T
    error = losses.info_nce(similar, net.hyper.temperature, symmetric=True)
    return LossOutput(
        error.mean(-1), {"matched": (similar.argmax(-1) == jnp.arange(number)).mean(-1)}
    )


@loss("encoder", "inverse", name="adaptation")
def adaptation_loss(net: Net, x: Around) -> LossOutput:
    """Compute the loss of value-implicit pretraining, and -log p of actions between pictures."""
    h, steps = net.hyper, x.steps
    words = net.encoder(steps.timestep.goal, method="read")
    seen, after = (
        net.encoder(o, method="see") for o in (steps.observation, steps.next_observation)
    )
    first = jnp.broadcast_to(net.encoder(x.first, method="see"), seen.shape)
    value = lambda a: (a * words).sum(-1) / h.temperature
    exists = steps.extras["exists"]
    # A picture is paid -1, and the one before the goal 0.
    reward = jnp.where(steps.terminated, 0.0, -1.0)
    flat = lambda a: a.reshape(-1)
    beginning, here, there = (flat(value(a)) for a in (first, seen, after))
    implicit = losses.vip(beginning, here, there, flat(reward), h.discount, flat(exists))
    inverse = losses.behavior_cloning(net.inverse(seen, after, words).log_prob(steps.action))
    total = implicit + h.inverse_weight * inverse
    return LossOutput(
        total, {"implicit": jnp.broadcast_to(implicit, total.shape), "inverse": inverse}
    )


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, env.observation_space.shape[0]
    words = example_timestep(env).goal.shape[-1]

    def remove_goal(timestep: TimeStep) -> TimeStep:
        """Return what the policy sees: with a return to go, no instruction."""
        return dataclasses.replace(timestep, goal=None) if config.return_prompted else timestep

    def reward_of(net: Net, observation: Array, instruction: Array) -> Array:
        if not config.return_prompted:
            return jnp.zeros(instruction.shape[:-1])
        return jax.lax.stop_gradient(net.encoder(observation, instruction))

    @loss("sequence")
    def sequence_loss(net: Net, x: Transition) -> Array:
        """Compute the error of each step's action, given what came before it."""
        steps = read_window(
            shown, dataclasses.replace(x, timestep=remove_goal(x.timestep)), x.extras["to_go"]
        )
        return action_error(space, net.sequence(steps, x.timestep.legal_actions).policy, x.action)

    def draw_pairs(key: Key) -> Pairs:
        keys = jax.random.split(key, (config.pairs, words))
        draw = jax.vmap(jax.vmap(captioned_picture, (0, 0, None)), (0, None, None))
        return Pairs(draw(keys, jnp.arange(words), size))

    def update(net: Net, batch: Batch) -> Net:
        h, x, begun = net.hyper, batch.transitions, net
        first = net.updates < h.pretraining
        second = ~first & (net.updates < h.pretraining + h.fine_tuning)
        net = keep(
            net.descend(pair_loss, draw_pairs(net.key("pairs"))), begun, ("encoder",), ~first
        )
        exists = jnp.ones(x.reward.shape, bool) if batch.mask is None else batch.mask
        known = dataclasses.replace(x, extras=x.extras | {"exists": exists})
        around = Around(known, x.observation[0])
        tuned = net.descend(adaptation_loss, Minibatch(around, exists))
        net = keep(tuned, net, ("encoder", "inverse"), ~second)
        reward = reward_of(net, x.next_observation, x.timestep.goal)
        to_go = rewards_to_go(reward, exists) / h.return_scale
        window = dataclasses.replace(x, extras=x.extras | {"to_go": to_go})
        number = config.sequence.context
        window, mask = jax.tree.map(lambda a: a[:number], (window, exists))
        learned = keep(
            net.descend(sequence_loss, window, mask=mask), net, ("sequence",), first | second
        )
        return learned.report(demonstrated_return=(to_go[0] * h.return_scale).mean())

    # What the policy sees has no goal channel, where it is told a return instead.
    shown = dataclasses.replace(
        env, reset=lambda key, params: _without(env.reset(key, params), remove_goal)
    )
    follow = act_by_sequence(shown, "sequence", lambda net, timestep: net.hyper.target_return)

    def act(net, timestep, memory, key, greedy):
        reward = reward_of(net, timestep.observation, timestep.goal)
        # The first picture is no step's result.
        reward = jnp.where(timestep.first, 0.0, reward)
        paid = dataclasses.replace(remove_goal(timestep), reward=reward)
        return follow(net, paid, memory, key, greedy)

    torso, example = config.torso, example_timestep(env)
    encoder = PairEncoder(
        env.observation_space,
        torso.hidden,
        torso.activation,
        torso.initializer,
        config.channels,
        config.embedding,
    )
    embedded = jnp.zeros((1, config.embedding))
    inverse = Inverse(space, torso.hidden, torso.activation, torso.initializer)
    return Recipe(
        parts={
            "encoder": Part(encoder, (example.observation, example.goal), config.optimizer),
            "inverse": Part(inverse, (embedded, embedded, embedded), config.optimizer),
            "sequence": sequence_part(shown, config.sequence, config.optimizer),
        },
        act=act,
        losses=(pair_loss, adaptation_loss, sequence_loss),
        update=update,
        memory=lambda n: no_steps(shown, config.sequence.context, n),
        needs=("transitions.extras.time",),
    )


def _without(begun, remove_goal):
    state, timestep = begun
    return state, remove_goal(timestep)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where no sequence policy can act in `env`, and for environments without
    captioned pictures."""
    config.sequence.check(env, name)
    inner = env.params
    if not isinstance(inner, Params):
        raise UserError(f"{name} learns from captioned pictures, which only goal_swap has.")


arp = AlgorithmBuilder("arp", Config, recipe, check=check)

TINY = {
    "env": "goal_swap", "env_params": {"size": 5}, "data.size": 128, "data.batch_size": 8,
    "data.updates": 3, "data.num_shards": 4, "context": 3, "width": 8, "layers": 1, "heads": 2,
    "hidden": (8,), "channels": (2,), "embedding": 4, "pairs": 2, "pretraining": 1.0,
    "fine_tuning": 1.0, "optimizer.eps": 0.01,
}  # fmt: skip
