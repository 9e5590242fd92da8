"""PPO on CartPole with jaxrl: what a user of the library would write, and nothing faster."""

from __future__ import annotations

import argparse

import measuring


def load() -> None:
    import jaxrl.core.random
    import jaxrl.core.train
    import jaxrl.envs
    import jaxrl.systems.policy_gradient.ppo  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax

    from jaxrl import envs
    from jaxrl.core import random
    from jaxrl.core.settings import replace
    from jaxrl.core.train import start, train
    from jaxrl.systems.policy_gradient.ppo import ppo

    shared = arguments.config
    names = "num_steps epochs minibatches activation learning_rate discount clip value_weight"
    settings = {name: shared[name] for name in (*names.split(), "entropy_weight")} | {
        "num_envs": arguments.envs,
        "shuffle": arguments.shuffle,
        "hidden": tuple(shared["hidden"]),
        "max_grad_norm": float("inf"),  # rejax clips elements, not norms: neither side clips
        "gae_lambda": shared["trace"],
        "value_clip": shared["clip"],  # as rejax always does
    }
    config = replace(ppo.Config(), settings)
    env = envs.make("cartpole")
    algorithm = ppo(env, config)

    def keys(seeds):
        if isinstance(seeds, int):
            return random.key(seeds, arguments.generator)
        make = lambda seed: random.key(seed, arguments.generator)
        return jax.vmap(make)(jax.numpy.asarray(seeds))

    def program(updates):
        return lambda key: train(algorithm, start(algorithm, key), updates)

    def returns(run, key, episodes):
        from jaxrl.evaluation.evaluate import evaluate

        policy = algorithm.policy(run.state)
        return float(evaluate(env, policy, key, episodes, False).returns.mean())

    def evaluate(result, seed, episodes):
        return returns(result[0], keys(10_000 + seed), episodes)

    def curve(seed, points, updates, episodes):
        run = jax.jit(lambda key: start(algorithm, key))(keys(seed))
        found = [returns(run, keys(10_000 + seed), episodes)]
        for _ in range(points):
            run, _ = advance(algorithm, run, updates)
            found.append(returns(run, keys(10_000 + seed), episodes))
        return found

    advance = jax.jit(train, static_argnums=(0, 2))
    chosen = arguments.generator
    about = {
        "library": "jaxrl",
        "generator": random.default_generator() if chosen == random.AUTO else chosen,
        "shuffle": arguments.shuffle,
    }
    return measuring.Work(program, keys, evaluate, curve, about)


if __name__ == "__main__":
    measuring.main(load, work)
