"""PPO with rejax 0.1.3."""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import measuring
import rejax_side


def work(arguments: argparse.Namespace) -> measuring.Work:
    from rejax import PPO

    shared = arguments.config
    env_steps = arguments.envs * shared["num_steps"]

    def create(updates, points):
        return PPO.create(
            env=shared["peer_environment"],
            num_envs=arguments.envs,
            num_steps=shared["num_steps"],
            num_epochs=shared["epochs"],
            num_minibatches=shared["minibatches"],
            total_timesteps=points * updates * env_steps,
            eval_freq=updates * env_steps,
            learning_rate=shared["learning_rate"],
            max_grad_norm=float("inf"),
            gamma=shared["discount"],
            gae_lambda=shared["trace"],
            clip_eps=shared["clip"],
            vf_coef=shared["value_weight"],
            ent_coef=shared["entropy_weight"],
            normalize_observations=False,
            normalize_rewards=False,
            agent_kwargs={
                "activation": shared["activation"],
                "hidden_layer_sizes": tuple(shared["hidden"]),
            },
        )

    # It samples where it is judged.
    return rejax_side.work(arguments, create, lambda algorithm, state: algorithm.make_act(state))


if __name__ == "__main__":
    measuring.main(rejax_side.load, work)
