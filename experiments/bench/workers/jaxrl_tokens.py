"""Our GRPO: `Source.collect`, and the agent's update."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import decoding


def environment(case: dict[str, Any]) -> Any:
    """Return an environment of random prompts, whose answers all have the greatest length: END is
    no legal token. The reward is the fraction of zeros in an answer."""
    import jax
    import jax.numpy as jnp

    from jaxrl.envs.language.answering import Grade, answering

    size, length, end = case["prompt_length"], case["answer_length"], case["vocabulary"] - 1

    def prompt(key, params):
        return jax.random.randint(key, (size,), 0, end)

    def grade(prompt, answer, ended, params):
        return Grade((answer == 0).mean())

    sizes = size, length
    vocabulary = tuple(map(str, range(end + 1)))
    base = answering("answers", vocabulary, *sizes, prompt=prompt, grade=grade, params=())

    def without_end(timestep):
        legal = timestep.legal_actions & (jnp.arange(end + 1) < end)
        return dataclasses.replace(timestep, legal_actions=legal)

    def reset(key, params):
        state, timestep = base.reset(key, params)
        return state, without_end(timestep)

    def step(key, state, action, params):
        state, timestep = base.step(key, state, action, params)
        return state, without_end(timestep)

    return dataclasses.replace(base, reset=reset, step=step)


def prepare(case: dict[str, Any], seed: int) -> decoding.Turn:
    import jax

    from jaxrl.algorithms.tokens.grpo import grpo
    from jaxrl.core import random
    from jaxrl.core.settings import replace
    from jaxrl.core.train import start
    from jaxrl.core.types import Policy

    settings = {
        "prompts": case["prompts"],
        "answers": case["answers"],
        "recurrent": case["width"],
        "transformer": case["layers"],
        "attention_heads": case["heads"],
        "kl.weight": case["kl_weight"],
    }
    algorithm = grpo(environment(case), replace(grpo.Config(), settings))
    agent, source = algorithm.agent, algorithm.source
    assert agent is not None and source is not None
    state = start(algorithm, random.key(seed)).state

    @jax.jit
    def collect(source_state, agent_state, key):
        policy = Policy(agent.act, agent.memory, agent_state)
        source_state, batch, _ = source.collect(source_state, policy, key)
        return source_state, dataclasses.replace(batch, memory=None)

    update = jax.jit(lambda state, batch, key: agent.update(state, batch, key))
    held = {"agent": state.agent, "source": state.source, "key": random.key(seed + 1)}

    def turn() -> tuple[float, float]:
        held["key"], collect_key, update_key = jax.random.split(held["key"], 3)
        jax.block_until_ready(held)
        clock = time.perf_counter()
        held["source"], batch = jax.block_until_ready(
            collect(held["source"], held["agent"], collect_key)
        )
        written = time.perf_counter()
        held["agent"], _ = jax.block_until_ready(update(held["agent"], batch, update_key))
        return written - clock, time.perf_counter() - written

    return turn


if __name__ == "__main__":
    decoding.main(prepare)
