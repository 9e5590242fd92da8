"""Runs in several processes: how they find each other, that they agree, and how they end.

The slow tests start real processes, as SLURM would, on virtual devices of one machine.
"""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.commands import command_line
from jaxrl.commands import suite as suite_script
from jaxrl.commands import sweep as sweep_script
from jaxrl.commands import train as train_script
from jaxrl.core.errors import UserError
from jaxrl.runtime import building, configuration, process_group, processes, watching
from jaxrl.runtime.members import seed_members
from jaxrl.runtime.process_group import Group
from tests.runtime import tiny

# ------------------------------------------------------------------------------- who they are


def config(**options):
    return configuration.experiment(options)


def slurm(process=1, count=4, **more):
    """Return what SLURM sets for a task of a step, and `more`."""
    return {
        "SLURM_JOB_ID": "70007",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_NTASKS": str(count),
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process % 2),
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    } | more


def open_mpi(**more):
    return {
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    } | more


def cloud_tpu(**more):
    return {"TPU_WORKER_HOSTNAMES": "t-0,t-1,t-2,t-3", "TPU_WORKER_ID": "2"} | more


SLURM_PORT = 61440 + 70007 % 4096
ONE_EACH = slurm(SLURM_STEP_TASKS_PER_NODE="1(x4)")
MPI_PORT = 61440 + 1531576320 // 4096 % 4096


@pytest.mark.parametrize(
    ("variables", "group"),
    [
        (slurm(), Group(f"gpu03:{SLURM_PORT}", 4, 1, 1, "SLURM")),
        (slurm(SLURM_STEP_ID="2"), Group(f"gpu03:{SLURM_PORT + 122}", 4, 1, 1, "SLURM")),
        (ONE_EACH, Group(f"gpu03:{SLURM_PORT}", 4, 1, None, "SLURM")),
        (slurm(CUDA_VISIBLE_DEVICES="3"), Group(f"gpu03:{SLURM_PORT}", 4, 1, None, "SLURM")),
        (slurm(CUDA_VISIBLE_DEVICES="2,3"), Group(f"gpu03:{SLURM_PORT}", 4, 1, 1, "SLURM")),
        (slurm(SLURM_STEP_NUM_TASKS="2"), Group(f"gpu03:{SLURM_PORT}", 2, 1, 1, "SLURM")),
        (slurm(JAX_COORDINATOR_PORT="99"), Group("gpu03:99", 4, 1, 1, "SLURM")),
        (slurm(JAX_COORDINATOR_ADDRESS="a:99"), Group("a:99", 4, 1, 1, "SLURM")),
        (open_mpi(), Group(f"10.96.0.1:{MPI_PORT}", 8, 5, 1, "Open MPI")),
        (
            open_mpi(OMPI_MCA_orte_hnp_uri="1531576320.0;tcp6://[fe80::1,2620::2]:43370"),
            Group(f"fe80::1:{MPI_PORT}", 8, 5, 1, "Open MPI"),
        ),
        (cloud_tpu(), Group("t-0:8482", 4, 2, None, "Cloud TPU")),
        (
            cloud_tpu(
                MEGASCALE_NUM_SLICES="2",
                MEGASCALE_SLICE_ID="1",
                MEGASCALE_COORDINATOR_ADDRESS="job-0:8080",
            ),
            Group("job-0:8482", 8, 6, None, "Cloud TPU"),
        ),
    ],
)  # fmt: skip
def test_launchers_say_who_the_processes_are(variables, group):
    assert process_group.read_group(config(), variables) == group


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node001", "node001"),
        ("node001,other", "node001"),
        ("node[001-015],other", "node001"),
        ("node[07,011-015]", "node07"),
        ("rack[2-3]-ib,other", "rack2-ib"),
    ],
)
def test_the_first_host_of_a_list(nodes, host):
    assert process_group.first_host(nodes) == host


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({}, {}),
        ({}, slurm(process=0, count=1)),
        ({}, {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}),  # without srun
        ({}, slurm(process=0, SLURM_STEP_NUM_TASKS="1")),
        ({"processes": 1}, slurm()),
        ({"processes": 1, "process": 0}, open_mpi()),
        ({}, cloud_tpu(TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0")),
    ],
)
def test_a_process_that_trains_alone(options, variables):
    assert process_group.read_group(config(**options), variables) is None


