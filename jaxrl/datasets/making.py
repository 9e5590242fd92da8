"""Datasets out of one training run, as D4RL's for locomotion were made (Fu et al., 2020,
"D4RL: datasets for deep data-driven reinforcement learning", section 5):

    random          a policy that acts by chance
    medium          a policy from the middle of training
    expert          the best policy of the run
    medium-replay   what training collected until the medium policy was reached
    medium-expert   as many steps of both; "mixed" is another name for it

D4RL trained soft actor-critic; here it is PPO, whose policies act as in training, by sampling.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random, settings, spaces
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.train import advance, start
from jaxrl.core.types import Environment, Policy, Source, Transition, Tree, struct
from jaxrl.datasets.data import Dataset, References, score
from jaxrl.datasets.transitions import from_streams
from jaxrl.envs.adapters.gymnasium import PREFIX
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.sources.rollouts import rollouts

KINDS = ("random", "medium", "expert", "medium-replay")
PARTS = 40  # moments of the run at which its policy may be taken
MEDIUM = 40.0  # the score that a medium policy has reached
EPISODES = 64  # of an evaluation


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How an environment's policies are trained."""

    steps: int
    agent: PPOConfig


_CONTROL = settings.replace(
    PPOConfig(),
    {
        "num_envs": 16,
        "num_steps": 128,
        "epochs": 8,
        "minibatches": 8,
        "learning_rate": 1e-3,
        "normalization.observation": True,
        "normalization.reward": True,
    },
)
# By the environment's name; `_CONTROL` for others.
RECIPES = {
    "pendulum": Recipe(
        327_680, settings.replace(_CONTROL, {"discount": 0.9, "learning_rate_steps": 327_680})
    ),
}


def recipe(env: Environment) -> Recipe:
    """How the policies of `env` are trained."""
    return RECIPES.get(env.name, Recipe(655_360, _CONTROL))


@struct
class WithNewest:
    source: Tree
    transitions: Transition  # the newest, [T, B]


def with_newest(source: Source) -> Source:
    """`source`, whose state also holds what it collected last."""

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        # Overwritten by `collect`; no zeros, since ids of tasks may be random keys.
        return WithNewest(state, source.collect(state, policy, key)[1].transitions)

    def collect(state, policy, key):
        inner, fresh, metrics = source.collect(state.source, policy, key)
        return WithNewest(inner, fresh.transitions), fresh, metrics

    return dataclasses.replace(
        source,
        name=f"with_newest({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: source.sample(state.source, fresh, key),
        feedback=lambda state, batch, feedback: dataclasses.replace(
            state, source=source.feedback(state.source, batch, feedback)
        ),
        partition=WithNewest(source.partition, source.partition),
    )


def make(
    env: Environment, size: int, seed: int = 0, how: Recipe | None = None
) -> dict[str, Dataset]:
    """All `KINDS` for `env`, of about `size` steps each (medium-replay of at most that many).

    The same arguments give the same numbers on the same kind of machine with as many cores. Takes
    as long as the training run of `recipe(env)`. Raises `UserError` for an environment on the host,
    one without a time limit, and a run that did not learn.
    """
    if env.name.startswith(PREFIX):
        raise UserError(
            f"'{env.name}' runs on the host, where no datasets are made; name a file in Minari's "
            "format."
        )
    if env.max_steps is None:
        raise UserError(f"Datasets need whole episodes; '{env.name}' has no time limit.")
    if not 1 <= size < 2**31:  # a source numbers its rows in int32
        raise UserError(f"size must be at least 1 and below 2**31, got {size}.")
    how = how or recipe(env)
    keys = jax.random.split(random.key(seed), 5)
    algorithm = ppo(env, how.agent)
    assert algorithm.agent is not None and algorithm.source is not None
    recording = learn(algorithm.agent, with_newest(algorithm.source))
    steps = max(1, how.steps // recording.env_steps // PARTS)

    run, windows, policies, scores = start(recording, keys[0]), [], [], []
    for part in range(PARTS):
        run, window = _train(env, recording, run, steps)
        windows.append(jax.device_get(window))
        policies.append(jax.device_get(run.state.agent))
        key = jax.random.fold_in(keys[1], part)
        played = evaluate(env, recording.policy(run.state), key, EPISODES)
        scores.append(float(played.returns.mean()))

    agent = algorithm.agent
    as_policy = lambda state: Policy(agent.act, agent.memory, state)
    untrained, best = random_policy(env), int(np.argmax(scores))
    played = evaluate(env, untrained, keys[2], 4 * EPISODES)
    low = float(played.returns.mean())
    played = evaluate(env, as_policy(policies[best]), keys[2], 4 * EPISODES)
    high = float(played.returns.mean())
    if not high > low:
        raise UserError(
            f"Training for datasets of '{env.name}' did not get better than a random policy "
            f"({high:.4g} and {low:.4g})."
        )
    references = References(low, high)
    reached = score(np.asarray(scores), references) >= MEDIUM
    middle = int(np.argmax(reached))

    replayed = jax.tree.map(lambda *x: np.concatenate(x), *windows[: middle + 1])
    found = {
        "random": record(env, untrained, keys[3], size),
        "medium": record(env, as_policy(policies[middle]), keys[3], size),
        "expert": record(env, as_policy(policies[best]), keys[4], size),
        "medium-replay": from_streams(replayed, size),
    }
    return {name: Dataset(name, x, references) for name, x in found.items()}


def record(env: Environment, policy: Policy, key: Any, size: int) -> Transition:
    """About `size` steps [N] of whole episodes of `policy`, not greedy, as NumPy arrays."""
    assert env.max_steps is not None
    streams = min(64, max(1, size // env.max_steps))
    episodes = max(1, round(size / streams / env.max_steps))
    window = _record(env, policy, key, streams, episodes * env.max_steps)
    return from_streams(jax.device_get(window), size)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _record(env, policy, key, streams, steps):
    source = rollouts(env, streams, steps)
    start_key, key = jax.random.split(key)
    state = source.init(start_key, {}, policy)
    return _plain(env, source.collect(state, policy, key)[1].transitions)


@functools.partial(jax.jit, static_argnums=(0, 1, 3))
def _train(env, algorithm, run, steps):
    """`steps` steps, and all that was collected in them, [steps * T, B]."""

    def body(run, _):
        run, _ = advance(algorithm, run)
        return run, _plain(env, run.state.source.transitions)

    run, windows = jax.lax.scan(body, run, None, steps)
    return run, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), windows)


def _plain(env: Environment, transitions: Transition) -> Transition:
    """Without what the policy and the tasks said, and actions within their bounds, to which an
    environment clips them anyway."""
    action = spaces.clip(env.action_space, transitions.action)
    return dataclasses.replace(transitions, action=action, task=(), extras={})
