"""Pairs of answers that a policy is more and less sure of, found step by step by simulating how
each candidate for the next step would go on.

source = foresight_pairs(episodes(start_key(env), 2 * 32, repeat(prompts, 2), keep_states=True),
                         env, beams=2, rollouts=4, steps=4, step_length=6, temperature=0.1)
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Key, Source
from jaxrl.sources.branches import play_on
from jaxrl.sources.pairs import take_answers
from jaxrl.sources.rollouts import window


def number_decisions(decision: Array) -> Array:
    """Return how many decisions of a text precede each of its tokens, int32 [T, B].

    decision: bool [T, B], which tokens the policy wrote.
    """
    return jnp.cumsum(decision, 0) - decision


def foresight_scores(log_prob: Array, decision: Array, step: Array, step_length: int) -> Array:
    """Return the mean log-probability of what follows a step of each text, [B]; that of the step
    itself where nothing follows, and of the whole text where there is no such step.

    log_prob: [T, B]. decision: as in `number_decisions`. step: number of the step, from 0, int32.
    """
    number = number_decisions(decision)
    begun = decision & (number >= step * step_length)
    after = decision & (number >= (step + 1) * step_length)
    counts = jnp.where(after.any(0), after, jnp.where(begun.any(0), begun, decision))
    return jnp.where(counts, log_prob, 0).sum(0) / jnp.maximum(counts.sum(0), 1)


def draw_beams(key: Key, score: Array, temperature: float, beams: int) -> Array:
    """Draw `beams` (M) of the candidates of each prompt, [P, M], without replacement and with
    probabilities that grow with exp(score / temperature).

    score: [P, C].
    """
    noise = jax.random.gumbel(key, score.shape)
    return jax.lax.top_k(score / temperature + noise, beams)[1]


def draw_pair(key: Key, score: Array, temperature: float) -> Array:
    """Return the best candidate of each prompt, and another one drawn with probabilities that grow
    with exp(score / temperature), as places int32 [P, 2].

    score: [P, C], at least two candidates.
    """
    best = jnp.argmax(score, -1)
    others = jnp.arange(score.shape[1]) != best[:, None]
    drawn = jax.random.categorical(key, jnp.where(others, score / temperature, -jnp.inf))
    return jnp.stack([best, drawn], -1)


def foresight_pairs(
    source: Source,
    env: Environment,
    *,
    beams: int,
    rollouts: int,
    steps: int,
    step_length: int,
    temperature: float,
) -> Source:
    """Make a pair of answers for each of `steps` (K) steps of the answers to each prompt, by what
    the policy that plays is sure of.

    There are M = `beams` texts of each prompt. For each step, N = `rollouts` candidates are
    sampled in each, and played on to the end. A candidate's score is the mean log-probability of
    what follows the step in that simulated future. The text of the candidate with the highest score
    is chosen, the rejected one is drawn from the others, and M candidates are drawn to go on from,
    all with probabilities that grow with exp(score / temperature).

    source: whole episodes of `env` with `keep_states`, M of each prompt side by side. Nothing else
        in them may be random.
    env: what they are played in, with its own parameters.
    step_length: number of the policy's tokens in a step.

    A batch holds whole episodes [T, 2 P K], those of a pair side by side, the chosen one first. The
    extra `advantage` [T, 2 P K] is by how much a text's score exceeds that of the candidate that
    its beam went on from, 0 at first. The two texts of a pair may be the same. A text that ends
    within a step is scored by that step; one that has ended before keeps its place with the score
    of the whole. Logs `foresight`, the mean score of chosen texts.

    P M (1 + K N) episodes of T steps are simulated and counted. Batches have no memory and no tail.
    Raises `UserError` for sizes below 1 or a single candidate, for episodes that do not divide into
    groups of M, and for a source on the host. Source: Xu et al., 2025, "Genius: a generalizable and
    purely unsupervised self-training framework for advanced reasoning", arXiv:2504.08672,
    section 2.2, with all candidates as its equations 2, 3 and 5 have them.
    """
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, whose states cannot be copied.")
    candidates = beams * rollouts
    if min(beams, rollouts, steps, step_length) < 1 or candidates < 2:
        raise UserError(
            f"beams is {beams}, rollouts {rollouts}, steps {steps} and step_length {step_length}; "
            "all must be at least 1, and there must be two candidates."
        )
    if source.num_envs % beams:
        raise UserError(f"{source.num_envs} episodes do not divide into groups of {beams} beams.")
    times = 1 + steps * rollouts

    def collect(state, policy, key):
        play_key, key = jax.random.split(key)
        state, batch, metrics = window(source, state, policy, play_key)
        t, mask = batch.transitions, batch.mask
        assert mask is not None

        def look(carry, now):
            (t, mask, last), (step, key) = carry, now
            keys = jax.random.split(key, 3)
            extras = dict(t.extras)
            states = extras.pop("env_state")
            before = Batch(dataclasses.replace(t, extras=extras), batch.env_steps, mask=mask)
            decision = mask & t.timestep.tokens["decision"]
            open_ = decision & (number_decisions(decision) == step * step_length)
            begin = jnp.where(open_.any(0), open_.argmax(0), len(open_))
            begin = jnp.broadcast_to(begin, (rollouts, len(begin)))
            t, mask = play_on(env, policy, before, states, begin, keys[0], keep_states=True)
            decision = mask & t.timestep.tokens["decision"]
            score = foresight_scores(t.extras["log_prob"], decision, step, step_length)
            score = score.reshape(-1, candidates)
            advantage = score - jnp.repeat(last, rollouts, -1)
            texts = Batch(t, batch.env_steps, mask=mask)
            pair = draw_pair(keys[1], score, temperature)
            chosen = take_answers(without_states(texts, advantage), pair, candidates)
            kept = draw_beams(keys[2], score, temperature, beams)
            texts = take_answers(texts, kept, candidates)
            best = jnp.take_along_axis(score, pair[:, :1], 1).mean()
            score = jnp.take_along_axis(score, kept, 1)
            carry = texts.transitions, texts.mask, score
            return carry, (chosen.transitions, chosen.mask, best)

        t = dataclasses.replace(t, task=())
        none = jnp.zeros((source.num_envs // beams, beams))
        numbers = jnp.arange(steps), jax.random.split(key, steps)
        found = jax.lax.scan(look, (t, mask, none), numbers)[1]
        pairs, best = found[:2], found[2]
        # [K, T, 2 P] -> [T, P, K, 2] -> [T, 2 P K]
        by_prompt = lambda x: jnp.moveaxis(x.reshape(*x.shape[:2], -1, 2, *x.shape[3:]), 0, 2)
        flat = lambda x: x.reshape(x.shape[0], -1, *x.shape[4:])
        t, mask = jax.tree.map(lambda x: flat(by_prompt(x)), pairs)
        metrics = {**metrics, "foresight": m.mean(best.mean())}
        return state, Batch(t, times * batch.env_steps, mask=mask), metrics

    return dataclasses.replace(
        source,
        name=f"foresight_pairs({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=times * source.env_steps,
    )


def without_states(texts: Batch, advantage: Array) -> Batch:
    """Return texts [T, P C] with the extra `advantage` of each, [P, C], in place of the states."""
    t = texts.transitions
    each = jnp.broadcast_to(advantage.reshape(-1), t.reward.shape)
    extras = {n: x for n, x in t.extras.items() if n != "env_state"} | {"advantage": each}
    return dataclasses.replace(texts, transitions=dataclasses.replace(t, extras=extras))
