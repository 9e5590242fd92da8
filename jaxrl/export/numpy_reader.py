"""Act with a policy that `jaxrl export RUN --format numpy` wrote. This file needs NumPy alone.

policy = Policy("policy.npz")
memory = policy.memory  # at the start of an episode
actions, memory = policy.act({"observation": observation}, memory)
actions["action"]
"""

import json

import numpy as np

FUNCTIONS = {
    "abs": np.abs, "add": np.add, "and": np.bitwise_and, "ceil": np.ceil, "cos": np.cos,
    "div": lambda x, y: x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(x.dtype),
    "eq": np.equal, "exp": np.exp, "expm1": np.expm1, "floor": np.floor, "ge": np.greater_equal,
    "gt": np.greater, "is_finite": np.isfinite, "le": np.less_equal, "log": np.log,
    "log1p": np.log1p, "logistic": lambda x: 0.5 + 0.5 * np.tanh(x / 2), "lt": np.less,
    "max": np.maximum, "min": np.minimum, "mul": np.multiply, "ne": np.not_equal,
    "neg": np.negative, "not": np.invert, "or": np.bitwise_or, "pow": np.power,
    "rem": np.fmod, "rsqrt": lambda x: 1 / np.sqrt(x), "sign": np.sign, "sin": np.sin,
    "sqrt": np.sqrt, "square": np.square, "stop_gradient": lambda x: x, "sub": np.subtract,
    "tanh": np.tanh,
    "argmax": lambda x, axis: np.argmax(x, axis).astype(np.int32),
    "argmin": lambda x, axis: np.argmin(x, axis).astype(np.int32),
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "concatenate": lambda *x, axis: np.concatenate(x, axis),
    "convert_element_type": lambda x, dtype: x.astype(dtype),
    "cumsum": lambda x, axis: np.cumsum(x, axis, x.dtype),
    "einsum": lambda *x, subscripts: np.einsum(subscripts, *x),
    "integer_pow": lambda x, y: x**y,
    "reduce_and": lambda x, axis: np.all(x, tuple(axis)),
    "reduce_max": lambda x, axis: np.max(x, tuple(axis)),
    "reduce_min": lambda x, axis: np.min(x, tuple(axis)),
    "reduce_or": lambda x, axis: np.any(x, tuple(axis)),
    "reduce_sum": lambda x, axis: np.sum(x, tuple(axis), x.dtype),
    "reshape": lambda x, shape: x.reshape(shape),
    "rev": lambda x, axis: np.flip(x, tuple(axis)),
    "broadcast": lambda x, places, shape: np.broadcast_to(x.reshape(places), shape),
    "select_n": lambda which, *x: np.choose(which.astype(int), x),
    "slice": lambda x, ranges: x[tuple(slice(*r) for r in ranges)],
    "split": lambda x, ends, axis: np.split(x, ends, axis),
    "stack": lambda *x, axis: np.stack(x, axis),
    "transpose": np.transpose,
}  # fmt: skip


class Policy:
    """A greedy policy. `about` says what it was trained on; `inputs` names what it reads."""

    def __init__(self, path):
        with np.load(path) as file:
            held = {name: file[name] for name in file.files}
        self.about = json.loads(str(held.pop("about")))
        self.memory = {name: held.pop(name) for name in self.about["memory"]}
        self.inputs = self.about["inputs"]
        self.constants = {int(number): value for number, value in held.items()}

    def act(self, inputs, memory=None):
        """Return the actions and the memory of the next step, as dicts of arrays."""
        given = [np.asarray(inputs[name], dtype) for name, dtype in self.inputs.items()]
        memory = self.memory if memory is None else memory
        given += [memory[name] for name in self.memory]
        values = self.constants | dict(zip(self.about["numbers"], given, strict=True))
        for name, parameters, ins, outs in self.about["operations"]:
            found = FUNCTIONS[name](*(values[i] for i in ins), **parameters)
            values.update(zip(outs, found if len(outs) > 1 else [found], strict=True))
        found, count = [values[i] for i in self.about["outputs"]], len(self.about["actions"])
        actions = dict(zip(self.about["actions"], found[:count], strict=True))
        return actions, dict(zip(self.memory, found[count:], strict=True))
