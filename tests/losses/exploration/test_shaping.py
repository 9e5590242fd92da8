import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def elements(rng, *names):
    return {name: rng.normal(size=(4, 3)) for name in names}


def occupancies(rng, *names):
    return {name: rng.dirichlet([1.0] * 5, 4) for name in names}


CASES = [
    Case(
        losses.potential_shaping,
        lambda rng: {
            **elements(rng, "reward", "potential", "next_potential"),
            "terminated": rng.uniform(size=(4, 3)) < 0.3,
            "discount": np.array(0.9),
        },
        gradient=("reward", "potential", "next_potential", "discount"),
        extremes=lambda rng: [
            {"next_potential": np.full((4, 3), 1e6)},
            {"next_potential": np.full((4, 3), np.nan), "terminated": np.ones((4, 3), bool)},
        ],
    ),
    Case(
        losses.tracking_reward,
        lambda rng: {
            "error": rng.normal(size=(4, 3)),
            "scale": rng.uniform(0.5, 2, 3),
            "weight": rng.dirichlet(np.ones(3)),
        },
        gradient=("error", "scale", "weight"),
        extremes=lambda rng: [{"error": np.zeros((4, 3))}, {"error": np.full((4, 3), 1e6)}],
    ),
    Case(
        losses.krc,
        lambda rng: {"rewards": rng.uniform(0.2, 1, (4, 3)) * rng.choice([-1, 1], (4, 3))},
        gradient=("rewards",),
        extremes=lambda rng: [
            {"rewards": np.zeros((4, 3))},
            {"rewards": np.full((4, 3), 1e-30)},
            {"rewards": np.tile([0.0, 1, -1], (4, 1))},
        ],
    ),
    Case(
        losses.intervention_reward,
        lambda rng: {
            "intervened": np.array([False, True, False, True]),
            "next_intervened": np.array([True, True, False, False]),
            "penalty": np.array(1.5),
        },
        gradient=("penalty",),
    ),
    Case(
        losses.occupancy_regularized_reward,
        lambda rng: {
            **elements(rng, "reward", "log_ratio"),
            "divergence": np.array(0.7),
            "strength": 0.3,
        },
        stopped=("reward", "log_ratio", "divergence"),
        extremes=lambda rng: [
            {"log_ratio": np.full((4, 3), 500.0)},
            {"divergence": np.array(0.0)},
            {"divergence": np.array(-0.1)},
        ],
    ),
    Case(
        losses.gain_violation,
        lambda rng: {**elements(rng, "cost", "intensity"), "bound": 2.0},
        gradient=("cost", "intensity"),
    ),
    Case(
        losses.lagrangian_penalty,
        lambda rng: {**elements(rng, "violation"), "multiplier": np.array(0.7)},
        gradient=("violation",),
        stopped=("multiplier",),
        extremes=lambda rng: [{"violation": np.full((4, 3), 1e6)}],
    ),
    Case(
        losses.lagrangian_dual,
        lambda rng: {**elements(rng, "violation"), "multiplier": np.array(0.7)},
        gradient=("multiplier",),
        stopped=("violation",),
        extremes=lambda rng: [{"violation": np.full((4, 3), 1e6)}],
    ),
    Case(
        losses.utility_reward,
        lambda rng: {"utility": losses.occupancy_entropy, **occupancies(rng, "occupancy")},
        stopped=("occupancy",),
        extremes=lambda rng: [{"occupancy": np.zeros((4, 5))}],
    ),
    Case(
        losses.occupancy_entropy,
        lambda rng: {"occupancy": rng.uniform(0.1, 0.4, (4, 5))},
        gradient=("occupancy",),
        extremes=lambda rng: [{"occupancy": np.zeros((4, 5))}],
    ),
    Case(
        losses.occupancy_distance,
        lambda rng: occupancies(rng, "occupancy", "expert_occupancy"),
        gradient=("occupancy",),
        stopped=("expert_occupancy",),
    ),
    Case(
        losses.occupancy_constraint,
        lambda rng: {
            **occupancies(rng, "occupancy"),
            "reward": rng.normal(size=(4, 5)),
            "cost": rng.uniform(1, 2, (4, 5)),
            "limit": 0.5,
            "weight": 3.0,
        },
        gradient=("occupancy",),
        stopped=("reward", "cost"),
        extremes=lambda rng: [{"cost": np.zeros((4, 5))}],
    ),
]
test_contract = contract(CASES)

