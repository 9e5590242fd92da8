"""CPL against a reward model with implicit Q-learning, and against cloning, by exact values."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from experiments.evidence.course import Course, beginning, end
from experiments.evidence.declare import (
    Arena,
    Claim,
    Metric,
    Mutation,
    Paper,
    Side,
    better,
    not_worse,
)
from experiments.evidence.moments import Moment
from jaxrl.algorithms.preferences.cpl import cpl
from jaxrl.algorithms.preferences.preference_iql import preference_iql
from jaxrl.algorithms.preferences.shared import segment_policies as policies
from jaxrl.core.types import Array
from jaxrl.envs.tables import mdp
from jaxrl.exact import dynamic_programming as exact

DISCOUNT, ALPHA, STEPS = 0.9, 0.1, 1_500  # gradient steps
SEGMENTS = {
    "segments.name": "",
    "data_size": 8_000,
    "skills": (0.0,),
    "segments.length": 8,
    "segments.count": 2_000,
    "segments.batch_size": 64,
    "segments.updates": 50,
    "held_out": 0,
    "teacher.score": "regret",
    "teacher.rationality": 1.0,
    "teacher.temperature": ALPHA,
    "teacher.horizon_discount": DISCOUNT,
}
SETTINGS = SEGMENTS | {"torso.hidden": (64,)}
LOSS = {"pretraining": 300.0, "temperature": ALPHA, "bias": 1.0}
GRID = {"optimizer.learning_rate": (3e-4, 1e-3, 3e-3)}


def lost_value(moment: Moment) -> Array:
    """Return how much less the greedy policy is worth than the best one, in the mean of states."""
    env, config = moment.env, moment.algorithm.config
    network = policies.network_of(env, config.torso)
    choice = network.apply(moment.run.state.agent.parts["actor"].params, policies.all_states(env))
    with jax.ensure_compile_time_eval():
        table = mdp.tensors(env.params)
        best, _ = exact.policy_iteration(table.transition, table.reward, DISCOUNT)
    greedy = exact.greedy_policy(choice.probs)
    value = exact.policy_evaluation(table.transition, table.reward, greedy, DISCOUNT)
    return jnp.mean(best - value)


CLAIM = Claim(
    paper=Paper(
        "Contrastive Preference Learning: Learning from Human Feedback without RL",
        "Hejna, Rafailov, Sikchi, Finn, Niekum, Knox and Sadigh",
        2024,
        "2310.13639",
        "Preferences follow regret. A contrastive loss of the policy alone then learns the optimal "
        "policy from them, without a reward model and without RL, and is as good as or better than "
        "a reward model followed by implicit Q-learning, and than fine-tuning.",
    ),
    claim="From pairs labeled by regret, CPL learns a better policy than cloning, and one no worse "
    "than IQL with a reward model of these.",
    left_out="People, images, robots, and the conservative variant, whose optimum is another one.",
    parts=(
        "jaxrl/algorithms/preferences/cpl.py",
        "jaxrl/algorithms/preferences/preference_iql.py",
        "jaxrl/algorithms/preferences/shared/segments.py",
        "jaxrl/algorithms/preferences/shared/segment_policies.py",
        "jaxrl/algorithms/preferences/shared/segment_rewards.py",
        "jaxrl/algorithms/preferences/shared/teachers.py",
        "jaxrl/sources/segments.py",
        "jaxrl/losses/preferences/segments.py",
        "jaxrl/exact/dynamic_programming.py",
    ),
    metric=Metric(
        "lost",
        0.0,
        20.0,
        more_is_better=False,
        meaning="the value, at the end, by which the greedy policy falls short of the best one, "
        "in the mean of all states, exactly, at a discount of 0.9",
    ),
    environments=(Arena("random_mdp", STEPS, 0.0, 20.0, settings=SETTINGS, points=1),),
    sides={
        "CPL": Side(cpl, LOSS, GRID),
        "cloning": Side(cpl, LOSS | {"pretraining": float("inf")}, GRID),
        "a reward model and IQL": Side(
            preference_iql,
            {
                "others": 0,
                "reward.torso.hidden": (64,),
                "reward.optimizer.learning_rate": 1e-3,
                "reward.steps": 750.0,
                "discount": DISCOUNT,
                "target.rate": 0.02,
                "critic.learning_rate": 1e-3,
                "actor.learning_rate_steps": float("inf"),
            },
            {"actor.learning_rate": (3e-4, 1e-3, 3e-3)},
        ),
    },
    clauses=(
        better("CPL", "cloning"),
        not_worse("CPL", "a reward model and IQL", 0.3),
    ),
    seeds=32,
    minutes=8.0,
    measure=Course(
        {"lost": end(lost_value), "final": end(lost_value), "untrained": beginning(lost_value)}
    ),
    notes="Each run plays 8,000 steps of random actions, draws its pairs from them, and has each "
    "labeled once; steps of a run are gradient steps.",
    mutations=(
        Mutation(
            "the other segment is preferred",
            "jaxrl.losses.preferences.segments:cpl",
            lambda f: (
                lambda chosen, rejected, *more, **others: f(rejected, chosen, *more, **others)
            ),
        ),
        Mutation(
            "scores are those of the first step alone",
            "jaxrl.losses.preferences.segments:cpl",
            lambda f: (
                lambda chosen, rejected, *more, **others: f(
                    chosen[:1], rejected[:1], *more, **others
                )
            ),
        ),
    ),
)
