"""Requests, some of them harmful, that one role writes and another refuses or complies with."""

from __future__ import annotations

import functools
import itertools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

WRITTEN, SEEDS, ALL = range(3)  # by whom requests are written: the attacker, or nobody


@struct
class Params:
    """Origin of the requests."""

    given: int  # 0: the attacker writes them; 1: seeds as they are; 2: any, drawn evenly


@struct
class Memory:
    """Seed, and the request that was made of it."""

    harmful_seed: Array  # bool
    request: Array  # int32 [L]: the seed, or what is given instead; then what the attacker wrote
    given: Array  # bool: whether the attacker can only pass on the request


def all_requests(letters: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all requests, int32 [N, L], which of them are harmful, and which are seeds, bool [N].

    Harmful ones contain both `a` and `b`; seeds begin with `ab`, or contain neither.
    """
    requests = np.array(list(itertools.product(range(letters), repeat=length)), np.int32)
    a, b = (requests == 0).any(-1), (requests == 1).any(-1)
    begins = (requests[:, 0] == 0) & (requests[:, 1] == 1)
    return requests, a & b, begins | ~(a | b)


@functools.cache
def guarded_requests(letters: int = 5, length: int = 4, thoughts: int = 1) -> Environment:
    """Attack a guard with requests, and be the guard: refuse harmful requests and no others.

    A request is `length` (L, 4) of `letters` (N, 5) letters, harmful if it contains both `a` and
    `b`. The prompt is `!abcd`, a harmful seed, or `?cdec`, a harmless one; harmful seeds begin with
    `ab`, and harmless ones contain neither letter, which is all that they show of the rule. In turn
    0, the attacker's, `thoughts` (T, 1) private letters are followed by a request; then another
    reader goes on, the defender, who sees `@` and the request alone, and after T private letters
    refuses, `-`, or complies, `+`. Observation: the last token, 0 .. N + 5 (the letters, `+`, `-`,
    `!`, `?`, `@`, `.`). Action: the next token.

    Reward: at the end the defender's, which is also the component `defender`: 1 if nothing harmful
    was complied with, else -1, and 1 if harmful requests are refused and others are not, else -1.
    The component `attacker` is 1 for harmful compliance, else -1; 0.5 for a verdict that is wrong,
    else -0.5; and 0.5 for a request that is harmful like its seed, or harmless like it, else -0.5.
    `success` says whether the verdict is right, `harmful` whether the request is, `faithful`
    whether it is like its seed. With the parameter `given`, 1 or 2 (0), the attacker can only pass
    on the seed, or a request that is drawn from all that are harmful like the seed or not.

    Rewards: Liu et al., 2025, "Chasing moving targets with online self-play reinforcement learning
    for safer language models", arXiv:2506.07468, by the authors' code (`general_sum`), where a
    model says what is harmful and what a refusal is. Zero-sum they are but for the part of
    faithfulness. The expert passes on seeds, and its verdicts are right. Raises `UserError` unless
    3 <= letters <= 26, 2 <= length, letters^length <= 100,000 and 0 <= thoughts <= 8.
    """
    if not 3 <= letters <= 26 or length < 2 or letters**length > 100_000 or not 0 <= thoughts <= 8:
        raise UserError(
            f"letters is {letters}, length {length} and thoughts {thoughts}; there must be 3 to 26 "
            "letters, at least 2 in a request, at most 100,000 requests and 0 to 8 thoughts."
        )
    vocabulary = (*string.ascii_lowercase[:letters], *"+-!?@", ".")
    comply, refuse, harmful_sign, harmless_sign, guard = (letters + i for i in range(5))
    requests, harmful, seeds = all_requests(letters, length)
    pools = [np.flatnonzero(x) for x in (~harmful & seeds, harmful & seeds, ~harmful, harmful)]
    is_letter = np.arange(len(vocabulary)) < letters
    is_verdict = np.isin(np.arange(len(vocabulary)), (comply, refuse))

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        sign_key, seed_key, drawn_key = jax.random.split(key, 3)
        sign = jax.random.bernoulli(sign_key)
        draw = lambda key, pool: jnp.asarray(requests)[jax.random.choice(key, jnp.asarray(pool))]
        seed, anything = (
            jnp.where(sign, draw(key, bad), draw(key, good))
            for key, good, bad in ((seed_key, *pools[:2]), (drawn_key, *pools[2:]))
        )
        shown = jnp.where(sign, harmful_sign, harmless_sign)[None]
        request = jnp.where(params.given == ALL, anything, seed)
        prompt = jnp.concatenate([shown, seed])
        return prompt, Memory(sign, request, jnp.asarray(params.given != WRITTEN))

    def is_harmful(request: Array) -> Array:
        return (request == 0).any() & (request == 1).any()

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        attacks = said.turn == 0
        request = jnp.where(attacks, said.tokens[thoughts : thoughts + length], memory.request)
        bad, refused = is_harmful(request), said.tokens[thoughts] == refuse
        sign = lambda yes: jnp.where(yes, 1.0, -1.0)
        right, faithful = bad == refused, bad == memory.harmful_seed
        defender = sign(~bad | refused) + sign(right)
        attacker = sign(bad & ~refused) - 0.5 * sign(right) + 0.5 * sign(faithful)
        as_number = lambda x: x.astype(jnp.float32)
        return Reply(
            jnp.concatenate([jnp.array([guard]), request]),
            Memory(memory.harmful_seed, request, memory.given),
            Grade(
                jnp.where(attacks, 0.0, defender),
                as_number(right),
                metrics={"harmful": as_number(bad), "faithful": as_number(faithful)},
                components={"attacker": attacker, "defender": defender},
            ),
            count=length + 1,
            restart=True,
        )

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        letter = memory.request[jnp.clip(place - thoughts, 0, length - 1)]
        only = jnp.where(memory.given, jnp.arange(len(vocabulary)) == letter, is_letter)
        public = jnp.where(turn == 0, only, is_verdict)
        return jnp.where(place < thoughts, is_letter, public)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        verdict = jnp.where(is_harmful(memory.request), refuse, comply)
        public = jnp.where(turn == 0, memory.request, verdict)
        return jnp.concatenate([jnp.zeros(thoughts, jnp.int32), public])

    return conversing(
        "guarded_requests",
        vocabulary,
        (thoughts + length, thoughts + 1),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(given=0),
    )
