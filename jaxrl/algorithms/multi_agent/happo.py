"""HAPPO: MAPPO whose agents learn one after the other (Kuba et al., 2022,
"Trust region policy optimisation in multi-agent reinforcement learning", arXiv:2109.11251,
algorithm 4).

In each update the agents take turns in a random order. Each descends PPO's clipped surrogate of the
team's advantages times M, the product of the ratios by which the agents before it in this update
have changed the probabilities of their actions: by the multi-agent advantage decomposition (their
lemma 1) the steps add up to an improvement of the team, which simultaneous ones need not. The
critic is MAPPO's and learns last; advantages are standardized before they are multiplied.

In a program of several seeds all agents are tried at each turn, and one is kept, so that an update
costs as many times more as there are agents.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.multi_agent import mappo
from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.team_policies import (
    cast_recipe,
    check_central,
    living,
    mean_of_living,
    over_window,
    unit_of,
)
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Environment, Tree
from jaxrl.kit import AlgorithmBuilder, Minibatch, Recipe, group, static
from jaxrl.kit.groups import Passes


@group
class Config(team_policies.Settings):
    """Settings of HAPPO (arXiv:2109.11251)."""

    passes: Passes = Passes(epochs=5, minibatches=1)
    """Passes of each agent over the window, and of the critic."""
    recurrent: int = static(0, low=0, high=WIDE)
    """Width of a GRU before each policy; 0 for none."""


def recipe(env: Environment, config: Config) -> Recipe:
    cast = mappo.central_cast(env)
    plain, agents = cast_recipe(cast, config, config.recurrent), tuple(cast.actors)
    policy_losses, value_losses = plain.losses[: len(agents)], plain.losses[len(agents) :]

    def update(net, batch):
        sample, moments = cast.sample(net, batch)
        unit, limit = unit_of(sample.memory), net.hyper.passes.target_kl
        window = lambda x: Minibatch(x, batch.mask, batch.weight)

        def improve(index: int):
            agent, loss = agents[index], policy_losses[index]

            def turn(parts: Tree, ratio: Array) -> tuple[Tree, Array, dict[str, Any]]:
                """Improve one agent; multiply the ratios by its own."""
                advantage = {"critic": sample.advantage["critic"] * ratio}
                x = dataclasses.replace(sample, advantage=advantage)
                numbers = cast.numbers[agent]
                step = lambda net, rows: net.descend(loss, living(rows, numbers))
                own = net.replace(parts=parts, metrics={})
                own = own.epochs(config.passes, window(x), step, unit=unit, max_drift=limit)
                policy = over_window(own, agent, cast.actors[agent].view(x.timestep), x.memory)
                log_ratio = policy.log_prob(x.action[agent]) - x.log_prob[agent]
                # What the dead do has no effect.
                log_ratio = mean_of_living(log_ratio, x.timestep, numbers)
                # The same names for every agent.
                metrics = {n.removeprefix(f"{agent}_"): v for n, v in own.metrics.items()}
                return own.parts, ratio * jnp.exp(log_ratio), metrics

            return turn

        def body(carry, index):
            parts, ratio, metrics = jax.lax.switch(index, turns, *carry)
            return (parts, ratio), metrics

        turns = [improve(i) for i in range(len(agents))]
        order = jax.random.permutation(net.key("turns"), len(agents))
        begun = net.parts, jnp.ones_like(sample.advantage["critic"])
        (parts, ratio), metrics = jax.lax.scan(body, begun, order)
        net = net.replace(parts=parts, extra=moments)
        net = net.report(**jax.tree.map(lambda x: x.mean(0), metrics), ratio=ratio.mean())

        def fit(net, minibatch):
            for loss in value_losses:
                net = net.descend(loss, minibatch)
            return net

        return net.epochs(config.passes, window(sample), fit, unit=unit)

    return dataclasses.replace(plain, update=update)


happo = AlgorithmBuilder("happo", Config, recipe, check=check_central)

TINY = {"env": "foraging", "num_envs": 8, "num_steps": 4, "num_shards": 4} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
    "recurrent": 4,
}
