"""Theorems of string rewriting, against Python's own replacement of strings."""

import dataclasses
import functools
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.posed_theorems import UNPROVABLE, lemma_of, make_system
from tests.envs.language.play import follow_expert, player, reset, until_end

SIZES = {"letters": 2, "length": 3, "lemmas": 3, "steps": 3, "count": 20}
ENV = envs.make("posed_theorems", **SIZES)
WORDS = ENV.vocabulary
SYSTEM = make_system(2, 3, 3, 3, 0)


def tokens_of(words):
    return [WORDS.index(word) for word in words]


@functools.cache
def lemmas():
    """Return the sides of each step by its name."""
    text = lambda word: "".join("ab"[i] for i in word)
    found = {}
    for name, (left, right) in zip("ABC", SYSTEM.lemmas, strict=True):
        found[name], found[name + "'"] = (text(left), text(right)), (text(right), text(left))
    return found


def apply(word, steps):
    """Return the word after steps, by Python; None if one does not fit."""
    for step in steps:
        old, new = lemmas()[step]
        if old not in word or len(word.replace(old, new, 1)) > 3:
            return None
        word = word.replace(old, new, 1)
    return word


ALL = ["".join(w) for n in (1, 2, 3) for w in itertools.product("ab", repeat=n)]


def test_shortest_proofs_against_all_sequences_of_steps():
    assert len(set(SYSTEM.lemmas)) == 3 and all(
        x != y and len(x) == 2 and 1 <= len(y) <= 2 for x, y in SYSTEM.lemmas
    )
    expected = np.full((14, 14), UNPROVABLE)
    for count in (3, 2, 1, 0):
        for steps in itertools.product(lemmas(), repeat=count):
            for i, word in enumerate(ALL):
                goal = apply(word, steps)
                if goal is not None:
                    expected[i, ALL.index(goal)] = count
    np.testing.assert_array_equal(SYSTEM.length, expected)
    assert {0, 1, 2, 3, UNPROVABLE} == set(expected.ravel().tolist())


def play_texts(env, statement, proof):
    """Conjecture statements [N] and write proofs [N] of them, lists of tokens' texts; return the
    time steps [N, T] and which of them belong to the episodes."""
    state, _ = reset(env, len(statement))
    rows = []
    for i in range(len(statement)):
        prompt = int(state.known[i])
        said = tokens_of([*statement[i], "."])
        shown = tokens_of(["@", *statement[i], ":"])
        row = [0] * (prompt - 1) + said + [0] * len(shown) + tokens_of([*proof[i], "."])
        rows.append(row + [0] * (env.max_steps - len(row)))
    t = player(env)(state, jnp.asarray(rows))
    return t, np.asarray(until_end(t))


def at_end(x, inside):
    """Return an array [N, T] at the ends of episodes."""
    return np.asarray(x)[np.arange(len(x)), inside.sum(1) - 1]


def test_the_checker_agrees_with_python():
    rng = np.random.default_rng(0)
    statement, proof, right = [], [], []
    names = list(lemmas())
    while len(statement) < 300:
        word = str(rng.choice(ALL))
        steps = [str(x) for x in rng.choice(names, rng.integers(0, 4))]
        reached = apply(word, steps)
        goal = reached if reached and rng.random() < 0.7 else str(rng.choice(ALL))
        if reached is None and rng.random() < 0.7:
            continue
        statement.append([*word, ">", *goal])
        proof.append(steps)
        right.append(reached == goal)
    t, inside = play_texts(ENV, statement, proof)
    np.testing.assert_array_equal(at_end(t.reward, inside), right)
    np.testing.assert_array_equal(at_end(t.metrics["success"], inside), right)
    assert 0.3 < np.mean(right) < 0.9
    assert not np.asarray(t.reward)[~inside[:, 1:].any(1)].any()
    asked = np.asarray(t.observation)[:, 0]  # after `?` comes the lemma
    used = [asked[i] in tokens_of([s[0] for s in proof[i]]) for i in range(300)]
    invokes = np.array(right) & np.array(used)
    np.testing.assert_array_equal(at_end(t.metrics["invokes"], inside), invokes)
    assert 0.03 < invokes.mean() < 0.8
    length = [SYSTEM.length[ALL.index(a), ALL.index(b)] for a, b in map(sides, statement)]
    provable = np.array(length) <= 3
    np.testing.assert_array_equal(at_end(t.metrics["provable"], inside), provable)
    given = {"".join(WORDS[x] for x in row) for row in ENV.params.statements.tokens}
    listed = ["".join(x).ljust(8, ".") in given for x in statement]
    np.testing.assert_array_equal(at_end(t.metrics["listed"], inside), listed)
    assert 0.01 < np.mean(listed) < 0.9


