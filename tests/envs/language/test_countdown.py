"""Countdown: texts graded by a plain parser, problems by brute force, and texts of the expert."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.countdown import all_problems
from tests.envs.language.play import follow_expert, player, reset, until_end

ENV = envs.make("countdown")
SIZE, PROMPT = 10, 6
APPLY = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def at_end(t):
    """Return the metrics of episodes [N], and the number of their steps."""
    done = np.asarray(t.done) & np.asarray(until_end(t))
    assert (done.sum(1) == 1).all()
    return {name: np.asarray(x)[done] for name, x in t.metrics.items()}, done.argmax(1) + 1


def parse(words):
    """Return success, partial, attempts and verified of a text, by a walk through its words."""
    numbers, target = [int(x) for x in words[:3]], int(words[4])
    rest, attempts = words[6:], []
    while rest and (not attempts or attempts[-1][2] == "<"):
        words, rest = rest[:SIZE], rest[SIZE:]
        left, value, right, fine = list(numbers), int(words[0]), 0, True
        fine = value in left
        if fine:
            left.remove(value)
        for sign, number, _, result in (words[i : i + 4] for i in range(1, SIZE - 1, 4)):
            fine = fine and int(number) in left and APPLY[sign](value, int(number)) == int(result)
            if fine:
                left.remove(int(number))
            right, value = right + fine, int(result)
        attempts.append((right, value, words[-1]))
    right, value, mark = attempts[-1]
    asked = [("." if value == target else "<") == mark for _, value, mark in attempts]
    success = right == 2 and value == target and mark == "."
    return success, right / 2, len(attempts), np.mean(asked)


def test_texts_are_graded_as_by_a_plain_parser():
    """Texts of the expert, and most of them with a word replaced."""
    rng, number = np.random.default_rng(0), 300
    found = []
    for failures in (0, 2):
        env = envs.make("countdown", failures=failures)
        state, _ = reset(env, number, failures)
        actions = np.full((number, env.max_steps), -1)
        for i in range(100, number):  # one word of most texts
            place = rng.integers(0, SIZE * (failures + 1))
            kind = place % SIZE
            low, high = (0, 21) if kind % 2 == 0 else (21, 24)
            low, high = (24, 25) if kind in (3, 7) else (low, high)
            if kind == 9 and failures == 0:
                continue  # another attempt would follow
            word = rng.choice([25, 27]) if kind == 9 else rng.integers(low, high)
            actions[i, PROMPT - 1 + place] = word
        t = player(env)(state, jnp.asarray(actions))
        metrics, steps = at_end(t)
        said = np.concatenate([np.asarray(state.text[:, :1]), np.asarray(t.observation)], 1)
        for i in range(number):
            words = [env.vocabulary[x].strip() for x in said[i, : steps[i] + 1]]
            plain = parse(words)
            names = ("success", "partial", "attempts", "verified")
            np.testing.assert_allclose([metrics[n][i] for n in names], plain, rtol=1e-5)
            found.append(plain)
    found = np.array(found)
    assert all(len(np.unique(column)) > 1 for column in found.T)  # every case occurs
    assert ((found[:, 0] == 0) & (found[:, 1] == 1)).any()


def test_problems_are_those_that_a_chain_solves():
    problems = all_problems(3, 20)
    known = set(zip(map(tuple, problems.numbers.tolist()), problems.target.tolist(), strict=True))
    for numbers in ((2, 3, 5), (1, 1, 9), (7, 8, 9)):
        reached = set()
        for (a, b, c), f, g in itertools.product(
            itertools.permutations(numbers), APPLY.values(), APPLY.values()
        ):
            if 0 <= f(a, b) <= 20 and 1 <= g(f(a, b), c) <= 20:
                reached.add(g(f(a, b), c))
        assert reached == {t for n, t in known if n == numbers}
    # The expert can fail at every problem, with every size.
    for count in (2, 3, 4):
        found = all_problems(count, 20)
        assert ((found.result >= 0) & (found.result != found.target[:, None])).any(1).all()


@pytest.mark.parametrize(("failures", "right"), [(0, 1.0), (1, 1.0), (2, 0.0)])
def test_the_expert_shows_failures_and_is_right_or_not(failures, right):
    env = envs.make("countdown", failures=failures, right=right)
    metrics, steps = at_end(follow_expert(env, 256)[1])
    assert (metrics["success"] == right).all() and (metrics["partial"] == 1).all()
    assert (metrics["attempts"] == failures + 1).all()
    assert (steps == PROMPT - 1 + SIZE * (failures + 1)).all()
    np.testing.assert_allclose(metrics["verified"], 1.0 if right else 2 / 3, rtol=1e-6)


def test_held_out_problems_are_others():
    def prompts(held_out):
        env = envs.make("countdown", numbers=2, held_out=held_out)
        state, _ = reset(env, 2048)
        return {tuple(x) for x in np.asarray(state.text[:, :5]).tolist()}

    train, held_out = prompts(False), prompts(True)
    assert not train & held_out and len(train) + len(held_out) == len(all_problems(2, 20).target)


def test_an_answer_that_is_taken_back_to_the_end_is_cut_off():
    env = envs.make("countdown", attempts=1)
    state, _ = reset(env, 8)
    actions = np.full((8, env.max_steps), -1)
    actions[:, -1] = 25
    metrics, _ = at_end(player(env)(state, jnp.asarray(actions)))
    assert not metrics["success"].any() and (metrics["partial"] == 1).all()


def test_a_number_cannot_be_used_twice():
    """A right calculation with a number that is given once: `2 * 2 = 4 * 2 = 8`."""
    state, _ = reset(ENV, 256)
    numbers = np.asarray(state.text[:, :3])
    once = (numbers[:, 0] == 2) & (numbers[:, 1] > 2)
    assert once.any()
    actions = np.full((256, ENV.max_steps), -1)
    actions[:, PROMPT - 1 : PROMPT - 1 + SIZE] = [2, 23, 2, 24, 4, 23, 2, 24, 8, 27]
    metrics, _ = at_end(player(ENV)(state, jnp.asarray(actions)))
    assert not metrics["partial"][once].any() and not metrics["success"][once].any()


def test_sizes_are_checked():
    with pytest.raises(UserError, match="numbers is 5"):
        envs.make("countdown", numbers=5)
