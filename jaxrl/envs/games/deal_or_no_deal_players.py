"""Scripted players of `deal_or_no_deal` who look after themselves and see what the mover sees."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, Policy
from jaxrl.envs.games import deal_or_no_deal as d

ASPIRATION = (8.0, 0.4)  # points that a proposal is to bring, and how many fewer per act
ACCEPTABLE = (5.5, 0.3)  # points at which an offer is accepted in half of the cases, and per act
REPLIES = (0.2, 0.15, 0.05)  # shares of insisting, disagreeing and ending among other replies


def chances(seen: d.Seen, largest: int) -> Array:
    """Return how likely each action of a self-interested player is, float32 [S + 4].

    It proposes what brings it about as many points as it aspires to, whatever that leaves the other
    with, so its proposals are often dominated. It agrees by a logistic function of what an offer is
    worth to it. Aspiration and standards fall with time. It ends the talk when the other has
    agreed. After the talk it takes its part of an accepted offer, else it says that there is no
    deal.
    """
    table = jnp.asarray(d.divisions(largest))
    worth = table @ seen.values
    legal = d.legal_actions(seen, largest)
    proposals, acts = legal[: len(table)], legal[len(table) :]
    falls = lambda line: line[0] - line[1] * seen.turn
    near = jnp.where(proposals, jnp.exp(-jnp.abs(worth - falls(ASPIRATION))), 0.0)
    near = near / jnp.maximum(near.sum(), 1e-30)
    offer = (seen.other @ seen.values).astype(jnp.float32)
    agrees = jnp.where(acts[d.AGREE], jax.nn.sigmoid(offer - falls(ACCEPTABLE)), 0.0)
    insists, disagrees, ends = (
        jnp.where(acts[act], share, 0.0)
        for act, share in zip((d.INSIST, d.DISAGREE, d.END), REPLIES, strict=True)
    )
    others = jnp.stack([insists, 0.0 * agrees, disagrees, ends])
    talk = jnp.concatenate([(1 - others.sum()) * near, others]) * (1 - agrees)
    talk = talk.at[len(table) + d.AGREE].set(agrees)
    one = lambda action: (jnp.arange(len(legal)) == action).astype(jnp.float32)
    settled = seen.accepted & (seen.last == d.AGREE)
    talk = jnp.where(settled, one(len(table) + d.END), talk)
    part = d.take(largest, jnp.where(seen.open, seen.other, seen.own))
    named = one(jnp.where(seen.accepted, part, len(table) + d.DISAGREE))
    return jnp.where(seen.talking, talk, named)


@functools.cache
def self_interested(env: Environment) -> Policy:
    """Build the policy that plays by `chances`; the greedy one takes the likeliest action. `env`
    must be `deal_or_no_deal`."""
    turns, largest = d.sizes(env)

    def act(state, timestep, memory, key, greedy):
        read = jax.vmap(lambda x: chances(d.read_observation(x, largest, turns), largest))
        found = read(timestep.observation)
        if greedy:
            return found.argmax(-1).astype(jnp.int32), memory, {}
        drawn = jax.random.categorical(key, jnp.log(jnp.maximum(found, 1e-30)))
        return drawn.astype(jnp.int32), memory, {}

    return Policy(act, memory=lambda n: ())
