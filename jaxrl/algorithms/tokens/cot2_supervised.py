"""Continuous supervision of CoT2 (Gozeten et al., 2025, "Continuous chain of thought enables
parallel exploration and reasoning", arXiv:2505.23648): thoughts are mixtures of tokens, each
learned from a distribution over tokens, that of many traces at this step. The loss is the KL
divergence of the policy's softmax from it; the answer is a single token, whose loss is the same.
What follows reads the embedding of the target distribution (teacher forcing). As in the published
code.

The expert writes the targets: in `signed_sums` `traces` is the number of traces that they are made
of, and 1 gives an ordinary chain of thought of single tokens.

The mean is over tokens, where the code sums over them. Feeding back the policy's own softmax in
training, which the code offers too, is left out; policies are judged so, with greedy actions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.shared.texts import Texts, on_texts
from jaxrl.algorithms.tokens.shared.thoughts import check_thoughts, with_thoughts
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss
from jaxrl.kit.groups import Optimizer, Target


@group
class Config(Tokens):
    """Settings of continuous supervision: divergence of thoughts from distributions over tokens
    (arXiv:2505.23648)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-4, weight_decay=0.01)
    """Optimizer settings. AdamW, 1e-4 and 0.01: the published code."""
    texts: Texts = Texts(num_envs=16)
    reference: Target = Target(rate=1.0)


@loss("actor_critic", name="loss")
def cot2_supervised_loss(net: Net, x: Sample) -> LossOutput:
    """Compute KL(target || policy) of each thought and of the answer."""
    now = evaluate(net, x, as_sampled=False)
    value = -now.log_prob - jax.scipy.special.entr(x.action).sum(-1)
    same = now.policy.log_probs.argmax(-1) == x.action.argmax(-1)
    answer = x.timestep.tokens["answer"]
    metrics = {
        "policy_loss": value,
        "entropy": now.entropy,
        "answer_loss": jnp.where(answer, value, 0.0),
        "token_accuracy": same,
    }
    return LossOutput(value - net.hyper.entropy_weight * now.entropy, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    return with_thoughts(on_texts(env, config, cot2_supervised_loss), env, config)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `texts.check`, and unless `env` reads mixtures of tokens."""
    texts.check(env, config, name)
    check_thoughts(env, name)


cot2_supervised = AlgorithmBuilder("cot2_supervised", Config, recipe, check=check)

SIZES = SMALL | {"env": "signed_sums", "env_params": {"numbers": 2, "largest": 3}}
TINY = SIZES | {"num_envs": 8, "num_shards": 4}
