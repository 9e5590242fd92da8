"""Variational preference learning (VPL; Poddar, Wan, Ivison, Gupta and Jaques, 2024, "Personalizing
reinforcement learning from human feedback with variational preference learning", arXiv:2408.10075).

Users disagree, so one reward model for all would be right about nobody. An encoder reads the set of
pairs that one user labeled and tells what is known of this user, a Gaussian q(z); the reward of an
observation depends on z. Both maximize the evidence lower bound, with R = sum_t r(s_t, z) over a
segment,

    E_q[sum over pairs of log sigmoid(R(preferred) - R(other))] - beta KL(q, N(0, I))

The policy depends on z too. It learns by implicit Q-learning (`iql`), here of all segments of a
batch and from the first update on, while the reward still learns, from the rewards for users z that
are drawn from N(0, I). One minimum and one maximum scale those of a batch to lie between 0 and 1;
in the authors' code they are not scaled, or by the largest magnitude, or for each user. (Its
scripts also learn the prior of z and anneal `beta`.) A user who begins an episode answers
`questions`, the pairs of the last batch's first set, and the policy acts for the mean of q.

Users are simulated: each wants a goal of the environment, which the agent does not see; z takes its
place. As in the authors' code, what is encoded are the same observations that rewards are of, here
those after each step, of both segments of each pair in the order of the user's preference, which
tells the label. A large `beta`
leaves the encoder nothing to say: one reward model for all users.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline import iql as of_iql
from jaxrl.algorithms.offline.shared.implicit import Implicit
from jaxrl.algorithms.preferences.shared import segment_policies as policies
from jaxrl.algorithms.preferences.shared.segment_rewards import Learning
from jaxrl.algorithms.preferences.shared.segments import (
    SMALL_SEGMENTS,
    Segments,
    SimulatedTeacher,
    accuracy,
    set_unit,
    split_sets,
)
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Space
from jaxrl.core.staging import where_due
from jaxrl.core.types import (
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
)
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
from jaxrl.kit.composing import descend_where
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks import encoders
from jaxrl.networks.critics import Value
from jaxrl.networks.torsos import MLP


@group
class Users(Segments):
    """Sets of pairs of segments, each labeled by one user."""

    size: int = static(32, low=1, high=MANY)
    """Number of pairs that a user labels. 32: authors' code."""
    count: int = static(100, low=1, high=MANY)
    """Number of sets. 100: authors' code."""
    length: int = static(1, low=1, high=MANY)
    """Number of steps of a segment. 1: authors' code, for mazes."""
    teacher: SimulatedTeacher = SimulatedTeacher(score="goal")

    def source(self, env: Environment) -> Source:
        """Return a source of batches of these sets."""
        return self.pairs(env, size=self.size)


@group
class UserModel(Learning):
    """Encoder of users and reward model, learned from sets of pairs."""

    torso: Torso = Torso(hidden=(256, 256, 256))
    """Hidden layers of both. Three of 256: authors' code."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of both. Adam, 1e-3: authors' code."""
    latent: int = static(32, low=1, high=MANY)
    """Number of entries of z. 32: authors' code."""
    beta: float = hyper(1.0, low=0)
    """Weight of the divergence of q from N(0, I). 1: authors' code, whose divergence is twice
    that."""


@group
class Config(Implicit):
    """Settings of variational preference learning: rewards and a policy of latent users
    (arXiv:2408.10075)."""

    segments: Users = Users()
    user: UserModel = UserModel()


class Encoder(nn.Module):
    """Belief about users: labeled pairs of segments [..., S, 2, T] -> Gaussian [..., Z]."""

    observation_space: Space
    widths: tuple[int, ...]
    latent: int
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, observation: Tree) -> tuple[Array, Array]:
        """Return mean and standard deviation, each [..., Z]."""
        x = encoders.flatten(self.observation_space, observation)
        x = x.reshape(*x.shape[:-4], -1)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        mean, log_variance = jnp.split(nn.Dense(2 * self.latent)(x), 2, -1)
        return mean, jnp.exp(0.5 * log_variance)


