"""SPO-chain: advantages of segments against NumPy, what is learned from, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.tokens.spo_chain import segment_advantages, spo_chain
from jaxrl.core import random
from jaxrl.core.train import start


def test_a_segments_advantage_is_the_change_of_what_the_answer_is_worth():
    cut = np.array([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool).T
    value = np.where(cut, np.array([[0, 0.5, 0, 0.25, 0], [0.75, 0, 0, 0, 0], [0] * 5]).T, 0)
    returns = np.array([1.0, 0.0, 1.0])
    expected = [[0, -0.25, -0.25, 0.75, 0.75], [-0.75] * 5, [0] * 5]
    cut, value, returns = map(jnp.asarray, (cut, value, returns))
    found = segment_advantages(cut, value, returns, 3)
    np.testing.assert_allclose(found, np.transpose(expected), atol=1e-7)


def test_a_segment_begins_at_every_nth_cutpoint():
    env = envs.make("judged_words", letters=3, length=6)
    sizes = {"prompts": 8, "answers": 2, "recurrent": 8, "transformer": 0, "minibatches": 1}
    cuts = {"branches": 2, "cutpoints": 2, "points": 2}
    algorithm = spo_chain(env, sizes | cuts)
    run = start(algorithm, random.key(0))
    policy = algorithm.policy(run.state)
    assert algorithm.source is not None
    collect = jax.jit(algorithm.source.collect)
    batch = collect(run.state.source, policy, random.key(1))[1]
    t, mask = batch.transitions, np.asarray(batch.mask)
    unlikely = np.exp(np.asarray(t.extras["log_prob"])) < 0.9
    unlikely &= mask & np.asarray(t.timestep.tokens["decision"])
    for b in range(16):
        expected = np.flatnonzero(unlikely[:, b])[::2][:2]
        np.testing.assert_array_equal(np.flatnonzero(t.extras["cut"][:, b]), expected)
