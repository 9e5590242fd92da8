"""A stack machine and its programs, against a machine in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.shorter_programs import (
    COSTS,
    TESTS,
    VOCABULARY,
    run_program,
    wasteful_programs,
)
from jaxrl.exact.answers import enumerate_answers

LENGTH = 3
ENV = envs.make("shorter_programs", length=LENGTH)


def run(text, x):
    """The value of a program for the input x; None for an invalid one."""
    stack = []
    for token in text.split(".")[0]:
        if token in "x1":
            stack.append(x if token == "x" else 1)
        elif not stack or (token in "+*" and len(stack) < 2):
            return None
        elif token == "d":
            stack.append(stack[-1])
        else:
            a, b = stack.pop(), stack.pop()
            stack.append(a + b if token == "+" else a * b)
    return stack[0] if len(stack) == 1 else None


def spell(tokens):
    return "".join(VOCABULARY[i] for i in tokens)


def cost(text):
    return sum(3 if token == "*" else 1 for token in text.split(".")[0])


def test_the_machine_runs_random_programs():
    rng = np.random.default_rng(0)
    programs = rng.choice(6, p=[0.25, 0.15, 0.2, 0.2, 0.15, 0.05], size=(6000, 7))
    values, valid = jax.jit(jax.vmap(run_program, (0, None)))(programs, jnp.asarray(TESTS))
    expected = [[run(spell(p), int(x)) for x in TESTS] for p in programs]
    np.testing.assert_array_equal(valid, [e[0] is not None for e in expected])
    assert valid.sum() > 100
    for i in np.flatnonzero(valid):
        np.testing.assert_array_equal(values[i], expected[i])


def test_prompts_are_programs_that_can_be_cheaper():
    programs = wasteful_programs(5)
    assert len(programs.given) > 50
    for given, best in zip(programs.given, programs.best, strict=True):
        given, best = spell(given), spell(best)
        assert "." not in given and cost(best) < cost(given)
        assert all(run(given, int(x)) == run(best, int(x)) is not None for x in TESTS)
    assert "xx*1*" in map(spell, programs.given) and "xd+." not in map(spell, programs.given)


def test_rewards_of_all_answers():
    found = enumerate_answers(ENV)
    t = found.transitions
    read = np.asarray(t.timestep.observation).reshape(len(t.action), *found.reward.shape)
    ended = np.asarray(t.done) & (np.cumsum(t.done, 0) == 1)
    at_end = lambda name: (
        np.where(ended, t.next_timestep.metrics[name], 0).sum(0).reshape(found.reward.shape)
    )
    success, optimized, speedup = map(at_end, ("success", "optimized", "speedup"))
    for p in range(len(found.reward)):
        given = spell(read[:LENGTH, p, 0])
        for a, tokens in enumerate(np.asarray(found.text)):
            answer = spell(tokens)
            values = [run(answer, int(x)) for x in TESTS]
            passed = np.mean([v is not None and v == run(given, int(x))
                              for v, x in zip(values, TESTS, strict=True)])  # fmt: skip
            right, faster = passed == 1, passed == 1 and cost(answer) < cost(given)
            gain = 1 + (cost(given) - cost(answer)) / cost(given)
            expected = max(gain, 0.5) if right else passed / 2
            np.testing.assert_allclose(found.reward[p, a], expected, rtol=1e-5)
            assert (success[p, a], optimized[p, a]) == (right, faster)
            expected = cost(given) / cost(answer) if faster else 1
            np.testing.assert_allclose(speedup[p, a], expected, rtol=1e-5)
    assert (success.max(-1) == 1).all() and (optimized.max(-1) == 1).all()


def test_sizes_are_checked():
    with pytest.raises(UserError, match="length is 4; it must be 3, 5 or 7"):
        envs.make("shorter_programs", length=4)
    assert len(COSTS) == len(VOCABULARY) == ENV.action_space.n
