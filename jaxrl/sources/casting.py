"""Several policies in one batch: who plays which of its episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, Source, Tree


@dataclasses.dataclass(frozen=True)
class Player:
    """A way in which an agent plays some of a batch's episodes.

    state: maps the state of the agent that learns to a state of the same agent, by which it acts:
        itself, or with the weights of an opponent or of an earlier policy in place of its own.
    greedy: whether its actions are greedy instead of sampled.
    """

    state: Callable[[Tree], Tree] = lambda state: state
    greedy: bool = False


def cast(source: Source, players: Sequence[Player]) -> Source:
    """Let episode i of `source` be played by the i-th of `players` (k), and so on in turns.

    Memories and extras of a batch are those of whoever played. Raises `UserError` unless the number
    of players divides that of the environments, and for a source on the host.
    """
    count = len(players)
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, by the agent that learns from it.")
    if not count or source.num_envs % count:
        raise UserError(f"{source.num_envs} environments do not divide among {count} players.")

    def together(policy: Policy) -> Policy:
        def act(state, timestep, memory, key, greedy):
            def play(i: int, player: Player) -> Tree:
                own = lambda tree: jax.tree.map(lambda x: x[i::count], tree)
                own_key, best = jax.random.fold_in(key, i), greedy or player.greedy
                acting = player.state(state)
                return policy.act(acting, own(timestep), own(memory), own_key, best)

            each = [play(i, player) for i, player in enumerate(players)]
            join = lambda *x: jnp.stack(x, 1).reshape(-1, *x[0].shape[1:])
            return jax.tree.map(join, *each)

        return Policy(act, policy.memory, policy.state)

    return dataclasses.replace(
        source,
        name=f"cast({source.name})",
        init=lambda key, hyper, policy: source.init(key, hyper, together(policy)),
        collect=lambda state, policy, key: source.collect(state, together(policy), key),
    )
