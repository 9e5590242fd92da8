"""QMIX + CQL, a baseline of OG-MARL (Formanek et al., 2023, "Off-the-Grid MARL: Datasets with
Baselines for Offline Multi-Agent Reinforcement Learning", arXiv:2302.00521, and the authors' code):
QMIX from a dataset, with the penalty of conservative Q-learning on the team's value.

On transitions of the data, with m joint actions u_i whose parts are drawn alike among each agent's
legal actions,

    1/2 (y - Q(s, u))^2 + alpha (log(exp Q(s, u) + sum_i exp Q(s, u_i)) - Q(s, u))

where Q is the team's value, and y is the target of double QMIX. With `alpha` 0 it is QMIX as it is.
With `decomposition="vdn"` the team's value is the sum of its agents' (VDN + CQL). Unlike in the
authors' code, where agents share the weights of a GRU, agents have no memory and share no weights.
The authors mean to draw legal actions too, but their code takes the shares of legal actions for
logits, by which illegal ones are drawn nearly as often.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent import qmix, vdn
from jaxrl.algorithms.multi_agent.shared.team_datasets import TeamData
from jaxrl.algorithms.multi_agent.shared.team_values import (
    Team,
    act_greedily,
    mixing,
    own_networks,
)
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Environment, Transition
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Recipe, group, hyper, static
from jaxrl.kit.acting import ILLEGAL
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import ImageTorso, Optimizer, Target


@group
class Config:
    """Settings of QMIX + CQL (arXiv:2302.00521). Defaults are those of the authors' code."""

    data: TeamData = TeamData()
    torso: ImageTorso = ImageTorso(hidden=(64, 64))
    """Hidden layers of each agent's network."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer of all networks."""
    target: Target = Target(rate=1.0, period=200)
    mixing: int = static(32, low=1, high=WIDE)
    """Number of hidden units of the mixing network."""
    decomposition: str = static("qmix", choices=("vdn", "qmix"))
    """Mixing of the agents' values into the team's: their sum, or QMIX's mixing network."""
    samples: int = static(20, low=1)
    """Number of random joint actions in the penalty."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    alpha: float = hyper(3.0, low=0)
    """Weight of the conservative penalty."""


def recipe(env: Environment, config: Config) -> Recipe:
    networks, values = own_networks(env, config)
    mixer, mix = mixing(env, config)
    team = Team(agent_names(env), networks | mixer, values, mix)

    def team_loss(net: Net, x: Transition) -> LossOutput:
        """Regress the team's value on its target, lower it for random joint actions, and raise it
        for the data's."""
        target = team.target(net, x, double=True)
        q = team.values(net, x.timestep)
        value = team.of_actions(net, x.timestep, q, x.action)

        def of_random(key):
            actions = {}
            for agent, own_key in zip(team.agents, jax.random.split(key, len(q)), strict=True):
                logits = jnp.where(q[agent] <= ILLEGAL, -jnp.inf, 0.0)
                actions[agent] = jax.random.categorical(own_key, logits)
            return team.of_actions(net, x.timestep, q, actions)

        sampled = jax.vmap(of_random)(jax.random.split(net.key("actions"), config.samples))
        both = jnp.concatenate([value[..., None], jnp.moveaxis(sampled, 0, -1)], -1)
        gap = losses.cql(both, jnp.zeros(value.shape, jnp.int32))
        error = losses.squared_error(value, target)
        metrics = {"team_value": value, "gap": gap}
        return LossOutput(error + net.hyper.alpha * gap, metrics)

    loss = Loss(team_loss, tuple(team.parts), "team_loss")
    return Recipe(parts=team.parts, act=act_greedily(env, team), losses=(loss,))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where VDN or QMIX do."""
    (qmix if config.decomposition == "qmix" else vdn).check(env, config, name)


qmix_cql = AlgorithmBuilder("qmix_cql", Config, recipe, check=check)

TINY = {
    "env": "skirmish",
    "env_params": {"agents": 2, "enemies": 1, "size": 5},
    "hidden": (5,),
    "mixing": 4,
    "samples": 2,
    "target.period": 3,
    "data.size": 256,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
}
