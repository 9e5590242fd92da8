"""The edge of reach in random deterministic systems on a line: tables of an ensemble are fitted
with RAVL's loss to truncated rollouts of the true dynamics, in float64, beside dynamic programming.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs, losses
from jaxrl.algorithms.offline import ravl
from jaxrl.core.types import Array, Batch, Key, Source, TimeStep, Transition
from jaxrl.exact.dynamic_programming import finite_horizon_evaluation, value_iteration
from jaxrl.sources import imagined

STATES, ACTIONS, KNOWN, SHORT, LONG = 10, 3, 3, 2, 40
MEMBERS, DISCOUNT, ITERATIONS, SYSTEMS, STARTS = 20, 0.8, 110, 40, 256
SPREAD = 10.0  # of values that nothing was learned for
REACH = KNOWN + SHORT - 2  # states on this side are those that short rollouts go on from
LEAST = 0.3  # by how much values are too large, or returns too small, at least
SHORTFALL = 0.05  # of the return that the ensemble's policy may lack


def see(state: Array, reward: Array) -> TimeStep:
    none = jnp.zeros(state.shape, bool)
    return TimeStep(state, reward, none, none, none)


def collect(key: Key, follows: Array, reward: Array, horizon: int) -> tuple[Array, Array, Array]:
    """Return successors and rewards [S, A] that rollouts of random actions show, and which pairs
    they show. Rollouts begin in the first `KNOWN` states."""
    start = jnp.arange(KNOWN * STARTS) % KNOWN
    now = see(start, jnp.zeros(start.shape))
    first = Batch(Transition(now, jnp.zeros_like(start), now, (), {}), env_steps=jnp.zeros(()))
    data = Source(
        "starts",
        lambda key, hyper, policy: (),
        lambda state, policy, key: (state, first, {}),
        lambda state, fresh, key: fresh,
    )

    def step(policy: Any, timestep: TimeStep, key: Key) -> tuple[Array, TimeStep]:
        action = jax.random.randint(key, start.shape, 0, ACTIONS)
        at = timestep.observation, action
        return action, dataclasses.replace(timestep, observation=follows[at], reward=reward[at])

    policy: Any = None
    rollouts = imagined.imagined_rollouts(data, step, horizon, env_steps=1)
    x = rollouts.collect(rollouts.init(key, {}, policy), policy, key)[1].transitions
    at = x.observation, x.action
    empty = jnp.zeros((STATES, ACTIONS))
    after = jnp.zeros((STATES, ACTIONS), int).at[at].set(x.next_observation)
    return after, empty.at[at].set(x.reward), empty.at[at].set(1.0)


def fit(tables: Array, after: Array, reward: Array, shown: Array) -> tuple[Array, Array]:
    """Fit tables [S, A, E] to the pairs that are shown. Returns the tables and a greedy policy
    [S, A], the one with the least loss of the actor."""
    env = envs.make("pendulum")  # for its actions alone, one number within bounds
    critic_loss = ravl.recipe(env, ravl.Config()).losses[0]
    state, action = (
        leaf.ravel()
        for leaf in jnp.meshgrid(jnp.arange(STATES), jnp.arange(ACTIONS), indexing="ij")
    )
    zeros = jnp.zeros(state.shape)
    now, later = see(state, zeros), see(after.ravel(), reward.ravel())
    x = Transition(now, action.astype(float), later, (), {})

    def critic(tables: Array) -> Any:
        """Return values at actions, numbers between which tables are parabolas."""

        def values(timestep: TimeStep, action: Array) -> Array:
            a = action[..., None]
            low, middle, high = jnp.moveaxis(tables[timestep.observation], -2, 0)
            return low * (a - 1) * (a - 2) / 2 + middle * a * (2 - a) + high * a * (a - 1) / 2

        return values

    def choose(tables: Array) -> Array:
        return losses.sac_actor(jnp.zeros((STATES, ACTIONS)), tables, 0.0).argmin(-1)

    def slope_of(tables: Array, old: Array) -> Array:
        def loss(tables: Array) -> Array:
            acts = lambda timestep: SimpleNamespace(
                sample_and_log_prob=lambda seed: (
                    choose(old)[timestep.observation].astype(float),
                    zeros,
                )
            )
            net: Any = SimpleNamespace(
                critic=critic(tables),
                target=SimpleNamespace(critic=critic(old)),
                actor=acts,
                key=lambda: None,
                temperature=lambda: 0.0,
                hyper=SimpleNamespace(discount=DISCOUNT, reward_scale=1.0, diversity=0.0),
            )
            output: Any = critic_loss(net, x)
            return (shown.ravel() * output.value).sum()

        return jax.grad(loss)(tables)

    def iterate(tables: Array, _: None) -> tuple[Array, None]:
        """Minimize the loss, which is a parabola in each number that it depends on."""
        slope = slope_of(tables, tables)
        curvature = slope_of(tables + 1, tables) - slope
        seen = curvature > 1e-9
        return jnp.where(seen, tables - slope / jnp.where(seen, curvature, 1.0), tables), None

    tables, _ = jax.lax.scan(iterate, tables, None, length=ITERATIONS)
    return tables, jax.nn.one_hot(choose(tables), ACTIONS, dtype=float)


def measure(key: Key, horizon: int, agree: Array | bool) -> dict[str, Array]:
    """Return what the fits come to in one random system."""
    move_key, reward_key, table_key, key = jax.random.split(key, 4)
    moves = jax.vmap(lambda key: jax.random.permutation(key, jnp.arange(-1, 2)))
    place = jnp.arange(STATES)[:, None] + moves(jax.random.split(move_key, STATES))
    follows = jnp.clip(place, 0, STATES - 1)
    transition = jax.nn.one_hot(follows, STATES, dtype=float)
    reward = jax.random.normal(reward_key, (STATES, ACTIONS))
    blank = SPREAD * jax.random.normal(table_key, (STATES, ACTIONS, MEMBERS))
    one = jnp.broadcast_to(blank[..., :1], blank.shape)
    exact, _ = value_iteration(transition, reward, DISCOUNT, tolerance=1e-12)

    def values_with(worth: Array) -> Array:
        """Return optimal values where episodes end beyond the reach, with `worth`."""
        beyond = jnp.arange(STATES) > REACH
        paid = reward[..., None] + DISCOUNT * jnp.where(beyond, worth, 0.0)
        return value_iteration(transition, paid, DISCOUNT, beyond, tolerance=1e-12)[0]

    def earns(policy: Array) -> Array:
        values, _ = finite_horizon_evaluation(transition, reward, policy, ITERATIONS, DISCOUNT)
        return values[0, :KNOWN].mean()

    short, long = (collect(key, follows, reward, length) for length in (horizon, LONG))
    few, few_policy = fit(one, *short)
    _, many_policy = fit(jnp.where(agree, one, blank), *short)
    whole, _ = fit(one, *long)
    predicted = values_with(one[..., 0].max(-1))
    inside = values_with(jnp.full(STATES, -1e4))
    fitted = few[:, :, 0].max(-1)
    return {
        "predicted": jnp.abs(fitted - predicted)[: REACH + 1].max(),
        "whole": jnp.abs(whole[..., 0].max(-1) - exact).max(),
        "too large": (fitted - exact)[:KNOWN].mean(),
        "lost": inside[:KNOWN].mean() - earns(few_policy),
        "short": inside[:KNOWN].mean() - earns(many_policy),
    }


def errors_of(key: Key, horizon: int = SHORT, agree: Array | bool = False) -> dict[str, Array]:
    """Return the errors over random systems.

    "predicted": values fitted to short rollouts by one critic, beside those of the system that ends
    beyond the reach with the untrained values. "whole": values fitted to long ones by one critic,
    beside optimal values. "optimism", "loss": what the mean surplus of values, and the mean loss of
    return, that one critic has on short rollouts lack of `LEAST`. "pessimism": the mean return that
    the ensemble's policy lacks of the best one within reach, beyond `SHORTFALL`.
    horizon: of short rollouts. agree: whether all members of the ensemble begin as one.
    """
    x = jax.vmap(lambda key: measure(key, horizon, agree))(jax.random.split(key, SYSTEMS))
    return {
        "predicted": x["predicted"].max(),
        "whole": x["whole"].max(),
        "optimism": jnp.maximum(LEAST - x["too large"].mean(), 0.0),
        "loss": jnp.maximum(LEAST - x["lost"].mean(), 0.0),
        "pessimism": jnp.maximum(x["short"].mean() - SHORTFALL, 0.0),
    }


compiled = jax.jit(errors_of, static_argnames="horizon")


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of fits to short rollouts."""
    return compiled(key, agree=False)


