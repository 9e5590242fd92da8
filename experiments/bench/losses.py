"""Losses and estimators beside rlax's: the same arrays, the same results, compile and run.

    python experiments/bench/losses.py [--only gae vtrace] [--rounds 9] [--output FILE.json]

Both sides run in one process, in turn, each round in another order; ratios are theirs / ours within
a round (above 1: ours is faster), with a 95 % bootstrap interval of the median. Before anything is
timed the two results are compared. rlax's functions are for one sequence or one sample; they are
vmapped over the trailing axes, which keeps time in axis 0 on both sides.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import report
import rlax

from jaxrl import losses

Arrays = dict[str, jax.Array]
WINDOW = (128, 4096)
DISTRIBUTIONAL = ((1, 256), WINDOW)
LONG = ((1024, 512), (4096, 128), (16384, 32), (65536, 1))
ATOMS = 51
QUANTILES = 32
GROUP = 8


@dataclasses.dataclass(frozen=True)
class Pair:
    """One function on both sides."""

    inputs: Callable[[np.random.Generator, tuple[int, int]], Arrays]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, int], ...] = (WINDOW,)
    prepare: Callable[[Arrays], Arrays] = lambda x: x  # what the peer takes instead, untimed


def float32(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


def window(rng: np.random.Generator, shape: tuple[int, int]) -> Arrays:
    """A rollout whose episodes only terminate: rlax cannot express truncation."""
    value = rng.normal(size=(shape[0] + 1, *shape[1:]))
    terminated = jnp.asarray(rng.random(shape) < 0.01)
    return {
        "reward": float32(rng.normal(size=shape)),
        "value": float32(value[:-1]),
        "next_value": float32(value[1:]),
        "terminated": terminated,
        "done": terminated | False,
    }


def off_policy(rng: np.random.Generator, shape: tuple[int, int]) -> Arrays:
    return {**window(rng, shape), "ratio": float32(np.exp(0.3 * rng.normal(size=shape)))}


def peers_window(x: Arrays) -> Arrays:
    """Return a window as rlax takes it: discounts are 0 where an episode ends, and for GAE there is
    one array of T + 1 values.
    """
    rest = {k: v for k, v in x.items() if k not in ("terminated", "done")}
    values = jnp.concatenate([x["value"], x["next_value"][-1:]])
    return {**rest, "discount": 0.99 * (1.0 - x["terminated"]), "values": values}


def per_sequence(function: Callable) -> Callable:
    return jax.vmap(function, in_axes=1, out_axes=1)


def peers_gae(reward, discount, values, **_):
    gae = rlax.truncated_generalized_advantage_estimation
    return per_sequence(lambda r, d, v: gae(r, d, 0.95, v))(reward, discount, values)


def peers_vtrace(ratio, reward, value, next_value, discount, **_):
    def one(ratio, reward, value, next_value, discount):
        found = rlax.vtrace_td_error_and_advantage(value, next_value, reward, discount, ratio, 0.95)
        return losses.VTrace(found.errors + value, found.pg_advantage)

    return per_sequence(one)(ratio, reward, value, next_value, discount)


def peers_lambda_returns(reward, next_value, discount, **_):
    one = lambda r, d, v: rlax.lambda_returns(r, d, v, 0.95)
    return per_sequence(one)(reward, discount, next_value)


def distributions(rng: np.random.Generator, shape: tuple[int, int]) -> Arrays:
    reward, terminated = rng.normal(size=shape), rng.random(shape) < 0.01
    atoms = np.linspace(-10, 10, ATOMS)
    target = reward[..., None] + 0.99 * np.where(terminated, 0, 1)[..., None] * atoms
    return {
        "target_atoms": float32(target),
        "probs": jax.nn.softmax(float32(rng.normal(size=(*shape, ATOMS)))),
        "atoms": float32(atoms),
    }


def peers_projection(target_atoms, probs, atoms):
    per_element = jax.vmap(jax.vmap(rlax.categorical_l2_project, (0, 0, None)), (0, 0, None))
    return per_element(target_atoms, probs, atoms)


def quantile_sets(rng: np.random.Generator, shape: tuple[int, int]) -> Arrays:
    size = (*shape, QUANTILES)
    return {
        "quantiles": float32(rng.normal(size=size)),
        "tau": float32(np.broadcast_to((np.arange(QUANTILES) + 0.5) / QUANTILES, size)),
        "target": float32(rng.normal(size=size)),
    }


def with_gradient(loss: Callable, name: str) -> Callable:
    """Mean loss, and its gradient for one of the arrays."""

    def both(**x):
        mean = lambda y: loss(**{**x, name: y}).mean()
        return jax.value_and_grad(mean)(x[name])

    return both


def peers_quantiles(quantiles, tau, target):
    one = lambda q, t, y: rlax.quantile_regression_loss(q, t, y, huber_param=1.0)
    return jax.vmap(jax.vmap(one))(quantiles, tau, target)


def answers(rng: np.random.Generator, shape: tuple[int, int]) -> Arrays:
    """Tokens of answers, GROUP neighbors to each prompt."""
    old = -rng.exponential(size=shape)
    return {
        "log_prob": float32(old + 0.1 * rng.normal(size=shape)),
        "old_log_prob": float32(old),
        "reference_log_prob": float32(old + 0.1 * rng.normal(size=shape)),
        "reward": float32(rng.random((shape[1] // GROUP, GROUP)) < 0.4),
    }


def our_grpo(reward, **log_probs):
    advantage = losses.group_relative(reward).ravel()
    return losses.grpo(**log_probs, advantage=advantage, clip=0.2, beta=0.04)


def peers_grpo(log_prob, old_log_prob, reference_log_prob, reward):
    """Compute GRPO by rlax's clipped surrogate and what its user would write around it."""
    mean, deviation = reward.mean(-1, keepdims=True), reward.std(-1, keepdims=True)
    advantage = ((reward - mean) / (deviation + 1e-6)).ravel()
    ratio = jnp.exp(log_prob - old_log_prob)
    surrogate = jax.vmap(lambda r: rlax.clipped_surrogate_pg_loss(r, advantage, 0.2))(ratio)
    log_ratio = reference_log_prob - log_prob
    return surrogate.mean() + 0.04 * (jnp.exp(log_ratio) - 1 - log_ratio).mean()


