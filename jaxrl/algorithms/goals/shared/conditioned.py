"""Settings, networks and losses of goal-conditioned values and policies.

They are those of OGBench's code (Park et al., 2024, "OGBench: Benchmarking offline goal-conditioned
RL", arXiv:2410.20092), but for goals and ends as below, layer normalization before the activation
instead of after it, other initial weights, and means of policies within the bounds of actions.

Values are minus the discounted number of steps to a goal (`sources.hindsight`). A state counts as
having reached a goal where the environment says so; in OGBench it must be the very same row of the
data. Goals are what the environment calls a goal, such as a place; in OGBench they are whole
observations. OGBench's data (AntMaze, Cube, Powderworld and others, also from pixels) are not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.shared.data import GoalShares, Played, check_goals
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition, Tree
from jaxrl.kit import Loss, LossOutput, Net, group, hyper, loss, static
from jaxrl.kit.groups import INF, Optimizer, Target, Torso
from jaxrl.networks import encoders
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, check_action_space, check_bounded
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, image_encoder
from jaxrl.sources.hindsight import Shares, ending_params, hindsight

LARGEST_WEIGHT = 100.0  # largest weight of an imitated action: authors' code


@group
class GoalConditioned:
    """Settings shared by algorithms that learn to reach goals from data."""

    data: Played = Played()
    actor_goals: GoalShares = GoalShares()
    """Goals that the policy learns to reach."""
    torso: Torso = Torso(hidden=(512, 512, 512), activation="gelu")
    """Hidden layers of each network; those of values have layer normalization."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of each network, separately. Adam, 3e-4: OGBench's code."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step, also of geometric distances to goals."""


@group
class GoalValues(GoalConditioned):
    """Settings shared by algorithms that learn values of goals by implicit regression."""

    value_goals: GoalShares = GoalShares(here=0.2, elsewhere=0.3, geometric=True)
    """Goals that values are learned for."""
    target: Target = Target(rate=0.005)
    expectile: float = hyper(0.9, above=0, below=1)
    """Expectile of the value over the data's steps: 0.5 is their mean, near 1 their maximum."""


@group
class Extraction:
    """Extraction of a policy from values of actions."""

    method: str = static("awr", choices=("awr", "ddpg_bc"))
    """Method: advantage-weighted cloning, or the gradient of the value through the action and
    cloning ("ddpg_bc", for bounded boxes)."""
    temperature: float = hyper(1 / 3, above=0, high=INF, log=True)
    """Temperature of the advantage weights, 1 / alpha in OGBench's code: 1/3 for its discrete
    actions."""
    cloning: float = hyper(0.3, low=0, high=INF, log=True)
    """Weight of cloning relative to the normalized value, for "ddpg_bc"."""


class GoalValue(nn.Module):
    """The value [...] of a time step [...] and its goal, and of an action if there is an action
    space; with layer normalization."""

    observation_space: Space
    widths: tuple[int, ...]
    activation: str = "gelu"
    action_space: Space | None = None

    @nn.compact
    def __call__(self, timestep: TimeStep, *action: Tree) -> Array:
        encoder = image_encoder(self.observation_space)
        if self.action_space is None:
            x = encoders.features(self.observation_space, timestep, encoder)
        else:
            x = encoders.state_action_features(
                self.observation_space, self.action_space, timestep, action[0], encoder
            )
        x = MLP(self.widths, self.activation, layer_norm=True)(x)
        return dense(1, initializer("lecun", 1.0))(x)[..., 0]


def make_actor(env: Environment, config: GoalConditioned) -> Actor:
    """Make the network of a policy whose normal distribution, where actions are continuous, has a
    constant standard deviation of one half-width."""
    torso = config.torso
    return Actor(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        torso.initializer,
        deviation="fixed",
    )


def with_goal(timestep: TimeStep, goal: Tree) -> TimeStep:
    """Return a time step with another goal."""
    return dataclasses.replace(timestep, goal=goal)


def implicit_value_loss(
    value: Array, old: Array, next_old: Array, x: Transition, discount: Array, expectile: Array
) -> Array:
    """Regress two values [2, B] on their targets by expectiles, without a value of actions.

    The targets are those of each target network, -1 + discount V'(s', g) until the goal is reached.
    The side of the expectile is chosen by the lesser target, less the mean of the target networks
    (OGBench's code; HIQL, arXiv:2307.11949).

    value: of the networks that learn. old, next_old: of their target networks, here and at the
    successor.
    """
    target = losses.td_target(x.reward, x.terminated, discount, next_old)
    least = losses.td_target(x.reward, x.terminated, discount, next_old.min(0))
    advantage = jnp.broadcast_to(least - old.mean(0), value.shape)
    return losses.action_free_expectile(value, target, advantage, expectile).sum(0)


