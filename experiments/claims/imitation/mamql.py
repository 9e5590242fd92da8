"""Marginal critics in random Markov games of two agents that act at once, whose experts are
Boltzmann's, in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.imitation import mamql
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.exact.dynamic_programming import policy_evaluation, soft_value_iteration
from jaxrl.exact.occupancy import occupancy

STATES, ACTIONS, OTHERS, DISCOUNT, TEMPERATURE, ITERATIONS = 4, 3, 3, 0.8, 0.5, 300
AGENT = "agent"
Average = Callable[[Array, Array], Array]  # joint values [S, A, O], others' policy [S, O] -> [S, A]


def see(state: Array) -> TimeStep:
    """Return time steps whose observation, to the agent, is the number of the state."""
    none = jnp.zeros(state.shape)
    return TimeStep({AGENT: state}, none, none > 0, none > 0, none > 0)  # type: ignore[arg-type]


def errors_of(
    key: Key, average: Average = losses.marginal_q, marginal: bool = True
) -> dict[str, Array]:
    """Return the largest errors of these, for one agent whose expert is best with entropy in what
    the others make of the game.

    "policy": the marginal critic's Boltzmann policy, beside the expert's. "reward": what the critic
    says that steps pay, beside the mean over the others' actions. "slope": of the algorithm's
    objective at that critic, where expert and policy play alike and rewards are not penalized.
    "return": by how much the expert's policy is worse than any of 16 others.
    marginal: whether the objective's critic is the marginal one, not that of the others' first
    action.
    """
    keys = jax.random.split(key, 5)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), (STATES, ACTIONS, OTHERS))
    reward = jax.random.normal(keys[1], (STATES, ACTIONS, OTHERS))
    others = jax.random.dirichlet(keys[2], jnp.ones(OTHERS), (STATES,))
    own_transition = jnp.einsum("saot,so->sat", transition, others)
    own_reward = jnp.einsum("sao,so->sa", reward, others)
    own = own_transition, own_reward
    _, expert = soft_value_iteration(*own, DISCOUNT, TEMPERATURE, tolerance=1e-13)

    def back(values: Array, _: None) -> tuple[Array, Array]:
        """Return soft values of the joint critic, marginal over the others, and the critic."""
        joint = reward + DISCOUNT * transition @ values
        return losses.soft_value(average(joint, others), TEMPERATURE), joint

    values, joints = jax.lax.scan(back, jnp.zeros(STATES), None, length=ITERATIONS)
    critic = average(joints[-1], others)
    after = own_transition @ values
    implied = losses.inverse_bellman_reward(critic, after, jnp.zeros(critic.shape, bool), DISCOUNT)
    start = jnp.full(STATES, 1 / STATES)
    shown = occupancy(own_transition, expert, start, DISCOUNT)
    shown = shown / shown.sum()
    state, action, following = jnp.meshgrid(
        jnp.arange(STATES), jnp.arange(ACTIONS), jnp.arange(STATES), indexing="ij"
    )
    x: Any = SimpleNamespace(
        timestep=see(state.ravel()),
        next_timestep=see(following.ravel()),
        terminated=jnp.zeros(state.size, bool),
        action={AGENT: action.ravel()},
    )
    weight = (shown[..., None] * own_transition).ravel()
    loss = mamql.marginal_loss(AGENT)

    def objective(table: Array) -> Array:
        network = lambda seen: table[seen.observation][..., None]
        hyper = SimpleNamespace(temperature=TEMPERATURE, discount=DISCOUNT, alpha=jnp.inf)
        net: Any = SimpleNamespace(**{AGENT: network}, hyper=hyper)
        output: Any = loss(net, SimpleNamespace(shown=x, played=x))
        return weight @ output.value

    slope = jax.grad(objective)(critic if marginal else joints[-1][..., 0])
    worth = lambda policy: policy_evaluation(*own, policy, DISCOUNT, temperature=TEMPERATURE)
    tried = jax.random.dirichlet(keys[3], jnp.ones(ACTIONS), (16, STATES))
    best = jax.lax.map(worth, tried).max(0)
    found = jax.nn.softmax(critic / TEMPERATURE, -1)
    return {
        "policy": jnp.abs(found - expert).max(),
        "reward": jnp.abs(implied - own_reward).max(),
        "slope": jnp.abs(slope).max(),
        "return": jnp.maximum(best - worth(found), 0).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of marginal critics."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Multi-Agent Inverse Q-Learning from Demonstrations",
        "Haynam, Khoja, Kumar, Myers and Biyik",
        2025,
        "2503.04679",
        "A critic for each agent, marginal over what the others do, gives Boltzmann policies and "
        "recovers rewards from demonstrations, often 2 to 5 times better than earlier methods.",
    ),
    claim="The marginal soft critic has the expert's policy, implies the agent's reward averaged "
    "over the others' actions, and makes the slope of the algorithm's objective 0 where the policy "
    "plays as the expert; critics of one or of average actions of the others do not.",
    left_out="Networks, learning, samples, comparisons with other methods, rewards of joint "
    "actions, and the penalty on rewards, which moves the objective's minimum.",
    parts=("jaxrl/algorithms/imitation/mamql.py", "jaxrl/losses/imitation/inverse_rl.py"),
    errors=errors,
    planted={
        "the others' first action": jax.jit(lambda key: errors_of(key, lambda q, _: q[..., 0])),
        "the others act at random": jax.jit(lambda key: errors_of(key, lambda q, _: q.mean(-1))),
        "an objective of the others' first action": jax.jit(
            lambda key: errors_of(key, marginal=False)
        ),
    },
    tolerance=1e-8,
    effect=1e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "rewards of undiscounted successors",
            "jaxrl.losses:inverse_bellman_reward",
            lambda implied: lambda q, after, ended, discount: implied(q, after, ended, 1.0),
        ),
        Mutation(
            "soft values of half the temperature",
            "jaxrl.losses:soft_value",
            lambda soft: lambda q, temperature: soft(q, temperature / 2),
        ),
    ),
)
