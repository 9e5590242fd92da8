"""Policies as files of weights, those that come with jaxrl, and their evaluation."""

import importlib
import json
import zipfile

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms import registry
from jaxrl.commands import evaluate as evaluate_script
from jaxrl.commands import export as script
from jaxrl.commands import list as listing
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.runtime import building, configuration, policy_files

NAMES = ("dqn", "ppo", "sac", "r2d2", "spiral", "mappo")
PLACES = ("env", "env_params", "wrappers")


def tiny(name):
    """Return an experiment with the smallest settings of an algorithm."""
    module = importlib.import_module(registry.built_in()[name].partition(":")[0])
    places = {key: value for key, value in module.TINY.items() if key in PLACES}
    agent = {key: value for key, value in module.TINY.items() if key not in PLACES}
    return configuration.experiment({"algorithm": name, "agent": agent, **places})


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_the_same_after_writing_and_reading(name, tmp_path):
    """The two act alike, greedily and at random; what no action depends on is left out."""
    config = tiny(name)
    env, algorithm = building.build(config)
    policy = algorithm.policy(jaxrl.start(algorithm, random.key(1)).state)
    path = tmp_path / "new" / "policy.zip"
    policy_files.write(env, policy, path, {"settings": configuration.to_dict(config)})
    read = jaxrl.load(path)
    _, timestep = jax.vmap(env.reset, (0, None))(jax.random.split(random.key(2), 250), env.params)
    for greedy in (True, False):
        expected = policy.act(policy.state, timestep, policy.memory(250), random.key(3), greedy)
        found = read.policy.act(
            read.policy.state, timestep, read.policy.memory(250), random.key(3), greedy
        )
        for x, y in zip(*map(jax.tree.leaves, (expected[:2], found[:2])), strict=True):
            np.testing.assert_array_equal(x, y)
    with zipfile.ZipFile(path) as file, file.open(policy_files.WEIGHTS) as held:
        kept = np.load(held).files
    assert kept and not any("optimizer" in name or "target" in name for name in kept)
    assert len(kept) < len(jax.tree.leaves(policy.state))


def test_files_that_do_not_fit_are_refused(tmp_path, finished_run):
    path = tmp_path / "policy.zip"
    script.main([str(finished_run), "--format", "weights", "--out", str(path)])
    with zipfile.ZipFile(path) as file:
        about, held = json.loads(file.read(policy_files.ABOUT)), file.read(policy_files.WEIGHTS)

    def write(changed):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(policy_files.ABOUT, json.dumps(about | {"settings": changed}))
            file.writestr(policy_files.WEIGHTS, held)

    wider = about["settings"] | {"agent": {"torso": {"hidden": [5]}}}
    for settings, said in (
        (wider, r"does not fit: its '.*bias.*' is float32\[4\] instead of float32\[5\]"),
        (about["settings"] | {"agent": {"torso": {"hidden": []}}}, "at least one entry"),
        ("text", "is no policy that jaxrl exported"),
        (about["settings"] | {"env": "elsewhere.module:env"}, "names code outside of jaxrl"),
    ):
        write(settings)
        with pytest.raises(UserError, match=said):
            jaxrl.load(path)


# ------------------------------------------------------------------------- those that jaxrl brings


def test_they_are_small():
    assert 4 <= len(policy_files.names()) <= 10
    assert sum(policy_files.find(name).stat().st_size for name in policy_files.names()) < 1_000_000
    with pytest.raises(UserError, match="Unknown pretrained policy 'ppo-cartpol'; did you mean"):
        jaxrl.load("pretrained/ppo-cartpol")


@pytest.mark.parametrize("name", policy_files.names())
def test_they_return_what_they_are_said_to(name):
    """The episodes are others than those that were recorded."""
    stored = jaxrl.load(f"pretrained/{name}")
    said = stored.about["evaluation"]
    played = jaxrl.evaluate(stored.env, stored.policy, jaxrl.key(7), 64)
    returns = np.asarray(played.returns, float)
    returns = returns if returns.ndim == 1 else returns[:, 0]
    deviation = (said["interval"][1] - said["interval"][0]) / 3.92 * np.sqrt(said["episodes"] / 64)
    assert abs(returns.mean() - said["return"]) <= 4 * deviation + 1e-6
    assert stored.about["command"].startswith("jaxrl train ")


def test_they_are_listed(capsys):
    assert listing.main(["pretrained", "cartpole"]) == 0
    assert capsys.readouterr().out.startswith("pretrained/ppo-cartpole  cartpole: return 500 [")


def test_they_are_evaluated_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ["--episodes", "4"]
    evaluate_script.main(["pretrained/dqn-catch", *few])
    said = capsys.readouterr().out
    assert "greedy return" in " ".join(said.split()) and "stochastic" in said
    assert "Nothing is written; --out FOLDER keeps" in said and not list(tmp_path.iterdir())
    evaluate_script.main(["pretrained/dqn-catch", *few, "--out", "found", "--video", "png"])
    names = {path.name for path in (tmp_path / "found").iterdir()}
    assert names == {"evaluation.json", "evaluation_episodes.csv", "episode.png"}
    assert json.loads((tmp_path / "found" / "evaluation.json").read_text())["episodes"] == 4
    for options, refused in (
        (["--member", "1"], "member is 1; an exported policy has one member, 0"),
        (["--env", "cartpole"], "cannot act in 'cartpole'"),
    ):
        with pytest.raises(UserError, match=refused):
            evaluate_script.main(["pretrained/dqn-catch", *options])


def test_a_program_is_evaluated_greedily(finished_run, tmp_path, capsys):
    pytest.importorskip("flatbuffers")
    path = tmp_path / "policy.stablehlo"
    script.main([str(finished_run), "--out", str(path)])
    evaluate_script.main([str(path), "--episodes", "3"])
    said = capsys.readouterr().out
    assert "greedy return" in " ".join(said.split()) and "stochastic" not in said
