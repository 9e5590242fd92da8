"""Game of a spy among players who describe scenes, one of which differs; a reader votes."""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

SIGNS = ("=", "!", "@", "?", ".")  # civilian, spy, vote, no vote, END
CIVILIAN, SPY, VOTE, NOBODY, END = range(len(SIGNS))  # after clues and players
NONE = -1  # where nothing has been said yet


@struct
class Params:
    """Payoffs of a vote."""

    shared: float = 0.1  # to civilians together, and from the spy, for suspicion of the spy (beta)
    own: float = 0.1  # to each civilian, for less suspicion than of other civilians (lambda)
    unsure: float = -0.5  # to a reader who votes for nobody


@struct
class Memory:
    """Game: what there is to see, who is the spy, and the clues."""

    scene: Array  # int32 [A]: value of each attribute
    edited: Array  # int32 [A]: the same, as the spy sees it
    spy: Array  # int32
    clues: Array  # int32 [C], NONE for those to come


def payoffs(votes: Array, spy: Array, params: Params) -> Array:
    """Return what each player is paid for votes [N] by player, [N], which sum to 0.

    With v_c the mean over the civilians and S = v_spy - v_c, the suspicion of the spy: -beta S to
    the spy, beta S / (N - 1) - lambda (v - v_c) to a civilian.
    """
    count = len(votes)
    is_spy = jnp.arange(count) == spy
    mean = jnp.where(is_spy, 0, votes).sum() / (count - 1)
    suspicion = votes[spy] - mean
    civilian = params.shared * suspicion / (count - 1) - params.own * (votes - mean)
    return jnp.where(is_spy, -params.shared * suspicion, civilian)


def spy_token(env: Environment) -> int:
    """Return the token that tells a reader of `spy_game` that it is the spy."""
    return len(env.vocabulary) - len(SIGNS) + SPY


def number_of_clues(env: Environment) -> int:
    """Return the number of clues in a game of `spy_game`, by the length of its longest text."""
    view, clues = env.forced_steps + 1, 1
    while view + clues + clues * (view + clues) < (env.max_steps or 0):
        clues += 1
    return clues


