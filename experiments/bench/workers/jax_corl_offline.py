"""TD3+BC and IQL from a dataset with the single files of JAX-CORL."""

# It runs in an environment of its own, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
import types

import offlining


def main() -> None:
    arguments = offlining.parse()
    import jax
    import jax.numpy as jnp
    import numpy as np

    module = load(arguments)
    shared, data = arguments.config, np.load(arguments.data)
    mean, deviation = data["observations"].mean(0), data["observations"].std(0)
    standardize = lambda x: jnp.asarray((x - mean) / (deviation + 1e-5), jnp.float32)
    # It acts within [-1, 1].
    fields = {
        "observations": standardize(data["observations"]),
        "actions": jnp.clip(jnp.asarray(data["actions"]) / 2, -1 + 1e-5, 1 - 1e-5),
        "rewards": jnp.asarray(data["rewards"]),
        "next_observations": standardize(data["next_observations"]),
        "dones": jnp.asarray(data["terminals"], jnp.float32),
        "dones_float": jnp.asarray(data["terminals"] | data["timeouts"], jnp.float32),
    }
    dataset = module.Transition(*(fields[name] for name in module.Transition._fields))
    settings = {
        "batch_size": shared["batch_size"],
        "hidden_dims": tuple(shared["hidden"]),
        "actor_lr": shared["learning_rate"],
        "critic_lr": shared["learning_rate"],
        "tau": shared["rate"],
        "discount": shared["discount"],
    }
    if arguments.algorithm == "td3_bc":
        config = module.TD3BCConfig(**settings, alpha=shared["alpha"])
        learner, create = module.TD3BC, module.create_td3bc_train_state
    else:
        config = module.IQLConfig(
            **settings,
            value_lr=shared["learning_rate"],
            layer_norm=False,
            opt_decay_schedule=False,
            expectile=shared["expectile"],
            beta=1 / shared["temperature"],
        )
        learner, create = module.IQL, module.create_iql_train_state
    key = jax.random.PRNGKey(arguments.seed)
    state = create(key, dataset.observations, dataset.actions, config)
    update = jax.jit(learner.update_n_times, static_argnums=3)
    jax.block_until_ready(update(state, dataset, key, config))

    def work():
        current, sequence = state, key
        for _ in range(shared["steps"] // config.n_jitted_updates):
            sequence, used = jax.random.split(sequence)
            current, _ = update(current, dataset, used, config)
        jax.block_until_ready(current)
        choose = jax.jit(current.actor.apply_fn)

        def act(observation):
            action = choose(current.actor.params, standardize(observation))
            if hasattr(action, "mode"):
                action = action.mode()
            return 2 * jnp.clip(action, -1, 1)

        return act

    offlining.finish(arguments, work)


def load(arguments):
    """Import the algorithm's file without what plays and logs, and without layer normalization."""
    for name in ("d4rl", "gym", "wandb", "tqdm"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["gym"].Env = object  # type: ignore[attr-defined]
    sys.argv = sys.argv[:1]  # which it reads settings from
    path = arguments.folder / "algos" / f"{arguments.algorithm.replace('_', '')}.py"
    spec = importlib.util.spec_from_file_location("jax_corl", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jax_corl"] = module
    spec.loader.exec_module(module)
    plain = module.MLP

    @functools.wraps(plain)
    def without_norm(*values, **options):
        return plain(*values, **options | {"layer_norm": False})

    assert "layer_norm" in {x.name for x in dataclasses.fields(plain)}
    module.MLP = without_norm  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    main()
