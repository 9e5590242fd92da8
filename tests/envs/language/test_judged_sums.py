"""Sums that are posed, judged and solved: readers, brackets and verdicts against plain Python."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.judged_sums import (
    PROPOSAL,
    RATING,
    SCORING,
    SOLUTION,
    read_enclosed,
    read_sum,
)
from tests.envs.language.play import follow_expert, until_end

BASE, LONGEST = 5, 3
ENV = envs.make("judged_sums")
WORDS = ENV.vocabulary
END = len(WORDS) - 1
RESET, STEP = jax.jit(ENV.reset), jax.jit(jax.vmap(ENV.step, in_axes=(None, 0, 0, None)))


def encode(text):
    return [WORDS.index(x) for x in text]


def pad_text(text, size):
    return encode(text.ljust(size, "."))


def play(utterances, kind, question="4-1", answer="3"):
    """Play texts with these utterances of their roles; what each reader reads and writes, and the
    metrics at the end."""
    asked = np.array(pad_text(question, LONGEST), np.int32)
    params = dataclasses.replace(ENV.params, kind=kind, question=asked, answer=encode(answer)[0])
    repeat = lambda x: jnp.stack([x] * len(utterances))
    state, first = jax.tree.map(repeat, RESET(jax.random.key(0), params))
    left = [encode("".join(each)) for each in utterances]
    found, t = [], first
    over = np.zeros(len(utterances), bool)
    seen, metrics = [{} for _ in utterances], [{} for _ in utterances]
    for i, token in enumerate(np.asarray(first.observation)):
        seen[i][0] = WORDS[token]
    for _ in range(ENV.max_steps):
        decision = np.asarray(t.tokens["decision"])
        action = np.full(len(left), END)
        for i in range(len(left)):
            if decision[i] and left[i] and not over[i]:
                action[i] = left[i].pop(0)
        before = np.asarray(t.tokens["reader"])
        state, t = STEP(jax.random.key(0), state, jnp.asarray(action), params)
        for i in np.flatnonzero(~over):
            reader = int(before[i])
            seen[i][reader] = seen[i].get(reader, "") + WORDS[int(t.observation[i])]
            if bool(t.done[i]):
                metrics[i] = {name: float(x[i]) for name, x in t.metrics.items()}
                metrics[i]["reward"] = float(t.reward[i])
                judged = t.privileged["judged"]
                tokens = [*judged["question"][i], judged["answer"][i]]
                metrics[i]["judged"] = "".join(WORDS[int(x)] for x in tokens)
        over |= np.asarray(t.done)
        found.append(t)
    assert over.all()
    return [[each[k] for k in sorted(each)] for each in seen], metrics


def test_what_each_role_reads():
    seen, (m,) = play([["<2+4>.", "<4>.", "<1>.", "<3>."]], PROPOSAL)
    assert seen == [["?4-1=.:<2+4>.", "!2+4=.:<4>.", "@2+4=.:<1>.", "#2+4=1:<3>."]]
    assert m["quality"] == 1 and m["score"] == 0.75 and m["form"] == 1 and m["posed"] == 1
    assert m["valid"] == m["success"] == m["reward"] == 1 and m["agrees"] == 0
    assert m["judged"] == "2+41"
    assert play([["<3>.", "<4>."]], SOLUTION)[0] == [["@4-1=.:<3>.", "#4-1=3:<4>."]]
    assert play([["<0>."]], SCORING, answer="2")[0] == [["#4-1=2:<0>."]]
    assert play([["<0>."]], RATING)[0] == [["!4-1=.:<0>."]]


def test_a_proposer_who_encloses_nothing_ends_the_text():
    for said in ("2+4.", "<2+4.", "<>.", "<2+4+1"):  # the last part is too long
        seen, (m,) = play([[said]], PROPOSAL)
        assert len(seen[0]) == 1 and m["posed"] == m["valid"] == m["quality"] == m["reward"] == 0
    (m,) = play([["<4>=<2>"[:6], "<4>.", "<1>.", "<3>."]], PROPOSAL)[1]
    assert m["form"] == 0 and m["judged"] == "4..1"  # a bracket is missing
    (m,) = play([["<4><2>", "<4>.", "<1>.", "<3>."]], PROPOSAL)[1]
    assert m["form"] == 0.5 and m["judged"] == "2..1"  # the last one, which is no sum
    assert m["valid"] == m["success"] == 0


def test_verdicts():
    say = lambda kind, said, **given: play([[said]], kind, **given)[1][0]
    assert say(SCORING, "<4>.")["agrees"] == say(SCORING, "<4>.")["reward"] == 1
    assert say(SCORING, "<3>.")["score"] == 0.75 and say(SCORING, "<3>.")["success"] == 0
    assert say(SCORING, "<0>.", answer="2")["success"] == 1
    assert say(SCORING, "<0>.", question="4+-")["success"] == 1
    assert say(SCORING, "<1><4>")["score"] == 0.25  # the first one counts
    for unclear in ("4.", "<+>.", "<=>..."):
        assert say(SCORING, unclear)["score"] == 0.5
    assert say(RATING, "<4>.")["quality"] == say(RATING, "<4>.")["success"] == 1
    assert say(RATING, "<0>.", question="--1")["success"] == 1
    assert say(RATING, "<4>.", question="4")["success"] == 0  # one digit is no sum
    (m,) = play([["<2>.", "<0>."]], SOLUTION)[1]
    assert m["success"] == m["reward"] == 0 and m["agrees"] == 1


def test_brackets_against_regular_expressions():
    rng, size = np.random.default_rng(0), 6
    read = jax.jit(jax.vmap(lambda x: read_enclosed(x, LONGEST, BASE)))
    letters = encode("01+<<>>.")
    tokens = rng.choice(letters, (2000, size))
    found = read(jnp.asarray(tokens))
    counts = []
    for i, row in enumerate(tokens):
        text = "".join(WORDS[x] for x in row)
        parts = re.findall(r"<([^<>]{1,3})>", text)
        counts.append(len(parts))
        even = text.count("<") == text.count(">") == len(parts)
        form = (1 if len(parts) == 1 else 0.5) if parts and even else 0
        assert int(found.count[i]) == len(parts) and float(found.form[i]) == form
        for part, tokens_found in ((0, found.first), (-1, found.last)):
            expected = parts[part] if parts else ""
            assert "".join(WORDS[int(x)] for x in tokens_found[i]) == expected.ljust(3, ".")
    assert {0, 1, 2} <= set(counts)


def test_sums_against_plain_python():
    rng = np.random.default_rng(0)
    read = jax.jit(jax.vmap(lambda x: read_sum(x, BASE)))
    texts = ["".join(rng.choice(list("0134+-."), 5)) for _ in range(3000)]
    texts += ["1+2..", "4-3+4", "4-3-4", "1..+2", "....."]
    value, valid = read(jnp.asarray([encode(x) for x in texts]))
    for text, v, ok in zip(texts, value, valid, strict=True):
        body = text.rstrip(".")
        right = re.fullmatch(r"\d([+-]\d)+", body) is not None
        assert bool(ok) == right
        if right:
            assert int(v) == eval(body) % BASE
    assert 20 < int(valid.sum()) < len(texts)


def test_the_expert_is_right_and_kinds_are_drawn():
    state, t = follow_expert(ENV, 300)
    ends = np.asarray(t.done) & np.asarray(until_end(t))
    at_end = lambda x: (np.asarray(x) * ends).sum(1)
    assert (at_end(t.reward) == 1).all() and (at_end(t.metrics["agrees"]) == 1).all()
    assert (at_end(t.metrics["form"]) == 1).all()
    kind = np.asarray(state.memory.kind)
    assert (np.bincount(kind, minlength=4) > 50).all()
    question = np.asarray(state.memory.question)
    blank = question[:, 0] == END
    assert 0.3 < blank[kind == PROPOSAL].mean() < 0.7 and not blank[kind == SOLUTION].any()
    scores = at_end(t.metrics["score"])[kind == SCORING]
    assert 0.3 < scores.mean() < 0.7
    assert 0.4 < at_end(t.metrics["valid"])[kind == RATING].mean() < 0.9


@pytest.mark.parametrize("settings", [{"terms": 1}, {"base": 11}])
def test_sizes_are_checked(settings):
    with pytest.raises(UserError):
        envs.make("judged_sums", **settings)
