"""Train an agent that a worker of ours has built, as a user of the library would,
and nothing faster."""

from __future__ import annotations

import argparse
from typing import Any

import measuring


def work(arguments: argparse.Namespace, env: Any, algorithm: Any, greedy: bool) -> measuring.Work:
    """greedy: whether the policy that is judged is the greedy or the sampling one."""
    import jax

    from jaxrl.core import random
    from jaxrl.core.train import start, train

    chosen = arguments.generator
    warm = (
        algorithm.initial_env_steps // algorithm.env_steps
    )  # updates' worth of steps before the first

    def keys(seeds):
        if isinstance(seeds, int):
            return random.key(seeds, chosen)
        make = lambda seed: random.key(seed, chosen)
        return jax.vmap(make)(jax.numpy.asarray(seeds))

    def program(updates):
        return lambda key: train(algorithm, start(algorithm, key), updates - warm)

    def returns(run, key, episodes):
        from jaxrl.evaluation.evaluate import evaluate

        policy = algorithm.policy(run.state)
        return float(evaluate(env, policy, key, episodes, greedy).returns.mean())

    def evaluate(result, seed, episodes):
        return returns(result[0], keys(10_000 + seed), episodes)

    def curve(seed, points, updates, episodes):
        run = jax.jit(lambda key: start(algorithm, key))(keys(seed))
        found = [returns(run, keys(10_000 + seed), episodes)]
        for point in range(points):
            run, _ = advance(algorithm, run, updates if point else updates - warm)
            found.append(returns(run, keys(10_000 + seed), episodes))
        return found

    advance = jax.jit(train, static_argnums=(0, 2))
    about = {
        "library": "jaxrl",
        "generator": random.default_generator() if chosen == random.AUTO else chosen,
        "shuffle": arguments.shuffle,
    }
    return measuring.Work(program, keys, evaluate, curve, about)
