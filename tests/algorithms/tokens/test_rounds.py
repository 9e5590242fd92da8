"""Rounds of self-training: which answers are kept, and the exact policies that rounds lead to."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.b_star import Trials, b_star, balance
from jaxrl.algorithms.tokens.raft import raft
from jaxrl.algorithms.tokens.rest_em import rest_em
from jaxrl.algorithms.tokens.shared.rounds import best_of_group, first_above
from jaxrl.core import metrics, random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import advance, start
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.exact.answers import answer_log_probs, enumerate_answers

ENV = envs.make("judged_words", letters=2, length=2)
FOUND = enumerate_answers(ENV)
REWARD = np.asarray(FOUND.reward, np.float64)
SIZES = {"recurrent": 16, "transformer": 0, "prompts": 8192, "minibatches": 8, "epochs": 20}
SIZES |= {"optimizer.learning_rate": 0.01}


def test_what_is_kept():
    returns = jnp.array([[0.0, 2.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(best_of_group(returns), [[0, 1, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(first_above(returns, 0.0, 0), [[0, 1, 1, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(first_above(returns, 0.0, 2), [[0, 1, 1, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(first_above(returns, 1.0, 2), [[0, 1, 0, 1], [0, 0, 0, 0]])


@functools.cache
def play(builder, rounds, **changes):
    """Exact probabilities [P, A] of answers before and after each round, and the last metrics."""
    config = replace(builder.Config(), SIZES | changes)
    algorithm = builder(ENV, config)
    network = policy_network(ENV, config.torso, config.memory)
    exact = jax.jit(lambda params: jnp.exp(answer_log_probs(network, params, FOUND)))
    step = jax.jit(lambda run: advance(algorithm, run))
    run, row = start(algorithm, random.key(0)), {}
    found = [np.asarray(exact(run.state.agent.parts["actor_critic"].params), np.float64)]
    for _ in range(rounds):
        run, row = step(run)
        found.append(np.asarray(exact(run.state.agent.parts["actor_critic"].params), np.float64))
    return found, metrics.values(row)


def best_of(p, size):
    """Distribution of the best of `size` answers; no two are equally good."""
    order = np.argsort(REWARD, -1)
    below = np.cumsum(np.take_along_axis(p, order, -1), -1)
    share = np.diff(below**size, axis=-1, prepend=0)
    best = np.zeros_like(p)
    np.put_along_axis(best, order, share, -1)
    return best


@pytest.mark.slow
def test_rounds_of_raft_are_best_of_n():
    """Two rounds with groups of 2 are the best of 4."""
    assert all(len(set(row)) == len(row) for row in REWARD.tolist())
    (first, second, third), row = play(raft, 2, answers=2)
    assert np.abs(best_of(first, 2) - first).max() > 0.15
    np.testing.assert_allclose(second, best_of(first, 2), atol=0.04)
    np.testing.assert_allclose(third, best_of(first, 4), atol=0.06)
    np.testing.assert_allclose(row["kept"], 0.5, rtol=1e-6)


@pytest.mark.slow
def test_a_round_of_rest_em_conditions_on_right_answers():
    """The next round, from the reference again, ends at the same policy."""
    right = REWARD > 0
    (first, second, third), row = play(rest_em, 2, answers=4, prompts=4096)
    exact = first * right
    exact /= exact.sum(-1, keepdims=True)
    assert (first * right).sum(-1).max() < 0.8
    distance = lambda x: (np.abs(x - exact).sum(-1) / 2).max()  # in total variation
    assert distance(first) > 0.2 and distance(second) < 0.1 and distance(third) < 0.12
    assert row["kept"] > 0.95 and 1.5 < row["distinct"] < 4


@pytest.mark.parametrize("builder", [raft, rest_em], ids=lambda b: b.name)
def test_where_a_round_begins(builder):
    """Steps are 0: at the reference with a new optimizer, or where the last round ended."""
    sizes = {"prompts": 4, "answers": 2, "epochs": 2, "minibatches": 2, "recurrent": 0}
    algorithm = builder(ENV, SIZES | sizes | {"optimizer.learning_rate": 0.0})
    run = start(algorithm, random.key(0))
    part = run.state.agent.parts["actor_critic"]
    moved = dataclasses.replace(part, params=jax.tree.map(lambda x: x + 1, part.params))
    agent = dataclasses.replace(run.state.agent, parts={"actor_critic": moved})
    run = dataclasses.replace(run, state=dataclasses.replace(run.state, agent=agent))
    step = jax.jit(lambda run: advance(algorithm, run)[0])
    after = step(step(run)).state.agent.parts["actor_critic"]
    begun, taken = (part.params, 4) if builder is rest_em else (moved.params, 8)
    for ours, theirs in zip(*map(jax.tree.leaves, (after.params, begun)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert int(jax.tree.leaves(after.optimizer)[0]) == taken  # steps of Adam


def test_the_balance_of_a_trial_is_that_of_plain_loops():
    """Distinct answers above a threshold, at most so many, and how many of them are right."""
    rng, T, P, G, most, enough = np.random.default_rng(0), 3, 5, 8, 4, 3.0
    tokens, length = rng.integers(0, 2, (T, P * G)), rng.integers(1, T + 1, P * G)
    returns, right = rng.integers(0, 4, P * G) / 4.0, rng.integers(0, 2, P * G)
    mask = np.arange(T)[:, None] < length
    last = np.arange(T)[:, None] == length - 1
    here, none = jnp.asarray, jnp.zeros((T, P * G), bool)
    after = TimeStep(
        none, here(np.where(last, returns, 9.0 * ~mask)), here(last), none, none,
        metrics={"success": here(np.where(last, right, 1.0 * ~mask))},
    )  # fmt: skip
    x = Transition(TimeStep(none, none, none, none, none), here(tokens), after, (), {})
    batch = Batch(x, jnp.float32(0), mask=here(mask))
    thresholds = (0.0, 0.3, 0.6)
    trials = Trials(thresholds=thresholds, enough=enough)
    score, chosen = balance(G, most, trials)(batch)

    def by_loops(threshold):
        scores = []
        for p in range(P):
            seen, kept = set(), []
            for i in range(p * G, p * G + G):
                text = tuple(tokens[: length[i], i])
                if text not in seen and returns[i] > threshold and len(kept) < most:
                    kept.append(right[i])
                seen.add(text)
            good = sum(kept)
            scores.append(min(good / enough, 1) * good / len(kept) if kept else 0.0)
        return np.mean(scores)

    expected = [by_loops(t) for t in thresholds]
    np.testing.assert_allclose(score, max(expected), rtol=1e-5)
    np.testing.assert_allclose(chosen["threshold"], thresholds[int(np.argmax(expected))])
    assert len(set(expected)) == 3


def test_b_star_needs_to_know_what_is_right():
    with pytest.raises(UserError, match="which answers are right; 'judged_words' does not say"):
        b_star(ENV)
