"""SPIRAL's self-play (Liu et al., 2025, arXiv:2506.24119): one policy plays both sides of a
zero-sum game, and learns by REINFORCE with an advantage for each role.

Every move of player p in an episode with outcome R is reinforced by A = R_p - b[role], where b is a
moving average of what this role of this game gets, updated first (their role-conditioned advantage
estimation, RAE). The paper trains a language model with Adam on whole answers; here a move is one
action of a small network, an entropy bonus may be added, and there is no format penalty.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, select, static
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info, Transition, Tree, struct
from jaxrl.kit.optimisation import TRANSFORMS, descend, transform
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.initialisers import INITIALISERS
from jaxrl.networks.torsos import ACTIVATIONS
from jaxrl.sources.episodes import episodes


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SPIRAL."""

    num_envs: int = static(128, low=1, high=MANY)
    """Games in one update."""
    baseline: str = static("role", choices=("role", "shared", "none"))
    """What is subtracted from an outcome: the moving average of its role, one shared by both roles
    of a game, or none."""

    hidden: tuple[int, ...] = static((64, 64), low=1, high=WIDE, least_length=1)
    """Widths of the policy's hidden layers."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    initialiser: str = static("lecun", choices=INITIALISERS)
    """Initial weights: lecun (normal), or orthogonal with a first policy close to uniform."""
    optimiser: str = static("adam", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(3e-3, low=0)
    """Step size."""
    max_grad_norm: float = hyper(0.5, above=0, high=math.inf)
    """Longer gradients are scaled down to this global norm; infinite for none."""
    decay: float = hyper(0.95, low=0, high=1)
    """How much of a baseline stays after one more update's games (their alpha)."""
    entropy_weight: float = hyper(0.01, low=0)
    """Weight of the entropy bonus."""


@struct
class State:
    params: Tree
    optimiser: Tree
    baseline: Array  # float32 [R]: of each role of each game
    hyper: Tree


def outcomes(transitions: Transition, mask: Array) -> tuple[Array, Array]:
    """What each role got in each game, [B, R], and the same for the mover of each step, [T, B],
    whichever player's move ended the game.

    transitions: [T, B] with rewards [R]; mask: [T, B], False after the game's end.
    """
    total = jnp.where(mask[..., None], transitions.reward, 0.0).sum(0)
    role = jnp.asarray(transitions.timestep.role)
    mine = jnp.take_along_axis(total[None], role[..., None], -1)[..., 0]
    return total, mine


def played(role: Array, mask: Array, num_roles: int) -> Array:
    """Which roles were played in each game, bool [B, R], from roles and mask [T, B]: those of the
    game's players who had a turn."""
    return (jax.nn.one_hot(role, num_roles, dtype=bool) & mask[..., None]).any(0)


def agent(env: Environment, config: Config) -> Agent:
    """The SPIRAL agent for `env`; it needs batches of whole episodes."""
    num_roles = _check(env, config)
    network: Any = ActorCritic(
        env.observation_space,
        env.action_space,
        config.hidden,
        config.activation,
        initialiser=config.initialiser,
    )
    optimiser = transform(config.optimiser)
    # Where roles share a baseline, both players of one game do: roles 2 g and 2 g + 1.
    roles = np.arange(num_roles)  # not a JAX array: the builder may be called while tracing
    group = roles // 2 * 2 if config.baseline == "shared" else roles

    def init(key, hyper):
        params = network.init(key, example_timestep(env, agents=True), ())
        baseline = jnp.zeros(num_roles, jnp.float32)
        return State(params, optimiser.init(params), baseline, select(config, hyper))

    def act(state, timestep, memory, key, greedy):
        policy, _, memory = network.apply(state.params, timestep, memory)
        action = policy.mode() if greedy else policy.sample(seed=key)
        return action, memory, {"logits": policy.logits}

    def loss(params, transitions, advantage, mask, entropy_weight):
        policy, _, _ = network.apply(params, transitions.timestep, (), method="unroll")
        average = lambda x: losses.masked_mean(x, mask)
        policy_loss = average(
            losses.policy_gradient(policy.log_prob(transitions.action), advantage)
        )
        entropy = average(policy.entropy())
        return policy_loss - entropy_weight * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
        }

    def update(state, batch, key):
        hyper, transitions, mask = state.hyper, batch.transitions, batch.mask
        total, mine = outcomes(transitions, mask)
        role = transitions.timestep.role
        baseline = state.baseline
        if config.baseline != "none":
            # One step for the mean of all games of an update, which came from one policy.
            took_part = played(role, mask, num_roles)
            members = jax.nn.one_hot(group, num_roles)
            count = took_part.sum(0) @ members
            average = (total * took_part).sum(0) @ members / jnp.maximum(count, 1)
            baseline = losses.role_baseline_update(
                baseline, average, jnp.arange(num_roles), hyper["decay"], count > 0
            )
        advantage = losses.role_conditioned_advantage(mine, jnp.asarray(group)[role], baseline)
        gradient, info = jax.grad(loss, has_aux=True)(
            state.params, transitions, advantage, mask, hyper["entropy_weight"]
        )
        params, optimiser_state, norm = descend(
            optimiser,
            gradient,
            state.optimiser,
            state.params,
            hyper["learning_rate"],
            hyper["max_grad_norm"],
        )
        info |= {
            "advantage_square": losses.masked_mean(jnp.square(advantage), mask),
            "grad_norm": norm,
            "weight_norm": optax.tree.norm(params),
        } | {f"baseline_{i}": baseline[group[i]] for i in range(num_roles)}
        return State(params, optimiser_state, baseline, hyper), Info(info)

    return Agent(
        "spiral",
        init,
        act,
        update,
        hyper=hypers(config),
        needs=("mask", "transitions.timestep.role"),
        config=config,
    )


def spiral(env: Environment, config: Config = Config()) -> Algorithm:
    """SPIRAL on `env`, a game that rewards each role. The same arguments give the same object.

    Raises `UserError` where env and config do not fit: an environment without roles or with a
    single reward, an action space without a policy head, a setting that is out of its range.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    return learn(agent(env, config), episodes(env, config.num_envs))


def _check(env: Environment, config: Config) -> int:
    """The number of roles."""
    check(config)
    check_action_space(env.action_space, "spiral")
    example = example_timestep(env, agents=True)
    if example.role is None or example.reward.ndim != 2:
        raise UserError(
            f"'{env.name}' is no game with a reward for each role; spiral learns by self-play in "
            "one, such as kuhn_poker."
        )
    return example.reward.shape[1]
