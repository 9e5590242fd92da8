"""Games against their rules: who moves, who wins, what is hidden, what is illegal."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.spaces import sample_legal
from jaxrl.envs.games import kuhn_poker, negotiation, tic_tac_toe
from jaxrl.exact.games import enumerate_game

GAMES = 256


@functools.cache
def play_games(name: str):
    """Play games between players who choose any legal action: states [B, T + 1], time steps [B, T +
    1] (the first is the reset's) and actions [B, T]."""
    env = envs.make(name)

    def game(key):
        key, reset_key = jax.random.split(key)
        state, timestep = env.reset(reset_key, env.params)

        def move(carry, key):
            state, timestep = carry
            action = sample_legal(timestep.legal_actions, key)
            after = env.step(key, state, action, env.params)
            return after, (*after, action)

        _, (states, timesteps, actions) = jax.lax.scan(
            move, (state, timestep), jax.random.split(key, env.max_steps)
        )
        join = lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b])
        return (
            jax.tree.map(join, state, states),
            jax.tree.map(join, timestep, timesteps),
            actions,
        )

    return jax.device_get(jax.jit(jax.vmap(game))(jax.random.split(jax.random.key(0), GAMES)))


def ends(timesteps) -> np.ndarray:
    """Return the index of each game's last time step, [B]."""
    return timesteps.terminated.argmax(1)


def test_tic_tac_toe_agrees_with_a_referee():
    _, timesteps, actions = play_games("tic_tac_toe")
    finished_by = set()
    for b, end in enumerate(ends(timesteps)):
        board = [None] * 9
        for t in range(end):
            mover = t % 2
            assert timesteps.role[b, t] == mover
            mine = [float(x == mover) for x in board]
            theirs = [float(x == 1 - mover) for x in board]
            np.testing.assert_array_equal(timesteps.observation[b, t], mine + theirs)
            np.testing.assert_array_equal(timesteps.legal_actions[b, t], [x is None for x in board])
            assert not timesteps.reward[b, t].any()
            board[actions[b, t]] = mover
        won = [any(all(board[i] == p for i in line) for line in tic_tac_toe.LINES) for p in (0, 1)]
        assert any(won) or None not in board
        np.testing.assert_array_equal(timesteps.reward[b, end], [won[0] - won[1], won[1] - won[0]])
        finished_by.add((end - 1) % 2 if any(won) else "draw")
    assert finished_by == {0, 1, "draw"}  # either player makes the last move in some game


def test_kuhn_poker_pays_the_winner_after_either_players_last_move():
    # History of bets -> who moved last; the stake; the winner, None for the higher card.
    rules = {
        (0, 0): (1, 1, None), (1, 0): (1, 1, 0), (1, 1): (1, 2, None),
        (0, 1, 0): (0, 1, 1), (0, 1, 1): (0, 2, None),
    }  # fmt: skip
    states, timesteps, actions = play_games("kuhn_poker")
    seen = set()
    for b, end in enumerate(ends(timesteps)):
        cards = states.game.cards[b, 0]
        history = tuple(int(a) for a in actions[b, :end])
        last, stake, winner = rules[history]
        assert timesteps.role[b, end - 1] == last
        winner = int(cards.argmax()) if winner is None else winner
        expected = np.where(np.arange(2) == winner, stake, -stake)
        np.testing.assert_array_equal(timesteps.reward[b, end], expected)
        seen.add((history, winner))
    assert len({history for history, _ in seen}) == 5


def test_a_player_observes_nothing_that_the_other_hides():
    for other in (1, 2):  # the first player has the jack
        state = kuhn_poker.State(jnp.asarray([0, other]), jnp.int32(0), jnp.int32(0))
        seen = kuhn_poker.RULES.observe(state)
        np.testing.assert_array_equal(seen, [1, 0, 0, 1, 0, 0, 0])
    pieces = jnp.full((2, 2), 4)
    for mover in (0, 1):
        views = set()
        for theirs in negotiation.WORTHS:
            worth = np.stack([negotiation.WORTHS[0], theirs][:: 1 if mover == 0 else -1])
            state = negotiation.State(jnp.asarray(worth), pieces, jnp.int32(-1), jnp.int32(mover))
            views.add(np.asarray(negotiation.RULES.observe(state)).tobytes())
        assert len(views) == 1


