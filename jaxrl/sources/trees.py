"""Trees of texts: episodes that share their beginnings and part after every few tokens, or where
another utterance begins.

source = as_trees(episodes(start_key(env), 2 * 36, repeat(prompts, 36)), (6, 6), segment=100)
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, Source, TimeStep, Tree
from jaxrl.sources.demonstrations import played_through


def as_trees(
    source: Source,
    branching: tuple[int, ...],
    segment: int | tuple[int, ...],
    part: str = "turn",
) -> Source:
    """Let the episodes of `source` be the paths of trees, from the root to each leaf.

    A tree has branching[0] first segments, each of them branching[1] second ones, and so on (D
    levels). A segment is `segment` decisions long (M), but the last one goes on to the end of the
    episode; an episode that ends early is at its leaf, as are all others that would have begun like
    it. The L = product(branching) paths of a tree lie side by side, in the order of their branches.

    source: whole episodes, in groups of L with the same start. Nothing else in them may be random.
    segment: number of decisions, or the utterances with which the segments begin, D of them, from 0
        and rising: by `TimeStep.tokens["turn"]`.
    part: another channel of `TimeStep.tokens` that numbers the segments' beginnings, such as
        `reader`.

    Transitions get two extras, [T, B]: `level`, int32, the segment that a step is in, from 0 to
    D - 1, and `leads`, whether this is the first of the paths that share the step; the others
    repeat what it does. All B paths are simulated and counted from their beginnings on. Source: Guo
    et al., 2025, "Segment policy optimization", arXiv:2505.23564 (SPO-tree). Raises `UserError` for
    sizes below 1, utterances that do not rise, groups that are no trees, and a source on the host.
    """
    leaves = math.prod(branching)
    by_utterance, levels = isinstance(segment, tuple), range(len(branching))
    begins = segment if isinstance(segment, tuple) else tuple(segment * level for level in levels)
    shortest = segment if isinstance(segment, int) else 1
    if not branching or min(branching) < 1 or shortest < 1:
        raise UserError(f"branching is {branching} and segment {segment}; all must be at least 1.")
    if len(begins) != len(branching) or begins[0] or sorted(set(begins)) != list(begins):
        raise UserError(
            f"segment is {segment}; it must name an utterance for each of the {len(branching)} "
            "levels, the first one 0 and each later than the one before."
        )
    if source.num_envs % leaves:
        raise UserError(f"{source.num_envs} episodes do not form trees of {leaves} paths.")
    below = jnp.array([math.prod(branching[level + 1 :]) for level in levels])

    def share(policy: Policy) -> Policy:
        def act(
            state: Tree, timestep: TimeStep, memory: Tree, key: jax.Array, greedy: bool
        ) -> tuple[Tree, Tree, dict[str, Tree]]:
            written, inner = memory
            action, inner, extras = policy.act(state, timestep, inner, key, greedy)
            at = written
            if by_utterance:
                assert timestep.tokens is not None
                at = timestep.tokens[part]
            level = (at[:, None] >= jnp.array(begins)).sum(-1) - 1
            number = jnp.arange(len(written))
            leader = number - number % below[level]
            action, extras = jax.tree.map(lambda x: x[leader], (action, extras))
            decision = True if timestep.tokens is None else timestep.tokens["decision"]
            extras = {**extras, "level": level, "leads": leader == number}
            return action, (written + decision, inner), extras

        return Policy(act, lambda n: (jnp.zeros(n, jnp.int32), policy.memory(n)), policy.state)

    return played_through(source, share)
