"""Networks that a user gives for a part: flax linen and nnx modules, with and without memory."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Key, TimeStep, Tree
from jaxrl.kit.parts import Part
from jaxrl.kit.recipe import Recipe
from jaxrl.networks.actor_critic import ActorCritic


@dataclasses.dataclass(frozen=True, eq=False)
class Nnx:
    """An nnx module as a pair of functions, `init(key, *inputs)` and `apply(variables, *args)`.

    Weights (`nnx.Param`) are the collection `params`, by path. Other variables are the collection
    `state`, which no loss descends and no update changes.

    make: key -> module.
    draws: whether the weights depend on the key.
    """

    make: Callable[[Key], Any]
    draws: bool

    def init(self, key: Key, *inputs: Tree) -> dict[str, Tree]:
        return _split(self.make(key))[0]

    def apply(
        self,
        variables: Tree,
        *args: Any,
        method: str = "__call__",
        rngs: Any = None,
        **options: Any,
    ) -> Any:
        if options.pop("mutable", None):
            raise UserError(
                "An nnx module cannot be this part, whose update changes flax collections such as "
                "batch_stats; use a linen module."
            )
        module = _merge(_split(self.blank)[1], variables)
        return getattr(module, method)(*args, **options)

    def initial(self, n: int) -> Tree:
        """Return the memory of n episodes, if the module has any; it reads no weights."""
        return self.blank.initial(n)

    @functools.cached_property
    def blank(self) -> Any:
        """The module with shapes in place of its weights."""
        from flax import nnx

        return nnx.eval_shape(lambda: self.make(jax.random.key(0)))


def _split(module: Any) -> tuple[dict[str, Tree], Any]:
    """Return the variables of an nnx module, and its structure without them."""
    from flax import nnx

    graph, params, random, other = nnx.split(module, nnx.Param, nnx.RngState, ...)
    if jax.tree.leaves(random):
        raise UserError(
            f"The nnx module {type(module).__name__} keeps a random state (as nnx.Dropout does), "
            "which an update would not advance; use a module without one."
        )
    collections, structures = {}, []
    for name, state in (("params", params), ("state", other)):
        leaves, structure = jax.tree_util.tree_flatten_with_path(state)
        text = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
        names = [text(path).removesuffix(".value") for path, _ in leaves]
        collections[name] = dict(zip(names, (leaf for _, leaf in leaves), strict=True))
        structures.append((name, names, structure))
    if not collections["state"]:
        del collections["state"]
    return collections, (graph, structures)


def _merge(structure: Any, variables: Mapping[str, Tree]) -> Any:
    """Return the nnx module of this structure with these variables."""
    from flax import nnx

    graph, structures = structure
    states = [
        jax.tree.unflatten(tree, [variables[name][path] for path in paths] if paths else [])
        for name, paths, tree in structures
    ]
    return nnx.merge(graph, *states)


class _SameModule:
    """Key of a cache that is equal for one nnx module as long as nobody changes its variables."""

    def __init__(self, module: Any):
        self.module = module
        self.variables, (self.graph, _) = _split(module)

    def _identity(self) -> tuple[Any, ...]:
        return self.graph, tuple(map(id, jax.tree.leaves(self.variables)))

    def __hash__(self) -> int:
        return hash(self._identity())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameModule) and self._identity() == other._identity()


_adapted: dict[Any, Nnx] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class _Network:
    """A network of two functions, compared by identity."""

    init: Callable[..., Any]
    apply: Callable[..., Any]


def as_network(name: str, given: Any) -> Any:
    """Return a network with `init` and `apply` for the part `name`, from what a user gives.

    given: a linen module; an nnx module, whose weights every seed starts from; a function
        `rngs -> nnx module` (or an nnx class whose only required argument is `rngs`), so that each
        seed and member draws its own weights; or any object with `init` and `apply`.

    The same argument gives the same object. Raises `UserError` for anything else.
    """
    if isinstance(given, nn.Module) or (hasattr(given, "init") and hasattr(given, "apply")):
        try:
            hash(given)
        except TypeError as error:
            if not isinstance(given, nn.Module):
                return _Network(given.init, given.apply)
            raise UserError(
                f"The network for '{name}' cannot be compared ({error}); use tuples instead of "
                "lists for its fields."
            ) from None
        return given
    if is_nnx_module(given):
        from flax import nnx

        key = _SameModule(given)
        copy = nnx.clone(given)  # later changes of the user's module change no algorithm
        return _adapted.setdefault(key, Nnx(lambda _: copy, draws=False))
    if callable(given):
        return _adapted.setdefault(given, Nnx(lambda key: _call(given, key), draws=True))
    raise UserError(
        f"The network for '{name}' is {given!r}; it must be a flax linen or nnx module, or a "
        "function of nnx.Rngs that makes an nnx module."
    )


def is_nnx_module(given: Any) -> bool:
    """Return whether `given` is an nnx module, without importing nnx."""
    nnx = sys.modules.get("flax.nnx")  # whoever has a module of nnx has imported it
    return nnx is not None and isinstance(given, nnx.Module)


def _call(make: Callable[..., Any], key: Key) -> Any:
    from flax import nnx

    rngs = nnx.Rngs(key)
    called: Any = make.__init__ if isinstance(make, type) else make
    by_name = "rngs" in inspect.signature(called).parameters
    return make(rngs=rngs) if by_name else make(rngs)


@dataclasses.dataclass(frozen=True)
class WithoutMemory:
    """Policy and value without memory as an actor-critic, of a module that takes time steps only.

    network: time step [...] -> policy and value [...].
    """

    network: Any
    recurrent = 0

    def init(self, key: Key, timestep: Tree, memory: Tree) -> Tree:
        return self.network.init(key, timestep)

    def apply(self, variables: Tree, timestep: Tree, memory: Tree = (), method: str = "") -> Any:
        if method in ("policy_alone", "value_alone"):
            return self.network.apply(variables, timestep)[method == "value_alone"]
        output = self.network.apply(variables, timestep)
        if not (isinstance(output, tuple) and len(output) == 2):
            raise UserError(
                f"The network of an actor-critic gives {_text(_shape(output))}; it must give a "
                "policy and a value."
            )
        return *output, memory

    def initial(self, n: int) -> Tree:
        return ()


MEMORY_METHODS = {
    "__call__": "__call__(timestep, memory) -> (policy, value, memory)",
    "unroll": "unroll(timestep, memory) -> (policy, value, memory after each step)",
    "initial": "initial(n) -> memory of n episodes before their first step",
}


def replace_network(name: str, recipe: Recipe, part_name: str, given: Any) -> Recipe:
    """Return the recipe of the algorithm `name` with another network for one part.

    Raises `UserError` for a network that does not fit the part: methods that it lacks, inputs that
    it does not take, or outputs of another shape.
    """
    if part_name not in recipe.parts:
        raise unknown(f"part of '{name}'", part_name, recipe.parts)
    part = recipe.parts[part_name]
    what = f"The network for '{part_name}' of '{name}'"
    network = as_network(part_name, given)
    module = network.blank if isinstance(network, Nnx) else network
    if isinstance(part.network, ActorCritic):
        has = {method: hasattr(module, method) for method in ("unroll", "initial")}
        if not any(has.values()):
            network = WithoutMemory(network)
        elif missing := [method for method, there in has.items() if not there]:
            raise UserError(
                f"{what} lacks {missing[0]}; a network with memory has the methods "
                f"{', '.join(MEMORY_METHODS.values())}, and one without has only "
                "__call__(timestep) -> (policy, value)."
            )
        if getattr(recipe.memory, "__self__", None) is part.network:
            initial = network.initial
            part = dataclasses.replace(part, inputs=(part.inputs[0], initial(1)))
            recipe = dataclasses.replace(recipe, memory=initial)
    elif missing := sorted(_methods(part.network) - set(dir(module))):
        raise UserError(
            f"{what} lacks {', '.join(missing)}; it must have the methods of "
            f"{type(part.network).__name__}: {', '.join(sorted(_methods(part.network)))}."
        )
    if part.members and isinstance(network, Nnx) and not network.draws:
        raise UserError(
            f"{what} is an nnx module, but its {part.members} members need weights of their own; "
            "give a function of nnx.Rngs that makes the module."
        )
    changed = dataclasses.replace(part, network=network)
    _check_outputs(what, part, changed)
    return dataclasses.replace(recipe, parts={**recipe.parts, part_name: changed})


def _methods(network: Any) -> set[str]:
    """Return the public methods of a linen module's own class."""
    if not isinstance(network, nn.Module):
        return set()
    own = {n for n, x in vars(type(network)).items() if inspect.isfunction(x)}
    return {n for n in own - {"setup"} if not n.startswith("_")}


