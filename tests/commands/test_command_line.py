"""Command lines: every way to write an option, and help that names them all."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import registry
from jaxrl.commands import command_line
from jaxrl.commands import evaluate as evaluate_script
from jaxrl.commands import sweep as sweep_script
from jaxrl.commands import train as train_script
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration
from jaxrl.runtime.errors import Stopped
from tests.runtime import tiny


def parse(*words):
    return command_line.experiment(words, "")


def test_both_ways_to_write_a_value():
    assert parse("--seeds=4") == parse("--seeds", "4")
    assert parse("--seeds=4").seeds == 4
    assert parse("--agent.num-envs", "3") == parse("--agent.num_envs=3")


def test_of_several_endings_the_one_nearest_the_root_is_meant():
    agent = parse("--algorithm", "lifelong_ppo", "--value-weight", "0.25").agent
    assert (agent.ppo.value_weight, agent.replay.clone.value_weight) == (0.25, 0.5)
    with pytest.raises(
        UserError, match=r"'agent\.learning_rate' may be any of agent\.critic\.learning_rate,"
    ):
        parse("--algorithm", "iql", "--agent.learning-rate", "1")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--agent.normalization.reward"], True),
        (["--agent.normalization.reward", "true"], True),
        (["--agent.normalization.reward=false"], False),
        (["--agent.normalization.no-reward"], False),
        (["--no-agent.normalization.reward"], False),
        (["--agent.reward"], True),
        (["--agent.no-reward"], False),
    ],
)
def test_booleans(words, value):
    assert parse(*words).agent.normalization.reward is value
    assert parse(*words, "--quiet").quiet is True


def test_defaults_that_are_true_can_be_switched_off():
    assert parse("--no-evaluate-greedy").evaluate_greedy is False
    assert parse("--agent.no-normalize-advantage").agent.normalize_advantage is False


@pytest.mark.parametrize("words", [["8", "4"], ["8,4"], ["8 4"], ["8, 4"]])
def test_tuples(words):
    assert parse("--agent.hidden", *words).agent.torso.hidden == (8, 4)


def test_an_empty_tuple_and_none():
    assert parse("--algorithm", "a2c", "--agent.hidden").agent.torso.hidden == ()
    assert parse("--agent.reset-pool", "none").agent.rollouts.reset_pool is None
    assert parse("--agent.reset-pool", "3").agent.rollouts.reset_pool == 3


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
    assert parse("--agent.learning-rate", "1e-3").agent.optimizer.learning_rate == 1e-3
    assert parse("--evaluate-every", "-1").evaluate_every == -1
    assert parse("--steps", "1e6").steps == 1_000_000
    for infinity in ("inf", ".inf", ".Inf", "+.inf", "infinity"):
        assert parse("--agent.max-grad-norm", infinity).agent.optimizer.max_grad_norm == float(
            "inf"
        )


def test_the_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("steps: 5\nseeds: 3\nagent: {clip: 0.5, gae_lambda: 0.5}\n")
    config = parse(str(path), "--steps", "6", "--agent.clip", "0.1")
    assert (config.steps, config.seeds, config.agent.clip) == (6, 3, 0.1)
    assert config.agent.gae_lambda == 0.5


def test_another_algorithm(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("steps: 5\n")
    config = parse(str(path), "--algorithm", "a2c")
    assert config.steps == 5 and isinstance(config.agent, registry.builder("a2c")[1])


def test_an_algorithm_may_be_named_without_an_option():
    config = parse("dqn", "--env", "catch", "--agent.num-envs", "3")
    assert config == parse("--algorithm", "dqn", "--env", "catch", "--agent.num-envs", "3")
    assert (config.algorithm, config.env, config.agent.replay.num_envs) == ("dqn", "catch", 3)


def test_take():
    words = ["a.yaml", "--vary", "x=1", "y=2", "--seeds", "3", "--vary=z=4"]
    assert command_line.take_words(words, "vary") == (
        ["x=1", "y=2", "z=4"],
        ["a.yaml", "--seeds", "3"],
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("steps: 5\nagent: {clip: 0.5}\n")
    return str(path)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--quiet", "FILE"], "quiet", True),
        (["--no-evaluate-greedy", "FILE"], "evaluate_greedy", False),
        (["--evaluate-greedy", "false", "FILE"], "evaluate_greedy", False),
        (["--agent.normalization.reward", "FILE"], "agent.normalization.reward", True),
        (["--seeds", "4", "FILE"], "seeds", 4),
        (["--seeds=4", "FILE"], "seeds", 4),
        (["--agent.hidden", "8", "4", "FILE"], "agent.torso.hidden", (8, 4)),
        (["--agent.record", "FILE"], "agent.record", ()),
        (["--env-params", "force=3", "FILE"], "env_params", {"force": 3}),
        (["--env-params", "force", "3", "FILE", "--quiet"], "env_params", {"force": 3}),
        (["--env-params.force", "3", "FILE"], "env_params", {"force": 3}),
        (["--warm-start", "other.yaml", "FILE"], "warm_start", "other.yaml"),
        (["FILE", "--warm-start", "other.yaml"], "warm_start", "other.yaml"),
    ],
)
def test_the_configuration_stands_anywhere(file, words, name, value):
    config = parse(*(file if word == "FILE" else word for word in words))
    assert config.steps == 5 and config.agent.clip == 0.5
    parts = dict(configuration.leaves(config))
    assert parts[name][1] == value


def test_a_varied_hyper_parameter_may_stand_before_the_configuration(file):
    words = ["--seeds", "3", "--vary", "clip=1,2", "gae_lambda=0,1", file, "--quiet"]
    taken, rest = command_line.take_words(words, "vary", configuration.is_file)
    assert taken == ["clip=1,2", "gae_lambda=0,1"]
    config = parse(*rest)
    assert (config.steps, config.seeds, config.quiet) == (5, 3, True)


@pytest.mark.parametrize(
    ("words", "places", "options"),
    [
        (["--member", "1", "run", "rule"], ["run", "rule"], {"member": ["1"]}),
        (["run", "--trust", "rule"], ["run", "rule"], {"trust": []}),
        (["run", "--trust", "false", "rule"], ["run", "rule"], {"trust": ["false"]}),
        (["--member=1", "run"], ["run"], {"member": ["1"]}),
    ],
)
def test_words_that_no_option_needs(words, places, options):
    kinds = {"member": int, "trust": bool}
    assert command_line.split_words(words, kinds, lambda word: True) == (places, options)


def test_a_fork_starts_from_its_parents_settings(finished_run):
    config = parse("--fork", str(finished_run), "--agent.clip", "0.1")
    assert config.agent.rollouts.num_envs == 4 and config.agent.clip == 0.1
    assert config.name == "" and config.fork == str(finished_run)


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


def test_help_of_a_file_shows_its_values(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
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


def test_too_little_memory_is_said_in_one_sentence(capsys):
    def of_the_host(argv):
        np.ones(2**50)

    def of_a_device(argv):
        jax.block_until_ready(jnp.ones(2**50))

    for main, said in ((of_the_host, "Unable to allocate"), (of_a_device, "RESOURCE_EXHAUSTED")):
        assert command_line.call(main, []) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: There is not enough memory (")
        assert said in error and error.count("\n") == 1


def test_bad_input_that_a_function_on_the_host_finds_is_a_sentence(capsys):
    def find(x):
        raise UserError("verify returned nan.")

    def main(argv):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(find, shape, x))(1.0))

    assert command_line.call(main, []) == 2
    assert capsys.readouterr().err == "error: verify returned nan.\n"


def test_another_error_of_a_device_is_a_bug():
    def main(argv):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError):
        command_line.call(main, [])


@pytest.mark.slow
def test_modules_in_the_current_folder_can_be_named(tmp_path):
    (tmp_path / "own_environments.py").write_text(
        "from tests.runtime.environments import odd_actions\n"
    )
    run = tiny.process("train", "--env", "own_environments:odd_actions", cwd=tmp_path)
    _, error = run.communicate()
    assert run.returncode == 2 and "cannot act in" in error


def test_exit_codes(capsys):
    def main(argv):
        raise argv[0]

    assert command_line.call(lambda argv: None, []) == 0
    assert command_line.call(main, [UserError("no.")]) == 2
    assert command_line.call(main, [Stopped("no.")]) == 1
    assert command_line.call(main, [KeyboardInterrupt()]) == 130
    assert capsys.readouterr().err == "error: no.\nerror: no.\ninterrupted\n"
    with pytest.raises(ZeroDivisionError):  # a bug is not a user's error
        command_line.call(main, [ZeroDivisionError()])
