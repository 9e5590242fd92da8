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
from jaxrl.algorithms.multi_agent.shared.views import own_view, state_view
from jaxrl.core.types import Array, Environment, Tree
from jaxrl.kit import AlgorithmBuilder, Minibatch, Recipe, group
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import Passes


@group
class Config(mappo.Config):
    """Settings of HAPPO (arXiv:2109.11251)."""

    passes: Passes = Passes(epochs=5, minibatches=1)
    """Passes of each agent over the window, and of the critic."""


def recipe(env: Environment, config: Config) -> Recipe:
    plain = mappo.recipe(env, config)
    agents = tuple(env.action_space)  # type: ignore[arg-type]
    policy_losses, value_losses = plain.losses[: len(agents)], plain.losses[len(agents) :]

    def update(net, batch):
        sample, moments = mappo.estimate_advantages(net, batch, {"critic": state_view})
        sample = mappo.standardize_living(sample, {"critic": range(len(agents))})
        window = lambda x: Minibatch(x, batch.mask, batch.weight)
        limit = net.hyper.passes.target_kl

        def improve(index: int):
            agent, loss = agents[index], policy_losses[index]

            def turn(parts: Tree, ratio: Array) -> tuple[Tree, Array, dict[str, Any]]:
                """Improve one agent; multiply the ratios by its own."""
                advantage = {"critic": sample.advantage["critic"] * ratio}
                x = dataclasses.replace(sample, advantage=advantage)
                number = agent_names(env).index(agent)
                step = lambda net, rows: net.descend(loss, mappo.living(rows, number))
                own = net.replace(parts=parts, metrics={})
                own = own.epochs(config.passes, window(x), step, max_drift=limit)
                policy = getattr(own, agent)(own_view(x.timestep, agent))
                log_ratio = policy.log_prob(x.action[agent]) - x.log_prob[agent]
                alive = x.timestep.alive
                if alive is not None:  # what the dead do has no effect
                    log_ratio = jnp.where(alive[..., number], log_ratio, 0)
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

        return net.epochs(config.passes, window(sample), fit)

    return dataclasses.replace(plain, update=update)


happo = AlgorithmBuilder("happo", Config, recipe, check=mappo.check)

TINY = mappo.TINY
