"""Vision-Zero: which tokens learn in a phase, their advantages, and the order of phases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import vision_zero as module
from jaxrl.algorithms.multi_agent.vision_zero import (
    Config,
    begin_phases,
    begin_progress,
    next_phase,
    vision_zero,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.kit.state import State

ENV = envs.make("spy_game", values=2, attributes=3)
SIZES = {"prompts": 2, "proposals": 2, "answers": 3, "recurrent": 4, "transformer": 1}


def judge_of(monkeypatch, phase):
    """Return an update's batch as the judge saw it, what it said, and the state of the phases."""
    seen = []
    real = module.on_answers

    def spy_on(env, config, judge, *rest, **options):
        def spy(net, batch):
            found = judge(net, batch)
            jax.debug.callback(lambda *x: seen.append(x), batch, found, net.extra)
            return found

        return real(env, config, spy, *rest, **options)

    monkeypatch.setattr(module, "on_answers", spy_on)
    builder = dataclasses.replace(vision_zero, recipe=module.recipe)
    algorithm = builder(ENV, SIZES | {"phase": phase, "learning_rate": 0.01})
    state = algorithm.init(random.key(0), algorithm.hyper)
    jax.block_until_ready(jax.jit(algorithm.step)(state, random.key(1)))
    jax.effects_barrier()
    return jax.tree.map(np.asarray, seen[0])


def test_advantages_of_clues_and_votes_against_loops(monkeypatch):
    batch, judged, progress = judge_of(monkeypatch, "both")
    t, turn = batch.transitions, batch.transitions.timestep.tokens["turn"]
    size, signs = len(ENV.vocabulary), {"!": len(ENV.vocabulary) - 4}
    games = {}
    for b in range(12):
        end = int(np.flatnonzero(t.done[:, b])[0])
        begins = [i for i in range(end + 1) if t.timestep.tokens["restart"][i, b]]
        spy = [int(t.observation[i, b]) for i in begins].index(signs["!"])
        vote = int(t.action[end, b]) - 6
        assert 0 <= t.action[end, b] < size
        games.setdefault(b // 3, []).append((b, end, spy, vote))
    roles, advantages = [], {}
    for game, paths in games.items():
        spy = paths[0][2]
        assert all(path[2] == spy for path in paths)
        votes = np.array([sum(path[3] == i for path in paths) for i in range(3)], float)
        civilians = [i for i in range(3) if i != spy]
        mean = votes[civilians].mean()
        paid = {spy: -0.1 * (votes[spy] - mean)}
        for i in civilians:
            paid[i] = 0.1 * (votes[spy] - mean) / 2 - 0.1 * (votes[i] - mean)
        roles.append((paid[spy], np.mean([paid[i] for i in civilians])))
        advantages[game] = (spy, paid)
    baseline = 0.1 * np.mean(roles, 0)
    np.testing.assert_allclose(progress.baseline, baseline, atol=1e-6)
    for game, paths in games.items():
        spy, paid = advantages[game]
        reward = np.array(
            [1.0 if v == spy else -0.5 if v not in (0, 1, 2) else -1.0 for *_, v in paths]
        )
        relative = (reward - reward.mean()) / (reward.std() + 1e-8)
        for (b, end, _, _), vote in zip(paths, relative, strict=True):
            for step in range(end + 1):
                if not t.timestep.tokens["decision"][step, b]:
                    continue
                k = turn[step, b]
                expected = vote if k == 3 else paid[k] - baseline[int(k != spy)]
                np.testing.assert_allclose(judged["advantage"][step, b], expected, atol=1e-4)
                # A clue is learned with the first of the votes on it.
                assert judged["target"][step, b] == (k == 3 or b % 3 == 0)


@pytest.mark.parametrize("phase", ["clue", "decision"])
def test_only_the_tokens_of_the_phase_are_learned(monkeypatch, phase):
    batch, judged, _ = judge_of(monkeypatch, phase)
    turn = batch.transitions.timestep.tokens["turn"]
    learned = judged["target"] > 0
    assert ((turn < 3) == (phase == "clue"))[learned].all() and learned.any()


def test_phases_alternate_or_follow_the_share_of_right_votes():
    h = Values({"smoothing": jnp.float32(0.0), "high": jnp.float32(0.7), "low": jnp.float32(0.4)})

    def phases(config, rights):
        progress, found = begin_progress(config.phase), []
        for right in rights:
            found.append(bool(progress.clue))
            progress = next_phase(config, h, progress, jnp.float32(right))
        return found

    assert phases(Config(cycle_length=2), [0.5] * 6) == [False, False, True, True, False, False]
    found = phases(Config(phase="thresholds"), [0.6, 0.7, 0.6, 0.5, 0.3, 0.6, 0.8])
    assert found == [False, False, True, True, True, False, False]
    assert phases(Config(phase="clue"), [0.1, 0.9]) == [True, True]
    h = Values({"smoothing": jnp.float32(0.5), "high": jnp.float32(0.7), "low": jnp.float32(0.4)})
    assert phases(Config(phase="thresholds"), [1.0, 1.0, 0.0]) == [False, False, True]


def test_a_warm_start_begins_with_the_first_phase():
    own = State({}, begin_progress("alternate"), jnp.int32(0), jnp.float32(0), {})
    other = dataclasses.replace(own, extra=())
    assert begin_phases(own, other).extra is own.extra
    later = dataclasses.replace(own, extra=dataclasses.replace(own.extra, clue=jnp.bool_(True)))
    assert begin_phases(own, later) is later


def test_environments_without_a_spy_are_refused():
    with pytest.raises(UserError, match="cannot act in 'posed_sums'"):
        vision_zero(envs.make("posed_sums"))
