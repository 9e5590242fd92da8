"""The hybrid critic of HNPG in random finite Markov decision processes of which the policy reaches
a part, with expected losses, in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.offline import hnpg
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.exact.dynamic_programming import action_values, policy_evaluation
from jaxrl.exact.occupancy import occupancy

STATES, ACTIONS, DISCOUNT, ITERATIONS = 5, 2, 0.8, 200
REACHED = 3  # states between which the policy stays, of those by number
START = jnp.array([1.0, 0, 0, 0, 0])
NEVER = -1e9  # the logarithm of a probability of 0


def see(state: Array, reward: Array) -> TimeStep:
    none = jnp.zeros(state.shape, bool)
    return TimeStep(state, reward, none, none, none)


def errors_of(
    key: Key, weight: float = 1.0, data: bool = True, other: bool = False
) -> dict[str, Array]:
    """Return the largest errors of fitted values: "reached", in states that the policy reaches,
    "beyond", in the others, and "slope", of the loss at the policy's exact values.

    Action 0 leads from a reached state to others of these, action 1 anywhere; the policy takes
    action 0 there. The data have all pairs, each as often as the others.
    weight: of the squared errors of returns. data: whether the data are these, and not steps of the
    policy. other: whether targets follow the data's policy instead.
    """
    keys = jax.random.split(key, 4)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), (STATES, ACTIONS))
    inside = transition.at[:REACHED, 0, REACHED:].set(0.0)
    transition = inside / inside.sum(-1, keepdims=True)
    reward = jax.random.normal(keys[1], (STATES, ACTIONS))
    policy = jax.random.dirichlet(keys[2], jnp.ones(ACTIONS), (STATES,))
    policy = policy.at[:REACHED].set(jnp.array([1.0, 0.0]))
    exact = policy_evaluation(transition, reward, policy, DISCOUNT)
    exact_q = action_values(transition, reward, exact, DISCOUNT)

    # All pairs of a step of the policy and a step of the data, with their probabilities.
    step = jnp.arange(STATES * ACTIONS * STATES)
    one, two = (x.ravel() for x in jnp.meshgrid(step, step, indexing="ij"))
    visits = occupancy(transition, policy, START, DISCOUNT)
    visits = visits / visits.sum()
    stored = jnp.full((STATES, ACTIONS), 1 / (STATES * ACTIONS))
    chance_own = (visits[..., None] * transition).ravel()
    chance_data = (stored[..., None] * transition).ravel()
    if not data:
        chance_data = chance_own

    def steps(index: Array) -> Transition:
        state, action, after = jnp.unravel_index(index, (STATES, ACTIONS, STATES))
        paid = reward[state, action]
        now = see(state, jnp.zeros(paid.shape))
        return Transition(now, action, see(after, paid), (), {})

    def wide(x: Transition, extras: Any) -> Any:
        """Return a window [1, n] of steps [n]."""
        x = jax.tree.map(lambda leaf: leaf[None], x)
        return SimpleNamespace(
            timestep=x.timestep,
            action=x.action,
            next_timestep=x.next_timestep,
            reward=x.next_timestep.reward,
            terminated=x.next_timestep.terminated,
            done=x.next_timestep.terminated,
            extras=extras,
        )

    batch: Any = SimpleNamespace(transitions=wide(steps(one), {"data": wide(steps(two), {})}))
    chance = chance_own[one] * chance_data[two]
    followed = jnp.full(policy.shape, 1 / ACTIONS) if other else policy
    logits = jnp.where(followed > 0, jnp.log(jnp.where(followed > 0, followed, 1.0)), NEVER)

    def net_of(table: Array, target: Array) -> Any:
        network = lambda table: lambda seen: table[seen.observation][..., None]
        return SimpleNamespace(
            critic=network(table),
            target=SimpleNamespace(critic=network(target)),
            actor=lambda seen: SimpleNamespace(logits=logits[seen.observation]),
            hyper=SimpleNamespace(discount=DISCOUNT, weight=weight),
        )

    def slope_of(table: Array, targets: Any) -> Array:
        def loss(table: Array) -> Array:
            output: Any = hnpg.hybrid_loss(net_of(table, table), targets)
            return chance @ output.value[0]

        return jax.grad(loss)(table)

    def fit(table: Array, _: None) -> tuple[Array, None]:
        """Minimize the expected loss, which is a parabola in each number of the table."""
        targets = hnpg.make_targets(net_of(table, table), batch)
        slope = slope_of(table, targets)
        curvature = slope_of(table + 1, targets) - slope
        seen = curvature > 1e-9
        return jnp.where(seen, table - slope / jnp.where(seen, curvature, 1.0), table), None

    table, _ = jax.lax.scan(fit, jnp.zeros((STATES, ACTIONS)), None, length=ITERATIONS)
    at_exact = slope_of(exact_q, hnpg.make_targets(net_of(exact_q, exact_q), batch))
    wrong = jnp.abs(table - exact_q)
    return {
        "reached": wrong[:REACHED, 0].max(),
        "beyond": jnp.maximum(wrong[:REACHED, 1].max(), wrong[REACHED:].max()),
        "slope": jnp.abs(at_exact).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the hybrid loss with a weight of 1."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Offline Data Enhanced On-Policy Policy Gradient with Provable Guarantees",
        "Zhou, Sekhari, Song and Sun",
        2024,
        "2311.08384",
        "A policy gradient whose critic learns from its own returns and from offline data at once "
        "has the better of the guarantees of both.",
    ),
    claim="Fitted to returns of the policy's steps and to Bellman targets of data at once, the "
    "critic has the policy's own values also where the policy never goes, and the loss has no "
    "slope there; without data, or with targets of the data's policy, it has not.",
    left_out="Networks, samples, the policy's steps, data that mislead, and the paper's rates. "
    "Returns are cut off after one step and bootstrapped.",
    parts=("jaxrl/algorithms/offline/hnpg.py",),
    errors=errors,
    planted={
        "no data": jax.jit(lambda key: errors_of(key, data=False)),
        "targets of the data's policy": jax.jit(lambda key: errors_of(key, other=True)),
    },
    tolerance=1e-8,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "values of the policy's likeliest action",
            "jaxrl.losses:expected_value",
            lambda value: lambda q, probs: value(q, 1.0 * (probs == probs.max(-1, keepdims=True))),
        ),
        Mutation(
            "targets of another discount",
            "jaxrl.losses:td_target",
            lambda target: lambda reward, ended, discount, after: target(reward, ended, 0.5, after),
        ),
    ),
)
