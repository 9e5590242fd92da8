"""Datasets hold whole episodes of finite numbers, and fit their environment."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.datasets import data
from jaxrl.datasets.data import Dataset, References
from tests.datasets.files import counted_steps, environment


def test_steps_that_do_not_follow_each_other_are_refused():
    x = counted_steps().transitions
    rows = np.array([0, 1, 2, 3, 5])  # a step is missing
    with pytest.raises(UserError, match="follow"):
        Dataset("x", jax.tree.map(lambda leaf: leaf[rows], x))
    with pytest.raises(UserError, match="whole"):
        Dataset("x", jax.tree.map(lambda leaf: leaf[:-1], x))
    with pytest.raises(UserError, match="whole"):
        Dataset("x", jax.tree.map(lambda leaf: leaf[1:], x))


def put(transitions, path, row, value):
    """Put `value` into rows of the leaf whose path ends with `path`, in a copy of `x`."""

    def one(where, leaf):
        if jax.tree_util.keystr(where, simple=True, separator=".") != path:
            return leaf
        leaf = np.array(leaf)
        leaf[row] = value
        return leaf

    return jax.tree_util.tree_map_with_path(one, transitions)


@pytest.mark.parametrize(
    "path,value",
    [
        ("timestep.observation", np.nan),
        ("next_timestep.observation", -np.inf),
        ("timestep.reward", np.nan),
        ("next_timestep.reward", np.inf),
    ],
)
def test_numbers_are_finite(path, value):
    x = put(counted_steps().transitions, path, (slice(7, 9),), value)
    with pytest.raises(UserError, match=rf"{path} of the dataset 'x' is {value} in row 7\b"):
        Dataset("x", x)


def test_metrics_may_be_nan():
    x = counted_steps().transitions
    bare = dataclasses.replace(x.next_timestep, metrics={"m": np.full(12, np.nan)})
    Dataset("x", dataclasses.replace(x, next_timestep=bare))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e7, -1e7, 1e39])
def test_an_invalid_action_is_refused_with_its_row(value):
    action = np.zeros((12, 2))
    action[5, 1] = value
    with pytest.raises(
        UserError, match=r"action .* is (nan|inf|-?1e\+\d\d|-?1\d+\.0) in row 5, entry \[1\]"
    ):
        data.conform(acting(action), moving())


def test_actions_beyond_their_bounds_are_kept():
    """Environments clip, and a Gaussian policy has no bounds; agents learn from the actions that it
    chose."""
    action = np.random.default_rng(0).normal(size=(12, 2)) * 100
    np.testing.assert_array_equal(
        data.conform(acting(action), moving()).transitions.action, action.astype(np.float32)
    )
    strong = dataclasses.replace(moving(), action_space=spaces.Box(-1e5, np.inf, (2,)))
    assert len(data.conform(acting(action * 1e6), strong)) == 12


@pytest.mark.parametrize(
    "action,match",
    [
        (np.full(12, 3), "is 3 in row 0; it must be an element of Discrete"),
        (np.full(12, -1), "is -1 in row 0"),
        (np.full(12, 2**40), "is 1099511627776 in row 0; it must be int32"),
        (np.zeros(12), "is float64; it must be int32"),
        (np.zeros((12, 1), int), r"actions .* are \[1\] and those of 'counting' \[\]"),
        ({"a": np.zeros(12, int)}, r"actions .* are {'a': \[\]}"),
        (np.zeros(12, "U1"), "must be one of real numbers"),
        (np.zeros(11, int), "'action' has the shape .11.; it must have 12 rows"),
    ],
)
def test_indices_are_those_of_the_space(action, match):
    with pytest.raises(UserError, match=match):
        data.conform(acting(action), environment())


def test_indices_out_of_the_space_are_refused():
    sizes = dataclasses.replace(environment(), action_space=spaces.MultiDiscrete((2, 3)))
    action = np.zeros((12, 2), np.int64)
    assert data.conform(acting(action), sizes).transitions.action.dtype == np.int32
    action[4] = 1, 3
    with pytest.raises(UserError, match=r"is 3 in row 4, entry \[1\]"):
        data.conform(acting(action), sizes)


def acting(action):
    counts = counted_steps()
    return dataclasses.replace(
        counts, transitions=dataclasses.replace(counts.transitions, action=action)
    )


def moving():
    return dataclasses.replace(environment(), action_space=spaces.Box(-1.0, 1.0, (2,)))


def test_flags_are_booleans_and_not_both_set():
    x = counted_steps().transitions
    after = dataclasses.replace(x.next_timestep, terminated=x.truncated)
    with pytest.raises(UserError, match=r"row 2 .* both terminated and truncated"):
        Dataset("x", dataclasses.replace(x, next_timestep=after))
    after = dataclasses.replace(x.next_timestep, terminated=np.zeros(12))
    with pytest.raises(UserError, match=r"'terminated' .* is float64"):
        Dataset("x", dataclasses.replace(x, next_timestep=after))


def test_a_dataset_has_rows():
    x = counted_steps().transitions
    with pytest.raises(UserError, match="is empty"):
        Dataset("x", jax.tree.map(lambda leaf: leaf[:0], x))
    for reward in (np.float32(0), np.zeros((12, 2))):
        after = dataclasses.replace(x.next_timestep, reward=reward)
        with pytest.raises(UserError, match="reward"):
            Dataset("x", dataclasses.replace(x, next_timestep=after))
    before = dataclasses.replace(x.timestep, observation=x.observation[:5])
    after = dataclasses.replace(x.next_timestep, observation=(x.next_observation,) * 2)
    with pytest.raises(UserError, match=r"are \[3\] before each step and \(\[3\], \[3\]\) after"):
        Dataset("x", dataclasses.replace(x, next_timestep=after))
    with pytest.raises(UserError, match=r"'timestep.observation' has the shape \[5, 3\]"):
        Dataset("x", dataclasses.replace(x, timestep=before))


def test_parts_that_do_not_fit_are_not_joined():
    with pytest.raises(UserError, match="actions of 'counted' are"):
        data.join("x", [counted_steps(), acting(np.zeros((12, 2)))])
    with pytest.raises(UserError, match="no parts"):
        data.join("x", [])


@pytest.mark.parametrize(
    "returns,match",
    [((0.0, np.nan), "expert"), ((0, "1"), "'1'"), ((None, 1), "None"), ((1.0, 1.0), "larger")],
)
def test_references_must_be_numbers(returns, match):
    with pytest.raises(UserError, match=match):
        References(*returns)


def test_profile_and_score():
    counts = counted_steps()
    counts = dataclasses.replace(counts, references=References(10.0, 110.0))
    found = data.profile(counts)
    # A reward is 10 t + action with t = 1, 2, 3; the action is the number of the stream.
    assert found["return"] == {"mean": 61.5, "least": 60.0, "most": 63.0}
    assert found["length"] == {"mean": 3.0, "least": 3.0, "most": 3.0}
    assert (found["episodes"], found["truncated"], found["terminated"]) == (4, 4, 0)
    assert found["action"] == [[0], [1]]
    expected = float(losses.normalized_score(61.5, 10.0, 110.0))
    assert found["score"] == pytest.approx(expected) == 51.5
    twice = data.join("twice", [counts, counts])
    assert data.profile(twice)["episodes"] == 8 and twice.references == counts.references


def test_a_dataset_of_another_environment_is_refused():
    counts = counted_steps()
    assert data.conform(counts, environment()).transitions.action.dtype == np.int32
    wide = dataclasses.replace(environment(), action_space=environment().observation_space)
    with pytest.raises(UserError, match="actions"):
        data.conform(counts, wide)
