"""Runs in their folders: contents, forks, warm starts, loaded policies, divergence."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest

from jaxrl import runtime
from jaxrl.commands import evaluate
from jaxrl.core.errors import UserError
from jaxrl.core.train import Run
from jaxrl.evaluation import render
from jaxrl.runtime import (
    building,
    checkpoints,
    configuration,
    continuing,
    driver,
    run_folder,
    session,
)
from jaxrl.runtime import log as logs
from jaxrl.runtime.members import Members, read_members
from tests.runtime import tiny

PNG = b"\x89PNG"


@pytest.mark.slow
def test_a_folder_holds_all_of_it(finished_pair):
    names = {p.name for p in finished_pair.iterdir()} - {".lock"}
    assert names == {
        "config.yaml",
        "members.json",
        "metrics.jsonl",
        "checkpoints",
        "learning_curve.png",
        "summary.json",
    }
    assert (finished_pair / "learning_curve.png").read_bytes().startswith(PNG)
    assert len(list((finished_pair / "checkpoints").iterdir())) == 3  # as --keep says
    assert not list(finished_pair.parent.glob(".new-*"))
    summary = tiny.summary(finished_pair)
    assert summary["finished"] and summary["updates"] == 20 and summary["steps"] == 640
    assert summary["members"] == [{"seed": 0}, {"seed": 1}] and summary["diverged"] == {}
    assert len(summary["returns"]) == 2
    assert summary["return"]["mean"] == pytest.approx(np.mean(summary["returns"]))
    assert summary["scores"] == {"return": summary["return"] | {"kind": "evaluation"}}
    assert {"starting", "compiling", "training"} <= summary["seconds"].keys()


def test_rows_and_evaluations_fall_on_their_steps(finished_pair):
    rows = logs.read(finished_pair / "metrics.jsonl")
    at = lambda kind: [row["updates"] for row in rows if row["kind"] == kind]
    assert at("train") == [3, 6, 9, 12, 15, 18, 20]
    assert at("evaluation") == [8, 16, 20]
    assert all(row["steps"] == row["updates"] * tiny.ENV_STEPS for row in rows)
    assert all(len(v) == 2 for row in rows for v in row["metrics"].values())
    day = 24 * 3600.0
    written = (finished_pair / "metrics.jsonl").stat().st_mtime
    assert all(abs(row["time"] - written) < day for row in rows)  # Unix time
    assert rows[0].keys() == {"kind", "steps", "updates", "time", "metrics"}


def test_final_numbers_are_of_the_last_evaluation_or_of_the_last_episodes_that_ended():
    nan, steps = np.nan, np.arange(3)
    curves = {
        "return": {
            "train": (steps, np.asarray([[1.0, 2.0, 3.0]])),
            "evaluation": (steps, np.asarray([[7.0, 8.0, 9.0]])),
        },
        "success": {"train": (steps, np.asarray([[0.1, 0.25, nan], [nan, 0.75, nan]]))},
        "won": {"evaluation": (steps, np.asarray([[0.5, 0.5, nan]]))},  # it diverged since
    }
    found = session.final_scores(curves)
    assert found["return"] == {"mean": 9.0, "interval": None, "seeds": 1, "kind": "evaluation"}
    assert found["success"]["mean"] == 0.5 and found["success"]["kind"] == "train"
    assert found["success"]["seeds"] == 2 and found.keys() == {"return", "success"}


def test_a_seed_alone_has_an_interval_of_its_own_kind(finished_run):
    assert tiny.summary(finished_run)["return"]["interval"] is None
    json.loads((finished_run / "summary.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_python_gives_the_same_run(finished_run, tmp_path):
    folder = runtime.train(tiny.config(out=str(tmp_path), quiet=True))
    assert folder == tmp_path / "ppo-cartpole-0001"
    tiny.assert_same_run(folder, finished_run)


@pytest.mark.slow
def test_a_trained_policy_loads_in_three_lines(finished_pair):
    from jaxrl.evaluation.evaluate import evaluate

    trained = runtime.load(finished_pair, member=1)
    played = evaluate(trained.env, trained.policy, jax.random.key(0), 3)
    assert played.returns.shape == (3,) and bool(played.finished.all())
    stored = tiny.arrays(finished_pair)
    loaded = jax.tree_util.tree_leaves_with_path(trained.policy.state.parts)
    assert loaded
    for path, leaf in loaded:
        whole = stored[f".run.state.agent.parts{jax.tree_util.keystr(path)}"]
        assert np.asarray(leaf).tobytes() == whole[1].tobytes()
        if leaf.ndim and whole[0].any():
            assert whole[0].tobytes() != whole[1].tobytes()
    for member in (2, -1):
        with pytest.raises(UserError, match="has members 0 to 1"):
            runtime.load(finished_pair, member)


def call(*words):
    return tiny.command_line.call(tiny.train_script.main, [*words, "--quiet"])


@pytest.mark.slow
def test_a_fork_keeps_the_state_and_changes_hypers_alone(finished_pair, tmp_path):
    code = call("--fork", str(finished_pair), "--out", str(tmp_path), "--steps", "736",
                "--agent.learning-rate", "0.01", "--name", "fork")  # fmt: skip
    assert code == 0
    fork = tmp_path / "fork"
    parent = tiny.arrays(finished_pair)
    assert checkpoints.steps(run_folder.checkpoints(fork))[-1] == 23
    assert [row["updates"] for row in tiny.rows(fork) if row["kind"] == "train"] == [21, 23]
    assert run_folder.read_config(fork).fork == str(finished_pair)
    # Its first checkpoint is the parent's last except for the hyperparameter.
    first = checkpoints.restore_raw(run_folder.checkpoints(fork) / "step_000000000020")[0]
    changed = {k for k in parent if first[k].tobytes() != parent[k].tobytes()}
    assert {k for k in changed if not k.startswith(".row")} == {
        ".run.state.agent.hyper['optimizer.learning_rate']"
    }
    rate = first[".run.state.agent.hyper['optimizer.learning_rate']"]
    np.testing.assert_array_equal(rate, np.float32([0.01, 0.01]))
    # A fork of the fork, which has its own name and parent.
    assert call("--fork", str(fork), "--steps", "768") == 0
    assert run_folder.read_config(tmp_path / "ppo-cartpole-0001").fork == str(fork)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "has already done 640 environment steps; give a larger total with --steps"),
        (["--steps", "999", "--agent.hidden", "5"], "cannot be forked under this configuration"),
        (["--steps", "999", "--agent.num-steps", "16"], "an update takes 32 environment steps"),
        (["--steps", "999", "--seeds", "2"], "seeds cannot be changed"),
        (["--steps", "999", "--seed", "4"], "seed cannot be changed"),
        (["--warm-start", "elsewhere"], "forked or warm-started, not both"),
    ],
)
def test_forks_that_do_not_fit(finished_run, tmp_path, capsys, words, said):
    assert call("--fork", str(finished_run), "--out", str(tmp_path), *words) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_warm_start_takes_the_agent_with_new_hypers_to_any_number_of_seeds(
    finished_run, tmp_path
):
    folder = tiny.train(
        tmp_path, "warm", "--warm-start", str(finished_run), "--seeds", "2", "--agent.clip", "0.1",
        "--seed", "5", "--steps", "96", "--keep", "9",
    )  # fmt: skip
    parent = tiny.arrays(finished_run)
    first = checkpoints.restore_raw(run_folder.checkpoints(folder) / "step_000000000000")[0]
    taken = {k for k in parent if k.startswith(".run.state.agent.parts")}
    assert len(taken) > 10
    for name in taken:
        for member in (0, 1):
            assert first[name][member].tobytes() == parent[name].tobytes(), name
    np.testing.assert_array_equal(first[".run.state.agent.hyper['clip']"], np.float32([0.1, 0.1]))
    assert tiny.summary(folder)["members"] == [{"seed": 5}, {"seed": 6}]
    params = [k for k in taken if "params" in k]
    last = tiny.arrays(folder)
    assert any(last[k][0].tobytes() != last[k][1].tobytes() for k in params)


@pytest.mark.slow
def test_a_warm_start_from_a_configuration_trains_it_first_and_once(finished_run, tmp_path):
    first = tmp_path / "first.yaml"
    configuration.write(tiny.config(), first)
    words = ("--warm-start", str(first), "--steps", "96")
    folder = tiny.train(tmp_path, "warm", *words)
    (before,) = tmp_path.glob("ppo-cartpole-*")
    tiny.assert_same_run(before, finished_run)  # as if trained on its own
    assert run_folder.read_config(folder).warm_start == str(before)
    log = (before / "metrics.jsonl").stat()
    again = tiny.train(tmp_path, "again", *words)
    assert (before / "metrics.jsonl").stat() == log
    tiny.assert_same_run(again, folder)
    other = tiny.train(tmp_path, "other", *words, "--seed", "1")
    assert run_folder.read_config(other).warm_start != str(before)
    assert len(list(tmp_path.glob("ppo-cartpole-*"))) == 2


@pytest.mark.slow
def test_code_of_ones_own_names_folders_and_is_named_for_a_warm_start(finished_run, tmp_path):
    """Writing the first phase's file is consent to its code, even where its run is read."""
    own = {
        "env": "tests.runtime.environments:own_cartpole",
        "algorithm": "tests.runtime.environments:own_ppo",
    }
    settings = configuration.to_dict(tiny.config(steps=64, evaluate_every=-1)) | own
    (tmp_path / "first.yaml").write_text(json.dumps(settings))
    words = ("--steps", "64", "--evaluate-every", "-1", "--out", str(tmp_path), "--quiet")
    warm = ("--warm-start", str(tmp_path / "first.yaml"))
    assert tiny.call("train", tmp_path, *warm, *words, "--name", "warm") == 0
    place = "tests_runtime_environments_own"
    (first,) = tmp_path.glob(f"{place}_ppo-{place}_cartpole-*")
    assert run_folder.read_config(tmp_path / "warm").warm_start == str(first)
    # The first phase exists already.
    assert tiny.call("train", tmp_path, *warm, *words, "--name", "again") == 0
    refused = ("--warm-start", str(first), *words)
    assert tiny.call("train", tmp_path, *refused, "--name", "stranger") == 2
    assert tiny.call("train", tmp_path, *refused, "--name", "friend", "--trust") == 0
    assert call(str(tmp_path / "first.yaml"), *words[:-1]) == 0
    assert (tmp_path / "tests_runtime_environments_own_ppo-own_cartpole-0001").is_dir()


