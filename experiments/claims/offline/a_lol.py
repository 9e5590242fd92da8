"""A-LoL on prompts whose answers can all be enumerated: slopes and resting points of its loss, and
of the loss of its reference value, beside closed forms, in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline import a_lol, a_lol_value
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.core.settings import Values, replace
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.networks.heads import Categorical

PROMPTS, LETTERS = 8, 4  # an answer is two letters
ANSWERS = LETTERS**2
FIRST, SECOND = jnp.divmod(jnp.arange(ANSWERS), LETTERS)
JUNK = 0.5  # share of the texts that are written at random
ENV = envs.make("judged_words")  # for its recipes alone
GAIN = 0.1  # of the mean reward over that of all texts that beat the reference, at least
NONE = jnp.zeros((2, ANSWERS))
BLANK = TimeStep(NONE, NONE, NONE > 0, NONE > 0, NONE > 0)


class Policy(NamedTuple):
    """Logits of a policy: of the first letter [L], and of the second after each first [L, L]."""

    first: Array
    second: Array


def token_logits(policy: Policy) -> Array:
    """Return the logits [2, ANSWERS, L] of the tokens of all answers."""
    first = jnp.broadcast_to(policy.first, (ANSWERS, LETTERS))
    return jnp.stack([first, policy.second[FIRST]])


def token_log_probs(policy: Policy) -> Array:
    """Return the log-probabilities [2, ANSWERS] of the tokens of all answers."""
    tokens = jnp.stack([FIRST, SECOND])[..., None]
    return jnp.take_along_axis(jax.nn.log_softmax(token_logits(policy)), tokens, -1)[..., 0]


def chances(policy: Policy) -> Array:
    return jnp.exp(token_log_probs(policy).sum(0))


def policy_of(shares: Array) -> Policy:
    """Return the policy that writes answers with these shares [ANSWERS]."""
    table = jnp.log(shares.reshape(LETTERS, LETTERS))
    return Policy(jax.nn.logsumexp(table, -1), table)


def losses_of(policy: Policy, reference: Policy, advantage: Array, ratio: str, clip: Any) -> Array:
    """Return the algorithm's loss of each answer."""
    config = replace(a_lol.Config(), {"ratio": ratio})
    loss = a_lol.recipe(ENV, config).losses[0]
    sample = Sample(
        BLANK,
        jnp.stack([FIRST, SECOND]),
        reference=token_log_probs(reference),
        advantage=jnp.broadcast_to(advantage, NONE.shape),
    )
    x: Any = SimpleNamespace(x=sample, mask=NONE == 0)
    net: Any = SimpleNamespace(
        actor_critic=lambda *_, method: (Categorical(token_logits(policy)), NONE),
        network=lambda name: SimpleNamespace(initial=lambda n: ()),
        hyper=Values({"clip": clip, "beta": 0.0, "entropy_weight": 0.0}),
    )
    output: Any = loss(net, x)
    return output.value


def value_losses(value: Array, returns: Array) -> Array:
    """Return the squared errors of a prompt's value, given the return of each answer."""
    spread = jnp.broadcast_to(returns, NONE.shape)
    sample = Sample(BLANK, jnp.stack([FIRST, SECOND]), advantage=spread)
    net: Any = SimpleNamespace(
        critic=lambda *_, method: (None, jnp.broadcast_to(value, NONE.shape)),
        network=lambda name: SimpleNamespace(initial=lambda n: ()),
    )
    x: Any = SimpleNamespace(x=sample, mask=NONE == 0)
    output: Any = a_lol_value.value_loss(net, x)
    return output.value


