"""STP (Dong and Ma, 2025, "STP: self-play LLM theorem provers with iterative conjecturing and
proving", arXiv:2502.00212): one policy that conjectures theorems and proves them. In each round it
writes several proofs of given statements and of conjectures, which a checker reads, and then learns
by likelihood what was good. To conjecture it reads a given statement with a proof of its own, which
it has proved at a rate above `seed_rate`, and a lemma that this proof invokes, or none.

- Right proofs of statements that the last rounds proved at a rate of `proof_rate` or less are
  learned, those of a statement with a total weight of 1, and less for long ones.
- Conjectures of the last round are learned that are barely provable: a rate above 0 and below
  `conjecture_rate`, new, and none of the given. One of whose right proofs none invokes its lemma
  counts as conjectured without a lemma.
- Of the conjectures with one lemma the share `inelegant` is left out whose shortest proofs are the
  shortest for the length of their statement.
- The others are matched to the given statements that were never proved: each of those, in a random
  order, goes to the conjecture whose features are most similar, and a conjecture that has `most`
  times its share gets no more. What it was matched to is the weight of a conjecture. Features are
  the mean of the policy's last ones over the statement.

As in the authors' code, with its choices and numbers. Given statements that were proved are seldom
asked for again (`ask_again`). Other than there, a round has a fixed number of statements: the given
ones are drawn (there all are asked for), and a seed is drawn with its lemma in place of a limit on
each lemma. The seed's proof is the last right one, equal proofs are found within a group alone,
lengths count tokens and not characters, and the time that the checker takes has no weight. The step
size is not warmed up, conjectures that were proved before are proved once more and not learned, and
their last phase, in which the first policy is trained anew on all rounds, is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import (
    Evaluation,
    Sample,
    decisions,
    evaluate,
    on_episodes,
)
from jaxrl.algorithms.tokens.shared.outcomes import metric_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.core import memory, trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Source, Tasks, Transition, Tree, struct
from jaxrl.envs.language.posed_theorems import END, LEMMA_PLACE, NONE, PROOF, PROVE, lemma_of
from jaxrl.envs.language.posed_theorems import Params as Theorems
from jaxrl.envs.timesteps import text_steps
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import Optimizer, Passes
from jaxrl.kit.state import State
from jaxrl.sources import as_trees, episodes, recent
from jaxrl.sources.rollouts import check_shards
from jaxrl.tasks import repeat


@group
class Statements:
    """Statements of a round, and proofs of each."""

    given: int = static(32, low=1, high=MANY)
    """Number of given statements in a round."""
    conjectures: int = static(32, low=0, high=MANY)
    """Number of conjectures in a round. More given statements take their place while no statement
    is proved often enough to conjecture from."""
    proofs: int = static(32, low=1, high=MANY)
    """Number of proofs that are written for each statement. 32, and 64 in the first round: the
    authors' code."""
    rounds: int = static(3, low=1, high=MANY)
    """Number of rounds whose proofs are learned, the last ones."""
    seed_rate: float = static(0.35, low=0, high=1)
    """Rate of right proofs above which a given statement is a seed of conjectures."""
    ask_again: float = static(0.05, low=0, high=1)
    """Weight of a given statement that was proved at a rate of `seed_rate` or more in the draw of
    those that are asked for; that of the others is 1."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the statements: the most devices that can share a run."""

    @property
    def number(self) -> int:
        """Number of statements in a round (N)."""
        return self.given + self.conjectures

    @property
    def num_envs(self) -> int:
        """Number of texts in a round."""
        return self.number * self.proofs

    def source(self, env: Environment) -> Source:
        """Return a source of the texts of the last rounds, the proofs of a statement side by
        side."""
        check_shards(self.num_shards, statements=self.number)
        tasks = repeat(ask(env, self), self.proofs)
        played = episodes(env, self.num_envs, tasks, self.num_shards)
        return recent(as_trees(played, (1, self.proofs), (0, 1)), self.rounds)