DISCOUNT = 0.9


def random_mdp(rng, states=4, actions=3):
    """Random transitions [S, A, S] and rewards [S, A]; the last state ends the episode."""
    transition = rng.dirichlet([0.5] * states, (states, actions))
    return transition, rng.normal(size=(states, actions))


def optimal_values(transition, reward, terminal):
    q_values = np.zeros_like(reward)
    for _ in range(400):
        value = np.where(terminal, 0, q_values.max(-1))
        q_values = reward + DISCOUNT * transition @ value
    return q_values


def test_shaping_leaves_the_optimal_policy_unchanged():
    """This holds even with terminal states, but only because their potential counts as 0."""
    changed = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        transition, reward = random_mdp(rng)
        terminal = np.array([False, False, False, True])
        potential = 10 * rng.normal(size=4)
        shape = (4, 3, 4)
        shaped, careless = (
            (
                transition
                * losses.potential_shaping(
                    jnp.broadcast_to(reward[..., None], shape),
                    jnp.broadcast_to(potential[:, None, None], shape),
                    jnp.broadcast_to(potential, shape),
                    jnp.broadcast_to(ends, shape),
                    DISCOUNT,
                )
            ).sum(-1)
            for ends in (terminal, False)
        )
        plain = optimal_values(transition, reward, terminal)[:3]
        ours = optimal_values(transition, shaped, terminal)[:3]
        np.testing.assert_allclose(ours, plain - potential[:3, None], atol=1e-4)
        without = optimal_values(transition, careless, terminal)[:3]
        changed += (without.argmax(-1) != plain.argmax(-1)).any()
    assert changed > 1


def test_tracking_reward_is_a_mix_of_gaussian_bumps():
    error = np.array([[0.0, 0.0], [0.3, -2.0], [9.0, 0.5]])
    scale, weight = np.array([2.0, 0.1]), np.array([0.65, 0.35])
    bumps = [scipy.stats.norm(0, (2 * s) ** -0.5) for s in scale]
    expected = sum(
        w * bump.pdf(error[:, k]) / bump.pdf(0)
        for k, (w, bump) in enumerate(zip(weight, bumps, strict=True))
    )
    ours = losses.tracking_reward(*map(jnp.float32, (error, scale, weight)))
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    np.testing.assert_allclose(ours[0], 1)


def test_krc_by_hand():
    rewards = jnp.array([[1.0, 4.0], [-1.0, 4.0], [-1.0, -4.0], [0.0, 4.0]])
    np.testing.assert_allclose(losses.krc(rewards), [2, -2, -2, 0], rtol=1e-6)


def test_the_action_before_an_intervention_is_penalized():
    expert = np.array([0, 0, 1, 1, 0, 1], bool)
    ours = losses.intervention_reward(expert[:-1], expert[1:], jnp.float32(2))
    np.testing.assert_array_equal(ours, [0, -2, 0, 0, -2])


def occupancy_of(logits, transition, start):
    """Discounted visits [S * A] of a softmax policy, summing to 1."""
    policy = jax.nn.softmax(logits)
    flow = jnp.einsum("sa,sat->st", policy, transition)
    visits = jnp.linalg.solve(jnp.eye(len(start)) - DISCOUNT * flow.T, (1 - DISCOUNT) * start)
    return (visits[:, None] * policy).ravel()


