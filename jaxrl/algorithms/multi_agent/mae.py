"""Multi-agent evolve, MAE (Chen et al., 2025, "Multi-agent evolve: LLM self-improve through
co-evolution", arXiv:2510.23595): one policy poses questions, answers them and judges both, and no
rule says what is right. The proposer sees an earlier question or none, the solver an earlier
question, and the judge an earlier question with an answer. An update plays as many texts of each,
and in each of them learns the first utterance:

    a question  (quality + difficulty + form) / 3; no difficulty for a quality below `threshold`,
                and nothing at all without a question
    an answer   (score + form) / 2
    a verdict   form

where the same policy, as judge, gives quality and score, difficulty is 1 - score for the mean score
of its answers, and form says how a role encloses what it means. Questions of at least this quality
are added to the pool of questions, and all answers to the pool of answers. Advantages are those of
REINFORCE++, standardized over the tokens of a role.

As in the authors' code and its published run. There, a question is judged once for each of
`samples` times, and each of as many answers as often again; here each sample is a verdict on the
question, an answer and a verdict on it. Answers of the solver's own texts are judged as often, once
there. The first pool is a set of questions by people there, and of `seeds` drawn ones here. Pools
are rings; tasks are drawn from them with replacement. Judges of answers do not learn before there
are answers, as there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.reinforce_plus_plus import surrogate_loss
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import on_answers
from jaxrl.algorithms.tokens.shared.outcomes import check_metrics, metric_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import (
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    Tasks,
    Transition,
    Tree,
    struct,
)
from jaxrl.envs.language.judged_sums import DRAWN, PROPOSAL, SCORING, SOLUTION
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Optimizer, Passes
from jaxrl.sources import as_trees, episodes
from jaxrl.sources.rollouts import check_shards
from jaxrl.tasks import repeat

KINDS = (PROPOSAL, SOLUTION, SCORING)  # of texts, by the role that learns


@group
class Pools:
    """Texts of an update, and pools of earlier questions and answers."""

    texts: int = static(128, low=1, high=MANY)
    """Number of texts (P) of each role in an update."""
    samples: int = static(5, low=1, high=MANY)
    """Number of times (G) that each text goes on after its first utterance."""
    size: int = static(10_000, low=1, high=MANY)
    """Number of questions that are kept, and of answers; later ones take the places of the
    oldest."""
    seeds: int = static(1000, low=1, high=MANY)
    """Number of drawn questions that the pool begins with."""
    references: float = static(0.5, low=0, high=1)
    """Share of the proposer's texts that show an earlier question."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the texts: the most devices that can share a run."""

    @property
    def num_envs(self) -> int:
        """Number of episodes in an update."""
        return self.texts * len(KINDS) * self.samples

    @property
    def shape(self) -> tuple[int, int, int]:
        """P, the number of roles, and G."""
        return self.texts, len(KINDS), self.samples

    def source(self, env: Environment) -> Source:
        """Return a source of texts of each role in turn, each as often as there are samples, which
        share the first utterance."""
        check_shards(self.num_shards, texts=self.texts)
        tasks = repeat(pools(env, self), self.samples)
        played = episodes(start_key(env), self.num_envs, tasks, self.num_shards)
        return as_trees(played, (1, self.samples), (0, 1))


