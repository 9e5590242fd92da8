"""Command lines: every way to write an option, and help that names them all."""

import dataclasses

import pytest

from experiments import evaluate as evaluate_script
from experiments import sweep as sweep_script
from experiments import train as train_script
from jaxrl.agents import registry
from jaxrl.core.errors import UserError
from jaxrl.runtime import command_line, configuration
from tests.runtime import tiny


def parse(*words):
    return command_line.experiment(words, "")


def test_both_ways_to_write_a_value():
    assert parse("--seeds=4") == parse("--seeds", "4")
    assert parse("--seeds=4").seeds == 4
    assert parse("--agent.num-envs", "3") == parse("--agent.num_envs=3")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--agent.normalize-reward"], True),
        (["--agent.normalize-reward", "true"], True),
        (["--agent.normalize-reward=false"], False),
        (["--agent.no-normalize-reward"], False),
        (["--no-agent.normalize-reward"], False),
    ],
)
def test_booleans(words, value):
    assert parse(*words).agent.normalize_reward is value
    assert parse(*words, "--quiet").quiet is True


def test_defaults_that_are_true_can_be_switched_off():
    assert parse("--no-evaluate-greedy").evaluate_greedy is False
    assert parse("--agent.no-normalize-advantage").agent.normalize_advantage is False


@pytest.mark.parametrize("words", [["8", "4"], ["8,4"], ["8 4"], ["8, 4"]])
def test_tuples(words):
    assert parse("--agent.hidden", *words).agent.hidden == (8, 4)


def test_an_empty_tuple_and_none():
    assert parse("--algorithm", "a2c", "--agent.hidden").agent.hidden == ()
    assert parse("--agent.reset-pool", "none").agent.reset_pool is None
    assert parse("--agent.reset-pool", "3").agent.reset_pool == 3


@pytest.mark.parametrize(
    "words",
    [
        ["--env-params", "force=3", "gravity=9.5"],
        ["--env-params", "force", "3", "gravity", "9.5"],
        ["--env-params.force", "3", "--env-params.gravity=9.5"],
    ],
)
def test_environment_parameters(words):
    assert parse(*words).env_params == {"force": 3, "gravity": 9.5}


def test_numbers():
    assert parse("--agent.learning-rate", "1e-3").agent.learning_rate == 1e-3
    assert parse("--evaluate-every", "-1").evaluate_every == -1
    assert parse("--steps", "1e6").steps == 1_000_000
    for infinity in ("inf", ".inf", ".Inf", "+.inf", "infinity"):
        assert parse("--agent.max-grad-norm", infinity).agent.max_grad_norm == float("inf")


def test_the_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("steps: 5\nseeds: 3\nagent: {clip: 0.5, trace: 0.5}\n")
    config = parse(str(path), "--steps", "6", "--agent.clip", "0.1")
    assert (config.steps, config.seeds, config.agent.clip, config.agent.trace) == (6, 3, 0.1, 0.5)


def test_another_algorithm(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("steps: 5\nagent: {clip: 0.5}\n")
    config = parse(str(path), "--algorithm", "a2c")
    assert config.steps == 5 and isinstance(config.agent, registry.builder("a2c")[1])


def test_take():
    words = ["a.yaml", "--vary", "x=1", "y=2", "--seeds", "3", "--vary=z=4"]
    assert command_line.take(words, "vary") == (["x=1", "y=2", "z=4"], ["a.yaml", "--seeds", "3"])


def test_a_fork_starts_from_its_parents_settings(finished):
    config = parse("--fork", str(finished), "--agent.clip", "0.1")
    assert config.agent.num_envs == 4 and config.agent.clip == 0.1
    assert config.name == "" and config.fork == str(finished)


@pytest.mark.parametrize("script", [train_script, sweep_script])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce"])
def test_help_names_every_option_with_its_default(script, algorithm, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as raised:
        script.main(["--algorithm", algorithm, "--help"])
    assert raised.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    leaves = configuration.leaves(configuration.experiment({"algorithm": algorithm}))
    for name in leaves:
        assert f"--{name.replace('_', '-')}" in shown
    assert shown.count("(default:") == len(leaves)
    if script is sweep_script:
        assert "--vary agent.NAME=" in shown


def test_help_of_a_file_shows_its_values(tmp_path, capsys):
    with pytest.raises(SystemExit):
        train_script.main([tiny.write_settings(tmp_path), "--help"])
    assert "(default: 640)" in capsys.readouterr().out


def test_help_of_evaluate(capsys):
    with pytest.raises(SystemExit) as raised:
        evaluate_script.main(["--help"])
    shown = capsys.readouterr().out
    assert raised.value.code == 0
    for field in dataclasses.fields(evaluate_script.Options):
        assert f"--{field.name.replace('_', '-')}" in shown
    assert shown.count("(default:") == len(dataclasses.fields(evaluate_script.Options))


def test_exit_codes(capsys):
    def main(argv):
        raise argv[0]

    assert command_line.call(lambda argv: None, []) == 0
    assert command_line.call(main, [UserError("no.")]) == 2
    assert command_line.call(main, [command_line.Stopped("no.")]) == 1
    assert command_line.call(main, [KeyboardInterrupt()]) == 130
    assert capsys.readouterr().err == "error: no.\nerror: no.\ninterrupted\n"
    with pytest.raises(ZeroDivisionError):  # a bug is no user's error
        command_line.call(main, [ZeroDivisionError()])