@group
class Config(Tokens):
    """Settings of STP: one policy that conjectures theorems and proves them, by expert iteration
    (arXiv:2502.00212). The defaults are those of the authors' code, but for the sizes of a
    round."""

    groups: Statements = Statements()
    passes: Passes = Passes(epochs=1, minibatches=4, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=5e-5, beta2=0.95, eps=1e-5, max_grad_norm=1.0)
    """Optimizer settings. Adam, step size, its betas and epsilon: the authors' code."""
    new_optimizer: bool = True
    """Begin each round with a new state of the optimizer."""
    proof_rate: float = hyper(0.5, low=0, high=1)
    """Rate of right proofs up to which those of a statement are learned."""
    conjecture_rate: float = hyper(0.25, low=0, high=1)
    """Rate of right proofs below which a conjecture is learned."""
    length_weight: float = hyper(0.001, low=0)
    """Rate at which the weight of a proof falls with its length: exp(-length_weight * tokens)."""
    inelegant: float = hyper(0.2, low=0, below=1)
    """Share of the conjectures of each lemma that is left out, those with the shortest proofs for
    the length of their statement."""
    most: float = hyper(4.0, above=0)
    """Weight of a conjecture from which it is matched to no more statements."""
    history: int = static(4096, low=1, high=MANY)
    """Number of conjectures that are remembered as proved."""


# ------------------------------------------------------------------------------ what is asked for


@struct
class Asked:
    """Id of a task: the place of a given statement, whether it is to be proved (else it is a seed),
    and the lemma of a conjecture."""

    statement: Array
    given: Array
    lemma: Array


@struct
class Progress:
    """State of the tasks: the environment's parameters, the best rate of right proofs of each given
    statement, [S], and the last right proof, int32 [S, K], -1 before the first one."""

    params: Tree
    rate: Array
    proof: Array


def write_down(t: Transition, here: Array, length: int, fill: int) -> Array:
    """Return the tokens that were written at some steps of texts, int32 [B, length], filled up with
    `fill`.

    here: bool [T, B], these steps; those beyond `length` are dropped.
    """
    place = jnp.where(here, jnp.cumsum(here, 0) - 1, length)
    column = jnp.broadcast_to(jnp.arange(here.shape[1]), here.shape)
    blank = jnp.full((here.shape[1], length), fill, jnp.int32)
    return blank.at[column, place].set(t.action.astype(jnp.int32), mode="drop")


def seed_weights(progress: Progress, lemmas: int, seed_rate: float) -> Array:
    """Return how often each given statement is the seed of a conjecture with each lemma, the last
    one no lemma, [S, R + 1].

    All lemmas that its proof invokes count alike, and no lemma half as often.
    """
    steps = jnp.where((progress.proof >= 0) & (progress.proof < 2 * lemmas), progress.proof, -1)
    invoked = (steps[..., None] % lemmas == jnp.arange(lemmas)) & (steps[..., None] >= 0)
    weight = jnp.concatenate([invoked.any(1), jnp.ones((len(steps), 1))], 1)
    weight = weight * jnp.where(jnp.arange(lemmas + 1) < lemmas, 1.0, 0.5)
    return jnp.where((progress.rate > seed_rate)[:, None], weight, 0.0)