def test_options_prevail_over_variables():
    by_hand = {"coordinator": "a:1", "processes": 3, "process": 2}
    assert process_group.read_group(config(**by_hand), {}) == Group("a:1", 3, 2)
    found = process_group.read_group(config(coordinator="a:1"), slurm())
    assert found == Group("a:1", 4, 1, 1, "SLURM")
    assert process_group.read_group(config(coordinator="auto"), slurm()) == Group("auto")


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        ({"coordinator": "a:1"}, {}, "--coordinator without --processes and --process; a run in"),
        ({"processes": 2, "process": 1}, {}, "--processes and --process without --coordinator;"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, {}, "it may be 0 to 1"),
        ({"coordinator": "a:1", "processes": -2, "process": 0}, {}, "processes is -2; it must be"),
        ({"coordinator": "a", "processes": 2, "process": 0}, {}, "it must be HOST:PORT"),
        ({"coordinator": "a:x", "processes": 2, "process": 0}, {}, "it must be HOST:PORT"),
        ({"coordinator": "a:70000", "processes": 2, "process": 0}, {}, "it must be HOST:PORT"),
        ({}, slurm(SLURM_NTASKS="many"), "SLURM_NTASKS is 'many'; it must be a whole number"),
        ({}, slurm(SLURM_STEP_NODELIST=","), "it names no host"),
        ({"process": 7}, slurm(), "process is 7; of 4 processes it may be 0 to 3"),
        ({}, open_mpi(OMPI_MCA_orte_hnp_uri=""), "Open MPI started 8 processes without saying"),
    ],
)
def test_options_that_fit_no_run_are_refused(options, variables, said):
    with pytest.raises(UserError, match=said):
        process_group.read_group(config(**options), variables)


def test_a_refusal_is_a_sentence_and_exit_code_2(capsys):
    assert command_line.call(train_script.main, ["ppo/cartpole", "--coordinator", "a:1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --coordinator without --processes and --process; ")


def test_sweeps_and_suites_are_refused(capsys, monkeypatch, tmp_path):
    for name, value in slurm().items():
        monkeypatch.setenv(name, value)
    words = ["ppo/cartpole", "--out", str(tmp_path), "--vary", "learning-rate=1e-3,1e-4"]
    assert command_line.call(sweep_script.main, words) == 2
    assert command_line.call(suite_script.main, ["minatar"]) == 2
    sweep, suite = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    said = "runs in one process, not in 4; several processes train one configuration together"
    assert f"error: A sweep {said}" in sweep and f"error: A suite {said}" in suite


def test_what_runs_in_one_process_only(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    debug = config(algorithm="ppo", env="cartpole", debug=True)
    with pytest.raises(UserError, match="debug checks a run in one process"):
        building.program(debug, building.build(debug)[1], seed_members(debug))
    pytest.importorskip("gymnasium")
    host = config(algorithm="ppo", env="gymnasium/CartPole-v1", devices=4)
    with pytest.raises(UserError, match="does not support 2 processes; train with --processes 1"):
        building.program(host, building.build(host)[1], seed_members(host))


def test_a_run_is_spread_over_all_devices(monkeypatch):
    assert processes.spread(config(devices=2)) == config(devices=2)
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "least", lambda number: 4)  # of eight
    assert processes.spread(config()).devices == 8
    assert processes.spread(config(devices=3, resume="runs/other")).devices == 8
    mesh = {"seeds": 2, "batch": 4}
    assert processes.spread(config(mesh=mesh)) == config(mesh=mesh)
    with pytest.raises(UserError, match="devices is 3, but the 2 processes have 8"):
        processes.spread(config(devices=3))
    with pytest.raises(UserError, match="mesh has 2 devices, but the 2 processes have 8"):
        processes.spread(config(mesh={"batch": 2}))
    monkeypatch.setattr(processes, "least", lambda number: 3)
    with pytest.raises(UserError, match="have 8 devices, not all equally many"):
        processes.spread(config())


def test_a_process_alone_agrees_with_itself():
    assert processes.count() == 1 and processes.is_first()
    assert processes.largest(3) == processes.least(3) == processes.of_first(3) == 3
    assert processes.from_first(lambda: "here") == "here"
    tree = {"x": jax.numpy.arange(3), "key": jaxrl.key(0)}
    assert processes.localize(tree) is tree
    assert isinstance(processes.fetch(tree["x"]), np.ndarray)


# ---------------------------------------------------------------------------------- the watch


@pytest.fixture
def end_messages(monkeypatch):
    """Sentences with which processes would have ended, in the order in which they were said."""
    said, changed = [], threading.Condition()

    def end(message):
        with changed:
            said.append(message)
            changed.notify_all()

    def wait_for(count):
        with changed:
            assert changed.wait_for(lambda: len(said) >= count, 60), said
        return said

    monkeypatch.setattr(watching, "end_process", end)
    return wait_for


def free_port():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def gather(count, *, settings=()):
    """Return the watches of `count` processes, all in this one, once they have found each other.

    settings: number of a process -> settings that differ from the others'.
    """
    port, settings = free_port(), dict(settings)
    found, errors = {}, []

    def follow(number):
        try:
            found[number] = watching.Follower(
                ("localhost", port), number, count, settings.get(number, "same"), 60
            )
        except UserError as error:
            errors.append(error)

    followers = [threading.Thread(target=follow, args=(i,)) for i in range(1, count)]
    for follower in followers:
        follower.start()
    found[0] = watching.Hub(port, count, settings.get(0, "same"))
    try:
        found[0].wait_for_all(60, lambda said: None)
    except UserError as error:
        errors.append(error)
    for follower in followers if not errors else ():
        follower.join(60)
    if errors:
        raise errors[0]
    return [found[i] for i in range(count)]


def die(watch):
    """End a process's connection, as the operating system does with a killed one's."""
    watch._connection.shutdown(socket.SHUT_RDWR)


def test_the_death_of_one_ends_the_others(end_messages):
    hub, _, second = gather(3)
    hub.advice = lambda: "Continue with jaxrl resume runs/x"
    die(second)
    said = set(end_messages(3))
    assert "error: Process 2 of the run's 3 ended, so process 1 ends too." in said
    assert (
        "error: Process 2 of the run's 3 ended, so process 0 ends too. Continue with jaxrl resume "
        "runs/x" in said
    )


def test_those_who_leave_together_are_not_dead(end_messages):
    watches = gather(3)
    for watch in watches[1:] + watches[:1]:
        watch.leave()
    for watch in watches[1:]:
        die(watch)
    assert end_messages(0) == []


def test_processes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="Process 1 has other settings than process 0; give all"):
        gather(2, settings={1: "other"})
    port = free_port()
    hub = watching.Hub(port, 2, "same")
    with pytest.raises(UserError, match="Process 0 is one of 2, and process 1 one of 3"):
        watching.Follower(("localhost", port), 1, 3, "same", 60)
    with pytest.raises(UserError, match="There are two processes with number 0"):
        watching.Follower(("localhost", port), 0, 2, "same", 60)
    with pytest.raises(UserError, match=f"cannot listen on port {port}: .*; give another port"):
        watching.Hub(port, 2, "same")
    # Which of the two refused processes it names is a matter of time.
    with pytest.raises(UserError, match=r"Process 0 is one of 2|There are two processes"):
        hub.wait_for_all(60, lambda said: None)


