"""Algorithms that replay, in environments on the host."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import Run
from jaxrl.evaluation import render
from jaxrl.runtime import building, host, load, training
from jaxrl.runtime.configuration import HostSettings, experiment
from jaxrl.runtime.driver import Program, evaluation_key
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import Members
from jaxrl.sources.handed import check_played
from jaxrl.sources.packing import unpack
from tests.runtime.test_players import Walk

SMALL = {"num_envs": 2, "num_steps": 3, "capacity": 600, "warmup": 30, "batch_size": 8}
SMALL |= {"hidden": (8,)}


def begin(**options):
    Walk.number = 0
    environments = host.Environments(Walk, 2, **options)
    algorithm = dqn(environments.env, replace(dqn.Config(), SMALL))
    return algorithm, environments, host.start(algorithm, environments, random.key(0))


def test_a_replay_holds_what_was_played():
    algorithm, environments, run = begin()
    assert algorithm.initial_env_steps == 30
    assert int(run.state.source.filled) == 15 and int(run.state.source.source.windows) == 5
    run, row = host.train(algorithm, environments, run, 20)
    held = run.state.source
    rows = 15 + 20 * 3
    assert int(held.filled) == rows and int(held.source.windows) == 25
    x = jax.tree.map(lambda x: np.asarray(x)[:rows], unpack(held.transitions))
    before, after = x.timestep.observation[..., 0], x.next_timestep.observation[..., 0]
    np.testing.assert_array_equal(after, before + 1)
    first, done = x.timestep.first, x.next_timestep.done
    np.testing.assert_array_equal(first[1:], done[:-1])
    assert (before[1:] == after[:-1])[~first[1:]].all()
    assert x.next_timestep.terminated.any() and x.next_timestep.truncated.any()
    assert m.values(row)["episodes"] == done[15:].sum()


def test_a_run_is_the_same_however_its_threads_run():
    """A queue changes nothing with staleness 0; with 1, two runs are equal to each other."""

    environments = host.Environments("CartPole-v1", 2)
    algorithm = ppo(environments.env, replace(ppo.Config(), {"num_envs": 2, "num_steps": 8}))

    def train(playing):
        run = host.start(algorithm, playing, random.key(0))
        return jax.tree.leaves(host.train(algorithm, playing, run, 4)[0].state.agent)

    def behind(staleness):
        players = host.Players(
            [environments], check_played(algorithm.source, "ppo"), staleness=staleness
        )
        return train(players)

    equal = lambda a, b: all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    plain = train(environments)
    assert equal(plain, behind(0))
    late = behind(1)
    assert equal(late, behind(1)) and not equal(late, plain)


@pytest.mark.parametrize("name", ["rainbow", "r2d2", "reinforce", "td3"])
def test_algorithms_learn_on_the_host(name):
    """Priorities, sequences with a memory, whole episodes, and continuous actions."""
    _, config = registry.tiny(name)
    there = "gymnasium/Pendulum-v1" if name == "td3" else "gymnasium/CartPole-v1"
    algorithm = registry.builder(name)[0](envs.make(there), config)
    play = check_played(algorithm.source, name)
    environments = host.Environments(play.env, play.num_envs)
    run = host.start(algorithm, environments, random.key(0))
    run, row = host.train(algorithm, environments, run, 2)
    assert int(run.step) == 2
    losses = [value for key, value in m.values(row).items() if key.endswith("loss")]
    assert losses and np.isfinite(losses).all()


def test_seeds_and_threads_by_configuration(tmp_path):
    settings = {
        "algorithm": "sac",
        "env": "gymnasium/Pendulum-v1",
        "steps": 60,
        "seeds": 2,
        "evaluate_episodes": 1,
        "evaluate_every": 30,
        "out": str(tmp_path),
        "quiet": True,
        "host": {"actors": 2, "staleness": 1},
        "agent": SMALL | {"num_steps": 1, "capacity": 100},
    }
    with pytest.raises(Exception, match="Several members have one thread"):
        training.train(experiment(settings))
    settings["host"] = {"staleness": 1}
    config = experiment(settings)
    folder = training.train(config)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["steps"] == 60
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    final = next(row for row in reversed(rows) if row["kind"] == "evaluation")["metrics"]["return"]
    assert len(final) == 2 and final[0] != final[1]
    assert load(folder, member=1).policy is not None
    one = dataclasses.replace(config, seeds=1, host=dataclasses.replace(config.host, actors=2))
    program = building.program(one, building.build(one)[1], Members([{"seed": 0}]))
    assert isinstance(program, HostProgram)
    assert [e.num_envs for e in program.players.environments] == [1, 1]


@pytest.mark.parametrize("members", [None, 2])
def test_evaluations_have_what_the_algorithm_measures(members):
    env = envs.make("gymnasium/tests.runtime.faulty:Faulty-v0")
    learner = dqn(env, replace(dqn.Config(), SMALL))
    own = dataclasses.replace(learner, measure=lambda state, key: {"bits": jax.random.bits(key)})
    program = HostProgram(Program(own, members), HostSettings())
    key = random.key(0)
    progress = program.start(key if members is None else jax.random.split(key, members))
    found = program.evaluation(env, 1, True)(progress.run)
    assert found["bits"].shape == found["return"].shape
    keys = jax.numpy.atleast_1d(progress.run.key)
    expected = [
        jax.random.bits(jax.random.fold_in(evaluation_key(Run(None, key, np.uint32(0))), 1))
        for key in keys
    ]
    np.testing.assert_array_equal(np.atleast_1d(found["bits"]), expected)
    program.close()


def test_an_episode_is_recorded(tmp_path):
    pytest.importorskip("pygame")
    env = envs.make("gymnasium/CartPole-v1")
    learner = dqn(env, replace(dqn.Config(), SMALL))
    policy = learner.policy(learner.init(random.key(0), learner.hyper))
    recording = host.record(env, policy, random.key(0))
    played = host.evaluate(env, policy, random.key(0), 1)
    assert len(recording.frames) == played.lengths[0] and recording.fps == 50
    assert recording.frames[0].shape == (400, 600, 3)
    render.write_gif(recording.frames, tmp_path / "a.gif", recording.fps)
    assert (tmp_path / "a.gif").stat().st_size > 1000


@pytest.mark.parametrize("draws", [True, False])
def test_a_run_on_the_host_records_videos_or_says_why_not(tmp_path, draws):
    if draws:
        pytest.importorskip("pygame")
    settings = {
        "algorithm": "dqn",
        "env": "gymnasium/CartPole-v1" if draws else "gymnasium/tests.runtime.faulty:Blind-v0",
        "steps": 50,
        "evaluate_every": -1,
        "record_every": 10,
        "out": str(tmp_path),
        "agent": SMALL | {"num_steps": 1, "capacity": 100},
    }
    if draws:
        folder = training.train(experiment(settings))
        names = sorted(path.name for path in (folder / "videos").iterdir())
        assert names == ["40.gif", "50.gif"]
    else:
        with pytest.raises(UserError, match=r"record_every is 10, but .* draws .*: no screen"):
            training.train(experiment(settings))
