"""Contract that every function of `ROOMS` must satisfy; test files list their functions as `CASES`.

    CASES = [Case(losses.policy_gradient, lambda rng: {"log_prob": ..., "advantage": ...},
                  gradient=("log_prob",), stopped=("advantage",))]
    test_contract = contract(CASES)

Inputs are float64 NumPy arrays (or integers and booleans), Python scalars, strings and None. The
contract casts the arrays, but not the Python scalars. It checks each function against itself (jit,
vmap, precision) and its gradients against float64 finite differences. Each test file's own tests
check the values.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import diffusion, gradients, losses, solvers
from tests import rota

Inputs = Mapping[str, Any]
ROOMS = {"losses": losses, "diffusion": diffusion, "gradients": gradients, "solvers": solvers}
SECTIONS = ("Args:", "Returns:", "Gradients:", "Source:", "Example:")


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function with legal inputs.

    inputs: rng -> keyword arguments, always with the same shapes; small, away from kinks.
    gradient: float array arguments whose gradients agree with finite differences.
    surrogate: float array arguments whose gradients do not (part of the expression is stopped); the
      test file itself checks their values.
    stopped: float array arguments whose gradient is exactly 0. Each is in one of the three.
    time: arguments whose axis 0 is time: any length must work, even 0 and 1.
    extremes: rng -> list of changes to the inputs, each extreme but legal: the value and its
      gradients must be finite.
    diverging: the same where the value is rightly infinite: it must not be NaN.
    bfloat16: largest error in bfloat16, as a fraction of the result's largest entry; None: not
      compared (say why in the test file).
    """

    function: Callable
    inputs: Callable[[np.random.Generator], dict[str, Any]]
    gradient: Sequence[str] = ()
    surrogate: Sequence[str] = ()
    stopped: Sequence[str] = ()
    time: Sequence[str] = ()
    extremes: Callable[[np.random.Generator], list[dict[str, Any]]] = lambda rng: []
    diverging: Callable[[np.random.Generator], list[dict[str, Any]]] = lambda rng: []
    bfloat16: float | None = 0.1
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.function.__name__

    def example(self, seed: int = 0) -> dict[str, Any]:
        return self.inputs(np.random.default_rng(seed))


def is_float(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) and np.issubdtype(x.dtype, np.floating)


def cast(inputs: Inputs, dtype: Any) -> dict[str, Any]:
    """Cast floats to a precision; leave everything but arrays unchanged.

    On the host, since each JAX operation outside a program is compiled separately, and compilations
    take most of the time of this file.
    """
    return {
        name: np.asarray(x, dtype if is_float(x) else None)
        if isinstance(x, (np.ndarray, np.generic))
        else x
        for name, x in inputs.items()
    }


