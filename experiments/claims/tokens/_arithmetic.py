"""Half-trained transformers from which claims about token methods start.

A small transformer learns sums from an expert until a share `HALFWAY` of its answers is right;
every method continues from there. Each seed has a warm-up of its own, the same for all sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.course import Course, beginning, end
from experiments.evidence.declare import Arena, Measured, Trial
from experiments.evidence.measure import configure
from experiments.evidence.moments import PassAtK
from jaxrl import envs
from jaxrl.algorithms.tokens.token_supervised import token_supervised
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Environment, Key, Tree
from jaxrl.evaluation.pass_at_k import correct_answers

SIZES = {"recurrent": 32, "transformer": 1, "attention_heads": 2}
WARM_UP = SIZES | {"num_envs": 64, "optimizer.learning_rate": 3e-3}
HALFWAY, PARTS, UPDATES = 0.2, 15, 10  # goal of a warm-up, its evaluations, updates before each


def pieces(trial: Trial, *changes: Mapping[str, Any]) -> tuple[Environment, Algorithm, Any, int]:
    """Return the environment, a warm-up there, the side's algorithms, and the updates of each.

    The side has one algorithm for each of `changes`, with an equal part of the steps. Raises
    `UserError` if steps are left over.
    """
    env = envs.make(trial.environment.env, **trial.environment.params)
    warm_up = token_supervised(env, replace(token_supervised.Config(), WARM_UP))
    config = configure(trial)
    sides = tuple(trial.side.algorithm(env, replace(config, change)) for change in changes or ({},))
    updates, rest = divmod(trial.env_steps, len(sides) * sides[0].env_steps)
    if rest:
        raise UserError(f"{trial.env_steps} environment steps are no whole updates.")
    return env, warm_up, sides, 1 if trial.tiny else updates


def half_trained(arena: Arena, tiny: bool) -> Callable[[Key], Tree]:
    """Return the function that draws a half-trained agent from a key."""
    env = envs.make(arena.env, **arena.params)
    warm_up = token_supervised(env, replace(token_supervised.Config(), WARM_UP))
    prompts, parts = (4, 1) if tiny else (arena.episodes, PARTS)
    return lambda key: warm_up_agent(env, warm_up, parts, prompts, key)


def from_half_trained(algorithm: Algorithm, key: Key, hyper: Any, before: Tree) -> Run:
    run = start(algorithm, key, hyper)
    agent = take_policy(run.state.agent, before)
    return dataclasses.replace(run, state=take_over(run.state, agent))


def split(key: Key, phases: int, moments: int) -> tuple[list[Key], Key]:
    key, _, before, after = jax.random.split(key, 4)  # the second is that of the warm-up
    looks = jnp.stack([before, *[after] * (moments - 1)])
    return [jax.random.fold_in(key, i) for i in range(phases)], looks


# Steps of the warm-up do not count. Estimated from `episodes` prompts with 16 answers each.
LEARN = Course(
    {
        "pass@1": end(PassAtK(1)),
        "pass@8": end(PassAtK(8)),
        "final": end(PassAtK(1)),
        "untrained": beginning(PassAtK(1)),
        "untrained pass@8": beginning(PassAtK(8)),
    },
    begin=half_trained,
    start=from_half_trained,
    split=split,
    begin_key=lambda key: jax.random.split(key, 4)[1],
)


def learn(
    trial: Trial, keys: Key, hyper: Mapping[str, Any], *phases: Mapping[str, Any]
) -> Measured:
    """Measure a side that trains with each of `phases` for an equal part of its steps."""
    return dataclasses.replace(LEARN, phases=phases or ({},))(trial, keys, hyper)


def take_policy(agent: Any, before: Any) -> Any:
    """Return an agent's state with another's policy and reference; their optimizers may differ."""
    old, new = before.parts["actor_critic"], agent.parts["actor_critic"]
    new = dataclasses.replace(new, params=old.params, target=old.target)
    return dataclasses.replace(agent, parts=agent.parts | {"actor_critic": new})


def warm_up_agent(env: Environment, warm_up: Algorithm, parts: int, prompts: int, key: Key) -> Tree:
    """Return the agent's state at the first evaluation at which enough answers are right."""
    key, train_key = jax.random.split(key)

    def part(carry, key):
        run, agent, enough = carry
        run, _ = train(warm_up, run, UPDATES)
        agent = trees.where(enough, agent, run.state.agent)
        right = correct_answers(env, warm_up.policy(run.state), key, prompts, 4).mean()
        return (run, agent, enough | (right >= HALFWAY)), right

    run = start(warm_up, train_key)
    begun = run, run.state.agent, jnp.bool_(False)
    return jax.lax.scan(part, begun, jax.random.split(key, parts))[0][1]