CLAIM = Exact(
    paper=Paper(
        "The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning",
        "Sims, Lu, Foerster and Teh",
        2024,
        "2402.12527",
        "With short rollouts model-based methods fail even in the true dynamics: values are "
        "bootstrapped from states at the edge of reach, which are never updated. Pessimism of an "
        "ensemble of values mends it.",
    ),
    claim="On 2-step rollouts of true dynamics one critic errs as its untrained edge values say "
    "and loses return; long rollouts, or 20 critics, mend it.",
    left_out="Networks, continuous actions, learned dynamics, the diversity of critics (its weight "
    "is 0), and the policy's pessimism: one that maximized the critics' mean passed as well, since "
    "their least value in the targets keeps it within reach. Untrained values are drawn from a "
    "normal distribution about twice as wide as true values are large, as extrapolations may be; "
    "the ensemble's policy is compared with the best one that stays within reach. Surpluses and "
    "losses are means over 40 systems.",
    parts=(
        "jaxrl/algorithms/offline/ravl.py",
        "jaxrl/sources/imagined.py",
        "jaxrl/losses/values/actor_critics.py",
    ),
    errors=errors,
    planted={
        "long rollouts": lambda key: compiled(key, LONG, agree=False),
        "rollouts that are longer by a step": lambda key: compiled(key, SHORT + 1, agree=False),
        "an ensemble that agrees": lambda key: compiled(key, agree=True),
    },
    tolerance=1e-8,
    effect=1e-2,
    seeds=8,
    minutes=5.0,
    mutations=(
        Mutation(
            "targets are the critics' mean",
            "jaxrl.losses:sac_target",
            lambda target: (
                lambda reward, ended, discount, q, log_prob, temperature: target(
                    reward, ended, discount, q.mean(-1, keepdims=True), log_prob, temperature
                )
            ),
        ),
        Mutation(
            "rollouts are shorter by a step",
            "jaxrl.sources.imagined:imagined_rollouts",
            lambda rollouts: (
                lambda data, step, horizon, **options: rollouts(data, step, horizon - 1, **options)
            ),
        ),
    ),
)