@functools.cache
def spy_game(
    players: int = 3, rounds: int = 1, attributes: int = 4, values: int = 3, edits: int = 2
) -> Environment:
    """Describe a scene without being taken for the spy, and find the spy by the clues.

    A scene is `attributes` (A, 4) attributes, each with one of `values` (V, 3) values. All of the
    `players` (N, 3) see it but one, the spy, who sees one in which `edits` (E, 2) attributes have
    other values. In turn, for `rounds` (1) rounds, each gives a clue: an attribute with a value,
    true or not, that was not said before. Each clue has a reader of its own, who begins anew: it
    sees its role, `=` for civilians and `!` for the spy, its scene and the clues so far, as in
    `=a0b2c1d1a0`. Then a reader who sees the original scene and all clues, `@a0b2c1d1a0b1c1`, votes
    for a player, `1` to `N`, or for nobody, `?`. Turns 0 .. N * rounds - 1 are the clues, and the
    last one is the vote. Observation: the last token, 0 .. A V + N + 4 (clues, players, `=`, `!`,
    `@`, `?`, `.`). Action: the next token.

    Reward: of the reader who votes, at the end: 1 for the spy, -0.5 for nobody (`unsure`), else -1.
    Components `player_0` ..: what the vote pays each player, in a zero-sum game (`payoffs`).
    Metrics: `success`, whether the vote is right; `unsure`, whether it is for nobody; `true`, the
    share of clues that are true of what their speaker sees. In the expert's game players name the
    first attribute that nobody named, as they see it, and the vote is for the first player whose
    clue contradicts the scene, or for nobody.

    Rewards and what the reader sees are those of the authors' code of Wang et al., 2025,
    "Vision-Zero: scalable VLM self-improvement via strategic gamified self-play", arXiv:2509.25541,
    without its rewards of form, where scenes are pictures and clues sentences. Raises `UserError`
    unless 3 <= players <= 9, 1 <= rounds, 2 <= values <= 10, 1 <= edits <= attributes and there is
    an attribute, of at most 26, for each clue.
    """
    count = players * rounds
    if not 3 <= players <= 9 or rounds < 1 or not count <= attributes <= 26:
        raise UserError(
            f"players is {players}, rounds {rounds} and attributes {attributes}; there must be 3 "
            "to 9 players, at least one round, and up to 26 attributes, one for each clue."
        )
    if not 2 <= values <= 10 or not 1 <= edits <= attributes:
        raise UserError(
            f"values is {values} and edits {edits}; there must be 2 to 10 values, and edits of at "
            f"least one and at most all {attributes} attributes."
        )
    clues = tuple(f"{a}{v}" for a in string.ascii_lowercase[:attributes] for v in range(values))
    numbers = tuple(str(player + 1) for player in range(players))
    vocabulary = (*clues, *numbers, *SIGNS)
    first = len(clues) + players
    places = jnp.arange(attributes)
    tokens = jnp.arange(len(vocabulary))

    def view(memory: Memory, turn: Array) -> Array:
        """Return what the reader of a turn sees before the clues, [A + 1]."""
        spies = turn % players == memory.spy
        role = jnp.where(turn == count, VOTE, jnp.where(spies, SPY, CIVILIAN))
        scene = jnp.where((turn < count) & spies, memory.edited, memory.scene)
        return jnp.concatenate([(first + role)[None], places * values + scene])

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        scene_key, edit_key, which_key, spy_key = jax.random.split(key, 4)
        scene = jax.random.randint(scene_key, (attributes,), 0, values)
        shift = jax.random.randint(edit_key, (attributes,), 1, values)
        which = jax.random.uniform(which_key, (attributes,)).argsort().argsort() < edits
        edited = jnp.where(which, (scene + shift) % values, scene)
        spy = jax.random.randint(spy_key, (), 0, players)
        memory = Memory(scene, edited, spy, jnp.full(count, NONE))
        return view(memory, jnp.zeros((), jnp.int32)), memory

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        token, turn = said.tokens[0], said.turn
        here = (jnp.arange(count) == turn) & (turn < count)
        memory = Memory(
            memory.scene, memory.edited, memory.spy, jnp.where(here, token, memory.clues)
        )
        voted = token - len(clues)
        votes = (jnp.arange(players) == voted).astype(jnp.float32)
        right, unsure = voted == memory.spy, token == first + NOBODY
        reward = jnp.where(right, 1.0, jnp.where(unsure, params.unsure, -1.0))
        paid = payoffs(votes, memory.spy, params)
        by_spy = jnp.arange(count) % players == memory.spy
        seen = jnp.where(by_spy[:, None], memory.edited, memory.scene)
        true = seen[jnp.arange(count), memory.clues // values] == memory.clues % values
        as_number = lambda x: x.astype(jnp.float32)
        return Reply(
            jnp.concatenate([view(memory, turn + 1), memory.clues]),
            memory,
            Grade(
                jnp.where(turn == count, reward, 0.0),
                as_number(right),
                metrics={"unsure": as_number(unsure), "true": as_number(true).mean()},
                components={f"player_{i}": paid[i] for i in range(players)},
            ),
            count=attributes + 2 + turn,
            restart=True,
        )

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        said = (tokens == memory.clues[:, None]).any(0)
        is_vote = (tokens >= len(clues)) & (tokens < first) | (tokens == first + NOBODY)
        return jnp.where(turn < count, (tokens < len(clues)) & ~said, is_vote)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        named = (memory.clues[:, None] // values == places) & (memory.clues[:, None] != NONE)
        new = jnp.argmin(named.any(0))
        seen = jnp.where(turn % players == memory.spy, memory.edited, memory.scene)
        wrong = memory.scene[memory.clues // values] != memory.clues % values
        suspect = len(clues) + jnp.argmax(wrong) % players
        vote = jnp.where(wrong.any(), suspect, first + NOBODY)
        return jnp.where(turn < count, new * values + seen[new], vote)[None]

    return conversing(
        "spy_game",
        vocabulary,
        (1,) * (count + 1),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(),
    )
