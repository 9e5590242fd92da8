"""GMPO (Zhao et al., 2025, "Geometric-mean policy optimization", arXiv:2507.20673): GRPO with the
geometric mean of an answer's token ratios, each clipped in logarithms, in the place of the mean of
their clipped surrogates."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens import gspo
from jaxrl.kit import group, hyper
from jaxrl.kit.groups import INF


@group
class Config(gspo.Config):
    """Settings of GMPO: geometric means of clipped token ratios (arXiv:2507.20673)."""

    clip: float = hyper(0.4, above=0, high=INF)
    """Lower clip range of a token's log-ratio; the ratio is at least exp(-0.4)."""
    clip_high: float = hyper(0.4, above=0, high=INF)
    """Upper clip range of a token's log-ratio."""


gmpo = gspo.gspo.variant("gmpo", Config=Config, answer_loss=losses.gmpo)

TINY = gspo.TINY
