"""ReMax (Li et al., 2023, "ReMax: a simple, effective, and efficient reinforcement learning method
for aligning large language models", arXiv:2310.10505): the policy gradient with the return of the
greedy answer to the same prompt as the baseline. The greedy answer is played beside the sampled
ones, and nothing is learned from it.

The divergence penalty is subtracted from each token's reward, and a token is judged by the rewards
to come, so that the gradient is that of the return less the divergence. The authors' code gives a
token its own penalty alone, and averages over all tokens instead of summing an answer's."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.algorithms.tokens.shared.answers import check, on_answers, returns_of
from jaxrl.algorithms.tokens.shared.policy_gradient import policy_gradient_loss
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Groups, WholeAnswers
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static
from jaxrl.sources import Player, cast


@group
class WithGreedy(Groups):
    """Groups of sampled answers to the same prompt, and a greedy one, which comes last."""

    prompts: int = static(256, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one group of answers."""
    answers: int = static(1, low=1, high=MANY)
    """Number of sampled answers (G) to each prompt; the greedy one is played besides."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes, G + 1 for each prompt, the last of them greedy."""
        both = dataclasses.replace(self, answers=self.answers + 1)
        return cast(Groups.source(both, env), (Player(),) * self.answers + (Player(greedy=True),))


@group
class Config(WholeAnswers):
    """Settings of ReMax: the policy gradient with the greedy answer's return as the baseline
    (arXiv:2310.10505)."""

    groups: WithGreedy = WithGreedy()


def subtract_greedy(batch: Batch, answers: int) -> Batch:
    """Return the sampled answers of a batch [T, P * (G + 1)], with the greedy answer's return in
    `extras["baseline"]`, [T, P * G]."""
    t = batch.transitions
    greedy = returns_of(batch).reshape(-1, answers + 1)[:, -1]

    def take_sampled(x: Array) -> Array:
        by_prompt = x.reshape(len(x), -1, answers + 1, *x.shape[2:])[:, :, :answers]
        return by_prompt.reshape(len(x), -1, *x.shape[2:])

    t, mask, weight = jax.tree.map(take_sampled, (t, batch.mask, batch.weight))
    baseline = jnp.broadcast_to(jnp.repeat(greedy, answers), t.reward.shape)
    t = dataclasses.replace(t, extras={**t.extras, "baseline": baseline})
    return dataclasses.replace(batch, transitions=t, memory=None, mask=mask, weight=weight)


def judge(net: Net, batch: Batch) -> dict[str, Array]:
    """Return the rewards to come at each token, less the greedy answer's return."""
    to_come = jnp.cumsum(batch.transitions.reward[::-1], 0)[::-1]
    return {"advantage": to_come - batch.transitions.extras["baseline"]}


def recipe(env: Environment, config: Config) -> Recipe:
    plain = on_answers(env, config, judge, (policy_gradient_loss,), kl_in_reward=True)

    def update(net: Net, batch: Batch) -> Net:
        own = subtract_greedy(batch, config.groups.answers)
        baseline = own.transitions.extras["baseline"]
        return plain.update(net, own).report(greedy_return=baseline[0].mean())

    return dataclasses.replace(plain, update=update)


remax = AlgorithmBuilder("remax", Config, recipe, check=check)

TINY = SMALL_GROUPS
