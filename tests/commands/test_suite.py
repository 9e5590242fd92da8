"""A suite from its file to its page, with the smallest runs."""

import errno
import json
import re

import jax
import numpy as np
import pytest
from PIL import Image

from jaxrl import envs
from jaxrl.algorithms.offline.shared import making
from jaxrl.commands import suite as command
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.adapters import wrapping
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.runtime import building, configuration, files, log
from jaxrl.suites import bsuite, page
from jaxrl.suites import suite as suites
from jaxrl.suites.suite import SUITES
from tests import rota

SUITE = """
title: Two environments
text: Tiny.
episodes: 2
environments:
  catch: {env: catch, low: -1, high: 1, metrics: [length], strip: 1}
  bandit: {env: bandit, low: 0, high: 1, random: 0.1}
algorithms:
  DQN:
    algorithm: dqn
    steps: 400
    seeds: 2
    minutes: 60
    agent:
      replay: {num_envs: 2, num_steps: 2, updates: 1, batch_size: 4, capacity: 64, warmup: 8}
      torso: {hidden: [4]}
    environments: [catch]
  PPO:
    algorithm: ppo
    steps: 400
    seeds: 3
    minutes: 30
    agent:
      rollouts: {num_envs: 4, num_steps: 10}
      passes: {epochs: 1, minibatches: 1}
      torso: {hidden: [4]}
published:
  - algorithm: PPO
    who: somebody
    steps: 10
    seeds: 4
    returns: {bandit: 0.5}
    margins: {bandit: 0.2}
    source: table 1.
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "two.yaml"
    path.write_text(SUITE)
    return str(path)


def test_a_plan_says_runs_and_hours(suite, capsys):
    assert command.main([suite, "--plan"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said[:-1]] == [
        ["DQN", "catch"], ["PPO", "catch"], ["PPO", "bandit"]
    ]  # fmt: skip
    assert said[-1] == "2.0 hours on two cores are left."
    command.main([suite, "--plan", "--algorithms", "PPO", "--seeds", "6"])
    assert "2.0 hours" in capsys.readouterr().out  # twice the seeds, half of the runs


@pytest.mark.slow
def test_runs_make_records_and_a_page_and_are_not_run_twice(suite, tmp_path, capsys):
    command.main([suite, "--algorithms", "PPO", "--environments", "bandit"])
    command.main([suite, "--algorithms", "DQN"])
    text = (tmp_path / "docs" / "suites" / "two.md").read_text()
    found = json.loads((tmp_path / "docs" / "suites" / "two.json").read_text())
    assert [(x["algorithm"], x["environment"]) for x in found] == [
        ("PPO", "bandit"),
        ("DQN", "catch"),
    ]
    returns = np.asarray(found[0]["returns"])
    assert returns.shape == (3, len(found[0]["steps"])) and found[0]["steps"][-1] >= 400
    line = next(line for line in text.splitlines() if line.startswith("| PPO"))
    middle = float(re.findall(r"[-\d.]+", line.split("|")[5])[0])
    np.testing.assert_allclose(middle, returns[:, -1].mean(), atol=0.01)  # with 3 seeds none is cut
    assert "two-bandit.svg" in text
    assert (tmp_path / "docs" / "suites" / "two-catch.svg").exists()
    length = np.asarray(found[1]["metrics"]["length"])
    assert length.shape == (2,) and f"| DQN | {length.mean():.2f} [" in text
    picture = Image.open(tmp_path / "docs" / "suites" / "two-catch-DQN.png")
    assert picture.height == command.HEIGHT and picture.width > 4 * picture.height
    assert "![DQN in catch](two-catch-DQN.png)" in text
    capsys.readouterr()
    command.main([suite, "--plan"])
    assert capsys.readouterr().out.count("done") == 2
    command.main([suite, "--plan", "--missing"])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["PPO", "catch"], ["0.5", "hours"]
    ]  # fmt: skip
    before = (tmp_path / "runs/suites/two/DQN-catch/metrics.jsonl").read_bytes()
    records = tmp_path / "docs" / "suites" / "two.json"
    records.write_text(records.read_text().replace(found[1]["commit"], "of then"))
    command.main([suite, "--algorithms", "DQN"])
    assert (tmp_path / "runs/suites/two/DQN-catch/metrics.jsonl").read_bytes() == before
    assert json.loads(records.read_text())[1]["commit"] == "of then"  # not the present commit
    path = tmp_path / "two.yaml"
    path.write_text(path.read_text().replace("batch_size: 4", "batch_size: 8"))
    capsys.readouterr()
    command.main([suite, "--plan", "--missing"])
    line = capsys.readouterr().out.splitlines()[0].split()
    assert line[:2] == ["DQN", "catch"] and "done" not in line  # its settings have changed
    command.main([suite, "--pages"])
    text = (tmp_path / "docs" / "suites" / "two.md").read_text()
    assert [line[:5] for line in text.splitlines() if "†" in line] == ["| DQN", "† Tra"]
    assert "- DQN in catch: `agent.replay.batch_size` was 4, is 8\n" in text
    with pytest.raises(UserError, match=r"batch_size is 8 here and 4.*DQN-catch' away"):
        command.main([suite])
    assert not (tmp_path / "runs/suites/two/PPO-catch").exists()  # refused before anything is run


def write_page(suite, tmp_path, last, data=None):
    """Write the page of records whose seeds end with the returns `last`, and return its lines.

    last: (algorithm, environment) -> return of each seed.
    data: (algorithm, environment) -> mean return of the dataset.
    """
    read = command.read(suite)
    config = {(x.algorithm, x.environment): x.config for x in command.runs(read)}
    records = [
        {
            "algorithm": algorithm,
            "environment": environment,
            "config": log.to_jsonable(configuration.to_dict(config[algorithm, environment])),
            "steps": [200, 400],
            "returns": [[0.0, x] for x in returns],
            "metrics": {"length": [1.0] * len(returns)},
            "seconds": {"training": 1.0, "compiling": 1.0},
            "versions": {"jax": "0"},
            "commit": "0",
            **({"data_return": data[algorithm, environment]} if data else {}),
        }
        for (algorithm, environment), returns in last.items()
    ]
    page.write(read, records, tmp_path)
    return (tmp_path / "two.md").read_text().splitlines()


def test_a_cell_counts_the_seeds_that_did_not_learn(suite, tmp_path):
    # The best seed returns 1.1 and random play 0.1, so 0.2 is too little.
    lines = write_page(suite, tmp_path, {("PPO", "bandit"): [0.2, 0.21, 1.1]})
    cells = next(line for line in lines if line.startswith("| PPO")).split("|")
    assert cells[5].endswith("] (1/3 did not learn) ")
    assert any("Random play returns 0.1 (bandit)." in line for line in lines)
    lines = write_page(suite, tmp_path, {("PPO", "bandit"): [0.21, 0.21, 1.1]})
    assert not any("/3 did not learn" in line for line in lines)  # all have learned


def test_a_record_has_the_mean_return_of_its_dataset(suite, tmp_path):
    read = change_suite(
        tmp_path,
        ("catch: {env: catch", "catch: {env: double_mass"),
        ("algorithm: dqn", "algorithm: td3_bc"),
        (
            "replay: {num_envs: 2, num_steps: 2, updates: 1, batch_size: 4, capacity: 64, "
            "warmup: 8}",
            "data: {name: demonstrations, size: 400, batch_size: 4, updates: 2}",
        ),
    )
    run = next(x for x in command.runs(read) if x.algorithm == "DQN")
    env = envs.make("double_mass")
    steps = making.load(env, "demonstrations", 400, 0).transitions
    total, count = np.sum(steps.reward, dtype=np.float64), np.sum(steps.done)
    assert command.data_of(run)["data_return"] == pytest.approx(total / count, rel=1e-5)
    assert command.data_of(next(x for x in command.runs(read) if x.algorithm == "PPO")) == {}


def test_different_data_in_one_environment_are_said(suite, tmp_path):
    last = {("PPO", "catch"): [0.0, 1.0, 1.0], ("DQN", "catch"): [0.0, 1.0]}
    data = {("PPO", "catch"): 0.5, ("DQN", "catch"): 0.25}
    said = "\n".join(write_page(suite, tmp_path, last, data))
    assert "Mean return of the data: 0.5 and 0.25 (catch). Runs with other data in one" in said
    said = "\n".join(write_page(suite, tmp_path, last, dict.fromkeys(data, 0.5)))
    assert "Mean return of the data: 0.5 (catch)." in said and "other data" not in said


def test_the_best_evaluation_stands_apart_from_the_last_one(suite, tmp_path):
    change_suite(tmp_path, ("episodes: 2", "episodes: 2\nbest: true"))
    lines = write_page(suite, tmp_path, {("PPO", "bandit"): [-1.0, -1.0, -1.0]})
    rows = [line for line in lines if line.startswith("| PPO")]
    assert "-1" in rows[0] and rows[1] == "| PPO |  | 0 [0, 0] |"


def test_seeds_are_compared_with_the_best_of_all_algorithms(suite, tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(SUITE.replace("high: 1, metrics", "high: 1, random: -1, metrics"))
    last = {("DQN", "catch"): [-0.9, -0.7], ("PPO", "catch"): [1.0, 1.0, float("nan")]}
    lines = write_page(suite, tmp_path, last)
    cells = {x: next(y for y in lines if y.startswith(f"| {x}")).split("|") for x in ("DQN", "PPO")}
    assert cells["DQN"][4].endswith("] (1/2 did not learn) ")
    # A seed that diverged has its record's lowest return, 0.
    assert "learn" not in cells["PPO"][4] and cells["PPO"][4].startswith(" 0.667 ")


@pytest.mark.parametrize(("values", "best", "count"), [([0, 0.1], 1.0, 2), ([-1, -2], -1.0, 2)])
def test_how_many_seeds_did_not_learn(values, best, count):
    assert page.count_failures(np.asarray(values, float), random=0.0, best=best) == count


def test_a_result_is_the_mean_of_the_last_evaluations():
    found = {"returns": [[0.0, 1.0, 2.0, 6.0], [-1.0, 3.0, float("nan"), float("nan")]]}
    np.testing.assert_allclose(page.finals(found), [6.0, -1.0])
    np.testing.assert_allclose(page.finals(found, 2), [4.0, -1.0])
    np.testing.assert_allclose(page.finals(found, 9), [2.25, (-1 + 3 - 1 - 1) / 4])


def test_published_figures_stand_below_their_algorithm(suite, tmp_path):
    lines = write_page(suite, tmp_path, {("DQN", "catch"): [0, 0], ("PPO", "bandit"): [0, 1, 1]})
    assert [line[:5] for line in lines if line.startswith(("| D", "| P", "| *"))][:3] == [
        "| DQN", "| PPO", "| *PP"
    ]  # fmt: skip
    assert "| *PPO by somebody* | 10 | 4 |  | 0.5 [0.3, 0.7] |  |" in lines
    assert "- *PPO by somebody*: table 1." in lines


@pytest.mark.parametrize(
    ("text", "instead", "message"),
    [
        ("- algorithm: PPO", "- algorithm: SAC", "algorithm of what 'somebody' published"),
        ("returns: {bandit", "returns: {pong", "environment of what 'somebody' published"),
        ("    source: table 1.\n", "", "a published result of .* something is missing"),
    ],
)
def test_published_figures_name_what_is_in_the_suite(suite, tmp_path, text, instead, message):
    (tmp_path / "two.yaml").write_text(SUITE.replace(text, instead))
    with pytest.raises(UserError, match=message):
        command.main([suite, "--plan"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--algorithms", "SAC"), "algorithm of the suite"),
        (("--environments", "pong"), "environment of the suite"),
    ],
)
def test_names_that_are_not_in_it(suite, change, message):
    with pytest.raises(UserError, match=message):
        command.main([suite, "--plan", *change])


CHANGES = """
    environments: [catch, bandit]
    changes:
      catch: {steps: 800, seeds: 4, minutes: 90, agent: {rollouts: {num_steps: 20}}}
