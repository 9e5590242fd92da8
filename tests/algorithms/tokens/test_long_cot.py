"""PPO for long chains of thought: rewards by length and repetition, against loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens import long_cot as module
from jaxrl.algorithms.tokens.long_cot import judge, long_cot, typed_rewards
from jaxrl.core.errors import UserError
from tests.algorithms.tokens.answers import make_batch
from tests.kit.stub import stub

# Two tokens of a prompt, then answers of 7, 4 and 6 tokens, the last one with a hole; the second
# has a repeated pair only together with the prompt.
ACTION = np.array([[9, 9, 1, 2, 3, 1, 2, 4, 5], [1, 2, 3, 1, 2, 4, 0, 0, 0],
                   [9, 9, 1, 2, 7, 2, 1, 2, 2]]).T  # fmt: skip
MASK = np.array([[0, 0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0, 0],
                 [0, 0, 1, 1, 0, 1, 1, 1, 1]], bool).T  # fmt: skip
RIGHT, LIMIT = np.array([1, 0, 1]), 7.0
ENDS = {"right_short": 2.0, "right_long": 1.0, "wrong_short": -10.0, "wrong_long": 0.0}
HYPER = {f"length.{name}": x for name, x in ENDS.items()} | {"length.limit": LIMIT}
HYPER |= {"length.exceeded": -9.0, "repetition": -0.05}
HYPER |= {"discount": 0.95, "repetition_discount": 0.5}


def by_loops():
    """Return the rewards of tokens by type, [T, B, 2]."""
    reward = np.zeros((*MASK.shape, 2))
    for b, right in enumerate(RIGHT):
        places = np.flatnonzero(MASK[:, b])
        ends = (2.0, 1.0) if right else (-10.0, 0.0)
        wave = (1 + np.cos(np.pi * len(places) / LIMIT)) / 2
        outcome = ends[1] + (ends[0] - ends[1]) * wave
        reward[places[-1], b, 0] = -9.0 if len(places) >= LIMIT else outcome
        seen = set()
        for t in range(len(MASK) - 1):
            if MASK[t : t + 2, b].all():
                pair = tuple(ACTION[t : t + 2, b])
                if pair in seen:
                    reward[t : t + 2, b, 1] = -0.05
                seen.add(pair)
    return reward


def test_rewards_by_length_and_of_repetitions():
    batch = make_batch(ACTION, MASK, np.zeros(MASK.shape), success=RIGHT)
    found = np.asarray(typed_rewards(stub(hyper=HYPER), batch, 2))
    expected = by_loops()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert expected[-1, 0, 0] == -9.0  # too long, though right
    repeated = expected[..., 1] < 0
    assert repeated[5:7, 0].all() and not repeated[:, 1].any()  # a prompt is no part of an n-gram


def test_returns_have_a_discount_for_each_type(monkeypatch):
    rng = np.random.default_rng(0)
    value, penalty = rng.normal(size=MASK.shape), rng.normal(size=MASK.shape) * MASK
    monkeypatch.setattr(module, "estimate_values", lambda net, batch, part: (value, None))
    batch = make_batch(ACTION, MASK, penalty, success=RIGHT)
    found = judge(stub(hyper=HYPER), batch, 2)
    reward = by_loops() + penalty[..., None] / 2
    expected = np.zeros(MASK.shape)
    for b in range(MASK.shape[1]):
        for t in range(len(MASK)):
            for s in range(t, len(MASK)):
                if MASK[s, b]:
                    expected[t, b] += (reward[s, b] * np.array([0.95, 0.5]) ** (s - t)).sum()
    np.testing.assert_allclose(np.asarray(found["target"])[MASK], expected[MASK], atol=1e-4)
    x = (expected - value)[MASK]
    standardized = (x - x.mean()) / x.std()
    np.testing.assert_allclose(np.asarray(found["advantage"])[MASK], standardized, atol=1e-3)


def test_an_environment_without_right_answers_is_refused():
    with pytest.raises(UserError, match="metrics\\['success'\\]"):
        long_cot(envs.make("judged_words"))


def test_the_defaults_are_those_of_the_authors_code():
    config = module.Config()
    assert (config.ngram, config.repetition) == (40, -0.05)
    assert (config.discount, config.repetition_discount) == (1.0, 0.99)
    assert config.kl.weight == 0.01 and jnp.isfinite(config.length.limit)
