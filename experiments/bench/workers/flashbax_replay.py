"""The same with flashbax 0.1.3, whose items are time steps [B, T]; two of them are a transition."""

# It runs in an environment of its own, so a type checker finds no flashbax here.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import replaying

ITEM = ("observation", "action", "reward", "terminated", "truncated")


def work(config: dict[str, Any]) -> replaying.Buffer:
    import flashbax
    import jax

    streams, length, number = config["streams"], config["length"], config["batch"]
    capacity, kind = config["capacity"], config["kind"]
    if kind == "sequence":
        buffer = flashbax.make_trajectory_buffer(
            add_batch_size=streams,
            sample_batch_size=number,
            sample_sequence_length=length,
            period=1,
            min_length_time_axis=length,
            max_length_time_axis=capacity // streams,
        )
    elif kind == "priority":
        buffer = flashbax.make_prioritized_flat_buffer(
            capacity, number, number, True, streams, priority_exponent=0.6
        )
    else:
        buffer = flashbax.make_flat_buffer(capacity, number, number, True, streams)

    def items(window):
        return {name: jax.numpy.swapaxes(window[name], 0, 1) for name in ITEM}

    def set_priorities(state, batch, priority):
        return buffer.set_priorities(state, batch.indices, priority)

    return replaying.Buffer(
        empty=lambda window: buffer.init(jax.tree.map(lambda x: x[0, 0], items(window))),
        add=lambda state, window: buffer.add(state, items(window)),
        sample=lambda state, window, key: buffer.sample(state, key),
        feedback=set_priorities if kind == "priority" else None,
        key=jax.random.key,
        about={
            "library": "flashbax",
            "generator": jax.config.jax_default_prng_impl,  # pyright: ignore
            "shuffle": "-",
        },
    )


if __name__ == "__main__":
    replaying.main(work)
