"""The type of a module's `apply` with its parameters bound."""

from __future__ import annotations

from typing import Any, Protocol


class Apply(Protocol):
    """Call a method of a module whose parameters are bound, as `net.model(...)` does.

    args: the arguments of the method, without parameters.
    method: the method's name; by default the module is called.
    """

    def __call__(self, *args: Any, method: str = "__call__") -> Any: ...
