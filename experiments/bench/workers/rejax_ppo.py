"""The same work with rejax 0.1.3, run as its own documentation does: `jax.jit(algorithm.train)`."""

# It runs in an environment of its own, so a type checker finds no rejax here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import measuring


def load() -> None:
    import rejax  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax
    from rejax import PPO

    shared = arguments.config
    frames = arguments.envs * shared["num_steps"]

    def algorithm(updates, points=1):
        """Evaluates after every `updates` updates, `points` times; `train_iteration` is one."""
        return PPO.create(
            env="CartPole-v1",
            num_envs=arguments.envs,
            num_steps=shared["num_steps"],
            num_epochs=shared["epochs"],
            num_minibatches=shared["minibatches"],
            total_timesteps=points * updates * frames,
            eval_freq=updates * frames,
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

    def program(updates):
        silent = algorithm(updates).replace(
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
        act, longest = algorithm.make_act(state), params.max_steps_in_episode
        return evaluate(act, key, algorithm.env, params, episodes, longest)[1].mean()

    def evaluate(result, seed, episodes):
        return float(returns(algorithm(1), result[0], keys(10_000 + seed), episodes))

    compiled = {}

    def curve(seed, points, updates, episodes):
        # Its own evaluation within its own loop: rejax has no way to go on from a state and
        # evaluate a later one without compiling again.
        if not compiled:
            watched = algorithm(updates, points).replace(
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


if __name__ == "__main__":
    measuring.main(load, work)
