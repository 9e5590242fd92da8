"""Portfolio selection with costs (Zhang et al., 2020, "Cost-sensitive portfolio selection via deep
reinforcement learning", arXiv:2003.03051): climb the growth of the wealth minus penalties for its
variance and for turnover, by the gradient through the account.

Prices do not react to the trader, so the shares that the policy would have held in whole recorded
episodes, what prices made of them, what trades cost and the reward are one differentiable function
of the policy, a network of two streams (`networks.portfolio`). Its input of what it holds is what
it held when the episode was played, as in the authors' code; holdings in the reward are its own.
Reward and costs are those of that code: turnover is sum |share - share held| over all assets but
cash. Here the account begins in cash and pays for the first purchase.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.envs.markets import account
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import Episodes, Optimizer
from jaxrl.networks.portfolio import TwoStreamPolicy


@group
class Config:
    """Settings of cost-sensitive portfolio selection."""

    episodes: Episodes = Episodes(num_envs=64)
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Adam, 1e-3, as in the authors' code."""
    widths: tuple[int, ...] = static((8, 16, 16), low=1, least_length=1)
    """Channels of the blocks of temporal and correlational convolutions."""
    units: int = static(16, low=1)
    """Units of the LSTM that reads each asset's series."""
    risk_aversion: float = hyper(1e-4, low=0, log=True)
    """Weight of the variance of the log-returns of a step."""
    cost_aversion: float = hyper(1e-3, low=0, log=True)
    """Weight of the turnover of a step, besides the costs that returns are net of."""


def follow_account(x: Transition, weights: Array) -> tuple[Array, Array]:
    """Return log-returns [T, ...] net of costs, and holdings before each trade [T, ..., N + 1], of
    shares `weights` [T, ..., N + 1] in recorded episodes [T, ...] from their first steps on."""
    newest = x.next_timestep.observation["returns"][..., -1, :]
    relatives = jnp.exp(jnp.concatenate([jnp.zeros_like(newest[..., :1]), newest], -1))
    growth, after = account.move_prices(weights, relatives)
    held = jnp.concatenate([x.timestep.observation["held"][:1], after[:-1]])
    cost = x.timestep.observation["cost"][..., 0]
    left = account.pay_for_trades(held, weights, cost)[1]
    return jnp.log(growth) + jnp.log(left), held


@loss("policy", name="loss", unit=SEQUENCE)
def portfolio_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute minus the cost-sensitive reward of each episode."""
    weights = net.policy(x.x.timestep)
    log_return, held = follow_account(x.x, weights)
    h, mask = net.hyper, x.mask
    reward = losses.cost_sensitive_reward(
        log_return, weights[..., 1:], held[..., 1:], h.risk_aversion, h.cost_aversion, mask
    )
    return LossOutput(-reward, {"growth": losses.masked_mean(log_return, mask, 0)})


def recipe(env: Environment, config: Any) -> Recipe:
    def act(net, timestep, memory, key, greedy):
        return net.policy(timestep), memory, {}

    def update(net, batch):
        return net.descend(portfolio_loss, batch)

    network = TwoStreamPolicy(config.widths, config.units)
    return Recipe(
        parts={"policy": Part(network, (example_timestep(env),), config.optimizer)},
        act=act,
        losses=(portfolio_loss,),
        update=update,
        needs=("mask",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment that is no portfolio."""
    seen, action = env.observation_space, env.action_space
    named = isinstance(seen, dict) and {"cost", "held", "returns"} <= set(seen)
    if not named or not isinstance(action, Box):
        raise UserError(
            f"{name} cannot act in '{env.name}', which is no portfolio: it chooses shares of one, "
            "and observes returns, what it holds and what trades cost."
        )


cost_sensitive_portfolio = AlgorithmBuilder("cost_sensitive_portfolio", Config, recipe, check=check)

TINY = {
    "env": "portfolio",
    "env_params": {"assets": 2, "window": 3, "steps": 4},
    "num_envs": 4,
    "num_shards": 4,
    "widths": (2, 3),
    "units": 2,
}
