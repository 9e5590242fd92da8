"""One day of Werewolf: what scripted players do, labels by plain loops, and the exact values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.envs.language import werewolf as w
from jaxrl.exact import werewolf as exact
from tests.envs.language.play import player, reset

ENV = envs.make("werewolf")
SAY = {x: i - w.CLAIM for i, x in enumerate(w.VOCABULARY)}  # numbers of claims
WOLF, SEER, NOBODY = 1, 2, w.PLAYERS


def deal(wolf=WOLF, seer=SEER, checked=0, bold=False):
    return w.Deal(*(jnp.int32(x) for x in (wolf, seer, checked)), jnp.full(4, bold))


def claims(*said):
    """Return what A, B, C and D say."""
    return jnp.array([SAY[x] for x in said])


def options(function, *args):
    return list(np.flatnonzero(function(*args)))


@pytest.mark.parametrize(
    ("player", "given", "said", "expected"),
    [
        (3, {}, "----", ["-"]),  # a villager
        (2, {}, "----", ["-"]),  # a calm seer, who has seen no wolf
        (2, {"bold": True}, "----", ["+a"]),
        (2, {"checked": 1}, "----", ["!b"]),
        (1, {}, ["-", "-", "!b", "-"], ["-"]),  # a calm wolf
        (1, {"bold": True}, "----", ["!a", "!c", "!d"]),
        (1, {"bold": True}, ["!b", "-", "-", "-"], ["!a", "!c", "!d"]),  # A has not spoken yet
        (3, {"wolf": 3, "bold": True}, ["!d", "-", "!a", "-"], ["!c"]),  # C accused before A did
    ],
)
def test_speeches_of_scripted_players(player, given, said, expected):
    found = options(w.speech_options, deal(**given), player, claims(*said))
    assert found == [SAY[x] for x in expected]


@pytest.mark.parametrize(
    ("player", "given", "said", "expected"),
    [
        (2, {"checked": 1}, ["!d", "-", "!b", "-"], "b"),  # the seer knows the wolf
        (2, {}, "----", "bd"),  # or who is not the wolf
        (2, {}, ["!d", "-", "-", "!b"], "d"),  # and that no other is the seer
        (1, {}, "----", "acd"),  # the wolf
        (1, {}, ["!c", "-", "!b", "-"], "c"),
        (3, {}, "----", "abc"),  # a villager
        (3, {}, ["-", "-", "+a", "-"], "bc"),
        (3, {}, ["-", "!a", "!b", "-"], "a"),  # believes the first who accuses
        (3, {"bold": True}, ["-", "!a", "!b", "-"], "b"),  # or the last
        (3, {"bold": True}, ["!c", "!a", "-", "-"], "c"),  # A speaks after B
        (3, {}, ["!d", "-", "!d", "-"], "ac"),  # but not who accuses it
    ],
)
def test_votes_of_scripted_players(player, given, said, expected):
    found = options(w.vote_options, deal(**given), player, claims(*said))
    assert "".join(w.NAMES[x] for x in found) == expected


def label_by_hand(deal, said, votes):
    """Label a day by the rules, one player after the other."""
    wolf, seer, checked = (int(x) for x in (deal.wolf, deal.seer, deal.checked))
    count = [sum(v == p for v in votes) for p in range(4)]
    top = [p for p in range(4) if count[p] == max(count) and count[p]]
    out = top[0] if len(top) == 1 else None
    true = checked if checked == wolf else 4 + checked
    speech, vote = [0] * 4, [0] * 4
    for p in range(4):
        against = sum(votes[v] == p for v in range(4) if v != wolf)
        if out is not None:
            if p == wolf:
                speech[p] = -1 if out == p else 1
            elif out == p or (p == seer and against >= sum(v < 4 for v in votes) / 2):
                speech[p] = -1
            elif against == 0 or (p == seer and against == 1):
                honest = said[p] == w.SILENT or (p == seer and said[p] == true)
                speech[p] = 1 if honest else -1
        if p != wolf:
            if votes[p] != wolf:
                vote[p] = -1
            elif out == wolf or p == seer:
                vote[p] = 1
    return speech, vote


def test_labels_follow_the_rules():
    """All votes, with deals and speeches drawn at random."""
    rng = np.random.default_rng(0)
    votes = np.array(list(itertools.product(range(5), repeat=4)))
    wolf = rng.integers(0, 4, len(votes))
    seer = (wolf + rng.integers(1, 4, len(votes))) % 4
    checked = (seer + rng.integers(1, 4, len(votes))) % 4
    deals = w.Deal(*map(jnp.asarray, (wolf, seer, checked)), jnp.zeros((len(votes), 4), bool))
    said = rng.integers(0, w.CLAIMS, (len(votes), 4))
    said[::2, :] = w.SILENT
    found = jax.vmap(w.step_labels)(deals, jnp.asarray(said), jnp.asarray(votes))
    for i in range(len(votes)):
        expected = label_by_hand(jax.tree.map(lambda x: x[i], deals), said[i], list(votes[i]))  # noqa: B023
        np.testing.assert_array_equal([x[i] for x in found], expected)


def test_a_tie_expels_nobody():
    assert w.find_expelled(jnp.array([1, 1, 0, 0])) == NOBODY
    assert w.find_expelled(jnp.full(4, NOBODY)) == NOBODY
    assert w.find_expelled(jnp.array([1, 0, 1, NOBODY])) == 1
    assert w.is_won(deal(wolf=0), jnp.array([1, 1, 0, 0]))  # the wolf stays
    assert not w.is_won(deal(wolf=1), jnp.array([1, 1, 0, 0]))


def play(env, state, actions):
    """Return the time steps [N, T] of games that share no random numbers."""
    number, steps = actions.shape

    def step(state, x):
        key, action = x
        keys = jax.random.split(key, number)
        return jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, env.params)

    keys = jax.random.split(jax.random.key(1), steps)
    t = jax.jit(lambda: jax.lax.scan(step, state, (keys, jnp.asarray(actions).T))[1])()
    return jax.tree.map(lambda x: np.asarray(x).swapaxes(0, 1), t)


@pytest.mark.slow
def test_games_are_those_that_are_enumerated():
    """Play one claim and one vote in many games, and the best play by the exact tables."""
    days = exact.enumerate_days(ENV.params)
    claim, vote, number = SAY["-"], 1, 8192
    state, _ = reset(ENV, number)
    row = np.zeros((number, ENV.max_steps), int)
    row[:, 4], row[:, 7] = w.CLAIM + claim, vote
    t = play(ENV, state, row)
    text = np.asarray(t.observation)  # without the first token
    first = np.asarray(state.text)[:, :5]
    assert np.asarray(t.done)[:, 7].all() and not np.asarray(t.done)[:, :7].any()
    card = np.where(
        first[:, 0] == w.WOLF, 0, np.where(first[:, 0] == w.SEER, 2 + first[:, 1] - w.CLAIM, 1)
    )
    of = lambda x: np.bincount(card, x, exact.CARDS) / number
    once = lambda x: x[:, :, :, claim, :, vote - 1].sum((1, 2, 3))
    close = 0.02
    np.testing.assert_allclose(
        of(np.ones(number)), days.chance[..., claim, :].sum((1, 2, 3)), atol=close
    )
    np.testing.assert_allclose(of(np.asarray(t.reward)[:, 7]), once(days.won), atol=close)
    judged = np.asarray(t.privileged["judged"])[:, 7]
    np.testing.assert_allclose(of(judged[:, 0]), once(days.speech), atol=close)
    np.testing.assert_allclose(of(judged[:, 1]), once(days.vote), atol=close)
    heard = days.chance[1, :, SAY["-"], claim].sum(0)  # D's claims to a villager, C silent
    mine = (card == 1) & (first[:, 3] == w.PASS)
    shares = np.bincount(text[mine, 5] - w.CLAIM, minlength=w.CLAIMS) / number
    np.testing.assert_allclose(shares, heard, atol=close)
    best, random = exact.value(days, exact.best_play(days)), exact.value(days, exact.random_play())
    labeled = exact.value(days, exact.play_by_labels(days))
    assert random < 0.31 < 0.65 < labeled < best - 0.05 < 0.7


def test_the_expert_plays_as_the_others_do():
    state, _ = reset(ENV, 64)
    t = player(ENV)(state, jnp.full((64, ENV.max_steps), -1))
    deal, said = state.memory.deal, np.asarray(t.observation) - w.CLAIM
    claims = np.full((64, 4), w.SILENT)
    claims[:, 1:3] = np.asarray(state.memory.claims)[:, 1:3]
    options = jax.vmap(w.speech_options, (0, None, 0))(deal, 0, jnp.asarray(claims))
    np.testing.assert_array_equal(said[:, 4], np.argmax(options, -1))
    claims[:, 0], claims[:, 3] = said[:, 4], said[:, 5]
    options = jax.vmap(w.vote_options, (0, None, 0))(deal, 0, jnp.asarray(claims))
    np.testing.assert_array_equal(t.observation[:, 7], np.argmax(options, -1))


def test_what_may_be_said():
    """Nothing about oneself, in speeches and in votes."""
    state, _ = reset(ENV, 4)
    t = player(ENV)(state, jnp.full((4, ENV.max_steps), w.PASS))
    legal = lambda place: {w.VOCABULARY[i] for i in np.flatnonzero(t.legal_actions[0, place])}
    assert legal(3) == {"!b", "!c", "!d", "+b", "+c", "+d", "-"}
    assert legal(6) == {"b", "c", "d", "-"}
    assert np.asarray(t.tokens["decision"])[0].nonzero()[0].tolist()[:2] == [3, 6]
