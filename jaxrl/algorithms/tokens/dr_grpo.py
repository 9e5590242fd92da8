"""Dr. GRPO (Liu et al., 2025, "Understanding R1-Zero-like training: a critical perspective",
arXiv:2503.20783, section 3.2): GRPO without its two biases. Advantages are not divided by the
group's standard deviation, and the tokens of an answer are summed, not averaged, so that neither
the difficulty of a prompt nor the length of an answer changes a token's weight."""

from __future__ import annotations

import functools

from jaxrl import losses
from jaxrl.algorithms.tokens import grpo
from jaxrl.algorithms.tokens.shared.settings import AVERAGES
from jaxrl.kit import group, static


@group
class Config(grpo.Config):
    """Settings of Dr. GRPO: GRPO without the deviation and with a constant divisor
    (arXiv:2503.20783)."""

    average: str = static("constant", choices=AVERAGES)
    """Averaging of token losses: sequence, token, or constant, which divides by the longest
    episode."""


dr_grpo = grpo.grpo.variant(
    "dr_grpo",
    Config=Config,
    advantage=functools.partial(losses.group_relative, normalize=False),
)

TINY = grpo.TINY
