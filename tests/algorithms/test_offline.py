"""The same agent on a data set, in a world, and on both; and what is carried over."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import train as train_script
from jaxrl.agents.offline import iql, td3_bc, uni_o4
from jaxrl.agents.offline.experience import Experience
from jaxrl.algorithms import offline
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.datasets import cache, making, minari_format
from jaxrl.envs import make
from jaxrl.runtime import checkpoints, command_line, continuing, run_folder
from jaxrl.systems.policy_gradient.ppo import ppo
from tests.contracts.structure import check_structure
from tests.learning.probes import PROBES, probe

pytest.importorskip("h5py")
WORLD = {"num_envs": 4, "num_steps": 2, "warmup": 8, "capacity": 400}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Pendulum's random steps in a file."""
    from jaxrl.core import random
    from jaxrl.datasets.data import Dataset
    from jaxrl.envs.policies import random_policy

    env = make("pendulum")
    data = Dataset("random", making.record(env, random_policy(env), random.key(0), 400))
    assert len(data) == 400
    file = tmp_path_factory.mktemp("data") / "random.hdf5"
    minari_format.write(file, data)
    return str(file)


@pytest.mark.parametrize("module,build", [(iql, offline.iql), (td3_bc, offline.td3_bc)])
def test_structure(module, build, path):
    env = make("pendulum")
    x = Experience(dataset=path, batch_size=8, updates=2)
    for experience, frames in (
        (x, 2),
        (dataclasses.replace(x, **WORLD), 8),
        (dataclasses.replace(x, dataset="", **WORLD), 8),
    ):
        config = module.Config(experience=experience, hidden=(4,))
        algorithm = build(env, config)
        check_structure(algorithm)
        assert algorithm.frames == frames
        assert build(env, config=module.Config(experience=experience, hidden=(4,))) is algorithm


@pytest.mark.parametrize("phase", uni_o4.PHASES)
def test_structure_of_uni_o4(phase, path):
    algorithm = offline.uni_o4(make("pendulum"), small_uni_o4(path, phase=phase))
    check_structure(algorithm)
    assert algorithm.frames == 2


def small_uni_o4(path, **settings):
    x = Experience(dataset=path, batch_size=8, updates=2)
    sizes = {"policies": 2, "hidden": (4,), "model_hidden": (4,), "starts": 4, "horizon": 2}
    return uni_o4.Config(experience=x, **sizes, **settings)


def test_ppo_begins_with_what_uni_o4_hands_over(path, tmp_path):
    """Each seed's own best member and value, from one algorithm's run to another's."""
    options = ["--out", str(tmp_path), "--quiet", "--evaluate_every", "-1", "--seeds", "2"]
    options += ["--env", "pendulum", "--agent.hidden", "4"]
    offline_ = ["--algorithm", "uni_o4", "--steps", "4", "--agent.experience.dataset", path]
    settings = small_uni_o4(path)
    for name in ("policies", "starts", "horizon", "model_hidden"):
        value = getattr(settings, name)
        offline_ += [f"--agent.{name}", str(value[0] if isinstance(value, tuple) else value)]
    offline_ += ["--agent.experience.batch_size", "8", "--agent.experience.updates", "2"]
    online = ["--algorithm", "ppo", "--steps", "8", "--warm-start", str(tmp_path / "a")]
    online += ["--agent.num_envs", "2", "--agent.num_steps", "4", "--agent.minibatches", "1"]
    online += ["--agent.normalize_observation", "true", "--agent.learning_rate", "0"]
    improved = [*offline_, "--agent.phase", "improvement", "--warm-start", str(tmp_path / "first")]
    for name, words in (("first", offline_), ("a", improved), ("b", online)):
        assert command_line.call(train_script.main, [*words, *options, "--name", name]) == 0
    trained, before = continuing.load_all(tmp_path / "a")
    _, after = continuing.load_all(tmp_path / "b")
    for old, new in zip(before, after, strict=True):
        given = trained.algorithm.agent.hand_over(old.state)
        jax.tree.map(np.testing.assert_array_equal, new.state.agent.params, given.agent.params)
    kernels = [x.state.agent.params["params"]["actor"]["Dense_0"]["kernel"] for x in after]
    assert (kernels[0] != kernels[1]).any()