def test_processes_that_do_not_come_are_named(monkeypatch):
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 0.0)
    said = []
    with pytest.raises(UserError, match=r"Process 1, 2 of 3 did not come within 0 seconds"):
        watching.Hub(free_port(), 3, "same").wait_for_all(0.01, said.append)
    assert said == ["Waiting for Process 1, 2 of 3 ..."]
    port = free_port()
    with pytest.raises(UserError, match=f"Process 0 does not answer at localhost:{port}"):
        watching.Follower(("localhost", port), 1, 2, "same", 0.0)


def test_traffic_is_relayed_and_outlives_its_service(end_messages):
    """JAX's client would abort if its connection broke before the watch has said why."""
    hub, follower = gather(2)
    place = lambda address: (address.rpartition(":")[0], int(address.rpartition(":")[2]))
    with (
        socket.create_server(place(hub.jax_address)) as service,
        socket.create_connection(place(follower.jax_address)) as client,
    ):
        client.sendall(b"PRI * HTTP/2.0")
        served, _ = service.accept()
        assert served.recv(64) == b"PRI * HTTP/2.0"
        served.sendall(b"answer")
        assert client.recv(64) == b"answer"
        served.close()
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(64)
    assert end_messages(0) == []


# ------------------------------------------------------------------------------- whole runs

# Sends this process a signal before the chunk with an update, in the process with a number.
SIGNALED = """
import os, sys
from jaxrl import commands
from jaxrl.runtime import driver

victim, number, update = map(int, sys.argv[1:4])
compiled = driver.Program.compile

def compile(self, progress):
    chunk = compiled(self, progress)

    def acting(progress, steps):
        if int(progress.run.step) < update <= int(progress.run.step) + steps:
            os.kill(os.getpid(), number)
        return chunk(progress, steps)

    return acting

if int(os.environ["SLURM_PROCID"]) == victim:
    driver.Program.compile = compile
del sys.argv[1:4]
commands.run()
"""
DEVICES = 4  # of all processes together
jobs = itertools.count(os.getpid() * 64)


def free_job():
    """Return the number of a job whose port is free."""
    for job in jobs:
        try:
            with socket.create_server(("", process_group.FIRST_PORT + job % process_group.PORTS)):
                return job
        except OSError:
            continue


