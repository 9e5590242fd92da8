"""DQN's line on the kit is what `old_rainbow` was."""

import dataclasses

import jax
import pytest

from jaxrl import envs
from jaxrl.agents.value import rainbow as old_rainbow
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.kit.groups import EpsilonGreedy
from jaxrl.kit.net import Net
from jaxrl.systems.value.c51 import c51
from jaxrl.systems.value.double_dqn import double_dqn
from jaxrl.systems.value.dqn import dqn
from jaxrl.systems.value.dueling_dqn import dueling_dqn
from jaxrl.systems.value.n_step_dqn import n_step_dqn
from jaxrl.systems.value.noisy_dqn import noisy_dqn
from jaxrl.systems.value.prioritized_dqn import prioritized_dqn
from jaxrl.systems.value.rainbow import rainbow
from tests.ports.equal import drawn, follow, precise

CASES = {
    "dqn": (dqn, {}),
    "double": (double_dqn, {"double": True}),
    "dueling": (dueling_dqn, {"double": True, "dueling": True}),
    "prioritized": (prioritized_dqn, {"double": True, "prioritised": True}),
    "n-step": (n_step_dqn, {"n_step": 3}),
    "noisy": (noisy_dqn, {"noisy": True}),
    "c51": (c51, {"num_atoms": 51}),
    "rainbow": (
        rainbow,
        {"double": True, "dueling": True, "prioritised": True, "n_step": 3, "noisy": True}
        | {"num_atoms": 51},
    ),
}
RENAMED = {
    "optimizer.learning_rate": "learning_rate",
    "optimizer.max_grad_norm": "max_grad_norm",
    "target.rate": "target_step",
    "exploration.start": "epsilon",
    "exploration.end": "epsilon_end",
    "exploration.steps": "epsilon_steps",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", ["cartpole", "catch"])
def test_the_same_bits(name, world, monkeypatch):
    system, options = CASES[name]
    env = envs.make(world)
    config = replace(
        system.Config(), {"period": 2, "torso.hidden": (16, 16), "num_envs": 8, "capacity": 512}
    )
    if hasattr(config, "exploration"):
        config = dataclasses.replace(config, exploration=EpsilonGreedy(steps=200.0))
    old_config = old_rainbow.DQNConfig(
        target_period=2, hidden=(16, 16), num_envs=8, epsilon_steps=200.0, **options
    )
    old, new = old_rainbow.agent(env, old_config), system.agent(env, config)
    batches = drawn(system.source(env, config), new, 40, random.key(3))

    def key(net, name=""):  # as the old one drew them
        if name == "q_loss":
            return net.seed()
        keys = jax.random.split(net.seed(), 3)
        return dict(zip(("evaluate", "choose", "predict"), keys, strict=True))[name]

    if "noisy" in options:
        monkeypatch.setattr(Net, "key", key)
    names = {"q_loss": "loss", "priority": "priority", "q_grad_norm": "grad_norm"}
    names |= {"q_norm": "weight_norm"} | ({} if "noisy" in options else {"epsilon": "epsilon"})
    one = lambda batch: dataclasses.replace(
        batch, transitions=jax.tree.map(lambda x: x[None], batch.transitions)
    )
    compare = lambda **more: follow(
        old,
        new,
        lambda s: {"q": (s.params, s.optimiser, s.target)},
        batches,
        names,
        jax.random.split(random.key(5), 40),
        (lambda batch: batch) if "n_step" in options else one,
        RENAMED,
        **more,
    )
    if name == "c51":  # a sum in another order
        with jax.enable_x64(True):
            assert compare(cast=precise) < 1e-9
    else:
        assert compare() == 0