def clone_by_advantage(
    policy: Distribution, action: Tree, advantage: Array, temperature: Array
) -> Array:
    """Compute the loss of advantage-weighted cloning, with weights of at most 100."""
    log_prob: Any = policy.log_prob(action)
    return losses.awr(log_prob, jax.lax.stop_gradient(advantage), temperature, LARGEST_WEIGHT)


def approach_loss(env: Environment, extraction: Extraction | None = None) -> Loss:
    """Return the loss of a policy that imitates actions, weighted by how much nearer they led to
    the goal, of the parts `actor` and `distance`; reads the extra `actor_goal` and the
    `temperature` of `extraction`, or of the algorithm itself."""
    goals = env.goals
    assert goals is not None

    @loss("actor")
    def actor_loss(net: Net, x: Transition) -> LossOutput:
        """Imitate actions, weighted by how much nearer they led to the goal."""
        goal = x.extras["actor_goal"]
        before = net.distance(goals.achieved(x.observation), goal)
        after = net.distance(goals.achieved(x.next_observation), goal)
        policy = net.actor(with_goal(x.timestep, goal))
        h = net.hyper[extraction] if extraction else net.hyper
        cloned = clone_by_advantage(policy, x.action, before - after, h.temperature)
        return LossOutput(cloned, {"advantage": before - after})

    return actor_loss


def follow_value(policy: Distribution, action: Tree, q: Array, cloning: Array) -> Array:
    """Compute the loss of DDPG with cloning: -Q(s, pi(s)) / mean |Q| - cloning log pi(a).

    q: of the policy's own action, [B]; its gradient flows.
    """
    log_prob: Any = policy.log_prob(action)
    size = jax.lax.stop_gradient(jnp.abs(q).mean() + 1e-6)
    return -q / size + cloning * losses.behavior_cloning(log_prob)


def own_action(env: Environment, policy: Distribution) -> Array:
    """Return the mode of a policy within the bounds of actions, as OGBench's code does for a
    constant deviation."""
    return spaces.clip(env.action_space, policy.mode())


def make_source(
    env: Environment,
    config: GoalConditioned,
    own: Shares | None = None,
    others: Mapping[str, Shares] | None = None,
    subgoal_steps: int = 0,
    option_steps: int = 0,
) -> Source:
    """Return the data of a run, relabeled with goals in hindsight.

    own: of the goal in the time steps, the policy's by default. others: of the goals in the extras.
    subgoal_steps, option_steps: as `hindsight` takes them.
    """
    own = config.actor_goals.shares() if own is None else own
    view = hindsight(env, own, others, subgoal_steps, option_steps=option_steps)
    return config.data.source(env, view)


def value_source(env: Environment, config: GoalValues) -> Source:
    """Return the data of a run, with goals of values, and goals of the policy as the extra
    `actor_goal`."""
    others = {"actor_goal": config.actor_goals.shares()}
    return make_source(env, config, config.value_goals.shares(), others)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless `env` has actions that a policy can have, and goals."""
    check_action_space(env.action_space, name)
    check_goals(env, name)


def check_values(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `check`, and if reaching a goal of `env` ends no episode."""
    check(env, config, name)
    assert env.goals is not None  # `check_goals`
    goal = jax.tree.map(lambda x: x[0], env.goals.achieved(example_timestep(env).observation))
    if not bool(jnp.all(env.goals.outcome(goal, goal, ending_params(env))[1])):
        raise UserError(
            f"{name} counts the steps to where a goal ends the episode, which none does in "
            f"'{env.name}'."
        )


SMALL = {
    "env": "goal_maze",
    "env_params": {"layout": "u_maze", "observe": "position"},
    "data.size": 128,
    "data.streams": 4,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "torso.hidden": (8,),
}


def extraction_loss(env: Environment, extraction: Extraction) -> Loss:
    """Return the policy's loss, of the parts `critic`, [E, B], and for weighted clones `value`."""
    by_value = extraction.method == "ddpg_bc"

    @loss("actor")
    def actor_loss(net: Net, x: Transition) -> LossOutput:
        """Imitate actions by their advantage, or follow the critics and imitate."""
        h = net.hyper[extraction]
        here = with_goal(x.timestep, x.extras["actor_goal"])
        policy = net.actor(here)
        if by_value:
            q = net.critic(here, own_action(env, policy)).min(0)
            return LossOutput(follow_value(policy, x.action, q, h.cloning), {"actor_value": q})
        advantage = net.critic(here, x.action).min(0) - net.value(here)
        cloned = clone_by_advantage(policy, x.action, advantage, h.temperature)
        return LossOutput(cloned, {"advantage": advantage})

    return actor_loss


def check_extraction(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `check`, and for "ddpg_bc" without bounded numbers as actions.

    config: settings with an `extraction`.
    """
    check(env, config, name)
    if config.extraction.method == "ddpg_bc":
        check_bounded(env.action_space, f"{name} with the extraction 'ddpg_bc'")
