"""Hide and seek: who is seen and paid, the preparation, boxes, penalties, scripted players."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.hide_and_seek import LOCK, PULL, STAY, WALK, State, plan
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

EAST, SOUTH, WEST, NORTH = range(4)
ROOM = {"size": 5, "hiders": 1, "seekers": 1, "boxes": 1, "doors": 1, "preparation": 2, "steps": 9}
# With the walls around it, its room is [4:6, 4:6], and its door at row 3, column 4.


def test_grids_without_boxes_keep_the_rules_of_environments():
    check_environment(make("hide_and_seek", observation="grid", walled=False, boxes=0, size=5))


@functools.cache
def room(**settings):
    env = make("hide_and_seek", **(ROOM | settings))
    return env, jax.jit(env.step), env.reset(random.key(0), env.params)[0]


def play(hider, seeker, box, actions, time=2, lock=crowds.FREE, **settings):
    """One step from places, by the actions of hider and seeker."""
    env, step, state = room(**settings)
    crowd = crowds.gather(np.array([hider, seeker]), np.array([box]))
    crowd = dataclasses.replace(crowd, lock=jnp.array([lock], jnp.int32))
    inner = State(crowd, crowd.box, jnp.int32(time), jnp.int32(0))
    action = dict(zip(env.agents, map(jnp.int32, actions), strict=True))
    after, timestep = step(
        random.key(1), dataclasses.replace(state, inner=inner), action, env.params
    )
    return after.inner, timestep


def test_walls_stand_where_they_should():
    wall, inside = plan(5, 2, True)
    rows = ["".join(".#"[int(x)] for x in row) for row in wall]
    assert rows == ["#######", "#.....#", "#.....#", "#..#.##", "#.....#", "#..#..#", "#######"]
    assert np.argwhere(inside).tolist() == [[4, 4], [4, 5], [5, 4], [5, 5]]


def test_a_closed_door_hides():
    seen = play([4, 4], [1, 4], [5, 5], (STAY, STAY))[1]
    assert seen.reward.tolist() == [-1.0, 1.0] and float(seen.metrics["hidden"]) == 0.0
    hidden = play([5, 4], [1, 4], [4, 4], (WALK + NORTH, STAY))  # pushes the box into the door
    assert hidden[0].crowd.box.tolist() == [[3, 4]]
    assert hidden[0].crowd.place.tolist() == [[4, 4], [1, 4]]
    assert hidden[1].reward.tolist() == [1.0, -1.0]
    assert {n: float(x) for n, x in hidden[1].metrics.items()} == {
        "hidden": 1.0, "locked": 0.0, "moved": 1.0,
    }  # fmt: skip
    # It is in the way of the seeker, unless the hider makes way and has not locked it.
    at = {"hider": [4, 4], "seeker": [2, 4], "box": [3, 4]}
    assert play(**at, actions=(STAY, WALK + SOUTH))[0].crowd.box.tolist() == [[3, 4]]
    assert play(**at, actions=(WALK + EAST, WALK + SOUTH))[0].crowd.box.tolist() == [[4, 4]]
    kept = play(**at, actions=(WALK + EAST, WALK + SOUTH), lock=0)[0]
    assert kept.crowd.box.tolist() == [[3, 4]]
    assert play(**at, actions=(LOCK, PULL + NORTH))[0].crowd.box.tolist() == [[3, 4]]
    assert play(**at, actions=(STAY, PULL + NORTH))[0].crowd.box.tolist() == [[2, 4]]


def test_locks_belong_to_a_team():
    at = {"hider": [4, 4], "seeker": [2, 4], "box": [3, 4]}
    assert play(**at, actions=(LOCK, STAY))[0].crowd.lock.tolist() == [0]
    assert play(**at, actions=(STAY, LOCK), lock=0)[0].crowd.lock.tolist() == [0]
    assert play(**at, actions=(LOCK, STAY), lock=0)[0].crowd.lock.tolist() == [crowds.FREE]
    legal = play(**at, actions=(STAY, STAY), lock=0)[1].legal_actions
    on = lambda name: np.flatnonzero(np.asarray(legal[name])).tolist()
    assert on("hider_0") == [STAY, WALK + EAST, WALK + SOUTH, LOCK]
    assert on("seeker_0") == [STAY, WALK + EAST, WALK + WEST, WALK + NORTH]
    legal = play(**at, actions=(STAY, STAY))[1].legal_actions
    assert on("seeker_0") == [
        STAY, WALK + EAST, WALK + SOUTH, WALK + WEST, WALK + NORTH, PULL + NORTH, LOCK,
    ]  # fmt: skip


def test_seekers_wait_and_nobody_is_paid_in_the_preparation():
    after, timestep = play([4, 4], [1, 4], [5, 5], (WALK + EAST, WALK + EAST), time=1)
    assert after.crowd.place.tolist() == [[4, 5], [1, 4]]
    assert timestep.reward.tolist() == [0.0, 0.0]
    early = play([4, 4], [1, 4], [5, 5], (STAY, STAY), time=0)[1]
    assert early.legal_actions["seeker_0"].sum() == 1


def test_what_is_not_seen_is_not_observed():
    hidden = play([4, 4], [1, 1], [3, 4], (STAY, STAY))[1].observation["seeker_0"]
    np.testing.assert_allclose(hidden[:3], [1 / 6, 1 / 6, 1.0])
    assert np.asarray(hidden)[3:6].tolist() == [0, 0, 0]
    seen = play([4, 4], [2, 4], [5, 5], (STAY, STAY), lock=1)[1].observation
    np.testing.assert_allclose(seen["hider_0"][3:], [-0.4, 0, 1, 0.2, 0.2, 1, 0, 1])
    np.testing.assert_allclose(seen["seeker_0"][3:6], [0.4, 0, 1])


def test_leaving_the_square_costs():
    leaves = play([1, 1], [1, 4], [5, 5], (WALK + WEST, STAY), walled=False)
    assert leaves[0].crowd.place.tolist()[0] == [1, 0]
    assert leaves[1].reward.tolist() == [-10.0, 1.0]
    box = play([4, 1], [1, 4], [5, 1], (WALK + SOUTH, STAY), walled=False)
    assert box[0].crowd.box.tolist() == [[6, 1]] and box[1].reward.tolist() == [-10.0, -10.0]


def test_scripted_players_hide_and_seek():
    env = expert_channel(make("hide_and_seek"))
    expert, chance = expert_policy(env), random_policy(env)

    def hidden(players):
        def act(state, timestep, memory, key, greedy):
            one, other = (p.act((), timestep, (), key, greedy)[0] for p in (expert, chance))
            return {n: (one if n.startswith(players) else other)[n] for n in one}, memory, {}

        played = evaluate(env, type(expert)(act, lambda n: ()), random.key(2), 256)
        total = np.asarray(played.returns)
        np.testing.assert_allclose(total[:, 0], -total[:, 2])
        share = np.asarray(played.metrics["hidden"])
        np.testing.assert_allclose(total[:, 0], 24 * (2 * share - 1), atol=1e-4)
        return share.mean()

    fled, chased, random_play = hidden("hider"), hidden("seeker"), hidden("nobody")
    assert fled > random_play + 0.1 and chased < random_play / 2


def test_bad_options_are_refused():
    with pytest.raises(UserError, match="The steps of 'hide_and_seek' is 5"):
        make("hide_and_seek", steps=5)
    with pytest.raises(UserError, match="3 doors and 2 boxes"):
        make("hide_and_seek", doors=3)
