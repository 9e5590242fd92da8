"""Sweeps on a real cluster of Ray: two nodes on this machine, one of which is killed."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from jaxrl.commands import command_line
from jaxrl.runtime import checkpoints, run_folder
from tests.runtime import tiny
from tests.sweeps.test_launching import assert_same_sweep

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

LONG = ["--steps", "16000"]  # so that there is something left to do when a node is lost
SWEEPS = {
    "programs": ["--vary", "hidden=4/8", "learning-rate=1e-3,1e-4", "--seeds", "2", *LONG],
    "halving": ["--vary", "clip=0.1,0.2,0.3,0.4", "--halving", "2", "--chunk", "2"],
    "pbt": ["--vary", "learning-rate=log(1e-4,1e-2)", "clip=0.1,0.3", "--samples", "4",
            "--pbt", "224"],
    "optuna": ["--vary", "learning-rate=log(1e-4,1e-2)", "hidden=4/8", "--samples", "6",
               "--optuna", "3"],
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster whose first node has one CPU."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (tiny.environment() | {"RAY_USAGE_STATS_ENABLED": "0"}).items():
            patch.setenv(name, value)  # which the nodes inherit
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        patch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def second(cluster):
    """Return a second node of the cluster, with one CPU."""
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Return a function from a kind of sweep to its folder, trained in this process once."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "sweep"
            assert sweep(made[kind].parent, kind) == 0
        return made[kind]

    return get


def sweep(out, kind, *words):
    return tiny.call("sweep", out, "--name", "sweep", "--quiet", *SWEEPS[kind], *words)


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint, -1 if there is none."""
    folder = run_folder.checkpoints(run)
    return max(checkpoints.steps(folder), default=-1) if folder.is_dir() else -1


def test_a_node_that_is_killed_costs_its_part_the_work_since_the_last_checkpoint(
    cluster, second, local, tmp_path, capfd
):
    whole, folder = local("programs"), tmp_path / "sweep"

    def kill():
        while not all(newest(folder / f"program{i}") > 0 for i in (1, 2)):
            time.sleep(0.02)
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert sweep(tmp_path, "programs", "--launcher", "ray") == 0
    killer.join()
    said = [line for line in capfd.readouterr().err.splitlines() if " was lost" in line]
    assert len(said) == 1
    name, step = said[0].split()[0], int(said[0].rstrip(".").split()[-1])
    assert step > 0
    assert_same_sweep(folder, whole)
    other = {"program1": "program2", "program2": "program1"}[name]
    log = (folder / f"{other}.log").read_text()
    assert "Resuming" not in log
    # The part continued from the checkpoint that was there, and logged nothing twice.
    assert tiny.summary(folder / name)["updates"] == 500


@pytest.mark.parametrize("kind", ["halving", "pbt", "optuna"])
def test_selections_are_as_here(kind, cluster, second, local, tmp_path):
    if kind == "optuna":
        pytest.importorskip("optuna")
    assert sweep(tmp_path, kind, "--launcher", "ray") == 0
    assert_same_sweep(tmp_path / "sweep", local(kind))
    if kind == "pbt":
        lineage = [path / "lineage.csv" for path in (tmp_path / "sweep", local(kind))]
        assert lineage[0].read_text() == lineage[1].read_text()


def test_an_interrupt_saves_all_tasks_and_the_sweep_continues_there(
    cluster, second, local, tmp_path
):
    folder = tmp_path / "sweep"
    words = ["--name", "sweep", *SWEEPS["programs"], "--launcher", "ray"]
    run = tiny.process("sweep", tiny.write_settings(tmp_path), *words, new_session=True)
    while run.poll() is None and not all(newest(folder / f"program{i}") > 0 for i in (1, 2)):
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C in a terminal, to all processes
    _, said = run.communicate()
    assert run.returncode == 130, said
    assert "Stopping the tasks, which save" in said
    assert f"jaxrl sweep --resume {folder} --launcher ray" in said
    for name in ("program1", "program2"):
        summary = tiny.summary(folder / name)
        assert summary["stopped_because"] in ("interrupted", "terminated"), said
        assert newest(folder / name) == summary["updates"]
    words = ["--resume", str(folder), "--quiet", "--launcher", "ray"]
    assert command_line.call(tiny.sweep_script.main, words) == 0
    assert_same_sweep(folder, local("programs"))


def test_resources_that_no_node_has(cluster, tmp_path, capsys):
    for words in (["--cpus", "64"], ["--gpus", "1"], ["--ram", "100000"]):
        assert sweep(tmp_path, "programs", "--launcher", "ray", *words) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: No node of the Ray cluster has ") and "there are:" in said
    assert not (tmp_path / "sweep").exists()


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch, capsys):
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    assert sweep(tmp_path, "programs", "--launcher", "ray") == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert said[0].startswith("error: Ray cannot be reached (") and len(said) == 1
