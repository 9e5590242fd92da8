"""Contrastive RL (Eysenbach et al., 2022, "Contrastive learning as goal-conditioned reinforcement
learning", arXiv:2206.07568), offline, as in OGBench (arXiv:2410.20092) and its code.

A critic phi(s, a)^T psi(g) tells goals that were achieved later in the episode, at geometric
distances, from those of the batch's other steps. It becomes the log-ratio of how often a goal is
reached from s and a, discounted, and how often it is a goal at all. No target, no bootstrapping: it
is a value of the policy that played the data. For the advantage of an action a second network of
the same form, without actions, is the value of a state.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import (
    SMALL,
    Extraction,
    GoalConditioned,
    check_extraction,
    extraction_loss,
    make_actor,
    make_source,
)
from jaxrl.algorithms.goals.shared.data import GoalShares
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss, static
from jaxrl.kit.acting import sample
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.distances import state_features
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


@group
class Config(GoalConditioned):
    """Settings of contrastive RL (arXiv:2206.07568)."""

    value_goals: GoalShares = GoalShares(geometric=True)
    """Goals that the critic tells from others."""
    extraction: Extraction = Extraction(cloning=0.1)
    latent: int = static(512, low=1, high=WIDE)
    """Length of the embeddings of states and of goals."""


class Bilinear(nn.Module):
    """The inner product [...] of embeddings of a state [...] (and an action) and of its goal,
    divided by the root of their length."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str
    latent: int
    action_space: Space | None = None

    def setup(self):
        torso = lambda: MLP(self.widths, self.activation, layer_norm=True)
        self.torsos = torso(), torso()
        self.heads = tuple(dense(self.latent, initializer("lecun", 1.0)) for _ in range(2))

    def __call__(self, timestep: TimeStep, *action: Tree) -> Array:
        state, goal = self.embed(timestep, *action)
        return (state * goal).sum(-1) / self.latent**0.5

    def embed(self, timestep: TimeStep, *action: Tree) -> tuple[Array, Array]:
        """Return the embeddings [..., latent] of the state (and action), and of the goal."""
        x = state_features(self.observation_space, timestep, self.action_space, *action)
        goal = encoders.append_goal(x[..., :0], timestep)
        state, goal = (self.torsos[i](part) for i, part in enumerate((x, goal)))
        return self.heads[0](state), self.heads[1](goal)


def contrastive_loss(state: Array, goal: Array) -> LossOutput:
    """Tell each state's own goal from those of the others, by binary cross-entropy.

    state, goal: embeddings [..., B, D]. Returns a loss [B], the mean over goals and members.
    """
    logits = jnp.einsum("...ik,...jk->...ij", state, goal) / state.shape[-1] ** 0.5
    own = jnp.eye(logits.shape[-1])
    errors = losses.binary_cross_entropy(logits, jnp.broadcast_to(own, logits.shape)).mean(-1)
    members = tuple(range(errors.ndim - 1))
    right = (logits.mean(members) if members else logits).argmax(-1) == jnp.arange(len(own))
    return LossOutput(errors.mean(members), {"accuracy": right.astype(jnp.float32)})


@loss("critic")
def critic_loss(net: Net, x: Transition) -> LossOutput:
    """Tell the goals of states and actions from those of others."""
    output = contrastive_loss(*net.critic(x.timestep, x.action, method="embed"))
    return LossOutput(output.value, {"critic_accuracy": output.metrics["accuracy"]})


@loss("value")
def value_loss(net: Net, x: Transition) -> LossOutput:
    """Tell the goals of states from those of others."""
    output = contrastive_loss(*net.value(x.timestep, method="embed"))
    return LossOutput(output.value, {"value_accuracy": output.metrics["accuracy"]})


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso, space = example_timestep(env), config.torso, env.action_space
    action = spaces.example(space)[None]
    sizes: Any = (env.observation_space, torso.hidden, torso.activation, config.latent)
    by_value = config.extraction.method == "ddpg_bc"
    actor_loss = extraction_loss(env, config.extraction)

    value = {} if by_value else {"value": Part(Bilinear(*sizes), (timestep,), config.optimizer)}
    of_actions = Bilinear(*sizes, action_space=space)
    critic = Part(of_actions, (timestep, action), config.optimizer, members=2)
    actor = Part(make_actor(env, config), (timestep,), config.optimizer)
    return Recipe(
        parts={"critic": critic, **value, "actor": actor},
        act=sample("actor", space),
        losses=(critic_loss, *([] if by_value else [value_loss]), actor_loss),
        needs=("transitions.extras.actor_goal",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return the data of a run, with a goal from later in the episode for each step."""
    others = {"actor_goal": config.actor_goals.shares()}
    return make_source(env, config, config.value_goals.shares(), others)


crl = AlgorithmBuilder("crl", Config, recipe, source, check=check_extraction)

TINY = SMALL | {"latent": 4}
