"""Warm starts play again what a source plays before learning."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import algorithms, envs
from jaxrl.core import random
from jaxrl.core.learn import restart_source
from jaxrl.core.train import start
from jaxrl.runtime import continuing

WORDS = envs.make("judged_words", letters=2, length=2)
SMALL = {"recurrent": 8, "transformer": 0, "count": 8, "batch_size": 4}


def dpo():
    return algorithms.dpo(WORDS, SMALL)


def dqn():
    sizes = {"num_envs": 4, "hidden": (4,), "batch_size": 4, "capacity": 32, "warmup": 8}
    sizes |= {"exploration.start": 0.0, "exploration.end": 0.0}
    return algorithms.dqn(envs.make("cartpole"), sizes)


def session(algorithm, members=None, **hyper):
    return types.SimpleNamespace(
        algorithm=algorithm,
        program=types.SimpleNamespace(members=members),
        members=types.SimpleNamespace(own_hyper=lambda: hyper),
    )


def arrays(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("build", [dpo, dqn])
def test_each_member_plays_as_after_a_restart_of_its_own(build):
    algorithm = build()
    keys = jax.random.split(random.key(0), 2)
    # Weights of others, as if they had been taken over.
    others = jax.vmap(lambda key: start(algorithm, key).state)(keys[::-1])
    own = jax.vmap(lambda key: start(algorithm, key).state)(keys)
    state = type(own)(others.agent, own.source, own.steps, own.diverged)
    name = sorted(algorithm.hyper)[0]
    values = jnp.asarray([0.25, 0.5])
    found = continuing._play_again(session(algorithm, 2, **{name: values}), state, keys)
    for i in range(2):
        one = jax.tree.map(lambda x: x[i], state)  # noqa: B023
        hyper = {**algorithm.hyper, name: values[i]}
        expected = restart_source(algorithm, one, jax.random.fold_in(keys[i], 0), hyper)
        for a, b in zip(arrays(jax.tree.map(lambda x: x[i], found.source)),  # noqa: B023
                        arrays(expected.source), strict=True):  # fmt: skip
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    changed = zip(arrays(found.source), arrays(own.source), strict=True)
    assert any(not np.array_equal(a, b) for a, b in changed)


def test_what_is_played_in_learning_is_not_played_before():
    algorithm = algorithms.ppo(envs.make("cartpole"), {"num_envs": 4, "num_steps": 4})
    state = object()
    assert continuing._play_again(session(algorithm), state, None) is state
