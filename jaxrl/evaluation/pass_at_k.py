"""Estimate pass@k, the probability that at least one of k answers to a prompt is right."""

from __future__ import annotations

import functools

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.envs.wrappers.start_key import Params, start_key
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.tasks import repeat, starts


@functools.cache
def _groups(env: Environment, samples: int):
    return start_key(env), repeat(starts(env.params, Params), samples)


def correct_answers(
    env: Environment, policy: Policy, key: Key, prompts: int, samples: int
) -> Array:
    """Sample answers and mark those that are right: bool [prompts, samples].

    An answer is right if its episode's return is above 0.
    """
    environment, groups = _groups(env, samples)
    played = evaluate(environment, policy, key, prompts * samples, greedy=False, tasks=groups)
    return (played.returns > 0).reshape(prompts, samples)


def pass_at_k(
    env: Environment, policy: Policy, key: Key, ks: tuple[int, ...], prompts: int, samples: int
) -> dict[int, Array]:
    """Estimate pass@k for each k of `ks`, as the mean over `prompts` prompts of the unbiased
    estimate from `samples` answers (`losses.pass_at_k`; Chen et al., 2021, eq. 1).

    Answers are sampled, not greedy. A prompt is what `env.reset` draws from one key. Raises
    `UserError` for a k above `samples`.
    """
    for k in ks:
        if not 1 <= k <= samples:
            raise UserError(f"k is {k}; with {samples} answers it must be between 1 and {samples}.")
    correct = correct_answers(env, policy, key, prompts, samples)
    return {k: losses.pass_at_k(correct, k).mean() for k in ks}