longest: 80
"""


def change_suite(tmp_path, *pairs):
    text = SUITE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "two.yaml").write_text(text)
    return command.read(str(tmp_path / "two.yaml"))


def test_an_environment_can_have_a_budget_and_settings_of_its_own(suite, tmp_path, capsys):
    read = change_suite(tmp_path, ("published:", CHANGES.strip("\n") + "\npublished:"))
    runs = {x.environment: x for x in command.runs(read, ["PPO"])}
    catch, bandit = runs["catch"].config, runs["bandit"].config
    assert (catch.steps, catch.seeds, bandit.steps, bandit.seeds) == (800, 4, 400, 3)
    assert catch.agent.rollouts.num_steps == 20 and catch.agent.rollouts.num_envs == 4
    assert bandit.agent.rollouts.num_steps == 10
    (halved,) = command.runs(read, ["PPO"], ["catch"], 2)
    assert halved.minutes == 45 and not halved.too_long and runs["catch"].too_long
    command.main([suite, "--plan", "--algorithms", "PPO"])
    lines = capsys.readouterr().out.splitlines()
    assert "90 min, too long for two cores" in lines[0] and lines[-1].startswith("0.5 hours")
    command.main([suite, "--plan", "--algorithms", "PPO", "--long"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("2.0 hours")


FIRST = """
    algorithm: ppo
    first:
      algorithm: ppo
      steps: 40
      agent: {rollouts: {num_envs: 4, num_steps: 10}, torso: {hidden: [4]}}
