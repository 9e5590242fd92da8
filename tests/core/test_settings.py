"""Settings in groups: dotted names, their endings, and what a program may not read."""

import dataclasses

import pytest

from jaxrl.core import hyper as hyper_
from jaxrl.core import settings
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hyper, hypers, static
from jaxrl.core.settings import Static, Values, candidates, find_name, full_name, group, lookup


@group
class Inner:
    rate: float = hyper(0.1, low=0)
    width: int = static(4, low=1)


@group
class Config:
    first: Inner = Inner()
    second: Inner = Inner(rate=0.2)
    discount: float = hyper(0.9, low=0, high=1)
    steps: int = static(3, low=1)


def test_hyperparameters_have_dotted_names():
    assert hypers(Config()) == pytest.approx(
        {"first.rate": 0.1, "second.rate": 0.2, "discount": 0.9}
    )


def test_a_value_out_of_range_is_named_in_full():
    with pytest.raises(UserError, match=r"^second.rate is -1; it must be at least 0\.$"):
        hypers(Config(second=Inner(rate=-1)))


def test_a_unique_ending_is_enough():
    known = ["first.rate", "second.rate", "discount"]
    assert full_name("discount", known) == "discount"
    assert full_name("second.rate", known) == "second.rate"
    with pytest.raises(
        UserError, match=r"'rate' may be any of first\.rate, second\.rate; say which"
    ):
        full_name("rate", known)
    with pytest.raises(UserError, match="Unknown hyperparameter 'ratio'"):
        full_name("ratio", known)


def test_a_whole_name_wins_over_an_ending():
    assert full_name("rate", ["rate", "inner.rate"]) == "rate"
    assert full_name("a.rate", ["b.a.rate", "a.rate"]) == "a.rate"


def test_of_several_endings_the_one_nearest_the_root_wins():
    known = ["agent.torso.rate", "agent.rate", "agent.torso.critic.rate"]
    assert full_name("rate", known) == "agent.rate"
    assert full_name("torso.rate", known) == "agent.torso.rate"
    assert full_name("critic.rate", known) == "agent.torso.critic.rate"
    nested = {"ppo.learning_rate": 1.0, "rnd.distillation.learning_rate": 2.0}
    assert hyper_.override(nested, {"learning_rate": 3.0})["ppo.learning_rate"] == 3.0


def test_a_tie_for_the_nearest_is_refused_and_lists_all_that_may_be_meant():
    known = ["x.critic.rate", "actor.rate", "critic.rate"]
    with pytest.raises(
        UserError,
        match=r"^'rate' may be any of x\.critic\.rate, actor\.rate, critic\.rate; say which\.$",
    ):
        full_name("rate", known)
    assert full_name("critic.rate", known) == "critic.rate"
    assert full_name("x.critic.rate", known) == "x.critic.rate"


def test_a_name_may_skip_the_groups_below_the_root():
    known = ["seed", "agent.data.seed", "agent.optimizer.rate", "other.rate"]
    find = lambda name: find_name(name, known, root="agent")
    assert find("agent.rate") == "agent.optimizer.rate"
    assert find("optimizer.rate") == find("agent.optimizer.rate") == "agent.optimizer.rate"
    assert find("rate") == "other.rate"
    assert (find("seed"), find("agent.seed")) == ("seed", "agent.data.seed")
    assert find("agent.width") is None and find("width") is None
    assert find_name("agent.rate", known) is None  # no root, nothing to skip


def test_candidates_are_all_that_a_name_may_stand_for():
    known = ["rate", "first.rate", "second.inner.rate"]
    assert candidates("rate", known) == ["rate"]
    assert candidates("rate", known[1:]) == known[1:]
    assert candidates("ate", known) == candidates("first", known) == []


def test_replacing_settings_at_any_depth():
    changed = settings.replace(Config(), {"first.width": 7, "steps": 9})
    assert (changed.first.width, changed.second.width, changed.steps) == (7, 4, 9)
    with pytest.raises(UserError, match=r"may be any of first\.width, second\.width"):
        settings.replace(Config(), {"width": 1})


def test_replacing_the_setting_nearest_the_root():
    @group
    class Outer:
        inner: Config = Config()
        first: Inner = Inner()

    changed = settings.replace(Outer(), {"width": 7, "second": {"width": 8}})
    assert (changed.first.width, changed.inner.first.width) == (7, 4)
    assert changed.inner.second.width == 8


def test_replacing_settings_written_as_in_a_yaml_file():
    @group
    class Layers:
        inner: Inner = Inner()
        hidden: tuple[int, ...] = static((64,), low=1)

    changed = settings.replace(Layers(), {"inner": {"rate": 0.3, "width": 7}, "hidden": [8, 4]})
    assert changed == Layers(Inner(rate=0.3, width=7), (8, 4))
    hash(changed)
    with pytest.raises(UserError, match=r"Unknown setting 'inner\.ratio'.*inner\.rate"):
        settings.replace(Layers(), {"inner": {"ratio": 0.3}})


def test_looking_up_a_path():
    assert lookup(Config(), "second") == Inner(rate=0.2)
    assert lookup(Config(), "second.rate") == 0.2
    with pytest.raises(UserError, match=r"Unknown setting of Config 'secnd'; .*'second'"):
        lookup(Config(), "secnd.rate")


def test_values_are_read_by_attribute():
    values = Values({"first.rate": 1, "discount": 2})
    assert values.first.rate == 1 and values.discount == 2 and values["first.rate"] == 1
    assert values["first"].rate == 1
    with pytest.raises(AttributeError, match=r"first\.ratio"):
        _ = values.first.ratio
    with pytest.raises(AttributeError, match="rate"):  # no endings here
        _ = values.rate


def test_a_program_cannot_read_a_hyperparameter():
    config = Static(Config())
    assert config.steps == 3 and config.first.width == 4
    with pytest.raises(AttributeError, match=r"read net\.hyper\.first\.rate"):
        _ = config.first.rate
    with pytest.raises(AttributeError, match=r"read net\.hyper\.discount"):
        _ = config.discount
    with pytest.raises(AttributeError):
        _ = config.nothing


def test_a_group_is_a_hashable_dataclass():
    assert dataclasses.is_dataclass(Config) and Config() == Config() and hash(Config()) is not None


def test_a_setting_that_an_algorithm_has_no_use_for_is_refused_by_its_dotted_name():
    off, names = Config(Inner(rate=0.0, width=0)), ("first.rate", "first.width")
    settings.refuse(off, names, "it has none")
    with pytest.raises(UserError, match=r"^first\.width is 3; it has none\.$"):
        settings.refuse(Config(Inner(rate=0.0, width=3)), names, "it has none")
    with pytest.raises(UserError, match="did you mean 'width'"):
        settings.refuse(off, ("first.widht",), "it has none")
