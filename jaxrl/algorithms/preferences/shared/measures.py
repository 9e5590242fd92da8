"""Exact measures of policies in text environments that are small enough to enumerate."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses, solvers
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.exact.answers import Answers, answer_log_probs, enumerate_answers, optimal_answers

MOST = 2000  # answers to one prompt


def measure_answers(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return exact measures of a token policy, means over prompts; none where answers are too many.

    - `exact_return`: expected return of a sampled answer.
    - `exact_kl`: KL(policy || reference), where the policy has a target network as its reference.
    - `kl_to_optimum`: KL(policy || optimum of return - beta KL), where there is a `beta` too.
    - `preference_gap`: duality gap of the preference game with that beta, where there is a judge.

    env, config, policy, key: as in `kit.builder.Measure`.
    """
    answers = _answers(env)
    if answers is None:
        return {}
    network = policy_network(env, config.torso, config.memory)
    part, hyper = policy.state.parts["actor_critic"], policy.state.hyper
    now = answer_log_probs(network, part.params, answers)
    found = {"exact_return": (jnp.exp(now) * answers.reward).sum(-1)}
    if part.target is not None:
        reference = answer_log_probs(network, part.target, answers)
        found["exact_kl"] = losses.categorical_kl(now, reference)
        if "beta" in hyper:
            best = optimal_answers(answers.reward, reference, hyper["beta"])
            found["kl_to_optimum"] = losses.categorical_kl(now, best)
            if answers.preference is not None:
                game = answers.preference, now, reference, hyper["beta"]
                found["preference_gap"] = solvers.preference_gap(*game)
    return {name: value.mean() for name, value in found.items()}


@functools.cache
def _answers(env: Environment) -> Answers | None:
    """Return all answers of a text environment; None where there are too many or none."""
    space = env.action_space
    if env.max_steps is None or not isinstance(space, Discrete):
        return None
    if sum((space.n - 1) ** n for n in range(env.max_steps + 1)) > MOST:
        return None
    with jax.ensure_compile_time_eval():  # constants of whatever program asks
        return enumerate_answers(env)
