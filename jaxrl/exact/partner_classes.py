"""Classes of strategically equivalent partners: the least that must be known about a partner.

Two policies of a partner are strategically equivalent at a step and a state if the same policies
are best responses to both from there on; whoever plays best against one then does so against the
other. A relation between K given partners is built up from the last step to the first, in time
linear in the number of steps, where comparing sets of best responses one by one takes time that is
exponential in it. Shapes: `S` states, `A` actions of the player, `B` of the partner, `N` successors
that are listed for each joint action, `H` steps.

    successor    int [S, A, B, N]   numbers of the possible next states, in any order
    probability  [S, A, B, N]       of each; 0 fills a list that is shorter
    reward       [S, A, B]          of the player
    partners     [K, H, S, B]       probability of each action of each partner

Source: Lauffer et al., 2023, "Who needs to know? Minimal knowledge for optimal coordination",
arXiv:2306.09309: the relation is its definition 4.3, the backup its theorem 2 with states in the
place of histories, and with `subgames` its appendix B.6, which looks at states that no best
response reaches too. The paper takes all best responses or equilibria for partners; here they are
given, and may be stochastic. Two things that the theorem leaves open are settled as the definition
asks: a state that one partner leads to and the other does not splits them unless every policy is a
best response there, and values are compared on request alone (`valued`), at every state on the
way, which can tell apart partners whose values differ there and agree at the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import precise, random
from jaxrl.core.types import Array, Environment, Tree


class SparseGame(NamedTuple):
    """A game for two whose dynamics do not depend on the step; see above for the shapes."""

    successor: Array
    probability: Array
    reward: Array


def responses(game: SparseGame, partners: Array, tolerance: float = 1e-5) -> tuple[Array, Array]:
    """Return each partner's optimal values, [H, S, K], and best actions, bool [H, S, K, A].

    tolerance: how far below the best an action may be to count as one of the best.
    """

    def back(following: Array, policy: Array) -> tuple[Array, tuple[Array, Array]]:
        worth = _action_values(game, following, policy)
        value = worth.max(-1)
        return value, (value, worth >= value[..., None] - tolerance)

    last = jnp.zeros((len(game.reward), len(partners)), game.reward.dtype)
    return jax.lax.scan(back, last, _by_step(partners), reverse=True)[1]


def returns(game: SparseGame, partners: Array, policies: Array) -> Array:
    """Return what policies [K, H, S, A] earn with the partners, from each state: [S, K]."""

    def back(following: Array, both: tuple[Array, Array]) -> tuple[Array, None]:
        worth = _action_values(game, following, both[0])
        return (worth * both[1].swapaxes(0, 1)).sum(-1), None

    last = jnp.zeros((len(game.reward), len(partners)), game.reward.dtype)
    return jax.lax.scan(back, last, (_by_step(partners), _by_step(policies)), reverse=True)[0]


def equivalent(
    game: SparseGame,
    partners: Array,
    valued: bool = False,
    subgames: bool = False,
    tolerance: float = 1e-5,
) -> Array:
    """Return which partners are strategically equivalent at each step and state: bool [H, S, K, K].

    valued: also tell apart partners whose optimal values differ. subgames: look at every state that
    any joint action leads to, instead of those that follow a best response. tolerance: up to which
    values count as equal.
    """
    value, best = responses(game, partners, tolerance)
    shape = (len(game.reward), len(partners))
    listed = game.probability > 0
    same = game.successor.reshape(*game.successor.shape[:2], -1)
    same = same[..., None] == same[..., None, :]  # [S, A, B N, B N]: the same successor

    def back(
        following: tuple[Array, Array], step: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        equal, free = following
        value, best, policy = step
        if subgames:
            reached = jnp.broadcast_to(
                listed.reshape(shape[0], -1), (shape[1], shape[0], listed[0].size)
            )
        else:
            played = listed & (policy > 0)[:, :, None, :, None]  # [K, S, A, B, N]
            played = played.reshape(*played.shape[:3], -1)
            reached = (played[..., None, :] & same).any(-1)  # [K, S, A, B N]
            reached &= best.swapaxes(0, 1)[..., None]
            reached = reached.reshape(shape[1], shape[0], -1)
        reached = reached.swapaxes(0, 1)  # [S, K, successors]
        place = game.successor.reshape(shape[0], -1)

        def at(both: tuple[Array, Array]) -> tuple[Array, Array]:
            """Compare the successors of one state: bool [K, K], and whether all is free, [K]."""
            reached, place = both
            one, other = reached[:, None], reached[None]
            open_ = free[place].T  # [K, successors]
            fits = jnp.where(
                one & other,
                equal[place].transpose(1, 2, 0),
                (~one | open_[:, None]) & (~other | open_[None]),
            )
            return fits.all(-1), (open_ | ~reached).all(-1)

        fits, open_ = jax.lax.map(at, (reached, place), batch_size=256)
        alike = (best[:, :, None] == best[:, None]).all(-1)
        if valued:
            alike &= jnp.abs(value[:, :, None] - value[:, None]) <= tolerance
        return (alike & fits, best.all(-1) & open_), alike & fits

    last = (jnp.ones((*shape, shape[1]), bool), jnp.ones(shape, bool))
    return jax.lax.scan(back, last, (value, best, _by_step(partners)), reverse=True)[1]


def classes(equal: Array) -> Array:
    """Return the number of each partner's class, that of its first member: int32 [..., K].

    equal: [..., K, K], see `equivalent`.
    """
    return jnp.argmax(equal, -1).astype(jnp.int32)


def merged_responses(game: SparseGame, partners: Array, label: Array) -> Array:
    """Return policies that see the class of the partner alone, [K, H, S, A]: for each partner the
    best response to the partner whose number is its class's (`label`, int [K])."""
    best = responses(game, partners)[1]
    policy = jax.nn.one_hot(best.argmax(-1), best.shape[-1], dtype=game.reward.dtype)
    return policy.transpose(2, 0, 1, 3)[label]