def split(inputs: Inputs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split inputs into arrays and the rest, which is static."""
    arrays = {k: v for k, v in inputs.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in inputs.items() if k not in arrays}


@functools.lru_cache(16)  # keep the programs of a case or two: all together take gigabytes
def program(case: Case, static: tuple[tuple[str, Any], ...]) -> Callable:
    """Return the program arrays -> (result, scalar, gradients), compiled per precision and shape.

    The scalar is a sum of the result's floats with random weights; the gradients are the scalar's.
    """

    def run(arrays):
        floats = {k: x for k, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}

        def scalar(floats):
            result = case.function(**{**arrays, **floats}, **dict(static))
            rng = np.random.default_rng(1)
            leaves = float_leaves(result)
            terms = [(jnp.asarray(rng.normal(size=x.shape), x.dtype) * x).sum() for x in leaves]
            return sum(terms, 0.0), result

        (value, result), gradients = jax.value_and_grad(scalar, has_aux=True)(floats)
        return result, value, gradients

    return jax.jit(run)


def run(case: Case, inputs: Inputs) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    arrays, static = split(inputs)
    return jax.device_get(program(case, tuple(static.items()))(arrays))


def float_leaves(result: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(result) if jnp.issubdtype(x.dtype, jnp.floating)]


def close(ours: Any, theirs: Any, rtol: float, atol: float) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=atol
        ),
        ours,
        theirs,
    )


def examples(function: Callable) -> list[str]:
    """Return the expressions in a docstring's last section; the first calls the function itself."""
    section = (inspect.getdoc(function) or "").partition("Example:")[2]
    expression = rf"`((?:{'|'.join(ROOMS)})\.[^`]+)`"
    return [" ".join(code.split()) for code in re.findall(expression, section)]


def has_a_docstring_to_use(case: Case) -> None:
    """Check that every section exists and that each example runs on the case's inputs."""
    text = inspect.getdoc(case.function) or ""
    for section in SECTIONS:
        assert re.search(rf"^{section} ?", text, re.MULTILINE), f"{case}: no section {section!r}"
    source = text.split("Source:")[1].split("Example:")[0]
    first = text.splitlines()[0]
    assert first.endswith("."), f"{case}: the first line is one sentence"
    assert re.search(r"(19|20)\d\d|common usage", source), f"{case}: a source has a year"
    codes = examples(case.function)
    assert codes, f"{case}: the example is one expression in backticks: `room.name(...)`"
    room = case.function.__module__.split(".")[1]
    assert f"{room}.{case.function.__name__}" in codes[0]
    arrays, static = split(cast(case.example(), jnp.float32))
    names = {**ROOMS, "jnp": jnp, "jax": jax, **static}
    for code in codes:
        ast.parse(code, mode="eval")
        jax.eval_shape(lambda arrays, code=code: eval(code, {**names, **arrays}), arrays)


def says_what_flows(case: Case) -> None:
    """Check that each float array is declared once: gradient, surrogate or stopped."""
    declared = [*case.gradient, *case.surrogate, *case.stopped]
    floats = [name for name, x in case.example().items() if is_float(x)]
    assert sorted(declared) == sorted(floats), f"{case}: {declared} declared, {floats} there"


def is_the_same_vmapped(case: Case) -> None:
    """Check that vmap gives the same results as single calls, under jit."""
    inputs = [cast(case.example(seed), jnp.float32) for seed in range(3)]
    each = [run(case, x)[0] for x in inputs]
    stack = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)
    _, static = split(inputs[0])
    together = jax.jit(jax.vmap(lambda arrays: case.function(**arrays, **static)))
    close(together(stack([split(x)[0] for x in inputs])), stack(each), rtol=1e-4, atol=1e-5)


