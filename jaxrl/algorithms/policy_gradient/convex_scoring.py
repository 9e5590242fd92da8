"""Risk by convex scoring functions (Han, Liu and Yu, 2025, "Risk-sensitive reinforcement learning
based on convex scoring functions", arXiv:2505.04553): an actor-critic that minimizes
min_v E f(v, Y), for a score f and an episode's cost Y.

The policy observes the cost so far and v in addition to the observation, so that each v defines a
Markov decision process whose only reward is -f(v, Y) at the end. Each episode has its own v, drawn
around the best one for the current policy, which is then recomputed from the costs of the episodes
played. A greedy policy uses the best v itself. The paper's scores of two variables (the entropic
value at risk) are not implemented; advantages are generalized advantage estimates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.augmented import append_numbers, augmented_space
from jaxrl.algorithms.policy_gradient.shared.episodes import episode_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Episodes, Optimizer, Torso
from jaxrl.networks.heads import check_action_space


class Score(NamedTuple):
    """Score f(v, cost, hyper) [...], and the v that minimizes its mean over costs [N]."""

    value: Any
    best: Any


SCORES = {
    "shortfall": Score(
        lambda v, cost, h: losses.expected_shortfall_score(v, cost, h.tail, h.weight),
        lambda cost, h: losses.value_at_risk(cost, h.tail),
    ),
    "variance": Score(
        lambda v, cost, h: (1 - h.weight) * cost + h.weight * losses.variance_score(v, cost),
        lambda cost, h: cost.mean(),
    ),
}


@group
class Config:
    """Settings of risk by convex scoring functions."""

    episodes: Episodes = Episodes(num_envs=64)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    score: str = static("shortfall", choices=SCORES)
    """Risk measure to minimize: the expected shortfall (CVaR), or the variance."""
    tail: float = hyper(0.2, above=0, high=1)
    """Share of the worst outcomes that the expected shortfall averages; 0.2 is level 0.8 of the
    paper."""
    weight: float = hyper(1.0, low=0, high=1)
    """Weight of the risk relative to the mean cost: below 1 a mean-risk utility, at 0 the mean
    alone."""
    spread: float = hyper(1.0, low=0)
    """Standard deviation of an episode's v around the best one, in units of cost."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""


@struct
class Step:
    """Fields of each step that the loss reads, [T, B]."""

    timestep: TimeStep
    action: Tree
    advantage: Array
    target: Array


@loss("actor_critic", name="loss")
def actor_critic_loss(net: Any, x: Step) -> LossOutput:
    """Compute the policy gradient loss, a value loss and an entropy bonus."""
    policy, value, _ = net.actor_critic(x.timestep, (), method="unroll")
    entropy, h = policy.entropy(), net.hyper
    policy_loss = losses.policy_gradient(policy.log_prob(x.action), x.advantage)
    value_loss = losses.squared_error(value, x.target)
    total = policy_loss + h.value_weight * value_loss - h.entropy_weight * entropy
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return LossOutput(total, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    score = SCORES[config.score]

    def see(timestep: TimeStep, so_far: Array, v: Array) -> TimeStep:
        return append_numbers(env, timestep, jnp.stack((so_far, v), -1))

    def act(net, timestep, memory, key, greedy):
        so_far, v = memory
        noise_key, action_key = jax.random.split(key)
        noise = jnp.zeros_like(v) if greedy else jax.random.normal(noise_key, v.shape)
        so_far = jnp.where(timestep.first, 0.0, so_far - timestep.reward)
        v = jnp.where(timestep.first, net.extra + net.hyper.spread * noise, v)
        policy, _, _ = net.actor_critic(see(timestep, so_far, v), ())
        action = choose(policy, action_key, greedy)
        return jax.lax.stop_gradient(action), (so_far, v), {"so_far": so_far, "v": v}

    def update(net, batch):
        x, h = batch.transitions, net.hyper
        so_far, v = x.extras["so_far"], x.extras["v"]
        timestep = see(x.timestep, so_far, v)
        value = net.actor_critic(timestep, (), method="unroll")[1]
        total, ending = so_far - x.reward, x.done & batch.mask
        reward = jnp.where(ending, -score.value(v, total, h), 0.0)
        following = jnp.concatenate((value[1:], jnp.zeros_like(value[:1])))
        # A time limit ends the episode too: no further cost follows.
        advantage = losses.gae(reward, value, following, x.done, x.done, 1.0, h.gae_lambda)
        advantage = jnp.where(batch.mask, advantage, 0.0)
        steps = Step(timestep, x.action, advantage, advantage + value)
        cost = jnp.where(ending, total, 0.0).sum(0)
        net = net.descend(actor_critic_loss, steps, mask=batch.mask, weight=batch.weight)
        return net.replace(extra=score.best(cost, h)).report(v=net.extra)

    network = episode_network(env, config.torso, observation_space=augmented_space(env, 2))
    none = jnp.zeros(1)
    inputs = (see(example_timestep(env), none, none), ())
    return Recipe(
        parts={"actor_critic": Part(network, inputs, config.optimizer)},
        act=act,
        losses=(actor_critic_loss,),
        update=update,
        extra=jnp.float32(0),
        memory=lambda n: (jnp.zeros(n), jnp.zeros(n)),
        needs=("mask", "transitions.extras.so_far", "transitions.extras.v"),
    )


convex_scoring = AlgorithmBuilder(
    "convex_scoring",
    Config,
    recipe,
    check=lambda env, config, name: check_action_space(env.action_space, name),
)

TINY = {"env": "pendulum", "num_envs": 4, "num_shards": 4, "hidden": (8,)}