def ask(env: Environment, config: Statements) -> Tasks:
    """Return the tasks of a round: given statements to be proved, then seeds of conjectures."""
    params: Theorems = env.params
    count, steps = len(params.statements.tokens), len(params.proof)
    lemmas = int(lemma_of(env.vocabulary).max()) + 1
    first_step = env.vocabulary.index("A")
    end = len(env.vocabulary) - 1

    def init(key: Key, policy: Any, hyper: Any) -> Progress:
        none = jnp.full((count, steps), -1, jnp.int32)
        return Progress(trees.strong(params), jnp.zeros(count), none)

    def sample(progress: Progress, key: Key, n: int) -> Asked:
        given_key, seed_key = jax.random.split(key)
        often = progress.rate < config.seed_rate
        weight = jnp.log(jnp.where(often, 1.0, config.ask_again))
        order = jnp.argsort(-(weight + jax.random.gumbel(given_key, (count,))))
        drawn = order[jnp.arange(n) % count]
        weight = seed_weights(progress, lemmas, config.seed_rate)
        seeds = jax.random.categorical(seed_key, jnp.log(weight.reshape(-1)), shape=(n,))
        given = (jnp.arange(n) < config.given) | ~(weight > 0).any()
        statement = jnp.where(given, drawn, seeds // (lemmas + 1))
        lemma = jnp.where(given, lemmas, seeds % (lemmas + 1))
        return Asked(statement.astype(jnp.int32), given, lemma.astype(jnp.int32))

    def with_task(progress: Progress, task: Asked) -> Theorems:
        return dataclasses.replace(
            progress.params,
            given=task.given,
            statement=task.statement,
            lemma=task.lemma,
            proof=progress.proof[task.statement],
        )

    def update(progress: Progress, policy: Any, t: Transition) -> Progress:
        played = jnp.cumsum(t.done, 0) - t.done == 0
        tokens, task = t.timestep.tokens, jax.tree.map(lambda x: x[0], t.task)
        metrics: Any = t.next_timestep.metrics
        right = jnp.where(played & t.done, metrics["success"], 0).sum(0) > 0
        right = right & task.given
        place = jnp.where(task.given, task.statement, count)
        add = lambda x: jax.ops.segment_sum(x.astype(jnp.float32), place, count + 1)[:count]
        rate = add(right) / jnp.maximum(add(task.given), 1)
        here = played & tokens["decision"] & (tokens["turn"] == 1)
        proof = write_down(t, here, steps, end) - first_step
        proof = jnp.where(proof < 2 * lemmas, proof, 2 * lemmas)
        last = jax.ops.segment_max(jnp.where(right, jnp.arange(len(right)), -1), place, count + 1)
        last = last[:count]
        proof = jnp.where((last >= 0)[:, None], proof[jnp.maximum(last, 0)], progress.proof)
        return Progress(progress.params, jnp.maximum(progress.rate, rate), proof)

    return Tasks("given statements and seeds", init, sample, with_task, update, by_place=True)


# ------------------------------------------------------------------------------- what is learned


@struct
class Round:
    """Statements of the last rounds, N of them, and G proofs of each.

    tokens: int32 [N, U], filled up with END. there: bool [N], whether the round was played.
    newest: bool [N], whether it was the last round. conjectured: bool [N]. lemma: int32 [N], R for
    none. listed: bool [N], whether the statement is given. right, invokes: bool [N, G], whether a
    proof is right, and invokes the lemma too. proof: int32 [N, G, K + 1], filled up with END.
    """

    tokens: Array
    there: Array
    newest: Array
    conjectured: Array
    lemma: Array
    listed: Array
    right: Array
    invokes: Array
    proof: Array


@struct
class Learned:
    """Progress of the agent: which given statements were ever proved, bool [S], and the last
    conjectures that were, int32 [H, U], the latest first, of which there are `count`."""

    proved: Array
    conjectures: Array
    count: Array


def equal(x: Array, y: Array) -> Array:
    """Return which of two lists of texts [N, U] and [M, U] are equal, bool [N, M]."""
    return (x[:, None] == y[None]).all(-1)


def lengths(tokens: Array, end: int) -> Array:
    """Return the number of tokens before the first END, [...]."""
    return (jnp.cumsum(tokens == end, -1) == 0).sum(-1)


def rates(x: Round, same: Array) -> Array:
    """Return the rate of right proofs of each statement [N] over all that are the same [N, N]."""
    return (same * x.right.mean(-1)).sum(-1) / jnp.maximum(same.sum(-1), 1)


def weigh_proofs(x: Round, h: Any, end: int) -> Array:
    """Return the weight of each proof, [N, G]; 0 for those that are not learned.

    h: hyperparameters, as in `Config`.
    """
    same = equal(x.tokens, x.tokens) & x.there & x.there[:, None]
    alike = (x.proof[:, :, None] == x.proof[:, None]).all(-1) & x.right[:, None]
    distinct = x.right & ~jnp.tril(alike, -1).any(-1)
    count = (same * distinct.sum(-1)).sum(-1)
    weight = jnp.exp(-h.length_weight * lengths(x.proof, end)) / jnp.maximum(count, 1)[:, None]
    return jnp.where(distinct & (rates(x, same) <= h.proof_rate)[:, None], weight, 0.0)


def barely_provable(x: Round, learned: Learned, h: Any, none: int) -> tuple[Array, Array, Array]:
    """Return which conjectures are barely provable, bool [N], their lemmas, int32 [N], `none` where
    no right proof invokes the lemma, and which are proved for the first time, bool [N].

    The first of equal ones counts, those whose lemma is invoked before others.
    """
    same = equal(x.tokens, x.tokens) & x.newest & x.newest[:, None]
    rate, number = rates(x, same), jnp.arange(len(x.tokens))
    known = jnp.arange(len(learned.conjectures)) < learned.count
    before = (equal(x.tokens, learned.conjectures) & known).any(-1)
    new = x.newest & x.there & x.conjectured & ~x.listed & ~before & x.right.any(-1)
    invoked = (x.right & x.invokes).any(-1)
    order = number + jnp.where(invoked, 0, len(number))
    new = new & ~(same & new & (order < order[:, None])).any(-1)
    return new & (rate < h.conjecture_rate), jnp.where(invoked, x.lemma, none), new


def elegant(ratio: Array, lemma: Array, among: Array, share: Array | float) -> Array:
    """Return which conjectures are kept, bool [N]: all but the `share` of those with the same lemma
    whose ratios are the lowest. One that is alone with its lemma is kept.

    ratio: [N], length of the shortest proof for that of the statement. among: bool [N], conjectures
    to choose from.
    """
    peers = (lemma == lemma[:, None]) & among
    size = peers.sum(-1)
    cutoff = jnp.floor(size * share).astype(jnp.int32)
    not_above = (peers & (ratio <= ratio[:, None])).sum(-1)
    return among & ((not_above > cutoff) | (size < 2))


def match(key: Key, similarity: Array, among: Array, wanted: Array, most: Array | float) -> Array:
    """Return the weights of conjectures [N], with a sum of their number or 0 if nothing is wanted.

    similarity: [N, S], to the given statements. among: bool [N], the conjectures. wanted: bool [S],
    the statements that conjectures are matched to.
    """
    share = among.sum() / jnp.maximum(wanted.sum(), 1)

    def give(weight: Array, place: Array) -> tuple[Array, None]:
        free = among & (weight < most)
        best = jnp.argmax(jnp.where(free, similarity[:, place], -jnp.inf))
        return weight.at[best].add(jnp.where(wanted[place] & free.any(), share, 0.0)), None

    order = jax.random.permutation(key, len(wanted))
    return jax.lax.scan(give, jnp.zeros(len(among)), order)[0]


def statement_features(net: Net, tokens: Array, end: int) -> Array:
    """Return the policy's features of statements [N, U], of length 1: the mean over what the prover
    reads, [N, D]."""
    signs = lambda sign: jnp.full((len(tokens), 1), end - END + sign, jnp.int32)
    closed = jnp.where(jnp.cumsum(tokens == end, -1) == 1, signs(PROOF), tokens)
    text = jnp.concatenate([signs(PROVE), closed], 1).T
    inside = jnp.arange(len(text))[:, None] < lengths(tokens, end) + 2
    blank = memory.shrink(net.network("actor_critic").initial(len(tokens)))
    x = net.actor_critic(text_steps(text), blank, method="hidden")
    mean = jnp.where(inside[..., None], x, 0.0).sum(0) / inside.sum(0)[:, None]
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), 1e-8)


