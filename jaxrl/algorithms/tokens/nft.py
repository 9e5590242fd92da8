"""NFT (Chen et al., 2025, "Bridging supervised learning and reinforcement learning in math
reasoning", arXiv:2505.18116): supervised learning of right answers and, through the policy of wrong
answers that the learned one implies, of wrong ones too (equation 10). Tokens have ratios of their
own; the mean is over all of them. With `prompt_weight` grpo the first gradient on a batch is that
of GRPO."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Judge,
    Sample,
    check,
    check_groups,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.informative import (
    informative_source,
    right_and_wrong,
    wait_for_informative,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer

# Weight of a prompt, by the share q of its answers that are right.
PROMPT_WEIGHTS = {
    "dr_grpo": lambda q: 1 - q,
    "grpo": lambda q: jnp.sqrt((1 - q) / q),
    "equal": jnp.ones_like,
}


@group
class Config(Grouped):
    """Settings of NFT: supervised learning of right and wrong answers (arXiv:2505.18116, equation
    10)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """Optimizer settings. AdamW, 1e-6, decay and gradient norm are those of the published runs,
    without their warm-up of 10 steps."""
    informative: float = hyper(1.0, low=0, high=1)
    """Fraction of an update's prompts that must have right and wrong answers; with fewer, the
    update waits for more. 1: the published runs."""
    epsilon: float = hyper(1.0, above=0)
    """Smallest likelihood ratio of a wrong answer's token. 1: the published runs."""
    prompt_weight: str = static("dr_grpo", choices=PROMPT_WEIGHTS)
    """Weight of a prompt with a share q of right answers: dr_grpo (1 - q, the published runs), grpo
    (sqrt((1 - q) / q)) or equal. Prompts with right or wrong answers alone always have weight 0."""


def judge_right_and_wrong(answers: int, weight: str) -> Judge:
    """Return a function that judges answers as right, with a positive return, or wrong.

    answers: number of answers to a prompt. weight: one of `PROMPT_WEIGHTS`.

    A sample's `target` is then 1 for a right answer and 0 for a wrong one, `value` the share of
    right answers to its prompt, and `advantage` the weight of its prompt.
    """

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        reward = batch.transitions.reward
        right = (reward.sum(0).reshape(-1, answers) > 0).astype(reward.dtype)
        rate = right.mean(-1, keepdims=True)
        mixed = (rate > 0) & (rate < 1)
        of_prompt = jnp.where(mixed, PROMPT_WEIGHTS[weight](jnp.where(mixed, rate, 0.5)), 0)

        def spread(x: Array) -> Array:
            of_answers = jnp.broadcast_to(x, right.shape).reshape(-1)
            return jnp.broadcast_to(of_answers, reward.shape)

        return {"advantage": spread(of_prompt), "value": spread(rate), "target": spread(right)}

    return judge


@loss("actor_critic", name="loss")
def nft_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the loss of each token (equation 10), times the weight of its prompt."""
    now = evaluate(net, x)
    # An answer of one token each, since packed columns hold several answers.
    both = now.log_prob[None], x.log_prob[None]
    token_loss = losses.nft(*both, x.target > 0, x.value, net.hyper.epsilon)[0]
    return token_output(net, x, now, x.advantage * token_loss)


def recipe(env: Environment, config: Config) -> Recipe:
    answers = config.groups.answers
    check_groups(answers)
    judge = judge_right_and_wrong(answers, config.prompt_weight)
    plain = on_answers(env, config, judge, (nft_loss,))
    return wait_for_informative(plain, answers, right_and_wrong)


def source(env: Environment, config: Config) -> Source:
    """Return a source that keeps prompts with right and wrong answers while the update waits."""
    return informative_source(env, config, right_and_wrong)


nft = AlgorithmBuilder("nft", Config, recipe, source, check=check)

TINY = SMALL_GROUPS | {"informative": 0.5}
