"""Train with rejax 0.1.3 as its own documentation does: `jax.jit(algo.train)`."""

# It runs in an environment of its own, so a type checker finds no rejax here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import measuring


def load() -> None:
    import rejax  # noqa: F401


def work(
    arguments: argparse.Namespace,
    create: Callable[[int, int], Any],
    act: Callable[[Any, Any], Callable[[Any, Any], Any]],
) -> measuring.Work:
    """create(updates, points): an algorithm that evaluates after every `updates` updates, `points`
        times; `train_iteration` is one.
    act(algorithm, state)(observation, key) -> action: the policy that is judged.
    """
    import jax

    def program(updates):
        silent = create(updates, 1).replace(
            eval_callback=lambda algorithm, state, key: (), skip_initial_evaluation=True
        )
        return silent.train

    def keys(seeds):
        if isinstance(seeds, int):
            return jax.random.key(seeds)
        return jax.vmap(jax.random.key)(jax.numpy.asarray(seeds))

    def returns(algorithm, state, key, episodes):
        from rejax.evaluate import evaluate

        params = algorithm.env_params
        longest, policy = params.max_steps_in_episode, act(algorithm, state)
        return evaluate(policy, key, algorithm.env, params, episodes, longest)[1].mean()

    def evaluate(result, seed, episodes):
        return float(returns(create(1, 1), result[0], keys(10_000 + seed), episodes))

    compiled = {}

    def curve(seed, points, updates, episodes):
        # Its own evaluation within its own loop: rejax has no way to go on from a state and
        # evaluate a later one without compiling again.
        if not compiled:
            watched = create(updates, points).replace(
                eval_callback=lambda algorithm, state, key: returns(
                    algorithm, state, key, episodes
                ),
            )
            compiled["train"] = jax.jit(watched.train)
        return [float(x) for x in compiled["train"](keys(seed))[1]]

    about = {
        "library": "rejax",
        "generator": jax.config.jax_default_prng_impl,  # pyright: ignore
        "shuffle": "exact",
    }
    return measuring.Work(program, keys, evaluate, curve, about)