RECURSIONS = (WINDOW, *LONG)
PAIRS: dict[str, Pair] = {
    "gae": Pair(
        window,
        lambda **x: losses.gae(**x, discount=0.99, lambda_=0.95),
        peers_gae,
        RECURSIONS,
        peers_window,
    ),
    "vtrace": Pair(
        off_policy,
        lambda **x: losses.vtrace(**x, discount=0.99, lambda_=0.95),
        peers_vtrace,
        RECURSIONS,
        peers_window,
    ),
    "lambda_returns": Pair(
        window,
        lambda value, **x: losses.lambda_returns(**x, discount=0.99, lambda_=0.95),
        peers_lambda_returns,
        RECURSIONS,
        peers_window,
    ),
    "categorical_projection": Pair(
        distributions, losses.categorical_projection, peers_projection, DISTRIBUTIONAL
    ),
    "quantile_huber": Pair(
        quantile_sets,
        with_gradient(losses.quantile_huber, "quantiles"),
        with_gradient(peers_quantiles, "quantiles"),
        DISTRIBUTIONAL,
    ),
    "grpo": Pair(
        answers, with_gradient(our_grpo, "log_prob"), with_gradient(peers_grpo, "log_prob")
    ),
}


def compile_once(function: Callable, arrays: Arrays) -> tuple[Callable, float]:
    """A fresh compilation and what it took, tracing included."""
    start = time.perf_counter()
    found = jax.jit(lambda x: function(**x)).lower(arrays).compile()
    return lambda: jax.block_until_ready(found(arrays)), time.perf_counter() - start


def run_time(function: Callable[[], Any], seconds: float) -> float:
    function()
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or count == 0:
        function()
        count += 1
    return passed / count


def check_equal(name: str, ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3, err_msg=name)


def measure(name: str, pair: Pair, shape: tuple[int, int], rounds: int, seconds: float) -> dict:
    arrays = pair.inputs(np.random.default_rng(0), shape)
    sides = {"ours": (pair.ours, arrays), "theirs": (pair.theirs, pair.prepare(arrays))}
    check_equal(name, *(compile_once(*side)[0]() for side in sides.values()))
    figures: dict[str, list] = {"run": [], "compile": []}
    for number in range(rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        run, build = {}, {}
        for side in order:
            function, build[side] = compile_once(*sides[side])
            run[side] = run_time(function, seconds)
        figures["run"].append(run)
        figures["compile"].append(build)
    return {"name": name, "shape": shape, **figures}


def ratios(record: dict, figure: str) -> list[float]:
    return [x["theirs"] / x["ours"] for x in record[figure]]


def line(record: dict) -> str:
    parts = [f"{record['name']:24} {list(record['shape'])!s:14}"]
    for figure in ("run", "compile"):
        found = ratios(record, figure)
        low, high = report.interval(found)
        ours = 1e3 * statistics.median(x["ours"] for x in record[figure])
        middle = statistics.median(found)
        parts.append(f"{figure} {middle:5.2f} [{low:.2f}, {high:.2f}] ({ours:.3g} ms)")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each timing")
    parser.add_argument("--quick", action="store_true", help="small arrays: does it run?")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    records = []
    print(f"rlax's time / ours, on {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name in arguments.only:
        pair = PAIRS[name]
        for shape in [(8, 16)] if arguments.quick else pair.shapes:
            records.append(measure(name, pair, shape, arguments.rounds, arguments.seconds))
            print(line(records[-1]), flush=True)
    middle = lambda r: statistics.median(ratios(r, "run"))
    overall = math.exp(statistics.mean(math.log(middle(r)) for r in records))
    print(f"geometric mean of the run ratios: {overall:.2f}")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