def remember(learned: Learned, x: Round, new: Array, places: Array) -> Learned:
    """Return the progress after a round: with the conjectures that are `new`, bool [N], and the
    given statements that were proved.

    places: int32 [N], of the given statements; S for a conjecture.
    """
    texts = jnp.concatenate([x.tokens, learned.conjectures])
    known = jnp.arange(len(learned.conjectures)) < learned.count
    valid = jnp.concatenate([new, known])
    kept = jnp.argsort(~valid, stable=True)[: len(learned.conjectures)]
    right = x.right.any(-1) & x.newest
    proved = learned.proved.at[jnp.where(right, places, len(learned.proved))].set(True, mode="drop")
    return Learned(proved, texts[kept], jnp.minimum(valid.sum(), len(kept)).astype(jnp.int32))


@loss("actor_critic", name="loss")
def weighted_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the cross-entropy with the tokens that are learned; their weights are the mean's."""
    now: Evaluation = evaluate(net, x, as_sampled=False)
    accuracy = now.policy.mode() == x.action
    value = -now.log_prob - net.hyper.entropy_weight * now.entropy
    return LossOutput(value, {"entropy": now.entropy, "token_accuracy": accuracy})


def recipe(env: Environment, config: Config) -> Recipe:
    sizes, end = config.groups, len(env.vocabulary) - 1
    rounds, given = sizes.rounds, jnp.asarray(env.params.statements.tokens, jnp.int32)
    longest, steps = given.shape[1], len(env.params.proof)
    lemmas = int(lemma_of(env.vocabulary).max()) + 1
    none_token = end - END + NONE

    def by_statement(x: Array) -> Array:
        """Return texts [B, ...] by statement and proof, [N, G, ...]; N = rounds * statements."""
        x = x.reshape(sizes.number, sizes.proofs, rounds, *x.shape[1:])
        return jnp.moveaxis(x, 2, 1).reshape(-1, sizes.proofs, *x.shape[3:])

    def by_text(x: Array) -> Array:
        """Return what statements and proofs have, [N, G], by text, [B]."""
        x = x.reshape(sizes.number, rounds, sizes.proofs)
        return jnp.moveaxis(x, 1, 2).reshape(-1)

    def read(batch: Batch) -> Round:
        t, mask = batch.transitions, batch.mask
        assert mask is not None and t.timestep.tokens is not None
        decided, turn = decisions(t.timestep, mask), t.timestep.tokens["turn"]
        written = lambda k, size: write_down(t, decided & (turn == k), size, end)
        one = lambda x: by_statement(x)[:, 0]
        of_end = lambda name: by_statement(metric_at_end(batch, name) > 0)
        task: Any = jax.tree.map(lambda x: x[0], t.task)
        last = jnp.arange(rounds) == rounds - 1
        there = one(mask[0])
        return Round(
            one(written(0, longest)),
            there,
            jnp.tile(last, sizes.number) & there,
            one(~task.given) & there,
            one(task.lemma),
            of_end("listed").any(-1),
            of_end("success"),
            of_end("invokes"),
            by_statement(written(1, steps + 1)),
        )

    def choose(net: Net, x: Round, batch: Batch) -> tuple[Array, Array, Array, Learned]:
        """Return the weights of proofs [N, G] and of conjectures [N], which of those lose their
        lemma, bool [N], and the agent's progress."""
        task = jax.tree.map(lambda y: by_statement(y[0])[:, 0], batch.transitions.task)
        places = jnp.where(task.given, task.statement, len(given))
        barely, lemma, new = barely_provable(x, net.extra, net.hyper, lemmas)
        after = remember(net.extra, x, new, places)
        same = equal(x.tokens, x.tokens) & x.there & x.there[:, None]
        shortest = jnp.where(x.right, lengths(x.proof, end), steps + 1).min(-1)
        shortest = jnp.where(same, shortest, steps + 1).min(-1)
        ratio = shortest / jnp.maximum(lengths(x.tokens, end), 1)
        kept = elegant(ratio, lemma, barely, net.hyper.inelegant)
        similar = statement_features(net, x.tokens, end) @ statement_features(net, given, end).T
        key = net.key("matching")
        weight = match(key, similar, kept, ~after.proved, net.hyper.most)
        return weigh_proofs(x, net.hyper, end), weight, lemma != x.lemma, after

    plain = on_episodes(env, config, (weighted_loss,))

    def update(net: Net, batch: Batch) -> Net:
        batch = proposing.join_windows(batch, rounds)
        assert batch.mask is not None
        x = read(batch)
        proofs, conjectures, without, after = choose(net, x, batch)
        t, leads = batch.transitions, jnp.arange(sizes.proofs) == 0
        turn = t.timestep.tokens["turn"]
        posed = by_text(jnp.where(leads, conjectures[:, None], 0.0))
        weight = jnp.where(turn == 0, posed, by_text(proofs))
        cleared = by_text(jnp.broadcast_to(without[:, None], proofs.shape)) & (posed > 0)
        seen = t.timestep.observation
        seen = seen.at[LEMMA_PLACE].set(jnp.where(cleared, none_token, seen[LEMMA_PLACE]))
        timestep = dataclasses.replace(t.timestep, observation=seen)
        mask = decisions(timestep, batch.mask) & (weight > 0)

        def step(net: Net, minibatch: Minibatch) -> Net:
            mask, sample = minibatch.mask, minibatch.x
            assert mask is not None  # the window has one
            total = jnp.where(mask, sample.advantage, 0.0).sum()
            share = sample.advantage * mask.sum() / jnp.maximum(total, 1e-8)
            return net.descend(weighted_loss, sample, mask=mask, weight=share)

        if config.new_optimizer:
            net = net.restart(actor_critic=net.parts["actor_critic"].params)
        sample = Sample(timestep, t.action, advantage=weight)
        net = net.epochs(config.passes, Minibatch(sample, mask), step, unit=SEQUENCE)
        posing = x.conjectured & x.newest
        share = lambda y: (y & posing).sum() / jnp.maximum(posing.sum(), 1)
        net = net.report(
            proved=after.proved.mean(),
            proofs_learned=(proofs > 0).sum().astype(jnp.float32),
            conjectures_learned=(conjectures > 0).sum().astype(jnp.float32),
            conjectures_proved=share(x.right.any(-1)),
            conjectures_listed=share(x.listed),
        )
        return net.replace(extra=after).update_targets()

    blank = jnp.full((config.history, longest), end, jnp.int32)
    extra = Learned(jnp.zeros(len(given), bool), blank, jnp.int32(0))
    return dataclasses.replace(plain, update=update, extra=extra, adopt=begin_with)


