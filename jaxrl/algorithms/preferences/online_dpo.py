"""Online DPO (Guo et al., 2024, "Direct language model alignment from online AI feedback",
arXiv:2402.04792): DPO whose pairs are written by the policy as it is and judged at once, in every
update. The pair of a larger group are its answers with the most and the fewest wins against the
others. The losses are those of `dpo`."""

from __future__ import annotations

from jaxrl.algorithms.preferences.dpo import Objectives, check, recipe
from jaxrl.algorithms.preferences.shared.measures import measure_optimum
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED, JudgedGroups
from jaxrl.kit import AlgorithmBuilder, group, hyper
from jaxrl.kit.groups import Optimizer


@group
class Config(Objectives):
    """Settings of online DPO: DPO from pairs that the policy writes in every update
    (arXiv:2402.04792)."""

    pairs: JudgedGroups = JudgedGroups(prompts=64)
    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0)
    """Optimizer settings. 5e-7: the paper's, with Adafactor. (Small networks need larger steps.)"""
    beta: float = hyper(0.1, above=0)
    """Strength of the pull toward the reference policy: the paper's."""


online_dpo = AlgorithmBuilder("online_dpo", Config, recipe, check=check, measure=measure_optimum)

TINY = SMALL_PLAYED | {"answers": 3}
