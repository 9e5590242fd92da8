"""GRPO for function calls (Hao et al., 2025, "Exploring Superior Function Calls via Reinforcement
Learning", arXiv:2508.05118, in a later version "Reasoning through Exploration", EGPO): the entropy
of the policy at a token is added to its advantage, clipped so that it never turns its sign.

    A'[t] = A + min(scale H[t], |A| / bound),   A standardized in the group

The entropy is that of the policy that wrote the answer, at the temperature of sampling, without a
gradient; the reward is a strict 0 or 1, where the environment pays nothing for calls (lookup with
`call_reward: 0`). The abstract is what was read of the paper: the clip is that of
`losses.entropy_shaped_advantage`, by Cheng et al., 2025, whose scale and bound are the defaults.
The paper's bonus is that of a chain of thought before the call; here all tokens of the policy have
it, since environments do not say which of them are thoughts. Its filters of training data by a
language model are left out.
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens import grpo
from jaxrl.algorithms.tokens.grpo import grpo_loss
from jaxrl.algorithms.tokens.shared.answers import (
    check,
    judge_by_groups,
    on_answers,
    restrict,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper
from jaxrl.kit.groups import INF
from jaxrl.networks.heads import log_prob_and_entropy


@group
class Config(grpo.Config):
    """Settings of GRPO with an advantage that entropy adds to (arXiv:2508.05118)."""

    entropy_scale: float = hyper(0.4, low=0, high=INF)
    """Scale of the entropy in the advantage of a token (alpha)."""
    entropy_bound: float = hyper(2.0, above=1, high=INF)
    """Divisor of the size of an advantage, which the entropy may add at most (kappa)."""


def shape_advantage(net: Net, batch: Batch, advantage: Array) -> Array:
    """Return the advantage of tokens [T, B] with what the policy's entropy adds to it."""
    t, h = batch.transitions, net.hyper
    policy, _ = unroll(net.actor_critic, net, t.timestep)
    policy = restrict(net, policy, t.extras.get("allowed"))
    _, entropy = log_prob_and_entropy(policy, t.action)
    return losses.entropy_shaped_advantage(advantage, entropy, h.entropy_scale, h.entropy_bound)


def recipe(env: Environment, config: Config) -> Recipe:
    by_groups = judge_by_groups(losses.group_relative, config.groups.answers)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        return {"advantage": shape_advantage(net, batch, by_groups(net, batch)["advantage"])}

    return on_answers(env, config, judge, (grpo_loss,))


function_call_grpo = AlgorithmBuilder("function_call_grpo", Config, recipe, check=check)

TINY = SMALL | {"prompts": 4, "answers": 2, "num_shards": 4, "early_stop": True}
TINY |= {"env": "lookup", "env_params": {"keys": 2, "hops": 1}}