def takes_numpy_arrays(case: Case) -> None:
    """Check plain NumPy arrays outside any program: float32, and NumPy's 64-bit integers.

    The plain function is called, since tests/losses/compiled.py would pass it JAX arrays.
    """
    plain = inspect.unwrap(case.function)
    function = getattr(sys.modules[plain.__module__], plain.__name__, plain)
    arrays, static = split(cast(case.example(), np.float32))
    shape = lambda tree: [
        (x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in jax.tree.leaves(tree)
    ]
    ours = jax.eval_shape(lambda: function(**arrays, **static))
    traced = jax.eval_shape(lambda arrays: function(**arrays, **static), arrays)
    assert shape(ours) == shape(traced), f"{case}: {shape(ours)}, and traced {shape(traced)}"


def has_the_gradients_it_says(case: Case) -> None:
    """Compare gradients with float64 finite differences along random directions; check zeros."""
    with jax.enable_x64(True):
        inputs = cast(case.example(), jnp.float64)
        gradients = run(case, inputs)[2]
        for name in case.stopped:
            assert (gradients[name] == 0).all(), f"{case}: {name} is stopped, but a gradient flows"
        for name in (*case.surrogate, *case.gradient):
            assert (gradients[name] != 0).any(), f"{case}: no gradient flows into {name}"
        rng = np.random.default_rng(2)
        for name in case.gradient:
            direction = rng.normal(size=inputs[name].shape)
            ours = (gradients[name] * direction).sum()
            step = 1e-5
            up, down = (
                run(case, {**inputs, name: inputs[name] + sign * step * direction})[1]
                for sign in (1, -1)
            )
            scale = float(np.abs(gradients[name] * direction).sum())
            np.testing.assert_allclose(
                ours, (up - down) / (2 * step), rtol=1e-5, atol=1e-6 * (1 + scale), err_msg=name
            )


def keeps_precision(case: Case) -> None:
    """Check that results have the inputs' precision, and that bfloat16 is close to float32."""
    results = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        inputs = {
            k: np.asarray(x, jnp.bfloat16).astype(np.float64) if is_float(x) else x
            for k, x in case.example().items()
        }
        result, _, gradients = run(case, cast(inputs, dtype))
        results[dtype] = float_leaves(result)
        for leaf in results[dtype]:
            assert not gradients or leaf.dtype == dtype, f"{case}: {leaf.dtype} from {dtype}"
            assert np.isfinite(leaf).all(), f"{case}: not finite in {dtype}"
    if case.bfloat16 is not None:
        for exact, rough in zip(results[jnp.float32], results[jnp.bfloat16], strict=True):
            if exact.size:
                scale = float(np.abs(exact).max())
                close(rough, exact, rtol=0, atol=case.bfloat16 * scale + 1e-6)


def survives_extremes(case: Case) -> None:
    """Check that values and gradients are finite; in `diverging` cases, that values are not NaN."""
    rng = np.random.default_rng(3)
    changes = [(x, True) for x in case.extremes(rng)] + [(x, False) for x in case.diverging(rng)]
    for change, finite in changes:
        for dtype in (jnp.float32, jnp.bfloat16):
            result, _, gradients = run(case, cast({**case.example(), **change}, dtype))
            here = f"in {np.dtype(dtype)} for {change}"
            for leaf in float_leaves(result):
                good = np.isfinite(leaf) if finite else ~np.isnan(leaf)
                assert good.all(), f"{case}: value {leaf} {here}"
            for name in gradients.keys() - set(case.stopped) if finite else ():
                leaf = gradients[name]
                assert np.isfinite(leaf).all(), f"{case}: gradient {leaf} of {name} {here}"


def takes_any_length(case: Case) -> None:
    """Check sequences of no steps and of one step."""
    if not case.time:
        return
    for length in (0, 1):
        inputs = case.example()
        inputs.update({name: inputs[name][:length] for name in case.time})
        result, _, gradients = run(case, cast(inputs, jnp.float32))
        for leaf in (*float_leaves(result), *gradients.values()):
            assert not np.isnan(leaf).any(), f"{case}: {leaf} with {length} steps"


AT_ONCE = (has_a_docstring_to_use, says_what_flows, takes_numpy_arrays)
COMPILED = (is_the_same_vmapped, keeps_precision, survives_extremes, takes_any_length)


def example(cases: Sequence[Case], function: Callable, seed: int = 0) -> dict[str, Any]:
    """Return the inputs of a function's first case."""
    return next(case for case in cases if case.function is function).example(seed)


def contract(cases: Sequence[Case]) -> Callable:
    """Return a test of all checks for all cases; assign it to a name that starts with `test_`.

    CI checks gradients whenever it runs the file, and `COMPILED` where the file has its turn.
    """
    slow = pytest.mark.slow

    def turn(case):
        file = rota.subject(rota.label(case).partition(":")[0])
        return getattr(pytest.mark, rota.mark(case.function.__name__, rota.FILE_TURNS, file))

    marks = lambda case: [
        *((check, ()) for check in AT_ONCE),
        (has_the_gradients_it_says, slow),
        *((check, turn(case)) for check in COMPILED),
    ]
    params = [
        pytest.param(case, check, marks=mark, id=f"{case}-{check.__name__}")
        for case in cases
        for check, mark in marks(case)
    ]

    @pytest.mark.parametrize(("case", "check"), params)
    def test(case: Case, check: Callable) -> None:
        check(case)

    return test
