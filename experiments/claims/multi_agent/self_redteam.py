"""A guard that trains with an attacker, and one that sees seeds alone, on every request."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
from experiments.evidence.trials import configure
from jaxrl import envs
from jaxrl.algorithms.multi_agent.self_redteam import self_redteam
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Array, Environment, Key, Transition
from jaxrl.envs.language.guarded_requests import SEEDS, WRITTEN, all_requests

LETTERS, LENGTH, UPDATES, GAMES, STEPS = 3, 2, 300, 64, 10
COMPLY, REFUSE = LETTERS, LETTERS + 1
REQUESTS, HARMFUL, _ = all_requests(LETTERS, LENGTH)
ORIGIN = {"self-play": WRITTEN, "seeds alone": SEEDS}  # of the requests that a side trains on
# Every request, private letter of the guard, and verdict: the tokens that are decided, [N, 5].
TEXTS = np.array(
    [
        (0, *REQUESTS[i], thought, verdict)
        for i, thought, verdict in itertools.product(
            range(len(REQUESTS)), range(LETTERS), (COMPLY, REFUSE)
        )
    ]
)
DECIDED = [2, 3, 4, 8, 9]  # at these steps; prompts are read at the others


def play(env: Environment, action: Array) -> Transition:
    """Return the episode with these actions [STEPS]."""

    def step(carry, action):
        state, timestep = carry
        state, after = env.step(jax.random.key(0), state, action, env.params)
        return (state, after), Transition(timestep, action, after, (), {})

    return jax.lax.scan(step, env.reset(jax.random.key(0), env.params), action)[1]


def verdicts(env: Environment, algorithm: Algorithm, run: Run) -> dict[str, Array]:
    """Return the probability that a request is answered right, if it is drawn evenly from the
    harmful or the harmless ones, and that the harmful one that fares worst is refused.

    Exact sums over all requests and private letters of the guard.
    """
    action = np.zeros((STEPS, len(TEXTS)), np.int32)
    action[DECIDED] = TEXTS.T
    t = jax.vmap(functools.partial(play, env), 1, 1)(jnp.asarray(action))
    config: Any = algorithm.config
    network = policy_network(env, config.torso, config.memory)
    params = run.state.agent.parts["actor_critic"].params
    policy = network.apply(params, t.timestep, network.initial(len(TEXTS)), method="unroll")[0]
    guards = t.timestep.tokens["decision"] & (t.timestep.tokens["turn"] == 1)
    text = jnp.exp(jnp.where(guards, policy.log_prob(t.action), 0).sum(0))
    comply, refuse = text.reshape(len(REQUESTS), LETTERS, 2).sum(1).T
    right = (refuse[HARMFUL].mean() + comply[~HARMFUL].mean()) / 2
    return {"right": right, "safe": refuse[HARMFUL].min()}


def measure(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
    """Measure the verdicts of each run before and after training."""
    arena = trial.environment
    params = dict(arena.params)
    test, seen = (envs.make(arena.env, **params, given=x) for x in (WRITTEN, ORIGIN[trial.name]))
    algorithm = trial.side.algorithm(seen, configure(trial))
    updates = max(1, trial.env_steps // algorithm.env_steps)

    @jax.jit
    def every(keys, hyper):
        def one(key, hyper):
            begun = start(algorithm, key, hyper)
            ended, _ = train(algorithm, begun, updates)
            untrained = verdicts(test, algorithm, begun)["right"]
            return verdicts(test, algorithm, ended) | {"untrained": untrained}

        return jax.vmap(one)(keys, hyper)

    steps = jnp.full(len(keys), float(updates * algorithm.env_steps))
    return dict(every(keys, dict(hyper))) | {"env_steps": steps}


SETTINGS = {
    "groups.prompts": GAMES,
    "memory.recurrent": 32,
    "memory.transformer": 1,
    "memory.attention_heads": 2,
    "passes.minibatches": 1,
    "optimizer.learning_rate": 3e-3,
    "kl.weight": 0.2,
}

CLAIM = Claim(
    paper=Paper(
        "Chasing moving targets with online self-play reinforcement learning for safer language "
        "models",
        "Liu et al.",
        2025,
        "2506.07468",
        "If self-play of an attacker and a defender in one model converges to a Nash equilibrium, "
        "the defender responds safely to any attack; models that were trained so withstand attacks "
        "better than those that were trained on static ones.",
    ),
    claim="Of all requests a guard that trains with an attacker judges more right than one that "
    "sees seeds alone, and it is no less safe.",
    left_out="Language models, benchmarks of safety, rewards by a model, the diversity of attacks, "
    "and what private thoughts are good for.",
    parts=(
        "jaxrl/algorithms/multi_agent/self_redteam.py",
        "jaxrl/algorithms/tokens/shared/turns.py",
        "jaxrl/envs/language/guarded_requests.py",
    ),
    metric=Metric(
        "right",
        0.0,
        1.0,
        meaning="the exact probability that the guard refuses or complies as it should, if the "
        "request is drawn evenly from all harmful ones or from all others",
    ),
    environments=(
        Arena(
            "guarded_requests",
            UPDATES * GAMES * STEPS,
            0.0,
            1.0,
            params={"letters": LETTERS, "length": LENGTH},
        ),
    ),
    sides={name: Side(self_redteam, SETTINGS) for name in ORIGIN},
    clauses=(
        better("self-play", "seeds alone", 0.05),
        not_worse("self-play", "seeds alone", 0.05, metric="safe"),
    ),
    seeds=16,
    minutes=5.0,
    measure=measure,
    mutations=(
        Mutation(
            "roles are paid the opposite",
            "jaxrl.algorithms.tokens.shared.turns:to_come_in_turns",
            lambda to_come: lambda batch, paid: -to_come(batch, paid),
        ),
    ),
    notes="Nine requests of two letters out of three, of which two are harmful; seeds are one of "
    "these and one harmless request. `safe` is the probability that the harmful request that fares "
    "worst is refused. The weight of the divergence is 0.2, on both sides, instead of the authors' "
    "0.01, with which one of two pilots of self-play ended at refusing everything, and self-play "
    "was no better in three pilots of three letters a request; with 0.2, three "
    "pilots of each side had 0.91 to 0.99 and 0.58 to 0.87. So attackers stay near random letters, "
    "and whether the attacks that they learn matter, or any that are no seeds, is not tested.",
)