""".strip("\n")


@pytest.mark.slow
def test_an_algorithm_can_begin_with_another(suite, tmp_path):
    """Here PPO begins with PPO, in the same environment with the same seeds."""
    read = change_suite(tmp_path, ("    algorithm: ppo", FIRST))
    (run,) = command.runs(read, ["PPO"], ["bandit"], 2)
    assert run.first is not None and (run.first.steps, run.first.env) == (40, "bandit")
    assert run.first.seeds == run.config.seeds == 2 and run.first.agent.torso.hidden == (4,)
    arguments = [suite, "--algorithms", "PPO", "--environments", "bandit"]
    (now,) = command.runs(read, ["PPO"], ["bandit"])
    assert command.main(arguments) == 0 and command.is_finished(now)
    assert command.main(arguments) == 0  # it is not trained again, and not refused
    (record,) = command.read_records(read, tmp_path / "docs" / "suites")
    assert record["config"]["warm_start"] == now.config.warm_start
    folders = {x.name for x in (tmp_path / "runs" / "suites" / "two").iterdir()}
    assert len(folders) == 3 and {"first", "PPO-bandit"} < folders
    assert not page.outdated_records(read, [record])
    changed = change_suite(tmp_path, ("    algorithm: ppo", FIRST.replace("40", "80", 1)))
    assert page.outdated_records(changed, [record])


def test_a_setting_that_a_record_does_not_know_is_missing_only_if_the_suite_names_it(
    suite, tmp_path
):
    bandit = "bandit: {env: bandit, low: 0, high: 1, random: 0.1"
    named = bandit + ", agent: {optimizer: {eps: 1}}"
    read = change_suite(tmp_path, (bandit, bandit))
    (run,) = command.runs(read, ["PPO"], ["bandit"])
    config = log.to_jsonable(configuration.to_dict(run.config))
    del config["agent"]["optimizer"]["eps"]
    record = {"algorithm": "PPO", "environment": "bandit", "config": config}
    assert not page.outdated_records(read, [record])
    found = page.outdated_records(change_suite(tmp_path, (bandit, named)), [record])
    assert found == {("PPO", "bandit"): {"agent.optimizer.eps": (page.UNKNOWN, 1)}}
    assert page.differences(found) == ["- PPO in bandit: `agent.optimizer.eps` was unknown, is 1"]


def test_an_environment_can_have_settings_of_every_agent_and_sampled_actions(suite, tmp_path):
    bandit = "bandit: {env: bandit, low: 0, high: 1, random: 0.1"
    mine = bandit + ", greedy: false, agent: {torso: {hidden: [8]}, optimizer: {learning_rate: 1}}"
    read = change_suite(tmp_path, (bandit, mine))
    runs = {x.environment: x.config for x in command.runs(read, ["PPO"])}
    assert runs["catch"].evaluate_greedy and not runs["bandit"].evaluate_greedy
    assert runs["bandit"].agent.torso.hidden == (4,)  # the algorithm's own prevail
    assert runs["bandit"].agent.optimizer.learning_rate == 1
    assert page.policies(read) == "Greedy returns (sampled actions in bandit)"


def test_a_run_that_is_too_long_is_trained_only_if_asked_for(suite, tmp_path, monkeypatch):
    change_suite(tmp_path, ("published:", CHANGES.strip("\n") + "\npublished:"))
    trained = []
    monkeypatch.setattr(command, "train", lambda run: trained.append(run.environment))
    monkeypatch.setattr(command, "write_record", lambda *arguments: None)
    command.main([suite, "--algorithms", "PPO"])
    assert trained == ["bandit"]
    page = (tmp_path / "docs" / "suites" / "two.md").read_text()
    assert "| PPO | 400 to 800 | 3 to 4 | too long | not run |  |" in page
    assert "| PPO | 800 (4) | 400 (3) |" in page and "| DQN | 400 (2) |  |" in page
    assert "more than 80 minutes on two cores" in page
    command.main([suite, "--algorithms", "PPO", "--long"])
    assert trained == ["bandit", "catch", "bandit"]


def test_a_missing_package_does_not_stop_the_other_runs(suite, tmp_path, capsys):
    change_suite(
        tmp_path, ("{env: catch,", "{env: nowhere/catch,"), ("metrics: [length], strip: 1", "")
    )
    assert command.main([suite, "--algorithms", "DQN"]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("Not run: DQN in catch: Unknown suite 'nowhere'; it may be one of")
    (tmp_path / "two.yaml").write_text(
        (tmp_path / "two.yaml").read_text().replace("environments: [catch]", "")
    )
    trained = []
    train = lambda run: trained.append(run) if run.environment == "bandit" else real(run)
    real = command.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "train", train)
        patch.setattr(command, "write_record", lambda *arguments: None)
        assert command.main([suite, "--algorithms", "PPO"]) == 2
    assert [run.environment for run in trained] == ["bandit"]


FIGURES = """
who: a library
source: its table.
commit: 0123456789abcdef
licence: MIT
results:
- suite: two
  algorithm: PPO
  steps: {catch: 100, bandit: 2000}
  seeds: 1
  returns: {catch: 0.25, bandit: [0.5, 0.75, 1.0]}
  deviations: {catch: 0.125}
  versions: {catch: Catch-v0}
