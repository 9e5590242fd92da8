"""Goals in hindsight: recorded steps as if what was achieved later, or elsewhere, had been the goal
(Andrychowicz et al., 2017, "Hindsight Experience Replay").

A step from s_t to s_(t+1) reaches a goal if its successor does, by `env.goals.outcome`: the step is
then the last one of its episode. A goal that is k steps away is the one that s_(t+k) achieves, so
with k = 1 the step itself reaches it. A goal may also be achieved before the step, by s_t; an
episode would never get there, but the value of that state is known: 0.

Every step costs 1 until the goal is reached:

    before the step    the reward is 0 and the value ends (V(g, g) = 0)
    by the step        the reward is -1 and the value ends
    otherwise          the reward is -1 and the value goes on

so values are -(1 - discount^d) / (1 - discount) of the number d of steps, as
`losses.goal_value` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Goals, Hyper, Key, Transition, Tree, struct
from jaxrl.sources.played import Record, View, any_row, at_rows


@dataclasses.dataclass(frozen=True)
class Shares:
    """Origins of goals: shares `here` from the state itself, `elsewhere` from any step of the
    data, and the rest from later in the same episode.

    geometric: whether the distance of a later goal is geometric with the discount factor (at most
        the rest of the episode), or uniform over the rest of the episode.
    """

    here: float = 0.0
    elsewhere: float = 0.0
    geometric: bool = False

    def __post_init__(self):
        if min(self.here, self.elsewhere) < 0 or self.here + self.elsewhere > 1:
            raise UserError(
                f"Shares of goals are {self.here} from the state itself and {self.elsewhere} from "
                "elsewhere; they must not be negative, and at most 1 together."
            )


@struct
class Achieved:
    """Goals achieved by the record's steps.

    before: by the state that was acted on, [M, ...]. after: by its successor, [M, ...]. discount:
    of the geometric distances, float32 [].
    """

    before: Tree
    after: Tree
    discount: Array


@struct
class Chosen:
    """Goals of a batch: the row [n] of a step, and whether it is the goal achieved before it (else
    the one achieved after it)."""

    row: Array
    before: Array


def ending_params(env: Environment) -> Tree:
    """Return the parameters of `env` with which a goal ends the episode, where `continuing` says
    whether it does."""

    def end(params: Tree) -> Tree:
        if hasattr(params, "continuing"):
            return dataclasses.replace(params, continuing=False)
        if hasattr(params, "inner"):  # of a wrapper
            return dataclasses.replace(params, inner=end(params.inner))
        return params

    return end(env.params)


def hindsight(
    env: Environment,
    own: Shares,
    others: Mapping[str, Shares] | None = None,
    subgoal_steps: int = 0,
    discount: str = "discount",
    option_steps: int = 0,
) -> View:
    """Draw single steps [n] with a goal in hindsight in the channel `goal` of both time steps, and
    the reward and termination that follow from it (see above); nothing is truncated. Ends that are
    not the goal's, such as falls, are forgotten, so environments should have none.

    own: where that goal comes from.
    others: further goals by name, as extras; the steps are not relabeled with them.
    subgoal_steps: where it is above 0, what a hierarchy of policies needs: the extra `subgoal`, the
        time step [n] so many steps later, but not beyond the goal called `high_goal` of `others`
        where that is a later one of the episode, nor beyond the episode's end; and the extra
        `low_goal`, the goal achieved so many steps later, or at the episode's end.
    discount: name of the hyperparameter that geometric distances are drawn with.
    option_steps: where it is above 0, options of so many steps toward the goal called `option_goal`
        of `others`. An option ends early with the episode, and where it has reached a goal that is
        drawn from later in the episode. Goals that `others` draws from the state itself are those
        achieved at the option's end instead. The extras are `option`, the time step [n] at its end,
        and `option_reached` [n], whether the goal was achieved before the option or by any of its
        steps.

    Raises `UserError` if `env` has no goals, for subgoals without a `high_goal`, and for options
    without an `option_goal`.
    """
    if env.goals is None:
        raise UserError(f"'{env.name}' has no goals; only experience with goals can be relabeled.")
    goals: Goals = env.goals
    shares = {"": own} | dict(others or {})
    if subgoal_steps and "high_goal" not in shares:
        raise UserError("Subgoals need the goal that they lead to, called 'high_goal'.")
    if option_steps and "option_goal" not in shares:
        raise UserError("Options need the goal that they lead to, called 'option_goal'.")
    achieved = jax.vmap(goals.achieved)

    params = ending_params(env)

    def is_reached(achieved: Tree, goal: Tree) -> Array:
        return jax.vmap(lambda a, g: goals.outcome(a, g, params)[1])(achieved, goal)

    def prepare(data: Record, hyper: Hyper) -> Achieved:
        x = data.transitions
        rate = jnp.asarray(hyper.get(discount, 0.0), jnp.float32)
        return Achieved(achieved(x.observation), achieved(x.next_observation), rate)

    def draw(data: Record, prepared: Achieved, key: Key, n: int) -> dict[str, Any]:
        row_key, key = jax.random.split(key)
        row = any_row(data, row_key, n)
        keys = jax.random.split(key, len(shares))
        found: dict[str, Any] = {"row": row}
        for each, (name, share) in zip(keys, shares.items(), strict=True):
            found[name] = choose(data, row, share, prepared.discount, each)
        if subgoal_steps:
            ahead = jnp.minimum(row + subgoal_steps - 1, data.end[row])
            high = found["high_goal"].row
            within = (high >= row) & (high <= data.end[row]) & ~found["high_goal"].before
            found["low"] = ahead
            found["subgoal"] = jnp.where(within, jnp.minimum(ahead, high), ahead)
        if option_steps:
            chosen, end = found["option_goal"], data.end[row]
            last = jnp.minimum(row + option_steps - 1, end)
            later = (chosen.row >= row) & (chosen.row <= end) & ~chosen.before
            found["option"] = jnp.where(later, jnp.minimum(last, chosen.row), last)
            goal = jnp.where(chosen.before, last, chosen.row)
            found["option_goal"] = Chosen(goal, jnp.zeros_like(chosen.before))
        return found

    def goal_of(prepared: Achieved, chosen: Chosen) -> Tree:
        before, after = (at_rows(x, chosen.row) for x in (prepared.before, prepared.after))
        pick = lambda x, y: jnp.where(chosen.before.reshape(-1, *[1] * (x.ndim - 1)), x, y)
        return jax.tree.map(pick, before, after)

    def take(data: Record, prepared: Achieved, found: dict[str, Any]) -> tuple[Transition, None]:
        row, goal = found["row"], goal_of(prepared, found[""])
        x = data.at(row)
        already = is_reached(at_rows(prepared.before, row), goal)
        reached = is_reached(at_rows(prepared.after, row), goal)
        extras = {name: goal_of(prepared, found[name]) for name in shares if name}
        if subgoal_steps:
            extras["low_goal"] = at_rows(prepared.after, found["low"])
            extras["subgoal"] = at_rows(data.transitions.next_timestep, found["subgoal"])
        if option_steps:
            goal_there, last = extras["option_goal"], found["option"]
            extras["option"] = at_rows(data.transitions.next_timestep, last)

            def reached_by(step: Array) -> Array:
                met = at_rows(prepared.after, jnp.minimum(row + step, last))
                return is_reached(met, goal_there)

            on_the_way = jax.vmap(reached_by)(jnp.arange(option_steps)).any(0)
            at_once = is_reached(at_rows(prepared.before, row), goal_there)
            extras["option_reached"] = at_once | on_the_way
        relabeled = dataclasses.replace(
            x,
            timestep=dataclasses.replace(x.timestep, goal=goal),
            next_timestep=dataclasses.replace(
                x.next_timestep,
                goal=goal,
                reward=jnp.where(already, 0.0, -1.0),
                terminated=already | reached,
                truncated=jnp.zeros_like(reached),
            ),
            extras=extras,
        )
        return relabeled, None

    return View("hindsight", prepare, draw, take)


def choose(data: Record, row: Array, shares: Shares, discount: Array, key: Key) -> Chosen:
    """Choose a goal for each of the steps `row` [n]."""
    kind_key, later_key, other_key = jax.random.split(key, 3)
    chance = jax.random.uniform(kind_key, row.shape)
    later = later_row(row, data.end[row], shares.geometric, discount, later_key)
    found, here = later, jnp.zeros(row.shape, bool)
    if shares.elsewhere:
        other = any_row(data, other_key, len(row))
        found = jnp.where(chance >= 1 - shares.elsewhere, other, found)
    if shares.here:
        here = chance < shares.here
        found = jnp.where(here, row, found)
    return Chosen(found, here)


def later_row(row: Array, end: Array, geometric: bool, discount: Array, key: Key) -> Array:
    """Draw the row [n] of the step that arrives at a later goal, from `row` (a goal 1 step away) to
    `end`.

    A geometric distance is k with probability (1 - discount) discount^(k - 1), or the rest of the
    episode if it is longer than that.
    """
    u = jax.random.uniform(key, row.shape, minval=1e-7)
    if not geometric:
        return jnp.minimum(row + jnp.floor(u * (end - row + 1)).astype(jnp.int32), end)
    rate = jnp.clip(discount, 1e-6, 1 - 1e-6)
    beyond = jnp.floor(jnp.log(u) / jnp.log(rate))
    return row + jnp.minimum(beyond, (end - row).astype(jnp.float32)).astype(jnp.int32)
