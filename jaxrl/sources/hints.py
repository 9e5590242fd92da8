"""Groups of episodes that are played again with a hint where all of them fail."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Source, Transition
from jaxrl.sources.rollouts import window


def with_hints(source: Source, size: int) -> Source:
    """Hand out the episodes with hints of those groups in which no episode without is right.

    source: whole episodes of `tasks.hinted_starts`, each group of `size` (G) without a hint
        followed by as many with one. An episode is right if its return is above 0.

    Batches have half of the episodes, in groups of G. Where they are those with hints, what was
    read is replaced by what is read without (all that is observed up to the first decision, which
    must take as many steps), so that a policy learns to do without; `log_prob`, and whatever else
    the policy said as it acted, is with the hint. Transitions get the extra `hinted` [T, B]. All
    episodes are played and counted, also those that are not handed out. Source: Nath et al., 2025,
    "Adaptive guidance accelerates reinforcement learning of reasoning models", arXiv:2506.13923.
    Raises `UserError` for a source on the host.
    """
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, where there are no hints.")

    def choose(batch: Batch) -> Batch:
        t, mask = batch.transitions, batch.mask
        assert mask is not None

        def half(number: int) -> tuple[Transition, Array]:
            cut = lambda x: x.reshape(x.shape[0], -1, 2, size, *x.shape[2:])[:, :, number]
            return jax.tree.map(cut, (t, mask))

        plain, hint = half(0), half(1)
        returns = jnp.where(plain[1], plain[0].reward, 0).sum(0)
        failed = ~(returns > 0).any(-1, keepdims=True) & jnp.ones_like(plain[1])  # [T, P, G]
        decision = plain[0].timestep.tokens["decision"]
        reading = jnp.cumsum(decision, 0) - decision == 0  # up to the first decision
        own, mask = trees.where(failed, hint, plain)
        own = dataclasses.replace(
            own,
            timestep=trees.where(reading, plain[0].timestep, own.timestep),
            action=trees.where(reading & ~decision, plain[0].action, own.action),
            next_timestep=trees.where(
                reading & ~decision, plain[0].next_timestep, own.next_timestep
            ),
            extras={**own.extras, "hinted": failed},
        )
        flat = lambda x: x.reshape(x.shape[0], -1, *x.shape[3:])
        own, mask = jax.tree.map(flat, (own, mask))
        return dataclasses.replace(batch, transitions=own, mask=mask)

    def collect(state, policy, key):
        state, batch, metrics = window(source, state, policy, key)
        return state, choose(batch), metrics

    return dataclasses.replace(
        source,
        name=f"with_hints({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
    )
