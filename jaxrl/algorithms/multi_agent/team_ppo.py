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
emerged, later. Not here: its attention over entities, its LSTM, and its scale (batches of 64,000
chunks of 10 steps). So strategies that must remember what was seen cannot be learned, and of the
paper's six phases no more than the first, running and chasing, was reached here.

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

from jaxrl.algorithms.multi_agent import mappo
from jaxrl.algorithms.multi_agent.mappo import Sample, value_loss
from jaxrl.algorithms.multi_agent.shared.views import View, check_state, stack, team_view
from jaxrl.algorithms.policy_gradient.shared.actor_critic import surrogate
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION, expert_channel
from jaxrl.envs.wrappers.one_team import group_by_team
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Net,
    Part,
    Recipe,
    group,
    static,
)
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts
from jaxrl.kit.normalization import Moments, no_moments
from jaxrl.networks import encoders
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value

ADAM = Optimizer(learning_rate=1e-3, max_grad_norm=0.5, eps=1e-5, flat=True)


@group
class Config(mappo.Config):
    """Settings of PPO for teams."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=64)
    passes: Passes = Passes(epochs=4, minibatches=4)
    actor: Optimizer = ADAM
    """Optimizer of each team's policy."""
    critic: Optimizer = ADAM
    """Optimizer of each team's critic."""
    scripted: int = static(64, low=0)
    """Episodes of each team among scripted other teams in an evaluation; 0 for none."""


def teams_of(env: Environment) -> dict[str, tuple[str, ...]]:
    """Return the agents of each team, in the order of their rewards: those whose names are alike up
    to the last underscore."""
    return group_by_team(agent_names(env))


def critic_view(timestep: TimeStep, names: tuple[str, ...], space: Any) -> TimeStep:
    """Return the time step with the environment's state and each agent's own observation, of
    `space`, as its observation [..., K, S + D]."""
    seen = encoders.flatten(space, stack(timestep.observation, names, timestep.first.ndim))
    state = timestep.privileged["state"][..., None, :]
    state = jnp.broadcast_to(state, (*seen.shape[:-1], state.shape[-1]))
    both = jnp.concatenate([state, seen], -1)
    changes = {"observation": both, "legal_actions": None, "privileged": None}
    return dataclasses.replace(timestep, **changes)


def policy_loss(net: Net, x: Sample, team: str, view: View, numbers: np.ndarray) -> LossOutput:
    """Compute the mean over a team's living agents, by their `numbers`, of the clipped surrogate
    minus an entropy bonus."""
    policy, advantage = getattr(net, team)(view(x.timestep)), x.advantage[critic_of(team)]
    terms = surrogate(policy, x.action[team], x.log_prob[team], advantage, net.hyper.clip)
    terms = {
        name: mappo.mean_of_living(value, x.timestep, numbers) for name, value in terms.items()
    }
    total = terms["policy_loss"] - net.hyper.entropy_weight * terms["entropy"]
    metrics = {f"{team}_{name}": value for name, value in terms.items()}
    return LossOutput(total, metrics, drift=terms["approximate_kl"])


def critic_loss(net: Net, x: Sample, critic: str, view: View, numbers: np.ndarray) -> Array:
    """Compute the mean over a team's living agents, by their `numbers`, of MAPPO's value loss."""
    return mappo.mean_of_living(value_loss(net, x, critic, view), x.timestep, numbers)


def critic_of(team: str) -> str:
    """Return the name of a team's critic."""
    return f"{team}_critic"


def recipe(env: Environment, config: Config) -> Recipe:
    teams, order = teams_of(env), agent_names(env)
    example, spaces = example_timestep(env, agents=True), env.observation_space
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    parts, policy_losses, value_losses, views, central = {}, [], [], {}, {}
    numbers = {t: np.array([order.index(n) for n in names]) for t, names in teams.items()}
    owners = {critic_of(team): own for team, own in numbers.items()}
    of_loss = {f"{name}_loss": own for name, own in (numbers | owners).items()}
    for team, names in teams.items():
        sees, acts, critic = spaces[names[0]], env.action_space[names[0]], critic_of(team)  # type: ignore[index]
        views[team] = view = functools.partial(team_view, names=names)
        central[critic] = whole = functools.partial(critic_view, names=names, space=sees)
        parts[team] = Part(Actor(sees, acts, *torso), (view(example),), config.actor)
        value = Value(Box(-INF, INF, whole(example).observation.shape[2:]), *torso)
        parts[critic] = Part(value, (whole(example),), config.critic)
        learn = functools.partial(policy_loss, team=team, view=view, numbers=numbers[team])
        policy_losses.append(Loss(learn, (team,), f"{team}_loss"))
        fit = functools.partial(critic_loss, critic=critic, view=whole, numbers=numbers[team])
        value_losses.append(Loss(fit, (critic,), f"{critic}_loss"))

    def act(net, timestep, memory, key, greedy):
        action, log_prob = {}, {}
        for team, names in teams.items():
            policy = getattr(net, team)(views[team](timestep))
            chosen = jax.lax.stop_gradient(choose(policy, net.key(team), greedy))
            log_prob[team] = policy.log_prob(chosen)
            for i, name in enumerate(names):
                action[name] = jax.tree.map(lambda x, i=i: x[:, i], chosen)
        return action, memory, {"log_prob": log_prob}

    def sample_of(net: Net, batch: Any) -> tuple[Sample, dict[str, Moments]]:
        """The window with actions by team and values by critic, [T, B, K], and the statistics."""
        x = batch.transitions
        rewards = {critic: x.reward[..., own] for critic, own in owners.items()}
        sample, moments = mappo.estimate_advantages(net, batch, central, rewards, owners)
        action = {t: stack(x.action, names, x.terminated.ndim) for t, names in teams.items()}
        return dataclasses.replace(sample, action=action), moments

    def update(net, batch):
        sample, moments = sample_of(net, batch)
        sample, net = mappo.standardize_living(sample, owners), net.replace(extra=moments)
        return mappo.descend_in_passes(
            net, sample, batch, config.passes, policy_losses, value_losses, of_loss
        )

    return Recipe(
        parts=parts,
        act=act,
        losses=(*policy_losses, *value_losses),
        update=update,
        extra={critic: no_moments(()) for critic in central},
        needs=("transitions.extras.log_prob",),
        num_shards=config.rollouts.num_shards,
        scores={
            score_of(team): f"{team} among experts" for team in teams if is_judged(env, config)
        },
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for a window that does not divide into the minibatches, an environment that
    does not expose its state, and unless every agent has a reward of its own, and those of a team
    have the same spaces."""
    mappo.check_windows(env, config, name)
    check_state(env, f"The critics of {name}", "ippo")
    example = example_timestep(env, agents=True)
    if example.reward.ndim != 2:
        raise UserError(
            f"{name} learns from the rewards of teams, but all agents of '{env.name}' share one; "
            "mappo is for that."
        )
    for team, names in teams_of(env).items():
        for space in (env.observation_space, env.action_space):
            if any(space[n] != space[names[0]] for n in names):  # type: ignore[index]
                raise UserError(
                    f"The agents {', '.join(names)} of '{env.name}' are the team '{team}' by their "
                    f"names, and {name} gives a team one policy, but their spaces differ."
                )


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

TINY = {"env": "hide_and_seek", "num_envs": 4, "num_steps": 4, "num_shards": 4, "scripted": 2} | {
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
}
