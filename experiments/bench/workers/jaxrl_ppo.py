"""PPO with jaxrl."""

from __future__ import annotations

import argparse

import jaxrl_side
import measuring


def load() -> None:
    import jaxrl.kit  # noqa: F401  with what every algorithm imports


def work(arguments: argparse.Namespace) -> measuring.Work:
    from jaxrl import envs
    from jaxrl.algorithms.policy_gradient.ppo import ppo
    from jaxrl.core.settings import replace

    shared = arguments.config
    names = "num_steps epochs minibatches activation learning_rate discount clip value_weight"
    settings = {name: shared[name] for name in (*names.split(), "entropy_weight")} | {
        "num_envs": arguments.envs,
        "shuffle": arguments.shuffle,
        "hidden": tuple(shared["hidden"]),
        "optimizer.eps": shared["eps"],
        "max_grad_norm": float("inf"),  # rejax clips elements, not norms: neither side clips
        "gae_lambda": shared["trace"],
        "value_clip": shared["clip"],  # as rejax always does
    }
    env = envs.make(shared["environment"], **shared["environment_settings"])
    return jaxrl_side.work(arguments, env, ppo(env, replace(ppo.Config(), settings)), greedy=False)


if __name__ == "__main__":
    measuring.main(load, work)
