"""ArCHer's critics and its gradient against exact values of utterances, in tables.

A conversation has an utterance of two tokens, a random reply, and an utterance of one token, each
utterance rewarded at its end. Another policy held the conversations of the replay buffer; today's
policy says one utterance of each anew. Expectations are sums over all conversations and copies, and
the networks are tables by the text so far.
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

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.archer import (
    Utterances,
    advantages,
    critic_loss,
    split_utterances,
)
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Key, TimeStep, Transition

TOKENS, REPLIES, DISCOUNT, SWEEPS = 3, 3, 0.8, 6
JUNK = 9.0  # a reward after an utterance that was said anew, which nobody may look at
# First and second token of the first utterance, the reply, and the second utterance, int [E, 4].
ENDINGS = np.array(list(itertools.product(*(range(n) for n in (3, 3, REPLIES, TOKENS)))))
COUNT = len(ENDINGS)
FIRST, SECOND, REPLY, LAST = ENDINGS.T
# The prompt is what the first token answers; the reply is read before the last one, which ends it.
DECIDES = np.array([1, 1, 0, 1], bool)
TURN = np.array([0, 0, 1, 1])
# Conversations, copies whose first utterance is said anew, and those whose second one is.
MASK = np.repeat([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]], COUNT, 0).T.astype(bool)
ANEW = np.repeat([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]], COUNT, 0).T.astype(bool)
Split = Callable[[Transition, Array], Utterances]


class Talk(NamedTuple):
    """Logits of the first token [3], the second [3, 3] and the last [3, 3, R, 3] by today's policy
    and by another one, chances [3, 3, R] of replies, and rewards of both utterances [3, 3] and
    [3, 3, R, 3]."""

    policy: tuple[Array, Array, Array]
    behavior: tuple[Array, Array, Array]
    reply: Array
    reward: Array
    later: Array


def draw(key: Key) -> Talk:
    """Draw two policies, a user and rewards."""
    keys = jax.random.split(key, 9)
    shapes = (3,), (3, 3), (3, 3, REPLIES, TOKENS)
    tables = [jax.random.normal(k, s) for k, s in zip(keys, shapes * 2, strict=False)]
    reply = jax.nn.softmax(jax.random.normal(keys[6], (3, 3, REPLIES)))
    reward, later = jax.random.normal(keys[7], (3, 3)), jax.random.normal(keys[8], shapes[2])
    return Talk((*tables[:3],), (*tables[3:],), reply, reward, later)  # pyright: ignore[reportArgumentType]


def log_probs(logits: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    """Return the log-probabilities of first [3, 3] and second [3, 3, R, 3] utterances."""
    first, second, last = map(jax.nn.log_softmax, logits)
    return first[:, None] + second, last


def chances(x: Talk, states: tuple[Array, Array, Array]) -> Array:
    """Return the weights [3 E] of conversations by a policy, and of copies of them by today's."""
    (one, two), (new, newer) = log_probs(states), log_probs(x.policy)
    of = lambda first, last: jnp.exp(first)[..., None, None] * x.reply[..., None] * jnp.exp(last)
    whole = of(one, two), of(new, two) / 2, of(one, newer) / 2  # each utterance half of the time
    return jnp.concatenate([y.reshape(-1) for y in whole])


def texts(x: Talk, split: Split) -> Utterances:
    """Return all conversations and copies as critics see them, [4, 3 E]."""
    wide = lambda y: jnp.asarray(np.tile(y[:, None], (1, 3 * COUNT)))
    rewards = jnp.zeros((4, 3 * COUNT)).at[1].set(jnp.tile(x.reward[FIRST, SECOND], 3))
    rewards = rewards.at[3].set(jnp.tile(x.later.reshape(-1), 3))
    rewards = jnp.where(ANEW, JUNK, rewards)  # it was paid to what had been said
    none, over = wide(np.zeros(4, bool)), wide(np.arange(4) == 3)
    here = {"decision": wide(DECIDES), "turn": wide(TURN)}
    before = TimeStep(wide(np.arange(4)), jnp.zeros_like(rewards), none, none, none, tokens=here)
    there = {name: jnp.concatenate([y[1:], y[:1]]) for name, y in here.items()}
    after = TimeStep(wide(np.arange(1, 5)), rewards, over, none, none, tokens=there)
    t = Transition(before, none, after, (), {"anew": jnp.asarray(ANEW)})
    return split(t, jnp.asarray(MASK))