def with_user(timestep: TimeStep, user: Array) -> TimeStep:
    """Return time steps [...] with users z [..., Z] in the place of goals."""
    shape = (*jnp.shape(timestep.first), user.shape[-1])
    return dataclasses.replace(timestep, goal=jnp.broadcast_to(user, shape))


def hide_goals(env: Environment, latent: int) -> Environment:
    """Return `env` with users z [Z] in the place of goals, for the shapes of networks."""

    def reset(key: Key, params: Tree) -> tuple[Tree, TimeStep]:
        state, timestep = env.reset(key, params)
        return state, with_user(timestep, jnp.zeros(latent))

    return dataclasses.replace(env, reset=reset)


def pairs_of(x: Tree, size: int) -> Tree:
    """Arrange leaves [T, n * 2 S, ...] of sets of pairs as [n, S, 2, T, ...]."""

    def arrange(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(-1, size, 2, x.shape[0], *x.shape[2:])

    return jax.tree.map(arrange, x)


def encoder_of(env: Environment, config: Any) -> Encoder:
    """Return the network of the encoder."""
    torso = config.user.torso
    sizes = torso.hidden, config.user.latent, torso.activation, torso.initializer
    return Encoder(env.observation_space, *sizes)


def reward_network(env: Environment, config: Any) -> Value:
    """Return the network of the reward of time steps with users in the place of goals."""
    torso = config.user.torso
    return Value(env.observation_space, torso.hidden, torso.activation, torso.initializer)


def answer(env: Environment, config: Any, questions: Transition, user: Tree) -> Tree:
    """Return the observations of questions in the order of a user's preferences, as the encoder
    reads them, [S, 2, T, ...].

    questions: S pairs of segments, [T, 2 S]. user: what tells the user apart, of one user.
    """
    size = config.segments.size
    first, second = (jax.tree.map(lambda x, i=i: x[:, i::2], questions) for i in range(2))
    asked = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), user)
    kept = config.segments.teacher.judge(env).compare(first, second, asked) >= 0.5

    def order(x: Array) -> Array:
        keep = kept.reshape(size, *(1,) * (x.ndim - 1))
        return jnp.where(keep, x, x[:, ::-1])

    return jax.tree.map(
        order, jax.tree.map(lambda x: x[0], pairs_of(questions.next_observation, size))
    )


