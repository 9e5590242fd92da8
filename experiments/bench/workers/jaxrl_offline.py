"""TD3+BC and IQL from a dataset with jaxrl."""

from __future__ import annotations

import dataclasses

import offlining


def main() -> None:
    arguments = offlining.parse()
    import jax
    import jax.numpy as jnp

    from jaxrl import envs
    from jaxrl.algorithms import registry
    from jaxrl.core import random
    from jaxrl.core.examples import example_timestep
    from jaxrl.core.settings import replace
    from jaxrl.core.train import start, train

    shared = arguments.config
    settings = {
        "data.name": "medium-replay",
        "data.size": 20_000,
        "data.batch_size": shared["batch_size"],
        "data.updates": 100,
        "torso.hidden": shared["hidden"],
        "target.rate": shared["rate"],
        "discount": shared["discount"],
        "normalization.observation": True,
    }
    if arguments.algorithm == "td3_bc":
        settings |= {"optimizer.learning_rate": shared["learning_rate"], "alpha": shared["alpha"]}
    else:
        settings |= {
            "critic.learning_rate": shared["learning_rate"],
            "actor.learning_rate": shared["learning_rate"],
            "actor.learning_rate_steps": float("inf"),
            "expectile": shared["expectile"],
            "temperature": shared["temperature"],
        }
    build, Config = registry.builder(arguments.algorithm)
    env = envs.make("pendulum")
    algorithm = build(env, replace(Config(), settings))
    updates = shared["steps"] // 100
    run = jax.jit(lambda key: start(algorithm, key))(random.key(arguments.seed))
    advance = jax.jit(lambda run: train(algorithm, run, updates)).lower(run).compile()

    def work():
        trained = jax.block_until_ready(advance(run)[0])
        policy = algorithm.policy(trained.state)
        blank = example_timestep(env)
        count = shared["episodes"]
        blank = jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), blank)

        @jax.jit
        def act(observation):
            timestep = dataclasses.replace(blank, observation=observation)
            memory = policy.memory(count)
            return policy.act(policy.state, timestep, memory, random.key(0), True)[0]

        return act

    offlining.finish(arguments, work)


if __name__ == "__main__":
    main()
