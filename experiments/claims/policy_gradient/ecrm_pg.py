"""REINFORCE under an expected conditional risk measure, and on the mean, in gambles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.policy_gradient._gambles import PAYS, gambles
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
)
from jaxrl import losses
from jaxrl.algorithms.policy_gradient.ecrm_reinforce import ecrm_reinforce
from jaxrl.algorithms.policy_gradient.reinforce import reinforce
from jaxrl.algorithms.policy_gradient.shared.augmented import augmented_space
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Array, Key
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit.wrapping import params_of
from jaxrl.networks.actor_critic import ActorCritic

TAIL, WEIGHT = 0.1, 0.25
COSTS = tuple(float(x) for x in np.unique(-PAYS))  # all thresholds that may be best


def risk(choose: Callable[[Array], Array], weight: float = WEIGHT) -> Array:
    """Return the expected conditional risk, by nested dynamic programming.

    choose: takes costs to come [S, H + 1, A, H], in which the second axis is the current threshold
        (the last: none) and the last axis the next one; returns those of a policy, [S, H + 1].
    """
    table: Any = gambles().params
    chance, cost, thresholds = table.probability, -table.reward, np.asarray(COSTS)
    excess = np.maximum(cost[:, None] - thresholds[:, None, None], 0) / TAIL  # [S, H, A, K]
    risky = (1 - weight) * cost[:, None] + weight * excess
    now = (chance[:, None] * np.concatenate((risky, cost[:, None]), 1)).sum(-1)  # [S, H + 1, A]
    running = chance * ~table.terminal[table.successor]
    successor = jnp.asarray(table.successor)

    def back(value, bound):
        later = (running[..., None] * (value[successor, :-1] + bound)).sum(2)  # [S, A, H]
        return choose(now[..., None] + later[:, None]), None

    # After the last step no cost is left.
    steps = gambles().max_steps or 0
    bounds = jnp.broadcast_to(weight * thresholds, (steps, len(COSTS))).at[0].set(0.0)
    value, _ = jax.lax.scan(back, jnp.zeros(now.shape[:2]), bounds)
    return value[table.start, -1].mean()


def measure_risk(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
    """Measure the exact risk of the policy before and after learning, and the tail of costs.

    The tail is the mean of the worst tenth of costs of complete episodes. A policy without
    thresholds is measured with the best ones.
    """
    env, algorithm = measure.build(trial)
    steps = 1 if trial.tiny else trial.env_steps // algorithm.env_steps
    episodes = 8 if trial.tiny else trial.environment.episodes
    averse, hidden = trial.side.algorithm is ecrm_reinforce, measure.configure(trial).torso.hidden
    found = train_and_measure(env, algorithm, averse, hidden, steps, episodes, keys, dict(hyper))
    env_steps = algorithm.env_steps * steps
    return found | {"env_steps": jnp.full(len(keys), env_steps, jnp.float32)}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def train_and_measure(env, algorithm, averse, hidden, steps, episodes, keys, hyper):
    states, actions, number = len(env.params.terminal), env.action_space.n, len(COSTS)
    place = jnp.eye(states)
    if averse:
        threshold = jnp.concatenate((jnp.eye(number), jnp.zeros((1, number))))
        pairs = jnp.broadcast_to(place[:, None], (states, number + 1, states))
        place = jnp.concatenate(
            (pairs, jnp.broadcast_to(threshold, (states, *threshold.shape))), -1
        )
        network = ActorCritic(augmented_space(env, number), Discrete(actions * number), hidden)
    else:
        network = ActorCritic(env.observation_space, env.action_space, hidden)
    timestep = dataclasses.replace(example_timestep(env), observation=place)

    def one(key, hyper):
        train_key, key = jax.random.split(key)
        begun = start(algorithm, train_key, hyper)
        run, _ = train(algorithm, begun, steps)

        def of(run):
            logits = network.apply(params_of(run.state.agent)["policy"], timestep, ())[0].logits
            policy = jax.nn.softmax(logits)
            if averse:
                policy = policy.reshape(states, -1, actions, number)
                return risk(lambda q: (policy * q).sum((-2, -1)))
            return risk(lambda q: (policy[:, None] * q.min(-1)).sum(-1))

        costs = -evaluate(env, algorithm.policy(run.state), key, episodes, greedy=False).returns
        return {"untrained": of(begun), "risk": of(run), "tail": losses.cvar(costs, TAIL)}

    return jax.vmap(one)(keys, hyper)


GAMBLES = "experiments.claims.policy_gradient._gambles:gambles"
BEST = -2.1  # `risk(lambda q: q.min((-2, -1)))`
SETTINGS = {"num_envs": 32, "hidden": (32,), "optimizer.name": "adam", "optimizer.flat": True}
SETTINGS |= {"discount": 1.0}
GRID = {"optimizer.learning_rate": (3e-3, 1e-2, 3e-2), "entropy_weight": (0.01, 0.05)}
AVERSE = {"thresholds": COSTS, "tail": TAIL, "weight": WEIGHT}

CLAIM = Claim(
    paper=Paper(
        "On the Global Convergence of Risk-Averse Policy Gradient Methods with Expected "
        "Conditional Risk Measures",
        "Yu and Ying",
        2023,
        "2301.10932",
        "Policy gradients of expected conditional risk measures converge to the global optimum, "
        "directly parameterized and as a softmax; a stochastic cliff walk shows the worth of "
        "risk-averse REINFORCE, and of controlling risk.",
    ),
    claim="Risk-averse REINFORCE closes half of the gap from the mean's risk to the optimum in "
    "gambles, and its worst tenth costs less.",
    left_out="Rates of convergence; direct parameters; actor-critics and natural gradients; the "
    "cliff walk, where both sides ended near the optimum.",
    parts=(
        "jaxrl/algorithms/policy_gradient/ecrm_reinforce.py",
        "jaxrl/algorithms/policy_gradient/reinforce.py",
        "jaxrl/algorithms/policy_gradient/shared/augmented.py",
        "jaxrl/losses/distributions/risk.py",
        "experiments/claims/policy_gradient/_gambles.py",
    ),
    metric=Metric(
        "risk",
        BEST,
        4.2,
        more_is_better=False,
        meaning="the expected conditional risk of the policy after learning, computed exactly",
    ),
    environments=(Arena(GAMBLES, 245_760, BEST, 4.2, episodes=1024, name="gambles"),),
    sides={
        "averse": Side(ecrm_reinforce, SETTINGS | AVERSE, GRID),
        "neutral": Side(reinforce, SETTINGS, GRID),
    },
    clauses=(better("averse", "neutral", 0.9), better("averse", "neutral", metric="tail")),
    measure=measure_risk,
    seeds=32,
    tuning_seeds=6,
    minutes=4.0,
    notes="Risk is exact, from backward induction over steps and thresholds. The best is -2.1; the "
    "policy with the best mean has -0.2, and one that draws gambles and thresholds at random 4.2. "
    "The risk of the side that learns the mean is taken with the best thresholds.",
    mutations=(
        Mutation(
            "costs above the threshold do not count",
            "jaxrl.losses:ecrm_cost",
            lambda f: lambda cost, *rest: f(cost, *rest[:-1], 0.0),
        ),
    ),
)
