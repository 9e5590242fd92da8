"""REINFORCE under expected conditional risk measures (Yu and Ying, 2023, "On the global convergence
of risk-averse policy gradient methods with expected conditional risk measures", arXiv:2301.10932).

The objective is a mix of the mean and the CVaR of each step's cost, conditional on the previous
step. With each action, the policy also chooses the threshold for the next step's cost from a few
candidates, given the state and the current threshold: the plain discounted sum of
`losses.ecrm_cost` is then the risk, since the thresholds of the best policy are values at risk. The
baseline is that of REINFORCE.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient import reinforce
from jaxrl.algorithms.policy_gradient.shared.augmented import append_numbers, augmented_space
from jaxrl.algorithms.policy_gradient.shared.episodes import (
    Step,
    episode_network,
    leave_one_out,
    policy_loss,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.networks.heads import check_discrete


@group
class Config(reinforce.Config):
    """Settings of REINFORCE under expected conditional risk measures."""

    thresholds: tuple[float, ...] = static((0.0, 1.0), least_length=1)
    """Thresholds of a step's cost (the negative reward) that the policy chooses from. If a cost has
    few values, use these."""
    tail: float = hyper(0.05, above=0, high=1)
    """Share of the worst outcomes that the CVaR averages."""
    weight: float = hyper(0.5, low=0, high=1)
    """Weight of the CVaR relative to the mean (lambda)."""


def recipe(env: Environment, config: Config) -> Recipe:
    thresholds = jnp.asarray(config.thresholds, jnp.float32)
    number = len(thresholds)
    actions: Discrete = env.action_space  # type: ignore[assignment]

    def see(timestep: TimeStep, threshold: Array) -> TimeStep:
        """Append the threshold to the observation; -1 for none, as at the start of an episode."""
        if timestep.legal_actions is not None:
            both = jnp.repeat(timestep.legal_actions, number, -1)
            timestep = dataclasses.replace(timestep, legal_actions=both)
        return append_numbers(env, timestep, jax.nn.one_hot(threshold, number))

    def act(net, timestep, memory, key, greedy):
        policy, _, _ = net.policy(see(timestep, memory), ())
        both = choose(policy, key, greedy)
        action, threshold = both // number, both % number
        return action.astype(actions.dtype), threshold, {"old": memory, "new": threshold}

    def update(net, batch):
        x, h = batch.transitions, net.hyper
        old, new = x.extras["old"], x.extras["new"]
        cost = losses.ecrm_cost(
            -x.reward, thresholds[old], thresholds[new], x.timestep.first, x.done, h.discount,
            h.tail, h.weight,
        )  # fmt: skip
        reward = jnp.where(batch.mask, -cost, 0.0)
        returns = losses.discounted_returns(reward, x.done, jnp.zeros_like(reward[0]), h.discount)
        advantage = leave_one_out(returns, batch.mask) if config.baseline else returns
        steps = Step(see(x.timestep, old), x.action * number + new, advantage)
        return net.descend(policy_loss, steps, mask=batch.mask, weight=batch.weight)

    spaces = augmented_space(env, number), Discrete(actions.n * number)
    network = episode_network(env, config.torso, *spaces)
    inputs = (see(example_timestep(env), jnp.full(1, -1)), ())
    return Recipe(
        parts={"policy": Part(network, inputs, config.optimizer)},
        act=act,
        losses=(policy_loss,),
        update=update,
        memory=lambda n: jnp.full(n, -1),
        needs=("mask", "transitions.extras.old", "transitions.extras.new"),
    )


ecrm_reinforce = AlgorithmBuilder(
    "ecrm_reinforce",
    Config,
    recipe,
    check=lambda env, config, name: check_discrete(env.action_space, name),
)

TINY = {"env": "cliff_walking", "num_envs": 4, "num_shards": 4, "hidden": (8,)}