def enumerate_play(env: Environment, steps: int) -> tuple[SparseGame, Tree]:
    """Return the game of a deterministic environment for two agents, and its states.

    State 0 is the start, and all are found that joint actions reach in `steps` steps; those that
    only the last step reaches lead to themselves. The player is the first of `env.agents`, and the
    environment's time limit and the ends of episodes are left aside. States are a tree with a
    leading axis, for the policies of partners.
    """
    names = env.agents
    sizes = [env.action_space[n].n for n in names]
    joint = np.stack(np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij"), -1)
    joint = joint.reshape(-1, 2).astype(np.int32)
    start = env.reset(random.key(0), env.params)[0]
    rewind = lambda state: dataclasses.replace(state, steps=jnp.zeros_like(state.steps))

    @jax.jit
    @jax.vmap
    def follow(state: Any) -> tuple[Any, Array]:
        def one(action: Array) -> tuple[Any, Array]:
            chosen = dict(zip(names, action, strict=True))
            after, timestep = env.step(random.key(0), state, chosen, env.params)
            return rewind(after), timestep.reward

        return jax.vmap(one)(jnp.asarray(joint))

    leaves, shape = jax.tree.flatten(rewind(start))
    row = lambda values, i: b"".join(np.asarray(v[i]).tobytes() for v in values)
    known = {row([np.asarray(x)[None] for x in leaves], 0): 0}
    found = [[np.asarray(x)] for x in leaves]
    successor, reward, frontier = [], [], [0]
    for _ in range(steps):
        if not frontier:
            break
        size = 1 << (len(frontier) - 1).bit_length()  # few shapes, few compilations
        padded = frontier + frontier[:1] * (size - len(frontier))
        batch = shape.unflatten([np.stack([x[i] for i in padded]) for x in found])
        after, paid = jax.device_get(follow(batch))
        total = len(frontier) * len(joint)
        flat = lambda x, n=len(frontier), total=total: x[:n].reshape(total, *x.shape[2:])
        values = [flat(x) for x in jax.tree.leaves(after)]
        earned = flat(paid)
        frontier, new = [], []
        for i in range(total):
            number = known.setdefault(row(values, i), len(known))
            if number == len(found[0]):
                frontier.append(number)
                for store, value in zip(found, values, strict=True):
                    store.append(value[i])
            new.append(number)
        successor.append(np.array(new).reshape(-1, *sizes))
        reward.append(earned.reshape(-1, *sizes))
    if frontier:
        successor.append(
            np.broadcast_to(np.array(frontier)[:, None, None], (len(frontier), *sizes))
        )
        reward.append(np.zeros((len(frontier), *sizes)))
    successor = jnp.asarray(np.concatenate(successor)[..., None], jnp.int32)
    reward = jnp.asarray(np.concatenate(reward), jnp.float32)
    states = shape.unflatten([jnp.asarray(np.stack(x)) for x in found])
    return SparseGame(successor, jnp.ones(successor.shape), reward), states


def partner_table(act: Callable[[Any], Array], states: Tree, actions: int, steps: int) -> Array:
    """Return a deterministic partner's policy as a table, [H, S, B], the same at each step."""
    chosen = jax.jit(jax.vmap(act))(states)
    return jnp.broadcast_to(jax.nn.one_hot(chosen, actions), (steps, len(chosen), actions))


def _by_step(policies: Array) -> Array:
    """Move the step ahead: [K, H, ...] to [H, K, ...]."""
    return policies.swapaxes(0, 1)


def _action_values(game: SparseGame, following: Array, policy: Array) -> Array:
    """Return the values of actions [S, K, A] with partners [K, S, B], by values [S, K] after."""
    after = (game.probability[..., None] * following[game.successor]).sum(-2)  # [S, A, B, K]
    return precise.einsum("ksb,sabk->ska", policy, game.reward[..., None] + after)
