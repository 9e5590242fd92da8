"""The losses of Stackelberg mean-field RL with exact critics, in linear-quadratic games."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.games import smfg
from jaxrl.core.types import Array, Key, TimeStep, Transition, struct

FOLLOWERS, STATES, RATE, STEPS = 5, 64, 0.2, 4000


@struct
class Game:
    """A game of one step. The leader does a and follower i with the type o_i does b_i; m is their
    mean. Each follower earns

        -b_i^2 / 2 + b_i (own o_i + led a + crowd m) + shared m

    and the leader -a^2 / 2 + a (need s + reply m) + goal m, in the state s.
    """

    own: Array
    led: Array
    crowd: Array
    shared: Array
    need: Array
    reply: Array
    goal: Array


def draw(key: Key) -> Game:
    """Draw a game whose solutions are unique, in which the leader has a reason to commit itself."""
    x = jax.random.uniform(key, (7,), float)
    sign = jnp.where(x[6] < 0.5, -1.0, 1.0)
    return Game(
        0.5 + x[0], 0.5 + 0.5 * x[1], 0.7 * x[2] - 0.4, 0.3 + x[3], 0.5 + x[4], 0.2 * x[5],
        sign * (0.5 + x[6]),
    )  # fmt: skip


def samples(key: Key) -> Transition:
    """Draw states, types and actions of the data, for all of which losses are averaged.

    The leader sees the state and the mean type, a follower its own and the mean type.
    """
    keys = jax.random.split(key, 3)
    state = jax.random.normal(keys[0], (STATES,), float)
    types = jax.random.normal(keys[1], (STATES, FOLLOWERS), float)
    mean = types.mean(1)
    seen = {
        smfg.LEADER: jnp.stack([state, mean], -1),
        smfg.FOLLOWERS: jnp.stack([types, jnp.broadcast_to(mean[:, None], types.shape)], -1),
    }
    none = jnp.zeros(STATES, bool)
    timestep = TimeStep(seen, jnp.zeros((STATES, 2)), none, none, none)
    action = {
        smfg.LEADER: jax.random.normal(keys[2], (STATES, 1), float),
        smfg.FOLLOWERS: jnp.zeros((STATES, FOLLOWERS, 1)),
    }
    return Transition(timestep, action, timestep, (), {})


def network(game: Game, leader: Array, follower: Array) -> Any:
    """Return linear policies with exact critics."""

    def linear(weights: Array) -> Callable[[TimeStep], Array]:
        return lambda t: (t.observation @ weights[1:] + weights[0])[..., None]

    def follower_reward(timestep: TimeStep) -> Array:
        kind, _, led, done, _, _, mean = jnp.moveaxis(timestep.observation, -1, 0)
        pull = game.own * kind + game.led * led + game.crowd * mean
        return -jnp.square(done) / 2 + done * pull + game.shared * mean

    def leader_reward(timestep: TimeStep) -> Array:
        state, _, done, _, _, mean = jnp.moveaxis(timestep.observation, -1, 0)
        return (
            -jnp.square(done) / 2 + done * (game.need * state + game.reply * mean)
            + game.goal * mean
        )  # fmt: skip

    return SimpleNamespace(
        government=linear(leader),
        households=linear(follower),
        government_critic=leader_reward,
        households_critic=follower_reward,
    )


def answer(game: Game, x: Transition, action: Array, together: bool) -> Array:
    """Return the followers' answers [B, N] to the leader's action [B, 1]: those of an equilibrium
    among them, or those that earn them the most together."""
    kind = x.timestep.observation[smfg.FOLLOWERS]
    pull = game.own * kind + game.led * action[..., None, :]  # [B, N, 2]: by own and by mean type
    crowd, extra = (2 * game.crowd, game.shared) if together else (game.crowd, 0.0)
    mean = (pull[..., 1] + extra) / (1 - crowd)
    return pull[..., 0] + crowd * mean + extra


def commitment(game: Game, x: Transition) -> Array:
    """Return the action [B, 1] that earns the leader the most when followers answer it."""
    state, mean = jnp.split(x.timestep.observation[smfg.LEADER], 2, -1)
    without = game.own * mean / (1 - game.crowd)  # their mean if the leader does 0
    slope = game.led / (1 - game.crowd)
    gain = game.need * state + game.reply * without + game.goal * slope
    return gain / (1 - 2 * game.reply * slope)


def learn(game: Game, x: Transition, through_mean: bool) -> tuple[Array, Array]:
    """Return the weights of leader and followers after gradient steps on their losses."""

    def step(weights: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        leader, follower = weights
        lead = lambda w: smfg.leader_loss(network(game, w, follower), x).mean()  # pyright: ignore[reportAttributeAccessIssue]
        follow = lambda w: smfg.follower_loss(network(game, leader, w), x, through_mean).mean()
        down = leader - RATE * jax.grad(lead)(leader), follower - RATE * jax.grad(follow)(follower)
        return down, None

    return jax.lax.scan(step, (jnp.zeros(3, float), jnp.zeros(4, float)), None, STEPS)[0]


def measure(key: Key, swapped: bool) -> Mapping[str, Any]:
    """Return the errors of what is learned. swapped: let the gradient pass through the mean for
    players of a game, and not for those who act together."""
    game, x = draw(key), samples(jax.random.fold_in(key, 1))

    def answers(weights: tuple[Array, Array]) -> Array:
        net = network(game, *weights)
        return smfg.follow(net.households, x.timestep, x.action[smfg.LEADER])[..., 0]

    alone, together = (learn(game, x, through != swapped) for through in (False, True))
    known = [answer(game, x, x.action[smfg.LEADER], whole) for whole in (False, True)]
    led = smfg.lead(network(game, *alone).government, x.timestep)
    return {
        "followers from the equilibrium": jnp.abs(answers(alone) - known[0]).max(),
        "followers from what is best for all": jnp.abs(answers(together) - known[1]).max(),
        "leader from the best commitment": jnp.abs(led - commitment(game, x)).max(),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of the losses."""
    return measure(key, False)


