"""Exact measures of policies in text environments that are small enough to enumerate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses, solvers
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, Policy, Tree
from jaxrl.exact.answers import (
    Answers,
    answer_log_probs,
    enumerate_answers,
    frontier,
    optimal_answers,
)
from jaxrl.kit.parts import with_shared

MOST = 2000  # answers to one prompt
LABELS = {
    "exact_return": "expected return",
    "kl_to_optimum": "KL to the optimum",
    "preference_gap": "duality gap",
}


def exact_scores(env: Environment, *names: str) -> dict[str, str]:
    """Return what is measured in `env`, each with its label: the expected return and `names`."""
    return {name: LABELS[name] for name in ("exact_return", *names)} if is_small(env) else {}


def measure_return(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `exact_return`, the expected return of a sampled answer, the mean over prompts.

    It returns nothing where answers are too many.

    env, config, policy, key: as in `kit.builder.Measure`.
    """
    if not is_small(env):
        return {}
    answers = all_answers(env)
    now = log_probs(env, config, policy.state.parts["actor_critic"].params)
    return {"exact_return": (jnp.exp(now) * answers.reward).sum(-1).mean()}


def measure_optimum(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `measure_return` and `kl_to_optimum`, KL(policy || optimum of return - beta KL).

    The reference is the target network of the policy, beta a hyperparameter.
    """
    found = measure_return(env, config, policy, key)
    if not found:
        return {}
    answers, (now, reference) = all_answers(env), _now_and_reference(env, config, policy)
    best = optimal_answers(answers.reward, reference, policy.state.hyper["beta"])
    return {**found, "kl_to_optimum": losses.categorical_kl(now, best).mean()}


def measure_game(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `measure_return` and `preference_gap`, the duality gap of the preference game.

    The game has a penalty of beta KL to the reference, the target network of the policy, where beta
    is a hyperparameter.
    """
    found = measure_return(env, config, policy, key)
    if not found:
        return {}
    answers, beta = all_answers(env), policy.state.hyper.get("beta")
    assert answers.preference is not None
    if beta is None:
        now = log_probs(env, config, policy.state.parts["actor_critic"].params)
        won = (answers.preference * jnp.exp(now)[:, None]).sum(-1).max(-1)
        return {**found, "preference_gap": (2 * (won - 0.5)).mean()}
    now, reference = _now_and_reference(env, config, policy)
    gap = solvers.preference_gap(answers.preference, now, reference, beta)
    return {**found, "preference_gap": gap.mean()}


def proxy_scores(env: Environment) -> dict[str, str]:
    """Return what `measure_proxy` measures in `env`, each with its label."""
    if not is_small(env):
        return {}
    found = {
        "exact_return": "expected return",
        "exact_proxy": "expected score",
        "exact_kl": "KL from the reference",
    }
    return found if env.judge is None else {**found, "win_rate": "win rate"}


def measure_proxy(
    env: Environment, config: Any, policy: Policy, proxy: Callable[[Answers], Array]
) -> dict[str, Array]:
    """Return the point that a policy has reached on the frontier of gold beside proxy.

    proxy: scores [P, A] of all answers, what the policy learns from.

    Means over prompts: `exact_return` by the environment, `exact_proxy` by the proxy, `exact_kl`,
    KL(policy || reference), and `win_rate` against the reference where there is a judge.
    """
    if not is_small(env):
        return {}
    answers, (now, reference) = all_answers(env), _now_and_reference(env, config, policy)
    point = frontier(now, reference, answers.reward, proxy(answers), answers.preference)
    found = {"exact_return": point.gold, "exact_proxy": point.proxy, "exact_kl": point.kl}
    return found if point.win_rate is None else {**found, "win_rate": point.win_rate}


def pair_agreement(first: Array, second: Array, share: Array) -> Array:
    """Return how probably two answers of a policy are ordered alike by two judges, [..., P]; 1/2 in
    place of what either holds for equal.

    first, second: by how much each answer leads each other, [..., P, A, A]. share: probabilities of
        the answers, [P, A].
    """
    alike = 0.5 * (1 + jnp.sign(first) * jnp.sign(second))
    return (alike * share[:, :, None] * share[:, None]).sum((-1, -2))


def leads(score: Array) -> Array:
    """Return by how much each answer leads each other, [..., A, A], from scores [..., A]."""
    return score[..., :, None] - score[..., None, :]


def is_small(env: Environment) -> bool:
    """Return whether `env` has answers, and few."""
    space = env.action_space
    if env.max_steps is None or not isinstance(space, Discrete):
        return False
    few = sum((space.n - 1) ** n for n in range(env.max_steps + 1)) <= MOST
    return few and example_timestep(env).tokens is not None


@functools.cache
def all_answers(env: Environment) -> Answers:
    """Return all answers of an environment, as constants of whatever program asks."""
    with jax.ensure_compile_time_eval():
        return enumerate_answers(env)


def _now_and_reference(env: Environment, config: Any, policy: Policy) -> tuple[Array, Array]:
    """Return the log-probabilities [P, A] of all answers by a policy and by its target network."""
    now = log_probs(env, config, policy.state.parts["actor_critic"].params)
    return now, reference_log_probs(env, config, policy)


def reference_log_probs(env: Environment, config: Any, policy: Policy) -> Array:
    """Return the log-probabilities [P, A] of all answers by the target network of a policy."""
    part = policy.state.parts["actor_critic"]
    return log_probs(env, config, with_shared(part.target, part.params))


def log_probs(env: Environment, config: Any, params: Tree) -> Array:
    """Return the log-probabilities [P, A] of all answers by a policy with these parameters."""
    return answer_log_probs(token_network(env, config), params, all_answers(env))
