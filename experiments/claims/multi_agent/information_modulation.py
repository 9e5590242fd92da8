"""A governor of information learned by PPO against fixed information, in dilemmas on networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import as_float64, shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.train import start, train
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.evaluation.evaluate import evaluate

PLAYERS, ROUNDS, UPDATES, EPISODES = 6, 25, 100, 2048
MORE, MORE_SHARE = 0.06, 0.04
SETTINGS = {"num_envs": 64, "num_steps": ROUNDS, "epochs": 4, "minibatches": 4}
SETTINGS |= {"hidden": (64,), "learning_rate": 3e-3, "discount": 0.9, "gae_lambda": 0.8}
# Whether players are always shown neighbors' last moves, and their share of cooperation.
FIXED = {"nothing": (0, 0), "last moves": (1, 0), "shares": (0, 1), "both": (1, 1)}


def show_always(shown: tuple[int, int]) -> Policy:
    """Return the governor that always shows the same."""
    action = jnp.asarray(np.repeat(shown, PLAYERS), jnp.int32)

    def act(state, timestep, memory, key, greedy):
        return jnp.broadcast_to(action, (*timestep.first.shape, 2 * PLAYERS)), memory, {}

    return Policy(act, lambda n: (), ())


def blindfold(env: Environment) -> Environment:
    """Return the environment with observations that tell nothing."""
    hide = lambda timestep: dataclasses.replace(timestep, observation=0 * timestep.observation)

    def reset(key, params):
        state, timestep = env.reset(key, params)
        return state, hide(timestep)

    def step(key, state, action, params):
        state, timestep = env.step(key, state, action, params)
        return state, hide(timestep)

    return dataclasses.replace(env, reset=reset, step=step)


def measure(key: Key, sees: bool) -> tuple[Array, Array, Array, Array]:
    """Return the players' mean payoff and cooperation with a governor that PPO trained, and the
    highest of each with fixed information.

    sees: whether the governor sees anything.
    """
    env = envs.make("governed_dilemma", players=PLAYERS, rounds=ROUNDS)
    env = env if sees else blindfold(env)
    learn_key, play_key = jax.random.split(key)
    algorithm = ppo(env, SETTINGS)
    run, _ = train(algorithm, start(algorithm, learn_key), UPDATES)
    policies = [algorithm.policy(run.state), *map(show_always, FIXED.values())]
    played = [evaluate(env, policy, play_key, EPISODES) for policy in policies]
    payoff = jnp.stack([x.returns.mean() for x in played]) / ROUNDS
    cooperation = jnp.stack([x.metrics["mean_cooperation"].mean() for x in played])
    return payoff[0], cooperation[0], payoff[1:].max(), cooperation[1:].max()


@jax.jit
def compare(key: Key) -> Mapping[str, Any]:
    """Return by how much a governor leaves what is claimed."""
    payoff, cooperation, best, highest = measure(key, sees=True)
    return {
        "payoff above the best fixed information's, below 0.06": shortfall(payoff - best, MORE),
        "cooperation above the highest, below 0.04": shortfall(cooperation - highest, MORE_SHARE),
    }


@jax.jit
def compare_blind(key: Key) -> Mapping[str, Any]:
    """Return by how much a governor that sees nothing leaves what is claimed."""
    payoff, _, best, _ = measure(key, sees=False)
    return {"payoff above the best fixed information's": shortfall(payoff - best, MORE)}


@jax.enable_x64(False)  # the environment and the networks compute in float32
def errors(key: Key) -> Mapping[str, Any]:
    """Return by how much a governor leaves what is claimed."""
    return as_float64(compare(key))


@jax.enable_x64(False)
def blind(key: Key) -> Mapping[str, Any]:
    """Return by how much a governor that sees nothing leaves what is claimed."""
    return as_float64(compare_blind(key))


def credit_later(gae: Callable[..., Array]) -> Callable[..., Array]:
    """Credit each action with the advantage of the one before it."""
    return lambda *arguments: jnp.roll(gae(*arguments), 1, 0)


CLAIM = Exact(
    paper=Paper(
        "Instigating Cooperation among LLM Agents Using Adaptive Information Modulation",
        "Chen, Ilami, Lore and Heydari",
        2024,
        "2409.10372",
        "A governor trained by reinforcement learning, which chooses how much information each of "
        "several strategic language models has of the others in repeated prisoner's dilemmas, "
        "raises cooperation and welfare above those with fixed information.",
    ),
    claim="In dilemmas of six players on networks, a governor that PPO trains to choose what each "
    "is shown raises the mean payoff of a game by 0.06 or more, and cooperation by 0.04 or more, "
    "above the best of four kinds of fixed information; one that sees nothing does not.",
    left_out="Language models as players: these have fixed dispositions that were made for the "
    "environment (`governed_dilemma`), so nothing here says how language models answer; the "
    "paper's payoffs and tiers of information; players that learn.",
    parts=(
        "jaxrl/envs/games/governed_dilemma.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
    ),
    errors=errors,
    planted={"a governor that sees nothing": blind},
    tolerance=1e-6,
    effect=0.02,
    seeds=8,
    minutes=3.0,
    mutations=(
        Mutation("advantages are those of the action before", "jaxrl.losses:gae", credit_later),
    ),
    notes="Episodes have 25 rounds; a game's payoff is between 0 and 5, and 3 if all cooperate. PPO"
    " learns for 160,000 rounds; each kind of information is played in 2,048 episodes of the "
    "same keys, which leave a standard error of the payoff below 0.01. Players are always "
    "shown nothing, last moves, shares, or both. Two other seeds were seen before: the "
    "governor's payoff was 2.37 and 2.38 where the best fixed one was 2.25 and 2.25 (nothing,"
    " or shares alone), and cooperation 0.58 and 0.58 where the highest was 0.50 and 0.50. "
    "With these seeds a governor that looks one round ahead (discount 0) met both thresholds "
    "too, so foresight is not what it takes.",
)
