"""Offline RL-VLM-F (Venkataraman, Wang, Wang, Erickson and Held, 2024, "Real-world offline
reinforcement learning from vision language model feedback", arXiv:2411.05273): a vision language
model compares pairs of single pictures of an unlabeled dataset by how near they are to a task's
text. A reward of observations is learned from its answers, those without a preference left out; all
of the data get that reward, and the policy learns from them by implicit Q-learning.

The judge here is a simulated one, who sees the reward of a step and errs: `segments.teacher` says
how often (the authors' code tests labels of which up to 75 % are flipped), and below which
difference it has no preference. Nothing is said about how right a vision language model is. A frame
is the observation that a step led to, as in the authors' code, and the reward the mean of three
models. Rewards are learned in the same run, for `reward.steps`; each batch has labeled pairs and
steps of all of the data, `segments.others` for each pair.
"""

from __future__ import annotations

from jaxrl.algorithms.preferences.preference_iql import Config as PreferenceConfig
from jaxrl.algorithms.preferences.preference_iql import preference_iql
from jaxrl.algorithms.preferences.shared.segment_rewards import RewardModel
from jaxrl.algorithms.preferences.shared.segments import (
    SMALL_SEGMENTS,
    PartlyLabeled,
    SimulatedTeacher,
)
from jaxrl.core.hyper import MANY
from jaxrl.kit import group, static


@group
class Frames(PartlyLabeled):
    """Pairs of single steps of recorded experience, and steps that nobody compared."""

    length: int = static(1, low=1, high=MANY)
    """Number of steps of a segment: a single frame."""
    batch_size: int = static(128, low=1, high=MANY)
    """Number of pairs in a gradient step. 128: authors' code."""
    others: int = static(2, low=0, high=MANY)
    """Number of steps that nobody compared, of all of the data, for each pair of a gradient
    step."""
    teacher: SimulatedTeacher = SimulatedTeacher(mistakes=0.1, skip_ties=True)


@group
class Config(PreferenceConfig):
    """Settings of offline RL-VLM-F: implicit Q-learning from rewards of frames that an erring judge
    compared (arXiv:2411.05273)."""

    segments: Frames = Frames()
    reward: RewardModel = RewardModel(reads="observation", members=3)
    """Reward models. Three, of the observation that a step led to: authors' code."""


rl_vlm_f_offline = preference_iql.variant("rl_vlm_f_offline", Config=Config)

TINY = SMALL_SEGMENTS | {
    "segments.length": 1,
    "torso.hidden": (8,),
    "reward.torso.hidden": (8,),
    "reward.steps": 2.0,
}
