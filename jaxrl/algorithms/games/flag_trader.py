"""FLAG-Trader (Xiong et al., 2025, "FLAG-Trader: fusion LLM-agent with gradient-based reinforcement
learning for financial trading", arXiv:2502.11433): a language model reads the state of a market and
of an account as a text, and says whether to buy, to hold or to sell. Its lower layers stay as they
were; the upper ones, a head of the policy and one of the value learn by PPO from the gains of the
trades.

The roles of the layers are those of the paper's abstract and of texts about it, and the settings
those of its table 3 but for the sizes of a batch: one market and rollouts of 40 steps there, whole
episodes side by side here. What is ours: that the embedding is frozen too, which layers are, the
reward (the log-return of a day), that only legal words can be said, and that the divergence from
the policy that training began with is a term of the loss. The model is a small transformer that was
trained before (`warm_start`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    estimate_advantages,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.algorithms.tokens.shared.settings import SMALL, Clipped, Divergence, Groups
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Memory, Optimizer, Passes
from jaxrl.networks.actor_critic import ActorCritic


@group
class Config(Clipped):
    """Settings of FLAG-Trader: PPO for a partly frozen model that trades (arXiv:2502.11433). The
    defaults are those of its table 3, but for the number of episodes."""

    groups: Groups = Groups(prompts=32, answers=1)
    passes: Passes = Passes(epochs=1, minibatches=4, chunk_rows=0)
    memory: Memory = Memory(recurrent=64, transformer=3)
    optimizer: Optimizer = Optimizer(learning_rate=5e-4, max_grad_norm=0.5)
    """Optimizer settings. The step size falls to 0 in the paper; set `learning_rate_steps` to the
    steps of the run."""
    kl: Divergence = Divergence(weight=0.05)
    entropy_weight: float = hyper(0.05, low=0, log=True)
    """Weight of the entropy bonus."""
    frozen: int = static(2, low=0)
    """Number of lower blocks of the transformer that are frozen, with the embedding; 0 for none."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per word that is said."""
    gae_lambda: float = hyper(0.98, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    value_clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""


def judge(net: Net, batch: Batch) -> dict[str, Array]:
    """Estimate generalized advantages, standardized over all decisions, and the value targets."""
    x = estimate_advantages(net, batch)
    advantage = losses.standardize(x.advantage, batch.mask)
    return {"advantage": advantage, "target": x.target, "value": x.value}


@loss("actor_critic", name="loss")
def trading_loss(net: Net, x: Sample) -> LossOutput:
    """Compute PPO's surrogate, the clipped value loss and the divergence penalty of each word."""
    now, h = evaluate(net, x), net.hyper
    surrogate = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, h.clip)
    penalty = h.kl.weight * losses.kl_k3(now.log_prob, x.reference)
    output = token_output(net, x, now, surrogate + penalty)
    error = losses.clipped_squared_error(now.value, x.value, x.target, h.value_clip)
    metrics = {**output.metrics, "value_loss": error}
    return dataclasses.replace(output, value=output.value + h.value_weight * error, metrics=metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    network = token_network(env, config)
    assert isinstance(network, ActorCritic)  # `check`
    network = network.clone(frozen=config.frozen)
    return on_answers(env, config, judge, (trading_loss,), network=network)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for more frozen blocks than there are, and for a
    language model of a folder, whose layers cannot be frozen one by one."""
    answers.check(env, config, name)
    if config.decoder.model:
        raise UserError(f"{name} freezes layers of its own network; leave decoder.model empty.")
    if config.frozen > config.memory.transformer:
        raise UserError(
            f"frozen is {config.frozen}, but the transformer has {config.memory.transformer} "
            "blocks (memory.transformer)."
        )


flag_trader = AlgorithmBuilder("flag_trader", Config, recipe, check=check)

TINY = SMALL | {"env": "price_text", "env_params": {"window": 3, "steps": 2}, "prompts": 8}
TINY |= {"num_shards": 4, "transformer": 2, "frozen": 1}
