"""SPO-tree: advantages of edges against loops, what is learned from, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.spo_tree import edge_advantages, spo_tree
from jaxrl.core import random
from jaxrl.core.train import start, train


def test_an_edge_is_worth_the_difference_of_its_nodes():
    branching, rng = (2, 3), np.random.default_rng(0)
    returns = rng.normal(size=(4, 2, 3))
    level = np.array([[0] * 24, [0] * 24, [1] * 24])
    found = edge_advantages(jnp.asarray(returns.reshape(-1)), jnp.asarray(level), branching)
    found = np.asarray(found).reshape(3, 4, 2, 3)
    for tree in range(4):
        for i in range(2):
            node = returns[tree, i].mean()
            for j in range(3):
                first, last = node - returns[tree].mean(), returns[tree, i, j] - node
                np.testing.assert_allclose(found[:, tree, i, j], [first, first, last], atol=1e-6)


@pytest.mark.slow
def test_it_learns():
    settings = {"prompts": 8, "branching": (3, 2), "segment": 2, "recurrent": 16, "transformer": 0}
    settings |= {"minibatches": 1, "learning_rate": 0.02}
    algorithm = spo_tree(envs.make("judged_words", letters=2, length=4), settings)

    @jax.jit
    def learn(key):
        run, first = train(algorithm, start(algorithm, key), 5)
        return first, train(algorithm, train(algorithm, run, 60)[0], 5)[1]

    first, last = (metrics["episode_return"].value() for metrics in learn(random.key(0)))
    assert last > first + 0.5
