"""DQN, SAC of either kind of actions and PQN with jaxrl."""

from __future__ import annotations

import argparse

import jaxrl_side
import measuring


def load() -> None:
    import jaxrl.kit  # noqa: F401  with what every algorithm imports


def work(arguments: argparse.Namespace) -> measuring.Work:
    from jaxrl import envs
    from jaxrl.algorithms import registry
    from jaxrl.core.settings import replace

    shared = arguments.config
    build, Config = registry.builder(shared["algorithm"])
    settings = shared["settings"] | {"num_envs": arguments.envs, "optimizer.name": "adam"}
    if "epsilon_steps" in settings:
        settings["exploration.steps"] = settings.pop("epsilon_steps")
    if shared["algorithm"] == "dqn":
        # rejax squares errors of any size, and its Adam's epsilon is optax's.
        settings |= {"huber": 1e9, "eps": 1e-8}
    if shared["algorithm"] in ("dqn", "discrete_sac"):
        settings["period"] = settings["updates"]  # rejax's copy follows once for each window
    if shared["algorithm"] == "pqn":
        settings["max_grad_norm"] = float("inf")  # rejax clips elements, not norms: neither clips
    env = envs.make(shared["environment"], **shared["environment_settings"])
    algorithm = build(env, replace(Config(), settings))
    return jaxrl_side.work(arguments, env, algorithm, greedy=True)


if __name__ == "__main__":
    measuring.main(load, work)