def _check_outputs(what: str, part: Part, changed: Part) -> None:
    """Raise `UserError` unless the changed network takes the part's inputs and gives outputs of its
    shapes. An output that is a distribution may be of another kind, but not of another shape."""

    def outputs(part: Part) -> Any:
        def call(key):
            return part.apply(part.init(key), *part.inputs)

        found = []

        def describe(key):
            found.append(_shape(call(key)))
            return ()

        jax.eval_shape(describe, jax.random.key(0))
        return found[0]

    if isinstance(changed.network, _Network):  # it may be meant for other inputs, as a table is
        return
    try:
        expected = outputs(part)
    except Exception:  # a part that is not called as a function of its inputs
        return
    inputs = ", ".join(_text(_shape(x)) for x in part.inputs)
    try:
        given = outputs(changed)
    except UserError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{what} fails on the inputs of this part ({inputs}): {type(error).__name__}: {first}"
        ) from error
    if isinstance(part.network, ActorCritic):
        expected, given = expected[:2], given[:2] if isinstance(given, tuple) else given
    if given != expected:
        raise UserError(f"{what} gives {_text(given)}; it must give {_text(expected)}.")


def _shape(x: Any) -> Any:
    """Return the shape of an array, and for anything else a description that can be compared."""
    if hasattr(x, "event_shape") and hasattr(x, "log_prob"):
        return f"a distribution over {list(x.event_shape)} for each of {list(x.batch_shape)}"
    if isinstance(x, TimeStep):
        return "a TimeStep"
    if isinstance(x, tuple | list):
        return tuple(map(_shape, x))
    if isinstance(x, Mapping):
        return {name: _shape(value) for name, value in x.items()}
    if hasattr(x, "shape"):
        return f"an array {list(x.shape)}"
    return f"a {type(x).__name__}"


def _text(shape: Any) -> str:
    if isinstance(shape, tuple):
        return f"({', '.join(map(_text, shape))})"
    return str(shape)