def recipe(env: Environment, config: Config) -> Recipe:
    size, latent = config.segments.size, config.user.latent
    hidden = hide_goals(env, latent)
    inner = of_iql.recipe(hidden, config)

    @loss("encoder", "reward", name="user_loss", unit=set_unit(size))
    def user_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the negative evidence lower bound of each user's set of pairs."""
        t, mask = x.x, x.mask
        assert mask is not None
        mean, deviation = net.encoder(pairs_of(t.next_observation, size))
        user = mean + deviation * jax.random.normal(net.key("user"), mean.shape)
        seen = with_user(t.next_timestep, jnp.repeat(user, 2 * size, 0))
        chosen, rejected, _ = split_sets(net.reward(seen).sum(0), size)
        known = split_sets(mask[0], size)[0]
        bound = losses.variational_preference(
            chosen, rejected, mean, deviation, net.hyper.user.beta, known
        )
        count = jnp.maximum(known.sum(-1), 1)
        right = jnp.where(known, accuracy(chosen, rejected), 0).sum(-1) / count
        return LossOutput(bound, {"accuracy": right})

    def update(net: Net, batch: Batch) -> Net:
        t = batch.transitions
        window = Minibatch(t, batch.mask)
        early = net.updates < net.hyper.user.steps
        net = descend_where(net, early, lambda net: net.descend(user_loss, window))
        questions = jax.tree.map(lambda x: x[:, : 2 * size], t)
        user = jax.random.normal(net.key("users"), (t.reward.shape[1], latent))
        before, after = (with_user(s, user) for s in (t.timestep, t.next_timestep))
        paid = net.reward(after)
        low, high = paid.min(), paid.max()
        paid = (paid - low) / jnp.maximum(high - low, 1e-6)
        after = dataclasses.replace(after, reward=paid)
        t = dataclasses.replace(t, timestep=before, next_timestep=after)
        return inner.update(net, Batch(t, batch.env_steps)).replace(extra=questions)

    def act(net: Net, timestep: TimeStep, memory: Array, key: Key, greedy: bool):
        """Act for the mean of q, which the answers at the beginning of an episode told."""

        def ask() -> Array:
            answers = jax.vmap(lambda goal: answer(env, config, net.extra, goal))(timestep.goal)
            return jnp.where(timestep.first[:, None], net.encoder(answers)[0], memory)

        user = where_due(timestep.first.any(), ask, memory)
        action, _, extras = inner.act(net, with_user(timestep, user), (), key, greedy)
        return action, user, extras

    example, action = example_timestep(env), spaces.example(env.action_space)[None]
    window = config.segments.length, 2 * size
    fill = lambda x: jnp.zeros((*window, *x.shape[1:]), x.dtype)
    blank = jax.tree.map(fill, Transition(example, action, example, (), {}))
    pairs = pairs_of(blank.next_observation, size)
    return dataclasses.replace(
        inner,
        parts={
            **inner.parts,
            "encoder": Part(encoder_of(env, config), (pairs,), config.user.optimizer),
            "reward": Part(
                reward_network(env, config), (example_timestep(hidden),), config.user.optimizer
            ),
        },
        act=act,
        losses=(user_loss, *inner.losses),
        update=update,
        extra=blank,
        memory=lambda n: jnp.zeros((n, latent)),
        needs=("mask",),
        scores=policies.accuracy_scores(config.segments),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as IQL, and for an environment without goals or a teacher without users."""
    of_iql.check(env, config, name)
    if env.goals is None:
        raise UserError(f"'{env.name}' has no goals that the users of {name} could want.")
    if config.segments.teacher.score != "goal":
        raise UserError(
            f"The users of {name} want goals, so segments.teacher.score must be 'goal', got "
            f"'{config.segments.teacher.score}'."
        )


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return how often the reward model is right about new pairs of a user of whom the encoder has
    read as many others as in training, `held_out_accuracy`."""
    segments, size = config.segments, config.segments.size
    if not segments.held_out:
        return {}
    batch = segments.held_out_pairs(env, key, policy, max(1, 512 // size), 2 * size)
    parts = policy.state.parts
    split = lambda x: x.reshape(x.shape[0], -1, 2, 2 * size, *x.shape[2:])
    part = lambda x, i: split(x)[:, :, i].reshape(x.shape[0], -1, *x.shape[2:])
    assert batch.mask is not None
    seen, asked = (
        jax.tree.map(lambda x, i=i: part(x, i), (batch.transitions, batch.mask)) for i in range(2)
    )
    mean, _ = encoder_of(env, config).apply(
        parts["encoder"].params, pairs_of(seen[0].next_observation, size)
    )
    after = with_user(asked[0].next_timestep, jnp.repeat(mean, 2 * size, 0))
    reward: Any = reward_network(env, config).apply(parts["reward"].params, after)
    chosen, rejected, _ = split_sets(reward.sum(0), size)
    known = split_sets(asked[1][0], size)[0]
    right = jnp.where(known, accuracy(chosen, rejected), 0).sum()
    return {"held_out_accuracy": right / jnp.maximum(known.sum(), 1)}


vpl = AlgorithmBuilder("vpl", Config, recipe, check=check, measure=measure)

TINY = SMALL_SEGMENTS | {
    "env": "point_maze",
    "torso.hidden": (8,),
    "user.torso.hidden": (8,),
    "user.torso.activation": "tanh",  # a linear part of z would cancel, but for rounding errors
    "user.steps": 2.0,
    "latent": 3,
    "size": 2,
}
