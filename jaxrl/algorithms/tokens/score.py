"""SCoRe (Kumar et al., 2024, "Training language models to self-correct via reinforcement learning",
arXiv:2409.12917): policy gradients of two attempts, in two stages. In the first stage the reward of
the second attempt is maximized, and a divergence penalty on the first attempt alone holds it to the
reference (section 5.1). In the second stage each attempt is rewarded, and the second one also for
what it gained over the first, alpha (r_2 - r_1) (section 5.2). Both have a weaker penalty on the
divergence of all tokens, and the mean of a group's other episodes as the baseline.

In the second stage an attempt's tokens are credited with that attempt's reward alone, as in the
paper's experiments (appendix A, of which a reader's notes were read). With `credit_first` the first
attempt's tokens see the second's reward and bonus too; with an alpha of 10 they are then paid for
wrong first attempts, by (1 + alpha) r_2 + (1 - alpha) r_1 = 11 r_2 - 9 r_1."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    divergence,
    evaluate,
    on_answers,
    restrict,
    token_output,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import (
    AVERAGES,
    SMALL_GROUPS,
    Grouped,
    Penalty,
)
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer

ATTEMPTS = 2


@group
class Config(Grouped):
    """Settings of SCoRe: a first attempt that is held, then a bonus for what the second one gains
    (arXiv:2409.12917)."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-6, max_grad_norm=1.0)
    """Optimizer settings. Adam, 5e-6: the paper's, for MATH."""
    kl: Penalty = Penalty(weight=0.01, estimate="k2")
    """Penalty on the divergence of all tokens, in both stages (beta_1)."""
    average: str = static("constant", choices=AVERAGES)
    """Averaging of token losses: sequence, token, or constant, which sums an episode's tokens."""
    first_stage: float = hyper(0.0, low=0)
    """Environment steps of the first stage."""
    anchor: float = hyper(0.1, low=0)
    """Weight of the first attempt's divergence from the reference in the first stage (beta_2)."""
    bonus: float = hyper(10.0, low=0)
    """Weight of what the second attempt gained, in the second stage (alpha)."""
    credit_first: bool = False
    """Credit the first attempt's tokens with the second attempt's reward and bonus too, in the
    second stage."""


def attempt_credits(reward: Array, bonus: Array, credit_first: bool) -> Array:
    """Return what the tokens of each attempt are credited with in the second stage, [2, B].

    reward: [2, B], of the attempts. bonus, credit_first: see `Config`.
    """
    shaped = losses.self_correction_reward(reward, bonus)
    return jnp.cumsum(shaped[::-1], 0)[::-1] if credit_first else shaped


def recipe(env: Environment, config: Config) -> Recipe:
    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t, h, mask = batch.transitions, net.hyper, batch.mask
        assert mask is not None
        turn = jnp.where(mask, t.timestep.tokens["turn"], -1)
        reward = losses.segment_sum(t.reward, t.timestep.tokens["turn"], ATTEMPTS)
        policy, _ = unroll(net.target.actor_critic, net, t.timestep)
        reference = restrict(net, policy, t.extras.get("allowed")).log_prob(t.action)
        first = lambda x: losses.sequence_log_prob(x, turn == 0)
        held = losses.first_attempt_penalty(
            reward[1], first(t.extras["log_prob"]), first(reference), h.anchor
        )
        shaped = attempt_credits(reward, h.bonus, config.credit_first)
        credit = jnp.where(net.env_steps < h.first_stage, held, shaped)
        groups = credit.reshape(-1, config.groups.answers)  # of each attempt, so [2 P, G]
        advantage = losses.leave_one_out(groups).reshape(ATTEMPTS, -1)
        return {"advantage": losses.segment_to_tokens(advantage, turn)}

    @loss("actor_critic", name="loss")
    def attempts_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the policy gradient plus the divergence penalty of each token."""
        now = evaluate(net, x)
        penalty = net.hyper.kl.weight * divergence(config.kl.estimate, now, x)
        return token_output(
            net, x, now, losses.policy_gradient(now.log_prob, x.advantage) + penalty
        )

    return on_answers(env, config, judge, (attempts_loss,))


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `turns.check`, and for groups of one, which have no baseline."""
    turns.check(env, config, name)
    if config.groups.answers < 2:
        raise UserError(f"groups.answers is {config.groups.answers}; {name} needs at least 2.")


score = AlgorithmBuilder("score", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"env": "second_try", "first_stage": 60.0}
