"""DQN and SAC with Stable-Baselines3 2.9.2, which compiles nothing: a run is a call of `learn`."""

# It runs in an environment of its own, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import measuring


def load() -> None:
    import stable_baselines3  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import torch
    from stable_baselines3 import DQN, SAC
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    shared = arguments.config
    env_steps = arguments.envs * shared["num_steps"]
    assert shared["activation"] == "relu" and shared["num_steps"] == 1

    def program(updates):
        steps = updates * env_steps
        settings = {
            "learning_rate": shared["learning_rate"],
            "buffer_size": shared["capacity"],
            "learning_starts": shared["warmup"],
            "batch_size": shared["batch_size"],
            "tau": shared["rate"],
            "gamma": shared["discount"],
            "train_freq": 1,
            "gradient_steps": shared["updates"],
            "policy_kwargs": {"net_arch": shared["hidden"], "activation_fn": torch.nn.ReLU},
            "device": "cpu",
        }
        if shared["algorithm"] == "dqn":
            settings |= {
                "target_update_interval": env_steps,
                "exploration_fraction": shared["epsilon_steps"] / steps,
                "max_grad_norm": float("inf"),
            }
        agent = {"dqn": DQN, "sac": SAC}[shared["algorithm"]]

        def run(seed):
            environment = make_vec_env(shared["peer_environment"], arguments.envs, seed=seed)
            return agent("MlpPolicy", environment, seed=seed, **settings).learn(steps)

        return run

    def evaluate(model, seed, episodes):
        environment = make_vec_env(shared["peer_environment"], 16, seed=10_000 + seed)
        return float(evaluate_policy(model, environment, episodes)[0])

    def curve(seed, points, updates, episodes):
        raise NotImplementedError("It is only timed.")

    about = {"library": "stable_baselines3", "generator": "torch", "shuffle": "-"}
    return measuring.Work(program, lambda seed: seed, evaluate, curve, about, compiled=False)


if __name__ == "__main__":
    measuring.main(load, work)
