"""MAE: rewards, roles and pools against loops over texts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import mae as module
from jaxrl.algorithms.multi_agent.mae import Config, Ring, add, draw, mae, pools, role_rewards
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy
from jaxrl.envs.language.judged_sums import PROPOSAL, SCORING, SOLUTION
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel

ENV = envs.make("judged_sums")
SIZES = {"texts": 16, "samples": 3, "size": 400, "seeds": 8, "recurrent": 8, "transformer": 1}
CONFIG = replace(Config(), SIZES)
BLANK = len(ENV.vocabulary) - 1


def test_rewards_of_roles():
    quality, score, form = (jnp.array([x]) for x in ([0.75] * 3, [0.25] * 3, [0.5] * 3))
    posed = jnp.ones((1, 3), bool)
    found = lambda q=quality, p=posed: np.asarray(role_rewards(Config(), q, score, form, p))[0]
    np.testing.assert_allclose(found(), [(0.75 + 0.75 + 0.5) / 3, 0.375, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found(quality - 0.1)[0], (0.65 + 0.5) / 3, rtol=1e-6)
    assert found(p=~posed)[0] == 0 and found(p=~posed)[1] == 0.375


def test_rings_against_lists():
    rng = np.random.default_rng(0)
    ring, kept = Ring(jnp.full((7, 2), -1), jnp.int32(0)), []
    for _ in range(6):
        rows, keep = rng.integers(0, 100, (5, 2)), rng.random(5) < 0.5
        ring = add(ring, jnp.asarray(rows), jnp.asarray(keep))
        kept += rows[keep].tolist()
        there = np.asarray(ring.rows)[: min(len(kept), 7)].tolist()
        assert sorted(there) == sorted(kept[-7:])
        if kept:
            drawn = np.asarray(draw(ring, random.key(1), 200)).tolist()
            assert sorted(map(tuple, there)) == sorted(set(map(tuple, drawn)))
    assert len(kept) > 7


def noisy(rate=0.2):
    """Return the expert's policy, of whose tokens some are replaced."""
    env = expert_channel(ENV)
    policy = add_noise(ENV, expert_policy(env), rate)

    def act(state, timestep, memory, key, greedy):
        action, memory, extras = policy.act(state, timestep, memory, key, greedy)
        return action, memory, {**extras, "log_prob": jnp.zeros(action.shape)}

    return Policy(act, policy.memory, policy.state)


@functools.cache
def collect():
    """Return the source's state and the batch after one round and after two, which keep all."""
    source, policy = CONFIG.groups.source(expert_channel(ENV)), noisy()

    def play(state, key):
        state, batch, _ = source.collect(state, policy, key)
        score = jnp.ones_like(batch.transitions.reward)
        return source.feedback(state, batch, {"score": score}), batch

    @jax.jit
    def two_rounds(key):
        first, batch = play(source.init(key, {}, policy), key)
        return (first, batch), play(first, jax.random.fold_in(key, 1))

    return two_rounds(random.key(0))


def plain(transitions):
    """Return transitions as NumPy arrays, without the keys of tasks."""
    task = dataclasses.replace(transitions.task, key=0)
    return jax.tree.map(np.asarray, dataclasses.replace(transitions, task=task))


def last_lines(batch):
    """Return what texts ended with, [B, Q + 1]."""
    t = plain(batch.transitions)
    end = t.done.argmax(0)
    judged = t.next_timestep.privileged["judged"]
    rows = np.arange(len(end))
    return np.concatenate([judged["question"][end, rows], judged["answer"][end, rows][:, None]], 1)


