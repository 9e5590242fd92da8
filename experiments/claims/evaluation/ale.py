"""Games that no setting was chosen in: agents against playing without skill."""

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
from jaxrl.core.types import Environment, Key
from jaxrl.envs.policies import random_policy
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper
from jaxrl.kit.groups import Rollouts

BASELINE = "random or constant"
GAMES = {"asterix": 10.0, "freeway": 30.0}  # a high return
SIMULATIONS, DEPTH = 32, 10  # of UCT: simulations per step, steps of their random rollouts
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
    return Arena(f"minatar_{name}", 294_912, 0.0, GAMES[name], params=params, points=1, name=name)


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
    claim="With one setting, tuned in neither game, PPO beats random and constant actions in "
    "Asterix and Freeway, and UCT in Asterix.",
    left_out="Atari; tuning on training games; games in which random and constant actions get "
    "nothing, such as Seaquest; UCT in Freeway, whose reward is farther away than it looks ahead; "
    "DQN; linear Sarsa and its features; breadth-first search; the baseline that perturbs a "
    "constant action.",
    parts=(
        "jaxrl/envs/pixels/minatar.py",
        "jaxrl/envs/pixels/minatar_asterix.py",
        "jaxrl/envs/pixels/minatar_freeway.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
        "jaxrl/algorithms/planning/shared/search.py",
    ),
    metric=Metric(
        "final",
        0.0,
        30.0,
        meaning="the mean return of complete games at the end of training, with greedy actions",
    ),
    environments=tuple(map(game, GAMES)),
    sides={
        "PPO": Side(ppo, PPO),
        "UCT": Side(without_skill, deviates="It adds PUCT's bonus instead of UCB1's."),
        BASELINE: Side(without_skill, grid={"action": (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0)}),
    },
    clauses=(better("PPO", BASELINE, 0.0, *GAMES), better("UCT", BASELINE, 0.0, "asterix")),
    seeds=10,
    tuning_seeds=4,
    minutes=10.0,
    measure=measure,
    notes="MinAtar's games with sticky actions (0.25) and at most 500 steps. PPO's settings are "
    "those first chosen for Breakout and Space Invaders. UCT has the game itself and 32 "
    "simulations per step, and learns nothing. The baseline is the best of random play and of "
    "each constant action, found in each game on tuning seeds. PPO takes all its environment "
    "steps, the others none. An earlier design asked for as much in Breakout and Space Invaders "
    "themselves, where all agents (DQN, PPO, UCT) had far more than the baseline and the claim "
    "could hardly fail; a check before it, of agents tuned on two games and tested in the other "
    "three, did not hold. Pilots at a third of this budget (two seeds of PPO; one of each "
    "constant action, 32 episodes): in Asterix PPO had 0.84 and 0.56, random play 0.69 and "
    "constant actions 0.34 to 0.59; in Freeway PPO 2.66 and 6.31, up alone 5.44 and all others 0; "
    "in Seaquest PPO 0.50 and 0.56 and all others 0. The steps were tripled since PPO had not "
    "learned in Asterix by then.",
    diagnosis="On the tuning seeds PPO was what a constant action is in Freeway (5.6 and 5.6: it "
    "learns to go up, and no more), and hardly learned in Asterix (1.0 against 0.5; it gains 0.3). "
    "In games for which its settings were not chosen it has no skill after so few steps, which is "
    "what the paper's protocol is there to show.",
    mutations=(
        Mutation(
            "advantages have the wrong sign",
            "jaxrl.losses:gae",
            lambda gae: lambda *arguments: -gae(*arguments),
        ),
        Mutation(
            "rewards come a step late",
            "jaxrl.losses:gae",
            lambda gae: lambda reward, *rest: gae(jnp.roll(reward, 1, 0), *rest),
        ),
    ),
)