def begin_with(own: State, other: Any) -> Any:
    """Begin with the policy of another algorithm, with nothing proved: an `adopt`."""
    if not isinstance(other, State) or isinstance(other.extra, Learned):
        return other  # another run of this algorithm, or one that will not fit
    return dataclasses.replace(other, extra=own.extra)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `proposing.check`, and for an environment that is not `posed_theorems`,
    for more given statements in a round than there are, and for an early stop."""
    proposing.check(env, config, name)
    if not isinstance(env.params, Theorems):
        raise UserError(f"{name} proves statements of 'posed_theorems', and not '{env.name}'.")
    count = len(env.params.statements.tokens)
    if config.groups.given > count:
        raise UserError(f"groups.given is {config.groups.given}; there are {count} statements.")
    if config.passes.early_stop:
        raise UserError(f"{name} learns from earlier rounds too: leave passes.early_stop off.")


stp = AlgorithmBuilder("stp", Config, recipe, check=check)

TINY = SMALL | {"env": "posed_theorems", "given": 4, "conjectures": 4, "proofs": 4, "rounds": 2}
TINY |= {"env_params": {"letters": 2, "length": 2, "lemmas": 2, "steps": 2, "count": 5}}
TINY |= {"num_shards": 4, "history": 6, "seed_rate": 0.0, "conjecture_rate": 1.0}
