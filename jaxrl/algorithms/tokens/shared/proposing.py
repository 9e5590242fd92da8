"""Problems that a policy poses in the first utterance of a text, and solves in the second, which
begins anew and shows the problem alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, Transition, struct
from jaxrl.kit import group, static
from jaxrl.kit.parts import copy
from jaxrl.kit.state import State
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.speakers import Speakers
from jaxrl.sources import as_trees


@group
class Proposals:
    """Groups of problems, each with a group of answers."""

    prompts: int = static(16, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one group of problems."""
    proposals: int = static(6, low=1, high=MANY)
    """Number of problems (M) that are posed to each prompt."""
    answers: int = static(6, low=1, high=MANY)
    """Number of answers (G) to each problem."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the prompts: the most devices that can share a run."""

    @property
    def num_envs(self) -> int:
        """Number of episodes in an update."""
        return self.prompts * self.proposals * self.answers

    @property
    def shape(self) -> tuple[int, int, int]:
        """P, M and G."""
        return self.prompts, self.proposals, self.answers

    def source(self, env: Environment, solver: int = 1, part: str = "turn") -> Source:
        """Return a source of whole episodes: the answers to a problem side by side, and the
        problems of a prompt.

        solver: utterance with which the solver begins, or its number by another `part` of
            `TimeStep.tokens`, such as `reader`.
        """
        played = Groups(self.prompts, self.proposals * self.answers, self.num_shards).source(env)
        return as_trees(played, (self.proposals, self.answers), (0, solver), part)


def posed_tokens(t: Transition, size: int) -> Array:
    """Return which tokens the problem of each text has, bool [B, V], as the solver reads it: all
    that is read between its beginning and its first decision; none where nothing was posed.

    t: whole episodes [T, B]. size: number of tokens (V).
    """
    tokens = t.timestep.tokens
    played = jnp.cumsum(t.done, 0) - t.done == 0
    begun = played & (jnp.cumsum(tokens["restart"] & (tokens["turn"] == 1), 0) > 0)
    decided = begun & tokens["decision"]
    reads = begun & (jnp.cumsum(decided, 0) - decided == 0)
    return (jax.nn.one_hot(t.observation, size, dtype=bool) & reads[..., None]).any(0)


@struct
class History:
    """The last problems (H): `tokens`, bool [H, V], which tokens each had, the latest first, and
    `count`, int32 [], how many there have been."""

    tokens: Array
    count: Array


def no_history(length: int, size: int) -> History:
    """Return the history of `length` problems (H) over `size` tokens (V), of which none is there
    yet."""
    return History(jnp.zeros((length, size), bool), jnp.zeros((), jnp.int32))


def add(history: History, tokens: Array) -> History:
    """Return the history after problems with these tokens, bool [N, V], too."""
    kept = jnp.concatenate([tokens, history.tokens])[: len(history.tokens)]
    return History(kept, history.count + len(tokens))


def novelty(history: History, tokens: Array, similar: Array | float) -> Array:
    """Return the share of earlier problems to which each problem is not similar, [N]; 1 if there
    are none. Two are similar if the Jaccard index of their tokens is above `similar`.

    tokens: bool [N, V].
    """
    mine, theirs = tokens.astype(jnp.float32), history.tokens.astype(jnp.float32)
    both = mine @ theirs.T
    either = mine.sum(-1, keepdims=True) + theirs.sum(-1) - both
    index = jnp.where(either > 0, both / jnp.maximum(either, 1), 1.0)
    there = jnp.arange(len(theirs)) < history.count
    alike = ((index > similar) & there).sum(-1)
    return 1 - alike / jnp.maximum(jnp.minimum(history.count, len(theirs)), 1)


def returns(batch: Batch, groups: Proposals) -> Array:
    """Return what each answer was paid, [P, M, G]; 0 where nothing was posed."""
    by_turns = turns.split_turns(batch)
    paid = by_turns.outcome + by_turns.reward[1:].sum(0)
    return jnp.where(by_turns.last > 0, paid, 0).reshape(groups.shape)


def by_roles(posed: Array, solved: Array, batch: Batch, part: str = "turn") -> Array:
    """Return the advantage of each token [T, B]: that of its problem or of its answer.

    posed: [P, M], of problems. solved: [P, M, G], of answers. batch: as in `split_turns`.
    part: channel of `TimeStep.tokens` by which problems are 0, such as `reader`.
    """
    first = batch.transitions.timestep.tokens[part] == 0
    posed = jnp.broadcast_to(posed[..., None], solved.shape)
    return jnp.where(first, posed.reshape(-1), solved.reshape(-1))


def join_windows(batch: Batch, windows: int) -> Batch:
    """Return whole episodes [T, B * windows] from those of several windows [windows * T, B], one
    after another in time; those of a column stay side by side."""

    def join(x: Array) -> Array:
        each = jnp.moveaxis(x.reshape(windows, -1, *x.shape[1:]), 0, 2)
        return each.reshape(each.shape[0], -1, *each.shape[3:])

    transitions, mask = jax.tree.map(join, (batch.transitions, batch.mask))
    return dataclasses.replace(batch, transitions=transitions, mask=mask)


def own_policies(
    env: Environment, config: Any, name: str, count: int = 2, part: str = "turn"
) -> Speakers:
    """Return `count` networks of the same settings, each of a policy of its own: by default of one
    that poses and one that solves.

    part: channel of `TimeStep.tokens` that says who writes, from 0.

    Raises `UserError` for a language model, of which there would be several.
    """
    network = token_network(env, config)
    if not isinstance(network, ActorCritic):
        raise UserError(f"{name} has {count} networks of its own; leave decoder.model empty.")
    return Speakers((network, *(network.clone() for _ in range(count - 1))), part)


def begin_all(own: State, other: Any) -> Any:
    """Begin all policies as that of another algorithm: an `adopt`."""
    part = "actor_critic"
    if not isinstance(other, State) or part not in other.parts:
        return other  # which will not fit
    learned, mine = other.parts[part].params["params"], own.parts[part]
    if mine.params["params"].keys() == learned.keys():
        return other  # another run of this algorithm
    each = lambda: {"params": {name: copy(learned) for name in mine.params["params"]}}
    begun = dataclasses.replace(mine, params=each(), target=each())
    return dataclasses.replace(own, parts={**own.parts, part: begun})


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `turns.check`, and if no reader of `env` begins anew."""
    turns.check(env, config, name)
    if "restart" not in (example_timestep(env).tokens or {}):
        raise UserError(
            f"{name} needs a solver that sees a problem and not how it was posed, by "
            f"TimeStep.tokens['restart'], which '{env.name}' lacks; see envs.language.posed_sums."
        )