@pytest.mark.slow
def test_a_warm_start_beside_its_file_from_another_folder(tmp_path, monkeypatch):
    """The run's own configuration says where the file was, so it can be resumed from anywhere."""
    for folder in ("configs", "here"):
        (tmp_path / folder).mkdir()
    settings = configuration.to_dict(tiny.config(steps=64, evaluate_every=-1))
    (tmp_path / "configs" / "first.yaml").write_text(json.dumps(settings))
    second = settings | {"warm_start": "first.yaml", "out": str(tmp_path / "runs")}
    (tmp_path / "configs" / "second.yaml").write_text(json.dumps(second))
    monkeypatch.chdir(tmp_path / "here")
    assert call("../configs/second.yaml", "--name", "second") == 0
    folder = tmp_path / "runs" / "second"
    (first,) = (tmp_path / "runs").glob("ppo-cartpole-*")
    assert run_folder.read_config(folder).warm_start == str(first)
    complete = tiny.arrays(folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(run_folder.checkpoints(folder) / "step_000000000002")
    monkeypatch.chdir(tmp_path)
    tiny.assert_same_arrays(tiny.arrays(tiny.resume(folder)), complete)


@pytest.mark.slow
def test_a_first_phase_that_was_stopped_goes_on(finished_run, tmp_path):
    first = tmp_path / "first.yaml"
    configuration.write(tiny.config(), first)
    config = tiny.config(warm_start=str(first), out=str(tmp_path), generator="pcg")
    before = tmp_path / continuing.warm_start_experiment(config).name
    shutil.copytree(finished_run, before)
    (before / "summary.json").unlink()
    for newer in sorted(run_folder.checkpoints(before).iterdir())[1:]:
        shutil.rmtree(newer)
    tiny.train(tmp_path, "warm", "--warm-start", str(first), "--steps", "96")
    tiny.assert_same_run(before, finished_run)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent.hidden", "5"], "does not fit"),
        (["--agent.normalization.observation"], "other parts"),
        (["--algorithm", "a2c"], "are for 'ppo'"),
    ],
)
def test_warm_starts_that_do_not_fit(finished_run, tmp_path, capsys, words, said):
    assert tiny.call("train", tmp_path, "--warm-start", str(finished_run), *words) == 2
    assert said in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]
    first = run_folder.check(finished_run) / "config.yaml"  # as above, before anything is trained
    assert tiny.call("train", tmp_path, "--warm-start", str(first), *words) == 2
    assert said in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_warm_start_from_several_members_needs_as_many(finished_pair, tmp_path, capsys):
    assert tiny.call("train", tmp_path, "--warm-start", str(finished_pair)) == 2
    assert "has 2 members; a run of 1 can be" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluation_in_another_environment(tmp_path):
    """The first evaluation, after the same training, is played in another environment."""
    elsewhere = "tests.runtime.environments:short_cartpole"
    folder = tiny.train(tmp_path, "run", "--evaluate-env", elsewhere, "--steps", "256")
    (row,) = [row for row in tiny.rows(folder) if row["kind"] == "evaluation"]
    assert row["metrics"]["length"] == [3.0] and row["metrics"]["finished"] == [1.0]


