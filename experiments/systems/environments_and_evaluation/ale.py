"""Many games, one protocol: agents tuned on two games are left alone in three others."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import curves, tune
from jaxrl import envs
from jaxrl.core.settings import replace
from jaxrl.core.types import Environment, Policy
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers import sticky_actions, time_limit
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.systems.planning.search import search, simulator
from jaxrl.systems.policy_gradient.ppo import ppo
from jaxrl.systems.value.dqn import dqn

PAPER = {
    "title": "The Arcade Learning Environment: An Evaluation Platform for General Agents",
    "authors": "Bellemare, Naddaf, Veness and Bowling",
    "year": 2013,
    "arxiv": "1207.4708",
}
CLAIM = (
    "Agents that learn (PPO, DQN) or plan (UCT), tuned on two games and then left alone, all score "
    "above random and constant actions in the others."
)
PARTS = (
    "jaxrl/envs/pixels/",
    "jaxrl/envs/wrappers/repeats.py",
    "jaxrl/systems/value/dqn.py",
    "jaxrl/systems/planning/search.py",
)

METRIC = "return, 0 for the worst and 1 for the best of all agents, mean of three games"
MARGIN = 0.0
TRAINING = ("breakout", "asterix")
TEST = ("freeway", "seaquest", "space_invaders")
LIMIT = 500  # steps of an episode
LEARNING_RATES = (2.5e-4, 1e-3, 4e-3)
DEPTHS = (10, 30)  # of UCT's random rollouts
SIMULATIONS = 32
SIZES = {"num_envs": 32, "num_steps": 32, "hidden": (128,)}
PPO = replace(ppo.Config(entropy_weight=0.01), SIZES)
DQN = replace(
    dqn.Config(),
    {
        "num_envs": 32,
        "num_steps": 4,
        "updates": 8,
        "warmup": 1_024,
        "exploration.steps": 15_000.0,
    },
)
NOTES = (
    "Paper: 55 Atari games, 5 of them to tune on, linear Sarsa and UCT; here MinAtar's games with "
    "sticky actions (Machado et al., 2018: 0.25) and at most 500 steps an episode. PPO learns for "
    "154k steps, DQN for 51k, on flattened images; UCT has the game itself, 32 simulations a "
    "step. Learning rate: best of 3 on both training games, 2 seeds of their own; UCT's depth: "
    "best of 2. Everything else was chosen beforehand. Measured: the weakest of the three; "
    "baseline, which is also nothing learnt or planned: the better of random actions and the best "
    "constant one of a game. Returns of all are in the details."
)


@functools.cache
def game(name: str) -> Environment:
    return time_limit(sticky_actions(envs.make(f"minatar_{name}")), LIMIT)


@functools.cache
def constant(env: Environment) -> Policy:
    """Always the action that is the policy's state."""

    def act(state, timestep, memory, key, greedy):
        return jnp.full(timestep.first.shape, state, jnp.int32), memory, {}

    return Policy(act, lambda n: (), jnp.int32(0))


def without_learning(env: Environment, keys, episodes: int) -> np.ndarray:
    """Returns of the better of random actions and the best constant one [seeds]."""

    @jax.jit
    @jax.vmap
    def of(key):
        play = lambda policy: evaluate(env, policy, key, episodes).returns.mean()
        space: Any = env.action_space
        fixed = constant(env)
        chosen = jax.vmap(lambda i: play(Policy(fixed.act, fixed.memory, i)))(jnp.arange(space.n))
        return jnp.append(chosen, play(random_policy(env)))

    returns = np.asarray(of(keys), np.float64)
    return returns[:, returns.mean(0).argmax()]


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def planned(env: Environment, keys, depth: int, budget: Budget):
    """The mean return [seeds] of a few episodes played by UCT in the game itself."""
    seeds, episodes = len(keys), budget.choose(1, 4)
    simulations, limit = budget.choose((2, 5), (SIMULATIONS, LIMIT))
    root, model = simulator(env, 0.99, depth)
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def play(carry, keys):
        (state, timestep), total, over = carry
        found = search(
            "puct", model, env.params, root(state, timestep), None, keys[0], simulations, True
        )
        after = step(keys[1:], state, found.action, env.params)
        total += jnp.where(over, 0.0, after[1].reward)
        return (after, total, over | after[1].done), None

    # All seeds' games are one batch; the search draws for all of them from one of their keys.
    start_keys = jax.vmap(lambda key: jax.random.split(key, episodes))(keys).reshape(-1)
    start = jax.vmap(lambda key: env.reset(key, env.params))(start_keys)
    carry = (start, jnp.zeros(len(start_keys)), jnp.zeros(len(start_keys), bool))
    draws = jax.random.split(jax.random.fold_in(keys[0], 1), (limit, 1 + len(start_keys)))
    return jax.lax.scan(play, carry, draws)[0][1].reshape(seeds, episodes).mean(1)


def learned(env: Environment, name: str, keys, rates, budget: Budget) -> np.ndarray:
    """Returns at the end of training [seeds]."""
    algorithm, updates = (ppo(env, PPO), 150) if name == "PPO" else (dqn(env, DQN), 390)
    updates = budget.choose(1, updates)
    steps = algorithm.initial_frames + algorithm.frames * updates
    return curves(env, algorithm, keys, steps, 1, budget.choose(1, 16), rates)[:, -1]


def tuned(name: str, key, budget: Budget) -> float:
    """The learning rate, or UCT's depth, that is best on the training games."""
    seeds = budget.choose(1, 2)

    def score(keys, setting):
        values = setting["setting"]

        def returns(env):
            if name != "UCT":
                return learned(env, name, keys, {"learning_rate": values}, budget)
            depths = [planned(env, keys[:seeds], depth, budget) for depth in DEPTHS]
            return np.concatenate(depths)

        found = np.stack([returns(game(g)) for g in budget.choose(TRAINING[:1], TRAINING)])
        return (found / np.maximum(found.max(1, keepdims=True), 1e-6)).mean(0)

    return tune(score, key, "setting", DEPTHS if name == "UCT" else LEARNING_RATES, seeds)


def check(key: jax.Array, budget: Budget) -> Check:
    """Returns of all agents in the test games, seed by seed."""
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 5))
    settings = {name: tuned(name, tuning_key, budget) for name in ("PPO", "DQN", "UCT")}
    scores: dict[str, list[np.ndarray]] = {}
    details = []
    for test in budget.choose(TEST[:1], TEST):
        env = game(test)
        returns = {"random or constant": without_learning(env, keys, budget.choose(1, 16))}
        for name in ("PPO", "DQN"):
            rates = {"learning_rate": settings[name]}
            returns[name] = learned(env, name, keys, rates, budget)
        returns["UCT"] = np.asarray(planned(env, keys, int(settings["UCT"]), budget), np.float64)
        low, high = (f([x.mean() for x in returns.values()]) for f in (min, max))
        for name, x in returns.items():
            scores.setdefault(name, []).append((x - low) / max(high - low, 1e-6))
            details.append(figure(f"return: {name}, {test}", x))
    figures = {name: figure(name, np.mean(x, axis=0)) for name, x in scores.items()}
    details += [figure(f"score: {name}", f.per_seed) for name, f in figures.items()]
    details += [figure(f"setting: {name}", [x] * len(keys)) for name, x in settings.items()]
    baseline = figures.pop("random or constant")
    weakest = min(figures.values(), key=lambda f: f.value)
    return compare(CLAIM, METRIC, weakest, baseline, budget, MARGIN, None, details, NOTES)
