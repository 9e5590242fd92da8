import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract
from tests.losses.games.test_equilibria import BIASED, HUGE, PURE, game, simplex, zero_sum

ROCK = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
PENNIES = np.array([[1.0, -1], [-1, 1]])


def plan(rng):
    joint = rng.uniform(0.2, 1, (3, 3))
    payoff = rng.normal(size=(2, 3, 3))
    return {"payoff": payoff, "joint": joint / joint.sum(), "players": 2}


CASES = [
    Case(
        solvers.nash_conv,
        game,
        gradient=("payoff", "policy"),
        extremes=lambda rng: [{"policy": PURE}, HUGE],
        bfloat16=0.2,
    ),
    Case(
        solvers.duality_gap,
        lambda rng: {
            "payoff": rng.normal(size=(2, 3, 4)),
            "policy": simplex(rng, 2, 3),
            "other_policy": simplex(rng, 2, 4),
        },
        gradient=("payoff", "policy", "other_policy"),
        extremes=lambda rng: [{"payoff": np.zeros((2, 3, 4))}],
    ),
    Case(
        solvers.cce_gap,
        plan,
        gradient=("payoff", "joint"),
        extremes=lambda rng: [{"payoff": np.zeros((2, 3, 3))}],
    ),
    Case(
        solvers.ce_gap,
        plan,
        gradient=("payoff", "joint"),
        extremes=lambda rng: [{"payoff": np.zeros((2, 3, 3))}],
    ),
    Case(
        solvers.quantal_response_residual,
        lambda rng: {**game(rng), "temperature": 0.5},
        gradient=("payoff", "policy"),
        extremes=lambda rng: [{"policy": PURE}, HUGE, {"temperature": 1e-6}],
    ),
    Case(
        solvers.stackelberg_value,
        lambda rng: {k: rng.normal(size=(2, 3, 4)) for k in ("payoff", "other_payoff")},
        gradient=("payoff",),
        stopped=("other_payoff",),
        extremes=lambda rng: [{"other_payoff": np.zeros((2, 3, 4))}],
    ),
]
test_contract = contract(CASES)


@pytest.mark.parametrize(
    ("matrix", "equilibrium"),
    [(PENNIES, [0.5, 0.5]), (ROCK, [1 / 3] * 3), (BIASED, [0.25, 0.5, 0.25])],
)
def test_known_equilibria_have_no_gap(matrix, equilibrium):
    policy = jnp.array([equilibrium, equilibrium])
    joint = policy[0][:, None] * policy[1][None]
    payoff = zero_sum(matrix)
    np.testing.assert_allclose(solvers.nash_conv(payoff, policy), 0, atol=1e-6)
    np.testing.assert_allclose(solvers.duality_gap(payoff[0], *policy), 0, atol=1e-6)
    np.testing.assert_allclose(solvers.cce_gap(payoff, joint, 2), 0, atol=1e-6)
    np.testing.assert_allclose(solvers.ce_gap(payoff, joint, 2), 0, atol=1e-6)
    away = jnp.zeros_like(policy).at[:, 0].set(1)
    assert solvers.nash_conv(payoff, away) > 0.5


def test_nash_conv_of_a_zero_sum_game_is_its_duality_gap():
    rng = np.random.default_rng(0)
    matrix, policy = rng.normal(size=(3, 3)), jnp.float32(simplex(rng, 2, 3))
    gap = solvers.duality_gap(jnp.float32(matrix), *policy)
    np.testing.assert_allclose(solvers.nash_conv(zero_sum(matrix), policy), gap, rtol=1e-5)


def test_nash_conv_in_general_is_the_sum_of_the_players_gains():
    x = {k: jnp.float32(v) for k, v in game(np.random.default_rng(0)).items()}
    values = losses.deviation_payoff(**x)
    gains = [max(values[k]) - x["policy"][k] @ values[k] for k in range(3)]
    np.testing.assert_allclose(solvers.nash_conv(**x), sum(gains), rtol=1e-5)
    dilemma = jnp.array([[3.0, 0], [5, 1]])
    payoff, both = jnp.stack([dilemma, dilemma.T]), jnp.eye(2)
    np.testing.assert_allclose(solvers.nash_conv(payoff, both[jnp.array([0, 0])]), 2 + 2)
    np.testing.assert_allclose(solvers.nash_conv(payoff, both[jnp.array([1, 1])]), 0)


def test_a_plan_that_everyone_loses_by_leaving_has_no_gap():
    """A shared coin says left or right: leaving it beforehand costs half the payoff."""
    payoff = jnp.broadcast_to(jnp.eye(2), (2, 2, 2))
    assert solvers.cce_gap(payoff, 0.5 * jnp.eye(2), 2) == 0
    assert solvers.ce_gap(payoff, 0.5 * jnp.eye(2), 2) == 0


