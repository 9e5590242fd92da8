"""REINFORCE under an expected conditional risk measure on a slippery cliff, against the exact
optimum of nested dynamic programming and against REINFORCE on the mean."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence import measure
from experiments.evidence.declare import (
    Claim,
    Measured,
    Metric,
    Mutation,
    Paper,
    Side,
    Trial,
    World,
    better,
)
from jaxrl import losses
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.tables import gridworld, mdp
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit.wrapping import params_of
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.systems.policy_gradient.augmented import space
from jaxrl.systems.policy_gradient.ecrm_reinforce import ecrm_reinforce
from jaxrl.systems.policy_gradient.reinforce import reinforce

STEPS, FALL, DISCOUNT, TAIL, WEIGHT = 16, 12.0, 0.95, 0.1, 0.5
COSTS = (1.0, FALL)  # of a step, and so all thresholds that may be best


@functools.cache
def cliff() -> Environment:
    """A cliff of two cells, below a path of one step each and a safer one above. A step slips to
    either side with probability 0.05, and costs 1, or into the cliff, back to the corner, 12.
    Episodes begin anywhere else: the paper's theorems have every state among the first."""
    grid = gridworld.Grid(("    ", "    ", "SCCG"))
    moved = grid.moved((gridworld.UP, gridworld.RIGHT, gridworld.DOWN, gridworld.LEFT))
    reached, probability = gridworld.slips(moved, gridworld.sideways(0.9))
    fallen, begin = np.isin(reached, grid.find("C")), grid.find("S")
    table = mdp.build(
        np.where(fallen, begin, reached),
        probability,
        np.where(fallen, -FALL, -COSTS[0]),
        start=np.concatenate((begin, grid.find(" "))),
        terminal=grid.find("G"),
        discount=DISCOUNT,
    )
    return mdp.environment("cliff", table, max_steps=STEPS)


def risk(choose: Callable[[Array], Array], weight: float = WEIGHT) -> Array:
    """The expected conditional risk, by nested dynamic programming.

    choose: from costs to come [S, H + 1, A, H], of which the second axis is the threshold in force
        (the last: none) and the last the next one's, those [S, H + 1] of what a policy chooses.
    """
    table: Any = cliff().params
    chance, cost, thresholds = table.probability, -table.reward, np.asarray(COSTS)
    excess = np.maximum(cost[:, None] - thresholds[:, None, None], 0) / TAIL  # [S, H, A, K]
    risky = (1 - weight) * cost[:, None] + weight * excess
    now = (chance[:, None] * np.concatenate((risky, cost[:, None]), 1)).sum(-1)  # [S, H + 1, A]
    running = chance * ~table.terminal[table.successor]
    successor = jnp.asarray(table.successor)

    def back(value, bound):
        later = (running[..., None] * (value[successor, :-1] + bound)).sum(2)  # [S, A, H]
        return choose(now[..., None] + DISCOUNT * later[:, None]), None

    # Nothing follows the last step.
    bounds = jnp.broadcast_to(weight * thresholds, (STEPS, len(COSTS))).at[0].set(0.0)
    value, _ = jax.lax.scan(back, jnp.zeros(now.shape[:2]), bounds)
    return value[table.start, -1].mean()


def measured(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
    """The exact risk of the policy before and after learning, and the mean of the worst tenth of
    what whole episodes cost. Where the policy knows no thresholds, the best are meant."""
    env, algorithm = measure.built(trial)
    steps = 1 if trial.tiny else trial.env_steps // algorithm.frames
    episodes = 8 if trial.tiny else trial.world.episodes
    averse, hidden = trial.side.system is ecrm_reinforce, measure.configured(trial).torso.hidden
    found = learned(env, algorithm, averse, hidden, steps, episodes, keys, dict(hyper))
    env_steps = algorithm.frames * steps
    return found | {"env_steps": jnp.full(len(keys), env_steps, jnp.float32)}


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def learned(env, algorithm, averse, hidden, steps, episodes, keys, hyper):
    states, actions, number = len(env.params.terminal), env.action_space.n, len(COSTS)
    place = jnp.eye(states)
    if averse:
        threshold = jnp.concatenate((jnp.eye(number), jnp.zeros((1, number))))
        pairs = jnp.broadcast_to(place[:, None], (states, number + 1, states))
        place = jnp.concatenate(
            (pairs, jnp.broadcast_to(threshold, (states, *threshold.shape))), -1
        )
        network = ActorCritic(space(env, number), Discrete(actions * number), hidden)
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


BEST = 4.292  # of `risk(lambda q: q.min((-2, -1)))`
SETTINGS = {"num_envs": 32, "hidden": (32,), "optimizer.name": "adam", "optimizer.flat": True}
SETTINGS |= {"discount": DISCOUNT}
GRID = {"optimizer.learning_rate": (1e-2, 3e-2), "entropy_weight": (0.2, 0.3)}
AVERSE = {"thresholds": COSTS, "tail": TAIL, "weight": WEIGHT}

CHECK = Claim(
    paper=Paper(
        "On the Global Convergence of Risk-Averse Policy Gradient Methods with Expected "
        "Conditional Risk Measures",
        "Yu and Ying",
        2023,
        "2301.10932",
        "Policy gradients of expected conditional risk measures converge to the global optimum, "
        "directly parameterised and as a softmax; risk-averse REINFORCE shows its worth, and that "
        "of controlling risk, on a stochastic cliff walk.",
    ),
    claim="On a slippery cliff it closes half of the gap between the mean's risk and the exact "
    "optimum, and its worst tenth costs less.",
    left_out="Rates of convergence; direct parameters; actor-critics and natural gradients.",
    parts=(
        "jaxrl/systems/policy_gradient/ecrm_reinforce.py",
        "jaxrl/systems/policy_gradient/reinforce.py",
        "jaxrl/systems/policy_gradient/augmented.py",
        "jaxrl/losses/distributions/risk.py",
    ),
    metric=Metric("risk", BEST, 50.0, more_is_better=False),
    worlds=(World(f"{__name__}:cliff", 245_760, BEST, 50.0, episodes=1024, name="slippery cliff"),),
    sides={
        "averse": Side(ecrm_reinforce, SETTINGS | AVERSE, GRID),
        "neutral": Side(reinforce, SETTINGS, GRID),
    },
    clauses=(better("averse", "neutral", 0.75), better("averse", "neutral", metric="tail")),
    measure=measured,
    seeds=16,
    minutes=4.0,
    notes="Risk is exact, from backward induction over states and thresholds. The best is 4.29, "
    "that of the policy with the best mean 5.74. Of the side that learns the mean it is taken with "
    "the best thresholds. Without an entropy bonus (which some of the paper's theorems have) most "
    "seeds ended, in a pilot, in a corner that they fear to leave.",
    mutations=(
        Mutation(
            "costs above the threshold do not count",
            "jaxrl.losses:ecrm_cost",
            lambda f: lambda cost, *rest: f(cost, *rest[:-1], 0.0),
        ),
    ),
)
