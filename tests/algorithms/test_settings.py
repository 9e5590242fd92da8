"""Settings of all algorithms have ranges; values out of range are refused before anything is built,
on the command line and in Python."""

import dataclasses
import math
import re

import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.lifelong import lifelong_ppo
from jaxrl.algorithms.offline import iql
from jaxrl.core import settings
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import Range, check
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment

ANY_NUMBER = {
    "lowest_return",
    "highest_return",
    "relevant",
    "floor",
    "low",
    "high",
    "values",
    "risk",
}
ANY_NUMBER |= {"weights", "thresholds", "best_return", "right", "qualities", "target_return"}
ANY_TEXT = {"rule", "name", "vary", "measure", "components", "descriptor"}
ANY_TEXT |= {"model", "file"}  # places
# Texts among the settings of a run: names that are looked up elsewhere, and places.
RUN_TEXT = {"algorithm", "env", "evaluate_env", "out", "name", "resume", "fork", "warm_start"}
RUN_TEXT |= {"coordinator"}
UNBOUNDED = {"env_params", "evaluate_env_params", "mesh", "wrappers"}
UNBOUNDED |= {"process", "processes"}  # `runtime.processes` checks them together

everyone = pytest.mark.parametrize("algorithm", registry.names())


def fields(config):
    """Yield (field, value) of all settings, those of groups too."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value)
        else:
            yield field, value


def undeclared_names(config):
    """Return the names of settings that declare neither bounds nor choices."""
    found = set()
    for field, value in fields(config):
        within = field.metadata.get("range", Range())
        bounds = (within.low, within.high, within.above, within.below, within.choices)
        if not isinstance(value, bool) and all(bound is None for bound in bounds):
            found.add(field.name)
    return found


@everyone
def test_every_setting_declares_its_range(algorithm):
    config = registry.default_config(algorithm)
    check(config)
    assert undeclared_names(config) <= ANY_NUMBER | ANY_TEXT
    for field, value in fields(config):
        if field.name in ANY_NUMBER:  # must be finite at least
            assert field.metadata["range"] is not None
        if field.metadata.get("hyper"):
            assert isinstance(value, float)


def test_no_exemption_is_left_over():
    found = set().union(
        *(undeclared_names(registry.default_config(name)) for name in registry.names())
    )
    assert found == ANY_NUMBER | ANY_TEXT


def test_every_setting_of_a_run_declares_its_range():
    config = configuration.experiment({})
    assert undeclared_names(dataclasses.replace(config, agent=0)) == RUN_TEXT | UNBOUNDED | {
        "agent"
    }


REFUSED = [
    ("ppo", "optimizer.learning_rate", -1e-3, "is -0.001; it must be at least 0."),
    ("ppo", "optimizer.learning_rate", math.inf, "is inf; it must be finite."),
    ("ppo", "optimizer.learning_rate", 1e300, "is 1e+300; it must be a number that a "
     "32-bit float holds."),
    ("ppo", "discount", 1.5, "is 1.5; it must be between 0 and 1."),
    ("ppo", "optimizer.max_grad_norm", 0.0, "is 0.0; it must be above 0."),
    ("ppo", "optimizer.learning_rate_steps", -5.0, "is -5.0; it must be above 0."),
    ("ppo", "torso.hidden", [], "is []; it must have at least one entry."),
    ("ppo", "torso.hidden", [64, 0], "is [64, 0]; each entry must be at least 1."),
    ("ppo", "rollouts.num_envs", 10**12, "is 1000000000000; it must be at most 16777216."),
    ("ppo", "rollouts.num_steps", 0, "is 0; it must be at least 1."),
    ("ppo", "torso.activation", "sine", "is 'sine'; it must be one of tanh, relu, elu, "
     "gelu, silu."),
    ("ppo", "torso.initializer", "zeros", "is 'zeros'; it must be one of lecun, orthogonal, "
     "torch."),
    ("ppo", "optimizer.name", "lion", "is 'lion'; it must be one of adam, radam, rmsprop, "
     "torch_rmsprop, centered_rmsprop, sgd."),
    ("ppo", "optimizer.schedule", "x", "is 'x'; it must be one of linear, cosine, "
     "exponential."),
    ("ppo", "gsde.interval", -1, "is -1; it must be at least 0."),
    ("trpo", "shrinkage", 1.0, "is 1.0; it must be above 0 and below 1."),
    ("ppo", "passes.shuffle", "no", "is 'no'; it must be one of auto, bijection, exact."),
    ("ppo", "record", ["x"], "is ['x']; each entry must be one of logits, value."),
    ("ppo", "passes.chunk_rows", -2, "is -2; it must be at least -1."),
    ("ppo", "heads", -1, "is -1; it must be at least 0."),
    ("a2c", "value_weight", -0.5, "is -0.5; it must be at least 0."),
    ("a2c", "memory.recurrent", -1, "is -1; it must be at least 0."),
    ("reinforce", "entropy_weight", math.inf, "is inf; it must be finite."),
    ("dqn", "exploration.start", 1.1, "is 1.1; it must be between 0 and 1."),
    ("c51", "lowest_return", -math.inf, "is -inf; it must be finite."),
    ("noisy_dqn", "huber", 0.0, "is 0.0; it must be above 0."),
    ("rainbow", "replay.capacity", 10**12, "is 1000000000000; it must be at most 2147483647."),
    ("rainbow", "torso.channels", [0], "is [0]; each entry must be at least 1."),
    ("muzero", "num_atoms", 1, "is 1; it must be at least 3."),
    ("muzero", "reanalyse", 2.0, "is 2.0; it must be between 0 and 1."),
    ("muzero", "search", "beam", "is 'beam'; it must be one of puct, gumbel."),
    ("dreamer", "symlog_range", 100.0, "is 100.0; it must be above 0 and at most 80."),
    ("dreamer", "slow.rate", -0.1, "is -0.1; it must be between 0 and 1."),
    ("dreamer4_world_model", "levels", 0, "is 0; it must be at least 1."),
    ("dreamer4_imagination", "data.skills", [2.0], "is [2.0]; each entry must be between -1 and "
     "1."),
    ("iql", "expectile", 1.0, "is 1.0; it must be above 0 and below 1."),
    ("iql", "data.offline_share", 1.0, "is 1.0; it must be above 0 and below 1."),
    ("td3_bc", "alpha", -1.0, "is -1.0; it must be at least 0."),
    ("td3_bc", "delay", 0, "is 0; it must be at least 1."),
    ("uni_o4", "num_policies", 0, "is 0; it must be at least 1."),
    ("gpg", "kl.estimate", "k1", "is 'k1'; it must be one of k2, k3."),
    ("token_ppo", "average", "mean", "is 'mean'; it must be one of sequence, token, constant."),
    ("rpg", "kl.direction", "both", "is 'both'; it must be one of forward, reverse."),
    ("spiral", "baseline", "both", "is 'both'; it must be one of role, none."),
    ("league", "matching", "best", "is 'best'; it must be one of uniform, hard, even."),
    ("neupl", "exploration", 0.0, "is 0.0; it must be above 0 and at most 1."),
    ("neupl", "rows", 1, "is 1; it must be at least 2."),
    ("lifelong_ppo", "ewc.decay", 2.0, "is 2.0; it must be between 0 and 1."),
    ("lifelong_ppo", "values", [], "is []; it must have at least one entry."),
    ("lpg", "clock", 2.0, "is 2.0; it must be between 0 and 1."),
    ("ta_lpg", "spread", 0.5, "is 0.5; it must be at least 1."),
    ("ta_lpg", "sigma", 0.0, "is 0.0; it must be above 0."),
    ("evolution_strategy", "strategy", "es", "is 'es'; it must be one of openai, csa, sep_cma, "
     "cma."),
    ("genetic", "parents", 0, "is 0; it must be at least 1."),
    ("map_elites", "cells", [4, 0], "is [4, 0]; each entry must be at least 1."),
    ("ppga", "archive_rate", 1.5, "is 1.5; it must be between 0 and 1."),
]  # fmt: skip


def nest(setting, value):
    """Nest the value of a dotted name, as YAML does."""
    for part in reversed(setting.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize(("algorithm", "setting", "value", "said"), REFUSED)
def test_impossible_values_are_refused_where_they_are_given(algorithm, setting, value, said):
    with pytest.raises(UserError) as raised:
        configuration.experiment({"algorithm": algorithm, "agent": nest(setting, value)})
    assert str(raised.value) == f"agent.{setting} {said}"


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [
        ("ppo", "optimizer.max_grad_norm"),
        ("ppo", "optimizer.learning_rate_steps"),
        ("ppo", "clip"),
        ("ppo", "value_clip"),
        ("td3_bc", "alpha"),
        ("iql", "temperature"),
        ("uni_o4_improvement", "margin"),
    ],
)
@pytest.mark.parametrize("infinity", ["inf", ".inf", math.inf])
def test_infinity_is_a_value_where_it_means_something(algorithm, setting, infinity):
    config = configuration.experiment({"algorithm": algorithm, "agent": nest(setting, infinity)})
    assert settings.lookup(config.agent, setting) == math.inf


def test_no_widths_are_a_value_where_they_mean_something():
    written = dict.fromkeys(
        ("lpg", "ta_lpg", "evolution_strategy", "genetic", "map_elites"), "hidden"
    )
    for name, setting in ({"a2c": "torso.hidden"} | written).items():
        config = configuration.experiment({"algorithm": name, "agent": nest(setting, [])})
        assert settings.lookup(config.agent, setting) == ()


def build(name, env, **changes):
    """Build an algorithm with some of its settings changed."""
    make, config = registry.builder(name)
    needed = {"rule": "a.npz"} if name == "lpg" else {}
    return make(envs.make(env), settings.replace(config(), needed | changes))


@everyone
def test_every_builder_refuses_values_out_of_range(algorithm):
    config = registry.default_config(algorithm)
    declared = list(settings.walk(config))
    hypers = [name for name, field, _ in declared if field.metadata.get("hyper")]
    for hyper in hypers[:1]:  # an algorithm that learns nothing may have none
        said = f"^{re.escape(hyper)} is nan; it must be a number\\.$"
        with pytest.raises(UserError, match=said):
            build(algorithm, "cartpole", **{hyper: math.nan})
    size, field = next((name, f) for name, f, _ in declared if type(f.default) is int)
    least = field.metadata["range"].low
    said = f"{size} is {least - 1}; it must be at least {least}."
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        build(algorithm, "cartpole", **{size: least - 1})


@everyone
def test_an_algorithm_that_cannot_act_somewhere_names_itself(algorithm):
    with pytest.raises(UserError, match=f"^{algorithm} (cannot act in|needs agents)"):
        build(algorithm, "tests.runtime.environments:odd_actions")


@pytest.mark.parametrize(
    "algorithm", ["dqn", "c51", "rainbow", "muzero", "lpg", "ta_lpg", "dreamer4_imagination"]
)
def test_algorithms_that_need_discrete_actions_name_the_wrapper_that_makes_them(algorithm):
    with pytest.raises(UserError, match=f"^{algorithm} .*jaxrl.envs.wrappers.discretized_actions"):
        build(algorithm, "pendulum")
    assert callable(envs.wrappers.discretized_actions)


def test_algorithms_that_need_continuous_actions_say_so():
    with pytest.raises(
        UserError, match=r"^td3_bc cannot act in Discrete.*; it needs a bounded Box"
    ):
        build("td3_bc", "cartpole")


def test_a_linear_a2c_is_built():
    assert build("a2c", "cartpole", hidden=()).config.torso.hidden == ()


def test_tiny_settings_are_named_as_everywhere(monkeypatch):
    said = lifelong_ppo.TINY | {"value_weight": 0.25, "clone.value_weight": 0.125}
    monkeypatch.setattr(lifelong_ppo, "TINY", said)
    config = registry.tiny("lifelong_ppo")[1]
    assert (config.ppo.value_weight, config.replay.clone.value_weight) == (0.25, 0.125)
    monkeypatch.setattr(iql, "TINY", iql.TINY | {"learning_rate": 1e-3})
    with pytest.raises(UserError, match="'learning_rate' may be any of"):
        registry.tiny("iql")


def test_ranges_of_a_run():
    assert Experiment.steps == 500_000  # a field's default is still an attribute of the class
    for changes, said in (
        ({"steps": 10**16}, "steps is 10000000000000000; it must be at most 1000000000000000."),
        ({"seeds": 10**12}, "seeds is 1000000000000; it must be at most 16777216."),
        ({"evaluate_episodes": 10**12}, "evaluate_episodes is 1000000000000; it must be at most "
         "16777216."),
        ({"evaluate_every": -2}, "evaluate_every is -2; it must be at least -1."),
        ({"keep": 0}, "keep is 0; it must be at least 1."),
        ({"devices": 0}, "devices is 0; it must be at least 1."),
        ({"generator": "pgc"}, "generator is 'pgc'; it must be one of auto, pcg, threefry2x32 "
         "(did you mean 'pcg'?)."),
    ):  # fmt: skip
        with pytest.raises(UserError) as raised:
            configuration.experiment(changes)
        assert str(raised.value) == said
