import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.wrappers.start_key import Params, start_key
from jaxrl.tasks import repeat, starts


@pytest.mark.slow
def test_each_prompt_is_given_exactly_g_times_side_by_side():
    env = envs.make("addition", digits=2)
    groups, environment = repeat(starts(env.params, Params), 4), start_key(env)
    state = groups.init(random.key(0), None, {})
    ids = groups.sample(state, random.key(1), 12)
    data = np.asarray(jax.random.key_data(ids)).reshape(3, 4, -1)
    assert (data == data[:, :1]).all()
    assert len(np.unique(data[:, 0], axis=0)) == 3
    reset = lambda key, task: environment.reset(key, groups.params(state, task))[0].text
    texts = jax.vmap(reset)(jax.random.split(random.key(2), 12), ids)
    texts = np.asarray(texts).reshape(3, 4, -1)
    assert (texts == texts[:, :1]).all() and len(np.unique(texts[:, 0], axis=0)) == 3
    again = groups.sample(state, random.key(3), 12)
    assert (jax.random.key_data(again) != jax.random.key_data(ids)).any()


@pytest.mark.slow
def test_other_parts_of_an_episode_still_differ_in_a_group():
    env = envs.make("river_swim")
    environment = start_key(env)
    state, _ = environment.reset(random.key(0), environment.params)
    step = lambda key: environment.step(key, state, jnp.int32(1), environment.params)[1].observation
    seen = np.asarray(jax.vmap(step)(jax.random.split(random.key(1), 64)))
    assert (seen != seen[0]).any()


def test_groups_must_divide_the_episodes():
    tasks = starts((), lambda params, key: key)
    with pytest.raises(UserError, match="times >= 1, got 0"):
        repeat(tasks, 0)
    with pytest.raises(UserError, match="10 episodes do not form groups of 4"):
        repeat(tasks, 4).sample((), random.key(0), 10)
