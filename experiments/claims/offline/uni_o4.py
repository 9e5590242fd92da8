"""Uni-O4 on Pendulum: offline improvement in several steps, and the switch to online PPO.

It is compared with cloning and with one step; does the switch cost anything?
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

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
from jaxrl.algorithms.offline.uni_o4 import uni_o4
from jaxrl.algorithms.offline.uni_o4_improvement import uni_o4_improvement
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Policy
from jaxrl.evaluation.evaluate import evaluate

IMPROVEMENT = 2_000  # gradient steps
AFTER = 4  # updates of PPO online (8,192 steps); the worst counts
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


def measure_returns(trial: Trial, keys, hyper) -> Measured:
    """Measure mean greedy returns [runs]: `offline`, after offline learning, and `untrained`.

    `final` equals `offline`; of a side that continues online it is the worst after the first
    updates there.
    """
    env, second = measure.build(trial)
    first = measure.build(dataclasses.replace(trial, side=Side(FIRST)))[1]
    config = measure.configure(trial)
    points, steps = (1, 1) if trial.tiny else measure.schedule(trial, first)
    kind, discount = config.data.name, config.discount
    agents = _datasets.once(_supervise, keys, first, env, kind, discount, trial.tiny, points, steps)
    data = _datasets.draw_all(env, kind, discount, keys, trial.tiny)
    # Clones that do not improve need one round, in which AM-Q estimates them.
    rounds = 1 if trial.tiny or trial.name == "cloning" else IMPROVEMENT // second.env_steps
    after = (1 if trial.tiny else AFTER) if trial.name == "after the switch" else 0
    episodes = 2 if trial.tiny else trial.environment.episodes
    return _improve(second, env, keys, agents, data, dict(hyper), rounds, after, episodes)


def _supervise(keys, first, env, kind, discount, tiny, points, steps) -> Any:
    return _clone(first, keys, _datasets.draw_all(env, kind, discount, keys, tiny), points, steps)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _clone(first: Algorithm, keys, data, points, steps):
    """Return what the supervised phase hands over, [seeds].

    Each clone stops at the one of `points` moments at which its error on the actions of held-out
    episodes is least; the other parts learn until the end.
    """
    assert first.agent is not None
    play, hand_over = first.agent.act, first.agent.hand_over

    def one(key, data):
        key, *keys = jax.random.split(jax.random.fold_in(key, 0), 1 + points)

        def part(carry, key):
            run, kept, least = carry
            run, _ = train(first, run, steps)
            agent = run.state.agent  # with its normalization around it

            def error(choice):
                inner = dataclasses.replace(agent.agent, extra={"scores": choice})
                policy = Policy(play, lambda n: (), dataclasses.replace(agent, agent=inner))
                return _datasets.held_out_error(policy, data, key)

            errors = jax.vmap(error)(jnp.eye(len(least)))
            new = agent.agent.parts["behaviors"].params
            return (run, *jax.vmap(_datasets.better)(new, errors, kept, least)), None

        run = _datasets.begin(first, key, data)
        members = run.state.agent.agent.parts["behaviors"].params
        least = jnp.full(len(run.state.agent.agent.extra["scores"]), jnp.inf)
        (run, kept, _), _ = jax.lax.scan(part, (run, members, least), jnp.stack(keys))
        agent = run.state.agent
        put = {
            name: dataclasses.replace(agent.agent.parts[name], params=kept)
            for name in ("behaviors", "policies")
        }
        inner = dataclasses.replace(agent.agent, parts=agent.agent.parts | put)
        return hand_over(dataclasses.replace(agent, agent=inner))

    return jax.vmap(one)(keys, data)


@functools.partial(jax.jit, static_argnums=(0, 1, 6, 7, 8))
def _improve(second: Algorithm, env, keys, agents, data, hyper, rounds, after, episodes):
    assert second.agent is not None
    hand_over, online = second.agent.hand_over, ppo(env, ONLINE)

    def one(key, agent, data, hyper):
        key, run_key, online_key = (jax.random.fold_in(key, i) for i in range(1, 4))
        # The same episodes before and after the switch.
        reached = lambda policy: evaluate(env, policy, key, episodes).returns.mean()
        new = _datasets.begin(second, run_key, data, hyper)
        run = Run(take_over(new.state, agent), new.key, new.step)
        run, _ = train(second, run, rounds)
        offline = reached(second.policy(run.state))
        found = {"offline": offline, "untrained": reached(second.policy(new.state))}
        if not after:
            return found | {"final": offline}
        on = start(online, online_key)
        on = Run(take_over(on.state, hand_over(run.state.agent)), on.key, on.step)

        def step(on, _):
            on, _ = train(online, on, 1)
            return on, reached(online.policy(on.state))

        return found | {"final": jax.lax.scan(step, on, None, after)[1].min()}

    return jax.vmap(one)(keys, agents, data, hyper)


FIRST, SECOND = _datasets.OnOwnData(uni_o4), _datasets.OnOwnData(uni_o4_improvement)
RATE = {"improvement.learning_rate": (3e-4, 1e-3, 3e-3)}
COMMON = {
    "data.name": "medium-replay",
    "data.batch_size": 64,
    "data.updates": 50,
    "torso.hidden": (64, 64),
    "model_hidden": (64, 64),
    "optimizer.learning_rate": 1e-3,
    "improvement.learning_rate_steps": float(IMPROVEMENT),
    "target.rate": 0.02,
    "discount": 0.95,
    "starts": 128,
    "horizon": 50,
}
DEVIATES = (
    "AM-Q compares a member with its behavior policy on the same states, after every 50 gradient "
    "steps instead of 100."
)

CLAIM = Claim(
    paper=Paper(
        "Uni-O4: Unifying Online and Offline Deep Reinforcement Learning with Multi-Step On-Policy "
        "Optimization",
        "Lei, He, Lu, Hu, Gao and Xu",
        2023,
        "2311.03351",
        "PPO's objective offline, on an ensemble of clones whose behavior policies are replaced "
        "when offline evaluation says so, reaches the state of the art on D4RL, and continues "
        "online without a loss at the switch.",
    ),
    claim="Replacing behavior policies as AM-Q says beats one step of PPO and cloning, and "
    "continuing online costs nothing at the switch.",
    left_out="D4RL's environments and 2M supervised gradient steps (here Pendulum and 10k), other "
    "offline algorithms, and CQL to SAC, with which the paper compares the switch.",
    parts=(
        "experiments/claims/offline/_datasets.py",
        "jaxrl/algorithms/offline/shared/making.py",
        "jaxrl/algorithms/offline/uni_o4.py",
        "jaxrl/algorithms/offline/uni_o4_improvement.py",
        "jaxrl/networks/dynamics.py",
        "jaxrl/algorithms/offline/shared/dynamics_loss.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
    ),
    metric=Metric(
        "final",
        -1_700.0,
        0.0,
        estimator="interquartile mean",
        meaning="the mean return of greedy episodes after offline learning, or, of the side after "
        "the switch, the worst such mean after each of the first four updates online",
    ),
    # Gradient steps of the supervised phase, since no steps are played offline.
    environments=(
        Arena("pendulum", 10_000, -1_700.0, 0.0, settings=COMMON, points=10, episodes=32),
    ),
    sides={
        "Uni-O4": Side(SECOND, grid=RATE, deviates=DEVIATES),
        "one step": Side(SECOND, {"margin": float("inf")}, RATE),
        "cloning": Side(SECOND, {"improvement.learning_rate": 0.0}),
        "after the switch": Side(SECOND, grid=RATE, deviates=DEVIATES),
    },
    clauses=(
        better("Uni-O4", "cloning", 100.0, "pendulum"),
        better("Uni-O4", "one step", 50.0, "pendulum"),
        not_worse("after the switch", "Uni-O4", 100.0, "pendulum"),
        better("Uni-O4", "one step", 0.0, "pendulum", of_mechanism=True),
    ),
    seeds=24,
    minutes=12.0,
    measure=measure_returns,
    tuned_by="offline",
    tuning_seeds=8,
    notes="Every run has its own dataset, from its own run of PPO, and its own supervised phase, "
    "which all sides share; each clone stops where its error on held-out episodes is least, and "
    "the member that AM-Q finds best acts. After the switch, the worst of the evaluations after "
    f"each of the first {AFTER} updates counts. One step is Uni-O4 whose behavior policies are "
    "never replaced. The middle half of the differences counts, since some data teach no side: on "
    "one of the three tuning seeds of a first design none learned.",
    mutations=(
        Mutation(
            "AM-Q's estimate has the wrong sign",
            "jaxrl.losses:amq_estimate",
            lambda f: lambda *x: -f(*x),
        ),
        Mutation(
            "the surrogate changes sign",
            "jaxrl.losses:clipped_surrogate",
            lambda f: lambda new, old, advantage, clip: f(new, old, -advantage, clip),
        ),
    ),
)
