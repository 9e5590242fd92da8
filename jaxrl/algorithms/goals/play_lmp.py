"""Play-LMP (Lynch et al., 2019, "Learning latent plans from play", arXiv:1903.01973): cloning of
play under goals, in which a latent plan tells which of the many ways to a goal was taken.

A window of play is its own task: what its last step achieves is the goal. Plan recognition tells
the plan of the whole window, plan proposal that of its first step and the goal, and the policy acts
from observation, goal and plan. The loss is that of a conditional variational autoencoder. To act,
a plan is drawn from the proposal and kept for `replan` steps; greedily, its mean.

Here the policy is a perceptron for each step, where the paper's is recurrent, with a normal
distribution (theirs is a mixture of discretized logistics). Recognition is recurrent in both
directions, as theirs, and sees actions too. The weight of the divergence and the number of steps
for which a plan is kept are those of reimplementations; the paper's own code was not at hand.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.conditioned import check, with_goal
from jaxrl.algorithms.goals.shared.data import Played
from jaxrl.core import spaces, trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition, Tree, struct
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, PolicyHead
from jaxrl.networks.initializers import initializer
from jaxrl.networks.recurrent import GRU
from jaxrl.networks.torsos import MLP
from jaxrl.sources.played import windows


@group
class Config:
    """Settings of Play-LMP: cloning of play under latent plans (arXiv:1903.01973)."""

    data: Played = Played(players="play", batch_size=64)
    torso: Torso = Torso(hidden=(256, 256))
    """Hidden layers of the policy and of plan proposal, each."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the three networks, separately."""

    horizon: int = static(32, low=1)
    """Number of steps in a window of play, whose last one achieves the goal."""
    replan: int = static(30, low=1)
    """Number of steps for which a plan is kept."""
    plan: int = static(16, low=1, high=WIDE)
    """Number of numbers in a plan."""
    recurrent: int = static(64, low=1, high=WIDE)
    """Width of plan recognition, in each direction of time."""
    beta: float = hyper(0.01, low=0, high=INF)
    """Weight of the divergence of recognized plans from proposed ones."""


@struct
class Plans:
    """Normal distribution of plans: mean and scale [..., Z]."""

    mean: Array
    scale: Array

    def sample(self, key: Any) -> Array:
        """Draw plans [..., Z], through which gradients flow."""
        return self.mean + self.scale * jax.random.normal(key, self.mean.shape)


class _PlanHead(nn.Module):
    size: int

    @nn.compact
    def __call__(self, x: Array) -> Plans:
        mean, scale = jnp.split(dense(2 * self.size, initializer("lecun", 1.0))(x), 2, -1)
        return Plans(mean, jax.nn.softplus(scale) + 1e-4)


class PlanRecognition(nn.Module):
    """Plans [B] of windows of observations and actions [T, B], whose goals are not seen."""

    observation_space: Space
    action_space: Space
    width: int
    size: int

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> Plans:
        plain = with_goal(timestep, None)
        x = encoders.state_action_features(self.observation_space, self.action_space, plain, action)
        first, blank = jnp.zeros(x.shape[:2], bool), jnp.zeros((x.shape[1], self.width))
        ends = [GRU(self.width).unroll(way, first, blank)[0][-1] for way in (x, x[::-1])]
        return _PlanHead(self.size)(jnp.concatenate(ends, -1))


class PlanProposal(nn.Module):
    """Plans [B] from a time step and its goal [B]."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str
    initializer: str
    size: int

    @nn.compact
    def __call__(self, timestep: TimeStep) -> Plans:
        x = encoders.features(self.observation_space, timestep)
        return _PlanHead(self.size)(MLP(self.widths, self.activation, self.initializer)(x))


class PlanActor(nn.Module):
    """A policy [...] from a time step [...], its goal, and a plan [..., Z]."""

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    activation: str
    initializer: str

    @nn.compact
    def __call__(self, timestep: TimeStep, plan: Array) -> Distribution:
        x = encoders.features(self.observation_space, timestep)
        x = MLP(self.widths, self.activation, self.initializer)(jnp.concatenate([x, plan], -1))
        head = PolicyHead(self.action_space, bounded_mean=True, deviation="learned")
        return head(x, timestep.legal_actions)


@struct
class Kept:
    """Memory of a policy that keeps plans: a plan [B, Z], and for how many steps it was kept,
    int32 [B]."""

    plan: Array
    age: Array


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, torso, goals = example_timestep(env), config.torso, env.goals
    assert goals is not None
    space, size = env.action_space, config.plan

    @loss("recognition", "proposal", "actor")
    def plan_loss(net: Net, x: Transition) -> LossOutput:
        """Compute -mean_t log pi(a_t | s_t, g, z) + beta KL(q(z | window) || p(z | s_0, g)), z
        from q."""
        last = jax.tree.map(lambda a: a[-1], x.next_observation)
        goal = goals.achieved(last)
        told = jax.tree.map(lambda g: jnp.broadcast_to(g, (len(x.reward), *g.shape)), goal)
        here = with_goal(x.timestep, told)
        recognized = net.recognition(x.timestep, x.action)
        proposed = net.proposal(jax.tree.map(lambda a: a[0], here))
        plan = recognized.sample(net.key())
        plan = jnp.broadcast_to(plan, (len(x.reward), *plan.shape))
        log_prob = net.actor(here, plan).log_prob(x.action)
        both = recognized.mean, recognized.scale, proposed.mean, proposed.scale
        value = losses.latent_plan(log_prob.mean(0), *both, net.hyper.beta)
        spread = lambda a: jnp.broadcast_to(a, log_prob.shape)
        metrics = {"cloning": -log_prob, "divergence": spread(losses.gaussian_kl(*both))}
        return LossOutput(spread(value), metrics)

    def act(net: Net, timestep: TimeStep, memory: Kept, key, greedy):
        plan_key, key = jax.random.split(key)
        proposed = net.proposal(timestep)
        drawn = proposed.mean if greedy else proposed.sample(plan_key)
        due = timestep.first | (memory.age >= config.replan)
        plan = trees.where(due, drawn, memory.plan)
        age = jnp.where(due, 1, memory.age + 1)
        action = choose(net.actor(timestep, plan), key, greedy)
        return spaces.clip(space, action), Kept(plan, age), {}

    window = jax.tree.map(lambda a: a[None], timestep)
    action = spaces.example(space)[None]
    sizes = torso.hidden, torso.activation, torso.initializer
    recognition = PlanRecognition(env.observation_space, space, config.recurrent, size)
    proposal = PlanProposal(env.observation_space, *sizes, size)
    actor = PlanActor(env.observation_space, space, *sizes)
    plan = jnp.zeros((1, size))
    return Recipe(
        parts={
            "recognition": Part(recognition, (window, action[None]), config.optimizer),
            "proposal": Part(proposal, (timestep,), config.optimizer),
            "actor": Part(actor, (timestep, plan), config.optimizer),
        },
        act=act,
        losses=(plan_loss,),
        memory=lambda n: Kept(jnp.zeros((n, size)), jnp.zeros(n, jnp.int32)),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows of the play of a run, which need not end."""
    return config.data.source(env, windows(config.horizon, whole=False))


play_lmp = AlgorithmBuilder("play_lmp", Config, recipe, source, check=check)

TINY = {
    "env": "one_way_doors",
    "env_params": {"rows": 2, "columns": 2, "maze": 1, "observe": "position"},
    "data.size": 256,
    "data.streams": 2,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "torso.hidden": (8,),
    "horizon": 3,
    "replan": 2,
    "plan": 2,
    "recurrent": 4,
}
