"""Sums that agents discuss: readers, order and scores against plain Python."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from tests.envs.language.play import follow_expert, until_end

A, R = 2, 2
ENV = envs.make("discussed_sums", agents=A, rounds=R, shown=2)
WORDS = ENV.vocabulary
RESET, STEP = jax.jit(ENV.reset), jax.jit(ENV.step)


def play(utterances, question="3+4", seed=0):
    """Play a text with these utterances; what each reader reads and writes, by whom, and the last
    time step."""
    state, t = RESET(jax.random.key(seed), ENV.params)
    tokens = jnp.array([WORDS.index(x) for x in question], jnp.int32)
    memory = dataclasses.replace(
        state.memory, question=tokens, shown=jnp.array([[0, 1], [1, 0]], jnp.int32)
    )
    state = dataclasses.replace(state, memory=memory, text=state.text.at[1:4].set(tokens))
    left = [WORDS.index(x) for said in utterances for x in said]
    seen, writers = [WORDS[int(t.observation)]], [int(t.tokens["agent"])]
    for _ in range(ENV.max_steps):
        reader = int(t.tokens["reader"])
        action = left.pop(0) if bool(t.tokens["decision"]) else 0
        state, t = STEP(jax.random.key(0), state, action, ENV.params)
        seen[reader] += WORDS[int(t.observation)]
        if bool(t.done):
            break
        if int(t.tokens["reader"]) > reader:
            seen.append("")
            writers.append(int(t.tokens["agent"]))
    assert bool(t.done) and not left
    return seen, writers, state, t


def test_what_each_reader_sees():
    first = ["<2>.", "<1>.", "<2>.", "<4>.", "<3>.", "<1>."]
    second = ["<0>.", "2.", "<+>.", "<2>.", "<0>.", "<2><"]
    seen, writers, state, t = play([*first, *second])
    assert seen[:6] == [
        *("@3+4:....<2>.", "@3+4:....<1>."),
        *("!3+4=2:<2>.", "!3+4=1:<4>."),
        *("#3+4=22:<3>.", "#3+4=14:<1>."),
    ]
    assert seen[6:] == [
        *("@3+4:1422<0>.", "@3+4:14222."),  # discussions 1 and 0 of the last round
        *("!3+4=0:<+>.", "!3+4=.:<2>."),
        *("#3+4=0.:<0>.", "#3+4=.2:<2><"),
    ]
    assert t.privileged["judged"].tolist() == [[3, 1], [0, 2]]
    assert float(t.reward) == 0 and float(t.metrics["first"]) == 0.5
    found = {name: float(t.metrics[name]) for name in ("score", "scored", "agrees")}
    assert found == {"score": 1.5, "scored": 0.75, "agrees": 0.5}
    assert writers == state.memory.agents.tolist()
    assert [sorted(writers[i : i + A]) for i in range(0, 12, A)] == [[0, 1]] * 6
    assert writers[:2] == writers[6:8] == [0, 1]


def test_the_reward_is_of_the_last_round():
    wrong, right = ["<1>.", "<1>."], ["<2>.", "<2>."]
    said = ["<1>."] * 4
    t = play([*wrong, *said, *right, *said])[-1]
    assert float(t.reward) == 1 and float(t.metrics["first"]) == 0
    assert float(t.metrics["agrees"]) == 0.5


def test_evaluators_and_scorers_are_drawn():
    state, _ = jax.jit(jax.vmap(ENV.reset, in_axes=(0, None)))(
        jax.random.split(jax.random.key(1), 200), ENV.params
    )
    agents = np.asarray(state.memory.agents).reshape(200, R, 3, A)
    assert (np.sort(agents, -1) == [0, 1]).all() and (agents[:, :, 0] == [0, 1]).all()
    for stage in (1, 2):
        share = (agents[:, :, stage, 0] == 0).mean(0)
        assert (share > 0.35).all() and (share < 0.65).all()


def test_the_expert_slips_as_often_as_it_is_told_to():
    _, t = follow_expert(ENV, 300)
    ends = np.asarray(t.done) & np.asarray(until_end(t))
    at_end = lambda x: (np.asarray(x) * ends).sum(1)
    assert (ends.sum(1) == 1).all() and (at_end(t.metrics["agrees"]) == 1).all()
    for share in (at_end(t.reward), at_end(t.metrics["first"])):
        assert share.mean() == pytest.approx(0.7, abs=0.06)


@pytest.mark.parametrize("settings", [{"agents": 9}, {"shown": 3, "agents": 2}, {"base": 3}])
def test_sizes_are_checked(settings):
    with pytest.raises(UserError):
        envs.make("discussed_sums", **settings)
