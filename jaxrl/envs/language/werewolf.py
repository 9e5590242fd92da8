"""One day of Werewolf: four players speak once and vote once, and one of them is the wolf.

The learner is the player A in games with scripted players of two kinds, whose behavior is a few
rules; so what is best is known exactly (`jaxrl.exact.werewolf`). Everything that a scripted player
does is uniform over a set of actions.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

PLAYERS = 4
NAMES = tuple("abcd")
VOCABULARY = (*NAMES, *(f"!{x}" for x in NAMES), *(f"+{x}" for x in NAMES), "-", *"WSV?=.")
CLAIM, PASS, WOLF = (VOCABULARY.index(x) for x in ("!a", "-", "W"))
SEER, VILLAGER, SPEAK, VOTE = (VOCABULARY.index(x) for x in "SV?=")
CLAIMS = 2 * PLAYERS + 1  # that somebody is the wolf, that somebody is not, and nothing
SILENT = CLAIMS - 1
ORDER = (1, 2, 0, 3)  # of speeches: B, C, A, D
BEFORE = np.array([[ORDER.index(j) < ORDER.index(i) for j in range(4)] for i in range(4)])
OTHERS = ~np.eye(PLAYERS, dtype=bool)


@struct
class Params:
    """Pool of scripted players."""

    bold: Any  # chance that a scripted player is bold


@struct
class Deal:
    """Cards and kinds of the players, decided before the day.

    wolf, seer: int32, players. checked: int32, the player whose card the seer has seen.
    bold: bool [4], the kinds of the players; that of A is the expert's.
    """

    wolf: Array
    seer: Array
    checked: Array
    bold: Array


@struct
class Memory:
    """Deal, and what the players have said, int32 [4]: numbers of claims."""

    deal: Deal
    claims: Array


def draw_deal(key: Key, params: Params) -> Deal:
    """Deal the cards, all alike, and draw each scripted player from the pool."""
    wolf, seer, checked, kind = jax.random.split(key, 4)
    other = lambda key, player: (player + 1 + jax.random.randint(key, (), 0, 3)) % PLAYERS
    wolf = jax.random.randint(wolf, (), 0, PLAYERS)
    seer = other(seer, wolf)
    bold = jax.random.bernoulli(kind, jnp.asarray(params.bold), (PLAYERS,))
    return Deal(wolf, seer, other(checked, seer), bold)


def result(deal: Deal) -> Array:
    """Return the claim that tells what the seer has seen, int32."""
    return jnp.where(deal.checked == deal.wolf, deal.checked, PLAYERS + deal.checked)


def speech_options(deal: Deal, player: Array | int, claims: Array) -> Array:
    """Return the claims between which a scripted player chooses, bool [9].

    A bold seer always tells what it has seen, another one only if it has seen the wolf. A bold wolf
    says that it is the seer and accuses the first who accused somebody before it, or else anybody.
    All others are silent.

    claims: int32 [4], of the players; those who speak later have said nothing.
    """
    bold, number = deal.bold[player], jnp.arange(CLAIMS)
    tells = bold | (deal.checked == deal.wolf)
    seer = number == jnp.where(tells, result(deal), SILENT)
    accuses = (claims < PLAYERS) & jnp.asarray(BEFORE)[player]
    first = jnp.asarray(ORDER)[jnp.argmax(accuses[jnp.asarray(ORDER)])]
    anybody = (number < PLAYERS) & (number != player)
    wolf = jnp.where(accuses.any(), number == first, anybody)
    silent = number == SILENT
    bluffs = (player == deal.wolf) & bold
    return jnp.where(player == deal.seer, seer, jnp.where(bluffs, wolf, silent))


def vote_options(deal: Deal, player: Array | int, claims: Array) -> Array:
    """Return the players between whom a scripted player chooses in its vote, bool [4].

    The seer votes for the wolf that it has seen, or else for those who claim to be the seer, or
    else for anybody; never for who is not the wolf to its knowledge. The wolf votes for those who
    are accused, or else for anybody. A villager votes for those who accuse it, or else as the first
    who accuses somebody says (a bold one: the last), or else for anybody who is not said to be no
    wolf.

    claims: int32 [4], what the players have said.
    """
    number, others = jnp.arange(PLAYERS), jnp.asarray(OTHERS)[player]
    made = others[:, None] & (claims[:, None] == jnp.arange(CLAIMS))  # [speaker, claim]
    accused, cleared = made[:, :PLAYERS], made[:, PLAYERS:SILENT]
    unknown = others & (number != deal.checked)
    liars = unknown & ~made[:, SILENT]
    seer = _first_of(liars, unknown)
    seer = jnp.where(deal.checked == deal.wolf, number == deal.wolf, seer)
    wolf = _first_of(accused.any(0) & others, others)
    order = jnp.asarray(ORDER)
    accuses = accused.any(1)[order]
    place = jnp.where(
        deal.bold[player], PLAYERS - 1 - jnp.argmax(accuses[::-1]), jnp.argmax(accuses)
    )
    follows = accused[order[place]] & others
    rest = _first_of(others & ~cleared.any(0), others)
    villager = _first_of(accused[:, player], _first_of(follows, rest))
    return jnp.where(player == deal.seer, seer, jnp.where(player == deal.wolf, wolf, villager))


def _first_of(options: Array, otherwise: Array) -> Array:
    """Return `options` [4], or `otherwise` if there is none."""
    return jnp.where(options.any(), options, otherwise)


def find_expelled(votes: Array) -> Array:
    """Return the player with the most votes, int32; PLAYERS if there is none, or several.

    votes: int32 [4], the player that each votes for, or PLAYERS for nobody.
    """
    count = (votes[:, None] == jnp.arange(PLAYERS)).sum(0)
    most = count == count.max()
    return jnp.where(most.sum() == 1, jnp.argmax(most), PLAYERS)


def step_labels(deal: Deal, claims: Array, votes: Array) -> tuple[Array, Array]:
    """Label the speech and the vote of each player, float32 [4]: 1 desirable, -1 undesirable, 0
    neither.

    Where nobody is expelled, no speech has a label. A speech of the wolf is undesirable if it is
    expelled, and else desirable. A speech of another player is undesirable if the player is
    expelled, or is the seer and has half of all votes from those who are not the wolf; desirable if
    none of them votes for it, or at most one for the seer. A desirable one becomes undesirable if
    it contradicts what its speaker knows: a villager that says what the seer has seen, or a seer
    that says something else. A vote for the wolf is desirable if the wolf is expelled, or if it is
    the seer's; a vote for another player, or for nobody, is undesirable. Votes of the wolf have no
    label.

    claims, votes: int32 [4], of all players, as in `find_expelled`.
    """
    number = jnp.arange(PLAYERS)
    out, good = find_expelled(votes), number != deal.wolf
    is_seer = number == deal.seer
    against = ((votes[:, None] == number) & good[:, None]).sum(0)
    half = 2 * against >= (votes < PLAYERS).sum()
    bad = (number == out) | (is_seer & half)
    fine = jnp.where(is_seer, against <= 1, against == 0)
    false = good & (claims != SILENT) & ~(is_seer & (claims == result(deal)))
    village = jnp.where(bad, -1, jnp.where(fine, jnp.where(false, -1, 1), 0))
    wolf = jnp.where(number == out, -1, 1)
    speech = jnp.where(out < PLAYERS, jnp.where(good, village, wolf), 0)
    right = votes == deal.wolf
    vote = jnp.where(right, jnp.where((out == deal.wolf) | is_seer, 1, 0), -1)
    return speech.astype(jnp.float32), jnp.where(good, vote, 0).astype(jnp.float32)


def is_won(deal: Deal, votes: Array) -> Array:
    """Return whether A's side wins: the wolf unless it is expelled, or all others if it is."""
    return (find_expelled(votes) == deal.wolf) == (deal.wolf != 0)


