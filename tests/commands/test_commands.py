"""The command `jaxrl`, and the names of `import jaxrl`."""

import importlib
import pathlib
import re
import signal
import subprocess
import sys

import jax
import pytest

import jaxrl
from jaxrl import commands
from jaxrl.algorithms import registry
from jaxrl.core import metrics, settings
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration
from jaxrl.runtime.members import seed_members


def test_every_command_is_a_file_and_every_file_a_command():
    folder = pathlib.Path(commands.__file__).parent
    assert {path.stem for path in folder.glob("[a-z]*.py")} - {"command_line"} == set(
        commands.COMMANDS
    )
    for name in commands.COMMANDS:
        module = importlib.import_module(f"jaxrl.commands.{name}")
        assert callable(module.main) and module.__doc__


def test_without_a_command_it_says_which_there_are(capsys):
    assert commands.main([]) == commands.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in commands.COMMANDS)
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxrl {jaxrl.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "did you mean 'train'"),
        ("train ppo/cartpol", "did you mean 'ppo/cartpole'"),
        ("resume", "needs a run's folder"),
        ("resume --quiet", "needs a run's folder"),
        ("list", "Say what to list"),
        ("list environments", "envs, "),
        ("check", "usage: jaxrl check ENV"),
        ("check cartpol", "did you mean 'cartpole'"),
    ],
)
def test_what_is_wrong_is_one_sentence(words, said):
    with pytest.raises(UserError, match=said):
        commands.main(words.split())


def test_an_environment_is_checked(capsys):
    assert commands.main(["check", "empty", "--env-params", "size=5", "--steps", "4"]) == 0
    assert capsys.readouterr().out.startswith("empty kept every rule")


def test_a_run_is_resumed_as_training_resumes_it(monkeypatch, tmp_path):
    (tmp_path / "run").mkdir()
    config = configuration.experiment({"steps": 5})
    configuration.write(config, tmp_path / "run" / "config.yaml")
    seed_members(config).write(tmp_path / "run" / "members.json")
    told = []
    monkeypatch.setattr("jaxrl.runtime.training.train", told.append)
    commands.main(["resume", str(tmp_path / "run"), "--quiet"])
    (config,) = told
    assert (config.resume, config.steps, config.quiet) == (str(tmp_path / "run"), 5, True)


def test_configurations_are_found_by_name():
    assert configuration.find("ppo/cartpole").is_file()
    assert len(configuration.shipped_files()) == len(list(configuration.CONFIGS.glob("*/*.yaml")))


# ------------------------------------------------------------------------------- import jaxrl


def test_all_that_it_shows_is_there():
    assert set(dir(jaxrl)) == set(jaxrl.__all__)
    assert all(getattr(jaxrl, name) is not None for name in jaxrl.__all__)
    with pytest.raises(AttributeError, match="pretrained"):
        _ = jaxrl.pretrained


def test_importing_it_imports_nothing_else():
    code = "import sys, jaxrl; print({'jax', 'numpy', 'jaxrl.core'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_algorithms_are_found_by_name():
    assert dir(jaxrl.algorithms) == list(registry.names())
    env = jaxrl.make("cartpole")
    ppo = jaxrl.algorithms.ppo
    assert ppo(env, {"num_envs": 4}) is ppo(env, ppo.complete_config({"num_envs": 4}))
    kind = registry.builder("genetic")[1]
    assert (
        jaxrl.algorithms.genetic(env).env_steps == jaxrl.algorithms.genetic(env, kind()).env_steps
    )
    assert jaxrl.algorithms.genetic.Config is kind
    with pytest.raises(AttributeError, match="did you mean 'ppo'"):
        _ = jaxrl.algorithms.pppo


def test_ppo_in_ten_lines():
    env = jaxrl.make("bandit")
    tiny = {"num_envs": 4, "num_steps": 4, "epochs": 1, "minibatches": 1, "hidden": (4,)}
    ppo = jaxrl.algorithms.ppo(env, tiny)
    run = jaxrl.start(ppo, jaxrl.key(0))
    run, row = jax.jit(lambda run: jaxrl.train(ppo, run, 2))(run)
    assert run.step == 2 and "episode_return" in metrics.values(row)


