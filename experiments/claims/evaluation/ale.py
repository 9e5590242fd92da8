"""Several games, one protocol: agents tuned on none of them, against playing without skill."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import (
    Arena,
    Claim,
    Measured,
    Metric,
    Mutation,
    Paper,
    Side,
    Trial,
    better,
)
from experiments.evidence.measure import curve
from jaxrl import envs
from jaxrl.algorithms.planning.shared.search import search, simulator
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core.types import Environment, Key
from jaxrl.envs.policies import random_policy
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper
from jaxrl.kit.groups import Rollouts

BASELINE = "random or constant"
GAMES = {"breakout": 20.0, "space_invaders": 50.0}  # a high return
SIMULATIONS, DEPTH = 32, 10  # of UCT: simulations per step, steps of their random rollouts
DQN: dict[str, Any] = {"num_envs": 8, "num_steps": 4, "updates": 8, "batch_size": 32}
DQN |= {"warmup": 512, "capacity": 50_000, "period": 200, "exploration.steps": 16_000.0}
DQN |= {"hidden": (64,), "optimizer.name": "adam", "optimizer.eps": 0.01 / 32}
DQN |= {"learning_rate": 1e-3}
PPO: dict[str, Any] = {"num_envs": 32, "num_steps": 32, "hidden": (64,), "learning_rate": 1e-3}
PPO |= {"entropy_weight": 0.01}


@group
class Config:
    """Settings of playing without skill."""

    rollouts: Rollouts = Rollouts(num_envs=1, num_steps=1)
    action: float = hyper(-1.0, low=-1, high=5)
    """Action that it always takes; -1: a random one."""


def _recipe(env: Environment, config: Config) -> Recipe:
    def act(net, timestep, memory, key, greedy):
        drawn, _, _ = random_policy(env).act((), timestep, memory, key, greedy)
        constant = net.hyper.action.astype(drawn.dtype)
        return jnp.where(constant < 0, drawn, constant), memory, {}

    return Recipe(parts={}, act=act, losses=[], update=lambda net, batch: net)


without_skill = AlgorithmBuilder("without_skill", Config, _recipe)


def measure(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
    """Measure mean returns [runs] at the end, and of learning agents at the beginning."""
    if trial.name == "UCT":
        env = envs.make(trial.environment.env, **trial.environment.params)
        steps: Any = 3 if trial.tiny else env.max_steps
        plan = jax.vmap(lambda key: play_uct(env, key, 1 if trial.tiny else 4, steps))
        return {"final": jax.jit(plan)(keys)}
    if trial.name == BASELINE:
        return {"final": curve(dataclasses.replace(trial, env_steps=1), keys, hyper)["final"]}
    found = curve(trial, keys, hyper)
    return {name: found[name] for name in ("final", "untrained")}


def play_uct(env: Environment, key: Key, episodes: int, steps: int) -> jax.Array:
    """Return the mean return of a few episodes of UCT, which searches in the game itself."""
    root, model = simulator(env, 0.99, DEPTH)
    start_key, key = jax.random.split(key)

    def play(carry, key):
        (state, timestep), total, over = carry
        search_key, key = jax.random.split(key)
        found = search(
            "puct", model, env.params, root(state, timestep), None, search_key, SIMULATIONS, True
        )
        keys = jax.random.split(key, episodes)
        after = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, found.action, env.params)
        total += jnp.where(over, 0.0, after[1].reward)
        return (after, total, over | after[1].done), None

    started = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(start_key, episodes), env.params
    )
    carry = started, jnp.zeros(episodes), jnp.zeros(episodes, bool)
    return jax.lax.scan(play, carry, jax.random.split(key, steps))[0][1].mean()


def game(name: str) -> Arena:
    # Sticky actions as in Machado et al. (2018).
    params = {"time_limit": 500, "sticky_probability": 0.25}
    return Arena(f"minatar_{name}", 98_304, 0.0, GAMES[name], params=params, points=1, name=name)


CLAIM = Claim(
    paper=Paper(
        "The Arcade Learning Environment: An Evaluation Platform for General Agents",
        "Bellemare, Naddaf, Veness and Bowling",
        2013,
        "1207.4708",
        "A platform of many games, and a protocol: agents are tuned on a few of them and evaluated "
        "in the others. General agents that learn (linear Sarsa) or plan (UCT) do better in most "
        "of 55 Atari games than random and constant actions.",
    ),
    claim="With one setting for both games, tuned on none, agents that learn (DQN, PPO) or plan "
    "(UCT) beat random and constant actions.",
    left_out="Atari; tuning on training games; Asterix, Freeway and Seaquest, which take DQN more "
    "steps to learn; linear Sarsa and its features; breadth-first search; the baseline that "
    "perturbs a constant action.",
    parts=(
        "jaxrl/envs/pixels/minatar.py",
        "jaxrl/envs/pixels/minatar_breakout.py",
        "jaxrl/envs/pixels/minatar_space_invaders.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/planning/shared/search.py",
    ),
    metric=Metric("final", 0.0, 50.0),
    environments=tuple(map(game, GAMES)),
    sides={
        "DQN": Side(dqn, DQN),
        "PPO": Side(ppo, PPO),
        "UCT": Side(without_skill, deviates="It adds PUCT's bonus instead of UCB1's."),
        BASELINE: Side(without_skill, grid={"action": (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)}),
    },
    clauses=tuple(better(agent, BASELINE, 0.0, *GAMES) for agent in ("DQN", "PPO", "UCT")),
    seeds=12,
    minutes=4.0,
    measure=measure,
    notes="MinAtar's games with sticky actions (0.25) and at most 500 steps. Settings are the "
    "first that were chosen, and the same in both games. UCT has the game itself and 32 "
    "simulations per step, and learns nothing. The baseline is the best of random play and of each "
    "constant action, found in each game on tuning seeds. DQN and PPO take all their environment "
    "steps, the others none.",
    mutations=(
        Mutation(
            "the targets of DQN forget the reward",
            "jaxrl.losses:double_q_target",
            lambda target: lambda reward, *rest: target(0 * reward, *rest),
        ),
        Mutation(
            "advantages have the wrong sign",
            "jaxrl.losses:gae",
            lambda gae: lambda *arguments: -gae(*arguments),
        ),
    ),
)
