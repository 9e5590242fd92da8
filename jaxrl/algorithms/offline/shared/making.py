"""Datasets from one training run, as those of D4RL for locomotion were made (Fu et al., 2020,
"D4RL: datasets for deep data-driven reinforcement learning", section 5):

    random          steps of a policy that acts at random
    medium          steps of a policy from the middle of training
    expert          steps of the best policy of the run
    medium-replay   experience that training collected until the medium policy was reached
    medium-expert   as many steps of medium as of expert; "mixed" is another name for it
    state-hole      medium-replay without the fifth of steps whose observations are nearest to the
                    mean, in standard deviations; episodes are cut there
    action-hole     the same by actions

D4RL trained soft actor-critic; here it is PPO, whose policies act as in training, by sampling.
Datasets of scripted players (`scripted`) and of imaginary rollouts (`imagined_tasks`) need no
training run.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import jax
import numpy as np

from jaxrl.algorithms.offline.shared import imagined_tasks, scripted
from jaxrl.algorithms.offline.shared.recording import plain, record
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.learn import learn
from jaxrl.core.spaces import Box
from jaxrl.core.train import advance, start
from jaxrl.core.types import (
    Algorithm,
    Environment,
    Key,
    Policy,
    Source,
    Transition,
    Tree,
    struct,
)
from jaxrl.datasets import cache, files
from jaxrl.datasets.data import Dataset, References, conform, join, score
from jaxrl.datasets.transitions import from_streams, without_region
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate

KINDS = ("random", "medium", "expert", "medium-replay")
NAMES = (*KINDS, "medium-expert", "mixed")
HOLES = ("state-hole", "action-hole")
HOLE = 0.2  # share of the steps that lie in a hole
PARTS = 40  # moments of the run at which its policy may be taken
MEDIUM = 40.0  # score at which a policy counts as medium
EPISODES = 64  # episodes of an evaluation


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of the training run that makes datasets."""

    steps: int
    """Environment steps of the training run."""
    agent: PPOConfig
    """Settings of PPO in the training run."""


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
# Recipes by the environment's name; others use `_CONTROL`.
RECIPES = {
    "pendulum": Recipe(
        327_680, settings.replace(_CONTROL, {"discount": 0.9, "learning_rate_steps": 327_680})
    ),
}


def recipe(env: Environment) -> Recipe:
    """Return the settings of the training run that makes the datasets of `env`."""
    return RECIPES.get(env.name, Recipe(655_360, _CONTROL))


def load(env: Environment, name: str, size: int = 50_000, seed: int = 0) -> Dataset:
    """Return the dataset `name` of `env`: one of `NAMES`, `HOLES`, `scripted.NAMES` or
    `imagined_tasks.NAMES`, or the path of a file (see `datasets.files`).

    Datasets by name have about `size` steps, and are made from `seed` if they are not in the cache
    yet, which takes a training run. A name means the dataset even if there is a file of that name
    (`./medium` is the file).

    Raises `UserError` for another name, a file that is corrupt or not about this
    environment (see `conform`), and a cache that cannot be written.
    """
    if name in scripted.NAMES:
        return scripted.load(env, name, size, seed)
    if name in imagined_tasks.NAMES:
        return imagined_tasks.load(env, name, size, seed)
    if name in HOLES:
        return with_hole(load(env, "medium-replay", size, seed), env, name)
    if name not in NAMES:
        if name.endswith(files.ENDINGS) or os.path.exists(name):
            return conform(files.read(Path(name)), env)
        known = (*NAMES, *HOLES, *scripted.NAMES, *imagined_tasks.NAMES)
        raise unknown("dataset or file", name, known)
    if name in ("medium-expert", "mixed"):
        halves = [load(env, kind, size, seed) for kind in ("medium", "expert")]
        return join(name, halves)
    return cache.load(
        env,
        name,
        size=size,
        seed=seed,
        recipe=dataclasses.asdict(recipe(env)),
        make=lambda: make(env, size, seed),
    )


def with_hole(data: Dataset, env: Environment, name: str) -> Dataset:
    """Return `data` without the steps that lie in a hole; `name` is one of `HOLES`.

    Raises `UserError` for observations or actions that are not all real numbers.
    """
    states = name == "state-hole"
    what, space = ("observation", env.observation_space) if states else ("action", env.action_space)
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"A hole in {what}s needs one Box of real numbers; those of '{env.name}' are {space!r}."
        )
    x = data.transitions
    values = np.asarray(x.observation if states else x.action, np.float64).reshape(len(data), -1)
    return Dataset(name, without_region(x, values, HOLE), data.references)


@struct
class WithNewest:
    """State of a source, with the window that it collected last."""

    source: Tree
    transitions: Transition
    """The newest window, [T, B]."""


def with_newest(source: Source) -> Source:
    """Keep the window that `source` collected last in its state."""

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        # `collect` overwrites it. It cannot be zeros, since ids of tasks may be random keys.
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
    """Make the datasets of all `KINDS` for `env`, by name, which takes the training run `how`
    (`recipe(env)` by default).

    Each has about `size` steps, medium-replay at most. The same arguments give the same numbers on
    the same kind of machine with as many cores.

    Raises `UserError` for an environment on the host, an environment without a time limit, and a
    run that did not learn.
    """
    check_making(env, size)
    how = how or recipe(env)
    keys = jax.random.split(random.key(seed), 5)
    algorithm = ppo(env, how.agent)
    windows, policies, scores = train_in_parts(env, algorithm, how.steps, keys[0], keys[1])

    agent = algorithm.agent
    assert agent is not None
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


def check_making(env: Environment, size: int) -> None:
    """Raise `UserError` for an environment of which no datasets can be made, and an impossible
    size."""
    if env.host:
        raise UserError(
            f"'{env.name}' runs on the host, where no datasets are made; name a file "
            "(Minari's, D4RL's or Parquet)."
        )
    if env.max_steps is None:
        raise UserError(f"Datasets need whole episodes; '{env.name}' has no time limit.")
    if not 1 <= size < 2**31:  # a source numbers its rows in int32
        raise UserError(f"size must be at least 1 and below 2**31, got {size}.")


def train_in_parts(
    env: Environment,
    algorithm: Algorithm,
    steps: int,
    key: Key,
    score_key: Key,
    greedy: bool = True,
) -> tuple[list[Transition], list[Tree], list[float]]:
    """Train for about `steps` environment steps in `PARTS` parts. Return of each part the
    transitions that it collected [T, B], the agent's state after it, and the mean return of
    `EPISODES` episodes of its policy, `greedy` or as in training."""
    assert algorithm.agent is not None and algorithm.source is not None
    recording = learn(algorithm.agent, with_newest(algorithm.source))
    updates = max(1, steps // recording.env_steps // PARTS)
    run, windows, policies, scores = start(recording, key), [], [], []
    for part in range(PARTS):
        run, window = _train(env, recording, run, updates)
        windows.append(jax.device_get(window))
        policies.append(jax.device_get(run.state.agent))
        policy, own_key = recording.policy(run.state), jax.random.fold_in(score_key, part)
        played = evaluate(env, policy, own_key, EPISODES, greedy)
        scores.append(float(played.returns.mean()))
    return windows, policies, scores


@functools.partial(jax.jit, static_argnums=(0, 1, 3))
def _train(env, algorithm, run, steps):
    """Train for `steps` steps. Return the run and all transitions it collected, [steps * T, B]."""

    def body(run, _):
        run, _ = advance(algorithm, run)
        return run, plain(env, run.state.source.transitions)

    run, windows = jax.lax.scan(body, run, None, steps)
    return run, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), windows)
