"""Cloning and IQL on datasets of several kinds: the best algorithm depends on the data."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from experiments.claims.offline import _datasets
from experiments.evidence import measure
from experiments.evidence.declare import (
    Arena,
    Claim,
    Measured,
    Metric,
    Mutation,
    Paper,
    Side,
    Trial,
    better,
    not_worse,
)
from jaxrl.algorithms.offline.iql import iql
from jaxrl.core.train import train
from jaxrl.evaluation.evaluate import evaluate


def measure_returns(trial: Trial, keys, hyper) -> Measured:
    """Measure mean greedy returns [runs] at the end and at the beginning.

    Cloning ends where its error on the actions of held-out episodes is least.
    """
    env, algorithm = measure.build(trial)
    config = measure.configure(trial)
    data = _datasets.draw_all(env, config.data.name, config.discount, keys, trial.tiny)
    points, steps = (1, 1) if trial.tiny else measure.schedule(trial, algorithm)
    episodes = 2 if trial.tiny else trial.environment.episodes
    stopped = trial.name == "cloning"
    found = _learn(env, algorithm, keys, data, dict(hyper), steps, points, episodes, stopped)
    taken = points * steps * algorithm.env_steps
    return found | {"env_steps": jnp.full(len(keys), taken, jnp.float32)}


@functools.partial(jax.jit, static_argnums=(0, 1, 5, 6, 7, 8))
def _learn(env, algorithm, keys, data, hyper, steps, points, episodes, stopped):
    def one(key, data, hyper):
        key, *keys = jax.random.split(key, 2 + points)
        reached = lambda run, key: evaluate(env, algorithm.policy(run.state), key, episodes).returns

        def part(run, key):
            run, _ = train(algorithm, run, steps)
            error = _datasets.held_out_error(algorithm.policy(run.state), data, key)
            return run, (reached(run, key).mean(), error)

        run = _datasets.begin(algorithm, key, data, hyper)
        _, (returns, errors) = jax.lax.scan(part, run, jnp.stack(keys[1:]))
        moment = errors.argmin() if stopped else points - 1
        stop = (moment + 1) / points
        untrained = reached(run, keys[0]).mean()
        return {"final": returns[moment], "untrained": untrained, "stopped at": stop}

    return jax.vmap(one)(keys, data, hyper)


IQL = _datasets.OnOwnData(iql)
CLONING = {"temperature": float("inf")}
COMMON = {
    "data.batch_size": 64,
    "data.updates": 50,
    "torso.hidden": (64, 64),
    "critic.learning_rate": 1e-3,
    "actor.learning_rate": 1e-3,
    "actor.learning_rate_steps": 10_000.0,
    "target.rate": 0.02,
    "discount": 0.97,
    "normalization.observation": True,
}


def data(kind: str) -> Arena:
    settings = COMMON | {"data.name": kind}
    # Gradient steps, since none are played.
    return Arena(
        "pendulum", 10_000, -1_700.0, 0.0, settings=settings, points=10, episodes=32, name=kind
    )


CLAIM = Claim(
    paper=Paper(
        "D4RL: Datasets for Deep Data-Driven Reinforcement Learning",
        "Fu, Kumar, Nachum, Tucker and Levine",
        2020,
        "2004.07219",
        "Data of one good policy say little about offline RL: the shortcomings of algorithms show "
        "on realistic data, such as replay buffers and mixtures of policies, where cloning fails.",
    ),
    claim="Offline RL (IQL) gains over cloning on a replay buffer and on mixed data, but not on an "
    "expert's.",
    left_out="Other environments and kinds of data, soft actor-critic's data of 1M steps (here "
    "PPO's, at most 330k), and other algorithms.",
    parts=(
        "experiments/claims/offline/_datasets.py",
        "jaxrl/algorithms/offline/shared/making.py",
        "jaxrl/algorithms/offline/iql.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
    ),
    metric=Metric(
        "final",
        -1_700.0,
        0.0,
        meaning="the mean return of greedy episodes after offline learning, which for cloning "
        "ends where its error on held-out episodes is least",
    ),
    environments=(data("medium-replay"), data("mixed"), data("expert")),
    sides={
        "IQL": Side(IQL, grid={"temperature": (0.3, 1.0, 3.0)}),
        "cloning": Side(
            IQL, CLONING, {"actor.learning_rate": (3e-4, 1e-3, 3e-3)}, "It is IQL without weights."
        ),
        "no weights": Side(IQL, CLONING),
    },
    clauses=(
        better("IQL", "cloning", 100.0, "medium-replay", "mixed"),
        not_worse("cloning", "IQL", 100.0, "expert"),
        better("IQL", "no weights", 0.0, "medium-replay", "mixed", of_mechanism=True),
    ),
    seeds=60,
    minutes=28.0,
    measure=measure_returns,
    tuned_by="final",
    tuning_seeds=3,
    notes="Every run has its own dataset, from its own run of PPO. Cloning stops where its error "
    "on held-out episodes is least. Margins are about a tenth of the way from random to expert.",
    mutations=(
        Mutation(
            "advantages change sign",
            "jaxrl.losses:awr",
            lambda f: lambda log_prob, advantage, *more: f(log_prob, -advantage, *more),
        ),
    ),
)