def test_losses_are_found_by_the_names_that_people_type(capsys):
    commands.main(["list", "losses", "upgo"])
    assert re.search(r"^UPGO +see \w+", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("envs", "cartpole "),
        ("algorithms", "ppo "),
        ("configs", "ppo/cartpole "),
        ("losses", "clipped_surrogate "),
        ("suites", "minatar "),
        ("papers", "dpo "),
        ("claims", "c51 "),
    ],
)
def test_what_there_is_is_listed_with_a_sentence(kind, said, capsys):
    commands.main(["list", kind])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(said)]
    assert len(line.split()) > 3 and all(len(line.split()) > 1 for line in lines)
    commands.main(["list", kind, said[:3]])
    assert line.split() in [x.split() for x in capsys.readouterr().out.splitlines()]
    with pytest.raises(UserError, match="None of the"):
        commands.main(["list", kind, "there is none"])


def test_papers_are_found_by_words_of_their_titles(capsys):
    commands.main(["list", "papers", "Quantile", "regression"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("qr-dqn ") and "algorithms.qr_dqn, losses.quantile_error" in line
    commands.main(["list", "papers", "2402.05828"])
    assert "; claim ta-lpg: " in capsys.readouterr().out
    commands.main(["list", "papers", "civrealm"])
    assert capsys.readouterr().out.endswith(": not yet\n")


def test_a_pretrained_policy_is_evaluated_and_not_shown():
    with pytest.raises(UserError, match="is a policy; see `jaxrl list pretrained`"):
        commands.main(["show", "pretrained/ppo-cartpole"])


def test_an_algorithm_is_shown_with_every_setting_and_its_paper(capsys):
    commands.main(["show", "dqn"])
    said = capsys.readouterr().out
    for name, _, _ in settings.walk(registry.default_config("dqn")):
        assert f" {name} = " in said
    assert "Mnih" in said and "* optimizer.learning_rate = " in said and "dqn/" in said
    assert "between 0 and 1" in said


def test_an_environment_is_shown_with_its_spaces_and_settings(capsys):
    commands.main(["show", "empty"])
    said = capsys.readouterr().out
    assert all(f" {name} = " in said for name in jaxrl.envs.settings("empty"))
    assert "action:" in said and "discrete" in said and "time limit:" in said
    commands.main(["show", "speaker_listener"])  # dicts by agent
    assert "speaker: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "gae",
            [
                "jaxrl.losses.gae(reward: Array",
                "Args:",
                "advantages/returns.py",
                "return reverse_recurrence(",
            ],
        ),
        ("slic", ["jaxrl.losses.slic(chosen_log_prob: Array", "return "]),
        ("PPO", ["clipped_surrogate", "jaxrl show ppo describes the algorithm"]),
        ("SimPO", ["SimPO is here as simpo", "jaxrl.losses.simpo("]),
        ("ACER", ["ACER: Not here"]),
        ("ppo/cartpole", ["algorithm: ppo", "jaxrl train ppo/cartpole"]),
    ],
)
def test_losses_and_configurations_are_shown_in_full(name, said, capsys):
    commands.main(["show", name])
    shown = capsys.readouterr().out
    assert all(text in shown for text in said)


def test_algorithms_and_environments_of_a_user_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_agents.py").write_text(
        '''"""Mine is a variant."""
import jaxrl
from jaxrl.core.types import Environment

mine = jaxrl.algorithms.dqn.variant("mine", double=True)


def maze(size: int = 3) -> Environment:
    """My maze."""
    return jaxrl.make("empty")
'''
    )
    commands.main(["show", "my_agents:mine"])
    shown = capsys.readouterr().out
    assert "Mine is a variant." in shown and "optimizer.learning_rate" in shown
    commands.main(["show", "my_agents:maze"])
    assert "observation:" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean 'mine'"):
        commands.main(["show", "my_agents:mina"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train ppo", "jaxrl train ppo/.*ppo/cartpole, .*jaxrl train ppo --env ENV"),
        ("train ppo cartpole", "jaxrl train ppo --env cartpole"),
        ("train catch", "jaxrl train ppo --env catch"),
        ("train ppo/catch", "jaxrl train ppo --env catch"),
        ("train dqn --algorithm ppo --env catch", "given twice"),
        ("train --algo dqn --env catch", "did you mean '--algorithm'"),
        ("train dqn --environment catch", "did you mean '--env'|environment"),
        ("train ppoo --env catch", "did you mean 'ppo'"),
        ("show gaee", "did you mean 'gae'|'GAE'"),
    ],
)
def test_a_wrong_form_leads_to_the_right_one(words, said):
    with pytest.raises(UserError, match=said) as error:
        commands.main(words.split())
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["cartpol", "ppoo", "nowhere:there", ""])
def test_what_cannot_be_shown(name):
    with pytest.raises(UserError):
        commands.main(["show", name])


def test_a_reader_may_stop_reading():
    code = "from jaxrl.commands import run; run()"
    words = [sys.executable, "-c", code, "list", "losses"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGPIPE and said == b""
