"""Find hyperparameters that change nothing but themselves, by tracing alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from jaxrl.core import random
from jaxrl.core.hyper import hyper_name
from jaxrl.core.learn import evaluation_policy
from jaxrl.core.train import advance, start
from jaxrl.core.types import Algorithm, Environment


def without_effect(env: Environment, algorithm: Algorithm) -> set[str]:
    """Return the hyperparameters on which neither the first state, nor the state after a step, nor
    an action, in training, evaluation or greedily, nor a measure depends, apart from the
    hyperparameters that the state stores."""
    values = {name: jnp.float32(value) for name, value in algorithm.hyper.items()}
    first = jax.eval_shape(lambda: start(algorithm, random.key(0)))
    paths = jax.tree_util.tree_flatten_with_path(first)[0]
    stored = [hyper_name(path) for path, _ in paths]
    others = [name is None for name in stored]

    def names_read(function, argument, names, outputs=None):
        jaxpr = jax.make_jaxpr(function)(argument).jaxpr
        needed = partial_eval.dce_jaxpr(jaxpr, outputs or [True] * len(jaxpr.outvars))[1]
        return {name for name, is_needed in zip(names, needed, strict=True) if is_needed}

    def act(run, greedy, policy_of):
        policy = policy_of(run.state)
        reset = jax.vmap(env.reset, in_axes=(0, None))
        timestep = reset(jax.random.split(random.key(1), 3), env.params)[1]
        return policy.act(policy.state, timestep, policy.memory(3), random.key(2), greedy)[0]

    begin = functools.partial(start, algorithm, random.key(0))
    effective = names_read(begin, values, sorted(values), others)
    effective |= names_read(lambda run: advance(algorithm, run)[0], first, stored, others)
    effective |= names_read(lambda run: algorithm.measure(run.state, run.key), first, stored)
    for policy_of in (algorithm.policy, functools.partial(evaluation_policy, algorithm)):
        for greedy in (True, False):
            acting = functools.partial(act, greedy=greedy, policy_of=policy_of)
            effective |= names_read(acting, first, stored)
    return values.keys() - effective
