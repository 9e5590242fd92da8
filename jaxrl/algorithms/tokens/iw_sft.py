"""iw-SFT (Qin and Springenberg, 2025, "Supervised fine tuning on curated data is reinforcement
learning (and can be improved)", arXiv:2507.12856): supervised learning of filtered texts, each
weighted by how much likelier the policy writes it than the reference policy that the texts come
from. Without the weight, the likelihood of texts that were filtered, or drawn in proportion to
their return, is a lower bound of the return that gets looser as the policy leaves the reference;
the weight makes it tight at the current policy.

`texts.keep` filters (right) or draws by quality (by_return). The ratio is averaged over a text's
tokens and clipped, as in the published code; there all tokens of a minibatch count alike, here all
texts."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens import token_supervised
from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate, unroll
from jaxrl.algorithms.tokens.shared.settings import Tokens
from jaxrl.algorithms.tokens.shared.texts import Texts, on_texts
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import INF, Optimizer


@group
class Config(Tokens):
    """Settings of iw-SFT: supervised learning of filtered texts, weighted by the ratio of policy
    and reference (arXiv:2507.12856)."""

    optimizer: Optimizer = Optimizer(
        learning_rate=1e-5, schedule="cosine", max_grad_norm=1.0, beta2=0.95, weight_decay=1e-4
    )
    """Optimizer settings. AdamW, its betas, decay and a cosine over `learning_rate_steps` are those
    of the published run, without its warm-up."""
    texts: Texts = Texts(writer="policy", count=4096, keep="right")
    low: float = hyper(0.0, low=0)
    """Smallest weight of a text."""
    high: float = hyper(16.0, above=0, high=INF)
    """Largest weight of a text. 16: the published code."""
    per_token: bool = True
    """Average log-probabilities over a text's tokens, in its weight and in its likelihood; if not,
    sum them: the ratio of whole texts."""


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor_critic", name="loss", unit=SEQUENCE)
    def iw_sft_loss(net: Net, x: Minibatch) -> LossOutput:
        """Compute the weighted negative log-likelihood of each text, less an entropy bonus."""
        now, h = evaluate(net, x.x, as_sampled=False), net.hyper
        of_texts = lambda y, mean: losses.sequence_log_prob(y, x.mask, normalize=mean)
        ours, reference = (of_texts(y, config.per_token) for y in (now.log_prob, x.x.reference))
        value = losses.iw_sft(ours, reference, h.low, h.high)
        entropy = of_texts(now.entropy, True)
        metrics = {
            "policy_loss": value,
            "entropy": entropy,
            "weight": losses.importance_ratio(ours, reference),
            "kl_to_reference": of_texts(losses.kl_k3(now.log_prob, x.x.reference), True),
        }
        return LossOutput(value - h.entropy_weight * entropy, metrics)

    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        policy, _ = unroll(net.target.actor_critic, net, x.timestep)
        return Sample(x.timestep, x.action, reference=policy.log_prob(x.action))

    return on_texts(env, config, iw_sft_loss, prepare)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `texts.check`, and for a range of weights without any."""
    if config.low > config.high:
        raise UserError(f"low is {config.low}; it must be at most high={config.high}.")
    texts.check(env, config, name)


iw_sft = AlgorithmBuilder("iw_sft", Config, recipe, check=check)

TINY = token_supervised.TINY | {"count": 16, "keep": "by_return", "writer": "expert"}