def launch(count, *words, signaled=None):
    """Run `jaxrl WORDS` in `count` processes with SLURM's variables.

    signaled: number of a process, a signal that it gets, and the update before which it does.

    Returns:
        (exit code, stdout, stderr) of each.
    """
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={DEVICES // count}"
    job = {"SLURM_JOB_ID": str(free_job()), "SLURM_STEP_NODELIST": "localhost"}
    command = ["-m", "jaxrl"] if signaled is None else ["-c", SIGNALED, *map(str, signaled)]
    started = [
        subprocess.Popen(
            [sys.executable, *command, *words],
            env=tiny.environment() | slurm(i, count, **job) | {"XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    try:
        said = [process.communicate(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, *texts) for p, texts in zip(started, said, strict=True)]


def train(folder, count, *words, signaled=None):
    """Train the tiny run in `folder` by `count` processes; return it, and what they said."""
    settings = tiny.write_settings(folder)
    said = launch(count, "train", settings, "--name", "run", *words, signaled=signaled)
    return folder / "run", said


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run in one process."""
    return tiny.train(tmp_path_factory.mktemp("one"), "run", "--devices", str(DEVICES))


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    return train(tmp_path_factory.mktemp("two"), 2)


def assert_close(a, b):
    """Assert that checkpoints and logs are the same up to rounding."""
    ones, others = tiny.arrays(a), tiny.arrays(b)
    assert ones.keys() == others.keys()
    for name, x in ones.items():
        assert x.dtype == others[name].dtype
        np.testing.assert_allclose(x, others[name], 1e-5, 1e-5, err_msg=name)
    one, other = tiny.rows(a), tiny.rows(b)
    numbers = lambda x: np.asarray([np.nan if v is None else v for v in np.ravel(x)], float)
    assert len(one) == len(other)
    for row, same in zip(one, other, strict=True):
        metrics, others = row.pop("metrics"), same.pop("metrics")
        assert row == same and metrics.keys() == others.keys()
        for name, x in metrics.items():
            np.testing.assert_allclose(numbers(x), numbers(others[name]), 1e-5, 1e-5, err_msg=name)


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_one_writes(alone, by_two):
    folder, (first, second) = by_two
    assert first[0] == 0, first[2]
    assert second == (0, "", "")
    assert "Mesh of 4 devices (cpu) of 2 processes: batch=4." in first[2]
    assert first[2].splitlines()[-1] == f"Saved in {folder}"
    assert tiny.summary(folder)["finished"]
    assert {p.name for p in folder.iterdir()} == {p.name for p in alone.iterdir()}
    assert {p.name for p in folder.parent.iterdir()} == {"run", "tiny.yaml"}  # no draft
    assert_close(alone, folder)


@pytest.mark.slow
def test_four_processes_train_what_one_does(tmp_path):
    """Seeds and environments are both split, so no process holds a whole row of metrics."""
    words = ("--seeds", "2", "--mesh", "seeds=2,batch=2")
    folder, said = train(tmp_path, 4, *words)
    assert [code for code, *_ in said] == [0] * 4, said
    assert_close(tiny.train(tmp_path, "alone", *words), folder)


@pytest.mark.slow
def test_a_signal_to_one_saves_and_ends_all(alone, by_two, tmp_path):
    """The run then continues in as many processes with the same bits, and in one."""
    folder, (first, second) = train(tmp_path, 2, signaled=(1, int(signal.SIGTERM), 10))
    assert first[0] == second[0] == 128 + signal.SIGTERM, first[2] + second[2]
    last = f"terminated: saved. Continue with jaxrl resume {folder}"
    assert first[2].splitlines()[-1] == last and second[1:] == ("", "")
    assert tiny.summary(folder)["stopped_because"] == "terminated"
    assert 10 <= tiny.summary(folder)["updates"] < 20
    assert_close(alone, tiny.resume(shutil.copytree(folder, tmp_path / "copy")))
    said = launch(2, "resume", str(folder))
    assert [code for code, *_ in said] == [0, 0], said
    assert "Resuming" in said[0][2]
    tiny.assert_same_run(by_two[0], folder)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_with_a_sentence(alone, tmp_path, victim):
    folder, said = train(tmp_path, 2, signaled=(victim, int(signal.SIGKILL), 10))
    other = 1 - victim
    assert said[victim][0] == -signal.SIGKILL
    code, _, text = said[other]
    assert code == watching.LOST and text.splitlines()[-1] == (
        f"error: Process {victim} of the run's 2 ended, so process {other} ends too. "
        f"Continue with jaxrl resume {folder}"
    )
    assert "Traceback" not in text and (other == 0 or len(text.splitlines()) == 1)
    meta = max(folder.glob("checkpoints/step_*/meta.json"))
    assert json.loads(meta.read_text())["step"] == 8
    if victim == 1:
        assert_close(alone, tiny.resume(folder))