@functools.cache
def werewolf() -> Environment:
    """Speak and vote as one of four players, of whom one is the wolf: one day of Werewolf.

    The prompt is A's card, `W`, `V` or `S` (wolf, villager or seer; the others are villagers), then
    what A has seen as the seer, the card of another player (`!b` for the wolf, `+b` for no wolf,
    `-` for nothing), then what B and C say, then `?`. A says one token: `!c` or `+c`, which claims
    to be the seer and to have seen C's card, or `-`. After what D says, and `=`, A votes: `d`, or
    `-` for nobody: `V-!c-?-+a=c`. All vote at once; who has the most votes is expelled, and nobody
    in a tie. Observation: the last token, 0 .. 18. Action: the next token; only speeches and votes
    about others are legal. Reward: 1 if A's side wins, 0 if not. The village wins if the wolf is
    expelled.

    B, C and D are scripted (`speech_options`, `vote_options`), each of one of two kinds, drawn in
    each game: bold with a chance of `bold` (0.5), or calm. The channel `privileged["judged"]` holds
    at the end the labels of A's speech and vote, float32 [2]: 1 desirable, -1 undesirable, 0
    neither (`step_labels`), by rules of Ye et al., 2025, "Multi-agent KTO: Reinforcing Strategic
    Interactions of Large Language Model in Language Game", arXiv:2501.14225, and its code. Its game
    has nine players, nights, other cards, and a second vote after a tie. `success` says whether A's
    side wins. The expert plays as B, C and D do, the first of equal actions.
    """
    tokens = np.arange(len(VOCABULARY))
    votes = ((tokens > 0) & (tokens < PLAYERS)) | (tokens == PASS)
    speeches = (tokens > CLAIM) & (tokens <= PASS) & (tokens != CLAIM + PLAYERS)

    def choose(key: Key, options: Array) -> Array:
        return jax.random.categorical(key, jnp.where(options, 0.0, -jnp.inf))

    def speak(key: Key, memory: Memory, player: int) -> Memory:
        said = choose(key, speech_options(memory.deal, player, memory.claims))
        return Memory(memory.deal, memory.claims.at[player].set(said))

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        deal_key, first, second = jax.random.split(key, 3)
        deal = draw_deal(deal_key, params)
        memory = Memory(deal, jnp.full(PLAYERS, SILENT))
        memory = speak(second, speak(first, memory, 1), 2)
        card = jnp.where(deal.wolf == 0, WOLF, jnp.where(deal.seer == 0, SEER, VILLAGER))
        seen = jnp.where(deal.seer == 0, result(deal), SILENT)
        said = CLAIM + jnp.stack([seen, memory.claims[1], memory.claims[2]])
        return jnp.concatenate([card[None], said, jnp.array([SPEAK])]), memory

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        speak_key, *keys = jax.random.split(key, PLAYERS)
        deal, token = memory.deal, said.tokens[0]
        claim = jnp.clip(token - CLAIM, 0, SILENT)
        heard = Memory(
            deal, jnp.where(said.turn == 0, memory.claims.at[0].set(claim), memory.claims)
        )
        later = speak(speak_key, heard, 3)
        claims = jnp.where(said.turn == 0, later.claims, memory.claims)
        own = jnp.where(token < PLAYERS, token, PLAYERS)
        cast = [
            choose(k, vote_options(deal, p, claims)) for p, k in zip((1, 2, 3), keys, strict=True)
        ]
        cast = jnp.stack([own, *cast])
        won = is_won(deal, cast).astype(jnp.float32)
        labels = jnp.stack([label[0] for label in step_labels(deal, claims, cast)])
        grade = Grade(won * (said.turn == 1), success=won, judged=labels)
        reply = jnp.stack([CLAIM + claims[3], jnp.int32(VOTE)])
        return Reply(reply, Memory(deal, claims), grade, count=2)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        claim = jnp.argmax(speech_options(memory.deal, 0, memory.claims))
        vote = jnp.argmax(vote_options(memory.deal, 0, memory.claims))
        return jnp.where(turn == 0, CLAIM + claim, vote)[None]

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        return jnp.where(turn == 0, speeches, votes)

    return conversing(
        "werewolf",
        VOCABULARY,
        (1, 1),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(np.float32(0.5)),
    )
