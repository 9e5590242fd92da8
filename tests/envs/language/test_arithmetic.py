"""Token environments against Python's own arithmetic."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.arithmetic import END, HINTED_VOCABULARY, VOCABULARY


def ids(texts, size):
    """Convert texts to token ids [N, size], filled up with END."""
    rows = [[VOCABULARY.index(c) for c in text] for text in texts]
    return np.array([row + [END] * (size - len(row)) for row in rows], np.int32)


@functools.cache
def writer(env):
    """Build a function that reads prompts [N, P] and writes answers [N, A]: (reward, done, ...) of
    each step [N, T]."""

    def write(prompt, answer):
        state, _ = env.reset(jax.random.key(0), env.params)
        state = dataclasses.replace(
            state, text=state.text.at[: len(prompt)].set(prompt), memory=prompt
        )
        actions = jnp.concatenate([jnp.full(len(prompt) - 1, 7, jnp.int32), answer])

        def step(state, action):
            expert = env.expert(state, env.params)
            state, timestep = env.step(jax.random.key(0), state, action, env.params)
            return state, (
                timestep.reward,
                timestep.terminated,
                timestep.observation,
                timestep.tokens["decision"],
                timestep.legal_actions,
                expert,
            )

        return jax.lax.scan(step, state, actions)[1]

    return jax.jit(jax.vmap(write))


def outcome(env, prompts, answers, sizes):
    """Return the reward of each answer in its episode, and the number of steps after which it
    ends."""
    reward, done, *_ = writer(env)(ids(prompts, sizes[0]), ids(answers, sizes[1]))
    last = np.argmax(done, 1)
    assert done.any(1).all()
    paid = np.where(np.arange(done.shape[1]) <= last[:, None], reward, 0)
    assert (paid.sum(1) == paid[np.arange(len(last)), last]).all()  # nothing before the end
    return paid.sum(1), last + 1


def test_every_sum_is_verified_against_python():
    env, sizes = envs.make("addition"), (6, 4)
    pairs = [(a, b) for a in range(100) for b in range(100)]
    prompts = [f"{a:02}+{b:02}=" for a, b in pairs]
    right = [f"{a + b}." for a, b in pairs]
    reward, steps = outcome(env, prompts, right, sizes)
    assert (reward == 1).all()
    np.testing.assert_array_equal(steps, [5 + len(text) for text in right])
    rng = np.random.default_rng(0)
    for wrong in (
        [f"{(a + b + rng.integers(1, 199)) % 199}." for a, b in pairs],
        [f"0{a + b}."[:4] for a, b in pairs],  # a leading zero, or cut off
        [f"{a + b}+."[:4] for a, b in pairs],
        ["." for _ in pairs],
        [f"{a + b}{'9' * 4}"[:4] for a, b in pairs],  # never ends
    ):
        assert (outcome(env, prompts, wrong, sizes)[0] == 0).all()


def test_prompts_are_forced_and_the_expert_is_right():
    env = envs.make("addition")
    prompts = ["07+05=", "99+99=", "00+00="]
    answers = ["12.", "198.", "0."]
    _, _, observed, decision, legal, expert = writer(env)(ids(prompts, 6), ids(answers, 4))
    text = np.concatenate([ids(prompts, 6), ids(answers, 4)], 1)
    np.testing.assert_array_equal(observed, text[:, 1:])
    np.testing.assert_array_equal(expert, text[:, 1:])
    np.testing.assert_array_equal(decision[0], np.arange(1, 10) >= 5)
    forced = np.asarray(legal)[:, :4]
    np.testing.assert_array_equal(forced.sum(-1), 1)
    np.testing.assert_array_equal(forced.argmax(-1), text[:, 2:6])
    assert np.asarray(legal)[:, 4:].all()


def test_a_hint_is_the_beginning_of_the_answer():
    digits, hint = 2, 2
    names = "".join(HINTED_VOCABULARY)
    for hinted in (0.0, 0.5, 1.0):
        env = envs.make("hinted_addition", digits=digits, hint=hint, hinted=hinted)

        @jax.jit
        def solve(key, env=env):
            state, _ = env.reset(key, env.params)

            def step(state, _):
                state, timestep = env.step(key, state, env.expert(state, env.params), env.params)
                return state, timestep.reward

            state, reward = jax.lax.scan(step, state, None, env.max_steps)
            return state.text, reward

        text, reward = jax.vmap(solve)(jax.random.split(jax.random.key(0), 100))
        told = 0
        for row in np.asarray(text):
            written = "".join(names[i] for i in row)
            shown, total, answer = written[:2], written[2:8], written[8:]
            right = f"{int(total[:2]) + int(total[3:5])}."
            assert total[2] == "+" and total[5] == "=" and answer.startswith(right)
            assert shown in ("??", answer[:2])
            told += shown != "??"
        assert abs(told - 100 * hinted) < 20 * (hinted == 0.5) + 1
        assert (np.asarray(reward).max(1) == 1).all()


@pytest.mark.slow
def test_any_two_numbers_that_add_up_split_a_number():
    env, sizes = envs.make("splitting"), (3, 6)
    pairs = [(a, b) for a in range(100) for b in range(100)]
    answers = [f"{a:02}+{b:02}." for a, b in pairs]
    for number in (2, 19, 50, 99):
        reward, _ = outcome(env, [f"{number:02}="] * len(pairs), answers, sizes)
        np.testing.assert_array_equal(
            reward, [a > 0 and b > 0 and a + b == number for a, b in pairs]
        )
    halves = [f"{n // 2:02}+{n - n // 2:02}." for n in range(2, 100)]
    expert = writer(env)(ids([f"{n:02}=" for n in range(2, 100)], 3), ids(halves, 6))[-1]
    np.testing.assert_array_equal(expert[:, 2:], ids(halves, 6))
    for wrong in ("12-34.", "1+045.", "23+23+", "12+34"):
        wrong = wrong.replace("-", "=")
        assert outcome(env, ["46="], [wrong + "="[: len(wrong) < 6]], sizes)[0] == 0


def test_sizes_are_checked():
    with pytest.raises(UserError, match="digits is 0"):
        envs.make("addition", digits=0)