def test_texts_begin_with_earlier_questions_and_answers():
    state, batch = collect()[0]
    task, rows = plain(batch.transitions).task, last_lines(batch)
    kind = task.kind[0]
    assert kind.reshape(16, 3, 3).tolist() == [[[k] * 3 for k in (0, 1, 2)]] * 16
    assert (task.missing[0] == (kind == SCORING)).all()  # there is no answer yet
    tasks = state.tasks
    asked, pairs = np.asarray(tasks.questions.rows), np.asarray(tasks.answers.rows)
    assert int(tasks.questions.count) == 8 + 48 and int(tasks.answers.count) == 48
    assert (asked[:8] == -1).all()  # seeds
    assert asked[8:56].tolist() == rows[kind == PROPOSAL][:, :-1].tolist()
    assert pairs[:48].tolist() == rows[kind == SOLUTION].tolist()
    later = pools(ENV, CONFIG.groups).sample(tasks, random.key(3), 600)
    kind, known = np.asarray(later.kind), {tuple(x) for x in asked[:56].tolist()}
    question = [tuple(x) for x in np.asarray(later.question).tolist()]
    assert not np.asarray(later.missing).any()
    shown = [q for q, k in zip(question, kind, strict=True) if k == PROPOSAL]
    blank = [q == (BLANK,) * 3 for q in shown]
    assert 0.35 < np.mean(blank) < 0.65
    assert {q for q, none in zip(shown, blank, strict=True) if not none} <= known
    assert {q for q, k in zip(question, kind, strict=True) if k == SOLUTION} <= known
    both = zip(question, np.asarray(later.answer).tolist(), kind, strict=True)
    scored = {(*q, a) for q, a, k in both if k == SCORING}
    assert scored <= {tuple(x) for x in pairs[:48].tolist()} and len(scored) > 10


@pytest.fixture
def second_round(monkeypatch):
    """Judge the texts of a second round."""
    _, batch = collect()[1]
    seen = {}

    def keep(env, config, judge, losses, learned):
        seen.update(judge=judge, learned=learned)
        return real(env, config, judge, losses, learned=learned)

    real = module.on_answers
    monkeypatch.setattr(module, "on_answers", keep)
    module.recipe(ENV, CONFIG)
    decisions = batch.mask & batch.transitions.timestep.tokens["decision"]
    batch = dataclasses.replace(batch, mask=decisions)
    return batch, seen["judge"](type("Net", (), {"hyper": CONFIG}), batch)


def test_each_role_learns_its_first_utterance(second_round):
    batch, found = second_round
    t = plain(batch.transitions)
    end, column = t.done.argmax(0), np.arange(144)
    at_end = {name: x[end, column] for name, x in t.next_timestep.metrics.items()}
    mean = {name: x.reshape(48, 3).mean(1) for name, x in at_end.items()}
    paid = np.zeros(144)
    for text in range(48):
        q, s, f, posed = (mean[name][text] for name in ("quality", "score", "form", "posed"))
        role = text % 3
        if role == 0:
            value = (q + (1 - s if q >= 0.7 else 0) + f) / 3 if posed else 0
        else:
            value = (s + f) / 2 if role == 1 else f
        paid[3 * text : 3 * text + 3] = value
    advantage, target = np.asarray(found["advantage"]), np.asarray(found["target"]) > 0
    turn, kind = t.timestep.tokens["turn"], t.task.kind[0]
    leads = column % 3 == 0
    expected = np.asarray(batch.mask) & (turn == 0) & leads
    np.testing.assert_array_equal(target, expected)
    for role in (PROPOSAL, SOLUTION, SCORING):
        mine = expected & (kind == role)
        tokens = np.broadcast_to(paid, mine.shape)[mine]
        standard = (tokens - tokens.mean()) / (tokens.std() + 1e-8)
        assert tokens.std() > 0.01
        np.testing.assert_allclose(advantage[mine], standard, atol=2e-4)


def test_samples_share_the_first_utterance_alone(second_round):
    batch, _ = second_round
    t = plain(batch.transitions)
    action = t.action.reshape(len(t.action), 48, 3)
    first = (t.timestep.tokens["turn"] == 0).reshape(action.shape)
    same = (action == action[..., :1]).all(-1)
    assert same[first.all(-1)].all() and not same[~first.any(-1)].all()


def test_environments_without_kinds_are_refused():
    with pytest.raises(UserError, match="restart"):
        mae(envs.make("lookup"), CONFIG)
    with pytest.raises(UserError, match="'posed_sums' does not report"):
        mae(envs.make("posed_sums"), CONFIG)
    other = dataclasses.replace(ENV, params=envs.make("posed_sums").params)
    with pytest.raises(UserError, match="parameter 'kind'"):
        module.start_params(other)
