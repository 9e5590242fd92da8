"""Answers that a policy judges and refines itself, in a search over refinements of refinements.

source = episodes(env, 64, keep_states=True)
source = refined_pairs(source, env, branch=3, beams=2, depth=3, votes=5, yes=8, no=9)
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
)
from jaxrl.sources.branches import play_on
from jaxrl.sources.rollouts import window
from jaxrl.sources.utterances import said_by_turn

ANSWER, JUDGMENT, REFINEMENT = range(3)  # turns of a text


def say_first(policy: Policy, said: Array, turns: Array) -> Policy:
    """Return a policy that says given utterances in the first `turns` of texts, and then what
    `policy` says.

    said: int32 [N, K, U], utterances of each of N texts. turns: int32 [N].
    """

    def act(
        state: Tree, timestep: TimeStep, memory: Tree, key: Key, greedy: bool
    ) -> tuple[Array, Tree, dict[str, Tree]]:
        inner, said, turns = state
        (last, place), own = memory
        own_action, own, extras = policy.act(inner, timestep, own, key, greedy)
        tokens = timestep.tokens
        assert tokens is not None
        turn = tokens["turn"]
        place = jnp.where(turn == last, place, 0)
        row = jnp.arange(len(said))
        word = said[row, turn, jnp.minimum(place, said.shape[2] - 1)]
        given = tokens["decision"] & (turn < turns)
        action = jnp.where(given, word, own_action).astype(own_action.dtype)
        return action, ((turn, place + tokens["decision"]), own), extras

    blank = lambda n: ((jnp.zeros(n, jnp.int32),) * 2, policy.memory(n))
    return Policy(act, blank, (policy.state, said, turns))


def best_refinement(value: Array, enough: float) -> tuple[Array, Array]:
    """Return the refinement that a search ends with, int32 [B], and whether it is good: the best of
    the first level in which one has a value above `enough`, or else the first one.

    value: [B, D, C], of C candidates of each of D levels.
    """
    best = value.max(-1)
    good = best > enough
    level = jnp.argmax(good, -1)
    row = jnp.arange(len(value))
    place = jnp.argmax(value[row, level], -1)
    return level * value.shape[2] + place, good.any(-1)


def refined_pairs(
    source: Source,
    env: Environment,
    *,
    branch: int,
    beams: int,
    depth: int,
    votes: int,
    yes: int,
    no: int,
    enough: float = 0.5,
) -> Source:
    """Let a policy judge its answers, and refine those that it judges to be wrong in a tree search.

    A text has three turns: an answer, a judgment of one token (`yes` or `no`), and a refinement. An
    answer's value is the share of `votes` (J) sampled judgments that are `yes`. If no more than
    `enough` are, it is the root of a search by breadth: in each of `depth` (D) levels, each of
    `beams` (F) nodes is judged `no` and refined `branch` (W) times, and the F refinements with the
    highest values are the nodes of the next level. The search ends with the best refinement of the
    first level in which one has a value above `enough`. (In the first level the root takes the
    place of all F nodes, so that it is refined F W times.)

    source: whole episodes of `env` with `keep_states`, B of them. env: what they are played in;
        nothing in it may be random after the beginning.

    A batch holds whole episodes [T, 4 B], of each answer four: the refinement that the search ended
    with as an answer; the root as an answer; the refined node, the judgment `no` and this
    refinement; and an answer with its judgment, drawn from the root and all refinements whose votes
    disagree, by their majority. The extra `learned` [T, 4 B] marks the tokens of the answer in the
    first two, of judgment and refinement in the third and of the judgment in the fourth; nothing
    where the root was judged right, no refinement was good, or no votes disagree. Logs
    `judged_wrong`, the share of answers that were searched from, `refined`, the share of those with
    a good refinement, and `kept_letters`, the share of tokens in which it agrees with the root.

    B (5 + J + F W D (1 + J)) episodes of T steps are simulated and counted. Batches have no memory
    and no tail. Raises `UserError` for sizes below 1, and for a source on the host. Source: Cheng
    et al., 2024, "SPaR: self-play with tree-search refinement to improve instruction-following in
    large language models", arXiv:2412.11605, and its code.
    """
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, whose states cannot be copied.")
    if min(branch, beams, depth, votes) < 1:
        raise UserError(
            f"branch is {branch}, beams {beams}, depth {depth} and votes {votes}; all must be at "
            "least 1."
        )
    width = beams * branch
    times = 5 + votes + width * depth * (1 + votes)

    def collect(state, policy, key):
        play_key, root_key, search_key, draw_key, say_key = jax.random.split(key, 5)
        state, batch, metrics = window(source, state, policy, play_key)
        t, mask = batch.transitions, batch.mask
        assert mask is not None
        extras = dict(t.extras)
        states = extras.pop("env_state")
        old = Batch(dataclasses.replace(t, task=(), extras=extras), batch.env_steps, mask=mask)
        count = mask.shape[1]
        root = said_by_turn(t, mask, 3)[:, ANSWER]  # [B, U]

        def say(said: Array, turns: Array, key: Key) -> tuple[Transition, Array]:
            """Play texts with given utterances [B, M, K, U] in their first turns [B, M]."""
            many = said.shape[1]
            flat = lambda x: x.reshape(-1, *x.shape[2:])
            writer = say_first(policy, flat(said), flat(turns))
            return play_on(env, writer, old, states, jnp.zeros((many, count), jnp.int32), key)

        def text(answer: Array, judgment: Array | int, refinement: Array) -> Array:
            """Return the utterances [..., 3, U] of texts [..., U]."""
            judged = jnp.broadcast_to(jnp.asarray(judgment)[..., None], answer.shape)
            return jnp.stack([answer, judged.astype(answer.dtype), refinement], -2)

        def judge(answer: Array, key: Key) -> Array:
            """Return the values [B, M] of answers [B, M, U]."""
            many = jnp.repeat(answer, votes, 1)
            said, running = say(text(many, no, many), jnp.full(many.shape[:2], 1), key)
            judgment = said_by_turn(said, running, 3)[:, JUDGMENT, 0]
            return (judgment == yes).reshape(*answer.shape[:2], votes).mean(-1)

        def expand(nodes: Array, key: Key) -> tuple[Array, tuple[Array, Array, Array]]:
            """Refine nodes [B, F, U]; return those of the next level, and all candidates."""
            refine_key, judge_key = jax.random.split(key)
            parents = jnp.repeat(nodes, branch, 1)
            turns = jnp.full(parents.shape[:2], 2)
            said, running = say(text(parents, no, parents), turns, refine_key)
            words = said_by_turn(said, running, 3)[:, REFINEMENT].reshape(parents.shape)
            value = judge(words, judge_key)
            best = jax.lax.top_k(value, beams)[1]
            kept = jnp.take_along_axis(words, best[..., None], 1)
            return kept, (words, parents, value)

        own = judge(root[:, None], root_key)[:, 0]
        wrong = own <= enough
        nodes = jnp.repeat(root[:, None], beams, 1)
        _, found = jax.lax.scan(expand, nodes, jax.random.split(search_key, depth))
        words, parents, value = (jnp.moveaxis(x, 0, 1) for x in found)  # [B, D, F W, ...]
        place, good = best_refinement(value, enough)
        row, flat = jnp.arange(count), lambda x: x.reshape(count, depth * width, *x.shape[3:])
        final, parent = flat(words)[row, place], flat(parents)[row, place]
        good &= wrong

        every = jnp.concatenate([root[:, None], flat(words)], 1)
        share = jnp.concatenate([own[:, None], jnp.where(wrong[:, None], flat(value), 0.0)], 1)
        mixed = (share > 0) & (share < 1) & (share != 0.5)
        drawn = jax.random.categorical(draw_key, jnp.where(mixed, 0.0, -1e9))
        judgment = jnp.where(share[row, drawn] > 0.5, yes, no)
        judged = every[row, drawn]

        texts = [
            text(final, no, final),
            text(root, no, root),
            text(parent, no, final),
            text(judged, judgment, judged),
        ]
        said = jnp.stack(texts, 1)
        played, running = say(said, jnp.full(said.shape[:2], 3), say_key)
        turn = jnp.where(running & played.timestep.tokens["decision"], 0, -3)
        turn = turn + played.timestep.tokens["turn"]
        kind = jnp.arange(4 * count) % 4
        learned = jnp.select(
            [kind < 2, kind == 2, kind == 3], [turn == ANSWER, turn >= JUDGMENT, turn == JUDGMENT]
        )
        used = jnp.stack([good, good, good, mixed.any(-1)], -1).reshape(-1)
        played = dataclasses.replace(played, extras={"learned": learned & used})
        length = jnp.maximum((learned[:, 1::4]).sum(0), 1)
        letter = jnp.arange(root.shape[1])[:, None] < length
        same = ((final == root).T & letter).sum(0) / length
        metrics = {
            **metrics,
            "judged_wrong": m.mean(wrong.mean()),
            "refined": m.mean(good.astype(jnp.float32), wrong),
            "kept_letters": m.mean(same, good),
        }
        return state, Batch(played, times * batch.env_steps, mask=running), metrics

    return dataclasses.replace(
        source,
        name=f"refined_pairs({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=times * source.env_steps,
    )
