"""MT-GRPO: advantages of turns against loops over texts, and against GRPO's."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.tokens.mt_grpo import mt_grpo, token_loss, turn_advantages
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.algorithms.tokens.shared.turns import split_turns
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import stub

GROUPS, ANSWERS, WEIGHT = 3, 4, 0.7


def texts(seed, longest=4, one_turn=False):
    """Return turns, masks, rewards and ends [T, B] of texts of up to `longest` turns: a prompt of
    two tokens, then utterances of one or two tokens with a reply of one token between them."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(GROUPS * ANSWERS):
        turns = 1 if one_turn else int(rng.integers(1, longest + 1))
        row = [(0, False)]  # the step from one token of the prompt to the other
        for k in range(turns):
            row += [(k, True)] * rng.integers(1, 3)
            row += [(k + 1, False)] * (k < turns - 1)
        rows.append(row)
    size = max(map(len, rows)) + 2
    turn, mask = np.zeros((2, size, len(rows)), int)
    reward, done = np.zeros((2, size, len(rows)))
    for b, row in enumerate(rows):
        n = len(row)
        turn[:n, b], mask[:n, b] = zip(*row, strict=True)
        ends = [t for t in range(n - 1) if mask[t, b] and not mask[t + 1, b]]
        reward[ends, b] = rng.integers(0, 3, len(ends))
        reward[n - 1, b], done[n - 1, b] = rng.integers(0, 2), 1
        turn[n:, b] = rng.integers(0, 3)  # of another text
    return turn, mask.astype(bool), reward, done.astype(bool)


def batch_of(turn, mask, reward, done):
    none = np.zeros(done.shape, bool)
    tokens = {"turn": jnp.asarray(turn), "decision": jnp.asarray(mask)}
    step = TimeStep(none, jnp.float32(reward), jnp.asarray(done), none, none, tokens=tokens)
    return Batch(Transition(step, turn, step, (), {}), jnp.float32(0), mask=jnp.asarray(mask))


def standardize(values):
    values = np.asarray(values, float)
    return (values - values.mean()) / (values.std() + 1e-6)


def by_loops(turn, mask, reward, done):
    """Advantages [T, B] of each group's texts, one after the other."""
    result = np.zeros(mask.shape)
    for group in range(GROUPS):
        columns = range(group * ANSWERS, (group + 1) * ANSWERS)
        own, outcome, last = {}, {}, {}
        for b in columns:
            end = int(np.argmax(done[:, b]))
            outcome[b], last[b] = reward[end, b], turn[end, b]
            for t in range(end):
                if mask[t, b]:
                    own[b, turn[t, b]] = own.get((b, turn[t, b]), 0.0) + reward[t, b]
            own.setdefault((b, turn[end, b]), 0.0)
        totals = [outcome[b] + sum(v for (c, _), v in own.items() if c == b) for b in columns]
        outcomes = dict(zip(columns, standardize([outcome[b] for b in columns]), strict=True))
        whole = dict(zip(columns, standardize(totals), strict=True))
        for k in {k for _, k in own}:
            taken = [b for b in columns if (b, k) in own]
            relative = dict(zip(taken, standardize([own[b, k] for b in taken]), strict=True))
            for b in taken:
                if k < last[b]:
                    value = outcomes[b] + WEIGHT * relative[b]
                else:
                    value = whole[b] if k == 0 else outcomes[b]
                result[mask[:, b] & (turn[:, b] == k), b] = value
    return result


@pytest.mark.parametrize("seed", range(6))
def test_advantages_are_those_of_loops_over_texts(seed):
    data = texts(seed)
    ours = turn_advantages(split_turns(batch_of(*data)), ANSWERS, WEIGHT)
    np.testing.assert_allclose(ours, by_loops(*data), rtol=1e-3, atol=1e-4)
    assert not np.asarray(ours)[~data[1]].any() and np.asarray(ours).any()


def test_rewards_are_split_by_turns():
    turn, mask, reward, done = texts(0)
    found = split_turns(batch_of(turn, mask, reward, done))
    np.testing.assert_allclose(found.outcome + found.reward.sum(0), reward.sum(0), rtol=1e-6)
    np.testing.assert_array_equal(found.outcome, (reward * done).sum(0))
    np.testing.assert_array_equal(found.last, (turn * done).sum(0))
    assert set(np.asarray(found.last).tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(found.taken.sum(0), found.last + 1)
    np.testing.assert_array_equal(found.turn, np.where(mask, turn, -1))


def authors(turn, mask, reward, done):
    """Advantages of two turns as in the authors' code: both parts before the tool's output, the
    outcome's after it; without a call, that of the sum."""
    result = np.zeros(mask.shape)
    called = (turn * done).sum(0) > 0
    for group in range(GROUPS):
        columns = np.arange(group * ANSWERS, (group + 1) * ANSWERS)
        outcome = (reward * done).sum(0)[columns]
        tool = reward.sum(0)[columns] - outcome
        parts = standardize(tool), standardize(outcome), standardize(tool + outcome)
        for i, b in enumerate(columns):
            before = parts[1][i] + WEIGHT * parts[0][i]
            first = before if called[b] else parts[2][i]
            result[:, b] = mask[:, b] * np.where(turn[:, b] == 0, first, parts[1][i])
    return result


def test_two_turns_are_those_of_the_authors():
    data = texts(2, longest=2)
    ours = turn_advantages(split_turns(batch_of(*data)), ANSWERS, WEIGHT)
    np.testing.assert_allclose(ours, authors(*data), rtol=1e-3, atol=1e-4)


def test_with_a_single_turn_it_is_grpo():
    data = texts(3, one_turn=True)
    ours = turn_advantages(split_turns(batch_of(*data)), ANSWERS, WEIGHT)
    returns = jnp.float32(data[2].sum(0)).reshape(GROUPS, ANSWERS)
    grpo = np.asarray(losses.group_relative(returns)).reshape(-1)
    np.testing.assert_allclose(ours, np.where(data[1], grpo, 0), rtol=1e-4, atol=1e-6)


def test_the_loss_of_a_token_is_grpos():
    rng = np.random.default_rng(0)
    now, old, reference, advantage, entropy = rng.normal(-1, 0.3, (5, 3, 4)).astype(np.float32)
    policy = type("Policy", (), {"log_prob": lambda self, a: now, "entropy": lambda self: entropy})
    part = lambda timestep, memory, method: (policy(), now, ())
    hyper = {"clip": 0.2, "kl.weight": 0.3, "entropy_weight": 0.1}
    initial = type("Network", (), {"initial": lambda self, n: ()})
    net = stub(actor_critic=part, network=lambda name: initial(), hyper=hyper)
    step = TimeStep(*np.zeros((5, 3, 4)))
    x = Sample(step, advantage, jnp.asarray(old), jnp.asarray(reference), jnp.asarray(advantage))
    ratio, gap = np.exp(now - old), reference - now
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    expected = -surrogate + 0.3 * (np.exp(gap) - gap - 1) - 0.1 * entropy
    np.testing.assert_allclose(token_loss(net, x).value, expected, rtol=1e-4, atol=1e-5)


def test_a_text_must_say_its_turns():
    env = envs.make("text_maze")
    mute = dataclasses.replace(env, reset=lambda *x: without_tokens(*env.reset(*x)))
    config = replace(mt_grpo.Config(), {"recurrent": 8, "transformer": 0})
    with pytest.raises(UserError, match="mt_grpo needs the turns of texts"):
        mt_grpo(mute, config)


def without_tokens(state, timestep):
    return state, dataclasses.replace(timestep, tokens=None)