def say(early: Array, late: Array, places: tuple[int, int]) -> Array:
    """Return what twins of tables say after each token, [2, 5, 3 E]."""
    values = jnp.full((2, 5, 3 * COUNT), JUNK)
    return values.at[:, places[0]].set(early).at[:, places[1]].set(late)


def network(tables: dict[str, Array], name: str) -> Callable[..., Any]:
    """Return a part that reads tables at the beginnings, or the ends, of utterances."""
    column = np.tile(np.arange(COUNT), 3)
    first = (FIRST[column], SECOND[column])
    reply, last = REPLY[column], LAST[column]
    if name == "value":
        now = tables["v"][:, None], tables["later_v"][:, *first, reply]
        both = say(*now, (0, 3))
    else:
        now = tables["q"][:, *first], tables["later_q"][:, *first, reply, last]
        both = say(*now, (2, 4))
    return lambda text, memory, method: (None, both)


def net_of(tables: dict[str, Array], targets: dict[str, Array], discount: float) -> Any:
    """Return a net whose critics are tables."""
    parts = lambda y: {name: network(y, name) for name in ("critic", "value")}
    blank = SimpleNamespace(initial=lambda n: ())
    return SimpleNamespace(
        **parts(tables),
        target=SimpleNamespace(**parts(targets)),
        hyper=Values({"discount": discount}),
        network=lambda name: blank,
    )


def learn(x: Talk, split: Split, discount: float) -> dict[str, Array]:
    """Return the critics' tables after exact minimizations of their loss, targets renewed after
    each."""
    read, weight = texts(x, split), chances(x, x.behavior)
    shape = {"v": (2,), "later_v": (2, 3, 3, REPLIES), "q": (2, 3, 3)}
    shape |= {"later_q": (2, 3, 3, REPLIES, TOKENS)}
    begin = {name: jnp.arange(2.0).reshape(2, *[1] * (len(s) - 1)) + jnp.zeros(s)
             for name, s in shape.items()}  # fmt: skip

    def step(_, tables):
        total = lambda y: (weight * critic_loss(net_of(y, tables, discount), read)).sum()  # pyright: ignore[reportOperatorIssue]
        slope = jax.grad(total)
        # The loss is a sum of squares of single entries, each over its own curvature.
        here, there = slope(tables), slope(jax.tree.map(lambda y: y + 1, tables))
        return jax.tree.map(lambda y, a, b: y - a / (b - a), tables, here, there)

    return jax.lax.fori_loop(0, SWEEPS, step, begin)


def exact_values(x: Talk, discount: float) -> dict[str, Array]:
    """Return the values of today's policy, by definition."""
    first, last = log_probs(x.policy)
    later_v = (jnp.exp(last) * x.later).sum(-1)
    q = x.reward + discount * (x.reply * later_v).sum(-1)
    return {"later_q": x.later, "later_v": later_v, "q": q, "v": (jnp.exp(first) * q).sum()}


def gradient(x: Talk, tables: dict[str, Array], split: Split) -> Any:
    """Return the expected gradient of tokens' log-probabilities times their advantages, at states
    of today's policy, with the critics of another policy's conversations."""
    read, weight = texts(x, split), chances(x, x.policy)
    given = advantages(net_of(tables, tables, 1.0), read)  # [4, 3 E]

    def total(logits):
        first, second, last = map(jax.nn.log_softmax, logits)
        rows = first[FIRST], second[FIRST, SECOND], 0 * first[FIRST], last.reshape(-1)
        said = jnp.tile(jnp.stack(rows), (1, 3))
        return (weight * losses.policy_gradient(said, given)).sum()

    return jax.grad(total)(x.policy)


