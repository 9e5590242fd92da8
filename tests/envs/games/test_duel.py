"""The duel: what beats what, at known states, and its scripted players."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.games import duel as d
from jaxrl.envs.games import duel_players
from jaxrl.evaluation import matches

FRAME = jax.jit(d.frame)


def state(distance, left=5, frames=40):
    position = jnp.asarray([left, left + distance], jnp.int32)
    pair = lambda x: jnp.full(2, x, jnp.int32)
    number = jnp.int32
    return d.State(
        position, pair(d.FULL), pair(d.STAY), pair(0), number(d.NOT_YET), number(0), number(frames)
    )


def after(begin, *choices):
    """Play frames with the choices of both fighters; those who are busy go on with what they do."""
    for first, second in choices:
        begin = FRAME(begin, jnp.asarray([first, second], jnp.int32))
    return jax.device_get(begin)


def health(*args):
    return after(*args).health.tolist()


def test_fighters_walk_and_do_not_pass_each_other_or_the_walls():
    assert after(state(3), (d.ADVANCE, d.RETREAT)).position.tolist() == [6, 9]
    assert after(state(1), (d.ADVANCE, d.STAY)).position.tolist() == [5, 6]
    assert after(state(2), (d.ADVANCE, d.ADVANCE)).position.tolist() == [5, 7]
    assert after(state(1), (d.ADVANCE, d.RETREAT)).position.tolist() == [6, 7]
    assert after(state(12, left=0), (d.RETREAT, d.RETREAT)).position.tolist() == [0, 12]


@pytest.mark.parametrize("distance", range(1, 5))
def test_attacks_reach_as_far_as_the_table_says(distance):
    jab = health(state(distance), (d.JAB, d.STAY))
    assert jab == [100, 92 if distance <= 2 else 100]
    throw = health(state(distance), (d.THROW, d.STAY))
    assert throw == [100, 86 if distance <= 1 else 100]
    heavy = [(d.HEAVY, d.STAY)] * 2
    assert health(state(distance), *heavy) == [100, 100]
    assert health(state(distance), *heavy, (0, d.STAY)) == [100, 80 if distance <= 3 else 100]


def test_strikes_beat_throws_throws_beat_blocks_and_blocks_beat_strikes():
    assert health(state(1), (d.JAB, d.THROW)) == [100, 92]
    assert health(state(1), (d.THROW, d.BLOCK)) == [100, 86]
    blocked = after(state(2), (d.JAB, d.BLOCK))
    assert blocked.health.tolist() == [100, 100] and blocked.left.tolist() == [2, 0]
    heavy = [(d.HEAVY, d.BLOCK)] * 3
    assert health(state(2), *heavy) == [100, 96]
    assert health(state(1), (d.JAB, d.JAB)) == [92, 92]
    assert health(state(1), (d.THROW, d.THROW)) == [100, 100]


def test_a_jump_is_above_throws_and_heavy_strikes_but_not_above_a_jab():
    assert health(state(1), (d.THROW, d.JUMP)) == [100, 100]
    jump = [(d.HEAVY, d.STAY), (0, d.JUMP), (0, 0)]
    assert health(state(2), *jump) == [100, 100]
    assert health(state(2), (d.JAB, d.JUMP)) == [100, 92]


def test_a_hit_stuns_interrupts_and_pushes_back():
    hit = after(state(1), (d.JAB, d.HEAVY))
    assert hit.doing.tolist() == [d.JAB, d.STUN] and hit.left.tolist() == [2, 2]
    assert hit.position.tolist() == [5, 7]
    later = after(hit, *[(0, d.HEAVY)] * 2)
    assert later.health.tolist() == [100, 92] and later.left.tolist() == [0, 0]  # both are free
    assert after(state(1, left=11), (d.JAB, d.STAY)).position.tolist() == [11, 12]  # at the wall
    legal = [np.flatnonzero(d.make_rules(40).legal(x)).tolist() for x in (hit, later)]
    assert legal == [[d.STAY], list(range(8))]


def test_a_stunned_fighter_can_be_struck_but_not_thrown():
    stunned = state(1)
    stunned = d.State(
        stunned.position, stunned.health, jnp.asarray([0, d.STUN]), jnp.asarray([0, 3]),
        stunned.chosen, stunned.frame, stunned.frames,
    )  # fmt: skip
    assert health(stunned, (d.THROW, d.BLOCK)) == [100, 100]
    assert health(stunned, (d.JAB, d.BLOCK)) == [100, 92]


def test_the_second_choice_is_made_without_the_first_and_sides_are_alike():
    rules = d.make_rules(40)
    start = state(3)
    views = [rules.observe(rules.play(start, jnp.int32(action))) for action in (d.JAB, d.BLOCK)]
    np.testing.assert_array_equal(views[0], views[1])
    np.testing.assert_array_equal(rules.observe(state(2)), VIEW)
    mirrored = d.State(
        jnp.asarray([5, 10]), jnp.asarray([70, 40]), jnp.asarray([d.JAB, d.STUN]),
        jnp.asarray([2, 1]), jnp.int32(d.NOT_YET), jnp.int32(3), jnp.int32(40),
    )  # fmt: skip
    swapped = d.State(
        jnp.asarray([2, 7]), jnp.asarray([40, 70]), jnp.asarray([d.STUN, d.JAB]),
        jnp.asarray([1, 2]), jnp.int32(d.STAY), jnp.int32(3), jnp.int32(40),
    )  # fmt: skip
    np.testing.assert_array_equal(rules.observe(mirrored), rules.observe(swapped))


VIEW = np.concatenate(
    [[1, 5 / 12, 0], np.eye(9)[0], [1, 5 / 12, 0], np.eye(9)[0], [2 / 12, 1]]
).astype(np.float32)


def test_a_round_ends_with_a_knockout_or_with_the_time_and_pays_the_lead():
    rules = d.make_rules(2)
    hurt = d.State(
        jnp.asarray([5, 6]), jnp.asarray([30, 5]), jnp.zeros(2, jnp.int32),
        jnp.zeros(2, jnp.int32), jnp.int32(d.NOT_YET), jnp.int32(0), jnp.int32(2),
    )  # fmt: skip
    chosen = rules.play(hurt, jnp.int32(d.JAB))
    assert not rules.over(chosen)
    done = rules.play(chosen, jnp.int32(d.STAY))
    assert rules.over(done)
    np.testing.assert_allclose(rules.payoff(done, ()), [0.3, -0.3], rtol=1e-6)
    for _ in range(2):
        assert not rules.over(hurt)
        hurt = rules.play(rules.play(hurt, jnp.int32(d.BLOCK)), jnp.int32(d.BLOCK))
    assert rules.over(hurt)
    np.testing.assert_allclose(rules.payoff(hurt, ()), [0.25, -0.25], rtol=1e-6)


def test_the_duel_keeps_the_rules_of_environments():
    check_environment(envs.make("duel", frames=6))


def test_scripted_players_beat_each_other_as_their_attacks_do():
    players = {name: duel_players.player(name) for name in ("brawler", "wrestler", "keeper")}
    found = matches.tournament(envs.make("duel"), players, key=random.key(0), games=6)
    won = np.asarray(found.won)
    np.testing.assert_allclose(won + won.T, 1)  # without chance, except for the beginning
    np.testing.assert_allclose(np.diag(won), 0.5)
    assert won[0, 1] == 1  # jabs beat throws
    assert won[1, 2] == 1  # throws beat blocks
    assert won[2, 0] == 1  # blocks beat jabs


def test_wrong_arguments_are_refused():
    with pytest.raises(UserError, match="at least 1 frame"):
        envs.make("duel", frames=0)
    with pytest.raises(UserError, match="player 'boxer'"):
        duel_players.duel_against("boxer")
