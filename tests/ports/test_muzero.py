"""MuZero on the kit is what it was."""

import jax
import pytest

from jaxrl import envs
from jaxrl.agents.planning import muzero as old_muzero
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.kit.net import Net
from jaxrl.systems.planning.muzero import muzero
from tests.ports.equal import drawn, follow, precise

SIZES = {"num_envs": 8, "batch_size": 16, "capacity": 4096, "warmup": 1024, "simulations": 4}
SIZES |= {"unroll": 3, "n_step": 4, "hidden": (16,), "width": 8, "num_atoms": 11, "support": 5.0}


@pytest.mark.parametrize(
    "world,more",
    [
        ("cartpole", {}),
        ("cartpole", {"reanalyse": 0.5, "search": "gumbel"}),
        ("tic_tac_toe", {"reanalyse": 1.0}),
    ],
)
def test_the_same_numbers(world, more, monkeypatch):
    env = envs.make(world)
    config = replace(muzero.Config(), SIZES | more | {"rate": 0.3})
    old = old_muzero.agent(env, old_muzero.Config(**SIZES, **more, target_step=0.3))
    new = muzero.agent(env, config)
    batches = drawn(muzero.source(env, config), new, 4, random.key(3))

    def key(net, name=""):  # as the old one drew them
        analysis, action = jax.random.split(net.seed())
        choice, search = jax.random.split(analysis)
        return {"reanalyse": choice, "search": search, "actions": action}[name]

    monkeypatch.setattr(Net, "key", key)
    names = {"prediction_loss": "loss", "priority": "priority", "target_value": "target_value"}
    names |= {"model_grad_norm": "grad_norm", "model_norm": "weight_norm"}
    renamed = {"optimizer.learning_rate": "learning_rate", "target.rate": "target_step"}
    renamed |= {"optimizer.max_grad_norm": "max_grad_norm"}
    with jax.enable_x64(True):
        worst = follow(
            old,
            new,
            lambda s: {"model": (s.params, s.optimiser, s.target)},
            batches,
            names,
            jax.random.split(random.key(5), 4),
            rename=renamed,
            cast=precise,
        )
    assert worst < 1e-9
