"""The joint where an agent meets a source and becomes an algorithm."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import hyper as hyperparameters
from jaxrl.core import metrics as m
from jaxrl.core import random, trees
from jaxrl.core.divergence import freeze
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    REPLICATED,
    Agent,
    Algorithm,
    Array,
    Hyper,
    Key,
    Policy,
    Source,
    Tree,
    struct,
)


@struct
class LearnerState:
    """State of an agent that learns from a source."""

    agent: Tree
    source: Tree
    steps: Array
    """Steps so far: int32."""
    diverged: Array
    """The step whose metrics were first not finite, or `metrics.NEVER`: int32."""


def learn(agent: Agent, source: Source, updates: int = 1) -> Algorithm:
    """Make the algorithm whose step collects experience once, with the agent's policy, and then
    samples a batch, updates the agent and feeds back to the source, `updates` times.

    If an update reports a metric that is not finite, the agent's state stays as it was before that
    step, for good, while the source goes on; the metric `diverged` says at which step.

    Raises `UserError`, before anything compiles, if the source's batches lack a part that the agent
    needs, or if both have a hyperparameter of one name.
    """
    if updates < 1:
        raise UserError(f"updates must be at least 1, got {updates}.")
    hyper = hyperparameters.merge(agent.hyper, source.hyper)
    # Under a jit of their own these are traced once, for the check here and the program later.
    agent = dataclasses.replace(agent, init=jax.jit(agent.init))
    source = dataclasses.replace(source, init=jax.jit(source.init), collect=jax.jit(source.collect))
    _check(agent, source, hyper)

    def as_policy(agent_state) -> Policy:
        return Policy(agent.act, agent.memory, agent_state)

    def init(key, hyper):
        agent_key, source_key = jax.random.split(key)
        agent_state = agent.init(agent_key, hyper)
        source_state = start_source(source, source_key, hyper, as_policy(agent_state))
        return LearnerState(agent_state, source_state, jnp.int32(0), jnp.int32(m.NEVER))

    def step(state, key):
        collect_key, update_key = jax.random.split(key)
        source_state, fresh, statistics = source.collect(
            state.source, as_policy(state.agent), collect_key
        )

        def update(carry, key):
            agent_state, source_state = carry
            sample_key, key = jax.random.split(key)
            batch = source.sample(source_state, fresh, sample_key)
            agent_state, info = agent.update(agent_state, batch, key)
            source_state = source.feedback(source_state, batch, info.feedback)
            reports = {k: v if m.is_metric(v) else m.mean(v) for k, v in info.metrics.items()}
            return (agent_state, source_state), reports

        (agent_state, source_state), reports = _repeat(
            update, (state.agent, source_state), update_key, updates
        )
        # Extremes may be infinite: they are so where nothing was counted.
        sums = [x.total for x in reports.values() if isinstance(x, m.Mean | m.Sum)]
        finite = trees.all_finite(sums)
        # The agent's state alone is selected: a select over a replay buffer would copy it.
        agent_state, diverged = freeze(
            agent_state, state.agent, finite, state.steps, state.diverged
        )
        metrics = _union(statistics, reports, {"diverged": m.First(diverged)})
        return LearnerState(agent_state, source_state, state.steps + 1, diverged), metrics

    return Algorithm(
        f"{agent.name} on {source.name}",
        init,
        step,
        policy=lambda state: as_policy(state.agent),
        hyper=hyper,
        env_steps=source.env_steps,
        initial_env_steps=source.initial_env_steps,
        partition=LearnerState(REPLICATED, source.partition, REPLICATED, REPLICATED),
        config=agent.config,
        agent=agent,
        source=source,
        scores=agent.scores,
    )


def evaluation_policy(algorithm: Algorithm, state: Tree) -> Policy:
    """Return the policy that a state has learned, with hyperparameters as they are in evaluations
    (`Agent.in_evaluation`). The state itself is not changed."""
    policy = algorithm.policy(state)
    changes = getattr(algorithm.agent, "in_evaluation", {})
    if not changes:
        return policy
    known = hyperparameters.read_hyper(policy.state)
    changes = {name: known[other] for name, other in changes.items()}
    changed = hyperparameters.replace_hyper(policy.state, changes)
    return dataclasses.replace(policy, state=changed)


def start_source(source: Source, key: Key, hyper: Hyper, policy: Policy) -> Tree:
    """Return the first state of `source` after its warm-up, which `policy` plays.

    A source that is played on the host has its warm-up still to come.
    """
    state = source.init(key, hyper, policy)
    if not source.warmup or source.host_play:
        return state
    more = lambda state, key: (source.collect(state, policy, key)[0], None)
    return jax.lax.scan(more, state, warmup_keys(source, key))[0]


def warmup_keys(source: Source, key: Key) -> Key:
    """Return the keys [warmup] of the warm-up of a source that starts from `key`."""
    return jax.random.split(jax.random.split(key)[1], source.warmup)


def restart_source(
    algorithm: Algorithm, state: LearnerState, key: Key, hyper: Hyper
) -> LearnerState:
    """Return `state` with the source as `algorithm.init(key, hyper)` starts it, but played by the
    agent in `state`.

    This belongs after a warm start. Otherwise new weights would have played the warm-up of a replay
    buffer.
    """
    assert algorithm.source is not None
    _, source_key = jax.random.split(key)
    source = start_source(algorithm.source, source_key, hyper, algorithm.policy(state))
    return dataclasses.replace(state, source=source)


def take_over(state: Any, agent: Tree, what: str = "The agent") -> Any:
    """Replace the agent's state in `state` by that of an agent that learned elsewhere, such as in a
    warm-up or from another source. Hyperparameters stay, and may differ between the two.

    state: a `LearnerState`, or any state with the field `agent`.
    agent: the other agent's state. Leaves are matched by name; a leaf has the same shape as in
        `state`, or lacks its leading axis and is then repeated for all members.
    what: the subject of error messages.

    Raises `UserError` if the two states do not have the same leaves.
    """
    new, old = (hyperparameters.without_hyper(x) for x in (state.agent, agent))
    if old.keys() != new.keys():
        raise UserError(f"{what} has other parts than this configuration's.")

    def take(path, y):
        name = jax.tree_util.keystr(path)
        if name not in old:
            return y
        x = old[name]
        if x.shape != y.shape and (x.shape != y.shape[1:] or y.ndim == 0):
            raise UserError(
                f"{what} does not fit: {name} is {list(x.shape)} there and {list(y.shape)} here."
            )
        return jnp.broadcast_to(x, y.shape)

    taken = jax.tree_util.tree_map_with_path(take, state.agent)
    return dataclasses.replace(state, agent=taken)


def _union(*parts: dict) -> dict:
    """Return all metrics together. Raises `UserError` if two parts use the same name."""
    names = [name for part in parts for name in part]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Two parts of one algorithm report a metric called '{name}'.")
    return {name: metric for part in parts for name, metric in part.items()}


def _repeat(update, carry, key, updates):
    if updates == 1:  # a scan of length one would only cost compile time
        return update(carry, key)
    carry, reports = jax.lax.scan(update, carry, jax.random.split(key, updates))
    return carry, m.reduce(reports)


def _check(agent: Agent, source: Source, hyper) -> None:
    """Raise `UserError` if a batch lacks a part that the agent needs, found by shapes alone."""

    def batch_of(key, hyper):
        agent_state = agent.init(key, hyper)
        policy = Policy(agent.act, agent.memory, agent_state)
        state, fresh, _ = source.collect(source.init(key, hyper, policy), policy, key)
        return source.sample(state, fresh, key)

    batch = jax.eval_shape(batch_of, jax.eval_shape(lambda: random.key(0)), hyper)
    for path in agent.needs:
        part = batch
        for name in path.split("."):
            part = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
            if part is None:
                raise UserError(
                    f"The agent '{agent.name}' needs '{path}', "
                    f"which batches of the source '{source.name}' do not have."
                )
