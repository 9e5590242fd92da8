"""Self-play of teams by PPO, as in hide and seek (Baker et al., 2020, "Emergent tool use from
multi-agent autocurricula", arXiv:1909.07528, section 4).

All agents act at the same time, each by its own observation and for its own reward, and all teams
learn in one run against what the others are now. The agents of a team share one policy, which
descends PPO's clipped surrogate and an entropy bonus on the window of all of them. A team's critic
sees what no agent does, the whole state (`privileged["state"]`), beside the observation of the
agent whose return it predicts; it is needed in training alone. Values, their targets and their
statistics are those of MAPPO. A team is the agents whose names are alike up to the last underscore:
`hider_0` and `hider_1` are `hider`. An agent that has died neither learns nor counts until the next
episode: its own episode ends at its death, and what it would be paid later is dropped.

In the paper all agents of both teams share one policy; with separate ones the same strategies
emerged, later. Policies have a GRU if `recurrent` says so (an LSTM there). Not here: its attention
over entities, and its scale (batches of 64,000 chunks of 10 steps). No more than the first of the
paper's six phases, running and chasing, was reached here.

Each evaluation also plays every team against the scripted other teams, where the environment has an
expert: `hider_among_experts` is the mean return of a `hider` there.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.team_policies import (
    Actors,
    Cast,
    Critic,
    cast_recipe,
    check_windows,
)
from jaxrl.algorithms.multi_agent.shared.views import (
    check_alike,
    check_state,
    stack,
    team_view,
    teams_of,
)
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION, expert_channel
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts
from jaxrl.networks import encoders

ADAM = Optimizer(learning_rate=1e-3, max_grad_norm=0.5, eps=1e-5, flat=True)


@group
class Config(team_policies.Settings):
    """Settings of PPO for teams."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=64)
    passes: Passes = Passes(epochs=4, minibatches=4)
    actor: Optimizer = ADAM
    """Optimizer of each team's policy."""
    critic: Optimizer = ADAM
    """Optimizer of each team's critic."""
    recurrent: int = static(0, low=0, high=WIDE)
    """Width of a GRU before each policy; 0 for none."""
    scripted: int = static(64, low=0)
    """Episodes of each team among scripted other teams in an evaluation; 0 for none."""


def critic_view(timestep: TimeStep, names: tuple[str, ...], space: Any) -> TimeStep:
    """Return the time step with the environment's state and each agent's own observation, of
    `space`, as its observation [..., K, S + D]."""
    seen = encoders.flatten(space, stack(timestep.observation, names, timestep.first.ndim))
    state = timestep.privileged["state"][..., None, :]
    state = jnp.broadcast_to(state, (*seen.shape[:-1], state.shape[-1]))
    both = jnp.concatenate([state, seen], -1)
    changes = {"observation": both, "legal_actions": None, "privileged": None}
    return dataclasses.replace(timestep, **changes)


def critic_of(team: str) -> str:
    """Return the name of a team's critic."""
    return f"{team}_critic"


def recipe(env: Environment, config: Config) -> Recipe:
    example, spaces = example_timestep(env, agents=True), env.observation_space
    actors, critics = {}, {}
    for team, names in teams_of(env).items():
        view = functools.partial(critic_view, names=names, space=spaces[names[0]])  # type: ignore[index]
        actors[team] = Actors(names, functools.partial(team_view, names=names), critic_of(team))
        sees = Box(-INF, INF, view(example).observation.shape[2:])
        critics[critic_of(team)] = Critic(view, sees, names)
    plain = cast_recipe(Cast(env, actors, critics), config, config.recurrent)
    teams = actors if is_judged(env, config) else ()
    return dataclasses.replace(
        plain, scores={score_of(team): f"{team} among experts" for team in teams}
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for a window that does not divide into the minibatches, an environment that
    does not expose its state, and unless every agent has a reward of its own, and those of a team
    have the same spaces."""
    check_windows(env, config, name)
    check_state(env, f"The critics of {name}", "ippo")
    example = example_timestep(env, agents=True)
    if example.reward.ndim != 2:
        raise UserError(
            f"{name} learns from the rewards of teams, but all agents of '{env.name}' share one; "
            "mappo is for that."
        )
    for names in teams_of(env).values():
        check_alike(env, names, name)


def score_of(team: str) -> str:
    """Return the name of a team's return among the environment's experts."""
    return f"{team}_among_experts"


def is_judged(env: Environment, config: Config) -> bool:
    """Return whether evaluations play each team among experts."""
    return env.expert is not None and config.scripted > 0


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the mean return of each team's agents where the environment's expert plays the others;
    nothing where it has none."""
    if not is_judged(env, config):
        return {}
    guided, found = expert_channel(env), {}
    for i, (team, names) in enumerate(teams_of(env).items()):
        played = evaluate(
            guided, among_experts(policy, names), jax.random.fold_in(key, i), config.scripted
        )
        index = np.array([agent_names(env).index(n) for n in names])
        found[score_of(team)] = played.returns[:, index].mean()
    return found


def among_experts(policy: Policy, names: tuple[str, ...]) -> Policy:
    """Return the policy that acts as `policy` for `names` and as the expert for all others, in an
    environment with an `expert_channel`."""

    def act(state, timestep, memory, key, greedy):
        own, memory, _ = policy.act(state, timestep, memory, key, greedy)
        expert = timestep.privileged[EXPERT_ACTION]
        return {n: (own if n in names else expert)[n] for n in own}, memory, {}

    return Policy(act, policy.memory, policy.state)


team_ppo = AlgorithmBuilder("team_ppo", Config, recipe, check=check, measure=measure)

TINY = {"env": "hide_and_seek", "num_envs": 8, "num_steps": 4, "num_shards": 4, "scripted": 2} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
    "recurrent": 4,
}