def sides(statement):
    return "".join(statement).split(">")


def test_a_proof_that_does_not_end_or_has_other_tokens_is_wrong():
    step = next(s for s in lemmas() if apply("aa", [s]))
    goal = apply("aa", [step])
    statement = [[*"aa>", *goal]] * 3
    t, inside = play_texts(ENV, statement, [[step], [step, "?"], ["a", step]])
    np.testing.assert_array_equal(at_end(t.reward, inside), [1, 0, 0])
    # Three steps and a fourth in the place of the end: cut off.
    t, inside = play_texts(ENV, [[*"ab>ab"]], [["?"] * 4])
    assert at_end(t.reward, inside)[0] == 0


def test_which_lines_are_statements():
    some = ["a", "b", ">", "A", "?"]
    lines = [list(x) for n in range(5) for x in itertools.product(some, repeat=n)]
    t, inside = play_texts(ENV, lines, [[] for _ in lines])
    valid = [bool(re.fullmatch("[ab]{1,3}>[ab]{1,3}", "".join(x))) for x in lines]
    np.testing.assert_array_equal(at_end(t.metrics["valid"], inside), valid)
    assert sum(valid) == 4 + 2 * 2 * 4
    # A text without a statement ends where it was posed.
    first = np.asarray(t.tokens["turn"])[np.arange(len(lines)), inside.sum(1) - 1]
    np.testing.assert_array_equal(first[~np.array(valid)], 0)


@pytest.mark.parametrize("given", [False, True])
def test_what_both_readers_see_and_that_the_expert_is_right(given):
    params = dataclasses.replace(ENV.params, given=given, depth=2)
    env = dataclasses.replace(ENV, params=params)
    state, t = follow_expert(env, 128)
    inside = np.asarray(until_end(t))
    np.testing.assert_array_equal(at_end(t.reward, inside), 1)
    for i in range(128):
        begin = WORDS[int(state.text[i, 0])]
        read = begin + "".join(WORDS[x] for x in np.asarray(t.observation)[i][inside[i]])
        pattern = r"!([ab>]+)\.@\1:[A-C']*\."
        if not given:
            pattern = r"\?([A-C])([ab]+)>([ab]+):([A-C']+)([ab>]+)\.@\5:[A-C']*\."
        found = re.fullmatch(pattern, read)
        assert found, read
        if not given:
            lemma, start, goal, proof, _ = found.groups()
            steps = re.findall("[A-C]'?", proof)
            assert apply(start, steps) == goal and lemma in proof and len(steps) <= 2
    assert at_end(t.metrics["listed"], inside).all()
    restart = np.asarray(t.tokens["restart"]) & inside
    assert (restart.sum(1) == 1).all()
    if given:  # no other statement can be written
        turn = np.asarray(t.tokens["turn"])
        assert (np.asarray(t.legal_actions).sum(-1)[inside & (turn == 0)] == 1).all()


def test_a_seed_with_a_proof_of_ones_own():
    proof = np.array([5, 2, 6], np.int32)  # C', C, end
    params = dataclasses.replace(ENV.params, statement=7, lemma=3, proof=proof)
    _, t = follow_expert(dataclasses.replace(ENV, params=params), 4)
    read = ["".join(WORDS[x] for x in row) for row in np.asarray(t.observation)]
    line = "".join(WORDS[x] for x in ENV.params.statements.tokens[7]).rstrip(".")
    assert all(text.startswith(f"-{line}:C'C") for text in read)


def test_lemmas_of_tokens():
    found = {WORDS[i]: int(x) for i, x in enumerate(lemma_of(WORDS)) if x >= 0}
    assert found == {"A": 0, "B": 1, "C": 2, "A'": 0, "B'": 1, "C'": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"letters": 1}, "2 to 10"),
        ({"length": 1}, "2 letters or more"),
        ({"letters": 10, "length": 3}, "400 words"),
        ({"lemmas": 11}, "1 to 10 lemmas"),
        ({**SIZES, "count": 1000}, "statements with a proof"),
    ],
)
def test_other_systems_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        envs.make("posed_theorems", **settings)
