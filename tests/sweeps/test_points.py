"""The settings that a sweep varies: words of the command line, and their points."""

import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers, log_scaled
from jaxrl.runtime import configuration
from jaxrl.sweeps.points import Values, apply, is_hyper, parse, points
from tests.runtime import tiny


def test_values_of_every_kind():
    config = tiny.config(env="catch")
    words = [
        "learning-rate=1e-4,1e-3", "clip=uniform(0.1,0.3)", "agent.entropy_weight=log(1e-5,1e-2)",
        "agent.hidden=64,64/32", "agent.num_envs=4,8", "agent.activation=tanh,relu",
        "env-params.rows=5,7",
    ]  # fmt: skip
    varied = parse(config, words)
    listed = {name: values.listed for name, values in varied.items() if values.listed}
    assert listed == {
        "optimizer.learning_rate": (1e-4, 1e-3),
        "torso.hidden": ((64, 64), (32,)),
        "rollouts.num_envs": (4, 8),
        "torso.activation": ("tanh", "relu"),
        "env_params.rows": (5, 7),
    }
    assert varied["clip"] == Values((), 0.1, 0.3)
    assert [name for name in varied if is_hyper(config, name)] == [*varied][:3]
    one = apply(config, {"torso.hidden": (32,), "env_params.rows": 7, "clip": 0.3})
    assert one.agent.torso.hidden == (32,) and one.agent.clip == 0.3
    assert one.env_params == {"rows": 7}


def test_the_setting_nearest_the_root_is_varied():
    config = configuration.experiment({"algorithm": "lifelong_ppo"})
    assert list(parse(config, ["value_weight=0.1,0.2"])) == ["ppo.value_weight"]
    assert list(parse(config, ["agent.value_weight=0.1,0.2"])) == ["ppo.value_weight"]
    assert list(parse(config, ["clone.value-weight=0.1,0.2"])) == ["replay.clone.value_weight"]
    tied = configuration.experiment({"algorithm": "iql"})
    sentence = r"'learning_rate' may be any of agent\.critic\.learning_rate,"
    with pytest.raises(UserError, match=sentence):
        parse(tied, ["learning-rate=1,2"])


def test_a_list_alone_and_lists_of_one():
    of = lambda word: parse(tiny.config(), [word])["torso.hidden"].listed
    assert of("agent.hidden=64,64") == ((64, 64),)
    assert of("agent.hidden=64/32/16") == ((64,), (32,), (16,))


WRONG = {
    ("agent.hidden=64/64",): "agent.torso.hidden is given the same value twice",
    ("agent.num_envs=4,x",): "agent.rollouts.num_envs is 'x'; it must be a whole number",
    ("agent.num_envs=4,0",): "agent.rollouts.num_envs is 0; it must be at least 1",
    ("agent.num_envs=uniform(4,8)",): "agent.rollouts.num_envs is part of the program",
    ("agent.clip=uniform(0.3,0.1)",): "the first number must be the smaller one.",
    ("agent.learning-rate=log(0,1)",): "the first number must be the smaller one and above 0.",
    ("agent.discount=uniform(0.9,1.5)",): "agent.discount is 1.5; it must be between 0 and 1.",
    ("agent.clip=log(0.1,x)",): "agent.clip is 'x'; it must be a number",
    ("steps=1,2",): "Unknown setting of a sweep 'steps'",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_varied(words):
    with pytest.raises(UserError) as error:
        parse(tiny.config(), words)
    assert WRONG[words] in str(error.value)


def test_draws_are_the_seeds_and_spread_as_asked():
    varied = {
        "a": Values((), 1e-4, 1.0, log=True),
        "b": Values((), -1.0, 3.0),
        "c": Values.of("xy"),
    }
    drawn = points(varied, 4000, seed=3)
    assert drawn[:10] == points(varied, 10, seed=3) != points(varied, 10, seed=4)
    a, b = (np.array([point[name] for point in drawn]) for name in "ab")
    quarters = np.array([0.25, 0.5, 0.75])
    np.testing.assert_allclose(np.log10(np.quantile(a, quarters)), [-3, -2, -1], atol=0.1)
    np.testing.assert_allclose(np.quantile(b, quarters), [0, 1, 2], atol=0.1)
    assert a.min() >= 1e-4 and a.max() <= 1 and b.min() >= -1 and b.max() <= 3
    assert abs(np.mean([point["c"] == "x" for point in drawn]) - 0.5) < 0.03


def test_a_grid_and_samples_that_do_not_fit():
    lists, spread = {"a": Values.of([1, 2]), "b": Values.of([3, 4])}, {"c": Values((), 0, 1)}
    assert points(lists, 0, 0) == [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]
    with pytest.raises(UserError, match=r"agent\.c is varied over a range; add --samples N"):
        points(lists | spread, 0, 0)
    with pytest.raises(UserError, match="--samples needs a range"):
        points(lists, 5, 0)


def test_a_range_is_spaced_as_the_setting_declares():
    config = tiny.config()
    words = ["learning-rate=range(1e-4,1e-2)", "agent.clip=range(0.1,0.3)"]
    drawn = parse(config, words)
    assert drawn["optimizer.learning_rate"] == Values((), 1e-4, 1e-2, log=True)
    assert drawn["clip"] == Values((), 0.1, 0.3)
    assert parse(config, ["learning-rate=uniform(1e-4,1e-2)"]) == {
        "optimizer.learning_rate": Values((), 1e-4, 1e-2)
    }
    found = points(drawn, 4000, seed=0)
    middle = np.median([point["optimizer.learning_rate"] for point in found])
    np.testing.assert_allclose(np.log10(middle), -3, atol=0.1)
    grid = parse(config, ["learning-rate=range(1e-4,1e-2,3)", "agent.clip=range(0.1,0.3,3)"])
    rates = grid["optimizer.learning_rate"].listed
    np.testing.assert_allclose(rates, [1e-4, 1e-3, 1e-2])
    np.testing.assert_allclose(grid["clip"].listed, [0.1, 0.2, 0.3])
    assert len(points(grid, 0, 0)) == 9
    for words, sentence in (
        ("learning-rate=range(0,1)", "must be the smaller one and above 0"),
        ("learning-rate=range(1e-4,1e-2,1)", "list at least 2"),
    ):
        with pytest.raises(UserError, match=sentence):
            parse(config, [words])


@pytest.mark.parametrize("name", ["ppo", "sac", "lifelong_ppo", "iql", "evolution_strategy"])
def test_all_learning_rates_are_log_scaled(name):
    agent = configuration.experiment({"algorithm": name}).agent
    rates = {x for x in hypers(agent) if x.endswith("learning_rate")}
    assert rates and rates <= log_scaled(agent)
    assert "discount" not in log_scaled(agent)
