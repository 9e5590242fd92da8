"""The same with Stable-Baselines3 2.9.2 (torch) or sbx 0.28.0 (its algorithms in JAX)."""

# It runs in an environment of its own, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import hosting


def main() -> None:
    arguments = hosting.parse()
    from stable_baselines3.common.env_util import make_vec_env

    shared = arguments.config
    policy = {"net_arch": shared["hidden"]}
    settings = {"learning_rate": shared["learning_rate"], "policy_kwargs": policy}
    if arguments.library == "sbx":
        from sbx import PPO, SAC
    else:
        from stable_baselines3 import PPO, SAC

        settings["device"] = "cpu"
    if arguments.algorithm == "sac":
        agent = SAC
        settings |= {
            "batch_size": shared["batch_size"],
            "buffer_size": shared["capacity"],
            "learning_starts": shared["warmup"],
            "train_freq": 1,
            "gradient_steps": 1,
        }
    else:
        agent = PPO
        window = shared["num_envs"] * shared["num_steps"]
        settings |= {
            "n_steps": shared["num_steps"],
            "n_epochs": shared["epochs"],
            "batch_size": window // shared["minibatches"],
        }
    environments = make_vec_env(arguments.environment, shared["num_envs"], seed=arguments.seed)
    model = agent("MlpPolicy", environments, seed=arguments.seed, **settings)
    model.learn(shared["warm"])
    with hosting.time_steps(shared["steps"]):
        model.learn(shared["steps"], reset_num_timesteps=False)


if __name__ == "__main__":
    main()
