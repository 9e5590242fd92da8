"""GRPO with a difficulty prior: its advantages, its survey, and the prompts of its two stages."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.tokens.difficulty_prior import difficulty_prior, weighted_advantage
from jaxrl.core import random
from jaxrl.core.train import start, train

ENV = envs.make("judged_words", letters=2, length=3)
PROMPTS, ANSWERS, SURVEY, STAGE = 4, 4, 12, 20
SETTINGS = {
    "prompts": PROMPTS, "answers": ANSWERS, "recurrent": 16, "transformer": 0, "minibatches": 1,
    "optimizer.learning_rate": 0.01, "count": 16, "survey": float(SURVEY), "pool.low": 0.3,
    "pool.high": 0.7, "pool.hard": 0.55, "pool.later": float(STAGE * PROMPTS * ANSWERS),
}  # fmt: skip


def test_advantages_of_hard_groups_weigh_more():
    returns = np.array([[1, 0, 0, 0], [2, 1, 1, 0], [-1, -3, 0, 0]], np.float32)
    reward = np.zeros((2, 12), np.float32)
    reward[1] = returns.reshape(-1)
    weight = SimpleNamespace(low=0.5, high=2.0, middle=0.6, slope=5.0)
    net: Any = SimpleNamespace(hyper=SimpleNamespace(weight=weight))
    played = SimpleNamespace(reward=jnp.asarray(reward))
    batch: Any = SimpleNamespace(transitions=played, mask=jnp.ones((2, 12), bool))
    found = weighted_advantage(net, batch, 4)
    share = np.array([0.25, 0.75, 0.0])
    factor = 0.5 + 1.5 / (1 + np.exp(5 * (share - 0.6)))
    centered = returns - returns.mean(1, keepdims=True)
    expected = factor[:, None] * centered / returns.std(1, keepdims=True)
    np.testing.assert_allclose(found, np.tile(expected.reshape(-1), (2, 1)), rtol=1e-4)


def test_it_surveys_its_prompts_and_learns_from_those_in_between_and_then_from_the_hard_ones():
    algorithm = difficulty_prior(ENV, SETTINGS)
    weights = lambda state: state.agent.parts["actor_critic"].params

    @jax.jit
    def learn(key):
        runs = [start(algorithm, key)]
        for length in (SURVEY, STAGE - SURVEY, 4):
            runs.append(train(algorithm, runs[-1], length)[0])
        return [(weights(x.state), x.state.source.tasks.scores) for x in runs]

    (first, _), (surveyed, known), (middle, later), (_, last) = learn(random.key(0))
    assert known.seen.all() and known.episodes == SURVEY * PROMPTS * ANSWERS
    rate = np.asarray(known.score)
    inside = lambda high: (rate > 0.3) & (rate <= high)
    assert 0 < inside(0.55).sum() < inside(0.7).sum() < len(rate)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(surveyed), strict=True):
        np.testing.assert_array_equal(x, y)
    changed = jax.tree.map(lambda x, y: (x != y).any(), surveyed, middle)
    assert any(jax.tree.leaves(changed))
    np.testing.assert_array_equal(later.score, rate)  # they are those of the first policy
    asked = np.asarray(later.last) > known.episodes
    assert asked.any() and inside(0.7)[asked].all()
    asked = np.asarray(last.last) > later.episodes
    assert asked.any() and inside(0.55)[asked].all()
