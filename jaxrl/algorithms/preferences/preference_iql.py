"""A reward model of preferences between segments, and implicit Q-learning from its rewards: the
P-IQL that contrastive preference learning is compared with (Hejna et al., 2023, arXiv:2310.13639,
and its code), with the reward model of Christiano et al., 2017, "Deep reinforcement learning from
human preferences", arXiv:1706.03741 (equation 1).

A network gives each step a reward, and the sums over segments are compared:

    -log sigmoid(sum_t r(preferred) - sum_t r(other))

IQL (`iql`) learns from all segments of a batch with the model's rewards in place of the
environment's. As in the authors' code it does so from the first step on, while the reward model
learns for `reward_steps`. Beside compared segments there may be others, of which nobody knows more
than what happened.
"""

from __future__ import annotations

from jaxrl.algorithms.offline import iql as of_iql
from jaxrl.algorithms.offline.shared.implicit import Implicit
from jaxrl.algorithms.preferences.shared import segment_rewards
from jaxrl.algorithms.preferences.shared.segment_rewards import RewardModel
from jaxrl.algorithms.preferences.shared.segments import SMALL_SEGMENTS, PartlyLabeled
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(Implicit):
    """Settings of implicit Q-learning from a reward model of preferences (arXiv:2310.13639)."""

    segments: PartlyLabeled = PartlyLabeled(others=0)
    reward: RewardModel = RewardModel()


def recipe(env: Environment, config: Config) -> Recipe:
    return segment_rewards.learned_rewards(of_iql.recipe(env, config), env, config)


preference_iql = AlgorithmBuilder(
    "preference_iql", Config, recipe, check=of_iql.check, measure=segment_rewards.measure
)

TINY = SMALL_SEGMENTS | {
    "torso.hidden": (8,),
    "reward.torso.hidden": (8,),
    "reward.steps": 2.0,
    "members": 2,
    "others": 1,
}