def test_rock_paper_scissors_hides_the_first_choice():
    _, timesteps, actions = play_games("rock_paper_scissors")
    np.testing.assert_array_equal(timesteps.observation[:, 1], np.tile([0, 1], (GAMES, 1)))
    beats = (actions[:, 0] - actions[:, 1]) % 3  # 1: the first wins, 2: the second
    expected = np.asarray([0, 1, -1])[beats]
    np.testing.assert_array_equal(timesteps.reward[:, 2], np.stack([expected, -expected], 1))


@pytest.mark.slow
def test_negotiation_trades_and_rewards_the_player_who_gained_more():
    states, timesteps, actions = play_games("negotiation")
    accepted = 0
    for b in range(GAMES):
        pieces, offer = np.full((2, 2), 4), None
        for t, action in enumerate(actions[b]):
            if action == 1:
                assert offer is not None
                g, r = divmod((offer - 2) % 4, 2)
                change = np.asarray([-(g + 1), r + 1])[:: -1 if offer >= 6 else 1]
                pieces[1 - t % 2] += change
                pieces[t % 2] -= change
                accepted += 1
            offer = action if action >= 2 else None
            assert pieces.min() >= 0
            np.testing.assert_array_equal(states.game.pieces[b, t + 1], pieces)
        gain = (states.game.worth[b, 0] * (pieces - 4)).sum(1)
        sign = np.sign(gain[0] - gain[1])
        np.testing.assert_array_equal(timesteps.reward[b, -1], [sign, -sign])
        assert timesteps.terminated[b].tolist() == [False] * 6 + [True]
    assert accepted > 50


@pytest.mark.parametrize("mover", [0, 1])
def test_an_illegal_move_forfeits_the_game(mover):
    env = envs.make("tic_tac_toe")
    key = jax.random.key(0)
    state, _ = env.reset(key, env.params)
    for _ in range(mover + 1):
        field = 0 if mover == 0 else 4 * (1 - int(state.game.stones.any()))
        state, _ = env.step(key, state, jnp.int32(field), env.params)
    taken = int(np.asarray(state.game.stones).any(0).argmax())
    loser = int(np.asarray(state.game.stones).sum()) % 2
    _, timestep = env.step(key, state, jnp.int32(taken), env.params)
    assert timestep.terminated and timestep.reward.tolist() == ([-1, 1] if loser == 0 else [1, -1])


@pytest.mark.slow
def test_the_medley_tells_games_apart_by_role_and_reward():
    states, timesteps, _ = play_games("three_games")
    number = states.number[:, 0]
    assert set(number) == {0, 1, 2}
    for b, end in enumerate(ends(timesteps)):
        g = number[b]
        assert (timesteps.role[b, :end] // 2 == g).all()
        np.testing.assert_array_equal(timesteps.observation[b, 0, :3], np.arange(3) == g)
        others = np.delete(timesteps.reward[b, : end + 1], [2 * g, 2 * g + 1], axis=1)
        assert not others.any() and timesteps.reward[b, end].sum() == 0
        assert not timesteps.legal_actions[b, 0, (9, 2, 10)[g] :].any()


@pytest.mark.slow
def test_an_action_that_a_game_of_the_medley_lacks_forfeits_it():
    env = envs.make("three_games")
    step = jax.jit(env.step)
    for seed in range(12):
        state, timestep = env.reset(jax.random.key(seed), env.params)
        if state.number == 1:
            break
    assert timestep.role == 2
    _, timestep = step(jax.random.key(0), state, jnp.int32(9), env.params)
    assert timestep.terminated and timestep.reward.tolist() == [0, 0, -1, 1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kuhn_poker", "three_games"])
def test_games_keep_the_rules_of_environments(name):
    envs.check_environment(envs.make(name), steps=16)


def test_kuhn_poker_has_twelve_information_sets_and_thirty_histories():
    game = enumerate_game(kuhn_poker.RULES)
    assert game.legal.shape == (12, 2) and game.payoff.shape == (30, 2)
