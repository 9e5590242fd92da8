"""Sweeps of several runs: programs, chunks and segments, killed between and within them, resume to
the same results."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from jaxrl import runtime
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.runtime import checkpoints, run_folder
from jaxrl.runtime.members import read_members
from jaxrl.runtime.session import Session
from jaxrl.sweeps import memory
from tests.runtime import tiny

SWEEPS = {
    "programs": ["--vary", "hidden=4/8", "learning-rate=1e-3,1e-4", "--seeds", "2"],
    "halving": ["--vary", "clip=0.1,0.2,0.3,0.4", "--halving", "2", "--chunk", "2"],
    "pbt": [
        "--vary",
        "learning-rate=log(1e-4,1e-2)",
        "clip=0.1,0.3",
        "--samples",
        "4",
        "--pbt",
        "224",
    ],
}
RATE = "optimizer.learning_rate"


def sweep(out: Path, kind: str) -> int:
    words = [*SWEEPS[kind], "--name", "sweep", "--quiet", "--log-every", "32", "--keep", "9"]
    return tiny.call("sweep", out, *words)


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    """Return a function from a kind of sweep to its folder, made once."""
    made = {}

    def get(kind):
        if kind not in made:
            out = tmp_path_factory.mktemp(kind)
            assert sweep(out, kind) == 0
            made[kind] = out / "sweep"
        return made[kind]

    return get


def table(folder: Path, name: str = "sweep.csv") -> list[dict[str, str]]:
    with open(folder / name) as file:
        return list(csv.DictReader(file))


def runs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def first_arrays(run: Path) -> dict[str, np.ndarray]:
    found = run_folder.checkpoints(run)
    return checkpoints.restore_raw(found / f"step_{checkpoints.steps(found)[0]:012d}")[0]


def last_returns(folder: Path) -> dict[str, float]:
    return {row["point"]: float(row["return"]) for row in table(folder)}


@pytest.mark.parametrize(
    ("kind", "where"),
    [("programs", "program2"), ("halving", "program1-chunk2"), ("pbt", "program1-segment2")],
)
def test_a_sweep_that_was_interrupted_goes_on_to_the_same_bits(
    kind, where, sweep_folder, tmp_path, monkeypatch
):
    whole, folder = sweep_folder(kind), tmp_path / "sweep"
    happen = Session._on_event

    def interrupt(self, name, step, progress):
        if self.folder.name == where and self.interrupt.number is None:
            signal.raise_signal(signal.SIGINT)
        return happen(self, name, step, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_on_event", interrupt)
        with pytest.raises(SystemExit) as stopped:
            sweep(tmp_path, kind)
    assert stopped.value.code == 130
    assert tiny.summary(folder / where)["stopped_because"] == "interrupted"
    before = {name: os.stat(folder / name / "summary.json").st_mtime_ns for name in runs(folder)}
    assert set(before) < set(runs(whole)) or kind == "programs"
    assert command_line.call(tiny.train_script.main, ["--resume", str(folder), "--quiet"]) == 0
    assert runs(folder) == runs(whole)
    for name in runs(whole):
        tiny.assert_same_run(folder / name, whole / name)
        if name in before and name != where:  # a finished run is left alone
            assert os.stat(folder / name / "summary.json").st_mtime_ns == before[name]
    for name in ("sweep.csv", *(["lineage.csv"] if kind == "pbt" else ())):
        assert (folder / name).read_text() == (whole / name).read_text()


def test_programs_in_one_table(sweep_folder):
    folder = sweep_folder("programs")
    assert runs(folder) == ["program1", "program2"]
    rows = table(folder)
    assert len(rows) == 4 * 2 * 3
    settings = {row["point"]: (row["torso.hidden"], row[RATE]) for row in rows}
    grid = [("4", "0.001"), ("4", "0.0001"), ("8", "0.001"), ("8", "0.0001")]
    assert settings == dict(zip("0123", grid, strict=True))
    last = {(row["point"], row["seed"]): float(row["return"]) for row in rows}
    means = [np.mean([last[row["point"], seed] for seed in "01"]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    for program, points in (("program1", "01"), ("program2", "23")):
        returns = [last[point, seed] for point in points for seed in "01"]
        assert tiny.summary(folder / program)["returns"] == returns
    assert runtime.load(folder / "program2", 3).config.agent.torso.hidden == (8,)
    with pytest.raises(UserError, match="holds the runs of a sweep; name one of its folders"):
        runtime.load(folder, 0)
    with pytest.raises(UserError, match="is a sweep of 4 points; choose one with point="):
        runtime.load(folder)
    name = f"torso.hidden 8, {RATE} 0.0001"
    found = [runtime.load(folder, seed, point=name) for seed in (0, 1)]
    for seed, trained in enumerate(found):
        assert trained.config.agent.torso.hidden == (8,)
        assert float(trained.policy.state.hyper[RATE]) == pytest.approx(1e-4)
        assert trained.members.labels[2 + seed]["seed"] == seed
    best = runtime.load(folder, point="best").config.agent.torso.hidden
    assert ",".join(map(str, best)) == rows[0]["torso.hidden"]


def test_a_program_is_what_a_sweep_of_its_own_is(sweep_folder, tmp_path):
    words = ["--vary", "learning-rate=1e-3,1e-4", "--agent.hidden", "8", "--seeds", "2"]
    assert tiny.call("sweep", tmp_path, *words, "--name", "alone", "--quiet") == 0
    arrays = tiny.arrays(tmp_path / "alone")
    tiny.assert_same_arrays(arrays, tiny.arrays(sweep_folder("programs") / "program2"))
    assert "program1" not in runs(tmp_path / "alone")


def test_chunks_that_fit_are_kept_on_resume(sweep_folder, tmp_path, monkeypatch):
    """Chunks are as requested, and the program is not measured again."""
    words = ["--vary", "clip=0.1,0.2,0.3,0.4", "--steps", "160", "--name", "sweep", "--quiet"]
    monkeypatch.setattr(memory, "width", lambda *_, **__: 2)
    assert tiny.call("sweep", tmp_path, *words) == 0
    folder = tmp_path / "sweep"
    assert runs(folder) == ["program1-chunk1", "program1-chunk2"]
    assert json.loads((folder / "sweep.json").read_text())["chunks"] == [2]
    for name in runs(folder):
        tiny.assert_same_arrays(
            tiny.arrays(folder / name), tiny.arrays(sweep_folder("halving") / name)
        )
    before = (folder / "sweep.csv").read_text()
    shutil.rmtree(folder / "program1-chunk2")
    monkeypatch.setattr(memory, "width", None)
    assert command_line.call(tiny.sweep_script.main, ["--resume", str(folder), "--quiet"]) == 0
    assert (folder / "sweep.csv").read_text() == before


def test_seeds_that_do_not_fit_are_trained_as_a_sweep(finished_pair, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "width", lambda *_, **__: 2)
    folder = tiny.train(tmp_path, "run", "--seeds", "4")
    assert "Not all seeds fit into memory at once" in capsys.readouterr().err
    assert runs(folder) == ["program1-chunk1", "program1-chunk2"]
    tiny.assert_same_arrays(tiny.arrays(folder / "program1-chunk1"), tiny.arrays(finished_pair))
    assert tiny.resume(folder) == folder  # finished
    assert read_members(tiny.train(tmp_path, "two", "--seeds", "2")) == read_members(finished_pair)


def test_a_resumed_sweep_is_as_it_was(sweep_folder, tmp_path, capsys):
    folder = tmp_path / "sweep"
    shutil.copytree(sweep_folder("programs"), folder)
    resume = lambda *words: command_line.call(
        tiny.sweep_script.main, ["--resume", str(folder), "--quiet", *words]
    )
    assert resume("--chunk", "2") == 2
    assert "A resumed sweep searches as before" in capsys.readouterr().err
    assert resume("--steps", "6400") == 2
    assert "steps is 6400 here and 640 in" in capsys.readouterr().err
    record = json.loads((folder / "sweep.json").read_text())
    for broken in ({**record, "chunks": [4]}, {"points": []}, {**record, "search": {"x": 1}}):
        (folder / "sweep.json").write_text(json.dumps(broken))
        assert resume() == 2
        assert f"error: '{folder}/sweep.json' cannot be read: " in capsys.readouterr().err
    record["points"][0]["env_params.opponent"] = "marked:environment"
    (folder / "sweep.json").write_text(json.dumps(record))
    assert resume() == 2
    assert (
        f"error: '{folder}' names code outside of jaxrl, marked:environment"
        in capsys.readouterr().err
    )


def test_a_program_that_cannot_learn_costs_nothing_to_the_others(tmp_path, capsys):
    words = ["--vary", "hidden=4/8", "--agent.learning-rate", "1e30", "--seeds", "4", "--quiet"]
    assert tiny.call("sweep", tmp_path, *words, "--name", "sweep") == 0
    folder, said = tmp_path / "sweep", capsys.readouterr().err
    assert "program1: A loss was not finite" in said and "program2: A loss" in said
    before = (folder / "sweep.csv").read_text()
    assert command_line.call(tiny.sweep_script.main, ["--resume", str(folder), "--quiet"]) == 0
    assert (folder / "sweep.csv").read_text() == before
    assert capsys.readouterr().err == ""


def test_halving_goes_on_with_the_best(sweep_folder):
    folder = sweep_folder("halving")
    assert json.loads((folder / "sweep.json").read_text())["chunks"] == [2]
    rungs = {1: "160", 2: "320", 3: "640"}
    rows = table(folder)
    at = lambda k: {row["point"]: float(row["return"]) for row in rows if row["steps"] == rungs[k]}
    one, two, three = at(1), at(2), at(3)
    best = lambda scores, n: sorted(sorted(scores), key=lambda p: -scores[p])[:n]
    assert len(one) == 4 and set(two) == set(best(one, 2)) and list(three) == best(two, 1)
    order = list(dict.fromkeys(row["point"] for row in rows))
    assert order[:2] == sorted(two, key=lambda p: (p not in three, p)) and set(order) == set(one)
    for run in folder.glob("*-segment*"):
        config = run_folder.read_config(run)
        parents = json.loads((run / "members.json").read_text())["parents"]
        old, new = tiny.arrays(Path(config.fork)), first_arrays(run)
        for name in new:
            if name.startswith(".run."):
                alone = old[".run.step"].ndim == 0
                chosen = old[name] if alone else old[name][parents]
                assert chosen.tobytes() == new[name].tobytes(), name


def test_populations_copy_states_and_perturb_hypers(sweep_folder):
    folder = sweep_folder("pbt")
    assert runs(folder) == ["program1", "program1-segment2", "program1-segment3"]
    lineage = table(folder, "lineage.csv")
    assert len(lineage) == 3 * 4 and sum(row["point"] != row["parent"] for row in lineage) == 2
    for segment in (2, 3):
        earlier = folder / ("program1" if segment == 2 else "program1-segment2")
        rows = [row for row in lineage if row["segment"] == str(segment)]
        scores = tiny.summary(earlier)["returns"]
        (copy,) = (i for i in range(4) if rows[i]["parent"] != rows[i]["point"])
        parent = int(rows[copy]["parent"])
        assert scores[parent] == max(scores) and scores[copy] == min(scores)
        old, new = tiny.arrays(earlier), first_arrays(folder / f"program1-segment{segment}")
        for name in new:
            kept = [i for i in range(4) if i != copy]
            if name.startswith(".run."):
                assert new[name][kept].tobytes() == old[name][kept].tobytes(), name
            if name.startswith(".run.state") and "hyper" not in name:
                assert new[name][copy].tobytes() == old[name][parent].tobytes(), name
        assert new[".run.key"][copy].tobytes() == old[".run.key"][copy].tobytes()
        rates = np.asarray([float(row[RATE]) for row in rows], np.float32)
        np.testing.assert_array_equal(new[f".run.state.agent.hyper['{RATE}']"], rates)
        assert rates[copy] != old[f".run.state.agent.hyper['{RATE}']"][copy]
        assert (rates >= np.float32(1e-4)).all() and (rates <= np.float32(1e-2)).all()
