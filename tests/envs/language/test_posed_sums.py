"""Sums that are posed and solved, against all short lines read by Python."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.posed_sums import SIGNS, read_line
from tests.envs.language.play import follow_expert, player, reset

BASE = 10
VOCABULARY = (*"0123456789", *SIGNS)
PLUS, MINUS, EQUALS, POSE, SOLVE, END = range(BASE, BASE + 6)


def text_of(line):
    return "".join(VOCABULARY[int(token)] for token in line)


def by_text(digit, text):
    """Return whether a line poses a sum, its answer, its value and the place of `=`."""
    found = re.fullmatch(r"((?:[+-]\d)+)=(\d)\.*", text)
    if not found:
        return False, 0, 0, 0
    return True, int(found[2]), eval(f"{digit}{found[1]}") % 10, len(found[1])


def test_every_line_of_four_tokens_is_read_as_python_reads_it():
    some = [0, 7, 10, 11, 12, 13, END]  # digits, signs, `=`, `?` and END
    lines = np.array(list(itertools.product(some, repeat=4)), np.int32)
    found = jax.jit(jax.vmap(lambda line: read_line(jnp.int32(3), line, BASE)))(jnp.asarray(lines))
    expected = [by_text(3, text_of(line)) for line in lines]
    valid = np.asarray(found.valid)
    np.testing.assert_array_equal(valid, [x[0] for x in expected])
    assert valid.sum() == 2 * 2 * 2  # a sign, a digit and an answer
    for name, i in {"answer": 1, "value": 2, "equals": 3}.items():
        read = np.asarray(getattr(found, name))[valid]
        np.testing.assert_array_equal(read, [x[i] for x in expected if x[0]])


def test_longer_lines_are_read_alike():
    rng = np.random.default_rng(0)
    lines = np.full((4000, 8), END)
    for line in lines:
        k = rng.integers(1, 4)
        line[0 : 2 * k : 2], line[1 : 2 * k : 2] = rng.integers(10, 12, k), rng.integers(0, 10, k)
        line[2 * k], line[2 * k + 1] = 12, rng.integers(0, 10)
        if rng.random() < 0.5:
            line[rng.integers(0, 8)] = rng.integers(0, len(VOCABULARY))
    found = jax.jit(jax.vmap(functools.partial(read_line, base=BASE)))(
        jnp.full(4000, 5), jnp.asarray(lines)
    )
    for i, line in enumerate(lines):
        valid, answer, value, equals = by_text(5, text_of(line))
        assert bool(found.valid[i]) == valid
        if valid:
            read = (found.answer[i], found.value[i], found.equals[i])
            assert [int(x) for x in read] == [answer, value, equals]
    assert 0.4 < np.asarray(found.valid).mean() < 0.9


def play(line, answer):
    """Play lines [N, 4] to the first term 3, and the solver's answers [N]; time steps [N, T]."""
    env = envs.make("posed_sums", terms=2, base=BASE)
    state, _ = reset(env, len(line))
    memory = dataclasses.replace(state.memory, digit=jnp.full(len(line), 3))
    state = dataclasses.replace(state, memory=memory, text=state.text.at[:, 1].set(3))
    wait = lambda n: np.zeros((len(line), n), int)
    words = [wait(1), line, wait(5), answer[:, None]]
    return player(env)(state, jnp.asarray(np.concatenate(words, 1)))


def test_rewards_of_right_and_wrong_answers_and_keys():
    cases = [(key, said) for key in (7, 8) for said in (7, 8, END)]  # of 3 + 4
    line = np.array([[10, 4, 12, key] for key, _ in cases])
    t = play(line, np.array([said for _, said in cases]))
    assert np.asarray(t.done)[:, -1].all() and not np.asarray(t.done)[:, :-1].any()
    agrees, right, keyed = ([f(*x) for x in cases] for f in (
        lambda key, said: key == said, lambda key, said: said == 7, lambda key, said: key == 7
    ))  # fmt: skip
    np.testing.assert_array_equal(np.asarray(t.reward)[:, -1], agrees)
    for name, expected in {"success": right, "keyed": keyed, "terms": [2] * 6}.items():
        np.testing.assert_array_equal(np.asarray(t.metrics[name])[:, -1], expected)
    np.testing.assert_array_equal(np.asarray(t.reward)[:, :-1], 0)


def test_the_solver_sees_the_sum_and_not_the_answer():
    t = play(np.array([[11, 9, 12, 4]]), np.array([4]))
    restart = np.flatnonzero(np.asarray(t.tokens["restart"])[0])
    assert restart.tolist() == [5]
    seen = np.asarray(t.observation)[0, 5:-1]
    assert seen.tolist() == [SOLVE, 3, 11, 9, 12]


def test_a_text_that_poses_no_sum_ends():
    t = play(np.array([[10, 4, 4, 4], [12, 1, END, END]]), np.array([4, 4]))
    done = np.asarray(t.done)
    assert done[0, 4] and not done[0, :4].any()
    assert done[1, 3] and not done[1, :3].any()  # it says END
    assert not np.asarray(t.metrics["terms"])[[0, 1], [4, 3]].any()
    assert not np.asarray(t.reward)[[0, 1], [4, 3]].any()


@pytest.mark.parametrize("given", [0, 2, 3])
def test_the_expert_is_right_and_given_sums_have_so_many_terms(given):
    env = envs.make("posed_sums")
    env = dataclasses.replace(env, params=dataclasses.replace(env.params, given=given))
    _, t = follow_expert(env, 256)
    first = np.cumsum(np.asarray(t.done), 1) == 1
    ends = first & np.asarray(t.done)
    assert ends.sum() == 256 and np.asarray(t.reward)[ends].all()
    terms = np.asarray(t.metrics["terms"])[ends]
    assert set(terms.tolist()) == ({given} if given else {2, 3})
    assert (
        np.asarray(t.metrics["success"])[ends].all() and np.asarray(t.metrics["keyed"])[ends].all()
    )


@pytest.mark.parametrize("settings", [{"terms": 1}, {"terms": 9}, {"base": 1}, {"base": 11}])
def test_other_sums_are_refused(settings):
    with pytest.raises(UserError, match="2 to 8"):
        envs.make("posed_sums", **settings)
