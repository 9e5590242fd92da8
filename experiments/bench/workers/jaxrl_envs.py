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
    from jaxrl.core import random, stream
    from jaxrl.core.spaces import Discrete
    from jaxrl.core.types import Policy
    from jaxrl.tasks.basic import fixed

    number, config = arguments.envs, arguments.config
    env = envs.make(config["ours"], **config["settings"])
    tasks = fixed(env.params)
    space = env.action_space

    def act(state, timestep, memory, key, greedy):
        if isinstance(space, Discrete):
            action = jax.random.randint(key, (number,), 0, space.n)
        else:
            action = jax.random.uniform(
                key, (number, *space.shape), minval=space.low, maxval=space.high
            )
        return action, memory, {}

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
