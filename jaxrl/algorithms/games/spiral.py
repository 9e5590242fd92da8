"""SPIRAL's self-play (Liu et al., 2025, arXiv:2506.24119): one policy plays both sides of a
zero-sum game, and learns by REINFORCE with role-conditioned advantages.

Every move of player p in an episode with outcome R is reinforced by A = R_p - b[role], where b is a
moving average of the past outcomes of this role in this game (their role-conditioned advantage
estimation, RAE). As in the authors' code, a game enters the average only after its advantages have
been computed, so they stay unbiased; their algorithm 1 has the opposite order. The average takes
one step per update, for the mean of its games; theirs takes one per game. A baseline shared by both
roles would be useless: in a zero-sum game their outcomes average to 0.

The paper trains a language model with Adam on whole answers; here a move is one action of a small
network, an entropy bonus may be added, there is no format penalty, and moves whose advantage is 0
count in the mean of the loss (the authors' code leaves them out).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.episodes import episode_recipe
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Key, Policy, Transition
from jaxrl.exact import games
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.groups import Episodes, Optimizer, Torso
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of SPIRAL."""

    episodes: Episodes = Episodes(num_envs=128)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, beta2=0.95)
    """Adam with a constant 1e-6, for a language model, as in the authors' run script; beta 2 and
    the norm are the defaults of their trainer (Oat). A small network needs a step size of about
    1e-3."""
    baseline: str = static("role", choices=("role", "none"))
    """Baseline subtracted from an outcome: role, the moving average of its role, or none."""
    decay: float = hyper(0.95, low=0, high=1)
    """Decay of the baselines' moving average per update (their alpha)."""
    entropy_weight: float = hyper(0.01, low=0, log=True)
    """Weight of the entropy bonus."""


def outcomes(transitions: Transition, mask: Array) -> tuple[Array, Array]:
    """Return the outcome of each role in each game, [B, R], and that of the player who moves at
    each step, [T, B], whoever made the last move.

    transitions: [T, B] with rewards [R]; mask: [T, B], False after the game's end.
    """
    total = jnp.where(mask[..., None], transitions.reward, 0.0).sum(0)
    role = jnp.asarray(transitions.timestep.role)
    mine = jnp.take_along_axis(total[None], role[..., None], -1)[..., 0]
    return total, mine


def active_roles(role: Array, mask: Array, num_roles: int) -> Array:
    """Return the roles that had a turn in each game, bool [B, R], from roles and mask [T, B]."""
    return (jax.nn.one_hot(role, num_roles, dtype=bool) & mask[..., None]).any(0)


def recipe(env: Environment, config: Config) -> Recipe:
    num_roles = example_timestep(env, agents=True).reward.shape[1]

    def role_advantages(net, batch):
        """Return R_p - b[role], with baselines that exclude this update's games."""
        mask, role = batch.mask, batch.transitions.timestep.role
        total, mine = outcomes(batch.transitions, mask)
        advantage = losses.role_conditioned_advantage(mine, role, net.extra)
        net = net.report(
            advantage_square=losses.masked_mean(jnp.square(advantage), mask),
            **{f"baseline_{i}": net.extra[i] for i in range(num_roles)},
        )
        if config.baseline == "none":
            return net, advantage
        # One step for the mean of all games of an update, since one policy played them.
        took_part = active_roles(role, mask, num_roles)
        average = losses.masked_mean(total, took_part, axis=0)
        baseline = losses.role_baseline_update(
            net.extra, average, jnp.arange(num_roles), net.hyper.decay, took_part.any(0)
        )
        return net.replace(extra=baseline), advantage

    return dataclasses.replace(
        episode_recipe(env, config.torso, config.optimizer, role_advantages, record=("logits",)),
        extra=np.zeros(num_roles, np.float32),
        needs=("mask", "transitions.timestep.role"),
        scores=games.SCORES,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment without roles or with a single reward, and an action
    space without a policy head."""
    check_action_space(env.action_space, name)
    example = example_timestep(env, agents=True)
    if example.role is None or example.reward.ndim != 2:
        raise UserError(
            f"'{env.name}' is not a game with a reward for each role; {name} learns by self-play "
            "in such a game, for example kuhn_poker."
        )


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the policy's exploitability, in a game that can be enumerated."""
    reaches = lambda game: games.reach(game, games.behavior(game, policy))
    return games.exploitability_metrics(env, reaches)


spiral = AlgorithmBuilder("spiral", Config, recipe, check=check, measure=measure)

TINY = {"env": "kuhn_poker", "num_envs": 4, "num_shards": 4, "hidden": (8,)}
