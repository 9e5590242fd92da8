"""GPG (Chu et al., 2025, "GPG: a simple and strong reinforcement learning baseline for model
reasoning", arXiv:2504.02546): the policy gradient, with a group's mean as the baseline, rescaled so
that groups without signal do not dilute it; the mean is over all tokens (equation 5). While too few
groups have a signal, they are kept and more are sampled from the same policy. The paper has no
divergence penalty."""

from __future__ import annotations

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
from jaxrl.algorithms.tokens.shared.informative import informative_source, wait_for_informative
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped, Penalty
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss


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
    return wait_for_informative(on_answers(env, config, judge, (gpg_loss,)), answers)


gpg = AlgorithmBuilder("gpg", Config, recipe, informative_source, check=check)

TINY = SMALL_GROUPS
