"""Independent PPO (de Witt et al., 2020, "Is independent learning all you need in the StarCraft
multi-agent challenge?", arXiv:2011.09533): MAPPO's agents, each with its own critic that sees only
what its policy sees, as in the comparisons of Yu et al. (2022).

Differs from their code: an agent's return ends at its death. There it goes on with what the team
earns, so that an agent may be paid for a victory that it did not live to see."""

from __future__ import annotations

import functools

from jaxrl.algorithms.multi_agent.mappo import TINY as TINY
from jaxrl.algorithms.multi_agent.mappo import Config, agents_recipe, check_windows, mappo
from jaxrl.algorithms.multi_agent.shared.views import own_view
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe


def recipe(env: Environment, config: Config) -> Recipe:
    critic_of = {agent: f"{agent}_critic" for agent in env.action_space}
    critics = {
        name: (env.observation_space[agent], functools.partial(own_view, agent=agent))
        for agent, name in critic_of.items()
    }
    return agents_recipe(env, config, critics, critic_of)


ippo = mappo.variant("ippo", recipe=recipe, check=check_windows)
