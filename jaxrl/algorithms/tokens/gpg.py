"""GPG (Chu et al., 2025, "GPG: a simple and strong reinforcement learning baseline for model
reasoning", arXiv:2504.02546): the policy gradient, with a group's mean as the baseline, rescaled so
that groups without signal do not dilute it; the mean is over all tokens (equation 5). While too few
groups have a signal, they are kept and more are sampled from the same policy. The paper has no
divergence penalty."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check,
    divergence,
    evaluate,
    judge_by_groups,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped, Penalty
from jaxrl.core import trees
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss
from jaxrl.sources import kept_groups


@group
class Config(Grouped):
    """Settings of GPG: the policy gradient with a group's mean return as the baseline
    (arXiv:2504.02546, equation 5)."""

    kl: Penalty = Penalty()
    informative: float = hyper(0.5, low=0, high=1)
    """Fraction of an update's groups that must contain different rewards; with fewer, the update
    waits for more. (`min_inverse_alpha` in the published runs, which give up after 20
    samplings.)"""


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor_critic", name="loss")
    def gpg_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the policy gradient (equation 5) plus the divergence penalty."""
        now = evaluate(net, x)
        penalty = divergence(config.kl.estimate, now, x)
        policy_gradient = losses.policy_gradient(now.log_prob, x.advantage)
        return token_output(net, x, now, policy_gradient + net.hyper.kl.weight * penalty)

    answers = config.groups.answers
    judge = judge_by_groups(losses.gpg_advantage, answers)
    plain = on_answers(env, config, judge, (gpg_loss,))

    def update(net, batch):
        returns = jnp.where(batch.mask, batch.transitions.reward, 0.0).sum(0)
        share = losses.informative_groups(returns.reshape(-1, answers)).mean()
        enough = share >= net.hyper.informative
        new = plain.update(net, batch)
        new = new.replace(parts=trees.where(enough, new.parts, net.parts))
        return new.report(informative=share).feed(keep=~enough)

    return dataclasses.replace(plain, update=update)


def source(env: Environment, config: Config) -> Source:
    """Return a source that keeps groups with a signal while the update waits for more."""
    groups = config.groups
    fresh = groups.source(env)
    return kept_groups(fresh, groups.answers, losses.informative_groups, groups.num_shards)


gpg = AlgorithmBuilder("gpg", Config, recipe, source, check=check)

TINY = SMALL_GROUPS
