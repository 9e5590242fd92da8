"""Leduc poker, liar's dice and Goofspiel against referees of their own, and what they hide."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.games import goofspiel, leduc_poker, liars_dice
from jaxrl.envs.games.leduc_poker import CALL, FOLD, RAISE
from tests.envs.games.test_games import ends, play_games


def pot_of(cards, actions):
    """Play Leduc poker by hand: what the first player wins, and who moves at each step."""
    pot, bets, round_, raises, count, movers = [1, 1], (2, 4), 0, 0, 0, []
    for action in actions:
        me = count % 2
        movers.append(me)
        assert round_ < 2
        if action == FOLD:
            assert pot[me] < pot[1 - me]
            return (pot[me] if me else -pot[me]), movers
        if action == RAISE:
            assert raises < 2
            pot[me] = max(pot) + bets[round_]
            raises += 1
        else:
            pot[me] = max(pot)
        count += 1
        if action == CALL and count > 1:
            round_, raises, count = round_ + 1, 0, 0
    assert round_ == 2
    strength = [card + 10 * (card == cards[2]) for card in cards[:2]]
    return pot[0] * int(np.sign(strength[0] - strength[1])), movers


@pytest.mark.slow
def test_leduc_poker_agrees_with_a_referee():
    states, timesteps, actions = play_games("leduc_poker")
    outcomes = set()
    for b, end in enumerate(ends(timesteps)):
        won, movers = pot_of(states.game.cards[b, 0], actions[b, :end])
        np.testing.assert_array_equal(timesteps.reward[b, end], [won, -won])
        assert timesteps.role[b, :end].tolist() == movers
        outcomes.add(abs(won))
    assert {0, 1, 3, 5} < outcomes  # shared; folded to the first raise, the second; in round two


def test_leduc_poker_shows_the_third_card_after_the_first_round():
    seen = jax.jit(leduc_poker.RULES.observe)
    state = lambda *moves: leduc_poker.State(
        jnp.asarray([0, 1, 2]), jnp.asarray([*moves, *[-1] * (8 - len(moves))]).reshape(2, 4)
    )
    np.testing.assert_array_equal(seen(state())[:8], [1, 0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(seen(state(CALL))[:8], [0, 1, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(seen(state(CALL, CALL, -1, -1))[:8], [1, 0, 1, 0, 0, 0, 0, 1])
    legal = jax.jit(leduc_poker.RULES.legal)
    assert legal(state(RAISE)).tolist() == [True, True, True]
    assert legal(state(RAISE, RAISE)).tolist() == [True, True, False]
    assert legal(state()).tolist() == [False, True, True]
    advice = jax.jit(leduc_poker._expert)
    assert advice(state(RAISE)) == CALL  # a queen
    assert advice(state(CALL, RAISE)) == FOLD  # a jack


@pytest.mark.slow
def test_liars_dice_agrees_with_a_referee():
    states, timesteps, actions = play_games("liars_dice")
    winners = set()
    for b, end in enumerate(ends(timesteps)):
        dice = states.game.dice[b, 0].ravel()
        *bids, doubt = actions[b, :end]
        assert doubt == 8 and bids == sorted(set(bids))
        number, face = divmod(int(bids[-1]), 4)
        true = sum(d in (face, 3) for d in dice) > number
        winner = (len(bids) - 1) % 2 if true else len(bids) % 2
        np.testing.assert_array_equal(timesteps.reward[b, end], np.eye(2)[winner] * 2 - 1)
        assert timesteps.role[b, :end].tolist() == [i % 2 for i in range(end)]
        winners.add((winner, true))
    assert len(winners) == 4


def test_liars_dice_hides_the_other_dice_and_their_order():
    rules = liars_dice.make_rules(3, 2)
    seen = jax.jit(rules.observe)
    state = lambda *dice: liars_dice.State(jnp.asarray(dice), jnp.zeros(12, bool), jnp.bool_(False))
    one, same, other = (seen(state(*dice)) for dice in (
        ([0, 2], [1, 1]), ([2, 0], [0, 2]), ([0, 0], [1, 1])
    ))  # fmt: skip
    np.testing.assert_array_equal(one, same)
    np.testing.assert_array_equal(one[:5], [1, 0, 0.5, 0, 0.5])
    assert (one != other).any()


def test_the_expert_of_liars_dice_knows_that_the_highest_face_counts_once():
    """A die counts for a bid on the highest face a quarter of the time, on a lower one half."""
    env = envs.make("liars_dice", dice=2)
    playing = env.reset(jax.random.key(0), ())[0]

    def advice(bid, *own):
        dice = jnp.asarray([[0, 0], own])
        game = liars_dice.State(dice, jnp.arange(16) == bid, jnp.bool_(False))
        return int(env.expert(dataclasses.replace(playing, game=game), ()))

    doubt = 16
    assert advice(3, 0, 1) == doubt  # one die of the highest face
    assert advice(3, 0, 3) != doubt
    assert advice(2, 0, 1) != doubt  # one die of another face
    assert advice(6, 0, 1) == doubt and advice(6, 0, 2) != doubt


@pytest.mark.slow
@pytest.mark.parametrize("players", [2, 3])
def test_goofspiel_agrees_with_a_referee(players):
    env = envs.make("goofspiel", players=players, order="random")
    rules = goofspiel.make_rules(4, players, "random")

    def referee(prizes, bids):
        total = np.zeros(players)
        for prize, bid in zip(prizes, bids.T, strict=True):
            if (bid == bid.max()).sum() == 1:
                total[bid.argmax()] += prize + 1
        best = total == total.max()
        if best.all():
            return np.zeros(players)
        return np.where(best, 1 / best.sum(), -1 / max((~best).sum(), 1))

    rng = np.random.default_rng(0)
    bids = np.stack([[rng.permutation(4) for _ in range(players)] for _ in range(64)])
    prizes = np.stack([rng.permutation(4) for _ in range(64)])

    def play(prizes, bids):
        state = goofspiel.State(prizes, jnp.full((players, 4), -1))
        for i in range(3 * players):
            state = rules.play(state, bids[i % players, i // players])
        return rules.over(state), rules.payoff(state, ())

    over, payoff = jax.jit(jax.vmap(play))(prizes, bids)
    assert over.all() and env.max_steps == 3 * players
    expected = np.stack([referee(p, b) for p, b in zip(prizes, bids, strict=True)])
    np.testing.assert_allclose(payoff, expected, atol=1e-6)


def test_goofspiel_hides_bids_until_the_prize_is_taken():
    rules = goofspiel.make_rules(3, 2, "random")
    seen = jax.jit(rules.observe)
    state = lambda prizes, first, second: goofspiel.State(
        jnp.asarray(prizes), jnp.asarray([first, second])
    )
    views = [seen(state([2, 0, 1], [bid, -1, -1], [-1] * 3)) for bid in range(3)]
    np.testing.assert_array_equal(views[0], views[1])
    np.testing.assert_array_equal(views[0], views[2])
    # Neither the order of later prizes shows, nor which lower card the other bid.
    one = seen(state([2, 0, 1], [2, -1, -1], [0, -1, -1]))
    other = seen(state([2, 0, 1], [2, -1, -1], [1, -1, -1]))
    np.testing.assert_array_equal(one, other)
    before = seen(state([2, 0, 1], [-1] * 3, [-1] * 3))
    np.testing.assert_array_equal(before, seen(state([2, 1, 0], [-1] * 3, [-1] * 3)))
    np.testing.assert_array_equal(one[-6:], [1, 0, 0, 0, 0, 0])  # the first took the first prize


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, settings",
    [("leduc_poker", {}), ("liars_dice", {}), ("goofspiel", {"players": 3, "cards": 3})],
)
def test_they_keep_the_rules_of_environments(name, settings):
    envs.check_environment(envs.make(name, **settings), steps=12)


def test_only_small_games_are_enumerated_in_runs():
    assert envs.make("liars_dice").rules is not None
    assert envs.make("liars_dice", sides=6).rules is None
    assert envs.make("goofspiel", order="random").rules is not None
    assert envs.make("goofspiel", cards=6).rules is None


@pytest.mark.parametrize(
    "name, settings, error",
    [
        ("liars_dice", {"sides": 1}, "it needs at least 2 and 1"),
        ("goofspiel", {"players": 1}, "it needs at least 2 of each"),
        ("goofspiel", {"order": "shuffled"}, "must be one of random, descending, ascending"),
    ],
)
def test_wrong_sizes_are_refused(name, settings, error):
    with pytest.raises(UserError, match=error):
        envs.make(name, **settings)