- {suite: two, algorithm: MuZero, elsewhere: true, steps: 7, seeds: 0, returns: {catch: 1.0}}
- {suite: other, algorithm: PPO, steps: 7, seeds: 2, returns: {pong: 1.0}}
"""


def test_a_file_of_published_figures(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "PUBLISHED", tmp_path)
    (tmp_path / "a_library.yaml").write_text(FIGURES)
    read = change_suite(tmp_path, ("published:\n", "published:\n  - a_library\n"))
    page.write(read, [], tmp_path)
    lines = (tmp_path / "two.md").read_text().splitlines()
    table = [line for line in lines if line.startswith(("| D", "| P", "| *"))][:5]
    assert table == [
        "| DQN | 400 | 2 | not run |  |  |",
        "| PPO | 400 | 3 | not run | not run |  |",
        "| *PPO by a library* | 100 to 2,000 | 1 | 0.25 ± 0.125 | 0.75 (0.5 to 1) |  |",
        "| *PPO by somebody* | 10 | 4 |  | 0.5 [0.3, 0.7] |  |",
        "| *MuZero by a library* | 7 |  | 1 |  |  |",
    ]
    first = next(line for line in lines if line.startswith("- *PPO by a library*,"))
    assert first.startswith("- *PPO by a library*, *MuZero by a library*: its table.")
    assert "Environments: Catch-v0. Commit `0123456789ab`, licence MIT." in first
    assert "standard deviation" in first and "lowest and highest seed" in first
    assert "## Runs" not in lines
    with pytest.raises(UserError, match="file of published figures"):
        change_suite(tmp_path, ("published:\n", "published:\n  - a_libary\n"))


def test_every_file_of_published_figures_is_used_and_complete():
    used = set()
    for path in SUITES.glob("*.yaml"):
        used |= {x for x in configuration.load(path).get("published", []) if isinstance(x, str)}
    files = {path.stem: configuration.load(path) for path in suites.PUBLISHED.glob("*.yaml")}
    assert used == set(files)
    for data in files.values():
        assert data["source"] and data["who"] and data["results"]
        assert bool(data.get("commit")) == bool(data.get("licence"))
        for one in data["results"]:
            assert one["returns"] and set(one["versions"]) == set(one["returns"])


def rows(episodes, metric, values):
    """Return rows of training with these episodes and means of a metric, of one seed."""
    return [
        {"metrics": {"episodes": [n], metric: [x]}} for n, x in zip(episodes, values, strict=True)
    ]


def test_deep_sea_is_solved_by_a_tenth_of_good_episodes_in_time():
    solve = lambda size, *log: bool(bsuite.deep_sea(rows(*log), {"size": size})[0])
    good = ([500, 400], "success", [0.0, 0.5])
    assert solve(10, *good)  # 200 of 900 episodes, before the 1,124th
    assert not solve(10, [500, 400], "success", [0.0, 0.22])  # 88 of 900
    assert not solve(10, [900, 300], "success", [0.0, 1.0])  # at the 1,200th
    assert solve(20, [9_000, 1_000, 50], "success", [0.06, 0.5, 0.0])
    assert not solve(20, [9_000, 1_001], "success", [0.0, 1.0])  # beyond 10,000
    assert not solve(10, [0], "success", [None])


def test_a_memory_length_is_solved_by_a_regret_below_three_quarters():
    solve = lambda *log: bool(bsuite.memory_len(rows(*log), {})[0])
    assert solve([5_000, 5_000], "episode_return", [0.0, 0.52])
    assert not solve([5_000, 5_000], "episode_return", [0.0, 0.48])
    assert solve([10_000, 10_000], "episode_return", [0.3, -1.0])  # only the first 10,000 count
    assert not solve([0, 0], "episode_return", [None, None])


def test_scores_are_shares_of_solved_settings(suite, tmp_path):
    read = change_suite(
        tmp_path,
        ("high: 1, random: 0.1}", "high: 1, score: memory_len}"),
        ("metrics: [length], strip: 1", "score: memory_len"),
    )
    record = {
        "seconds": {"training": 1.0, "compiling": 1.0}, "versions": {"jax": "0"}, "commit": "0",
        "steps": [400], "returns": [[1.0]] * 3, "metrics": {},
    }  # fmt: skip
    config = {(x.algorithm, x.environment): x.config for x in command.runs(read)}
    records = [
        record | {
            "algorithm": "PPO", "environment": name, "solved": solved,
            "config": log.to_jsonable(configuration.to_dict(config["PPO", name])),
        }
        for name, solved in (("catch", [True, False, False]), ("bandit", [True, True, False]))
    ]  # fmt: skip

    def table(records):
        page.write(read, records, tmp_path)
        lines = (tmp_path / "two.md").read_text().splitlines()
        at = lines.index("## Scores")
        return lines[at + 4 : at + 8]

    head = ["| algorithm | memory_len |", "| --- | ---: |", "| DQN | not run |"]
    assert table(records) == [*head, "| PPO | 0.50 |"]
    assert table(records[1:]) == [*head, "| PPO | 0.67 (1 of 2 run) |"]
    with pytest.raises(UserError, match="score of the environment 'bandit'"):
        change_suite(tmp_path, ("high: 1, random: 0.1}", "high: 1, score: memory}"))


def test_a_suite_that_says_too_little_or_too_much(suite, tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(SUITE.replace("    minutes: 60\n", ""))
    with pytest.raises(UserError, match=r"the algorithm 'DQN' of .* something is missing"):
        command.main([suite, "--plan"])
    path.write_text(SUITE.replace("minutes: 60", "minutes: 60\n    budget: 3"))
    with pytest.raises(UserError, match="budget"):
        command.main([suite, "--plan"])
    with pytest.raises(UserError, match="suite"):
        command.main(["nowhere", "--plan"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "steps: 400\n    seeds: 2",
            "steps: soon\n    seeds: 2",
            "steps is 'soon'; it must be a whole",
        ),
        ("environments: [catch]", "environments: {catch: 1}", "environments is .* must be a list"),
        ("returns: {bandit: 0.5}", "returns: 3", "returns is 3; it must be a mapping"),
        ("title: Two environments", "title: [1]", "title is .* must be text"),
        ("episodes: 2", "episodes: 2\nlast: 0", "last is 0 in .* at least 1"),
        ("  bandit: {env: bandit, low: 0, high: 1, random: 0.1}", "  bandit: 3", "name: value"),
        ("  - algorithm: PPO\n    who", "    algorithm: PPO\n    who", "it must be a list"),
    ],
)
def test_a_suite_with_values_of_another_type(suite, tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        change_suite(tmp_path, (old, new))


def test_a_full_disk_leaves_the_records(suite, tmp_path, monkeypatch):
    command.main([suite, "--algorithms", "PPO", "--environments", "bandit"])
    path = tmp_path / "docs" / "suites" / "two.json"
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    read = command.read(suite)
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"two.json' cannot be written: No space left"):
        command.write_record(read, command.runs(read, ["PPO"], ["bandit"])[0], "", path.parent)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["[", "{}", "[3]", '[{"algorithm": "PPO"}]', "[" * 50_000], ids=lambda text: text[:9]
)
def test_records_that_cannot_be_read(suite, tmp_path, text):
    folder = tmp_path / "docs" / "suites"
    folder.mkdir(parents=True)
    (folder / "two.json").write_text(text)
    with pytest.raises(UserError, match=r"records in .* cannot be read"):
        command.main([suite, "--pages"])


def test_every_suites_records_can_be_read():
    folder = SUITES.parents[1] / "docs" / "suites"
    read = [command.read_records(command.read(str(path)), folder) for path in SUITES.glob("*.yaml")]
    assert sum(map(bool, read)) == len(list(folder.glob("*.json"))) > 0


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda x: x.stem)
def test_every_suite_can_be_trained(path, no_training):
    """The environments exist and have the suite's metrics; the algorithms can be built."""
    suite = command.read(str(path))
    chosen = command.runs(suite)
    others = {run.environment: run for run in chosen if run.config.env not in envs.names()}
    absent = {name for name, run in others.items() if not is_here(run)}
    chosen = [run for run in chosen if run.environment not in absent]
    for environment in {run.environment: run for run in chosen}.values():
        place = suite.environments[environment.environment]
        env = envs.make(place.env, **place.env_params)
        if env.host:
            assert not place.metrics and not place.strip
            continue
        timestep = jax.eval_shape(env.reset, random.key(0), env.params)[1]
        assert all(name in timestep.metrics for name in place.metrics)
        assert env.render is not None or not place.strip
    for run in {(run.algorithm, run.config.agent): run for run in chosen}.values():
        building.build(run.config)


def is_here(run):
    """Return whether the package of the run's environment is installed."""
    try:
        envs.make(run.config.env, **run.config.env_params)
    except UserError:
        return False
    return True


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=getattr(pytest.mark, rota.mark(path.stem, 4, file=f"jaxrl/suites/{path.name}")),
        )
        for path in sorted(SUITES.glob("*.yaml"))
    ],
)
def test_random_play_returns_what_the_suites_say(path):
    suite = command.read(str(path))
    if suite.name in ("bodies", "grids", "minatar"):
        assert all(place.random is not None for place in suite.environments.values())
    for place in suite.environments.values():
        if place.random is None:
            continue
        env = wrapping.wrap(envs.make(place.env, **place.env_params), place.wrappers)
        returns = evaluate(env, random_policy(env), random.key(1), 400, False).returns
        error = 5 * float(np.std(returns)) / 20 + 0.05 * abs(place.random)
        np.testing.assert_allclose(np.mean(returns), place.random, atol=error, err_msg=place.env)
