"""IGT-MPC, implicit game-theoretic model predictive control (Kim et al., 2024, "Learning two-agent
motion planning strategies from generalized Nash equilibrium for model predictive control",
arXiv:2411.13983).

Two cars plan for themselves, each with a prediction of the other, and still interact: the end of a
plan is worth what a game from there would bring. Games are drawn with random beginnings and solved
for a generalized Nash equilibrium, in which no car gains by another plan among those that do not
collide with the other's; a network learns a car's reward in it from the states of both. Each car
then takes the best of its plans of `horizon` steps that keep apart from the predicted other, with
the network's value of both cars' states at the end.

From the authors' code are the decentralized MPC that must keep apart, the prediction of the other
by its present motion, the control costs, a network of tanh layers on both states, and the baseline
whose plans end with the progress alone. There plans are optimized by an interior-point method with
steering, and games by a solver of their own. Here cars stay on their roads ("crossing") and choose
among few accelerations, so that games and plans are solved by enumeration: in a game each car has
`parts` parts of `hold` steps with one acceleration. As a car's reward is its own alone and what it
may not do is symmetric, the pair of plans with the largest sum of rewards is such an equilibrium
(`equilibrium`); of several this one is taken. Games are drawn anew for each step, so none is seen
twice, and their beginnings are any states on the way. A car without a plan that keeps apart brakes.

Evaluations report the network's error in fresh games (root of the mean square, as a share of the
targets' deviation), and `mpc_return`, `mpc_collided`: the same MPC with the progress in the place
of the value (the return of one car).
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, Policy, Tree, struct
from jaxrl.envs.particles import crossing as c
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import group, hyper, static
from jaxrl.kit.direct import Direct, DirectBuilder
from jaxrl.kit.groups import Torso
from jaxrl.networks.scalar import ScalarMLP

SCALE = 5.0  # of what a car misses for the other, for the network
SCORES = {"value_error": "value error", "mpc_return": "MPC return", "mpc_collided": "MPC collided"}


@group
class Config:
    """Settings of implicit game-theoretic MPC. Defaults are ours, but for the network."""

    torso: Torso = Torso(hidden=(128, 128), activation="tanh")
    """Hidden layers of the value."""
    games: int = static(64, low=1)
    """Games that each step draws and solves."""
    parts: int = static(4, low=1, high=5)
    """Parts of a plan in a game, each with one acceleration; a game has 9^parts pairs of plans."""
    hold: int = static(4, low=1)
    """Environment steps of each part."""
    horizon: int = static(4, low=1, high=5)
    """Steps of a plan of the MPC."""
    compared: int = static(256, low=1)
    """Episodes and games of an evaluation."""
    learning_rate: float = hyper(3e-3, low=0, log=True)
    """Learning rate of Adam."""


@struct
class State:
    """State of the training of the value."""

    params: Tree
    optimizer: Tree


@struct
class Plans:
    """All plans of one car from one state: leading axis [P]."""

    places: Array  # float32 [P, L], at every look
    speed: Array  # float32 [P], at the end
    reward: Array  # float32 [P], sum over the steps


def all_plans(parts: int) -> np.ndarray:
    """Return all sequences of actions, int32 [3^parts, parts]."""
    actions = range(len(c.ACCELERATIONS))
    return np.asarray(list(itertools.product(actions, repeat=parts)), np.int32)


def roll(place: Array, speed: Array, actions: np.ndarray, params: Any) -> Plans:
    """Return the plans of a car that starts at `place` and `speed`; actions: int [P, steps]."""

    def step(carry, action):
        place, speed = carry
        places, after = c.drive(place, speed, action, params)
        meters = places[..., -1] - place
        return (places[..., -1], after), (places, c.reward(meters, action, params))

    start = jnp.broadcast_to(place, len(actions)), jnp.broadcast_to(speed, len(actions))
    (_, last), (places, paid) = jax.lax.scan(step, start, jnp.asarray(actions.T))
    looks = jnp.moveaxis(places, 0, 1).reshape(len(actions), -1)
    return Plans(looks, last, paid.sum(0))


def equilibrium(one: Array, two: Array, apart: Array) -> tuple[Array, Array, Array]:
    """Return a generalized Nash equilibrium in which players may only choose allowed pairs.

    one, two: rewards [P], [Q] of each player's own choice.
    apart: bool [P, Q], the allowed pairs.

    Returns the two choices, and whether any pair is allowed. In the allowed pair with the largest
    sum neither player has a better allowed choice, or the sum were not the largest.
    """
    total = jnp.where(apart, one[:, None] + two, -jnp.inf)
    best = jnp.argmax(total)
    first, second = jnp.unravel_index(best, total.shape)
    return first, second, apart.any()


def solve(place: Array, speed: Array, config: Any, params: Any) -> tuple[Array, Array]:
    """Return the rewards [2] of both cars in an equilibrium of the game from places and speeds [2],
    and whether there is one."""
    actions = np.repeat(all_plans(config.parts), config.hold, 1)
    one, two = (roll(place[i], speed[i], actions, params) for i in range(2))
    # The pairs of plans are compared look by look, so that no array of pairs and looks is made.
    meet = lambda near, looks: (near | c.near(looks[0][:, None], looks[1], params), None)
    none = jnp.zeros((len(actions), len(actions)), bool)
    hit, _ = jax.lax.scan(meet, none, (one.places.T, two.places.T))
    first, second, exists = equilibrium(one.reward, two.reward, ~hit)
    return jnp.stack([one.reward[first], two.reward[second]]), exists


def draw_games(key: Key, count: int) -> tuple[Array, Array]:
    """Return places and speeds [count, 2] of cars anywhere on the way."""
    one, two = jax.random.split(key)
    place = jax.random.uniform(one, (count, 2), minval=-c.FARTHEST, maxval=c.FARTHEST)
    return place, jax.random.uniform(two, (count, 2), minval=0.0, maxval=c.FASTEST)


def both_sides(x: Array) -> tuple[Array, Array]:
    """Return numbers [G, 2] of both cars as those of the one and of the other, [2 G] each."""
    return x.T.ravel(), x[:, ::-1].T.ravel()


def build(env: Environment, config: Any) -> Direct:
    network = ScalarMLP(config.torso.hidden, config.torso.activation, config.torso.initializer)
    actions = all_plans(config.horizon)
    adam = optax.scale_by_adam()
    dynamics = env.params

    def samples(key: Key, count: int) -> tuple[Array, Array, Array]:
        """Return features [2 G, 4] of games, rewards in equilibria, and whether there are any."""
        place, speed = draw_games(key, count)
        rewards, exists = jax.lax.map(lambda x: solve(x[0], x[1], config, dynamics), (place, speed))
        (own, other), (own_speed, other_speed) = both_sides(place), both_sides(speed)
        seen = c.features(own, own_speed, other, other_speed)
        return seen, both_sides(rewards)[0], jnp.tile(exists, 2)

    most = config.parts * config.hold * dynamics.dt * c.FASTEST  # meters of a car alone

    def value(params: Tree, seen: Array) -> Array:
        scaled: Any = network.apply(params, seen)
        return most + SCALE * scaled

    def loss(params: Tree, seen: Array, target: Array, exists: Array) -> Array:
        error = jnp.square((value(params, seen) - target) / SCALE)
        return (exists * error).sum() / jnp.maximum(exists.sum(), 1)

    def init(key: Key, hyper: Any) -> State:
        params = network.init(key, jnp.zeros((1, 4)))
        return State(params, adam.init(params))

    def step(state: State, key: Key, hyper: Any) -> tuple[State, dict[str, Any]]:
        found, slope = jax.value_and_grad(loss)(state.params, *samples(key, config.games))
        change, after = adam.update(slope, state.optimizer)
        params = jax.tree.map(lambda p, x: p - hyper.learning_rate * x, state.params, change)
        return State(params, after), {"value_loss": m.mean(found)}

    def choose(params: Tree, seen: Array, game: bool) -> Array:
        """Return the first action of the best plan of a car that sees `seen` [4]."""
        place, speed, other, other_speed = seen * np.tile([c.FARTHEST, c.FASTEST], 2)
        plans = roll(place, speed, actions, dynamics)
        steady = roll(other, other_speed, np.ones((1, config.horizon), np.int32), dynamics)
        hit = c.near(plans.places, steady.places, dynamics).any(-1)
        end = plans.places[:, -1]
        if game:
            last = c.features(end, plans.speed, steady.places[0, -1], steady.speed[0])
            worth = plans.reward + value(params, last)
        else:
            worth = plans.reward
        best = jnp.argmax(jnp.where(hit, -jnp.inf, worth))
        return jnp.where(hit.all(), 0, jnp.asarray(actions)[best, 0]).astype(jnp.int32)

    def act(params, timestep, memory, key, greedy, game):
        each = jax.vmap(lambda seen: choose(params, seen, game))
        return {name: each(timestep.observation[name]) for name in c.NAMES}, memory, {}

    play = {game: functools.partial(act, game=game) for game in (True, False)}
    policy = lambda state, game=True: Policy(play[game], lambda n: (), state.params)

    def measure(state: State, key: Key) -> dict[str, Array]:
        one, two = jax.random.split(key)
        seen, target, known = samples(one, config.compared)
        mean = lambda x: (known * x).sum() / jnp.maximum(known.sum(), 1)
        error = mean(jnp.square(value(state.params, seen) - target))
        spread = mean(jnp.square(target - mean(target)))
        played = evaluate(env, policy(state, False), two, config.compared)
        return {
            "value_error": jnp.sqrt(error / jnp.maximum(spread, 1e-9)),
            "mpc_return": played.returns.mean(),
            "mpc_collided": played.metrics["collided"].mean(),
        }

    return Direct(
        init,
        step,
        policy=policy,
        env_steps=config.games * config.parts * config.hold,
        scores=SCORES,
        measure=measure,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for another environment than a crossing of two cars."""
    del config
    if env.agents != c.NAMES or not isinstance(env.params, c.Params):
        raise UserError(
            f"{name} cannot act in '{env.name}', whose games it cannot solve; it needs crossing."
        )


igt_mpc = DirectBuilder("igt_mpc", Config, build, check)

TINY = {
    "env": "crossing",
    "env_params": {"steps": 4},
    "hidden": (5,),
    "games": 4,
    "parts": 2,
    "hold": 1,
    "horizon": 2,
    "compared": 4,
}
