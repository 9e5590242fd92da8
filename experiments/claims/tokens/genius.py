"""Genius against plain DPO on pairs of its own, and against no training, where right steps are
followed by surer ones.

A problem is a tree of three steps with four choices, of which one path is right. A policy is a
table. Off the right path its logits are normal; on it, the right choice's are higher, so that the
future of right steps is surer in the mean, though often not. How often answers are right is exact,
if they are sampled or if each step is the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.preferences.shared.pairs import Answers
from jaxrl.algorithms.tokens.genius import calibrated_loss, genius
from jaxrl.core.types import Array, Key
from jaxrl.sources.foresight import draw_beams, draw_pair, foresight_scores

STEPS, CHOICES, PROBLEMS, RUNS, UPDATES = 3, 4, 128, 2, 100
LEAD = 1.0  # of the right choice's logit on the right path
RATES = jnp.array([1.0, 3.0, 10.0])  # for the loss of each problem
MORE, GREEDY, BETTER = 0.03, 0.01, 0.005  # shares of right answers
SETTINGS = genius.Config()
Tables = list[Array]  # of each step, logits [X, A^k, A] after the steps before it
Score = Callable[[Array, int], Array]


def draw(key: Key) -> Tables:
    """Draw a policy; choice 0 of each step is right after right ones."""
    keys = jax.random.split(key, STEPS)
    shape = lambda k: (PROBLEMS, CHOICES**k, CHOICES)
    tables = [jax.random.normal(keys[k], shape(k)) for k in range(STEPS)]
    return [x.at[:, 0, 0].add(LEAD) for x in tables]


def log_probs(tables: Tables, text: Array) -> Array:
    """Return the log-probabilities [X, C, K] of the steps of texts."""
    node, found = jnp.zeros_like(text[..., 0]), []
    for k, logits in enumerate(tables):
        at = jnp.take_along_axis(jax.nn.log_softmax(logits), node[..., None], 1)
        found.append(jnp.take_along_axis(at, text[..., k, None], -1)[..., 0])
        node = node * CHOICES + text[..., k]
    return jnp.stack(found, -1)


def play_on(key: Key, tables: Tables, text: Array, step: int) -> Array:
    """Return texts [X, C, K] of which the steps from `step` on are drawn anew."""
    node, found = jnp.zeros_like(text[..., 0]), []
    for k, logits in enumerate(tables):
        at = jnp.take_along_axis(logits, node[..., None], 1)
        drawn = jax.random.categorical(jax.random.fold_in(key, k), at).astype(text.dtype)
        found.append(drawn if k >= step else text[..., k])
        node = node * CHOICES + found[-1]
    return jnp.stack(found, -1)


def foresight(log_prob: Array, step: int) -> Array:
    """Return the scores [X, C] of a step by what follows it."""
    flat = log_prob.reshape(-1, STEPS).T
    score = foresight_scores(flat, jnp.ones(flat.shape, bool), jnp.int32(step), 1)
    return score.reshape(log_prob.shape[:-1])


def step_alone(log_prob: Array, step: int) -> Array:
    """Return the scores [X, C] of a step by itself."""
    return log_prob[..., step]


def worst(log_prob: Array, step: int) -> Array:
    """Return the scores [X, C] of a step by how little sure of what follows a policy is."""
    return -foresight(log_prob, step)


def pairs(key: Key, tables: Tables, score_of: Score) -> tuple[Array, Array]:
    """Return a pair of texts for each step [X, K, 2, K], and their advantages [X, K, 2]."""
    groups = SETTINGS.pairs
    text = jnp.zeros((PROBLEMS, groups.beams, STEPS), jnp.int32)
    last, texts, advantages = jnp.zeros(text.shape[:2]), [], []
    for step in range(STEPS):
        keys = jax.random.split(jax.random.fold_in(key, step), 3)
        played = play_on(keys[0], tables, jnp.repeat(text, groups.rollouts, 1), step)
        score = score_of(log_probs(tables, played), step)
        advantage = score - jnp.repeat(last, groups.rollouts, -1)
        pair = draw_pair(keys[1], score, groups.temperature)
        texts.append(jnp.take_along_axis(played, pair[..., None], 1))
        advantages.append(jnp.take_along_axis(advantage, pair, 1))
        kept = draw_beams(keys[2], score, groups.temperature, groups.beams)
        text = jnp.take_along_axis(played, kept[..., None], 1)
        last = jnp.take_along_axis(score, kept, 1)
    return jnp.stack(texts, 1), jnp.stack(advantages, 1)


def measure(tables: Tables) -> Array:
    """Return how often answers are right if they are sampled, and if they are likeliest, [2]."""
    right = jnp.zeros((PROBLEMS, 1, STEPS), int)
    sampled = jnp.exp(log_probs(tables, right).sum(-1)).mean()
    greedy = jnp.stack([x[:, 0].argmax(-1) == 0 for x in tables]).all(0).mean()
    return jnp.stack([sampled, greedy])


def learn(key: Key, begin: Tables, rate: Array, score_of: Score, calibrated: bool) -> Array:
    """Return what the policy can do after training on its own pairs, [2].

    calibrated: whether by Genius' loss, in place of DPO's.
    """
    net: Any = SimpleNamespace(hyper=SimpleNamespace(beta=SETTINGS.beta, alpha=SETTINGS.alpha))

    def update(tables, key):
        texts, advantage = pairs(key, tables, score_of)
        flat = texts.reshape(PROBLEMS, -1, STEPS)
        differ = (texts[:, :, 0] != texts[:, :, 1]).any(-1)
        of = lambda tables: log_probs(tables, flat).sum(-1).reshape(advantage.shape)
        reference = of(begin)

        def loss(tables):
            now, length = of(tables), jnp.full(differ.shape, STEPS)
            side = lambda i: Answers(now[..., i], reference[..., i], length, advantage[..., i])
            if calibrated:
                each = calibrated_loss(net, side(0), side(1))
            else:
                given = now[..., 0], now[..., 1], reference[..., 0], reference[..., 1]
                each = losses.dpo(*given, SETTINGS.beta)
            return losses.masked_mean(each, differ) * PROBLEMS

        slope = jax.grad(loss)(tables)
        return jax.tree.map(lambda x, g: x - rate * g, tables, slope), None

    return measure(jax.lax.scan(update, begin, jax.random.split(key, UPDATES))[0])


def results(score_of: Score, key: Key) -> dict[str, Array]:
    """Return what policies can do by step size, [2, R], or without training, [2]."""

    def one(key):
        begin = draw(key)
        side = lambda calibrated: jax.vmap(lambda r: learn(key, begin, r, score_of, calibrated))(
            RATES
        )
        return {"Genius": side(True), "DPO": side(False), "untrained": measure(begin)}

    found = jax.vmap(one)(jax.random.split(key, RUNS))
    return jax.tree.map(lambda x: x.mean(0).T, found)


def errors_of(score_of: Score, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed, each side at its best step size."""
    found = results(score_of, key)
    (ours, greedy), (dpo, _) = found["Genius"].max(-1), found["DPO"].max(-1)
    before = found["untrained"]
    return {
        "right sampled answers, those without training and more": shortfall(ours, before[0] + MORE),
        "right likeliest answers, those without training and more": shortfall(
            greedy, before[1] + GREEDY
        ),
        "right sampled answers, those by plain DPO and more": shortfall(ours, dpo + BETTER),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of Genius."""
    return errors_of(foresight, key)


def wrong(score_of: Score) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other scores of steps."""
    return jax.jit(lambda key: errors_of(score_of, key))


CLAIM = Exact(
    paper=Paper(
        "Genius: A Generalizable and Purely Unsupervised Self-Training Framework For Advanced "
        "Reasoning",
        "Xu et al.",
        2025,
        "2504.08672",
        "A model improves its reasoning without any supervision, from queries alone: it prefers "
        "steps whose simulated future it is surer of. A loss that penalizes rejected texts less "
        "where their advantage is the higher one copes with errors of these estimates, and does "
        "better than DPO.",
    ),
    claim="Training on own pairs by foresight leaves 0.03 more sampled answers and 0.01 more "
    "likeliest answers right, and the calibrated loss 0.005 more sampled ones than DPO.",
    left_out="Language models, new problems, general queries, and other ways of self-training. "
    "Pairs are new ones in every update, of trees of three steps with four choices.",
    parts=(
        "jaxrl/algorithms/tokens/genius.py",
        "jaxrl/sources/foresight.py",
        "jaxrl/losses/preferences/pairs.py",
    ),
    errors=errors,
    planted={
        "steps are scored by themselves": wrong(step_alone),
        "the least sure future is chosen": wrong(worst),
    },
    tolerance=1e-9,
    effect=5e-3,
    seeds=5,
    minutes=5.0,
    notes="Beams, candidates, temperatures and the strength of the reference are Genius' defaults. "
    "The right choice's logit leads by 1 where others have a deviation of 1, so that "
    "right choices are the likeliest in only half of the steps. Both losses have the best of three "
    "step sizes for each finding. Figures are means of 256 problems. Margins were set after a "
    "pilot of one other draw: 0.08 of sampled answers were right without training, 0.15 with it, "
    "and 0.16 by DPO; of likeliest ones 0.16, 0.18 and 0.18. By the certainty of steps themselves "
    "0.08 of sampled answers were right. So it was known that the finding on DPO might fail.",
    diagnosis="It left 0.03 more sampled answers right on all five seeds. But on four of them "
    "likeliest answers were right less often than without training, by 0.004 to 0.03, at the best "
    "step size too: training makes a policy surer, more than it corrects it. The calibrated loss "
    "led DPO by 0.005 on one seed and by 0.001 to 0.004 on three, and fell 0.015 behind on one.",
    mutations=(
        Mutation(
            "the least sure future is chosen",
            "jaxrl.sources.foresight:foresight_scores",
            lambda f: lambda *given: -f(*given),
        ),
    ),
)
