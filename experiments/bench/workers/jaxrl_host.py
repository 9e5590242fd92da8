"""SAC and PPO with jaxrl in an environment on the host: steps per second after a warm-up."""

from __future__ import annotations

import hosting


def main() -> None:
    arguments = hosting.parse()
    import jax

    from jaxrl import envs
    from jaxrl.algorithms import registry
    from jaxrl.core import random
    from jaxrl.core.settings import replace
    from jaxrl.runtime import host

    shared = dict(arguments.config)
    warm, steps = shared.pop("warm"), shared.pop("steps")
    settings = shared | {"optimizer.name": "adam"}
    if arguments.algorithm == "sac":
        settings |= {"num_steps": 1, "updates": 1}
    build, Config = registry.builder(arguments.algorithm)
    environments = host.Environments(
        envs.make(f"gymnasium/{arguments.environment}"), shared["num_envs"]
    )
    algorithm = build(environments.env, replace(Config(), settings))
    players = host.Players(
        [environments],
        host.check_played(algorithm.source, arguments.algorithm),
        staleness=arguments.staleness,
    )

    def advance(run, env_steps):
        number, rest = divmod(env_steps, algorithm.env_steps)
        assert rest == 0, (env_steps, algorithm.env_steps)
        return jax.block_until_ready(host.train(algorithm, players, run, number)[0])

    run = host.start(algorithm, players, random.key(arguments.seed))
    run = advance(run, warm - algorithm.initial_env_steps)
    with hosting.time_steps(steps):
        advance(run, steps)
    players.close()


if __name__ == "__main__":
    main()