def forget_leader(follow: Callable[..., Array]) -> Callable[..., Array]:
    """Answer as if the leader did nothing."""
    return lambda actor, timestep, action: follow(actor, timestep, jnp.zeros_like(action))


CLAIM = Exact(
    paper=Paper(
        "Learning Macroeconomic Policies based on Microfoundations: A Stackelberg Mean Field Game "
        "Approach",
        "Mi, Xia, Song, Wang, Zhang and Wang",
        2024,
        "2403.12093",
        "Stackelberg mean-field RL solves games of a government that leads and of many households "
        "that answer it; its policies are better in performance and in the trade-off of "
        "efficiency and equity than others.",
    ),
    claim="With exact critics in linear-quadratic games of one step, gradient steps on the "
    "followers' loss end at the mean-field equilibrium, or through the mean action at what is best "
    "for all of them, after any action of the leader; and the leader's end at the action that is "
    "best for it when followers answer it.",
    left_out="Learned critics, several steps, cloning, and the economy: whether taxes that are "
    "learned are better than none or fixed ones needs households that learn under each, of which "
    "80,000 steps a run take minutes, and eight runs of three sides more than the time of a claim.",
    parts=("jaxrl/algorithms/games/smfg.py",),
    errors=errors,
    planted={
        "the other gradient through the mean": jax.jit(lambda key: measure(key, True)),
    },
    tolerance=1e-6,
    effect=1e-2,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "followers forget the leader", "jaxrl.algorithms.games.smfg:follow", forget_leader
        ),
    ),
    diagnosis="The leader's loss takes the followers' answer to its own action as given, as the "
    "method says, so it ends where it would if both moved at once: its gain by what the answer "
    "changes is missing. In an economy of many steps this is missing in each step; what the answer "
    "changes later is in the critic. A gradient through the answer would end at the commitment.",
    notes="A seed has 64 states of 5 followers each. Solutions are derived by hand.",
)
