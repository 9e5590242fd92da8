"""Policy gradient loss of tokens."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate, token_output
from jaxrl.kit import LossOutput, Net, loss


@loss("actor_critic", name="loss")
def policy_gradient_loss(net: Net, x: Sample) -> LossOutput:
    """Compute -A log p of each token, less an entropy bonus."""
    now = evaluate(net, x)
    return token_output(net, x, now, losses.policy_gradient(now.log_prob, x.advantage))
