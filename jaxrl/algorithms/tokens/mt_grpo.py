"""MT-GRPO (Zeng et al., 2025, "Reinforcing multi-turn reasoning in LLM agents via turn-level credit
assignment", arXiv:2505.11821): GRPO with an advantage for each turn. Rewards that are paid at the
end of a turn, as for a tool call that is good, are compared with those of the same turn in the
group, and outcomes with outcomes; a turn's tokens get the sum of both, and those of the last turn
the outcome's alone.

A text of a single turn gets GRPO's advantage of its whole return, as in the authors' code, which
has two turns; here there may be more. A turn is compared with those texts of the group that have
it. The authors' deviations are the sample's (ddof=1), larger by sqrt(G / (G - 1)) than those here.
The mean is over all tokens.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    check_groups,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence, Groups
from jaxrl.algorithms.tokens.shared.turns import Turns, split_turns
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss
from jaxrl.kit.groups import Optimizer, Passes


@group
class Config(Clipped):
    """Settings of MT-GRPO: GRPO with advantages of turns and of outcomes (arXiv:2505.11821). The
    defaults are those of the authors' code, but for the divergence."""

    groups: Groups = Groups(prompts=16, answers=21)
    passes: Passes = Passes(epochs=2, minibatches=1, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=0.1, beta2=0.99)
    """Optimizer settings. Adam, without the authors' warm-up of 20 steps."""
    turn_weight: float = hyper(1.0, low=0)
    """Weight of a turn's own advantage beside the outcome's (lambda)."""
    kl: Divergence = Divergence()
    """Penalty on the KL divergence from the reference policy, none by default. 0.01 in the authors'
    code."""


def turn_advantages(x: Turns, answers: int, weight: Array | float) -> Array:
    """Return the advantage of each token, [T, B], 0 where nothing is decided.

    answers: number of texts in a group, which lie side by side.
    """
    groups = lambda y: y.reshape(*y.shape[:-1], -1, answers)
    own = losses.turn_advantage(groups(x.reward), groups(x.outcome), weight, groups(x.taken))
    outcome = losses.group_relative(groups(x.outcome)).reshape(-1)
    whole = losses.group_relative(groups(x.outcome + x.reward.sum(0))).reshape(-1)
    number = jnp.arange(len(x.reward))[:, None]
    at_end = jnp.where(x.last == 0, whole, outcome)
    each = jnp.where(number < x.last, own.reshape(x.reward.shape), at_end)
    return losses.segment_to_tokens(each, x.turn)


@loss("actor_critic", name="loss")
def token_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the clipped surrogate plus the divergence penalty, as GRPO."""
    now, h = evaluate(net, x), net.hyper
    value = losses.grpo(now.log_prob, x.log_prob, x.reference, x.advantage, h.clip, h.kl.weight)
    return token_output(net, x, now, value)


def recipe(env: Environment, config: Config) -> Recipe:
    check_groups(config.groups.answers)

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        by_turns, weight = split_turns(batch), net.hyper.turn_weight
        return {"advantage": turn_advantages(by_turns, config.groups.answers, weight)}

    return on_answers(env, config, judge, (token_loss,))


mt_grpo = AlgorithmBuilder("mt_grpo", Config, recipe, check=turns.check)

TINY = SMALL_GROUPS | {"env": "lookup", "env_params": {"keys": 2, "hops": 1}, "early_stop": True}
