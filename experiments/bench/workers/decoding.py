"""Run what the workers of the token bench do: one clock, and the same answers on all sides.

A turn writes answers to prompts and learns from them. Each worker times both parts itself, since
one of the libraries does them in one call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import measuring

LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "trl", "transformers", "torch", "accelerate")
Turn = Callable[[], tuple[float, float]]


def main(prepare: Callable[[dict[str, Any], int], Turn]) -> None:
    """Measure the case that the command line describes, and print it as one line of JSON.

    prepare: (case, seed) -> function that takes one turn and returns the seconds of both parts.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of all turns, at least")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"load_before": measuring.load_average()}
    turn = prepare(arguments.config, arguments.seed)
    clock = time.perf_counter()
    turn()
    result["first_turn_s"] = time.perf_counter() - clock
    turns, clock = [], time.perf_counter()
    while len(turns) < arguments.repetitions or time.perf_counter() - clock < arguments.seconds:
        turns.append(turn())
    result |= figures(arguments.config, turns)
    result |= {
        "peak_mib": measuring.high_water_mark(),
        "device": measuring.cpu_model(),
        "versions": versions(),
        "load_after": measuring.load_average(),
    }
    print("\n" + json.dumps({"bench": result}), flush=True)


def figures(case: dict[str, Any], turns: list[tuple[float, float]]) -> dict[str, Any]:
    """Return rates of answer tokens and answers, by the median seconds of the turns."""
    answers = case["prompts"] * case["answers"]
    tokens = answers * case["answer_length"]
    writing, learning = (statistics.median(part) for part in zip(*turns, strict=True))
    return {
        "turns": len(turns),
        "rollout_s": writing,
        "update_s": learning,
        "rollout_tokens_per_s": tokens / writing,
        "update_tokens_per_s": tokens / learning,
        "update_answers_per_s": answers / learning,
        "tokens_per_s": tokens / (writing + learning),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
