"""Reinforcement learning in JAX: pure functions under one scan-based training loop.

The names that a short program needs are here, each imported when it is first used:

    env = jaxrl.make("cartpole")
    algorithm = jaxrl.algorithms.ppo(env, {"num_envs": 64})
    run = jaxrl.start(algorithm, jaxrl.key(0))
    run, row = jaxrl.train(algorithm, run, 100)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

# Name -> module and attribute that define it.
_DEFINED = {
    "make": "jaxrl.envs:make",
    "start": "jaxrl.core.train:start",
    "train": "jaxrl.core.train:train",
    "key": "jaxrl.core.random:key",
    "evaluate": "jaxrl.evaluation.evaluate:evaluate",
    "load": "jaxrl.runtime:load",
    "read": "jaxrl.runtime:read",
}
__all__ = [
    "__version__",
    "agents",
    "algorithms",
    "core",
    "datasets",
    "diffusion",
    "envs",
    "evaluate",
    "evaluation",
    "exact",
    "gradients",
    "key",
    "kit",
    "load",
    "losses",
    "make",
    "networks",
    "read",
    "runtime",
    "solvers",
    "sources",
    "start",
    "tasks",
    "train",
]

if TYPE_CHECKING:
    from jaxrl import (
        agents,
        algorithms,
        core,
        datasets,
        diffusion,
        envs,
        evaluation,
        exact,
        gradients,
        kit,
        losses,
        networks,
        runtime,
        solvers,
        sources,
        tasks,
    )
    from jaxrl.core.random import key
    from jaxrl.core.train import start, train
    from jaxrl.envs import make
    from jaxrl.evaluation.evaluate import evaluate
    from jaxrl.runtime import load, read


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jaxrl' has no attribute '{name}'")
    if name not in _DEFINED:
        return importlib.import_module(f"jaxrl.{name}")
    module, _, attribute = _DEFINED[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
