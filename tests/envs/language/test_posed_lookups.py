"""Questions about a hidden graph: rules, evidence and answers against plain Python."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from tests.envs.language.play import follow_expert, reset, until_end

N, H, K, D = 4, 2, 2, 1
SIZES = {"entities": N, "relations": 1, "hops": H, "searches": K, "noise": D}
TO, BACK, POSE, ASK, SOLVE, READ, ANSWER, ERROR, END = range(N, N + 9)
CIRCLE = [1, 2, 3, 0]  # a -> b -> c -> d -> a


def texts(t, i):
    """Return the tokens that episode `i` observes, as a string for each reader; the end of an
    utterance is counted to the next reader, who writes after it."""
    inside, readers = np.asarray(until_end(t))[i], {}
    words = envs.make("posed_lookups", **SIZES).vocabulary
    for token, reader, ok in zip(t.observation[i], t.tokens["reader"][i], inside, strict=True):
        if ok:
            readers[int(reader)] = readers.get(int(reader), "") + words[int(token)]
    return readers


def play(words, verified=True):
    """Play utterances of the roles, lists of tokens, about the answer a in the circle; the time
    steps [N, T]."""
    env, answer = envs.make("posed_lookups", **SIZES), 0
    params = dataclasses.replace(env.params, verified=verified)
    state, _ = reset(env, len(words))
    successor = jnp.array([CIRCLE, np.argsort(CIRCLE)], jnp.int32)
    memory = dataclasses.replace(
        state.memory,
        successor=jnp.broadcast_to(successor, (len(words), 2, N)),
        answer=jnp.full(len(words), answer),
        noise=jnp.zeros((len(words), D, 2), jnp.int32),  # the document "baF'", of F from a
        order=jnp.broadcast_to(jnp.arange(K + D), (len(words), K + D)),
    )
    state = dataclasses.replace(state, memory=memory, text=state.text.at[:, 1].set(answer))
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))
    left = [list(itertools.chain(*each)) for each in words]
    found, done = [], np.zeros(len(words), bool)
    decision = np.zeros(len(words), bool)  # the prompt comes first
    for _ in range(env.max_steps):
        action = np.full(len(words), END)
        for i, due in enumerate(decision):
            if due and left[i] and not done[i]:
                action[i] = left[i].pop(0)
        state, t = step(jax.random.key(0), state, jnp.asarray(action), params)
        decision, done = np.asarray(t.tokens["decision"]), done | np.asarray(t.done)
        found.append(t)
    return jax.tree.map(lambda *x: jnp.stack(x, 1), *found)


def at_end(t, name):
    end = np.asarray(t.done) & np.asarray(until_end(t))
    assert (end.sum(1) == 1).all()
    value = t.reward if name == "reward" else t.metrics[name]
    return (np.asarray(value) * end).sum(1)


# To the answer a: what leads there is d, and before it c.
SEARCHED = [[BACK, 0], [BACK, 3]]
QUESTION = [ASK, 2, TO, TO, END]


def test_what_each_reader_sees_and_what_it_is_paid():
    right = [*SEARCHED, QUESTION, [3, 0, END], [TO, 2], [TO, 3], [ANSWER, 0]]
    wrong = [*right[:-1], [ANSWER, 3]]
    direct = [*right[:4], [ANSWER, 0]]
    t = play([right, wrong, direct])
    read = texts(t, 0)
    assert read[0] == "aF'adF'dc?cFF"  # but for the first token, which reset shows
    assert read[1] == ".@cFF:dFacFdbF'ada"
    assert read[2] == ".@cFF:FcdFda=a"
    assert at_end(t, "reward").tolist() == [1, 0, 1]
    for name, value in {"success": [1, 0, 1], "valid": [1] * 3, "true": [1] * 3}.items():
        assert at_end(t, name).tolist() == value
    assert at_end(t, "hops").tolist() == [2] * 3
    assert not np.asarray(t.reward)[~np.asarray(t.done)].any()


def test_questions_that_break_the_rules_end_the_text():
    once, none = [[BACK, 0], [END]], [[END], [END]]
    twice, nonsense = [[BACK, 0], [BACK, 0]], [[BACK, 0], [POSE, 0]]
    broken = [
        *[[*searched, QUESTION] for searched in (once, none, twice, nonsense)],
        [*SEARCHED, [ASK, 0, TO, TO, END]],  # it begins with its answer
        [*SEARCHED, [ASK, 2, END]],
        [*SEARCHED, [ASK, 2, TO, 3, END]],
        [*SEARCHED, [ASK, TO, TO, END]],
        [*SEARCHED, [ASK, 2, TO, TO, TO]],
        [*SEARCHED, [SOLVE, 2, TO, TO, END]],
        [*SEARCHED, [END]],
    ]
    t = play(broken)
    assert not np.asarray(t.tokens["reader"])[np.asarray(until_end(t))].any()
    for name in ("valid", "verified", "true", "hops", "reward"):
        assert not at_end(t, name).any()
    assert texts(t, 3)[0].startswith("aF'ad!a#?")
    assert texts(t, 1)[0] == "a..?cFF."


@pytest.mark.parametrize("verified", [True, False])
def test_the_verifier_decides_unless_it_is_off(verified):
    false = [ASK, 2, TO, END]  # leads to d
    cases = [
        (QUESTION, [3, 0, END], True),
        (QUESTION, [0, END], True),
        (QUESTION, [0, 3, END], False),
        (QUESTION, [END], False),
        (QUESTION, [0, 0, 0], False),  # without an end
        (false, [3, END], False),
        (false, [0, END], True),
    ]
    words = [[*SEARCHED, question, said, [ANSWER, 0]] for question, said, _ in cases]
    found = play(words, verified)
    passes = [yes for _, _, yes in cases]
    assert at_end(found, "verified").tolist() == passes
    reached = (np.asarray(found.tokens["reader"]) * np.asarray(until_end(found))).max(1) == 2
    assert reached.tolist() == (passes if verified else [True] * len(cases))
    assert at_end(found, "reward").tolist() == (passes if verified else [True] * len(cases))
    assert at_end(found, "true").tolist() == [question == QUESTION for question, _, _ in cases]


@pytest.mark.parametrize("given", [0, 1, 2])
def test_the_expert_is_right_and_given_questions_have_so_many_relations(given):
    env = envs.make("posed_lookups")
    env = dataclasses.replace(env, params=dataclasses.replace(env.params, given=given))
    state, t = follow_expert(env, 256)
    for name in ("reward", "valid", "verified", "true"):
        assert at_end(t, name).all()
    assert set(at_end(t, "hops").tolist()) == ({given} if given else {1, 2})
    successor = np.asarray(state.memory.successor)
    numbers = np.arange(successor.shape[-1])
    for forth, back in ((0, 2), (1, 3)):
        found = np.take_along_axis(successor[:, back], successor[:, forth], -1)
        np.testing.assert_array_equal(found, np.broadcast_to(numbers, found.shape))
        reached = np.zeros(256, int)
        for step in range(1, 7):
            reached = successor[:, forth][np.arange(256), reached]
            assert (reached == 0).all() == (step == 6)  # one circle through all


def test_only_given_questions_can_be_posed_where_they_are_given():
    env = envs.make("posed_lookups", **SIZES)
    env = dataclasses.replace(env, params=dataclasses.replace(env.params, given=2))
    state, _ = reset(env, 32)
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))
    legal = jax.jit(jax.vmap(env.expert, in_axes=(0, None)))
    for _ in range(14):
        said = legal(state, env.params)
        state, t = step(jax.random.key(0), state, said, env.params)
        reader, due = np.asarray(t.tokens["reader"]), np.asarray(t.tokens["decision"])
        number = np.asarray(t.legal_actions).sum(-1)
        assert (number[due & (reader == 0)] == 1).all()
        assert (number[due & (reader > 0)] == len(env.vocabulary)).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"entities": 2},
        {"relations": 0},
        {"noise": -1},
        {"hops": 3},
        {"searches": 6},
        {"searches": 1, "hops": 1},
        {"relations": 5, "searches": 5},
    ],
)
def test_other_graphs_are_refused(settings):
    with pytest.raises(UserError, match=r"must be 3 to|can have 1 to|more than 10000"):
        envs.make("posed_lookups", **settings)