def spread(x: Talk) -> tuple[Array, Array]:
    """Return the variances of a conversation's gradient, with advantages of utterances by exact
    critics and by the rewards that follow less the exact value."""
    exact, weight = exact_values(x, 1.0), chances(x, x.policy)[:COUNT]
    said, later = x.reward[FIRST, SECOND], x.later.reshape(-1)
    value = exact["later_v"][FIRST, SECOND, REPLY]
    by_critics = exact["q"][FIRST, SECOND] - exact["v"], later - value
    by_rewards = said + later - exact["v"], later - value

    def score(i):
        def of(logits):
            first, last = log_probs(logits)
            return jnp.stack([first.reshape(-1)[i // (REPLIES * TOKENS)], last.reshape(-1)[i]])

        return jnp.concatenate([y.reshape(2, -1) for y in jax.jacobian(of)(x.policy)], -1)

    scores = jax.vmap(score)(jnp.arange(COUNT))  # [E, 2, K]

    def variance(each):
        found = (jnp.stack(each, -1)[..., None] * scores).sum(1)
        return (weight[:, None] * (found - weight @ found) ** 2).sum()

    return variance(by_critics), variance(by_rewards)


def distance(found: Any, exact: Any) -> Array:
    """Return the largest difference of two trees, relative to the largest entry of the second."""
    both = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    apart = jnp.array([jnp.abs(a - b).max() for a, b in both]).max()
    return apart / jnp.array([jnp.abs(b).max() for b in jax.tree.leaves(exact)]).max()


def errors_of(split: Split, key: Key) -> dict[str, Array]:
    """Return the errors of ArCHer if conversations are split like `split_utterances` does."""
    x = draw(key)
    found, discounts = {}, (DISCOUNT, 1.0)
    learned = jax.vmap(lambda discount: learn(x, split, discount))(jnp.array(discounts))
    for i, discount in enumerate(discounts):
        exact = exact_values(x, discount)
        for name in ("q", "v"):
            own = {k: y[i] for k, y in learned.items() if k in (name, f"later_{name}")}
            twins = {k: jnp.broadcast_to(exact[k], y.shape) for k, y in own.items()}
            found[f"{name.upper()} with a discount of {discount:g}"] = distance(own, twins)
    tables = jax.tree.map(lambda y: y[1], learned)
    exact_gradient = jax.grad(lambda logits: exact_values(x._replace(policy=logits), 1.0)["v"])
    # Each of two utterances is said anew half of the time.
    half = jax.tree.map(lambda y: -y / 2, exact_gradient(x.policy))
    found["the gradient at own states"] = distance(gradient(x, tables, split), half)
    critics, rewards = spread(x)
    found["the variance exceeds that by rewards"] = shortfall(rewards, critics) / rewards
    return found


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of ArCHer."""
    return errors_of(split_utterances, key)


def copies_as_conversations(split: Split) -> Split:
    """Learn Q of copies too, as if what followed had followed what was said anew."""

    def wrong(t, mask):
        x = split(t, mask)
        return dataclasses.replace(x, copy=jnp.zeros_like(x.copy))

    return wrong


def nothing_anew(split: Split) -> Split:
    """Learn V from what the other policy said."""

    def wrong(t, mask):
        x = split(t, mask)
        old = mask & ~x.copy
        return dataclasses.replace(x, anew=old & x.starts)

    return wrong


def ignore_later(target: Callable[..., Array]) -> Callable[..., Array]:
    """Regress Q on the reward of an utterance alone."""
    return lambda reward, over, discount, following: target(reward, over, 0.0, following)


CLAIM = Exact(
    paper=Paper(
        "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
        "Zhou, Zanette, Pan, Levine and Kumar",
        2024,
        "2402.19446",
        "Off-policy critics of utterances aggregate delayed rewards over turns, and a token policy "
        "learns within utterances from them; about 100 times as sample-efficient as on-policy "
        "methods on agent tasks.",
    ),
    claim="From another policy's conversations ArCHer's critics learn today's values; with them "
    "gradients of tokens are exact and vary less.",
    left_out="Language models, networks, sampling, and how many conversations learning takes: here "
    "critics are tables, losses sums over all conversations, and each minimization is exact. That "
    "the gradient is exact is of states of today's own conversations, without a discount.",
    parts=("jaxrl/algorithms/tokens/archer.py",),
    errors=errors,
    planted={
        "copies are learned as conversations": jax.jit(
            lambda key: errors_of(copies_as_conversations(split_utterances), key)
        ),
        "values of what the other policy said": jax.jit(
            lambda key: errors_of(nothing_anew(split_utterances), key)
        ),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=4.0,
    notes="Variances are of the gradient of one conversation, with exact critics against the "
    "rewards that follow less the exact value of a state: the conditional mean of the latter.",
    mutations=(
        Mutation("no delayed reward", "jaxrl.losses:td_target", ignore_later),
        Mutation(
            "values of what the other policy said",
            "jaxrl.algorithms.tokens.archer:split_utterances",
            nothing_anew,
        ),
    ),
)
