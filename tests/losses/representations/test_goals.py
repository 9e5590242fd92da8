import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

MASK = np.array([True, True, False, True])


def numbers(rng, *names, shape=(5,)):
    return {name: rng.normal(size=shape) for name in names}


def implicit_inputs(rng):
    values = {k: -rng.uniform(0, 5, (2, 4)) for k in ("first_value", "value", "next_value")}
    return {**values, "reward": -np.ones((2, 4)), "discount": 0.9, "mask": MASK}


NOTHING = np.full((2, 4), np.nan)
CASES = [
    Case(
        losses.goal_value,
        lambda rng: {"distance": rng.uniform(0, 9, 5), "discount": np.array([0.9] * 4 + [1.0])},
        gradient=("distance",),
        stopped=("discount",),
        extremes=lambda rng: [{"distance": np.full(5, 1e6)}, {"distance": np.zeros(5)}],
    ),
    Case(
        losses.goal_target,
        lambda rng: {
            "reached": np.array([True, False, False, True, False]),
            **numbers(rng, "next_value"),
            "discount": 0.9,
        },
        stopped=("next_value",),
        extremes=lambda rng: [{"reached": np.ones(5, bool), "next_value": np.full(5, np.nan)}],
    ),
    Case(
        losses.action_free_expectile,
        lambda rng: {**numbers(rng, "value", "target", "advantage"), "expectile": 0.9},
        gradient=("value",),
        stopped=("target", "advantage"),
        extremes=lambda rng: [{"target": np.full(5, 1e15)}, {"advantage": np.zeros(5)}],
    ),
    Case(
        losses.direction_reward,
        lambda rng: numbers(rng, "latent", "next_latent", "direction", shape=(5, 3)),
        stopped=("latent", "next_latent", "direction"),
    ),
    Case(
        losses.goal_direction,
        lambda rng: numbers(rng, "latent", "goal_latent", shape=(5, 3)),
        stopped=("latent", "goal_latent"),
        extremes=lambda rng: [{"latent": np.ones((5, 3)), "goal_latent": np.ones((5, 3))}],
    ),
    Case(
        losses.vip,
        implicit_inputs,
        gradient=("first_value", "value", "next_value"),
        stopped=("reward",),
        extremes=lambda rng: [
            {"value": np.full((2, 4), 1e6)},
            {"value": np.where(MASK, -1.0, NOTHING), "first_value": np.where(MASK, -1.0, NOTHING)},
            {"value": NOTHING, "next_value": NOTHING, "mask": np.zeros(4, bool)},
        ],
    ),
    Case(
        losses.goal_difficulty,
        lambda rng: {"success": rng.uniform(0.1, 0.9, 5), "alpha": np.float64(2.0), "beta": 3.0},
        gradient=("success", "alpha"),
        extremes=lambda rng: [{"success": np.array([0.0, 1.0, 0.5, 1e-30, 1 - 1e-9])}],
    ),
]
test_contract = contract(CASES)


def test_goal_value_is_the_discounted_cost_of_the_steps():
    for discount in (0.5, 0.99, 1.0):
        for steps in (0, 1, 7):
            expected = -sum(discount**k for k in range(steps))
            ours = losses.goal_value(jnp.float32(steps), discount)
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_goal_target_and_goal_value_agree_on_a_chain():
    """The value at d steps is the target from the value at d - 1; with options, at d / n."""
    distance = jnp.arange(1.0, 9.0)
    ours = losses.goal_target(distance == 0, losses.goal_value(distance - 1, 0.9), 0.9)
    np.testing.assert_allclose(ours, losses.goal_value(distance, 0.9), rtol=1e-5)
    assert losses.goal_target(True, jnp.float32(-5), 0.9) == 0


def test_option_values_contract_the_horizon():
    """Tabular values on a line of 40 states with options of 5 steps count options, not steps."""
    distance = np.arange(40)
    value = jnp.zeros(40)
    for _ in range(20):
        value = losses.goal_target(distance < 5, value[np.maximum(distance - 5, 0)], 0.9)
    np.testing.assert_allclose(value, losses.goal_value(jnp.float32(distance // 5), 0.9), rtol=1e-4)


def test_action_free_expectile():
    rng = np.random.default_rng(0)
    value, target = jnp.float32(rng.normal(size=(2, 6)))
    own = losses.action_free_expectile(value, target, target - value, 0.8)
    np.testing.assert_allclose(own, losses.expectile_error(value, target, 0.8), rtol=1e-6)
    ours = losses.action_free_expectile(value, target, jnp.array([1.0, -1.0] * 3), 0.8)
    expected = np.array([0.8, 0.2] * 3) * (target - value) ** 2
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.slow
def test_direction_rewards_add_up_and_favor_the_goal():
    path = jnp.float32(np.random.default_rng(0).normal(size=(7, 3)))
    z = losses.goal_direction(path[0], path[-1])
    np.testing.assert_allclose(jnp.linalg.norm(z), 1, rtol=1e-6)
    total = losses.direction_reward(path[:-1], path[1:], z).sum()
    np.testing.assert_allclose(total, jnp.linalg.norm(path[-1] - path[0]), rtol=1e-5)


def test_vip_by_its_definition():
    rng = np.random.default_rng(0)
    x = implicit_inputs(rng)
    arrays = first, value, later, reward = [
        x[k] for k in ("first_value", "value", "next_value", "reward")
    ]
    for mask in (None, MASK):
        m = np.ones(4, bool) if mask is None else mask
        delta = (reward + 0.9 * later - value)[:, m]
        expected = -0.1 * first[:, m].mean(-1) + np.log(np.exp(-delta).mean(-1))
        ours = losses.vip(*map(jnp.float32, arrays), 0.9, mask)
        np.testing.assert_allclose(ours, expected, rtol=1e-4)


@pytest.mark.parametrize("alpha,beta", [(2.0, 2.0), (1.0, 3.0), (2.0, 5.0)])
def test_goal_difficulty_is_the_beta_density(alpha, beta):
    p = np.linspace(0.05, 0.95, 7)
    ours = losses.goal_difficulty(jnp.float32(p), alpha, beta, sharpness=3.0)
    np.testing.assert_allclose(ours, 3 * scipy.stats.beta(alpha, beta).pdf(p), rtol=1e-4)


def test_goal_difficulty_leads_to_intermediate_goals():
    slope = jax.vmap(jax.grad(losses.goal_difficulty))(jnp.array([0.2, 0.5, 0.8]))
    assert slope[0] > 0 and abs(slope[1]) < 1e-5 and slope[2] < 0
