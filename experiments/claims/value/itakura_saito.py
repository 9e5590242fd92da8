"""The Itakura-Saito loss against those that it replaces.

How exactly does each learn the certainty equivalents of gambles, known by dynamic programming?
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

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
from jaxrl.algorithms.value.itakura_saito_dqn import (
    UtilityLoss,
    itakura_saito_dqn,
    utility_error,
)
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.train import start, train
from jaxrl.core.types import Array, Environment, Key
from jaxrl.kit.wrapping import params_of


def exponential(value: Array, target: Array, aversion: Array) -> Array:
    """Return the squared difference of exponentials (equation EMSE)."""
    u, v = (jnp.exp(-aversion * x) for x in (value, target))
    return jnp.square((u - v) / aversion) / 2


def softplus(value: Array, target: Array, aversion: Array) -> Array:
    """Return a loss with the gradient of equation SP, 2 d / (1 + exp(-alpha d)).

    d is the difference of value and target.
    """
    difference = jax.lax.stop_gradient(value - target)
    return 2 * difference * jax.nn.sigmoid(aversion * difference) * value


def dqn_with(name: str, loss: UtilityLoss) -> Any:
    """Return the same DQN with another loss."""
    return itakura_saito_dqn.variant(name, error=utility_error(loss))


def equivalents(env: Environment, aversion: Array) -> Array:
    """Return Q [S, A] of exponential utility, by backward induction."""
    table: Any = env.params
    paid, chance = jnp.asarray(table.reward, jnp.float32), jnp.asarray(table.probability)
    value, rows = jnp.float32(0), []
    for t in reversed(range(env.max_steps or 0)):
        outcome = -jnp.log((chance[t] * jnp.exp(-aversion * paid[t])).sum(-1)) / aversion
        rows.append(outcome + value)
        value = rows[-1].max()
    return jnp.stack(rows[::-1])


def measure_errors(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
    """Measure the root mean squared error of all action values, before (`untrained`) and after."""
    env, algorithm = measure.build(trial)
    steps = (trial.env_steps - algorithm.initial_env_steps) // algorithm.env_steps
    found = errors(
        env, algorithm, measure.configure(trial), 1 if trial.tiny else steps, keys, dict(hyper)
    )
    env_steps = algorithm.initial_env_steps + algorithm.env_steps * steps
    return found | {"env_steps": jnp.full(len(keys), env_steps, jnp.float32)}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def errors(env, algorithm, config, steps, keys, hyper):
    network = q_network(env, config.torso)
    exact = equivalents(env, config.aversion)
    states = jnp.arange(env.max_steps)
    timestep = jax.vmap(lambda s: env.reset(jax.random.key(0), env.params)[1])(states)
    timestep = dataclasses.replace(timestep, observation=jnp.eye(env.max_steps, env.max_steps + 1))

    def one(key, hyper):
        begun = start(algorithm, key, hyper)
        run, _ = train(algorithm, begun, steps)

        def error(run):
            q = network.apply(params_of(run.state.agent)["q"], timestep)[..., 0]
            return jnp.sqrt(jnp.square(q - exact).mean())

        return {"untrained": error(begun), "error": error(run)}

    return jax.vmap(one)(keys, hyper)


SETTINGS = {"num_envs": 8, "num_steps": 4, "updates": 8, "batch_size": 32, "warmup": 128}
SETTINGS |= {"capacity": 4096, "period": 25, "hidden": (64,), "optimizer.flat": True}
SETTINGS |= {
    "exploration.start": 1.0,
    "exploration.end": 1.0,
}  # the same experience for all sides
SETTINGS |= {"optimizer.learning_rate_steps": 8192.0}
GRID = {"optimizer.learning_rate": (1e-3, 3e-3, 1e-2)}


def gambles_at(name: str, level: float) -> Arena:
    """Return gambles with winnings of about `level` under any policy."""
    environment = "experiments.claims.policy_gradient._gambles:gambles"
    return Arena(environment, 8_320, 0.0, 12.0, params={"level": level}, name=name)


CLAIM = Claim(
    paper=Paper(
        "Risk-Averse Reinforcement Learning with Itakura-Saito Loss",
        "Udovichenko, Croissant, Toleutaeva, Burnaev and Korotin",
        2025,
        "2505.16925",
        "For exponential utility the Itakura-Saito loss is minimized by the right values, whatever "
        "their level and distribution; the squared difference of exponentials is unstable, and the "
        "softplus loss is wrong if returns are not Gaussian. It outperforms both in portfolio "
        "problems, some with known solutions.",
    ),
    claim="The Itakura-Saito loss learns certainty equivalents more exactly than softplus, and "
    "than the exponential loss where winnings are high.",
    left_out="Portfolios, hedging and risk-sensitive soft actor-critic; policies.",
    parts=(
        "jaxrl/algorithms/value/itakura_saito_dqn.py",
        "jaxrl/algorithms/value/dqn.py",
        "jaxrl/algorithms/value/shared/q_learning.py",
        "jaxrl/losses/distributions/risk.py",
        "experiments/claims/policy_gradient/_gambles.py",
    ),
    metric=Metric(
        "error",
        0.0,
        12.0,
        more_is_better=False,
        meaning="the root mean square of the differences of all action values after learning from "
        "exact ones",
    ),
    environments=(gambles_at("rich", 12.0), gambles_at("poor", -12.0)),
    sides={
        "Itakura-Saito": Side(itakura_saito_dqn, SETTINGS, GRID),
        "exponential": Side(dqn_with("exponential", exponential), SETTINGS, GRID),
        "softplus": Side(dqn_with("softplus", softplus), SETTINGS, GRID),
    },
    clauses=(
        better("Itakura-Saito", "exponential", 0.1, "rich"),
        not_worse("Itakura-Saito", "exponential", 0.1, "poor"),
        better("Itakura-Saito", "softplus", 0.25, "rich"),
        better("Itakura-Saito", "softplus", 0.25, "poor"),
    ),
    measure=measure_errors,
    seeds=72,
    tuning_seeds=16,
    minutes=6.0,
    notes="The error is the root mean squared error of all action values; exact ones are known by "
    "backward induction. Alpha is 1. Gambles are chosen at random, so that all sides learn from "
    "the same kind of experience. Softplus descends the gradient of its loss, whose value is not "
    "reported.",
    mutations=(
        Mutation(
            "aversion has the wrong sign",
            "jaxrl.losses:itakura_saito",
            lambda loss: lambda value, target, aversion: loss(value, target, -aversion),
        ),
    ),
)
