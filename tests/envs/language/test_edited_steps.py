"""Edited calculations, judged against Python's arithmetic."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.edited_steps import SIGNS
from tests.envs.language.play import follow_expert, player, reset, until_end

BASE = 5
WORDS = (*"01234", *SIGNS)
CODE = {word: i for i, word in enumerate(WORDS)}
ENV, TEXTS = envs.make("edited_steps", steps=2, base=BASE), 80


def tokens(text):
    return [CODE[letter] for letter in text]


def play(edits, verdict, number, edited=True):
    """Play edits of a step of 3+4*2, whose steps are 3+4=2 and 2*2=4; the time steps [N, T]."""
    problem, steps = tokens("3+4*2"), [tokens("3+4=2"), tokens("2*2=4")]
    state, _ = reset(ENV, TEXTS)
    many = lambda x: jnp.broadcast_to(jnp.array(x, jnp.int32), (TEXTS, *np.shape(x)))
    memory = dataclasses.replace(
        state.memory,
        problem=many(problem),
        steps=many(steps),
        number=many(number),
        shown=many(steps[number]),
        edits=jnp.full(TEXTS, edited),
        draft=many([CODE["r"], *steps[number]]),
    )
    prompt = ["!", *"3+4*2:", *("3+4=2," if number else ""), "?", *("2*2=4" if number else "3+4=2")]
    text = tokens(prompt) + [0] * (state.text.shape[1] - len(prompt))
    known = many(len(prompt))
    state = dataclasses.replace(state, memory=memory, text=many(text), known=known, start=known)
    wait = [0] * (len(prompt) - 1)
    words = np.zeros((TEXTS, ENV.max_steps), int)
    for row, edit in zip(words, edits, strict=False):
        said = [*wait, *tokens(edit), *[0] * len(prompt), 0, CODE[verdict]]
        row[: len(said)] = said
    t = player(ENV)(state, jnp.array(words))
    return jax.tree.map(lambda x: x[: len(edits)], t)


def ends(t, name):
    end = np.asarray(t.done & until_end(t))
    assert (end.sum(1) == 1).all()
    value = {**t.metrics, **t.reward_components, "reward": t.reward}[name]
    return (np.asarray(value) * end).sum(1).tolist()


def test_every_edit_is_wrong_if_the_answer_is():
    """All steps of digits and operators, in the place of either step."""
    for number in (0, 1):
        edits = [f"r{a}{op}{b}={c}" for a, op, b, c in itertools.product("03", "+*", "24", "01234")]
        for verdict in "tf":
            t = play(edits, verdict, number)
            answers = [int(e[-1]) * 2 % BASE if number == 0 else int(e[-1]) for e in edits]
            wrong = [answer != 4 for answer in answers]
            assert ends(t, "wrong") == wrong
            detected = verdict == "f"
            critic = [(1 if detected else -1) if w else 0 for w in wrong]
            assert ends(t, "critic") == critic and ends(t, "reward") == critic
            assert ends(t, "editor") == [
                -c if w else -1 for c, w in zip(critic, wrong, strict=True)
            ]
            assert ends(t, "deceived") == [w and not detected for w in wrong]
            assert ends(t, "success") == [w and detected for w in wrong]


def test_what_is_no_step_or_names_no_kind_is_no_edit():
    broken = ["t2*2=3", "r2*2=*", "r222=3", "r2*2*3", "r+*2=3", "r2*2=.", "02*2=3"]
    t = play([*broken, "o2*2=3", "n2*2=3", "s2*2=3"], "f", 1)
    assert ends(t, "wrong") == [0] * len(broken) + [1] * 3
    assert ends(t, "editor") == [-1] * (len(broken) + 3)


def test_the_critic_sees_the_edited_step_alone():
    t = play(["o2+2=0"], "f", 1)
    restart = np.flatnonzero(np.asarray(t.tokens["restart"])[0])
    assert len(restart) == 1
    read = "".join(WORDS[i] for i in np.asarray(t.observation)[0, restart[0] : -2])
    assert read == "@3+4*2:3+4=2,?2+2=0"


def test_right_steps_are_passed_on():
    for verdict, right in {"t": 1, "f": 0}.items():
        t = play(["r2*2=4"], verdict, 1, edited=False)
        assert ends(t, "success") == [right] and ends(t, "critic") == [2 * right - 1]
        assert ends(t, "editor") == [0] and ends(t, "wrong") == [0]
        due = np.asarray(t.tokens["decision"] & (t.tokens["reader"] == 0))
        assert (np.asarray(t.legal_actions).sum(-1)[due] == 1).all()


def test_the_expert_makes_errors_of_all_kinds_and_finds_them():
    state, t = follow_expert(ENV, TEXTS)
    assert all(ends(t, "success")) and not any(ends(t, "deceived"))
    wrong = np.array(ends(t, "wrong"))
    assert wrong.mean() == pytest.approx(0.5, abs=0.2)
    np.testing.assert_array_equal(wrong, np.asarray(state.memory.edits))
    kinds = {WORDS[int(x)] for x in np.asarray(state.memory.draft)[wrong > 0, 0]}
    assert kinds == set("rons")


@pytest.mark.parametrize(("given", "edited"), [(True, 1.0), (False, 0.0)])
def test_parameters_choose_who_edits_and_how_often(given, edited):
    params = dataclasses.replace(ENV.params, given=given, edited=edited)
    keys = jax.random.split(jax.random.key(0), 8)
    memory = jax.jit(jax.vmap(ENV.reset, in_axes=(0, None)))(keys, params)[0].memory
    assert (np.asarray(memory.edits) == bool(edited)).all()
    assert (np.asarray(memory.given) == given).all()


@pytest.mark.parametrize("settings", [{"steps": 0}, {"base": 4}, {"thoughts": 9}])
def test_other_calculations_are_refused(settings):
    with pytest.raises(UserError, match="base of 3, 5 or 7"):
        envs.make("edited_steps", **settings)