@group
class Config(Tokens):
    """Settings of multi-agent evolve: one policy that poses, solves and judges (arXiv:2510.23595).
    The defaults are those of the authors' run."""

    groups: Pools = Pools()
    passes: Passes = Passes(epochs=1, minibatches=6, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of the probability ratio around 1."""
    threshold: float = hyper(0.7, low=0, high=1)
    """Quality from which a question is paid for its difficulty, and kept."""


@struct
class Given:
    """Id of a task: what a text begins with.

    key: of what is drawn. kind: int32 [], the role that writes first. question: int32 [Q], and
    answer: int32 [], as in `judged_sums.Params`. missing: bool [], whether the pool had nothing.
    """

    key: Key
    kind: Array
    question: Array
    answer: Array
    missing: Array


@struct
class Ring:
    """The last questions or answers: `rows`, int32 [K, Q] or [K, Q + 1], and `count`, int32 [], the
    number that there have been."""

    rows: Array
    count: Array


@struct
class Earlier:
    """State of the pools: the environment's parameters, the questions, the questions with an answer
    behind each, and what the texts of the last window ended with, [B, Q + 1]."""

    params: Tree
    questions: Ring
    answers: Ring
    ended: Array


def add(ring: Ring, rows: Array, kept: Array) -> Ring:
    """Return the ring after those `rows` [N, ...] that are `kept`, bool [N], in the places of the
    oldest; N must not be above its size."""
    size = len(ring.rows)
    place = (ring.count + jnp.cumsum(kept) - 1) % size
    place = jnp.where(kept, place, size)
    return Ring(ring.rows.at[place].set(rows, mode="drop"), ring.count + kept.sum())


def draw(ring: Ring, key: Key, n: int) -> Array:
    """Return n rows of a ring, drawn evenly; the first row if there is none yet."""
    last = jnp.maximum(jnp.minimum(ring.count, len(ring.rows)), 1)
    return ring.rows[jax.random.randint(key, (n,), 0, last)]


def pools(env: Environment, config: Pools) -> Tasks:
    """Return tasks of `judged_sums`: texts of the proposer, of the solver and of the judge in turn,
    about earlier questions and answers.

    Only what feedback scores above 0 joins a pool: the question that a text of the proposer ended
    with, and question and answer of the solver's. `score` is [T, B], the same at all steps of a
    text. The id of a task is a `Given`.
    """
    params = start_params(env)
    longest, end = len(params.question), len(env.vocabulary or ()) - 1
    batch, size = config.num_envs, max(config.size, config.num_envs)

    def init(key: Key, policy: Policy, hyper: Any) -> Earlier:
        rows = lambda width: jnp.full((size, width), DRAWN, jnp.int32)
        return Earlier(
            trees.strong(params),
            Ring(rows(longest), jnp.int32(min(config.seeds, size))),
            Ring(rows(longest + 1), jnp.int32(0)),
            jnp.zeros((batch, longest + 1), jnp.int32),
        )

    def sample(state: Earlier, key: Key, n: int) -> Given:
        start, asked, answered, shows = jax.random.split(key, 4)
        kind = jnp.asarray(KINDS, jnp.int32)[jnp.arange(n) % len(KINDS)]
        question, pair = draw(state.questions, asked, n), draw(state.answers, answered, n)
        blank = (kind == PROPOSAL) & ~jax.random.bernoulli(shows, config.references, (n,))
        question = jnp.where(blank[:, None], end, question)
        scores = kind == SCORING
        question = jnp.where(scores[:, None], pair[:, :-1], question)
        answer = jnp.where(scores, pair[:, -1], DRAWN)
        missing = scores & (state.answers.count == 0)
        return Given(jax.random.split(start, n), kind, question, answer, missing)

    def begin(state: Earlier, task: Given) -> Start:
        given = {"kind": task.kind, "question": task.question, "answer": task.answer}
        return Start(dataclasses.replace(state.params, **given), task.key)

    def update(state: Earlier, policy: Policy, t: Transition) -> Earlier:
        ends = t.done & (jnp.cumsum(t.done, 0) == 1)
        judged: Any = t.next_timestep.privileged
        at_end = jax.tree.map(
            lambda x: jnp.where(ends.reshape(ends.shape + (1,) * (x.ndim - 2)), x, 0).sum(0),
            judged["judged"],
        )
        ended = jnp.concatenate([at_end["question"], at_end["answer"][:, None]], 1)
        return dataclasses.replace(state, ended=ended.astype(jnp.int32))

    def feedback(state: Earlier, ids: Given, score: Array, mask: Array | None) -> Earlier:
        kept, kind = score[0] > 0, ids.kind[0]
        questions = add(state.questions, state.ended[:, :-1], kept & (kind == PROPOSAL))
        answers = add(state.answers, state.ended, kept & (kind == SOLUTION))
        return dataclasses.replace(state, questions=questions, answers=answers)

    return Tasks(
        "earlier questions and answers", init, sample, begin, update, feedback, by_place=True
    )


def start_params(env: Environment) -> Any:
    """Return the parameters of an environment whose texts begin as they say. Raises `UserError` for
    others."""
    missing = [name for name in ("kind", "question", "answer") if not hasattr(env.params, name)]
    if missing:
        raise UserError(
            f"mae gives texts their beginning by the parameter '{missing[0]}', which '{env.name}' "
            "lacks; see envs.language.judged_sums."
        )
    return env.params


def role_rewards(h: Any, quality: Array, score: Array, form: Array, posed: Array) -> Array:
    """Return what is paid for the first utterances of texts, [P, 3]: of the proposer, the solver
    and the judge, side by side.

    h: hyperparameters, as in `Config`. quality, score: [P, 3], means of verdicts. form: [P, 3].
    posed: bool [P, 3], whether a question was posed.
    """
    difficulty = jnp.where(quality >= h.threshold, 1 - score, 0)
    question = jnp.where(posed, (quality + difficulty + form) / 3, 0)
    each = jnp.stack([question, (score + form) / 2, form])
    return jnp.stack([each[i, :, i] for i in range(len(KINDS))], 1)


def recipe(env: Environment, config: Config) -> Recipe:
    shape = config.groups.shape

    def rewards(net: Net, batch: Batch) -> tuple[Array, Array]:
        """Return what first utterances are paid [P, 3], and which questions are kept, [P, 3]."""
        at_end = lambda name: metric_at_end(batch, name).reshape(shape).mean(-1)
        quality, posed = at_end("quality"), at_end("posed") > 0
        paid = role_rewards(net.hyper, quality, at_end("score"), at_end("form"), posed)
        return paid, posed & (quality >= net.hyper.threshold)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t = batch.transitions
        task: Any = t.task
        first = batch.mask & (t.timestep.tokens["turn"] == 0) & t.extras["leads"] & ~task.missing
        paid = jnp.repeat(rewards(net, batch)[0].reshape(-1), shape[-1])
        paid, advantage = jnp.broadcast_to(paid, first.shape), jnp.zeros(first.shape)
        for kind in KINDS:
            advantage += losses.standardize(paid, first & (task.kind == kind))
        return {"advantage": advantage, "target": first.astype(jnp.float32)}

    once = lambda x: x.target > 0
    plain = on_answers(env, config, judge, (surrogate_loss,), learned=once)

    def update(net: Net, batch: Batch) -> Net:
        paid, kept = rewards(net, batch)
        kept = jnp.where(jnp.asarray(KINDS) == SOLUTION, True, kept)
        leads = jnp.arange(shape[-1]) == 0
        score = (kept[..., None] & leads).reshape(-1).astype(jnp.float32)
        net = plain.update(net, batch).feed(
            score=jnp.broadcast_to(score, batch.transitions.reward.shape)
        )
        posed, solved, judged = paid.mean(0)
        return net.report(
            proposer_reward=posed,
            solver_reward=solved,
            judge_reward=judged,
            kept=kept[:, KINDS.index(PROPOSAL)].mean(),
        )

    return dataclasses.replace(plain, update=update)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `proposing.check`, and if `env` has no verdicts or its texts do not
    begin as they are told."""
    proposing.check(env, config, name)
    check_metrics(env, name, "quality", "score", "form", "posed")
    start_params(env)


mae = AlgorithmBuilder("mae", Config, recipe, check=check)

TINY = SMALL | {"env": "judged_sums", "texts": 4, "samples": 2, "num_shards": 4}
TINY |= {"size": 24, "seeds": 8}
