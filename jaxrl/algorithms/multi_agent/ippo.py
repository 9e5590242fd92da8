"""Independent PPO (de Witt et al., 2020, "Is independent learning all you need in the StarCraft
multi-agent challenge?", arXiv:2011.09533): MAPPO's agents, each with its own critic that sees only
what its policy sees, as in the comparisons of Yu et al. (2022). Agents may have rewards of their
own.

Differs from their code: an agent's return ends at its death. There it goes on with what the team
earns, so that an agent may be paid for a victory that it did not live to see."""

from __future__ import annotations

from jaxrl.algorithms.multi_agent.mappo import (
    Config,
    actors,
    check_players,
    mappo,
)
from jaxrl.algorithms.multi_agent.shared.team_policies import Cast, Critic, cast_recipe
from jaxrl.algorithms.multi_agent.shared.views import players, view_of
from jaxrl.core.types import Environment
from jaxrl.kit import Recipe


def recipe(env: Environment, config: Config) -> Recipe:
    several, spaces = players(env, config.share_weights), env.observation_space
    critic_of = {name: f"{name}_critic" for name in several}
    critics = {
        critic_of[name]: Critic(view_of(own), spaces[own[0]], own, config.recurrent)  # type: ignore[index]
        for name, own in several.items()
    }
    return cast_recipe(Cast(env, actors(several, critic_of), critics), config, config.recurrent)


ippo = mappo.variant("ippo", recipe=recipe, check=check_players)

TINY = {"env": "foraging", "num_envs": 8, "num_steps": 4, "num_shards": 4} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
    "recurrent": 4,
    "share_weights": True,
}
