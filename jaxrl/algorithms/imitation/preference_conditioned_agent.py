"""A game tester that imitates a style (Abdelfattah, Brown and Zhang, 2023, "Preference-conditioned
pixel-based AI agent for game testing", arXiv:2308.09289): it sees pixels, and a demonstration of
how the user wants the game to be explored.

A network makes a latent of each picture. A style is a vector made of the latents of a
demonstration. The policy clones demonstrated actions given the picture and the style (supervised),
and another head predicts the latent of the next picture from picture, style and action, as a
running average of the network sees it (self-supervised). So one policy follows golden paths, or
covers all of a level, as it is shown. It acts by a demonstration of the episode's style that it was
not trained on.

The paper's abstract names pixels, a preference given as demonstration trajectories, and imitation
that couples a self-supervised objective with a supervised one. Not confirmed, and so choices of
ours: that the self-supervised objective is the prediction of latents (Schwarzer et al., 2021,
"Data-efficient reinforcement learning with self-predictive representations"), the networks, and
that a style is a mean over frames. The page of the authors' project describes an agent whose
preference is a policy learned by imitation that pays style rewards, beside rewards for novelty;
nothing of that is here. The paper tests a 3D game; ours is a level of a few pixels.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.imitation.shared.trajectories import play_each
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Source, Transition, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import ImageTorso, Optimizer, Target
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import Distribution, PolicyHead, check_action_space
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, image_encoder
from jaxrl.sources.dataset import dataset


@group
class Shown:
    """Demonstrations of each style by the environment's expert, and batches of their steps."""

    demonstrations: int = static(8, low=2, high=MANY)
    """Number of demonstrations of each style. The last one is kept to act by."""
    skill: float = static(0.9, low=0, high=1)
    """Probability that an action is the expert's; the others are random."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of the demonstrations."""
    frames: int = static(16, low=1, high=MANY)
    """Number of pictures, at equal distances, that a style is made of."""
    batch_size: int = static(128, low=1, high=MANY)
    """Number of steps in a gradient step."""
    updates: int = static(8, low=1)
    """Number of gradient steps per update, which are the steps of the run."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of batches: the most devices that can share a run."""

    def source(self, env: Environment) -> Source:
        """Return steps of the demonstrations."""
        options: dict[str, Any] = {"updates": self.updates, "num_shards": self.num_shards}
        return dataset(_steps(env, self), self.batch_size, name="demonstrations", **options)


@group
class Config:
    """Settings of the preference-conditioned agent: cloning of pixels under a demonstrated style
    (arXiv:2308.09289)."""

    data: Shown = Shown()
    torso: ImageTorso = ImageTorso(hidden=(128,), channels=(16, 16))
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    average: Target = Target(rate=0.01)
    """Running average of the network, whose latents are predicted."""

    latent: int = static(64, low=1, high=WIDE)
    """Number of numbers in the latent of a picture."""
    style_size: int = static(8, low=1, high=WIDE)
    """Number of numbers in a style."""
    conditioned: bool = True
    """Tell the policy the style; off for plain cloning of all demonstrations."""
    prediction_weight: float = hyper(0.5, low=0)
    """Weight of the self-supervised objective."""


class StyledPolicy(nn.Module):
    """Latents of pictures, styles of demonstrations, policies, and predictions of latents."""

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    activation: str
    initializer: str
    channels: tuple[int, ...]
    latent: int
    styles: int

    def setup(self):
        self.convolution = image_encoder(self.observation_space, self.channels, self.activation)
        plain = initializer("lecun", 1.0)
        self.to_latent = hidden_dense(self.latent, plain)
        self.of_frame = MLP(self.widths, self.activation, self.initializer)
        self.to_style = dense(self.styles, plain)
        self.torso = MLP(self.widths, self.activation, self.initializer)
        self.head = PolicyHead(self.action_space)
        self.predictor = MLP(self.widths, self.activation, self.initializer)
        self.to_next = dense(self.latent, plain)

    def see(self, observation: Tree) -> Array:
        """Return the latents [..., L] of observations [...]."""
        if self.convolution:
            x = self.convolution(encoders.scale_pixels(self.observation_space, observation))
        else:
            x = encoders.flatten(self.observation_space, observation)
        return self.to_latent(x)

    def style(self, observation: Tree) -> Array:
        """Return the styles [S, Z] of demonstrations, pictures [S, K]."""
        return self.to_style(self.of_frame(self.see(observation)).mean(-2))

    def policy(self, latent: Array, style: Array, legal_actions: Array | None) -> Distribution:
        """Return the policy [...] at latents [..., L] and styles [..., Z]."""
        return self.head(self.torso(jnp.concatenate([latent, style], -1)), legal_actions)

    def predict(self, latent: Array, style: Array, action: Tree) -> Array:
        """Return the latents [..., L] of the next observations."""
        action = encoders.action_features(self.action_space, action)
        return self.to_next(self.predictor(jnp.concatenate([latent, style, action], -1)))

    def __call__(self, observation: Tree, demonstration: Tree, action: Tree, legal: Array | None):
        """Apply everything to observations [B] and demonstrations [B, K]."""
        latent, style = self.see(observation), self.style(demonstration)
        return self.policy(latent, style, legal), self.predict(latent, style, action)


