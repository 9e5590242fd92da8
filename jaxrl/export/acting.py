"""Greedy acting as a function of named arrays: what an exported policy is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import random, spaces
from jaxrl.core.types import Array, Environment, Policy, TimeStep, Tree
from jaxrl.envs import timesteps
from jaxrl.export import operations

CHANNELS = tuple(field.name for field in dataclasses.fields(TimeStep))
Arrays = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Acting:
    """Greedy acting of one policy in one episode, without a batch axis.

    The parameters, the statistics of normalizations and the key of any randomness (a tree search
    draws some when it acts greedily, too) are part of the function.

    Arrays have dotted names: `observation` or, where observations are trees, `observation.position`
    and so on; `legal_actions`, `goal`, ... for other channels of the time step; `action`.
    """

    function: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]
    """Function from inputs and memory to actions and the memory of the next step."""
    inputs: dict[str, jax.ShapeDtypeStruct]
    """Leaves of the time step that the action or the memory depends on."""
    memory: Arrays
    """Memory at the start of an episode; empty for a policy without memory."""

    @property
    def shapes(self) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
        """Shapes of the function's arguments."""
        memory = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in self.memory.items()}
        return self.inputs, memory

    @property
    def actions(self) -> list[str]:
        """Names of the leaves of an action, sorted."""
        return sorted(jax.eval_shape(self.function, *self.shapes)[0])

    @property
    def program(self) -> operations.Program:
        """The function's operations; its arguments are sorted by name, memory after inputs."""
        return operations.trace(self.function, *self.shapes)


def acting(env: Environment, policy: Policy) -> Acting:
    """Return greedy acting by `policy` in `env`, a function of nothing that it does not read."""
    shapes = _names(_by_channel(first_timestep(env)))
    structure = jax.tree.structure(_by_channel(first_timestep(env)))
    start = jax.tree.map(lambda x: jnp.asarray(x[0]), policy.memory(1))
    begin, memory_structure = _names(start, "memory"), jax.tree.structure(start)
    batched = lambda tree: jax.tree.map(lambda x: x[None], tree)

    def act(inputs: Arrays, memory: Arrays) -> tuple[Arrays, Arrays]:
        channels = jax.tree.unflatten(structure, [inputs[name] for name in shapes])
        held = jax.tree.unflatten(memory_structure, [memory[name] for name in begin])
        action, held, _ = policy.act(
            policy.state,
            batched(TimeStep(**channels)),
            batched(held),
            random.key(0, "threefry2x32"),
            True,
        )
        action, held = jax.tree.map(lambda x: x[0], (action, held))
        return _names(action, "action"), _names(held, "memory")

    whole = Acting(act, shapes, begin).program
    read = dict(zip(sorted(shapes), whole.inputs, strict=False))
    used = {name: x for name, x in shapes.items() if read[name] in whole.dependencies}
    unused = {name: jnp.zeros(x.shape, x.dtype) for name, x in shapes.items() if name not in used}
    return Acting(lambda inputs, memory: act(unused | inputs, memory), used, begin)


def channels(timestep: TimeStep) -> Arrays:
    """Return the leaves of all channels of a time step by dotted name."""
    return _names(_by_channel(timestep))


def _names(tree: Tree, name: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by dotted name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    parts = lambda path: [jax.tree_util.keystr((key,), simple=True) for key in path]
    return {".".join([*([name] if name else []), *parts(path)]): x for path, x in leaves}


def _by_channel(timestep: TimeStep) -> dict[str, Tree]:
    return {name: getattr(timestep, name) for name in CHANNELS}


def first_timestep(env: Environment) -> TimeStep:
    """Return the shapes of the first time step of an episode of `env`."""

    def first() -> TimeStep:
        if env.host:
            return jax.tree.map(jnp.asarray, timesteps.first(spaces.example(env.observation_space)))
        return env.reset(random.key(0), env.params)[1]

    return jax.eval_shape(first)
