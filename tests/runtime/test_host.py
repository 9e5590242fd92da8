"""Gymnasium environments beside the jitted learner."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as theirs

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import random, spaces, stream
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import start as start_run
from jaxrl.core.train import train as train_run
from jaxrl.core.types import Environment, Policy
from jaxrl.envs import timesteps
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.kit.wrapping import params_of
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.runtime import building, host, load, run_folder, training
from jaxrl.runtime.configuration import experiment
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import Members
from jaxrl.runtime.players import play
from jaxrl.sources.handed import Play
from jaxrl.sources.rollouts import rollouts

LIMIT, EDGE = 5, 3
# Paths that reach the edge at once, at the last moment (twice), and never.
PATHS = ((1, 1, 1, 0, 0), (1, 0, 1, 1, 1), (0, 0, 1, 0, 0), (0, 1, 0, 1, 0))


class Line(gymnasium.Env):
    """Environment to move left or right from 0; edges are terminal, episodes have five steps.

    Both ends can coincide.
    """

    observation_space = theirs.Box(-10.0, 10.0, (2,), np.float64)
    action_space = theirs.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.x += 2 * int(action) - 1
        self.t += 1
        return self._observation(), 10.0 * self.x + self.t, abs(self.x) >= EDGE, self.t >= LIMIT, {}

    def _observation(self):
        return np.array([self.x, self.t], np.float64)


def line() -> Environment:
    """Return the same environment, compiled."""
    seen = lambda state: state.astype(jnp.float32)

    def reset(key, params):
        state = jnp.zeros(2, jnp.int32)
        return state, timesteps.first(seen(state))

    def step(key, state, action, params):
        state = state + jnp.stack([2 * action - 1, 1])
        reward = 10.0 * state[0] + state[1]
        return state, timesteps.following(seen(state), reward, jnp.abs(state[0]) >= EDGE)

    box, two = spaces.Box(-10.0, 10.0, (2,)), spaces.Discrete(2)
    return time_limit(Environment("line", reset, step, (), box, two), LIMIT)


def counting(state, timestep, memory, key, greedy):
    """Act along a path for each stream by the memory, so that a memory that is not reset shows."""
    action = jnp.asarray(PATHS)[jnp.arange(len(PATHS)), memory % LIMIT]
    return action, memory + 1, {"log_prob": memory.astype(jnp.float32)}


POLICY = Policy(counting, lambda n: jnp.zeros(n, jnp.int32), ())


def test_windows_are_those_of_the_same_environment_compiled():
    streams, steps = len(PATHS), 9
    source = rollouts(line(), streams, steps)
    state = jax.jit(source.init)(jax.random.key(0), {}, POLICY)
    collect = jax.jit(source.collect)
    environments = host.Environments(Line, streams)
    environments.reset(jax.random.key(1))
    window = Play(environments.env, streams, steps, fresh=False, masked=False)
    ended = set()
    for _ in range(3):  # streams go on across windows
        state, expected, statistics = collect(state, POLICY, jax.random.key(0))
        played = play(environments, POLICY, jax.random.key(0), window)
        batch = dataclasses.replace(played.batch, env_steps=expected.env_steps)
        paths = jax.tree_util.tree_leaves_with_path(expected)
        assert jax.tree.structure(batch) == jax.tree.structure(expected)
        for (path, x), y in zip(paths, jax.tree.leaves(batch), strict=True):
            assert x.dtype == y.dtype, path
            np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))
        values = m.values(stream.statistics(played.endings))
        for name, value in m.values(statistics).items():
            np.testing.assert_array_equal(values[name], value, err_msg=name)
        after = batch.transitions.next_timestep
        ended |= {("terminated", int(t)) for t in after.observation[after.terminated][:, 1]}
        ended |= {("truncated", int(t)) for t in after.observation[after.truncated][:, 1]}
    # Both kinds of end occurred, and termination also on the last step of the time limit.
    assert ended >= {("terminated", 3), ("terminated", LIMIT), ("truncated", LIMIT)}, ended


class Endless(gymnasium.Env):
    """Environment with a reward of 1 in every step and episodes of two steps."""

    observation_space = theirs.Box(0.0, 1.0, (1,), np.float32)
    action_space = theirs.Discrete(2)
    ends = "truncated"

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == 2
        flags = (over, False) if self.ends == "terminated" else (False, over)
        return np.ones(1, np.float32), 1.0, *flags, {}


class Ending(Endless):
    ends = "terminated"


def test_truncation_bootstraps_and_termination_does_not():
    sizes = {"num_envs": 2, "num_steps": 16, "epochs": 8, "minibatches": 1, "hidden": (4,)}
    sizes |= {"learning_rate": 0.05, "max_grad_norm": float("inf")}
    config = replace(ppo.Config(discount=0.5, value_weight=1.0), sizes)
    values = []
    algorithm = ppo(host.Environments(Endless, 2).env, config)
    for environment in (Endless, Ending):
        environments = host.Environments(environment, 2)
        run = host.start(algorithm, environments, random.key(0))
        run, _ = host.train(algorithm, environments, run, 30)
        network = ActorCritic(
            environments.env.observation_space, environments.env.action_space, (4,)
        )
        params = params_of(run.state.agent)["actor_critic"]
        value = network.apply(params, environments.timestep, ())[1]  # type: ignore[index]
        values.append(float(value[0]))
    # Truncated: 1 + 1/2 + 1/4 + ...; terminated: between 1 and 1 + 1/2, equal in both steps.
    np.testing.assert_allclose(values, [2.0, 1.25], atol=0.1)


CARTPOLE = replace(ppo.Config(), {"num_envs": 8, "num_steps": 64, "learning_rate": 1e-3})


@functools.cache
def cartpole():
    environments = host.Environments("CartPole-v1", 8)
    return environments, ppo(environments.env, CARTPOLE)


def test_ppo_learns_cartpole():
    environments, algorithm = cartpole()
    run = host.start(algorithm, environments, random.key(0))
    run, row = host.train(algorithm, environments, run, 1)
    assert m.values(row)["episode_return"] < 40  # about 22 for a random policy
    run, row = host.train(algorithm, environments, run, 29)
    assert int(run.step) == 30 and algorithm.env_steps == 512
    played = host.evaluate(environments.env, algorithm.policy(run.state), random.key(1), 16)
    assert played.finished.all() and played.returns.mean() > 120
    np.testing.assert_array_equal(played.returns, played.lengths)


def test_evaluation_counts_one_episode_of_each_copy():
    played = host.evaluate(host.Environments(Line, 4), POLICY, random.key(0), max_steps=LIMIT + 2)
    np.testing.assert_array_equal(played.lengths, [3, 5, 5, 5])
    np.testing.assert_array_equal(played.returns, [66, 85, -75, -15])  # sums of 10 x + t
    assert played.finished.all()


def test_a_seed_says_all():
    def train(seed):
        environments, algorithm = cartpole()
        run = host.start(algorithm, environments, random.key(seed))
        run, row = host.train(algorithm, environments, run, 2)
        return jax.tree.leaves((run.state, m.values(row)))

    same, again, other = train(3), train(3), train(4)
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(same, again, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(same, other, strict=True))


def test_copies_have_seeds_of_their_own():
    environments, _ = cartpole()
    environments.reset(jax.random.key(0))
    first = environments.timestep.observation
    assert len(np.unique(first, axis=0)) == 8
    environments.reset(jax.random.key(0))
    np.testing.assert_array_equal(environments.timestep.observation, first)


class Mixed(gymnasium.Env):
    """Environment with spaces of every kind that remembers the actions it was given."""

    observation_space = theirs.Dict(
        {
            "position": theirs.Box(-1.0, 1.0, (2,), np.float64),
            "card": theirs.Discrete(3, start=5),
            "pair": theirs.Tuple((theirs.MultiDiscrete([2, 4]), theirs.MultiBinary(3))),
        }
    )
    action_space = theirs.Dict(
        {
            "push": theirs.Box(-2.0, 0.5, (2,), np.float64),
            "pick": theirs.Discrete(3, start=-1),
        }
    )
    told: list = []

    def reset(self, *, seed=None, options=None):
        return self._observation(), {}

    def step(self, action):
        self.told.append(action)
        return self._observation(), 0.0, False, False, {}

    def _observation(self):
        return {
            "position": np.array([0.25, -0.5]),
            "card": np.int64(7),
            "pair": (np.array([1, 3]), np.array([0, 1, 1], np.int8)),
        }


def test_spaces_are_converted_both_ways():
    environments = host.Environments(Mixed, 2)
    seen = environments.env.observation_space
    assert seen["card"] == spaces.Discrete(3) and seen["position"].dtype == jnp.float32
    assert seen["pair"] == (spaces.MultiDiscrete((2, 4)), spaces.MultiDiscrete((2, 2, 2)))
    assert hash(environments.env.action_space["push"])  # spaces are attributes of networks
    environments.reset(jax.random.key(0))
    one = jax.tree.map(lambda x: x[1], environments.timestep.observation)
    assert spaces.contains(seen, one)
    assert one["card"] == 2 and one["position"].tolist() == [0.25, -0.5]
    Mixed.told.clear()
    push = np.array([[-3.0, 0.2], [0.0, 3.0]], np.float32)
    environments.step({"push": push, "pick": np.array([0, 2], np.int32)})
    np.testing.assert_allclose([a["push"] for a in Mixed.told], [[-2.0, 0.2], [0.0, 0.5]])
    assert [int(a["pick"]) for a in Mixed.told] == [-1, 1]
    assert all(a in Mixed.action_space for a in Mixed.told)


def test_asynchronous_environments_are_the_same():
    synchronous, asynchronous = (
        host.Environments("CartPole-v1", 2, a) for a in ("sync", "processes")
    )
    try:
        for environments in (synchronous, asynchronous):
            environments.reset(jax.random.key(2))
        for t in range(30):
            pair = [w.step(np.array([t % 2, 0])) for w in (synchronous, asynchronous)]
            live = (synchronous.timestep, asynchronous.timestep)
            for a, b in zip(jax.tree.leaves((pair[0], live[0])),
                            jax.tree.leaves((pair[1], live[1])), strict=True):  # fmt: skip
                np.testing.assert_array_equal(a, b)
    finally:
        asynchronous.close()


def test_what_runs_the_description_is_told(capfd):
    env = envs.make("gymnasium/CartPole-v1")
    algorithm = ppo(env, CARTPOLE)
    with pytest.raises(Exception, match="runs on the host and cannot be compiled"):
        jax.block_until_ready(train_run(algorithm, start_run(algorithm, random.key(0)), 1))


def test_bad_input_is_one_sentence():
    _, algorithm = cartpole()
    with pytest.raises(UserError, match="plays inside of its program"):
        building.build(experiment({"env": "gymnasium/CartPole-v1", "algorithm": "genetic"}))
    run = start_run(algorithm, random.key(0))
    for number in (3, 4):  # even if the steps of an update could be divided evenly
        with pytest.raises(UserError, match="num_envs is 8; the numbers must be equal"):
            host.advance(algorithm, host.Environments(Line, number), run)
    with pytest.raises(UserError, match="did you mean 'gymnasium/CartPole-v1'"):
        host.Environments("CartPol-v1", 2)
    with pytest.raises(UserError, match="no time limit; set max_steps"):
        host.evaluate(host.Environments(Line, 4), POLICY, random.key(0))
    with pytest.raises(UserError, match="no counterpart of Gymnasium's space Text"):
        environment = type("Talk", (Line,), {"observation_space": theirs.Text(3)})
        host.Environments(environment, 2)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("host")
    config = experiment(
        {
            "env": "gymnasium/CartPole-v1",
            "steps": 256,
            "evaluate_episodes": 2,
            "evaluate_every": 128,
            "out": str(out),
            "quiet": True,
            "agent": {
                "rollouts": {"num_envs": 4, "num_steps": 16},
                "passes": {"epochs": 1},
                "torso": {"hidden": [8]},
            },
        }
    )
    return config, training.train(config)


def test_a_run_from_its_configuration(finished_run):
    _, folder = finished_run
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["steps"] == 256
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [r for r in rows if r["kind"] == "evaluation"]
    assert [r["steps"] for r in evaluations] == [128, 256]
    assert evaluations[-1]["metrics"]["return"][0] >= 8
    assert sum(r["metrics"]["episodes"][0] for r in rows if r["kind"] == "train") >= 5
    trained = load(folder)
    played = host.evaluate(trained.env, trained.policy, random.key(0), 2)
    assert played.finished.all()


def test_a_run_goes_on_from_its_checkpoint(finished_run):
    config, folder = finished_run
    longer = dataclasses.replace(config, steps=384, fork=str(folder))
    forked = training.train(longer)
    assert json.loads((forked / "summary.json").read_text())["steps"] == 384


def test_a_run_that_was_cut_off_goes_on_where_it_stood(finished_run, tmp_path):
    _, folder = finished_run
    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    (cut / "summary.json").unlink()
    last = sorted((cut / "checkpoints").iterdir())[-1]
    shutil.rmtree(last)
    assert load(cut).step < load(folder).step == 4  # windows of 64 steps
    training.train(dataclasses.replace(run_folder.read_config(cut), resume=str(cut), quiet=True))
    assert load(cut).step == 4 and sorted((cut / "checkpoints").iterdir())[-1].name == last.name
    assert json.loads((cut / "summary.json").read_text())["steps"] == 256
    kinds = [
        (row["kind"], row["steps"])
        for row in map(json.loads, (cut / "metrics.jsonl").read_text().splitlines())
    ]
    assert len(kinds) == len(set(kinds)) and ("evaluation", 256) in kinds


def test_there_are_as_many_environments_as_the_source_steps():
    """The number holds whatever an algorithm's settings call it."""
    _, algorithm = cartpole()
    config = experiment({"env": "gymnasium/CartPole-v1"})
    config = dataclasses.replace(config, agent=CARTPOLE)  # rollouts.num_envs
    program = building.program(config, algorithm, Members([{"seed": 0}]))
    assert isinstance(program, HostProgram) and program.players.environments[0].num_envs == 8


@pytest.mark.parametrize("change", [{"debug": True}])
def test_what_a_run_on_the_host_cannot_be(finished_run, change):
    config, _ = finished_run
    with pytest.raises(UserError, match="train on one device, without debug"):
        training.train(dataclasses.replace(config, **change))