def policy_gradient_of(reward, logits, transition, start):
    """Policy gradient by the policy gradient theorem, with exact values."""
    policy = jax.nn.softmax(logits)
    flow = jnp.einsum("sa,sat->st", policy, transition)
    reward = reward.reshape(logits.shape)
    value = jnp.linalg.solve(jnp.eye(len(start)) - DISCOUNT * flow, (policy * reward).sum(-1))
    q_values = reward + DISCOUNT * transition @ value
    visits = occupancy_of(logits, transition, start).reshape(logits.shape).sum(-1)
    loss = jax.grad(lambda x: visits @ losses.expected_policy_gradient(x, q_values))
    return -loss(logits)


@pytest.mark.slow
def test_the_policy_gradient_of_a_utilitys_reward_is_that_of_the_utility():
    rng = np.random.default_rng(0)
    solve, visits = jax.jit(policy_gradient_of), jax.jit(occupancy_of)
    with jax.enable_x64(True):
        transition, reward = (jnp.asarray(x) for x in random_mdp(rng))
        start, logits = jnp.ones(4) / 4, jnp.asarray(rng.normal(size=(4, 3)))
        expert = visits(jnp.asarray(rng.normal(size=(4, 3))), transition, start)
        utilities = (
            losses.occupancy_entropy,
            lambda x: losses.occupancy_distance(x, expert),
            lambda x: losses.occupancy_constraint(
                x, reward.ravel(), jnp.square(reward.ravel()), 0.2, 5.0
            ),
        )
        for utility in utilities:
            exact = jax.jit(jax.grad(lambda x, f=utility: f(occupancy_of(x, transition, start))))(
                logits
            )
            pseudo = losses.utility_reward(utility, visits(logits, transition, start))
            ours = solve(pseudo, logits, transition, start)
            np.testing.assert_allclose(ours, exact, atol=1e-9)


def test_utilities_by_hand():
    x = jnp.array([0.5, 0.5, 0.0])
    np.testing.assert_allclose(losses.occupancy_entropy(x), np.log(2), rtol=1e-6)
    reward = losses.utility_reward(losses.occupancy_entropy, x)
    assert reward[2] > reward[0] + 10  # unvisited states pay
    ours = losses.occupancy_constraint(x, jnp.arange(3.0), jnp.ones(3), 0.6, 2.0)
    np.testing.assert_allclose(ours, 0.5 - 0.4**2, rtol=1e-5)
    assert losses.occupancy_distance(x, x) == 0 > losses.occupancy_distance(x, 1 - x)


def test_regularized_reward_is_the_gradient_of_the_regularized_return():
    rng = np.random.default_rng(1)
    base, policy = rng.dirichlet([2.0] * 5, 2)
    reward = rng.normal(size=5)
    with jax.enable_x64(True):

        def objective(x):
            return x @ reward - 0.3 * jnp.sqrt(x @ (x / base) - 1)

        exact = jax.jit(jax.grad(objective))(jnp.asarray(policy))
        chi_square = losses.chi_square(jnp.log(policy), jnp.log(base))
        np.testing.assert_allclose(chi_square, policy @ (policy / base) - 1)
        ours = losses.occupancy_regularized_reward(
            jnp.asarray(reward), jnp.log(policy / base), chi_square, 0.3
        )
        np.testing.assert_allclose(ours, exact, rtol=1e-9)


def test_primal_and_dual_descent_meet_at_the_constraint():
    """Maximize -(x - 2)^2 with x <= 1: x = 1, and the multiplier is the slope there, 2."""

    def loss(params):
        x, multiplier = params
        violation = losses.gain_violation(x, jnp.float32(0.5), 2.0)
        return (
            jnp.square(x - 2)
            + losses.lagrangian_penalty(violation, multiplier)
            + losses.lagrangian_dual(violation, multiplier)
        )

    def step(params, _):
        x, multiplier = (p - 0.05 * g for p, g in zip(params, jax.grad(loss)(params), strict=True))
        return (x, jnp.maximum(multiplier, 0)), None

    (x, multiplier), _ = jax.lax.scan(step, (jnp.float32(0), jnp.float32(0)), length=600)
    np.testing.assert_allclose([x, multiplier], [1, 2], rtol=1e-3)
