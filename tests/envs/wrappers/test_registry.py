"""Wrappers by name, alone and through a configuration."""

import pytest

from jaxrl import envs
from jaxrl.algorithms import registry as algorithms
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.envs import wrappers
from jaxrl.envs.wrappers import frame_stack, registry, sticky_actions, time_limit
from jaxrl.reporting.runs import environment_label
from jaxrl.runtime import building, configuration

NAMED = [{"sticky_actions": {"stickiness": 0.5}}, "frame_stack"]


def test_the_first_wrapper_is_the_innermost():
    env = envs.make("cartpole")
    assert registry.wrap(env, NAMED) is frame_stack(sticky_actions(env, 0.5))
    assert registry.wrap(env, ()) is env
    assert registry.wrap(env, [{"frame_stack": {}}]) is frame_stack(env)
    assert registry.wrap(env, [{"time_limit": {"max_steps": 7}}]) is time_limit(env, 7)


def test_every_wrapper_has_a_name_or_takes_functions():
    assert set(registry.names()) | set(registry.IN_PYTHON) == set(wrappers.__all__)
    for name in registry.names():
        assert not set(registry.arguments(name)) & {"env", "function"}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["sticky_action"], "Unknown wrapper 'sticky_action'; did you mean 'sticky_actions'?"),
        (
            [{"sticky_actions": {"stickines": 0.5}}],
            "Unknown argument of the wrapper 'sticky_actions' 'stickines'; did you mean "
            "'stickiness'?",
        ),
        ([{"sticky_actions": {"stickiness": 2}}], "stickiness of 'cartpole' is 2; .*from 0 to 1"),
        ([{"sticky_actions": {"stickiness": "a"}}], "is 'a'; it must be a number or a list"),
        ([{"sticky_actions": {"stickiness": True}}], "is True; it must be a number or a list"),
        ([{"discretized_actions": {"joint": 1}}], "is 1; it must be true or false"),
        ([{"sticky_actions": 0.5}], "'sticky_actions' has 0.5 for its arguments"),
        ([{"frame_stack": {}, "continuing": {}}], "it must be a name, or one name"),
        (["time_limit"], "The wrapper 'time_limit' needs max_steps"),
        (["goal_conditioned"], "'goal_conditioned' takes functions or keys, .*only .*Python"),
        ([{"cost": {"function": 1}}], "Unknown argument of the wrapper 'cost' 'function'"),
    ],
)
def test_what_is_wrong_is_one_sentence(named, said):
    with pytest.raises(UserError, match=said) as error:
        registry.wrap(envs.make("cartpole"), named)
    assert "\n" not in str(error.value)


YAML = "env: cartpole\nwrappers: [{sticky_actions: {stickiness: 0.5}}, frame_stack]\n"
AGENT = {"hidden": [4], "num_envs": 2, "minibatches": 1}


def from_yaml(tmp_path, text=YAML):
    path = tmp_path / "it.yaml"
    path.write_text(text)
    return configuration.experiment(configuration.load(path) | {"agent": AGENT})


def test_a_configuration_names_wrappers(tmp_path):
    config = from_yaml(tmp_path)
    env, _ = building.build(config)
    assert env is frame_stack(sticky_actions(envs.make("cartpole"), 0.5))
    # An evaluation elsewhere is in the same wrappers.
    other = building.other_environment(config, env, "", {"force": 3.0})
    assert other.observation_space.shape == env.observation_space.shape
    assert other.params.inner.force == 3.0
    # What is written is read as the same.
    configuration.write(config, tmp_path / "again.yaml")
    again = configuration.experiment(configuration.load(tmp_path / "again.yaml"))
    assert again.wrappers == config.wrappers


def test_a_command_line_names_wrappers():
    base = configuration.experiment({})
    read = lambda words: (
        configuration.override(base, command_line.nest({"wrappers": words}, base)).wrappers
    )
    assert read(["frame_stack", "continuing"]) == ("frame_stack", "continuing")
    assert read(["[{sticky_actions: {stickiness: 0.5}}, frame_stack]"]) == tuple(NAMED)
    for wrong in ("[{sticky_actions: {stickiness: 0.5}", "[1]", "[{frame_stack: 3}]"):
        with pytest.raises(UserError, match=r"^wrappers.* is .*; it must be "):
            read([wrong])


def test_tiny_settings_may_name_wrappers(monkeypatch):
    from jaxrl.algorithms.policy_gradient import ppo

    plain, config = algorithms.tiny("ppo")
    monkeypatch.setattr(ppo, "TINY", ppo.TINY | {"wrappers": ["frame_stack"]})
    env, same = algorithms.tiny("ppo")
    assert env is frame_stack(plain) and same == config


def test_results_in_wrappers_are_not_those_of_the_plain_environment():
    assert environment_label("cartpole", {"force": 3}) == "cartpole (force 3)"
    label = environment_label("cartpole", {"force": 3}, NAMED)
    assert label == "cartpole (force 3, sticky_actions(stickiness=0.5), frame_stack)"


def test_show_says_how_a_wrapper_is_named(capsys):
    from jaxrl.commands import show

    show.main(["discretized_actions"])
    assert (
        "--wrappers '[{discretized_actions: {bins: 11, joint: true}}]'" in capsys.readouterr().out
    )
    show.main(["flat_observations"])
    assert capsys.readouterr().out.rstrip().endswith("--wrappers flat_observations")