def test_settings_that_cannot_work(path):
    env = make("pendulum")
    build = lambda **x: offline.iql(env, iql.Config(experience=Experience(**x)))
    with pytest.raises(UserError, match="nothing to learn from"):
        build(dataset="")
    with pytest.raises(UserError, match="medium-replay"):
        build(dataset="medium_replay")
    with pytest.raises(UserError, match="offline_share"):
        build(dataset=path, num_envs=1, offline_share=1.0)
    with pytest.raises(UserError, match="those of 'cartpole'"):
        offline.iql(make("cartpole"), iql.Config(experience=Experience(dataset=path)))


def arrays(folder, step):
    path = run_folder.checkpoints(folder) / step if step else None
    path = path or checkpoints.latest(run_folder.checkpoints(folder))
    return checkpoints.restore_raw(path)[0]


def test_agent_and_optimiser_are_carried_online(path, tmp_path):
    """A run in the world begins, bit for bit, with what the run on the data set ended with."""

    def train(name, steps, *words):
        options = ["--algorithm", "td3_bc", "--env", "pendulum", "--out", str(tmp_path), "--quiet"]
        options += ["--agent.hidden", "4", "--agent.experience.batch_size", "8", *words]
        options += ["--name", name, "--steps", str(steps), "--evaluate_every", "-1"]
        assert command_line.call(train_script.main, [*options, "--keep", "100"]) == 0
        return tmp_path / name

    before = train("offline", 16, "--agent.experience.dataset", path)
    words = [f"--agent.experience.{k}={v}" for k, v in WORLD.items()]
    after = train(
        "online", 24, "--agent.experience.dataset", "", *words, "--warm-start", str(before),
        "--agent.alpha", "inf",
    )  # fmt: skip
    old, new = arrays(before, None), arrays(after, sorted_steps(after)[0])
    agent = {k: v for k, v in old.items() if ".agent" in k or "agent" in k.split("/")}
    assert any("optimiser" in k for k in agent) and any(".own" in k for k in agent)
    for name, value in agent.items():
        if "hyper" in name:
            continue
        np.testing.assert_array_equal(new[name], value, err_msg=name)
        assert value.dtype == new[name].dtype
    alphas = [v for k, v in new.items() if k.endswith("alpha") or "alpha" in k]
    assert all(np.isinf(v).all() for v in alphas) and alphas


def sorted_steps(folder):
    return sorted(p.name for p in run_folder.checkpoints(folder).iterdir())


# ------------------------------------------------------------------------------- made and kept


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A cache of its own, and a world that PPO learns at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(making, "PARTS", 4)
    monkeypatch.setattr(making, "EPISODES", 8)
    env = probe(True)
    env = dataclasses.replace(env, params={"probe": PROBES["reward equals action"].vector()})
    sizes = {"num_envs": 16, "num_steps": 8, "hidden": (8,), "learning_rate": 0.01}
    how = making.Recipe(2560, replace(ppo.Config(), sizes))
    monkeypatch.setitem(making.RECIPES, env.name, how)
    return env


def test_data_sets_are_made_once_and_checked(small, monkeypatch, capsys):
    sets = {name: cache.load(small, name, 200) for name in cache.NAMES}
    assert capsys.readouterr().err.count("Making") == 1
    references = sets["expert"].references
    assert references.random < references.expert
    mean = lambda name: sets[name].transitions.reward.mean()
    assert mean("random") < mean("medium") <= mean("expert")
    assert len(sets["mixed"]) == len(sets["medium"]) + len(sets["expert"])
    folder = next(cache.root().iterdir())
    made = {p.name: p.read_bytes() for p in folder.glob("*.npz")}
    # The same seed, the same bits.
    again = making.make(small, 200)
    for name in making.KINDS:
        x, y = sets[name].transitions, again[name].transitions
        np.testing.assert_array_equal(x.observation, y.observation)
        np.testing.assert_array_equal(x.action, y.action)
    # A flipped byte is found.
    data = bytearray(made["medium.npz"])
    data[len(data) // 2] ^= 1
    (folder / "medium.npz").write_bytes(bytes(data))
    with pytest.raises(UserError, match="checksum"):
        cache.load(small, "medium", 200)
    (folder / "medium.npz").unlink()
    with pytest.raises(UserError, match="not as it was written"):
        cache.load(small, "medium", 200)
