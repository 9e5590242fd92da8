"""A letter to be guessed: the plan of questions, against a search over sets of letters."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.guess_letter import plan_questions
from tests.envs.language.play import follow_expert, player, reset, until_end


@functools.cache
def fewest_misses(left, turns, letters):
    """Return the least expected number of utterances that miss, by trying all of them."""
    if not turns:
        return 0.0
    best = np.inf
    for guesses, d in itertools.product((False, True), range(letters)):
        true = frozenset(x for x in left if (x == d if guesses else x < d))
        parts = {True: true, False: left - true}
        cost = 0.0
        for answer, part in parts.items():
            if part and not (guesses and answer):
                cost += len(part) / len(left) * (1 + fewest_misses(part, turns - 1, letters))
        best = min(best, cost)
    return best


def test_the_plan_is_the_best_of_all_utterances():
    missed, _ = plan_questions(6, 5)
    for n, t in itertools.product(range(1, 7), range(6)):
        assert abs(missed[n, t] - fewest_misses(frozenset(range(n)), t, n)) < 1e-12


@pytest.mark.parametrize(("letters", "turns"), [(10, 8), (5, 2)])
def test_the_expert_reaches_what_the_plan_promises(letters, turns):
    env = envs.make("guess_letter", letters=letters, turns=turns)
    state, t = follow_expert(env, 4000)
    running = until_end(t)
    returns = np.asarray(jnp.where(running, t.reward, 0).sum(1))
    hidden = np.asarray(state.memory.hidden)
    each = [returns[hidden == x] for x in range(letters)]
    assert all(len(x) and (x == x[0]).all() for x in each)  # nothing else is random
    expected = -plan_questions(letters, turns)[0][letters, turns] / turns
    np.testing.assert_allclose(np.mean([x[0] for x in each]), expected, rtol=1e-5)
    success = jnp.where(running, t.metrics["success"], 0).sum(1)
    assert (turns == 8) == bool((success == 1).all())


def test_replies_are_true_and_utterances_well_formed():
    env = envs.make("guess_letter", letters=4, turns=8)
    state, first = reset(env, 512)
    rng, length = np.random.default_rng(0), env.max_steps or 0
    signs, letter = rng.integers(4, 6, (512, length)), rng.integers(0, 4, (512, length))
    place = np.arange(length) % 3
    actions = np.where(place == 0, signs, letter)
    t = player(env)(state, jnp.asarray(actions))
    running, seen = np.asarray(until_end(t)), np.asarray(t.observation)
    hidden = np.asarray(state.memory.hidden)[:, None]
    for k in range(7):
        sign, said = actions[:, 3 * k, None], actions[:, 3 * k + 1, None]
        true = np.where(sign == 5, said == hidden, hidden < said)[:, 0]
        ended = np.asarray(t.done)[:, 3 * k + 1]
        heard = running[:, 3 * k + 1]
        np.testing.assert_array_equal(ended[heard], (true & (sign[:, 0] == 5))[heard])
        on = heard & ~ended
        np.testing.assert_array_equal(seen[on, 3 * k + 2], np.where(true, 6, 7)[on])
        reward = np.asarray(t.reward)[:, 3 * k + 1]
        np.testing.assert_allclose(reward[heard], np.where(ended, 0, -1 / 8)[heard])
    legal = np.concatenate([np.asarray(first.legal_actions)[:, None], t.legal_actions], 1)
    decides = np.concatenate(
        [np.asarray(first.tokens["decision"])[:, None], t.tokens["decision"]], 1
    )
    assert (legal[:, 0] == np.isin(np.arange(10), [4, 5])).all()
    assert (legal[:, 1] == (np.arange(10) < 4)).all()
    assert decides[:, :2].all() and not decides[running[:, 1] & ~np.asarray(t.done)[:, 1], 2].any()


def test_letters_are_hidden_by_their_chances():
    env = envs.make("guess_letter", letters=3, chances=np.array([0.5, 0.5, 0.0], np.float32))
    state, _ = reset(env, 999)
    counts = np.bincount(np.asarray(state.memory.hidden), minlength=3)
    assert counts[2] == 0 and min(counts[:2]) > 400


def test_sizes_are_checked():
    with pytest.raises(UserError, match="letters is 1"):
        envs.make("guess_letter", letters=1)
