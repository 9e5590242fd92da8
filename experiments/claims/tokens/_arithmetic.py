"""Half-trained transformers from which claims about token methods start.

A small transformer learns sums from an expert until a share `HALFWAY` of its answers is right;
every method continues from there. Each seed has a warm-up of its own, the same for all sides.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Measured, Trial
from experiments.evidence.measure import configure
from jaxrl import envs
from jaxrl.algorithms.tokens.token_supervised import token_supervised
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Environment, Key, Tree
from jaxrl.evaluation.pass_at_k import correct_answers, pass_at_k

SIZES = {"recurrent": 32, "transformer": 1, "attention_heads": 2}
WARM_UP = SIZES | {"num_envs": 64, "optimizer.learning_rate": 3e-3}
HALFWAY, PARTS, UPDATES = 0.2, 15, 10  # goal of a warm-up, its evaluations, updates before each
KS = (1, 8)


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


def learn(
    trial: Trial, keys: Key, hyper: Mapping[str, Any], *changes: Mapping[str, Any]
) -> Measured:
    """Train each run, and measure pass@1 and pass@8, and pass@1 before (`untrained`) and after.

    The side trains with each of `changes` for an equal part of the trial's environment steps, in
    which those of the warm-up do not count. `final` is pass@1 after training. Estimated from
    `episodes` prompts with 16 answers each.
    """
    env, warm_up, sides, updates = pieces(trial, *changes)
    prompts, parts = (4, 1) if trial.tiny else (trial.environment.episodes, PARTS)
    found = dict(_train(env, warm_up, sides, updates, prompts, parts, keys, dict(hyper)))
    env_steps = sum(side.env_steps for side in sides) * updates
    return found | {"env_steps": jnp.full(len(keys), env_steps, jnp.float32)}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _train(env, warm_up, sides, updates, prompts, parts, keys, hyper):
    def one(key, hyper):
        key, warm_up_key, before_key, after_key = jax.random.split(key, 4)
        agent = warm_up_agent(env, warm_up, parts, prompts, warm_up_key)
        runs = [start(side, jax.random.fold_in(key, i), hyper) for i, side in enumerate(sides)]
        agent = take_policy(runs[0].state.agent, agent)
        policy = sides[0].policy(take_over(runs[0].state, agent))
        before = pass_at_k(env, policy, before_key, KS, prompts, 16)
        for side, run in zip(sides, runs, strict=True):
            run, _ = train(side, Run(take_over(run.state, agent), run.key, run.step), updates)
            agent = run.state.agent
        after = pass_at_k(env, sides[-1].policy(run.state), after_key, KS, prompts, 16)
        found = {f"pass@{k}": x for k, x in after.items()}
        return found | {"untrained": before[1], "final": after[1], "untrained pass@8": before[8]}

    return jax.vmap(one)(keys, hyper)


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