@pytest.mark.slow
def test_evaluation_under_other_settings(tmp_path):
    """The training environment with changed settings is used if no other is named."""
    heavy = ("--evaluate-env-params", "gravity=1e5", "--steps", "256")
    folder = tiny.train(tmp_path, "run", *heavy)
    (row,) = [row for row in tiny.rows(folder) if row["kind"] == "evaluation"]
    assert row["metrics"]["length"][0] < 5  # such gravity ends it at once


@pytest.mark.slow
def test_a_run_of_a_game_says_whose_return_it_is_and_how_far_it_can_be_exploited(tmp_path, capsys):
    path = tmp_path / "game.yaml"
    settings = {
        "algorithm": "spiral",
        "env": "kuhn_poker",
        "agent": {"episodes": {"num_envs": 4}, "torso": {"hidden": [4]}},
        "steps": 100,
        "evaluate_episodes": 3,
    }
    configuration.write(configuration.experiment(settings | {"out": str(tmp_path)}), path)
    words = [str(path), "--name", "game", "--seeds", "2"]
    assert tiny.command_line.call(tiny.train_script.main, words) == 0
    last = tiny.rows(tmp_path / "game")[-1]
    summary = json.loads((tmp_path / "game" / "summary.json").read_text())
    assert summary["returns"] == last["metrics"]["return_0"]
    assert last["metrics"]["return_0"] == [-x for x in last["metrics"]["return_1"]]
    exploited = last["metrics"]["exploitability"]
    assert all(0 < x < 1 for x in exploited)
    assert list(summary["scores"]) == ["return of agent 0", "exploitability"]
    assert summary["scores"]["exploitability"]["mean"] == pytest.approx(np.mean(exploited))
    shown = capsys.readouterr().err
    progress, final = re.search(r"\d+ of \d+ steps · .*", shown), re.search("Final .*", shown)
    assert progress and final
    for said in (progress.group(), final.group()):
        assert re.search(r" return of agent 0 -?\d.* · .*exploitability 0\.\d", said)
    assert (tmp_path / "game" / "learning_curve.png").exists()
    words = [str(tmp_path / "game"), "--episodes", "2", "--video", "none"]
    assert tiny.command_line.call(evaluate.main, words) == 0
    found = json.loads((tmp_path / "game" / "evaluation.json").read_text())["measured"]
    assert found["exploitability"]["mean"] == pytest.approx(np.mean(exploited), rel=1e-4)
    assert "measured exploitability" in capsys.readouterr().out