def prompt_errors(
    key: Key, clip: Array | float, alike: Array | bool, other: Array | bool
) -> dict[str, Array]:
    """Return the errors at one prompt.

    "value": the slope of the value's loss at the reference policy's expected return. "slope": of
    A-LoL's loss at some policy, over texts of the reference that are drawn by their advantages,
    beside the policy gradient of the mean squared positive advantage. "rest": the slope without a
    ratio at the law that is in proportion to texts and squared positive advantages, where half of
    the texts are junk. "gain": by how much the mean reward of that law exceeds that of all texts
    that beat the reference.
    clip: range of the ratio. alike: whether all texts with a positive advantage are drawn alike.
    other: whether the value is that of the texts and not of the reference.
    """
    keys = jax.random.split(key, 4)
    draw = lambda key: Policy(
        *(
            jax.random.normal(k, s)
            for k, s in zip(jax.random.split(key), ((LETTERS,), (LETTERS, LETTERS)), strict=True)
        )
    )
    reference, policy = draw(keys[0]), draw(keys[1])
    reward = jax.random.normal(keys[2], (ANSWERS,))
    written = chances(reference)
    texts = (1 - JUNK) * written + JUNK * jax.random.dirichlet(keys[3], jnp.ones(ANSWERS))
    value = jnp.where(other, texts, written) @ reward
    true_advantage = reward - written @ reward
    advantage = reward - value
    slope_at = lambda value: jax.grad(lambda v: written @ value_losses(v, reward))(value)

    def frequency(texts: Array) -> Array:
        """Return how often texts are drawn, not yet divided by their sum."""
        keep = a_lol.KEEP["by_advantage"](advantage)
        return texts * jnp.where(alike, a_lol.KEEP["positive"](advantage), keep)

    def slope(policy: Policy, weights: Array, ratio: str) -> Policy:
        loss = lambda policy: weights @ losses_of(policy, reference, advantage, ratio, clip)
        return jax.grad(loss)(policy)

    gain = jnp.square(jnp.maximum(true_advantage, 0))
    wanted = jax.grad(lambda policy: -chances(policy) @ gain)(policy)
    found = slope(policy, frequency(written), "sequence")
    best = texts * gain
    law = best / best.sum()
    beats = texts * (true_advantage > 0)
    # Where nothing is drawn the law is 0, whose logarithm must be a number.
    rest = slope(policy_of(jnp.maximum(law, 1e-30)), frequency(texts), "none")
    largest = lambda tree: jnp.stack([jnp.abs(x).max() for x in tree]).max()
    resting = frequency(texts) * jnp.maximum(advantage, 0)
    resting = resting / resting.sum()
    return {
        "value": jnp.abs(slope_at(value)),
        "slope": largest([a - b for a, b in zip(found, wanted, strict=True)]),
        "rest": largest(rest),
        "gain": resting @ reward - beats @ reward / beats.sum(),
    }


@jax.jit
def errors_of(
    key: Key, clip: Array | float, alike: Array | bool, other: Array | bool
) -> dict[str, Array]:
    """Return the largest errors over prompts, as `prompt_errors`, and "better", what the mean gain
    lacks of `GAIN`."""
    one = lambda key: prompt_errors(key, clip, alike, other)
    found = jax.lax.map(one, jax.random.split(key, PROMPTS))
    gain = found.pop("gain").mean()
    largest = {name: error.max() for name, error in found.items()}
    return {**largest, "better": jnp.maximum(GAIN - gain, 0.0)}


def errors(key: Key) -> dict[str, Array]:
    """Return the errors without a bound of the ratio."""
    return errors_of(key, jnp.inf, False, False)


CLAIM = Exact(
    paper=Paper(
        "Improving Language Models with Advantage-based Offline Policy Gradients",
        "Baheti, Lu, Brahman, Le Bras, Sap and Riedl",
        2024,
        "2305.14718",
        "A policy gradient on static texts, with whole answers as actions and the advantage over "
        "the reference policy's own value, learns from noisy data, and better than preferences, "
        "filters and PPO.",
    ),
    claim="Over texts of the reference that are drawn by their advantages, A-LoL without a bound "
    "of its ratio has the policy gradient of the mean squared positive advantage; without the "
    "ratio it rests at texts times squared advantages also where half is junk, whose mean reward "
    "exceeds that of all texts that beat the reference by 0.1.",
    left_out="Networks, human preferences, diversity, and comparisons with other methods. The "
    "authors bound the ratio within 0.9 of 1, with which the slope is no longer that gradient: "
    "that is among the planted mistakes.",
    notes="It was tried on other seeds before it was declared. A seed has eight prompts since the "
    "second design, as with one the ratio may be within 0.9 of 1 by chance.",
    parts=(
        "jaxrl/algorithms/offline/a_lol.py",
        "jaxrl/algorithms/offline/a_lol_value.py",
        "jaxrl/losses/tokens/fine_tuning.py",
    ),
    errors=errors,
    planted={
        "a ratio within 0.9 of 1": lambda key: errors_of(key, 0.9, False, False),
        "texts that are drawn alike": lambda key: errors_of(key, jnp.inf, True, False),
        "the value of the texts": lambda key: errors_of(key, jnp.inf, False, True),
    },
    tolerance=1e-8,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "advantages are a filter alone",
            "jaxrl.losses:a_lol",
            lambda loss: (
                lambda log_prob, reference, advantage, *rest: loss(
                    log_prob, reference, 1.0 * (advantage > 0), *rest
                )
            ),
        ),
        Mutation(
            "the ratio is that of each token",
            "jaxrl.losses:a_lol",
            lambda loss: (
                lambda log_prob, reference, advantage, clip, ratio, *rest: loss(
                    log_prob, reference, advantage, clip, "token", *rest
                )
            ),
        ),
    ),
)
