"""A listener that learns from pragmatic examples, against exact listeners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.multi_agent.pragmatic_synthesizer import pragmatic_synthesizer
from jaxrl.core.types import Array, Key
from jaxrl.envs import timesteps
from jaxrl.envs.language.regex_by_example import NONE, agree, encode, speak
from jaxrl.exact import pragmatics

EXAMPLES, USERS = 3, 16  # examples that a user shows, and users of each program
RATIONALITIES = {"informative users": 50.0, "users in between": 4.0}
SETTINGS = {"hidden": (64, 64), "programs": 512, "rounds": 6, "literal_updates": 200}
SETTINGS |= {"updates": 300, "minibatch": 64}
Listener = Callable[[Array, Array], Array]  # (shown [K], labels [K]) -> probabilities [H]


def draw_examples(key: Key, meanings: Array, program: Array, rationality: float) -> Array:
    """Draw the examples [K] of a user of the program."""
    shown = jnp.full(EXAMPLES, NONE)
    for k in range(EXAMPLES):
        possible = agree(meanings, shown, meanings[program, shown])
        chances = speak(meanings, possible, shown, rationality)[program]
        string = jax.random.categorical(jax.random.fold_in(key, k), jnp.log(chances))
        shown = shown.at[k].set(string)
    return shown


def accuracy(listener: Listener, meanings: Array, shown: Array) -> Array:
    """Return the top-1 accuracy for examples [U, H, K] of users of each program."""

    def one(program: Array, shown: Array) -> Array:
        probs = listener(shown, meanings[program, shown])
        return pragmatics.top_1_accuracy(probs, program)

    program = jnp.broadcast_to(jnp.arange(len(meanings)), shown.shape[:-1]).ravel()
    return jax.lax.map(lambda x: one(*x), (program, shown.reshape(-1, EXAMPLES))).mean()


def shortfall(key: Key, changes: Mapping[str, Any] = {}, literal: bool = False) -> dict[str, Array]:
    """Return the part of the exact pragmatic listener's advantage over the literal listener that
    the trained one lacks.

    changes: of the settings. literal: ask the literal model instead of the trained one.
    """
    init_key, learn_key, user_key = jax.random.split(key, 3)
    env = envs.make("regex_by_example", examples=EXAMPLES)
    algorithm = pragmatic_synthesizer(env, SETTINGS | dict(changes))
    state = algorithm.init(init_key, algorithm.hyper)
    if not literal:
        keys = jax.random.split(learn_key, SETTINGS["rounds"])
        state, _ = jax.lax.scan(
            lambda state, key: (algorithm.step(state, key)[0], None), state, keys
        )
    policy, meanings = algorithm.policy(state), jnp.asarray(env.params.meanings)

    def guess(shown: Array, labels: Array) -> Array:
        """Return the greedy guess."""
        seen = encode(shown, labels, meanings.shape[1])
        step = timesteps.first(seen[None], legal_actions=agree(meanings, shown, labels)[None])
        action, *_ = policy.act(policy.state, step, (), user_key, True)
        return jax.nn.one_hot(action[0], len(meanings))

    found = {}
    for name, rationality in RATIONALITIES.items():
        draw = lambda key, program, r=rationality: draw_examples(key, meanings, program, r)
        keys = jax.random.split(user_key, (USERS, len(meanings)))
        programs = jnp.arange(len(meanings))
        shown = jax.vmap(jax.vmap(draw), (0, None))(keys, programs)
        listeners: tuple[Listener, ...] = (
            lambda shown, labels, r=rationality: pragmatics.pragmatic_listener(
                meanings, shown, labels, r
            ),
            lambda shown, labels: pragmatics.literal_listener(meanings, shown, labels),
            guess,
        )
        exact, even, own = (accuracy(listener, meanings, shown) for listener in listeners)
        found[name] = jnp.maximum((exact - own) / (exact - even), 0)
    return found


def first_choice(choose: Any) -> Any:
    """Choose among proposed examples without regard to the proposed programs."""
    return lambda meanings, hypotheses, utterances, program: choose(
        meanings, jax.nn.one_hot(program, len(meanings), dtype=bool), utterances, program
    )


CLAIM = Exact(
    paper=Paper(
        "Generating Pragmatic Examples to Train Neural Program Synthesizers",
        "Vaduguru, Fried and Pu",
        2023,
        "2311.05740",
        "Training on examples that pragmatic inference chooses from self-play raises a regular "
        "expression synthesizer's accuracy with users by 23 points (51 % relative) over training "
        "without them, and matches training on examples of people.",
    ),
    claim="A listener trained by PraX reaches, with users who choose examples pragmatically, at "
    "least two thirds of the exact pragmatic listener's advantage over the literal listener after "
    "three examples; one that is trained on any proposed examples does not, nor does the literal "
    "model.",
    left_out="Language models, people as users and their examples, and programs that cannot be "
    "enumerated.",
    parts=(
        "jaxrl/algorithms/multi_agent/pragmatic_synthesizer.py",
        "jaxrl/envs/language/regex_by_example.py",
        "jaxrl/exact/pragmatics.py",
    ),
    errors=jax.jit(shortfall),
    planted={
        "any proposed example": jax.jit(lambda key: shortfall(key, {"choice": "random"})),
        "the literal model": jax.jit(lambda key: shortfall(key, literal=True)),
    },
    tolerance=1 / 3,
    effect=2 / 3,
    seeds=6,
    minutes=5.0,
    mutations=(
        Mutation(
            "the first proposed example",
            "jaxrl.algorithms.multi_agent.pragmatic_synthesizer:pragmatic_choice",
            first_choice,
        ),
    ),
    notes="88 programs and 31 strings. An error is the part of the difference in top-1 accuracy "
    "between the two exact listeners that the trained one lacks, over 16 users of each program. "
    "Users are exact speakers of rationality 50, who nearly always show the most informative "
    "string, and 4. One run of each side was seen before this was declared, with larger networks: "
    "it lacked a tenth to a quarter. A second design: the first trained for three rounds, and with "
    "users in between lacked 0.19 to 0.35, on 1 of 6 seeds 0.021 more than a third.",
)
