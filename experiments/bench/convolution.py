"""The two forms of `jaxrl.networks.torsos.Conv` beside each other, forward and with gradients.

    python experiments/bench/convolution.py [--rounds 5] [--output FILE.json]

Milliseconds of one call within a loop (`jax.lax.scan`), where training runs it: outside of one,
XLA's CPU back-end takes a path of several threads, which says nothing about training. Images of
10 x 10; the forms take turns in one process. A ratio above 1 means that "slices" is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import report
from losses import compile_once, run_time

from jaxrl.networks.torsos import Conv

FORMS = ("slices", "direct")
WIDTH = 16


def loop(form: str, gradient: bool):
    """A function of weights and images [repeats, batch, ...] that runs the convolution on one batch
    after the other; each round's weights come from the round before, so that none is left out."""
    conv = Conv(WIDTH, form)

    def loss(weights, images):
        outputs: Any = conv.apply(weights, images)
        return jnp.square(outputs).mean()

    def run(weights, images):
        def step(weights, images):
            value = (jax.grad(loss) if gradient else loss)(weights, images)
            change = value if gradient else jax.tree.map(lambda w: value, weights)
            return jax.tree.map(lambda w, c: w - 1e-6 * c, weights, change), None

        return jax.lax.scan(step, weights, images)[0]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128, 1024])
    parser.add_argument("--channels", type=int, nargs="+", default=[4, 10, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=16, help="calls in a loop")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    records = []
    sizes = [
        (b, c, g) for g in (False, True) for b in arguments.batches for c in arguments.channels
    ]
    for batch, channels, gradient in sizes:
        images = jax.random.uniform(jax.random.key(0), (arguments.repeats, batch, 10, 10, channels))
        arrays = {"weights": Conv(WIDTH).init(jax.random.key(1), images[0]), "images": images}
        runs = {f: compile_once(loop(f, gradient), arrays)[0] for f in FORMS}
        times = [{f: run_time(runs[f], 0.1) for f in FORMS} for _ in range(arguments.rounds)]
        ms = {f: 1e3 * statistics.median(t[f] for t in times) / arguments.repeats for f in FORMS}
        quotients = [t["direct"] / t["slices"] for t in times]
        what = "gradient" if gradient else "forward"
        records.append({"batch": batch, "channels": channels, "what": what, "ms": ms})
        records[-1]["direct / slices"] = quotients
        said = ", ".join(f"{form} {time:.3g} ms" for form, time in ms.items())
        print(f"{what:8} {batch:5} x {channels:2} -> {WIDTH}: {said}, {report.ratio(quotients)}")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
