"""Rewards by length and repetition, by their KL-regularized optima over all texts.

A text is up to six letters of three, and an end. The reference writes letters by the last one. A
text with all six letters is as long as the limit, too long. To one prompt the longer texts are
right more often, to the other none is right, so that its reward can only be hacked.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._flows import excess
from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.tokens.long_cot import long_cot, typed_rewards
from jaxrl.core.settings import replace
from jaxrl.core.types import Array, Batch, Key, TimeStep, Transition
from jaxrl.exact.answers import optimal_answers

LETTERS, LONGEST, NGRAM, BETA, DRAWS = 3, 6, 2, 0.5, 16
END, LIMIT = LETTERS, LONGEST + 1
TEXTS = np.array(
    [
        (*text, *[END] * (LIMIT - n))
        for n in range(LONGEST + 1)
        for text in itertools.product(range(LETTERS), repeat=n)
    ]
)  # [A, LIMIT]
SIZE = (TEXTS < END).sum(-1)  # letters
WRITTEN = np.arange(LIMIT)[:, None] <= SIZE  # letters and the first end, [LIMIT, A]
Rewards = Callable[[Any, Batch, int], Array]  # like `typed_rewards`
SHAPED = {"length.limit": float(LIMIT), "repetition": -1.0}
# The classic reward, 1 for right texts and 0 for others.
CLASSIC = {"length.right_short": 1.0, "length.right_long": 1.0, "length.wrong_short": 0.0}
CLASSIC |= {"length.wrong_long": 0.0, "length.exceeded": 0.0}


def repeats() -> np.ndarray:
    """Return the number of letters and ends of each text that repeat an n-gram, by a loop, [A]."""
    count = np.zeros(len(TEXTS))
    for i, (text, size) in enumerate(zip(TEXTS, SIZE, strict=True)):
        seen, covered = set(), set()
        for t in range(size + 2 - NGRAM):
            gram = tuple(text[t : t + NGRAM])
            covered |= set(range(t, t + NGRAM)) if gram in seen else set()
            seen.add(gram)
        count[i] = len(covered)
    return count


REPEATED = repeats()


class Case(NamedTuple):
    """Log-probabilities of all texts by the reference, and which are right to the first prompt,
    [A]."""

    reference: Array
    right: Array


def draw(key: Key) -> Case:
    """Draw a reference, and right texts."""
    table_key, right_key = jax.random.split(key)
    logits = jax.random.normal(table_key, (LETTERS + 1, LETTERS + 1)).at[:, END].add(0.5)
    before = np.concatenate([np.full((len(TEXTS), 1), END), TEXTS[:, :-1]], -1)
    each = jax.nn.log_softmax(logits)[before, TEXTS]
    reference = jnp.where(WRITTEN.T & (np.arange(LIMIT) < LONGEST), each, 0).sum(-1)
    chance = jnp.asarray(np.where(SIZE < LONGEST, 0.05 + 0.1 * SIZE, 0))
    return Case(reference, jax.random.bernoulli(right_key, chance))


def episodes(right: Array) -> Batch:
    """Return all texts as episodes [LIMIT, A], with `success` where they are `right` [A]."""
    no = jnp.zeros(WRITTEN.shape, bool)
    last = jnp.asarray(np.arange(LIMIT)[:, None] == SIZE)
    step = TimeStep(no, jnp.zeros(WRITTEN.shape), no, no, no)
    after = TimeStep(no, jnp.zeros(WRITTEN.shape), last, no, no, metrics={"success": last * right})
    t = Transition(step, jnp.asarray(TEXTS.T), after, (), {})
    return Batch(t, jnp.zeros(()), mask=jnp.asarray(WRITTEN))


def optimum(rewards: Rewards, x: Case, right: Array, changes: dict[str, float]) -> Array:
    """Return the probabilities of all texts by the best policy, [A]."""
    net = SimpleNamespace(hyper=replace(long_cot.Config(), SHAPED | changes))
    found = rewards(net, episodes(right), NGRAM).sum((0, 2))
    return jnp.exp(optimal_answers(found, x.reference, BETA))


def measure(rewards: Rewards, x: Case) -> dict[str, Array]:
    """Return what the best policies do by the classic reward, by length and by both rewards.

    `right`, `long` and `size` are to the first prompt, size that of right texts; `repeated` and
    `wrong` are to the other one, wrong the size. Each [3].
    """
    none, size = jnp.zeros_like(x.right), jnp.asarray(SIZE)
    settings = CLASSIC | {"repetition": 0.0}, {"repetition": 0.0}, {}
    p, q = (
        jnp.stack([optimum(rewards, x, right, changes) for changes in settings])
        for right in (x.right, none)
    )
    return {
        "right": p @ x.right,
        "long": p @ (size == LONGEST),
        "size": p @ (size * x.right) / (p @ x.right),
        "repeated": q @ jnp.asarray(REPEATED),
        "wrong": q @ size,
    }


def errors_of(rewards: Rewards, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed, by means over draws."""
    each = jax.vmap(lambda key: measure(rewards, draw(key)))(jax.random.split(key, DRAWS))
    found = {name: values.mean(0) for name, values in each.items()}
    classic, cosine, both = ({name: x[i] for name, x in found.items()} for i in range(3))
    return {
        "right texts no quarter of a letter shorter": shortfall(
            classic["size"] - cosine["size"], 0.25
        ),
        "wrong texts no letter longer": shortfall(cosine["wrong"] - classic["wrong"], 1.0),
        "too long texts above a tenth of the classic's": excess(
            cosine["long"] / classic["long"] - 0.1
        ),
        "right texts fewer by 0.02": shortfall(cosine["right"] - classic["right"], -0.02),
        "wrong texts do not repeat more than the classic's": shortfall(
            cosine["repeated"] - classic["repeated"], 0.5
        ),
        "the penalty leaves more than half of the repetitions": excess(
            both["repeated"] / cosine["repeated"] - 0.5
        ),
        "the penalty takes a right text in fifty": shortfall(
            both["right"] - cosine["right"], -0.02
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the authors' rewards."""
    return errors_of(typed_rewards, key)


def exchange(rewards: Rewards) -> Rewards:
    """Pay right answers as wrong ones, by length."""

    def pay(net, batch, ngram):
        hyper = net.hyper
        ends = hyper.length
        turned = dataclasses.replace(
            ends,
            right_short=ends.right_long,
            right_long=ends.right_short,
            wrong_short=ends.wrong_long,
            wrong_long=ends.wrong_short,
        )
        net = SimpleNamespace(hyper=dataclasses.replace(hyper, length=turned))
        return rewards(net, batch, ngram)

    return pay


def forgive(rewards: Rewards) -> Rewards:
    """Leave repetitions forgive."""
    return lambda net, batch, ngram: rewards(net, batch, ngram) * jnp.array([1.0, 0.0])


def wrong(rewards: Rewards) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other rewards."""
    return jax.jit(lambda key: errors_of(rewards, key))


CLAIM = Exact(
    paper=Paper(
        "Demystifying Long Chain-of-Thought Reasoning in LLMs",
        "Yeo, Tong, Niu, Neubig and Yue",
        2025,
        "2502.03373",
        "Thoughts do not always grow with training. A cosine of their length as reward keeps "
        "them within the context and is as accurate; models hack it by repetition where they "
        "cannot solve a problem, which a penalty on repeated n-grams prevents. (Other findings "
        "are about supervised data and noisy verifiers.)",
    ),
    claim="The best policies for rewards by length exceed the limit less, and are as often right; "
    "where none is right they repeat, less with the penalty.",
    left_out="Language models, training, discounts, supervised data and noisy verifiers: here "
    "optima of the regularized rewards are sums over all texts. The penalty of a repeated token "
    "is 1, since texts have up to six letters.",
    parts=("jaxrl/algorithms/tokens/long_cot.py", "jaxrl/losses/tokens/rewards.py"),
    errors=errors,
    planted={
        "the ends of the cosines are exchanged": wrong(exchange(typed_rewards)),
        "repetitions are not punished": wrong(forgive(typed_rewards)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    notes="Second design: the first asked for the margins in each draw, and right texts were no "
    "quarter of a letter shorter in 3 of 20; this one asks for means of 16 draws. The classic "
    "reward is 1 for right texts and 0 for others, also for too long ones. Longer texts are right "
    "more often, up to the limit; each is right or not for good. Margins were set after trials of "
    "three other draws. One trial compared with 2 for right texts and -10 for all others, at a "
    "weight of 2 of the divergence: there rewards by length made texts right less often, by 0.12 "
    "and 0.18 in two of three draws, and too long as often, as they pay wrong texts for their "
    "length.",
    mutations=(
        Mutation(
            "the ends of the cosines are exchanged",
            "jaxrl.algorithms.tokens.long_cot:typed_rewards",
            exchange,
        ),
        Mutation(
            "repetitions are not punished",
            "jaxrl.algorithms.tokens.long_cot:typed_rewards",
            forgive,
        ),
    ),
)
