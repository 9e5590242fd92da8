"""PPO on CartPole with jaxrl: what a user of the library would write, and nothing faster."""

from __future__ import annotations

import argparse

import measuring


def load() -> None:
    import jaxrl.agents.policy_gradient.ppo
    import jaxrl.core.random
    import jaxrl.core.train
    import jaxrl.envs  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax

    from jaxrl import envs
    from jaxrl.agents.policy_gradient.ppo import Config, ppo
    from jaxrl.core import random
    from jaxrl.core.train import start, train

    shared = arguments.config
    config = Config(
        num_envs=arguments.envs,
        num_steps=shared["num_steps"],
        epochs=shared["epochs"],
        minibatches=shared["minibatches"],
        shuffle=arguments.shuffle,
        hidden=tuple(shared["hidden"]),
        activation=shared["activation"],
        optimiser="adam",
        learning_rate=shared["learning_rate"],
        max_grad_norm=float("inf"),  # rejax clips elements, not norms: neither side clips
        discount=shared["discount"],
        trace=shared["trace"],
        clip=shared["clip"],
        value_clip=shared["clip"],  # as rejax always does
        value_weight=shared["value_weight"],
        entropy_weight=shared["entropy_weight"],
    )
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
