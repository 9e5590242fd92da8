"""ILQL (Snell et al., 2023, "Offline RL for natural language generation with implicit language Q
learning", arXiv:2206.11871), as in the code of LMRL Gym (Abdulhai et al., 2023,
arXiv:2311.18232): implicit Q-learning of tokens from a dataset of texts with rewards.

    Q_i(s, a) <- r + gamma V(s'),   with s' where the agent writes its next token, r until then
    V(s)      <- the expectile of min_i Q'_i(s, a), by the target network
    pi(a | s) ~ pi_data(a | s) exp(beta min_i Q'_i(s, a))

and a conservative term, the cross-entropy of each Q with the tokens of the texts. The policy of the
data, pi_data, is cloned from the same texts; it is never descended by values. There it is cloned
first; here both learn at once. Q and V are heads of one network."""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import token_values
from jaxrl.algorithms.tokens.shared.token_values import (
    SMALL_VALUED,
    Valued,
    conservative_term,
    on_valued_texts,
    read_values,
)
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss


@group
class Config(token_values.Config):
    """Settings of ILQL: implicit Q-learning of tokens from texts with rewards (arXiv:2206.11871).
    The defaults are those of LMRL Gym's code for its guessing games, with the step size that it
    has for MC returns (its ILQL has 1e-5)."""

    expectile: float = hyper(0.7, above=0, below=1)
    """Expectile of the value over the data's tokens: 0.5 is their mean, near 1 their maximum."""


@loss("values", name="values_loss")
def values_loss(net: Net, x: Valued) -> LossOutput:
    """Compute the errors of both Q and of V, and the conservative term, of each token."""
    q, v = read_values(net.values, net, x)
    held, _ = read_values(net.target.values, net, x)
    steps = x.reward, v[:-1], v[1:], x.done, x.done, x.decides
    target = v[:-1] + losses.masked_gae(*steps, net.hyper.discount, 0.0)
    q_loss = losses.squared_error(q, target[..., None]).sum(-1)
    v_loss = losses.expectile_error(v[:-1], held.min(-1), net.hyper.expectile) / 2
    total = q_loss + v_loss + net.hyper.conservative * conservative_term(net, x)
    return LossOutput(total, {"q_loss": q_loss, "v_loss": v_loss, "mean_value": v[:-1]})


def recipe(env: Environment, config: Any) -> Recipe:
    return on_valued_texts(env, config, values_loss, critics=2)


ilql = AlgorithmBuilder("ilql", Config, recipe, check=token_values.check)

TINY = SMALL_VALUED
