"""CGPO, constrained generative policy optimization (Xu et al., 2024, "The perfect blend: redefining
RLHF with mixture of judges", arXiv:2409.20370), with its policy gradient CRPG: answers that any
judge of a constraint finds to break it are worth nothing, all others the calibrated reward, the
probability of being better than a baseline answer to the same prompt (equations 5 and 8). That
shrinks to 0 as an answer's log-ratio to the reference approaches a limit (equations 11 and 12), and
its mean over the batch is subtracted.

The judges are the environment's costs: a constraint is broken if its cost is positive in an
episode. Rewards are the environment's, or by `on_scores` those of a reward model. The reference
policy writes the baseline answers, anew for each prompt. The paper trains several tasks at once,
each with its own rewards, judges and settings; here there is one. Its other two optimizers (CODPO,
CRRAFT) are not here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import (
    all_answers,
    is_small,
    measure_proxy,
    proxy_scores,
)
from jaxrl.algorithms.preferences.shared.pairs import check_whole
from jaxrl.algorithms.preferences.shared.players import played_as_target
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    answer_output,
    evaluate,
    on_answers,
    returns_of,
)
from jaxrl.algorithms.tokens.shared.settings import Grouped, Groups
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source
from jaxrl.exact.answers import Answers
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    static,
)
from jaxrl.kit import loss as declare
from jaxrl.sources import Player, cast


@group
class WithBaseline(Groups):
    """Groups of answers to the same prompt, the last of which is the reference policy's."""

    answers: int = static(5, low=2, high=MANY)
    """Number of answers to each prompt, the baseline's included."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes that both play."""
        own = [Player()] * (self.answers - 1)
        return cast(self.episodes(env), (*own, Player(played_as_target)))


@group
class Config(Grouped):
    """Settings of CGPO: policy gradients of calibrated rewards under constraints
    (arXiv:2409.20370)."""

    groups: WithBaseline = WithBaseline()
    limit: float = hyper(10.0, above=0)
    """Log-ratio to the reference policy from which on an answer is worth nothing (KL_max)."""


def violations(batch: Batch) -> Array:
    """Return which whole episodes [T, B] break a constraint, bool [B]."""
    cost, mask = batch.transitions.next_timestep.cost, batch.mask
    assert cost is not None and mask is not None
    within = mask.reshape(*mask.shape, *(1,) * (cost.ndim - 2))
    broken = (jnp.where(within, cost, 0) > 0).any(0)
    return broken.reshape(broken.shape[0], -1).any(-1)


def recipe(env: Environment, config: Config) -> Recipe:
    size = config.groups.answers

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        reward = batch.transitions.reward.sum(0).reshape(-1, size)
        satisfied = ~violations(batch).reshape(-1, size)
        calibrated = losses.calibrated_reward(reward, reward[:, -1:], satisfied)
        return {
            "advantage": jnp.broadcast_to(calibrated.reshape(-1), batch.transitions.reward.shape)
        }

    @declare("actor_critic", name="cgpo_loss", unit=SEQUENCE)
    def policy_loss(net: Net, x: Minibatch) -> LossOutput:
        sample: Sample = x.x
        now = evaluate(net, sample)
        total = lambda y: losses.sequence_log_prob(y, x.mask)
        learned = x.mask.any(0)  # type: ignore[union-attr]
        value = losses.crpg(
            total(now.log_prob),
            total(sample.reference),
            sample.advantage[0],
            net.hyper.limit,
            learned,
        )
        return answer_output(net, x, now, value)

    plain = on_answers(env, config, judge, (policy_loss,), learned=select_own(size))

    def update(net: Net, batch: Batch) -> Net:
        own = jnp.arange(batch.mask.shape[1]) % size < size - 1  # type: ignore[union-attr]
        share = lambda x: jnp.where(own, x, 0).sum() / own.sum()
        gold, broken = share(returns_of(batch)), share(violations(batch))
        return plain.update(net, batch).report(policy_return=gold, violations=broken)

    own = {"violation": "violation rate"} if is_small(env) else {}
    scores = {**plain.scores, **proxy_scores(env), **own}
    return dataclasses.replace(plain, update=update, scores=scores)


def select_own(size: int) -> Any:
    """Return a function that says which decisions [T, B] of groups of `size` the policy made."""

    def is_learned(x: Sample) -> Array:
        own = jnp.arange(x.action.shape[1]) % size < size - 1
        return jnp.broadcast_to(own, x.action.shape)

    return is_learned


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return exact measures in a small environment, means over prompts: those of `measure_proxy`,
    whose proxy is the reward where no constraint is broken and 0 elsewhere, and `violation`, how
    probably a sampled answer breaks one."""
    if not is_small(env):
        return {}
    broken = broken_answers(all_answers(env))
    found = measure_proxy(env, config, policy, lambda x: jnp.where(broken, 0, x.reward))
    rate = measure_proxy(env, config, policy, lambda x: broken.astype(jnp.float32))
    return {**found, "violation": rate["exact_proxy"]}


def broken_answers(found: Answers) -> Array:
    """Return which of all answers break a constraint, bool [P, A]."""
    whole = Batch(found.transitions, jnp.float32(0), mask=found.within)
    return violations(whole).reshape(found.reward.shape)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for an environment without costs, and for chunks."""
    answers.check(env, config, name)
    check_whole(config, name)
    if example_timestep(env).cost is None:
        raise UserError(
            f"{name} has constraints, the costs of an environment; '{env.name}' has none (see "
            "ruled_words)."
        )


cgpo = AlgorithmBuilder("cgpo", Config, recipe, check=check, measure=measure)

TINY = SMALL_PLAYED | {"env": "ruled_words", "answers": 3, "chunk_rows": 0}
