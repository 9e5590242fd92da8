"""BNPO as TRL calls it (`loss_type="bnpo"`): GRPO (arXiv:2402.03300) with the mean over all tokens
of a minibatch instead of a mean over the tokens of each answer. (Another method of
this name models rewards by a Beta distribution.)"""

from __future__ import annotations

from jaxrl.algorithms.tokens import grpo
from jaxrl.algorithms.tokens.shared.settings import AVERAGES
from jaxrl.kit import group, static


@group
class Config(grpo.Config):
    """Settings of BNPO: GRPO with a mean over all tokens of a minibatch."""

    average: str = static("token", choices=AVERAGES)
    """Averaging of token losses: sequence, token (all tokens of a minibatch alike), or constant."""


bnpo = grpo.grpo.variant("bnpo", Config=Config)

TINY = grpo.TINY
