"""SPO's rewards and its average policy in preference games with cycles, in tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._tables import ANSWERS, Game, distance, draw
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key

SIZE, STEPS = 3, 5_000
ETA = float(np.sqrt(8 * np.log(ANSWERS) / STEPS))
GROUPS = np.array(list(itertools.product(range(ANSWERS), repeat=SIZE)))  # all there are
Rate = Callable[[Array], Array]  # like `losses.win_rate`


def wins(policy: Array, x: Game) -> Array:
    """Return how probably each answer [A] is preferred to a policy's."""
    return x.preference @ jnp.exp(policy)


def rewards(rate: Rate, x: Game) -> Array:
    """Return the rewards of the answers of all groups, [groups, SIZE]."""
    return rate(x.preference[GROUPS[:, :, None], GROUPS[:, None]])


def of_groups(rate: Rate, x: Game) -> dict[str, Array]:
    """Return the errors of the expected reward and of the policy gradient of whole groups."""
    reward = rewards(rate, x)
    others = jnp.exp(x.policy[GROUPS].sum(-1) - x.policy[GROUPS[:, 0]])  # chance of all but one
    expected = jax.ops.segment_sum(others * reward[:, 0], GROUPS[:, 0], ANSWERS)

    def loss(logits):
        log_prob = jax.nn.log_softmax(logits)[GROUPS]
        value = losses.policy_gradient(log_prob, losses.leave_one_out(reward)).mean(-1)
        return (jnp.exp(x.policy[GROUPS].sum(-1)) * value).sum()

    def chance(logits):  # to be preferred to an answer of the policy as it is
        return jnp.exp(jax.nn.log_softmax(logits)) @ wins(x.policy, x)

    # What an answer wins, the others of its group lose, which is in the mean that is subtracted.
    exact = -SIZE / (SIZE - 1) * jax.grad(chance)(x.policy)
    return {
        "the expected reward": distance(expected, wins(x.policy, x)),
        "the policy gradient": distance(jax.grad(loss)(x.policy), exact),
    }


def gaps(x: Game) -> tuple[Array, Array]:
    """Return the duality gaps of the average and of the last policy of self-play, from the uniform
    one."""

    def body(policy, _):
        return solvers.mirror_descent(policy, wins(policy, x), ETA), jnp.exp(policy)

    last, policies = jax.lax.scan(body, jnp.zeros(ANSWERS) - jnp.log(ANSWERS), None, STEPS)
    gap = lambda p: solvers.duality_gap(x.preference - 0.5, p, p)
    return gap(policies.mean(0)), gap(jnp.exp(last))


BOUND = 2 * (np.log(ANSWERS) / (ETA * STEPS) + ETA / 8)  # twice the regret of Hedge


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of SPO."""
    x = draw(key)
    above = jnp.maximum(gaps(x)[0] / BOUND - 1, 0)
    return of_groups(losses.win_rate, x) | {"the average policy's gap above its bound": above}


@jax.jit
def by_reward_model(key: Key) -> dict[str, Array]:
    """Return by how much the gap of a reward model's best answer exceeds the bound."""
    x = draw(key)
    # From comparisons of all pairs alike a Bradley-Terry model ranks answers by how often they win.
    best = jnp.zeros(ANSWERS).at[wins(jnp.zeros(ANSWERS) - jnp.log(ANSWERS), x).argmax()].set(1)
    gap = solvers.duality_gap(x.preference - 0.5, best, best)
    return {"the gap above the bound": gap / BOUND - 1}


def wrong(rate: Rate) -> Callable[[Key], dict[str, Array]]:
    """Return the smaller error of a wrong reward."""
    return jax.jit(
        lambda key: {"least": jnp.array(list(of_groups(rate, draw(key)).values())).min()}
    )


def with_itself(win_rate: Rate) -> Rate:
    """Compare an answer with itself too."""
    return lambda preference: preference.mean(-1)


def losing(win_rate: Rate) -> Rate:
    """Pay for losses."""
    return lambda preference: win_rate(preference.swapaxes(-1, -2))


CLAIM = Exact(
    paper=Paper(
        "A Minimaximalist Approach to Reinforcement Learning from Human Feedback",
        "Swamy, Dann, Kidambi, Wu and Agarwal",
        2024,
        "2401.04056",
        "Self-play with the share of a batch's other trajectories that one is preferred to as its "
        "reward finds the minimax winner, also of intransitive, noisy and non-Markovian "
        "preferences, and learns more efficiently than from a reward model.",
    ),
    claim="SPO's reward is on average the chance to beat the policy, and its average policy nears "
    "the minimax winner within Hedge's bound.",
    left_out="Continuous control, noise, and sample efficiency: here policies are tables over ten "
    "answers with preferences that have cycles, and expectations are sums over all groups.",
    parts=(
        "jaxrl/losses/preferences/reward_models.py",
        "jaxrl/algorithms/preferences/spo.py",
        "jaxrl/solvers/dynamics.py",
    ),
    errors=errors,
    planted={
        "an answer compared with itself": wrong(with_itself(losses.win_rate)),
        "losses are paid": wrong(losing(losses.win_rate)),
        "the best answer for a reward model": by_reward_model,
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    notes="The bound is twice the regret of Hedge over 5,000 steps with its best step size.",
    mutations=(
        Mutation("an answer compared with itself", "jaxrl.losses:win_rate", with_itself),
        Mutation("losses are paid", "jaxrl.losses:win_rate", losing),
    ),
)
