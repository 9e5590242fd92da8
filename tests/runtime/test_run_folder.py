import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration, run_folder
from tests.runtime.tiny import environment


def make(out, name="", content="x"):
    with run_folder.draft(str(out), name) as draft:
        (draft / "content").write_text(content)
        return run_folder.publish(draft, name, "ppo-cartpole")


def test_numbers_count_up_and_leave_nothing_else(tmp_path):
    assert [make(tmp_path).name for _ in range(2)] == ["ppo-cartpole-0001", "ppo-cartpole-0002"]
    assert len(list(tmp_path.iterdir())) == 2


def test_runs_that_start_at_once_never_share_a_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda i: make(tmp_path, content=str(i)), range(24)))
    assert len(set(folders)) == 24
    assert sorted(int((f / "content").read_text()) for f in folders) == list(range(24))


def test_a_name_that_is_taken_is_refused_before_and_after_the_start(tmp_path):
    make(tmp_path, "a")
    with pytest.raises(
        UserError, match=r"a' already exists; choose another name, or continue it with jaxrl resume"
    ):
        make(tmp_path, "a", "other")
    with run_folder.draft(str(tmp_path), "b") as draft:
        (tmp_path / "b").mkdir()
        with pytest.raises(UserError, match="already exists"):
            run_folder.publish(draft, "b", "")
    assert (tmp_path / "a" / "content").read_text() == "x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_what_goes_wrong_before_the_first_checkpoint_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), run_folder.draft(str(tmp_path), ""):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def leave_a_draft(out: Path, hold: bool) -> tuple[subprocess.Popen, Path]:
    """Return a process that makes a draft and stays in it, and the draft."""
    code = (
        "import sys, time; from jaxrl.runtime import run_folder\n"
        f"with run_folder.draft({str(out)!r}, '') as draft:\n"
        "    print(draft, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    draft = Path(process.stdout.readline().strip())
    if not hold:
        process.kill()
        process.communicate()
    return process, draft


@pytest.mark.slow
def test_what_a_killed_start_left_goes_at_the_next_one(tmp_path):
    _, left = leave_a_draft(tmp_path, hold=False)
    living, held = leave_a_draft(tmp_path, hold=True)
    before_the_lock = tmp_path / ".new-0123456789ab"
    before_the_lock.mkdir()
    own = tmp_path / ".new-ideas"
    own.mkdir()
    try:
        assert not left.exists() and held.is_dir()  # removed when the live one started
        run = make(tmp_path)
        assert set(tmp_path.iterdir()) == {run, held, own}
    finally:
        living.kill()
        living.communicate()
    again = make(tmp_path)
    assert set(tmp_path.iterdir()) == {run, again, own}


def test_a_draft_is_locked_also_once_it_is_published(tmp_path):
    with run_folder.draft(str(tmp_path), "") as draft:
        run = run_folder.publish(draft, "a", "")
        with pytest.raises(UserError, match="Another process"), run_folder.lock(run):
            pass
    with run_folder.lock(run):
        pass


def test_a_name_that_leads_elsewhere_makes_nothing(tmp_path):
    with pytest.raises(UserError, match="a folder in out"):
        make(tmp_path / "runs", "../escape")
    assert not list(tmp_path.iterdir())


def test_unwritable_output(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="cannot be written"):
            make(out)


def test_a_lock_is_held_through_renaming_and_released(tmp_path):
    (tmp_path / "a").mkdir()
    with run_folder.lock(tmp_path / "a"):
        (tmp_path / "a").rename(tmp_path / "b")
        with (
            pytest.raises(UserError, match="Another process is writing to"),
            run_folder.lock(tmp_path / "b"),
        ):
            pass
    with run_folder.lock(tmp_path / "b"):
        pass
    with pytest.raises(UserError, match="cannot be written"), run_folder.lock(tmp_path / "a"):
        pass


def test_errors_within_a_lock_stay_what_they_are(tmp_path):
    with pytest.raises(BlockingIOError), run_folder.lock(tmp_path):
        raise BlockingIOError


def test_only_a_run_folder_is_one(tmp_path):
    with pytest.raises(UserError, match="There is no run folder"):
        run_folder.check(tmp_path / "missing")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.yaml"):
        run_folder.check(tmp_path)
    config = configuration.experiment(
        {"agent": {"torso": {"hidden": [3]}}, "env_params": {"force": 2}}
    )
    configuration.write(config, tmp_path / "config.yaml")
    assert run_folder.read_config(tmp_path) == config
