"""ReST^EM (Singh et al., 2023, "Beyond human data: scaling self-training for problem-solving with
language models", arXiv:2312.06585): expectation maximization for binary rewards. In each round the
policy answers some prompts several times (E-step), and the reference policy is fine-tuned on the
right answers (M-step), with at most so many for a prompt. If a round learns its answers exactly,
the policy of round k + 1 is that of round k given that the answer is right."""

from __future__ import annotations

from jaxrl.algorithms.tokens.shared.answers import check
from jaxrl.algorithms.tokens.shared.rounds import Rounds, first_above, on_rounds
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Groups
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.groups import INF


@group
class Config(Rounds):
    """Settings of ReST^EM: the reference policy, fine-tuned on right answers of the last round's
    policy (arXiv:2312.06585)."""

    groups: Groups = Groups(answers=32)
    """Groups of answers. 32 answers to a prompt: the paper, for mathematics."""
    threshold: float = hyper(0.0, low=-INF, high=INF)
    """Return above which an answer is right."""
    most: int = static(10, low=0)
    """Largest number of right answers to a prompt that are learned; 0 for all. 10: the paper."""
    from_reference: bool = True
    """Begin every round at the reference policy, the one that training began with, as in the paper;
    if not, at the policy of the last round (expert iteration)."""


def recipe(env: Environment, config: Config) -> Recipe:
    keep = lambda net, returns, batch: first_above(returns, net.hyper.threshold, config.most)
    return on_rounds(env, config, keep, config.from_reference)


rest_em = AlgorithmBuilder("rest_em", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"most": 1}
