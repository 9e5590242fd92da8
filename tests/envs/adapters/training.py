"""Tiny training run that shows whether an agent can learn in an environment at all."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.kit.wrapping import params_of

SIZES = {"num_envs": 2, "num_steps": 4, "epochs": 1, "minibatches": 1, "hidden": (8,)}
CONFIG = replace(ppo.Config(), SIZES)


def trains(env: Environment) -> None:
    """Run two updates of PPO and check that all metrics are finite and the weights change."""
    algorithm = ppo(env, CONFIG)
    before = start(algorithm, random.key(0))
    run, row = jax.jit(train, static_argnums=(0, 2))(algorithm, before, 2)
    values = {k: np.asarray(v) for k, v in m.values(row).items()}
    learned = (
        "policy_loss",
        "value_loss",
        "entropy",
        "actor_critic_grad_norm",
        "actor_critic_norm",
    )
    assert all(np.isfinite(values[name]) for name in learned), values
    assert np.isnan(values["diverged"])
    old, new = (jax.tree.leaves(params_of(r.state.agent)) for r in (before, run))
    assert any(not np.array_equal(x, y) for x, y in zip(old, new, strict=True))
