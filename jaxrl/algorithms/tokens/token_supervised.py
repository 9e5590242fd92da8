"""Supervised learning of tokens: learn the answers of texts, by default those of the environment's
expert, as a warm-up for the other methods of this folder. The mean is over all tokens. The
reference policy is updated at once."""

from __future__ import annotations

from typing import Protocol

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate
from jaxrl.algorithms.tokens.shared.settings import SMALL_SUMS, Tokens
from jaxrl.algorithms.tokens.shared.texts import Texts, on_texts
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Recipe, group, loss
from jaxrl.kit.groups import Optimizer, Target


@group
class Config(Tokens):
    """Settings of supervised learning of tokens: cross-entropy with the tokens of texts (Ouyang et
    al., 2022, arXiv:2203.02155)."""

    optimizer: Optimizer = Optimizer(
        learning_rate=9.65e-6,
        learning_rate_end=9.65e-7,
        schedule="cosine",
        max_grad_norm=1.0,
        beta2=0.95,
    )
    """Optimizer settings. Adam, its betas, and a cosine to a tenth over `learning_rate_steps`:
    Ouyang et al., 2022, appendix C.1."""
    texts: Texts = Texts()
    reference: Target = Target(rate=1.0)


class Likelihood(Protocol):
    """A loss of tokens, by the log-probability that the policy gives them."""

    def __call__(self, log_prob: Array, /) -> Array:
        """Return the loss of each token [T, B]."""
        ...


def likelihood_output(net: Net, x: Sample, likelihood: Likelihood) -> LossOutput:
    """Return the loss of texts' tokens [T, B], less an entropy bonus, with its metrics."""
    now = evaluate(net, x, as_sampled=False)
    policy_loss = likelihood(now.log_prob)
    metrics = {
        "policy_loss": policy_loss,
        "entropy": now.entropy,
        "token_accuracy": now.policy.mode() == x.action,
    }
    return LossOutput(policy_loss - net.hyper.entropy_weight * now.entropy, metrics)


@loss("actor_critic", name="loss")
def cloning_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the cross-entropy with the texts' tokens, less an entropy bonus."""
    return likelihood_output(net, x, losses.behavior_cloning)


def recipe(env: Environment, config: Config, token_loss: Loss = cloning_loss) -> Recipe:
    """token_loss: of the texts' tokens."""
    return on_texts(env, config, token_loss)


token_supervised = AlgorithmBuilder("token_supervised", Config, recipe, check=texts.check)

TINY = SMALL_SUMS | {"num_envs": 8, "num_shards": 4}
