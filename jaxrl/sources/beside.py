"""Steps of another source beside those that are played, such as an expert's."""

from __future__ import annotations

import dataclasses

import jax

from jaxrl.core.types import Source


def beside(played: Source, shown: Source, name: str = "expert") -> Source:
    """Give each step of `played` a step of `shown`, as the extra `name`: nothing pairs the two but
    their number.

    played: windows [T, B] or batches [n] of transitions, which count and are heard.
    shown: batches of as many transitions, [T * B] or [n], with as many logical shards, such as a
        `dataset` of an expert's steps.
    """

    def init(key, hyper, policy):
        keys = jax.random.split(key)
        return played.init(keys[0], hyper, policy), shown.init(keys[1], hyper, policy)

    def collect(state, policy, key):
        keys = jax.random.split(key)
        mine, fresh, metrics = played.collect(state[0], policy, keys[0])
        theirs, old, _ = shown.collect(state[1], policy, keys[1])
        return (mine, theirs), (fresh, old), metrics

    def sample(state, fresh, key):
        keys = jax.random.split(key)
        batch = played.sample(state[0], fresh[0], keys[0])
        steps = shown.sample(state[1], fresh[1], keys[1]).transitions
        x, shape = batch.transitions, batch.transitions.reward.shape

        def arrange(a):
            """Lay out rows as the played steps lie, each logical shard's beside its own."""
            if len(shape) == 1:
                return a
            return a.reshape(shape[1], shape[0], *a.shape[1:]).swapaxes(0, 1)

        extras = {**x.extras, name: jax.tree.map(arrange, steps)}
        return dataclasses.replace(batch, transitions=dataclasses.replace(x, extras=extras))

    def feedback(state, batch, feedback):
        return played.feedback(state[0], batch, feedback), state[1]

    return dataclasses.replace(
        played,
        name=f"{played.name} beside {shown.name}",
        init=init,
        collect=collect,
        sample=sample,
        feedback=feedback,
        hyper={**shown.hyper, **played.hyper},
        partition=(played.partition, shown.partition),
    )
