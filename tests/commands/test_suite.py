"""A suite from its file to its page, with the smallest runs."""

import json
import re

import jax
import numpy as np
import pytest
from PIL import Image

from jaxrl import envs
from jaxrl.commands import suite as command
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.runtime import building, configuration, log
from jaxrl.suites import page
from jaxrl.suites.suite import SUITES

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


def write_page(suite, tmp_path, last):
    """Write the page of records whose seeds end with the returns `last`, and return its lines.

    last: (algorithm, environment) -> return of each seed.
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


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda x: x.stem)
def test_every_suite_can_be_trained(path):
    """The environments exist and have the suite's metrics; the algorithms can be built."""
    suite = command.read(str(path))
    chosen = command.runs(suite)
    for environment in {run.environment: run for run in chosen}.values():
        place = suite.environments[environment.environment]
        env = envs.make(place.env, **place.env_params)
        timestep = jax.eval_shape(env.reset, random.key(0), env.params)[1]
        assert all(name in timestep.metrics for name in place.metrics)
        assert env.render is not None or not place.strip
    for run in {run.algorithm: run for run in chosen}.values():
        building.build(run.config)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda x: x.stem)
def test_random_play_returns_what_the_suites_say(path):
    for place in command.read(str(path)).environments.values():
        assert place.random is not None
        env = envs.make(place.env, **place.env_params)
        returns = evaluate(env, random_policy(env), random.key(1), 400, False).returns
        error = 5 * float(np.std(returns)) / 20 + 0.05 * abs(place.random)
        np.testing.assert_allclose(np.mean(returns), place.random, atol=error, err_msg=place.env)
