"""Uni-O4 on Pendulum: multi-step improvement offline against cloning and one step, and whether the
switch to online PPO costs anything."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from jaxrl import envs
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Environment, Policy
from jaxrl.datasets import cache
from jaxrl.datasets.data import score
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.systems.offline.uni_o4 import uni_o4
from jaxrl.systems.offline.uni_o4_improvement import uni_o4_improvement
from jaxrl.systems.policy_gradient.ppo import ppo

PAPER = {
    "title": "Uni-O4: Unifying Online and Offline Deep Reinforcement Learning with Multi-Step "
    "On-Policy Optimization",
    "authors": "Lei, He, Lu, Hu, Gao and Xu",
    "year": 2023,
    "arxiv": "2311.03351",
}
CLAIM = (
    "PPO on a data set whose behaviour policies are replaced when offline evaluation says so is "
    "better than cloning and than PPO of one step."
)
PARTS = (
    "jaxrl/systems/offline/uni_o4.py",
    "jaxrl/systems/offline/uni_o4_improvement.py",
    "jaxrl/systems/offline/iql.py",
    "jaxrl/networks/dynamics.py",
    "jaxrl/sources/dataset.py",
    "jaxrl/systems/policy_gradient/ppo.py",
)

METRIC = (
    "D4RL's normalized score (0 random, 100 expert) of the greedy policy after offline learning"
)
MARGIN = 10.0
KIND, SIZE = "medium-replay", 20_000
UPDATES = 50
AGENT: dict[str, Any] = {
    "data.name": KIND,
    "torso.hidden": (64, 64),
    "model_hidden": (64, 64),
    "optimizer.learning_rate": 1e-3,
    "model.learning_rate": 1e-3,
    "target.rate": 0.02,
    "discount": 0.95,
}
RATE = 1e-3  # of improvement
ONLINE = replace(
    ppo.Config(),
    {
        "rollouts.num_envs": 16,
        "rollouts.num_steps": 128,
        "passes.epochs": 4,
        "passes.minibatches": 8,
        "optimizer.learning_rate": 1e-4,
        "discount": 0.95,
        "torso.hidden": (64, 64),
        "normalization.observation": True,
    },
)
# What is switched off: the replacement of behaviour policies; then all improvement.
VARIANTS = {
    "Uni-O4": (0.0, RATE),
    "one step": (np.inf, RATE),
    "cloning": (0.0, 0.0),
}
NOTES = (
    "Paper: D4RL's worlds, 2M steps of supervision; here Pendulum, 20k steps of PPO's learning, "
    "10k gradient steps of supervision and 2k of improvement, then 20 updates of PPO (41k steps). "
    "All three share every setting and the supervised phase, and act with the member that AM-Q "
    "says is best. Between the first recorded attempt and the second the policies' step size (of "
    "3e-4 and 1e-3) and the number of steps were chosen on 4 other seeds; one step was better with "
    "1e-3 too, and with no other number of steps by more than it varies. The switch to PPO is in "
    "the details: its policy is the same, so what is measured is its first updates. CQL to SAC, "
    "which the paper compares the switch with, is not here."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Returns offline and in the first updates online, seed by seed."""
    found = measure(key, budget)
    scores = found["score"]
    return compare(
        CLAIM,
        METRIC,
        figure("Uni-O4", scores["Uni-O4"]),
        figure("best of the clones by AM-Q", scores["cloning"]),
        budget,
        MARGIN,
        figure("one step (behaviour policies never replaced)", scores["one step"]),
        [figure(name, x) for name, x in found["details"].items()],
        NOTES,
    )


