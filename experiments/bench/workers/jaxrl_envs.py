"""Random actions in the stream of auto-resetting copies that every algorithm here learns from."""

from __future__ import annotations

import argparse

import measuring
import rolling


def load() -> None:
    import jaxrl.core.random
    import jaxrl.core.stream
    import jaxrl.envs  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax

    from jaxrl import envs
    from jaxrl.core import random, spaces, stream
    from jaxrl.core.types import Policy
    from jaxrl.tasks.basic import fixed

    number, config = arguments.envs, arguments.config
    env = envs.make(config["ours"], **config["settings"])
    tasks = fixed(env.params)
    parts, treedef = jax.tree.flatten(env.action_space, is_leaf=spaces.is_space)

    def sample(space, key, legal):
        if legal is not None:
            return jax.random.categorical(key, jax.numpy.where(legal, 0.0, -jax.numpy.inf))
        if isinstance(space, spaces.Discrete):
            return jax.random.randint(key, (number,), 0, space.n)
        return jax.random.uniform(key, (number, *space.shape), minval=space.low, maxval=space.high)

    def act(state, timestep, memory, key, greedy):
        legal = timestep.legal_actions
        masks = [None] * len(parts) if legal is None else treedef.flatten_up_to(legal)
        keys = jax.random.split(key, len(parts)) if len(parts) > 1 else [key]
        return treedef.unflatten(map(sample, parts, keys, masks)), memory, {}

    policy = Policy(act, lambda n: ())

    def start(key):
        task_state = tasks.init(key, policy, tasks.hyper)
        streams = stream.start(env, tasks, task_state, policy, key, number)
        return jax.numpy.int32(0), task_state, streams

    def step(key, carry):
        count, task_state, streams = carry
        turn = stream.step_input(key, count)
        streams, _, transition, _ = stream.advance(env, tasks, task_state, streams, policy, turn)
        last = transition.next_timestep
        carry = count + 1, task_state, streams
        return carry, streams.timestep.observation, last.reward, last.done

    about = {"library": "jaxrl", "generator": random.default_generator()}
    return rolling.work(arguments, start, step, random.key, about)


if __name__ == "__main__":
    measuring.main(load, work)
