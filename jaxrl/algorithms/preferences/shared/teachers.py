"""Teachers who compare segments of control, by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Transition, Tree
from jaxrl.envs.tables import mdp
from jaxrl.exact.dynamic_programming import soft_value_iteration
from jaxrl.sources.segments import Score, reward_of

SCORES = ("reward", "regret", "goal")


def regret_of(env: Environment, temperature: float, discount: float) -> Score:
    """Return the score of steps by which segments are compared by their regret: the advantage
    Q(s, a) - V(s) of the optimal maximum-entropy policy, exactly.

    temperature: weight of the entropy, alpha. discount: per step, of the values.

    Raises `UserError` for an environment that is no finite table, or whose observations do not tell
    the state.
    """
    table, state_of = env.params, env.state_of
    if not isinstance(table, mdp.Table) or state_of is None:
        raise UserError(
            f"The regret of '{env.name}' is not known, since it is no finite table whose "
            "observations tell the state; compare segments by 'reward'."
        )
    advantage = optimal_advantages(table, temperature, discount)

    def score(step: Transition, user: Tree) -> Array:
        state = state_of(step.timestep)
        state = getattr(state, "inner", state)  # within a time limit
        return advantage[state.index, step.action]

    return score


def optimal_advantages(table: mdp.Table, temperature: float, discount: float) -> Array:
    """Return the advantages Q - V [S, A] of the optimal maximum-entropy policy of a table, which is
    exp(advantage / temperature)."""
    with jax.ensure_compile_time_eval():
        found = mdp.tensors(table)
        _, policy = soft_value_iteration(
            found.transition, found.reward, discount, temperature, found.terminal
        )
        return temperature * jnp.log(policy)


def goal_of(step: Transition) -> Tree:
    """Return the goal of a step's episode, which tells users apart who want different goals."""
    return step.timestep.goal


def goal_score(env: Environment) -> Score:
    """Return the score of steps by which a user compares segments who has a goal of their own: the
    environment's reward for that goal, of the observation that a step led to.

    Raises `UserError` for an environment without goals.
    """
    goals, params = env.goals, env.params
    if goals is None:
        raise UserError(f"'{env.name}' has no goals that users could want.")

    def one(observation: Tree, goal: Tree) -> Array:
        return goals.outcome(goals.achieved(observation), goal, params)[0]

    def score(step: Transition, user: Tree) -> Array:
        function = one
        for _ in range(step.reward.ndim - 1):
            function = jax.vmap(function)
        return jax.vmap(function, (0, None))(step.next_observation, user)

    return score


def score_of(env: Environment, name: str, temperature: float, discount: float) -> Score:
    """Return the score of steps called `name`: reward, regret (see `regret_of`) or goal."""
    if name == "goal":
        return goal_score(env)
    return reward_of if name == "reward" else regret_of(env, temperature, discount)
