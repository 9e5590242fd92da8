"""Targeted acquisition: what is flagged beside NumPy, and rounds with an expert who is known."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import targeted_acquisition as t
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.games import deal_or_no_deal as d
from jaxrl.networks.heads import Categorical

TINY = {n: value for n, value in t.TINY.items() if not n.startswith("env")}
GAME = envs.make(t.TINY["env"], **t.TINY["env_params"])
TURNS, LARGEST = d.sizes(GAME)
SAY = len(d.divisions(LARGEST))  # the first act that is no proposal


def scores_and_mask(seed, steps=6, dialogues=40):
    rng = np.random.default_rng(seed)
    counted = rng.random((steps, dialogues)) < 0.4
    counted[:, 3] = counted[:, 8] = False
    return rng.normal(size=counted.shape).astype(np.float32), counted


@pytest.mark.parametrize("reduction", ["minimum", "mean"])
def test_the_most_novel_dialogues_are_flagged_after_their_most_novel_acts(reduction):
    scores, counted = scores_and_mask(0)
    column, step, there = map(np.asarray, t.flag(scores, counted, 10, reduction))
    reduce = np.min if reduction == "minimum" else np.mean
    spoken = [i for i in range(40) if counted[:, i].any()]
    score = {i: reduce(scores[counted[:, i], i]) for i in spoken}
    assert list(column) == sorted(spoken, key=score.__getitem__)[:10] and there.all()
    for i, asked in zip(column, step, strict=True):
        places = np.flatnonzero(counted[:, i])
        assert asked - 1 == places[scores[places, i].argmin()]
    found = t.dialogue_scores(scores, counted, reduction)[0]
    np.testing.assert_allclose(found[np.asarray(spoken)], list(score.values()), rtol=1e-5)


def test_minimum_and_mean_flag_other_dialogues_and_silent_ones_come_last():
    scores, counted = scores_and_mask(1)
    chosen = [set(map(int, t.flag(scores, counted, 10, r)[0])) for r in ("minimum", "mean")]
    assert chosen[0] != chosen[1]
    column, _, there = t.flag(scores, counted, 40, "minimum")
    silent = int((~counted.any(0)).sum())
    assert silent >= 2 and not there[-silent:].any() and there[:-silent].all()
    assert not counted[:, np.asarray(column[-silent:])].any()


def test_scores_are_those_of_the_models_probabilities():
    rng = np.random.default_rng(2)
    logits, action = rng.normal(size=(5, 3, 7)), rng.integers(0, 7, (5, 3))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    own = np.take_along_axis(p, action[..., None], -1)[..., 0]
    expected = {
        "likelihood": np.log(own),
        "entropy": (p * np.log(p)).sum(-1),
        "margin": 1 - (p.max(-1) - own),
    }
    model = Categorical(jnp.asarray(logits, jnp.float32))
    for name, value in expected.items():
        np.testing.assert_allclose(t.act_scores(model, action, name), value, rtol=2e-4)


def test_random_dialogues_have_equal_chances_whatever_their_lengths():
    counted = np.zeros((6, 4), bool)
    counted[0, 0] = counted[:, 1] = counted[:2, 2] = True  # 1, 6, 2 and no acts

    def draw(key):
        return t.flag(t.random_scores(key, counted), counted, 1, "minimum")[:2]

    drawn = jax.jit(jax.vmap(draw))(jax.random.split(random.key(0), 3000))
    column, step = (np.asarray(x)[:, 0] for x in drawn)
    share = np.bincount(column, minlength=4) / 3000
    np.testing.assert_allclose(share, [1 / 3, 1 / 3, 1 / 3, 0], atol=0.04)
    place = np.bincount(step[column == 1] - 1, minlength=6)
    np.testing.assert_allclose(place / place.sum(), np.full(6, 1 / 6), atol=0.05)


def batch_of(role, mask, talking, reward):
    """Return a batch of dialogues from arrays [T, B], and rewards [T, B, 2]."""
    blank = jnp.zeros(mask.shape)
    seen = TimeStep(
        observation=blank, reward=reward, terminated=~mask, truncated=~mask, first=mask, role=role,
        privileged={"talking": talking},
    )  # fmt: skip
    return Batch(
        Transition(seen, blank, seen, task=(), extras={}), env_steps=jnp.float32(0), mask=mask
    )


def test_acts_that_are_answered_and_the_utilities_are_the_agents():
    role = jnp.asarray([[0, 0], [1, 1], [0, 0], [1, 1], [0, 0]])
    mask = jnp.asarray([[1, 1], [1, 1], [1, 1], [1, 1], [1, 0]], bool)
    talking = jnp.asarray([[1, 1], [1, 1], [0, 0], [0, 0], [0, 0]], bool)
    reward = jnp.zeros((5, 2, 2)).at[4].set(9.0).at[4, 0].set(jnp.asarray([0.3, 0.6]))
    reward = reward.at[3, 1].set(jnp.asarray([0.2, 0.7]))
    batch = batch_of(role, mask, talking, reward)
    # The agent is player 0 in the first dialogue, and player 1 in the second.
    expected = [[1, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    np.testing.assert_array_equal(t.is_answered(batch), np.asarray(expected, bool))
    np.testing.assert_allclose(t.outcomes(batch)["utility"], [0.3, 0.7])
    mine = t.is_agents(role) & mask
    np.testing.assert_array_equal(t.later_acts(mine)[:, 0], [2, 2, 1, 1, 0])
    np.testing.assert_array_equal(t.later_acts(mine)[:, 1], [2, 1, 1, 0, 0])


def refuse(state, params):
    raise AssertionError("nobody is to be asked")


def end_at_once(state, params):
    """Answer in a way in which no player of the dataset does: by ending what has begun."""
    return jnp.where(state.game.closed == d.NOTHING, SAY + d.END, 0).astype(jnp.int32)


@functools.cache
def rounds(asks: bool):
    """Return the states before each of three rounds and after the last, and their metrics."""
    env = dataclasses.replace(GAME, expert=end_at_once if asks else refuse)
    changes = {"annotations": 3 if asks else 0, "num_envs": 8, "agent_learning_rate": 0.01}
    algorithm = t.targeted_acquisition(env, TINY | changes)
    states = [jax.jit(algorithm.init)(random.key(0), algorithm.hyper)]
    step, metrics = jax.jit(algorithm.step), []
    for i in range(3):
        state, found = step(states[-1], random.key(i))
        states.append(state)
        metrics.append({n: float(x.value()) for n, x in found.items()})
    return [state.own for state in states], metrics


def test_every_query_is_one_answer_of_the_expert_in_a_context_of_the_partner():
    states, metrics = rounds(asks=True)
    filled = [int(state.examples.filled) for state in states]
    # Three in each of two rounds, then none.
    assert np.diff(filled).tolist() == [3, 3, 0]
    assert [x["queries"] for x in metrics] == [3, 3, 0]
    first, last = (jax.device_get(states[i].examples) for i in (0, 3))
    for name in ("observation", "legal", "action"):
        old, new = getattr(first, name), getattr(last, name)
        np.testing.assert_array_equal(new[: filled[0]], old[: filled[0]])
        assert not new[filled[2] :][old[filled[2] :] == 0].any()
    table = d.divisions(LARGEST)
    for row in range(filled[0], filled[2]):
        seen = d.read_observation(jnp.asarray(last.observation[row]), LARGEST, TURNS)
        talking = bool(seen.talking)
        assert last.action[row] == (SAY + d.END if talking else 0)
        assert seen.turn > 0  # an answer to something
        assert last.legal[row, last.action[row]]
        possible = (table <= np.asarray(seen.counts)).all(-1)
        assert not last.legal[row, :SAY][~possible].any()
    assert metrics[0]["flagged_score"] < 0 and np.isnan(metrics[2]["flagged_score"])


def same(x, y):
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (x, y)), strict=True))


def test_retraining_is_of_the_partner_alone_and_without_annotations_there_is_none():
    asked, alone = rounds(asks=True)[0], rounds(asks=False)[0]
    # The first round's agent has learned before anybody is asked.
    np.testing.assert_allclose(
        *(jax.tree.leaves(x[1].agent.params)[0] for x in (asked, alone)), rtol=1e-5, atol=1e-6
    )
    for states in (asked, alone):
        assert not same(states[0].agent.params, states[1].agent.params)
        assert same(states[0].first, states[3].first)
    assert not same(asked[0].partner.params, asked[1].partner.params)
    assert not same(asked[1].partner.params, asked[2].partner.params)
    assert same(asked[2].partner, asked[3].partner)  # two rounds of asking
    assert same(alone[0].partner, alone[3].partner)


def test_other_games_and_more_annotations_than_dialogues_are_refused():
    with pytest.raises(UserError, match="cannot act in 'kuhn_poker'"):
        t.targeted_acquisition(envs.make("kuhn_poker"))
    with pytest.raises(UserError, match="must not exceed num_envs"):
        t.targeted_acquisition(GAME, TINY | {"annotations": 5})