def count_styles(env: Environment) -> int:
    """Return the number of styles, of which the goal channel is a one-hot. Raises `UserError` for
    another goal."""
    goals = jax.tree.leaves(example_timestep(env).goal)
    if len(goals) != 1 or goals[0].ndim != 2 or not hasattr(env.params, "style"):
        raise UserError(
            f"'{env.name}' has no styles: a parameter `style`, and a one-hot of it as the goal "
            "channel; try playtest."
        )
    return goals[0].shape[-1]


@functools.cache
def demonstrate(env: Environment, data: Shown) -> tuple[Transition, np.ndarray]:
    """Return demonstrations [M * S, T] of all styles in turn, and which steps they have."""
    styles = count_styles(env)
    number = styles * data.demonstrations
    values = tuple(range(styles))
    return play_each(env, "style", values, number, skill=data.skill, seed=data.seed)


def pick_frames(steps: Transition, exists: np.ndarray, frames: int, styles: int) -> Tree:
    """Return observations [M, S, frames] of demonstrations, at equal distances from first to
    last."""
    share = np.linspace(0.0, 1.0, frames)
    at = np.round(share * (exists.sum(1, keepdims=True) - 1)).astype(int)
    rows = np.arange(len(at))[:, None]
    apart = lambda x: x.reshape(-1, styles, *x.shape[1:])
    return jax.tree.map(lambda x: apart(np.asarray(x)[rows, at]), steps.observation)


def recipe(env: Environment, config: Config) -> Recipe:
    styles = count_styles(env)
    frames = pick_frames(*demonstrate(env, config.data), config.data.frames, styles)
    shown = jax.tree.map(lambda x: jnp.asarray(x[:-1]), frames)  # [M - 1, S, K]
    kept = jax.tree.map(lambda x: jnp.asarray(x[-1]), frames)  # [S, K]

    def styles_of(net: Net, demonstration: Tree) -> Array:
        """Return the styles [S, Z] of one demonstration [S, K] each."""
        if not config.conditioned:
            return jnp.zeros((styles, config.style_size))
        return net.agent(demonstration, method="style")

    @loss("agent")
    def agent_loss(net: Net, x: Transition) -> LossOutput:
        """Compute -log pi(a | o, z) and the error of the predicted latents, z the style of a random
        demonstration of each step's style."""
        number = jax.tree.leaves(shown)[0].shape[0]
        drawn = jax.random.randint(net.key("demonstration"), (styles,), 0, number)
        rows = jax.tree.map(lambda a: a[drawn, jnp.arange(styles)], shown)
        style = x.timestep.goal @ styles_of(net, rows)
        latent = net.agent(x.observation, method="see")
        policy = net.agent(latent, style, x.timestep.legal_actions, method="policy")
        cloning = losses.behavior_cloning(policy.log_prob(x.action))
        predicted = net.agent(latent, style, x.action, method="predict")
        target = net.target.agent(x.next_observation, method="see")
        error = losses.self_prediction(predicted[None], target[None], x.done[None])[0]
        value = cloning + net.hyper.prediction_weight * error
        return LossOutput(value, {"cloning": cloning, "prediction": error})

    def act(net: Net, timestep, memory: Array, key, greedy):
        anew = lambda: timestep.goal @ styles_of(net, kept)
        told = jax.lax.cond(timestep.first.any(), anew, lambda: memory)
        style = trees.where(timestep.first, told, memory)
        latent = net.agent(timestep.observation, method="see")
        policy = net.agent(latent, style, timestep.legal_actions, method="policy")
        return choose(policy, key, greedy), style, {}

    torso, example = config.torso, example_timestep(env)
    network = StyledPolicy(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        torso.initializer,
        torso.channels,
        config.latent,
        config.style_size,
    )
    one = jax.tree.map(lambda x: x[:1], kept)
    action = jax.tree.map(lambda x: jnp.asarray(x[0, :1]), demonstrate(env, config.data)[0].action)
    inputs = (example.observation, one, action, example.legal_actions)
    return Recipe(
        parts={"agent": Part(network, inputs, config.optimizer, config.average)},
        act=act,
        losses=(agent_loss,),
        memory=lambda n: jnp.zeros((n, config.style_size)),
    )


@functools.cache
def _steps(env: Environment, data: Shown) -> Transition:
    """Return the steps [N] of all demonstrations but those that are kept to act by."""
    steps, exists = demonstrate(env, data)
    learned = len(exists) - count_styles(env)
    return jax.tree.map(lambda x: x[:learned][exists[:learned]], steps)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for environments without styles, an expert or a time limit, without
    pictures where there are convolutions, and action spaces without a policy head."""
    check_action_space(env.action_space, name)
    count_styles(env)
    check_image(env, config.torso.channels)
    if env.expert is None or env.max_steps is None:
        raise UserError(f"{name} needs demonstrations: '{env.name}' has no expert or time limit.")


preference_conditioned_agent = AlgorithmBuilder(
    "preference_conditioned_agent", Config, recipe, check=check
)

TINY = {
    "env": "playtest",
    "env_params": {"size": 5},
    "demonstrations": 2,
    "frames": 2,
    "batch_size": 8,
    "updates": 2,
    "num_shards": 4,
    "hidden": (8,),
    "channels": (2,),
    "latent": 4,
    "style_size": 2,
}
