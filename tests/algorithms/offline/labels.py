"""Checks of algorithms that learn from labels of an inverse dynamics model."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core import random


def equal(a, b):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x == y).all()), a, b)))


class Labels:
    """An algorithm, the data that it learns from, and the same data with other hidden actions.

    spoil: actions -> other ones.
    """

    def __init__(self, module, builder, env, config, spoil):
        agent, source = builder.agent(env, config), module.source(env, config)
        hyper = {k: jnp.float32(v) for k, v in agent.hyper.items()}
        self.state = jax.jit(agent.init)(random.key(0), hyper)
        held = jax.jit(source.init)(random.key(1), source.hyper, None)

        @jax.jit
        def update(state, key, spoiled):
            batch = source.sample(held, jnp.float32(0), key)
            x = batch.transitions
            hidden = ~x.extras["labeled"].reshape(x.reward.shape + (1,) * (x.action.ndim - 2))
            action = jnp.where(spoiled & hidden, spoil(x.action), x.action)
            x = dataclasses.replace(x, action=action)
            return agent.update(state, dataclasses.replace(batch, transitions=x), key)

        self.update = update

    def learn(self, steps, spoiled):
        """The states before, between and after so many updates, and the errors of labels."""
        states, errors = [self.state], []
        for i in range(steps):
            new, info = self.update(states[-1], random.key(i), jnp.bool_(spoiled))
            states.append(new)
            errors.append(float(info.metrics["label_error"]))
        return states, errors

    def check_phases(self, steps, parts):
        """The inverse dynamics model learns for `steps` updates and the `parts` afterward, and
        hidden actions matter to the reported error alone. Returns the errors."""
        states, errors = self.learn(steps + 2, False)
        params = lambda i: {name: part.params for name, part in states[i].parts.items()}
        first, middle, last = params(0), params(steps), params(-1)
        for name in parts:
            assert equal(first[name], middle[name]) and not equal(middle[name], last[name])
        assert not equal(first["inverse"], middle["inverse"])
        assert equal(middle["inverse"], last["inverse"])
        others, spoiled = self.learn(steps + 2, True)
        assert equal(states[-1].parts, others[-1].parts) and spoiled[-1] > errors[-1] + 0.1
        return errors
