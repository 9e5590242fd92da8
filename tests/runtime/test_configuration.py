"""Settings from YAML and Python: reading, writing, and refusals."""

import dataclasses
import math

import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration
from tests import rota
from tests.runtime.tiny import ROOT


def read(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    return configuration.experiment(configuration.load(tmp_path / "c.yaml"))


def test_values_of_every_kind(tmp_path):
    config = read(
        tmp_path,
        "algorithm: ppo\nsteps: 2_000\nenv-params: {force: 3, gravity: 9.5}\n"
        "agent:\n  optimizer: {learning-rate: 1e-3}\n  torso: {hidden: [32, 16]}\n"
        "  rollouts: {reset_pool: 7}\n  normalization:\n    reward: true\n"
        "  passes: {target_kl: .inf}\n",
    )
    assert config.steps == 2000 and config.env_params == {"force": 3, "gravity": 9.5}
    agent = config.agent
    assert agent.optimizer.learning_rate == 1e-3 and agent.torso.hidden == (32, 16)
    assert agent.rollouts == dataclasses.replace(type(agent)().rollouts, reset_pool=7)
    assert agent.normalization.reward is True and agent.passes.target_kl == math.inf
    assert config.seeds == 1


@pytest.mark.parametrize(
    "text",
    [
        "agent: {learning-rate: 1, hidden: [8]}",
        "agent: {optimizer: {learning_rate: 1}, torso: {hidden: [8]}}",
        "agent: {optimizer.learning_rate: 1, torso.hidden: [8]}",
        "learning_rate: 1\nhidden: [8]",
    ],
)
def test_names_may_be_shortened_to_an_ending(tmp_path, text):
    agent = read(tmp_path, text).agent
    assert agent.optimizer.learning_rate == 1 and agent.torso.hidden == (8,)


def test_of_several_endings_the_one_nearest_the_root_is_meant(tmp_path):
    start = "algorithm: lifelong_ppo\nagent: "
    agent = read(tmp_path, f"{start}{{value_weight: 0.25}}").agent
    assert (agent.ppo.value_weight, agent.replay.clone.value_weight) == (0.25, 0.5)
    agent = read(tmp_path, f"{start}{{clone: {{value_weight: 0.25}}}}").agent
    assert (agent.ppo.value_weight, agent.replay.clone.value_weight) == (0.5, 0.25)


@pytest.mark.parametrize("text", ["reset_pool: null", "reset_pool: none", "reset_pool: ~"])
def test_none(tmp_path, text):
    assert read(tmp_path, f"agent:\n  rollouts:\n    {text}\n").agent.rollouts.reset_pool is None


def test_what_is_written_is_read_back_alike(tmp_path):
    config = configuration.experiment(
        {
            "algorithm": "a2c",
            "env_params": {"force": 3.5, "length": 2},
            "seed": 2**32 - 1,
            "agent": {"torso": {"hidden": []}, "optimizer": {"learning_rate": 1e-05}},
            "evaluate_greedy": "false",
        }
    )
    configuration.write(config, tmp_path / "c.yaml")
    again = configuration.experiment(configuration.load(tmp_path / "c.yaml"))
    assert again == config and again.evaluate_greedy is False


def test_settings_of_this_invocation_are_not_written():
    names = configuration.to_dict(configuration.experiment({"quiet": True, "resume": "x"}))
    assert not names.keys() & {"quiet", "resume", "debug"}


def test_another_algorithm_has_its_own_defaults_and_keeps_the_rest():
    other = configuration.experiment({"algorithm": "a2c"}, configuration.experiment({"steps": 7}))
    assert other.steps == 7 and other.agent == type(other.agent)()


def test_another_algorithm_keeps_settings_or_refuses_them():
    base = configuration.experiment({"agent": {"rollouts": {"num_envs": 5}}})
    same = configuration.experiment({"algorithm": "ppo"}, base)
    assert same.agent.rollouts.num_envs == 5
    with pytest.raises(UserError, match="under agent are for 'ppo', and 'a2c' has other ones"):
        configuration.experiment({"algorithm": "a2c"}, base)
    dqn = configuration.experiment({"algorithm": "dqn", "agent": {"discount": 0.5}})
    alike = configuration.experiment({"algorithm": "double_dqn"}, dqn)  # the same class
    assert alike.algorithm == "double_dqn" and alike.agent.discount == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent:\n  lerning_rate: 1\n", "did you mean 'agent.optimizer.learning_rate'"),
        ("agent: {torso: {hiden: []}}\n", "'agent.torso.hiden'; did you mean 'agent.torso.hidden'"),
        ("sede: 1\n", "Unknown setting 'sede'; did you mean 'seed'"),
        ("lerning_rate: 1\n", "did you mean 'agent.optimizer.learning_rate'"),
        ("agent: {optimizer: {discount: 1}}\n", "Unknown setting 'agent.optimizer.discount'"),
        (
            "agent: {optimzer: {learning_rate: 1}}\n",
            "'agent.optimzer.learning_rate'; did you mean",
        ),
        (
            "algorithm: iql\nagent: {learning_rate: 1}\n",
            "'agent.learning_rate' may be any of agent",
        ),
        (
            "agent: {clip: 0.1, learning_rate: 1, optimizer: {learning-rate: 1}}\n",
            "'agent.optimizer.learning_rate' is given twice",
        ),
        ("algorithm: pop\n", "Unknown algorithm 'pop'; did you mean 'ppo'"),
        ("algorithm: 3\n", "Unknown algorithm '3'"),
        ("steps: many\n", "steps is 'many'; it must be a whole number"),
        ("steps: 1.5\n", "steps is 1.5; it must be a whole number"),
        ("steps: true\n", "steps is True; it must be a whole number"),
        ("steps: [1]\n", r"steps is \[1\]; it must be a whole number"),
        ("steps:\n", "steps is None; it must be a whole number"),
        ("steps: 0\n", "steps is 0; it must be at least 1"),
        ("seeds: 0\n", "seeds is 0; it must be at least 1"),
        ("seed: 4294967296\n", "seed is 4294967296; it must be at most 4294967295"),
        ("seed: 4294967295\nseeds: 2\n", r"seeds must stay below 2\*\*32"),
        ("keep: .inf\n", "keep is inf; it must be a whole number"),
        ("env: 3\n", "env is 3; it must be text"),
        ("evaluate_greedy: 1\n", "evaluate_greedy is 1; it must be true or false"),
        ("agent: 3\n", "'agent' is 3; it must be a group of settings"),
        ("agent:\n  optimizer: 3\n", "'agent.optimizer' is 3; it must be a group of settings"),
        ("agent:\n  clip: .nan\n", "agent.clip is nan; it must be a number"),
        ("agent: {torso: {hidden: 64}}", "agent.torso.hidden is 64; it must be a list, each entry"),
        ("agent: {torso: {hidden: [a]}}", "agent.torso.hidden is 'a'; it must be a whole number"),
        (
            "agent: {rollouts: {reset_pool: x}}",
            "reset_pool is 'x'; it must be a whole number or none",
        ),
        ("env_params: 3\n", "env_params is 3; it must be a mapping"),
        ("env_params: {force: {a: 1}}\n", "env_params.force is {'a': 1}; it must be true or false"),
        ("seed: 1\nseed: 2\n", "the key 'seed' is given twice"),
        ("agent:\n  clip: 1\n  clip: 1\n", "the key 'clip' is given twice"),
        ("- 1\n", "holds a list; it must consist of `name: value` lines"),
        ("name: ../../escape\n", "name is '../../escape'; it must be the name of a folder in out"),
        ("a: [\n", "cannot be read"),
    ],
)
def test_one_sentence_says_what_is_wrong(tmp_path, text, said):
    with pytest.raises(UserError, match=said) as raised:
        read(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        configuration.load(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        configuration.load(tmp_path)


def test_whole_numbers_are_exact():
    assert configuration.convert("x", str(2**53 + 1), int) == 2**53 + 1
    assert configuration.convert("x", "1e3", int) == 1000


def test_differences():
    a, b = {"x": 1, "y": {"z": 2, "w": 3}}, {"x": 1, "y": {"z": 4, "w": 3}, "v": 5}
    assert configuration.differences(a, b) == [("y.z", 2, 4), ("v", None, 5)]


def configurations():
    """Yield all configurations; those that no change affects rest on three days of four."""
    plan = rota.plan()
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        file = path.relative_to(ROOT).as_posix()
        affected = file in plan.changed or path.parent.name in plan.algorithms
        today = plan.everything or affected or rota.in_turn(file, 4, plan.day)
        marks = () if today else pytest.mark.rest
        yield pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=marks)


@pytest.mark.parametrize("path", list(configurations()))
def test_every_configuration_that_comes_along_is_read(path, no_training):
    from jaxrl.runtime import building

    config = configuration.experiment(configuration.load(path))
    assert config.algorithm == path.parent.name
    for part, module, extra in (
        ("LunarLander", "Box2D", "gymnasium[box2d]"),
        ("HalfCheetah", "mujoco", "gymnasium[mujoco]"),
        ("dm_control/", "dm_control", "dm_control"),
        ("jaxmarl/", "jaxmarl", "the jaxmarl extra"),
        ("playground/", "mujoco_playground", "the playground extra"),
    ):
        if part in config.env:
            pytest.importorskip(module, reason=f"{extra} is not installed")
    building.build(config)


def test_every_setting_has_a_line_of_meaning():
    import inspect

    from jaxrl.algorithms import registry

    def with_groups(config):  # a group says what it is itself
        yield type(config)
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if dataclasses.is_dataclass(value):
                yield from with_groups(value)

    classes = {configuration.Experiment}
    for name in registry.names():
        classes |= set(with_groups(registry.default_config(name)))
    for cls in classes:
        assert inspect.getdoc(cls)
        source = inspect.getsource(cls)
        for field in dataclasses.fields(cls):
            group = dataclasses.is_dataclass(getattr(cls, field.name, None))
            if f"    {field.name}: " in source and not group:
                after = source.split(f"    {field.name}: ", 1)[1].split("\n    ", 1)[1]
                assert after.lstrip().startswith('"""'), (cls.__name__, field.name)


def test_settings_of_an_environment_may_be_flags_names_and_lists():
    given = {"windy": True, "maze": "medium", "size": 8, "means": [0.1, 2]}
    config = configuration.experiment({"env_params": given})
    assert config.env_params == {**given, "means": (0.1, 2.0)}
    assert configuration.experiment(configuration.to_dict(config)) == config


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n"])
def test_an_empty_file_means_the_defaults(tmp_path, text):
    assert read(tmp_path, text) == configuration.experiment({})


@pytest.mark.parametrize(
    "name",
    [
        "../escape",
        "a/b",
        "/tmp/a",
        "a\\b",
        "..",
        ".",
        ".hidden",
        " ",
        "\t",
        "a\nb",
        "a\0b",
        "a" * 256,
    ],
    ids=repr,
)
def test_names_that_are_no_folder_within_out(name):
    with pytest.raises(UserError, match="it must be the name of a folder in out") as error:
        configuration.experiment({"name": name})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "run", "a run", "run-1.5", "ütf", "a..b", "a" * 255])