def test_videos_in_training_show_the_first_seed_and_change_no_bit(finished_pair, tmp_path):
    words = ("--seeds", "2", "--record-every", str(12 * tiny.ENV_STEPS))
    folder = tiny.train(tmp_path, "run", *words)
    tiny.assert_same_run(folder, finished_pair)
    names = sorted(path.name for path in (folder / "videos").iterdir())
    assert names == ["384.gif", "640.gif"]
    trained = continuing.load(folder)
    first = trained.members.keys(trained.config.generator)[0]
    run = Run(trained.state, first, np.uint32(trained.step))
    key = jax.random.fold_in(driver.evaluation_key(run), 2)
    episode = render.record(trained.env, trained.policy, key)
    render.write_video(episode, tmp_path / "again.gif")
    assert (tmp_path / "again.gif").read_bytes() == (folder / "videos" / "640.gif").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--env tests.runtime.environments:blind", "'blind' draws no pictures"),
        ("--video webm", "video is 'webm'; it must be one of gif, mp4"),
    ],
)
def test_videos_that_cannot_be_are_refused_at_once(tmp_path, capsys, words, said):
    assert tiny.call("train", tmp_path, "--record-every", "32", *words.split()) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("pendulum", "cannot act in 'pendulum': their observations differ"),
        ("tests.runtime.environments:three_buttons", "their actions differ"),
        ("tests.runtime.environments:endless", "has no time limit"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_at_once(tmp_path, capsys, env, said):
    assert tiny.call("train", tmp_path, "--evaluate-env", env) == 2
    assert said in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.slow
def test_losses_that_are_not_finite_stop_a_run_with_its_state_saved(tmp_path, capsys):
    code = tiny.call("train", tmp_path, "--name", "run", "--agent.learning-rate", "1e30")
    assert code == 1
    error = capsys.readouterr().err
    assert "error: A loss was not finite after " in error and "--debug" in error
    assert "Traceback" not in error
    folder = tmp_path / "run"
    summary = tiny.summary(folder)
    assert summary["stopped_because"] == "not finite" and summary["diverged"].keys() == {"0"}
    assert all(np.isfinite(v).all() for k, v in tiny.arrays(folder).items() if "agent.parts" in k)
    # It can be loaded, resumed (to no avail), and forked with a better learning rate.
    runtime.load(folder)
    assert call("--resume", str(folder)) == 1
    assert call("--fork", str(folder), "--agent.learning-rate", "1e-3", "--name", "better") == 0
    assert tiny.summary(tmp_path / "better")["diverged"] == {}


@pytest.mark.slow
def test_debug_says_where_a_nan_came_from(tmp_path, capsys):
    code = tiny.call("train", tmp_path, "--debug", "--agent.learning-rate", "1e30")
    said = capsys.readouterr().err
    assert code == 1
    assert "debug: every number and index is checked, which is slow." in said
    assert "nan generated by primitive" in said and "jaxrl/" in said


def test_members_keep_their_names_and_keys(tmp_path):
    members = Members(
        [{"seed": 3, "clip": 0.1}, {"seed": 4, "clip": 0.25}], {"clip": np.float32([0.1, 0.25])}
    )
    assert members.name(1) == "seed 4, clip 0.25"
    assert members.by_setting() == {"clip 0.1": [0], "clip 0.25": [1]}
    assert Members([{"seed": 3}, {"seed": 4}]).by_setting() == {"": [0, 1]}
    members.write(tmp_path / "members.json")
    read = read_members(tmp_path)
    assert read.labels == members.labels
    assert read.hyper["clip"].tobytes() == members.hyper["clip"].tobytes()
    data = lambda keys: np.asarray(jax.random.key_data(keys))
    one = Members([{"seed": 4}])
    np.testing.assert_array_equal(data(members.keys("pcg"))[1], data(one.keys("pcg")))
    with pytest.raises(UserError, match="cannot be read"):
        read_members(tmp_path / "nowhere")


def test_an_agent_that_goes_on_from_another_needs_one(no_training):
    agent = {"num_policies": 2, "torso": {"hidden": [4]}, "data": {"name": "medium"}}
    settings = {"algorithm": "uni_o4_improvement", "env": "pendulum", "agent": agent}
    said = r"'uni_o4_improvement' cannot begin with new weights, since it continues uni_o4\b"
    with pytest.raises(UserError, match=said):
        building.build(configuration.experiment(settings))
    for before in ("warm_start", "fork"):
        building.build(configuration.experiment(settings | {before: "runs/before"}))
    building.build(configuration.experiment(settings | {"algorithm": "uni_o4"}))


def test_plans_round_up_to_whole_updates():
    config = tiny.config(steps=100, log_every=1, evaluate_every=-1, checkpoint_every=0)
    algorithm = building.build(config)[1]
    assert algorithm.env_steps == tiny.ENV_STEPS
    plan = building.plan(config, algorithm)
    assert dataclasses.astuple(plan) == (4, 1, 0, 1, 0)
