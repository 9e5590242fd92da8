"""CoT2 with multi-token sampling (Gozeten et al., 2025, "Continuous chain of thought enables
parallel exploration and reasoning", arXiv:2505.23648): GRPO of a policy whose thoughts are
mixtures. A thought is the mean of K tokens that are sampled independently from the policy's softmax
(`draws`); the answer is a single token. A thought's ratio is that of all K tokens, so that K = 1 is
GRPO.

As in the published code, the logits of thoughts are divided by K, and the ratio of the tokens'
joint probabilities is clipped (`joint`); if not, tokens are sampled at a temperature of 1, and the
geometric mean of their ratios is clipped. There the policy is judged by sampled thoughts; greedy
actions here feed back the mean of what would be sampled. Exploration by a Dirichlet distribution,
the paper's other strategy, is left out.

It goes on from a run of `cot2_supervised`.
"""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import judge_by_groups, on_answers
from jaxrl.algorithms.tokens.shared.settings import SMALL, Clipped, Divergence, Groups
from jaxrl.algorithms.tokens.shared.thoughts import check_thoughts, with_thoughts
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.groups import INF, Optimizer


@group
class Config(Clipped):
    """Settings of CoT2: GRPO whose thoughts are means of several tokens (arXiv:2505.23648)."""

    groups: Groups = Groups(prompts=16, answers=8)
    optimizer: Optimizer = Optimizer(learning_rate=5e-6, weight_decay=0.01)
    """Optimizer settings. AdamW, 5e-6 and 0.01: the published code."""
    clip: float = hyper(0.1, above=0, high=INF)
    """Clip range of the probability ratio around 1. 0.1: the published code."""
    kl: Divergence = Divergence()
    draws: int = static(3, low=1)
    """Number of tokens that a thought is the mean of (K); 1 for GRPO. The paper has 3 and 6."""
    joint: bool = True
    """Divide the logits of thoughts by the number of draws and clip the ratio of their joint
    probability. If not, clip the geometric mean of their ratios."""


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_groups(losses.group_relative, config.groups.answers)
    plain = on_answers(env, config, judge, (grpo_loss,))
    return with_thoughts(plain, env, config, config.draws, config.joint)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and unless `env` reads mixtures of tokens."""
    answers.check(env, config, name)
    check_thoughts(env, name)


cot2 = AlgorithmBuilder("cot2", Config, recipe, check=check)

TINY = SMALL | {"env": "signed_sums", "env_params": {"numbers": 2, "largest": 3}}
TINY |= {"prompts": 4, "answers": 2, "num_shards": 4, "draws": 2, "early_stop": True}
