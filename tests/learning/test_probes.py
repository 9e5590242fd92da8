"""Every algorithm finds the known value and action of every probe."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random, stream
from jaxrl.tasks import fixed
from tests.contracts.algorithms import (
    ALGORITHMS,
    algorithm,
    driver,
    environment,
    keys,
    members,
    starter,
)
from tests.learning.probes import PROBES, play

ORDER = list(PROBES)


@functools.cache
def learn(name):
    """Runs that have learned probe i % 6 each, and what they then do and expect, [members, T,
    B]."""
    entry, learner, env = (
        ALGORITHMS[name],
        algorithm(name),
        environment(ALGORITHMS[name].continuous),
    )
    count = members(name)
    vectors = jnp.stack([PROBES[ORDER[i % len(ORDER)]].vector() for i in range(count)])
    default = {k: jnp.broadcast_to(v, count) for k, v in learner.hyper.items()}
    runs, rows = starter(name)(keys(name), default)
    runs, rows = driver(name)(play(runs, vectors), rows, entry.steps)

    @jax.jit
    @jax.vmap
    def watch(run, vector):
        policy = learner.policy(run.state)
        tasks = fixed({"probe": vector})
        streams = stream.start(env, tasks, {"probe": vector}, policy, random.key(9), 8)

        def body(streams, key):
            memory = jax.tree.map(
                lambda x, y: jnp.where(streams.timestep.first[:, None], y, x),
                streams.memory,
                policy.memory(8),
            )
            value = jnp.zeros(8)
            if entry.value is not None:
                value = entry.value(learner, run.state, streams.timestep, memory)
            t = streams.env_state.t
            streams, _, transition, _ = stream.advance(
                env, tasks, {"probe": vector}, streams, policy, key, greedy=True
            )
            return streams, (t, transition.observation[:, 0], transition.action, value)

        return jax.lax.scan(body, streams, stream.step_inputs(random.key(0), 10))[1]

    return jax.tree.map(np.asarray, watch(runs, vectors))


@pytest.mark.parametrize("probe", ORDER)
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_probe(name, probe):
    t, x, action, value = learn(name)
    truth = PROBES[probe]
    for i in range(ORDER.index(probe), members(name), len(ORDER)):
        best = np.vectorize(truth.action, otypes=[object])(x[i])
        if best.ravel()[0] is not None:
            chosen = action[i]
            if ALGORITHMS[name].continuous:
                chosen = np.clip(chosen[..., 0], -1, 1)
                np.testing.assert_allclose(chosen, best.astype(float), atol=0.3)
            else:
                np.testing.assert_array_equal(2 * chosen - 1, best.astype(float))
        exact = best.ravel()[0] is None or not ALGORITHMS[name].continuous
        if ALGORITHMS[name].value is not None and exact:
            np.testing.assert_allclose(value[i], np.vectorize(truth.value)(x[i], t[i]), atol=0.15)
