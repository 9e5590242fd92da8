"""DFT (Wu et al., 2025, "On the generalization of SFT: a reinforcement learning perspective with
reward rectification", arXiv:2508.05629): supervised learning of tokens, each weighted by the
probability that the policy gives it (equation 9). The gradient of cross-entropy is a policy
gradient whose reward for the text's token is one over its probability; with the weight it is 1."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens import token_supervised
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.algorithms.tokens.token_supervised import likelihood_output
from jaxrl.kit import LossOutput, Net, group, loss
from jaxrl.kit.groups import Optimizer


@group
class Config(token_supervised.Config):
    """Settings of DFT: supervised learning of tokens, weighted by their probability
    (arXiv:2508.05629, equation 9)."""

    optimizer: Optimizer = Optimizer(learning_rate=5e-5, schedule="cosine", max_grad_norm=1.0)
    """Optimizer settings. 5e-5, for 256 texts, is that of the published runs; the cosine ends after
    `learning_rate_steps`. There is no warm-up."""


@loss("actor_critic", name="loss")
def dft_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the cross-entropy of the texts' tokens times their probability, less an entropy
    bonus."""
    return likelihood_output(net, x, losses.dft)


dft = token_supervised.token_supervised.variant("dft", Config=Config, token_loss=dft_loss)

TINY = token_supervised.TINY | {"count": 16, "noise": 0.2}
