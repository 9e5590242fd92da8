"""Recorded streams and the episodes of files become transitions, without invented steps."""

import jax
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.datasets import transitions
from jaxrl.datasets.data import Dataset, profile
from tests.datasets.files import counted_steps


def episode(steps, terminated, truncated, start=0.0):
    flags = np.zeros((2, steps), bool)
    flags[:, -1] = terminated, truncated
    return {
        "observations": start + np.arange(steps + 1, dtype=np.float32)[:, None],
        "actions": np.arange(steps),
        "rewards": np.arange(steps) + 0.5,
        "terminations": flags[0],
        "truncations": flags[1],
    }


def test_recorded_streams_become_whole_episodes():
    x = counted_steps(
        steps=8, streams=2
    ).transitions  # two whole episodes of 3, two steps of another
    assert len(x.reward) == 12
    np.testing.assert_array_equal(x.first, [True, False, False] * 4)
    np.testing.assert_array_equal(x.truncated, [False, False, True] * 4)
    np.testing.assert_array_equal(x.observation[:, 0], [0, 1, 2] * 4)
    # The successor of a truncated step is the true one, not the start of the next episode.
    np.testing.assert_array_equal(x.next_observation[:, 0], [1, 2, 3] * 4)
    tags = x.observation[:, 1].reshape(4, 3)
    assert (tags == tags[:, :1]).all() and len(set(tags[:, 0])) == 4
    np.testing.assert_array_equal(x.next_observation[:, 1], x.observation[:, 1])
    actions = x.action.reshape(4, 3)
    assert (actions == actions[:, :1]).all()  # the steps of a stream stay together


def test_fewer_episodes_are_spread_over_the_recording():
    window = counted_steps(steps=60, streams=1).transitions
    framed = jax.tree.map(lambda x: x[:, None], window)
    chosen = transitions.from_streams(framed, 15)
    assert len(chosen.reward) == 15
    whole = window.observation[::3, 1].tolist()
    at = [whole.index(tag) for tag in chosen.observation[::3, 1]]
    assert at == sorted(at) and at[0] == 0 and at[-1] == len(whole) - 1
    with pytest.raises(UserError, match="No episode ended"):
        transitions.from_streams(jax.tree.map(lambda x: x[:2], framed))


def test_a_region_is_left_out_and_episodes_are_cut_there():
    parts = [episode(5, True, False), episode(4, False, True, start=2.0)]
    whole = transitions.from_episodes(parts)  # observations 0 to 4, and 2 to 5
    left = transitions.without_region(whole, whole.observation, 0.4)
    # The mean is 2.67: those at 2 and 3, and at 2 and 3 in the second episode, are nearest.
    np.testing.assert_array_equal(left.observation[:, 0], [0, 1, 4, 4, 5])
    np.testing.assert_array_equal(left.next_observation[:, 0], [1, 2, 5, 5, 6])
    np.testing.assert_array_equal(left.first, [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(left.terminated, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(left.truncated, [0, 1, 0, 0, 1])
    assert len(Dataset("with a hole", left)) == 5  # which checks that episodes are whole
    with pytest.raises(UserError, match="No transition is left beside the hole"):
        transitions.without_region(whole, 0 * whole.observation, 0.5)


def test_files_have_one_observation_more_than_steps():
    x = transitions.from_episodes([episode(3, True, False), episode(2, False, True, start=10.0)])
    np.testing.assert_array_equal(x.observation[:, 0], [0, 1, 2, 10, 11])
    np.testing.assert_array_equal(x.next_observation[:, 0], [1, 2, 3, 11, 12])
    np.testing.assert_array_equal(x.terminated, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(x.truncated, [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(x.first, [1, 0, 0, 1, 0])
    assert not x.timestep.done.any() and not x.next_timestep.first.any()
    np.testing.assert_array_equal(x.timestep.reward, [0, 0.5, 1.5, 0, 0.5])
    # A record that stops before the end of the episode was truncated there.
    cut = transitions.from_episodes([episode(3, False, False)])
    np.testing.assert_array_equal(cut.truncated, [0, 0, 1])
    assert not cut.terminated.any()


def test_lengths_that_do_not_fit_are_refused():
    short = episode(3, True, False) | {"observations": np.zeros((3, 1))}
    with pytest.raises(UserError, match="4 observations"):
        transitions.from_episodes([short])
    early = episode(3, True, False)
    early["terminations"][0] = True
    with pytest.raises(UserError, match="before its last"):
        transitions.from_episodes([early])
    with pytest.raises(UserError, match="no episodes"):
        transitions.from_episodes([])


@pytest.mark.parametrize(
    "change,match",
    [
        ({"rewards": None}, "Episode 1 has no rewards"),
        ({"rewards": [0, np.nan, 1]}, "reward of episode 1 is nan in row 1"),
        ({"rewards": [0, 1, 1e300]}, r"is 1e\+300 in row 2; it must be finite as float32"),
        ({"rewards": ["a", "b", "c"]}, "must be one of real numbers"),
        ({"rewards": [[0], [0, 1], [0]]}, "is not an array"),
        ({"rewards": np.zeros((3, 1))}, r"shape \[3, 1\]"),
        ({"rewards": 0.0}, r"shape \[\]"),
        ({"terminations": [0, 0, 0.5]}, "'terminations' of episode 1 is float64; it must be bool"),
        ({"terminations": [0, 0, 2]}, "is 2 in row 2; it must be bool"),
        ({"truncations": ["", "", "x"]}, "must be one of real numbers"),
        ({"truncations": np.zeros(4, bool)}, "3 rewards and 4 truncations; it needs 3"),
        ({"actions": np.arange(4)}, "3 rewards and 4 actions; it needs 3"),
        ({"actions": 0}, "a single value for actions"),
        ({"actions": (np.arange(3), np.arange(2))}, "2 actions"),
        ({"actions": np.zeros((3, 2))}, r"actions of episode 1 are \[2\], and of episode 0 \[\]"),
        ({"actions": {"a": np.zeros(3)}}, r"actions of episode 1 are {'a': \[\]}"),
        ({"observations": np.zeros((4, 2))}, r"observations of episode 1 are \[2\], .* \[1\]"),
        ({"goal": np.zeros((3, 1))}, "3 goal; it needs 4"),
        ({"goal": np.zeros((4, 1))}, r"goals of episode 1 are \[1\], and of episode 0 None"),
    ],
)
def test_impossible_episodes_are_refused(change, match):
    odd = {k: v for k, v in (episode(3, True, False) | change).items() if v is not None}
    with pytest.raises(UserError, match=match):
        transitions.from_episodes([episode(2, True, False), odd])


def test_flags_may_be_integers_and_a_clock_may_end_a_terminated_episode():
    """The `TimeLimit` of Gymnasium truncates its last step, whether it terminated or not."""
    both = episode(3, True, True)
    both |= {k: both[k].astype(np.uint8) for k in ("terminations", "truncations")}
    x = Dataset("x", transitions.from_episodes([both, episode(2, False, True)]))
    np.testing.assert_array_equal(x.transitions.terminated, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(x.transitions.truncated, [0, 0, 0, 0, 1])
    assert profile(x)["terminated"] == profile(x)["truncated"] == 1