def test_a_traffic_light_is_a_correlated_equilibrium_though_no_product():
    """Chicken, where each mostly yields: advice (dare, yield), (yield, dare), (yield, yield)."""
    mine = np.array([[0.0, 7], [2, 6]])
    payoff = jnp.float32(np.stack([mine, mine.T]))
    advice = jnp.array([[0, 1 / 3], [1 / 3, 1 / 3]])
    np.testing.assert_allclose(solvers.ce_gap(payoff, advice, 2), 0, atol=1e-6)
    crash = jnp.array([[0.5, 0], [0, 0.5]])
    # After "dare" (half the time) yielding gains 2 for each, after "yield" daring gains 1.
    np.testing.assert_allclose(solvers.ce_gap(payoff, crash, 2), 2 * (0.5 * 2 + 0.5 * 1), rtol=1e-5)
    # Beforehand, against the other's half and half: daring 3.5, yielding 4, following 3.
    np.testing.assert_allclose(solvers.cce_gap(payoff, crash, 2), 2 * (4 - 3), rtol=1e-5)


def test_gaps_of_joint_plans_by_brute_force_with_three_players():
    rng = np.random.default_rng(0)
    payoff, joint = rng.normal(size=(3, 2, 2, 2)), rng.dirichlet(np.ones(8)).reshape(2, 2, 2)
    coarse = fine = 0.0
    for k in range(3):
        gains = np.zeros((2, 2))  # [advice, action taken instead]
        for actions in itertools.product(range(2), repeat=3):
            for instead in range(2):
                changed = tuple(instead if j == k else actions[j] for j in range(3))
                difference = payoff[(k, *changed)] - payoff[(k, *actions)]
                gains[actions[k], instead] += joint[actions] * difference
        coarse += max(gains.sum(0).max(), 0)
        fine += gains.max(1).sum()
    payoff, joint = jnp.float32(payoff), jnp.float32(joint)
    np.testing.assert_allclose(solvers.cce_gap(payoff, joint, 3), coarse, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(solvers.ce_gap(payoff, joint, 3), fine, rtol=1e-4)


def kuhn():
    """Kuhn poker's payoff matrix of pure strategies, and mixed ones from behavior at each card.

    First player, for each card: bet, check and fold, or check and call. Second player, for each
    card: after a check (bet or not) times after a bet (call or not).
    """

    def result(mine, yours, first, second):
        win = 1 if mine > yours else -1
        bets, calls = second // 2, second % 2
        if first == 0:
            return 2 * win if calls else 1
        if not bets:
            return win
        return 2 * win if first == 2 else -1

    plans = list(itertools.product(range(3), repeat=3))
    replies = list(itertools.product(range(4), repeat=3))
    deals = list(itertools.permutations(range(3), 2))
    matrix = [
        [np.mean([result(i, j, plan[i], reply[j]) for i, j in deals]) for reply in replies]
        for plan in plans
    ]

    def mixed(behavior, strategies):
        return np.array([np.prod([behavior[c][s[c]] for c in range(3)]) for s in strategies])

    return np.array(matrix), lambda x: mixed(x, plans), lambda y: mixed(y, replies)


def test_kuhn_poker_has_its_known_equilibria_and_value():
    matrix, first, second = kuhn()
    y = second([[2 / 3, 0, 1 / 3, 0], [2 / 3, 1 / 3, 0, 0], [0, 0, 0, 1]])
    for bluff in (0.0, 0.2, 1 / 3):
        call = bluff + 1 / 3
        x = first([[bluff, 1 - bluff, 0], [0, 1 - call, call], [3 * bluff, 0, 1 - 3 * bluff]])
        gap = solvers.duality_gap(*(jnp.float32(z) for z in (matrix, x, y)))
        np.testing.assert_allclose(gap, 0, atol=1e-6)
        np.testing.assert_allclose(x @ matrix @ y, -1 / 18, rtol=1e-6)
    always = first([[1, 0, 0]] * 3)
    assert solvers.duality_gap(*(jnp.float32(z) for z in (matrix, always, y))) > 0.1


def test_exploitability_descent_is_the_gradient_of_the_gap():
    """The row player's gradient is its actions' values against the column's best response."""
    matrix = jnp.float32(BIASED)
    policy, other = jnp.array([0.5, 0.2, 0.3]), jnp.array([0.1, 0.6, 0.3])
    gradient = jax.grad(solvers.duality_gap, 1)(matrix, policy, other)
    response = jnp.argmin(policy @ matrix)
    np.testing.assert_allclose(gradient, -matrix[:, response], atol=1e-6)


def test_a_leader_anticipates_the_follower():
    payoff = jnp.array([[2.0, 4.0], [1.0, 3.0]])
    other = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    assert (
        solvers.stackelberg_value(payoff, other) == 3
    )  # committing to the dominated row is better
    assert solvers.stackelberg_value(payoff, jnp.zeros((2, 2))) == 4  # ties favor the leader
