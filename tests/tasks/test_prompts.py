"""A fixed set of prompts, asked by scores."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.types import Policy
from jaxrl.envs.wrappers.start_key import Params, start_key
from jaxrl.tasks import by_failure, prompts, repeat

NOBODY = Policy(lambda *_: None, lambda n: (), ())


def start(tasks, seed=0):
    hyper = {name: jnp.float32(value) for name, value in tasks.hyper.items()}
    return tasks.init(random.key(seed), NOBODY, hyper)


def test_a_prompt_stays_the_same_and_each_run_has_its_own():
    env = envs.make("addition", digits=2)
    tasks, environment = prompts(env.params, Params, 8, by_failure()), start_key(env)

    @jax.jit
    def texts(state, key):
        read = lambda task, key: environment.reset(key, tasks.params(state, task))[0].text
        return jax.vmap(read)(jnp.arange(8), jax.random.split(key, 8))

    first, again = (texts(start(tasks), random.key(i)) for i in (1, 2))
    other = texts(start(tasks, seed=1), random.key(1))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) > 4 and (first != other).any(1).all()


def test_prompts_that_fail_are_asked_more():
    env = envs.make("addition", digits=2)
    tasks = repeat(prompts(env.params, Params, 4, by_failure(), rate=0.5), 2)
    state = start(tasks)
    right = jnp.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    for _ in range(2):  # the second time moves nothing
        state = tasks.feedback(state, jnp.repeat(jnp.arange(4), 2), right.ravel(), None)
    ids = np.asarray(tasks.sample(state, random.key(0), 8000)).reshape(-1, 2)
    assert (ids[:, 0] == ids[:, 1]).all()
    share = np.bincount(ids[:, 0], minlength=4) / len(ids)
    np.testing.assert_allclose(share, np.array([0, 0.5, 1, 0.5]) / 2, atol=0.02)