def measure(key: jax.Array, budget: Budget) -> dict[str, Any]:
    env = envs.make("pendulum")
    keys = jax.random.split(key, budget.num_seeds(2, 5, 10))
    size, batch = budget.choose(400, SIZE), budget.choose(8, 64)
    updates = budget.choose(2, UPDATES)
    references = cache.load(env, KIND, size).references
    assert references is not None
    data = {"data.size": size, "data.batch_size": batch, "data.updates": updates}
    rollouts = {"starts": budget.choose(8, 128), "horizon": budget.choose(2, 50)}
    first = uni_o4(env, replace(uni_o4.Config(), AGENT | data))
    second = uni_o4_improvement(env, replace(uni_o4_improvement.Config(), AGENT | data | rollouts))
    rounds = budget.choose((2, 2), (200, 40), (400, 100))
    cloned = _cloned(first, keys, rounds[0])
    margins, rates = (jnp.asarray(x, jnp.float32) for x in zip(*VARIANTS.values(), strict=True))
    steps = float(rounds[1] * updates)
    parts = budget.choose(1, 5)
    returns, estimates, truths, states = _improved(
        env, second, cloned, keys, margins, rates, steps, rounds[1] // parts, parts
    )
    online = ppo(env, ONLINE)
    curve = _online(env, second, online, states, keys, budget.choose(2, 20))
    to_score = lambda x: score(np.asarray(x, np.float64), references)
    scores = dict(zip(VARIANTS, to_score(returns).T, strict=True))
    curve = to_score(curve)
    early = max(1, (curve.shape[1] - 1) // 10)
    lowest = curve[:, 1 : 1 + early].min(1)
    details = {
        "score at the switch": curve[:, 0],
        "lowest score in the first tenth of fine-tuning": lowest,
        "that, as a share of the score at the switch": lowest / curve[:, 0],
        "score after fine-tuning": curve[:, -1],
        "rank correlation of AM-Q with the true return": [
            _spearman(a, b) for a, b in zip(np.asarray(estimates), np.asarray(truths), strict=True)
        ],
    }
    return {"score": scores, "details": details, "curve": curve}


@functools.partial(jax.jit, static_argnums=(0, 2))
def _cloned(algorithm: Algorithm, keys: jax.Array, rounds: int) -> Any:
    """What the supervised phase hands over, [seeds]."""
    assert algorithm.agent is not None
    hand_over = algorithm.agent.hand_over

    def one(key):
        run, _ = train(algorithm, start(algorithm, jax.random.fold_in(key, 0)), rounds)
        return hand_over(run.state.agent)

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnums=(0, 1, 7, 8))
def _improved(
    env: Environment,
    algorithm: Algorithm,
    agents: Any,
    keys: jax.Array,
    margins: jax.Array,
    rates: jax.Array,
    steps: float,
    rounds: int,
    parts: int,
):
    """Returns [seeds, variants] after `parts` times `rounds` of improvement; of the first variant
    AM-Q and true returns of all members after each part [seeds, parts * members], and agents."""
    assert algorithm.agent is not None
    play = algorithm.agent.act

    def one(key, agent, margin, rate):
        plan = {"improvement.learning_rate": rate, "improvement.learning_rate_steps": steps}
        hyper = {"margin": margin} | plan
        run = start(algorithm, jax.random.fold_in(key, 1), hyper)
        run = Run(take_over(run.state, agent), run.key, run.step)

        def part(run, key):
            run, _ = train(algorithm, run, rounds)
            state = run.state.agent
            scores = state.agent.extra["scores"]

            def returns(choice):
                inner = dataclasses.replace(state.agent, extra={"scores": choice})
                policy = Policy(play, lambda n: (), dataclasses.replace(state, agent=inner))
                return evaluate(env, policy, key, 32).returns.mean()

            return run, (scores, jax.vmap(returns)(jnp.eye(len(scores))))

        run, (estimates, truths) = jax.lax.scan(part, run, jax.random.split(key, parts))
        best = truths[-1][estimates[-1].argmax()]
        return best, estimates.reshape(-1), truths.reshape(-1), run.state.agent

    over_variants = jax.vmap(one, (None, None, 0, 0))
    returns, estimates, truths, agents = jax.vmap(over_variants, (0, 0, None, None))(
        keys, agents, margins, rates
    )
    return returns, estimates[:, 0], truths[:, 0], jax.tree.map(lambda x: x[:, 0], agents)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 5))
def _online(env, offline: Algorithm, online: Algorithm, agents, keys, updates: int):
    """Greedy returns [seeds, 1 + updates]: at the switch, and after each update of PPO."""
    assert offline.agent is not None
    hand_over = offline.agent.hand_over

    def one(key, agent):
        run_key, key = jax.random.split(jax.random.fold_in(key, 2))
        run = start(online, run_key)
        run = Run(take_over(run.state, hand_over(agent)), run.key, run.step)
        returns = lambda run: evaluate(env, online.policy(run.state), key, 32).returns.mean()

        def step(run, _):
            run, _ = train(online, run, 1)
            return run, returns(run)

        _, curve = jax.lax.scan(step, run, None, updates)
        return jnp.append(returns(run)[None], curve)

    return jax.vmap(one)(keys, agents)


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of the ranks of `a` and `b` [n]."""
    rank = lambda x: np.argsort(np.argsort(x))
    return float(np.corrcoef(rank(a), rank(b))[0, 1])
