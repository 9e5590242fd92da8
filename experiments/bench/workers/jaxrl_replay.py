"""Our replay, filled by a source that hands on the windows it is given."""

from __future__ import annotations

from typing import Any

import replaying


def work(config: dict[str, Any]) -> replaying.Buffer:
    import jax.numpy as jnp

    from jaxrl.core import random
    from jaxrl.core.types import Batch, Source, TimeStep, Transition
    from jaxrl.sources import proportional, replay
    from jaxrl.sources.samplers import UNIFORM

    steps, streams, length = config["steps"], config["streams"], config["length"]

    def as_batch(x) -> Batch:
        no = jnp.zeros((steps, streams), bool)
        before = TimeStep(x["observation"], jnp.zeros((steps, streams)), no, no, x["first"])
        after = TimeStep(x["next_observation"], x["reward"], x["terminated"], x["truncated"], no)
        live = TimeStep(*[getattr(after, k)[-1] for k in FIELDS])
        transitions = Transition(before, x["action"], after, (), {})
        return Batch(transitions, env_steps=jnp.float32(0), tail=(live, ()))

    # What is collected is given in the place of the policy, which nothing here acts by.
    source = Source(
        "given",
        init=lambda key, hyper, policy: (),
        collect=lambda state, given, key: (state, as_batch(given), {}),
        sample=lambda state, fresh, key: fresh,
        env_steps=steps * streams,
        num_envs=streams,
    )
    by_priority = config["kind"] == "priority"
    sampler = proportional(exponent=0.6) if by_priority else UNIFORM
    warmup = (length or 1) * streams
    held = replay(source, config["capacity"], config["batch"], length, sampler, warmup)

    return replaying.Buffer(
        empty=lambda window: held.init(random.key(0), held.hyper, window),
        add=lambda state, window: held.collect(state, window, random.key(0))[0],
        sample=lambda state, window, key: held.sample(state, as_batch(window), key),
        feedback=held.feedback if by_priority else None,
        key=lambda seed: random.key(seed, config["generator"]),
        about={"library": "jaxrl", "generator": config["generator"], "shuffle": "-"},
    )


FIELDS = ("observation", "reward", "terminated", "truncated", "first")

if __name__ == "__main__":
    replaying.main(work)
