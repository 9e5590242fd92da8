"""PPO against A2C at the same number of environment steps, with and without its clip."""

from __future__ import annotations

import functools

import jax
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import CARTPOLE, PENDULUM, World, curves, tune
from jaxrl.core.settings import replace
from jaxrl.systems.policy_gradient.a2c import a2c
from jaxrl.systems.policy_gradient.ppo import ppo

PAPER = {
    "title": "Proximal Policy Optimization Algorithms",
    "authors": "Schulman, Wolski, Dhariwal, Radford and Klimov",
    "year": 2017,
    "arxiv": "1707.06347",
}
CLAIM = "PPO is better than other online policy gradient methods at the same environment steps."
PARTS = ("jaxrl/systems/policy_gradient/ppo.py", "jaxrl/losses/policies/policy_gradients.py")

METRIC = "return averaged over training, scaled to 0..1, mean of CartPole and Pendulum"
MARGIN = 0.05
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# The paper's table 3 (Mujoco): windows of 2048 steps, minibatches of 64, 10 epochs.
SIZES = {"num_envs": 16, "num_steps": 128, "epochs": 10, "minibatches": 32}
PPO = replace(ppo.Config(), SIZES)
A2C = replace(a2c.Config(), {"num_envs": 16, "num_steps": 5})
TINY = replace(PPO, {"num_steps": 5, "epochs": 2, "minibatches": 2})
POINTS = 5
NOTES = (
    "Paper: Mujoco and Atari, more baselines; here CartPole and Pendulum against A2C. Greedy "
    "evaluation at 5 evenly spaced moments. Learning rate: best of 5 on seeds of their own, for "
    "each algorithm and environment. Without the clip: infinite, all else as tuned with it. Steps, "
    "settings and grid were chosen in trials on other seeds."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Learning curves of PPO, A2C and PPO without a clip, seed by seed."""
    worlds = budget.choose([CARTPOLE], [CARTPOLE, PENDULUM])
    keys = jax.random.split(key, len(worlds))
    scores: dict[str, list[np.ndarray]] = {}
    details = []
    for world, world_key in zip(worlds, keys, strict=True):
        for name, (rate, curve) in _scores(world, world_key, budget).items():
            scores.setdefault(name, []).append(world.score(curve.mean(1)))
            label = f"{name}, {world.env}, learning rate {rate:g}"
            details.append(figure(f"return over training: {label}", curve.mean(1)))
            details.append(figure(f"final return: {label}", curve[:, -1]))
    ppo_, a2c_, unclipped = (
        figure(name, np.mean(scores[name], axis=0)) for name in ("PPO", "A2C", "PPO without clip")
    )
    return compare(CLAIM, METRIC, ppo_, a2c_, budget, MARGIN, unclipped, details, NOTES)


def _scores(world: World, key: jax.Array, budget: Budget) -> dict[str, tuple[float, np.ndarray]]:
    """Each variant's learning rate and its curves [seeds, POINTS]."""
    env = world.make()
    env_steps = budget.choose(800, {"cartpole": 51_200, "pendulum": 204_800}[world.env], 1_024_000)
    seeds = budget.num_seeds(2, 20, 32)
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, seeds)

    def run(algorithm, keys, hyper):
        return curves(env, algorithm, keys, env_steps, POINTS, budget.choose(2, 16), hyper)

    def tuned(algorithm, **hyper):
        score = lambda keys, rates: run(algorithm, keys, {**rates, **hyper}).mean(1)
        grid = budget.choose(LEARNING_RATES[:2], LEARNING_RATES)
        return tune(score, tuning_key, "learning_rate", grid, budget.choose(1, 5))

    clipped = ppo(env, world.configure(budget.choose(TINY, PPO)))
    baseline = a2c(env, world.configure(A2C))
    ppo_rate, a2c_rate = tuned(clipped, clip=PPO.clip), tuned(baseline)
    train = functools.partial(run, keys=keys)
    return {
        "PPO": (ppo_rate, train(clipped, hyper={"learning_rate": ppo_rate, "clip": PPO.clip})),
        "A2C": (a2c_rate, train(baseline, hyper={"learning_rate": a2c_rate})),
        "PPO without clip": (
            ppo_rate,
            train(clipped, hyper={"learning_rate": ppo_rate, "clip": np.inf}),
        ),
    }