def test_names_of_folders(name):
    assert configuration.experiment({"name": name}).name == name


def test_a_warm_start_is_looked_for_beside_its_file(tmp_path, monkeypatch):
    def locate(value: str) -> str:
        (tmp_path / "configs" / "c.yaml").write_text(f"warm_start: {value}\n")
        return configuration.experiment(
            configuration.read(tmp_path / "configs" / "c.yaml")
        ).warm_start

    for place in ("configs", "here"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "both.yaml").touch()
    (tmp_path / "configs" / "beside.yaml").touch()
    (tmp_path / "here" / "run").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert locate("beside.yaml") == str(tmp_path / "configs" / "beside.yaml")
    assert locate("both.yaml") == str(tmp_path / "configs" / "both.yaml")
    assert locate("run") == "run"  # from the current folder
    assert locate("nowhere") == "nowhere"
    assert locate(str(tmp_path / "here" / "run")) == str(tmp_path / "here" / "run")
    assert locate("''") == ""
    # As in the configurations of this repository.
    assert locate("configs/dreamer4_world_model/catch.yaml") == str(
        ROOT / "configs/dreamer4_world_model/catch.yaml"
    )


def test_examples_of_settings_work_with_the_defaults():
    """The examples of --env-params are in its help and in the error for a bad pair."""
    import inspect
    import re

    from jaxrl import envs
    from jaxrl.commands import command_line

    examples = []
    for module in (configuration, command_line):
        examples += re.findall(r"such as (\w+)=([\d.]+)", inspect.getsource(module))
    assert len(examples) == 2
    env = configuration.experiment({}).env
    for name, value in examples:
        given = configuration.experiment({"env_params": {name: value}}).env_params
        assert getattr(envs.make(env, **given).params, name) == float(value)


def test_settings_within_settings_are_plain():
    config = configuration.experiment({"env_params": {"means": [0.1, 2.5]}})
    assert configuration.to_dict(config)["env_params"] == {"means": [0.1, 2.5]}
