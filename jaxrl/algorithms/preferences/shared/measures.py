"""Exact measures of policies in text environments that are small enough to enumerate."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses, solvers
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.exact.answers import Answers, answer_log_probs, enumerate_answers, optimal_answers
from jaxrl.kit.parts import with_shared

MOST = 2000  # answers to one prompt


def exact_scores(env: Environment, optimum: bool) -> dict[str, str]:
    """Return what `measure_answers` measures in `env`, each with its label.

    optimum: whether a reference policy, the target network of the actor-critic, and a
        hyperparameter `beta` say what is optimal.
    """
    if not _is_small(env):
        return {}
    scores = {"exact_return": "expected return"}
    if optimum:
        scores["kl_to_optimum"] = "KL to the optimum"
        if env.judge is not None:
            scores["preference_gap"] = "duality gap"
    return scores


def measure_answers(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return exact measures of a token policy, means over prompts; none where answers are too many.

    - `exact_return`: expected return of a sampled answer.
    - `kl_to_optimum`: KL(policy || optimum of return - beta KL), where `exact_scores` has it.
    - `preference_gap`: duality gap of the preference game with that beta, where there is a judge.

    env, config, policy, key: as in `kit.builder.Measure`.
    """
    part, hyper = policy.state.parts["actor_critic"], policy.state.hyper
    scores = exact_scores(env, part.target is not None and "beta" in hyper)
    if not scores:
        return {}
    answers, network = _answers(env), token_network(env, config)
    now = answer_log_probs(network, part.params, answers)
    found = {"exact_return": (jnp.exp(now) * answers.reward).sum(-1)}
    if "kl_to_optimum" in scores:
        reference = answer_log_probs(network, with_shared(part.target, part.params), answers)
        best = optimal_answers(answers.reward, reference, hyper["beta"])
        found["kl_to_optimum"] = losses.categorical_kl(now, best)
        if answers.preference is not None:
            game = answers.preference, now, reference, hyper["beta"]
            found["preference_gap"] = solvers.preference_gap(*game)
    return {name: value.mean() for name, value in found.items()}


def _is_small(env: Environment) -> bool:
    """Return whether `env` has answers, and few."""
    space = env.action_space
    if env.max_steps is None or not isinstance(space, Discrete):
        return False
    few = sum((space.n - 1) ** n for n in range(env.max_steps + 1)) <= MOST
    return few and example_timestep(env).tokens is not None


@functools.cache
def _answers(env: Environment) -> Answers:
    """Return all answers of an environment, as constants of whatever program asks."""
    with jax.ensure_compile_time_eval():
        return enumerate_answers(env)
