"""Reports: from handwritten run folders to the page."""

import base64
import itertools
import json
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml
from PIL import Image

from jaxrl import sweeps
from jaxrl.commands import command_line, report
from jaxrl.core.errors import UserError
from jaxrl.reporting import page, runs
from jaxrl.runtime import configuration
from jaxrl.runtime.members import SWEEP, read_members

RNG = np.random.default_rng(0)
STEPS = [100, 200, 300]
LISTED = "{algorithm: ppo, env: cartpole, steps: 3, agent: {}, env_params: [3]}"
VOID = {"meta", "img"}


def write_run(
    folder, returns, algorithm="ppo", env="cartpole", labels=None, summary=None, **config
):
    """Write a run's folder with `returns` [members, K]; it is finished unless `summary` differs."""
    returns = np.asarray(returns, float)
    folder.mkdir(parents=True)
    agent = {"optimizer": {"rate": 0.1}} | config.pop("agent", {})
    settings = {"agent": agent, "algorithm": algorithm, "env": env, "steps": 300, "seed": 0}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings | config))
    labels = labels or [{"seed": i} for i in range(len(returns))]
    hyper = {name: [x[name] for x in labels] for name in labels[0] if name != "seed"}
    (folder / "members.json").write_text(json.dumps({"labels": labels, "hyper": hyper}))
    rows = [
        {"kind": "evaluation", "steps": step, "updates": step, "metrics": {"return": column}}
        for step, column in zip(STEPS, returns.T.tolist(), strict=False)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    summary = {"finished": True, "steps_per_second": 1234.4, "device": "abacus"} | (summary or {})
    if summary["finished"] is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


class Page(HTMLParser):
    """Parse the tables (rows of cells), text, ids and links of a page; refuse unclosed tags."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.words, self.ids, self.places = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open
        self.said = " ".join(self.words)

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        self.places += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if {"td", "th"} & set(self.open[-1:]):
            self.tables[-1][-1][-1] += data

    def row(self, name, column):
        """Return the row `name` of the first table with this heading."""
        for head, *rows in self.tables:
            if column in head:
                for row in rows:
                    if row[0] == name:
                        return row[head.index(column)]
        raise KeyError((name, column))


def make_report(tmp_path, *folders, **options):
    words = [w for name, value in options.items() for w in (f"--{name}", *np.atleast_1d(value))]
    out = tmp_path / "made" / "report.html"
    assert report.main([*map(str, folders), "--out", str(out), *map(str, words)]) == 0
    return out.read_text()


def numbers(cell):
    return [float(x) for x in re.findall(r"-?[\d.]+", cell)]


def middle(x):
    """Return the mean without a quarter at each end, by hand."""
    x = sorted(np.ravel(x))
    return np.mean(x[len(x) // 4 : len(x) - len(x) // 4])


def wins(x, y):
    return np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a in x for b in y])


def test_two_algorithms_are_compared(tmp_path):
    a, b = RNG.integers(0, 9, (2, 6, 3))
    text = make_report(
        tmp_path,
        write_run(tmp_path / "a", a, "ppo"),
        write_run(tmp_path / "b", b[:5], "dqn", agent={"buffer": 7}),
    )
    found = Page(text)
    for name, x in (("ppo", a[:, -1]), ("dqn", b[:5, -1])):
        estimate, low, high = numbers(found.row(name, "IQM [95 %]"))
        assert estimate == pytest.approx(middle(x), abs=1e-3) and low <= estimate <= high
        mean, low, high = numbers(found.row(name, "mean [94 %]"))  # that of the fewest seeds
        t = {6: 2.5706, 5: 2.7764}[len(x)]
        half = t * x.std(ddof=1) / np.sqrt(len(x))
        assert mean == pytest.approx(x.mean(), abs=1e-3)
        assert low == pytest.approx(max(x.mean() - half, x.min()), abs=1e-3)
        assert high == pytest.approx(min(x.mean() + half, x.max()), abs=1e-3)
        assert found.row(name, "seeds") == str(len(x))
    x, y = (("ppo", a[:, -1]), ("dqn", b[:5, -1]))
    if middle(x[1]) < middle(y[1]):
        x, y = y, x
    chance, low, high = numbers(found.row(f"{x[0]} over {y[0]}", "P(X > Y)"))
    assert chance == pytest.approx(wins(x[1], y[1]), abs=5e-3) and low <= chance <= high
    assert found.row("agent.buffer", "dqn in cartpole") == "7"
    assert found.row("agent.buffer", "ppo in cartpole") == "-"
    assert not any(row[0] == "agent.optimizer.rate" for table in found.tables for row in table)
    assert found.row(str(tmp_path / "a"), "steps/s") == "1,234" and "abacus" in found.said
    assert "too narrow" in found.said and "unfinished" not in found.said


def test_the_page_is_whole_and_needs_nothing_else(tmp_path):
    folder = write_run(tmp_path / "a", RNG.normal(size=(3, 3)))
    picture = folder / "episode.png"
    Image.new("RGB", (3, 2), (200, 10, 10)).save(picture)
    text = make_report(tmp_path, folder, write_run(tmp_path / "b", RNG.normal(size=(3, 3)), "dqn"))
    found = Page(text)
    assert text.count("<svg") == 2 and len(found.ids) == len(set(found.ids)) > 10
    assert re.findall(r"\S*https?:", text) and all(
        x.startswith("xmlns") for x in re.findall(r"\S*https?:", text)
    )
    assert not re.search(r"<script|<link|@import|url\((?!#)", text)
    (source,) = (place for place in found.places if not place.startswith("#"))
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture.read_bytes()
    assert {place[1:] for place in found.places if place.startswith("#")} <= set(found.ids)
    again = make_report(tmp_path, folder, tmp_path / "b")
    assert again == text  # the same runs are the same page


def test_a_single_run_has_nothing_to_compare(tmp_path):
    found = Page(make_report(tmp_path, write_run(tmp_path / "a", [[1, 2, 3.5]])))
    assert found.row("ppo", "IQM [95 %]") == found.row("ppo", "mean [95 %]") == "3.5"
    said = found.said
    assert "Performance profiles" not in said and "Probability of improvement" not in said
    assert "Settings that differ" not in said and "not pooled" not in said


def test_the_page_explains_the_intervals_that_it_shows():
    assert "Wilson" in str(page._reading("success")) and "Student" in str(page._reading("success"))
    assert "Wilson" not in str(page._reading("return"))


def test_what_files_say_is_escaped(tmp_path):
    bad = '<b onload="x">&$\\frac$'
    folder = tmp_path / "<i>name"
    one = write_run(folder, RNG.normal(size=(2, 3)), bad, bad, agent={bad: bad})
    (one / "episode.gif").write_bytes(b"GIF89a")
    text = make_report(
        tmp_path, one, write_run(tmp_path / "b", RNG.normal(size=(2, 3)), "dqn", bad)
    )
    found = Page(text)
    assert "<b " not in text and "<i>" not in text and "$\\frac$" in found.said
    assert f"agent.{bad}" in found.said and str(folder) in found.said


def test_unfinished_and_diverged_runs_are_said_to_be(tmp_path):
    returns = [[1, 2, 3], [5, np.nan, np.nan], [4, 4, 4.0]]
    stopped = {"finished": False, "stopped_because": "the disk is full", "diverged": {"1": 7}}
    one = write_run(tmp_path / "a", returns, summary=stopped)
    two = write_run(tmp_path / "b", np.ones((2, 2)), "dqn", summary={"finished": None})
    three = write_run(tmp_path / "c", np.ones((2, 0)), "sac")
    found = Page(make_report(tmp_path, one, two, three))
    assert "300 of 300 steps, stopped: the disk is full" in found.said
    assert "200 of 300 steps" in found.row(str(two), "state")
    assert "1 of 3 seeds of ppo in cartpole diverged" in found.said
    assert found.row("ppo (unfinished)", "diverged") == "1"
    # The seed that diverged counts with the lowest score of all.
    assert numbers(found.row("ppo (unfinished)", "mean [50 %]"))[0] == round(np.mean([3, 1, 4]), 3)
    assert f"jaxrl resume {two}" in found.said
    assert f"{three} has no evaluations" in found.said
    with pytest.raises(KeyError):
        found.row("sac", "IQM [95 %]")


def test_scores_are_pooled_within_bounds(tmp_path):
    environments = {"cartpole": (0, 500), "taxi": (-500, -60)}
    scores = {
        (who, env): RNG.uniform(low, high, (4, 3)).round()
        for who, (env, (low, high)) in itertools.product(("ppo", "dqn"), environments.items())
    }
    folders = [write_run(tmp_path / f"{w}-{e}", x, w, e) for (w, e), x in scores.items()]
    folders.append(write_run(tmp_path / "one", np.ones((4, 3)), "sac"))
    found = Page(make_report(tmp_path, *folders, bounds=["cartpole=0,500", "taxi=-500,-60"]))
    for who in ("ppo", "dqn"):
        pooled = [
            (scores[who, env][:, -1] - low) / (high - low)
            for env, (low, high) in environments.items()
        ]
        estimate = numbers(found.row(who, "IQM [95 %]"))[0]  # in the first table
        assert estimate == pytest.approx(middle(pooled), abs=1e-3)
    together = found.tables[0]
    listed = [numbers(row[1])[0] for row in together[1:]]
    assert len(listed) == 2 and listed == sorted(
        listed, reverse=True
    )  # sac is in one environment only
    found = Page(make_report(tmp_path, *folders, bounds=["cartpole=0,500"]))
    assert "not pooled" in found.said and "give those of taxi with --bounds" in found.said


def test_bounds_of_the_suites_are_known(tmp_path):
    door = {"env": "door_key", "env_params": {"size": 6}}
    some = [
        write_run(tmp_path / "a", np.full((2, 3), 0.5), **door),
        write_run(tmp_path / "b", np.full((2, 3), 0.7), env="memory", env_params={"size": 7}),
    ]
    found = Page(make_report(tmp_path, *some))
    assert found.row("ppo", "IQM [95 %]") == "0.600 [0.600, 0.600]"
    assert "door_key (size 6) (0 to 1)" in found.said


def test_seeds_of_equal_settings_are_one_group(tmp_path):
    one = write_run(tmp_path / "a", [[1, 1, 1], [2, 2, 2]])
    two = write_run(tmp_path / "b", [[3, 3], [4, 4]], seed=2, labels=[{"seed": 2}, {"seed": 3}])
    (group,) = runs.group_runs([runs.read(one), runs.read(two)])
    assert group.label == "ppo"
    steps, curves = group.curves
    np.testing.assert_array_equal(steps, STEPS)
    np.testing.assert_array_equal(curves[2], [3, 3, np.nan])
    np.testing.assert_array_equal(group.scores, [1, 2, 3, 4])
    again = write_run(tmp_path / "c", [[9, 9, 9]])  # seed 0 again, as by another version
    labels = [x.label for x in runs.group_runs([runs.read(f) for f in (one, two, again)])]
    assert labels == ["ppo (a)", "ppo (c)"]


def test_a_sweep_is_grouped_by_what_it_varies(tmp_path):
    labels = [{"seed": s, "optimizer.rate": rate} for rate in (0.1, 0.5) for s in (0, 1)]
    sweep = write_run(tmp_path / "s", RNG.normal(size=(4, 3)), labels=labels, seeds=2)
    alone = write_run(tmp_path / "a", RNG.normal(size=(2, 3)), labels=[{"seed": 8}, {"seed": 9}])
    found = runs.group_runs([runs.read(sweep), runs.read(alone)])
    assert [(x.label, len(x.members)) for x in found] == [
        ("ppo, rate 0.1", 4),
        ("ppo, rate 0.5", 2),
    ]
    assert runs.differing_settings(found) == ["agent.optimizer.rate"]
    text = make_report(tmp_path, sweep, alone)
    assert "Sweep: s" in text
    assert Page(text).row("ppo, rate 0.5 in cartpole", "agent.optimizer.rate") == "0.5"


def test_a_folder_of_several_programs_is_all_of_them(tmp_path):
    folder = tmp_path / "sweep"
    some = [write_run(folder / f"program{i}", [[1, 2, 3]], agent={"x": i}) for i in range(2)]
    (folder / SWEEP).write_text("{}")
    assert runs.run_folders(folder) == some
    assert Page(make_report(tmp_path, folder)).row("ppo, x 1 in cartpole", "agent.x") == "1"
    members = json.loads((some[1] / "members.json").read_text())
    (some[1] / "members.json").write_text(json.dumps(members | {"parents": [0]}))
    with pytest.raises(UserError, match="segments of one another"):
        runs.run_folders(folder)


def test_many_settings_get_short_labels_that_differ(tmp_path):
    some = [
        write_run(tmp_path / str(i), [[1, 2, 3]], agent={f"x{k}": i for k in range(9)})
        for i in range(2)
    ]
    found = [x.label for x in runs.group_runs([runs.read(folder) for folder in some])]
    assert found == ["ppo, x0 0, x1 0, x2 0, ...", "ppo, x0 1, x1 1, x2 1, ..."]
    labels = [{"seed": 0, "a": 1, "b": 1, "c": 1, "d": i} for i in range(2)]
    labels.append({"seed": 0, "a": 2, "b": 2, "c": 2, "d": 2})
    sweep = write_run(tmp_path / "s", np.ones((3, 3)), labels=labels)
    found = [x.label for x in runs.group_runs([runs.read(sweep)])]
    assert len(set(found)) == 3


def test_pairs_of_many_are_each_with_the_best():
    scores = {str(i): np.full(2, float(i)) for i in range(9)}
    found = page.pairs(scores)
    assert [(x, y) for x, y, _ in found] == [("8", str(i)) for i in range(7, -1, -1)]
    assert all(p == (1, 1, 1) for *_, p in found)
    few = page.pairs({"a": np.zeros(1), "b": np.zeros(3)})
    assert [(x, y, p.estimate) for x, y, p in few] == [("a", "b", 0.5)]
    assert page.estimate(few[0][2]) == "0.5"  # one run has no spread


def test_commands_make_the_run_again(tmp_path):
    """The printed commands are parsed by the commands' own parsers."""
    config = configuration.experiment({"steps": 300, "name": "mine", "out": str(tmp_path)})
    folder = write_run(tmp_path / "mine", np.ones((1, 3)))
    configuration.write(config, folder / "config.yaml")
    (said,) = runs.read(folder).commands
    assert shlex.split(said)[:2] == ["jaxrl", "train"]
    again = command_line.experiment(shlex.split(said)[2:], "")
    assert configuration.differences(
        configuration.to_dict(config), configuration.to_dict(again)
    ) == [("name", "mine", "mine-again")]
    grid = {"optimizer.learning_rate": [1e-05, 0.003], "clip": [0.1, 0.2]}
    points = itertools.product(*grid.values(), (0, 1))
    labels = [dict(zip((*grid, "seed"), point, strict=True)) for point in points]
    folder = write_run(tmp_path / "grid", np.ones((8, 3)), labels=labels, seeds=2)
    configuration.write(config, folder / "config.yaml")
    (said,) = runs.read(folder).commands
    vary, rest = command_line.take_words(shlex.split(said)[2:], "vary", configuration.is_file)
    parsed = sweeps.parse(command_line.experiment(rest, ""), vary)
    assert {name: list(values.listed) for name, values in parsed.items()} == grid
    labels = read_members(folder).labels[:-1]  # no longer all combinations
    half = write_run(tmp_path / "half", np.ones((7, 3)), labels=labels)
    assert runs.read(half).commands == []


def test_other_peoples_code_is_named_and_not_imported(tmp_path):
    folder = write_run(tmp_path / "a", np.ones((2, 3)), env="no_such_package.environments:maze")
    found = Page(make_report(tmp_path, folder))
    assert "config.yaml --trust" in found.said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "is not a run folder"),
        (
            lambda run: (run / "config.yaml").write_text(""),
            "is not a run's configuration: its algorithm is None",
        ),
        (lambda run: (run / "config.yaml").write_text("a: ["), "cannot be read"),
        (lambda run: (run / "config.yaml").write_text(LISTED), r"its env_params is \[3\]"),
        (lambda run: (run / "members.json").write_text("{}"), "cannot be read"),
        (
            lambda run: (run / "members.json").write_text('{"labels": [{"seed": 0}], "hyper": {}}'),
            "has 2 members, but its members.json 1",
        ),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, change, message):
    run = write_run(tmp_path / "a", np.ones((2, 3)))
    change(run)
    with pytest.raises(UserError, match=message):
        report.main([str(run)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: jaxrl report RUN"),
        (["runs/none"], "no run folder 'runs/none'"),
        (["RUN", "RUN"], "named twice"),
        (["RUN", "--score", "retrun"], "retrun"),
        (["RUN", "--outt", "x"], "--outt"),
        (
            ["RUN", "--bounds", "acrobot=0,1"],
            "names 'acrobot'; the runs were evaluated in cartpole",
        ),
        (["RUN", "--bounds", "cartpole=5,1"], "bounds of cartpole are 5 1"),
        (["RUN", "--bounds", "cartpole=5"], "must be two numbers"),
        (["RUN", "--out", "RUN"], "cannot be written"),
    ],
)
def test_wrong_command_lines_are_refused(tmp_path, words, message):
    run = write_run(tmp_path / "a", np.ones((2, 3)))
    with pytest.raises(UserError, match=message):
        report.main([str(run) if word == "RUN" else word for word in words])
