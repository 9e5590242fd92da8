import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract, example
from tests.losses.games.test_equilibria import BIASED, simplex
from tests.solvers.test_equilibria import ROCK


def values(rng, *names):
    return {name: rng.normal(size=(5, 4)) for name in names}


IMPOSSIBLE = np.array([0.0, -np.inf, 1.0, -np.inf]) * np.ones((5, 1))
CASES = [
    Case(
        solvers.regret_matching,
        lambda rng: {"regret": rng.normal(size=(5, 4)), "mask": np.arange(4) < np.full((5, 1), 3)},
        gradient=("regret",),
        extremes=lambda rng: [
            {"regret": np.zeros((5, 4))},
            {"regret": np.full((5, 4), -1e6)},
            {"mask": np.zeros((5, 4), bool)},
            {"regret": np.full((5, 4), np.nan), "mask": np.zeros((5, 4), bool)},
        ],
    ),
    Case(
        solvers.regret_matching_plus,
        lambda rng: values(rng, "regret", "new_regret"),
        gradient=("regret", "new_regret"),
    ),
    Case(
        solvers.counterfactual_regret,
        lambda rng: (
            values(rng, "q_values")
            | {"policy": simplex(rng, 5, 4), "opponent_reach": rng.uniform(size=5)}
        ),
        gradient=("q_values", "policy", "opponent_reach"),
        extremes=lambda rng: [{"opponent_reach": np.zeros(5)}],
    ),
    Case(
        solvers.optimistic_hedge,
        lambda rng: values(rng, "logits", "payoff", "old_payoff") | {"step_size": 0.5},
        gradient=("logits", "payoff", "old_payoff"),
        extremes=lambda rng: [{"payoff": np.array([[1e6, 0, 0, -1e6]] * 5)}],
        diverging=lambda rng: [{"logits": IMPOSSIBLE}],
    ),
    *(
        Case(
            solvers.ftrl,
            lambda rng, kind=kind: (
                values(rng, "total_payoff") | {"step_size": 0.5, "regularizer": kind}
            ),
            gradient=("total_payoff",),
            extremes=lambda rng: [
                {"total_payoff": IMPOSSIBLE},
                {"total_payoff": 1e6 * rng.normal(size=(5, 4))},
            ],
            name=f"ftrl_{kind}",
        )
        for kind in ("entropy", "euclidean")
    ),
    Case(
        solvers.dilated_entropy_response,
        lambda rng: values(rng, "payoff") | {"weight": rng.uniform(0.5, 2, (5, 1))},
        gradient=("payoff", "weight"),
        extremes=lambda rng: [
            {"payoff": 1e4 * rng.normal(size=(5, 4))},
            {"payoff": IMPOSSIBLE, "weight": 1.0},
        ],
    ),
    Case(
        solvers.replicator,
        lambda rng: values(rng, "payoff") | {"policy": simplex(rng, 5, 4)},
        gradient=("payoff", "policy"),
    ),
    Case(
        solvers.fictitious_play,
        lambda rng: {"policy": simplex(rng, 5, 4), "response": simplex(rng, 5, 4), "step": 3},
        gradient=("policy", "response"),
        extremes=lambda rng: [{"step": 0}, {"step": np.array(10**6)}],
    ),
    Case(
        solvers.aog,
        lambda rng: {
            "policy": simplex(rng, 5, 4),
            "anchor": simplex(rng, 5, 4),
            "gradient": rng.normal(size=(5, 4)),
            "step": 2,
            "step_size": 0.1,
        },
        gradient=("policy", "anchor", "gradient"),
        extremes=lambda rng: [{"gradient": np.full((5, 4), 1e6)}, {"step": np.array(10**6)}],
    ),
    Case(
        solvers.optimistic_gradient,
        lambda rng: values(rng, "x", "gradient") | {"step_size": 0.1, "extrapolation": 0.2},
        gradient=("x", "gradient"),
    ),
    Case(
        solvers.cgo,
        lambda rng: {
            "x_gradient": rng.normal(size=(2, 3)),
            "y_gradient": rng.normal(size=(2, 4)),
            "cross_hessian": rng.normal(size=(2, 3, 4)),
            "interaction": 0.5,
        },
        gradient=("x_gradient", "y_gradient", "cross_hessian"),
        extremes=lambda rng: [{"cross_hessian": np.zeros((2, 3, 4))}, {"interaction": 0.0}],
    ),
    Case(
        solvers.complex_momentum,
        lambda rng: {
            "momentum": rng.normal(size=(5, 2)),
            "gradient": rng.normal(size=5),
            "magnitude": 0.8,
            "phase": 0.4,
            "step_size": 0.1,
        },
        gradient=("momentum", "gradient"),
    ),
    Case(
        solvers.mirror_descent,
        lambda rng: values(rng, "logits", "q_values") | {"step_size": 0.5, "temperature": 0.3},
        gradient=("logits", "q_values"),
        extremes=lambda rng: [{"q_values": np.full((5, 4), 1e6) * np.arange(4)}],
        diverging=lambda rng: [{"logits": IMPOSSIBLE}],
    ),
]
test_contract = contract(CASES)


def self_play(matrix, strategy, update, start, steps):
    """Average strategies of both players after some steps; update(state, payoffs) -> state."""
    matrix = jnp.float32(matrix)

    def step(carry, _):
        states, total = carry
        x, y = (strategy(state) for state in states)
        states = update(states[0], x, matrix @ y), update(states[1], y, -(x @ matrix))
        return (states, (total[0] + x, total[1] + y)), None

    zero = (jnp.zeros(matrix.shape[0]), jnp.zeros(matrix.shape[1]))
    (states, total), _ = jax.jit(lambda: jax.lax.scan(step, (start, zero), None, steps))()
    return matrix, [x / steps for x in total], [strategy(state) for state in states]


def regrets(plus):
    def update(regret, policy, payoff):
        new = solvers.counterfactual_regret(payoff, policy, jnp.ones(()))
        return solvers.regret_matching_plus(regret, new) if plus else regret + new

    return update


START = (jnp.array([1.0, 0, 0]), jnp.array([0, 0.5, 1.0]))


@pytest.mark.parametrize("plus", [False, True])
def test_average_strategies_of_regret_matching_approach_the_equilibrium(plus):
    matrix, average, _ = self_play(BIASED, solvers.regret_matching, regrets(plus), START, 2000)
    assert solvers.duality_gap(matrix, *average) < 0.1
    np.testing.assert_allclose(average[0], [0.25, 0.5, 0.25], atol=0.05)


def test_regret_matching_by_hand():
    ours = solvers.regret_matching(jnp.array([[3.0, -5, 1], [-1, -2, 0]]))
    np.testing.assert_allclose(ours, [[0.75, 0, 0.25], [1 / 3] * 3])
    mask = jnp.array([True, True, False])
    clipped = solvers.regret_matching_plus(jnp.array([1.0, 2.0]), jnp.array([0.5, -3.0]))
    np.testing.assert_allclose(clipped, [1.5, 0])
    legal = solvers.regret_matching(jnp.array([[1.0, 1, 7], [-1, -1, 7]]), mask)
    np.testing.assert_allclose(legal, [[0.5, 0.5, 0]] * 2)


def test_regret_is_against_the_value_of_the_strategy():
    q_values, policy = jnp.array([1.0, 0.0, 5.0]), jnp.array([0.5, 0.5, 0.0])
    ours = solvers.counterfactual_regret(q_values, policy, jnp.array(0.2))
    np.testing.assert_allclose(ours, [0.1, -0.1, 0.9], rtol=1e-6)
    np.testing.assert_allclose((policy * ours).sum(), 0, atol=1e-7)


def test_hedge_is_follow_the_regularized_leader():
    payoffs = np.random.default_rng(0).normal(size=(6, 4))
    logits = jnp.zeros(4)
    for payoff in payoffs:
        logits = solvers.mirror_descent(logits, jnp.float32(payoff), 0.3)
    expected = solvers.ftrl(jnp.float32(payoffs.sum(0)), 0.3)
    np.testing.assert_allclose(jnp.exp(logits), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["entropy", "euclidean"])
def test_ftrl_maximizes_its_objective(kind):
    payoff = np.array([1.0, 0.5, -1.0, 0.9])

    def objective(p):
        penalty = (p * np.log(p)).sum() if kind == "entropy" else (p**2).sum() / 2
        return penalty / 0.7 - p @ payoff

    found = scipy.optimize.minimize(
        objective,
        np.full(4, 0.25),
        bounds=[(1e-9, 1)] * 4,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        tol=1e-12,
    )
    np.testing.assert_allclose(solvers.ftrl(jnp.float32(payoff), 0.7, kind), found.x, atol=1e-4)


def test_optimism_makes_the_last_iterate_converge_where_hedge_moves_away():
    def hedge(state, policy, payoff):
        return solvers.mirror_descent(state, payoff, 0.1)

    def optimistic(state, policy, payoff):
        return solvers.optimistic_hedge(state[0], payoff, state[1], 0.1), payoff

    start = jnp.array([0.5, 0, 0]), jnp.array([0, 0.5, 0])
    matrix, _, last = self_play(BIASED, jax.nn.softmax, hedge, start, 3000)
    assert solvers.duality_gap(matrix, *last) > 0.5
    both = tuple((x, jnp.zeros(3)) for x in start)
    _, _, last = self_play(BIASED, lambda s: jax.nn.softmax(s[0]), optimistic, both, 3000)
    assert solvers.duality_gap(matrix, *last) < 1e-2


@pytest.mark.slow
def test_dilated_entropy_from_leaves_to_root_maximizes_over_the_whole_tree():
    """Two actions at the root; the first leads to another information set with three."""
    root, leaf = np.array([0.2, 0.6]), np.array([1.0, -0.5, 0.7])
    policy, value = solvers.dilated_entropy_response(jnp.float32(leaf), 0.4)
    above = jnp.float32(root) + jnp.array([1.0, 0.0]) * value
    first, total = solvers.dilated_entropy_response(above, 0.8)

    def objective(x):
        p, q = jax.nn.softmax(x[:2]), jax.nn.softmax(x[2:])
        entropy = -(p * jnp.log(p)).sum() * 0.8 - p[0] * (q * jnp.log(q)).sum() * 0.4
        return p @ root + p[0] * (q @ leaf) + entropy

    best = jnp.concatenate([jnp.log(first), jnp.log(policy)])
    np.testing.assert_allclose(objective(best), total, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(objective)(best), 0, atol=1e-6)


def test_replicator_is_hedge_with_small_steps():
    with jax.enable_x64(True):
        p, u = jnp.array([0.2, 0.5, 0.3]), jnp.array([1.0, -0.5, 0.3])
        change = (jnp.exp(solvers.mirror_descent(jnp.log(p), u, 1e-6)) - p) / 1e-6
        np.testing.assert_allclose(solvers.replicator(p, u), change, atol=1e-5)
        np.testing.assert_allclose(solvers.replicator(p, u).sum(), 0, atol=1e-12)


def test_fictitious_play_averages_best_responses_to_the_equilibrium():
    matrix = jnp.float32(ROCK)

    def step(t, policies):
        x, y = policies
        best = jax.nn.one_hot(jnp.argmax(matrix @ y), 3), jax.nn.one_hot(jnp.argmin(x @ matrix), 3)
        return tuple(solvers.fictitious_play(p, b, t) for p, b in zip(policies, best, strict=True))

    x, y = jax.lax.fori_loop(1, 3000, step, (jnp.array([1.0, 0, 0]), jnp.array([0, 1.0, 0])))
    assert solvers.duality_gap(matrix, x, y) < 0.1
    responses = np.eye(3)[[0, 2, 1, 1]]
    average = jnp.zeros(3)
    for t, response in enumerate(responses):
        average = solvers.fictitious_play(average, jnp.float32(response), t)
    np.testing.assert_allclose(average, responses.mean(0), rtol=1e-6)


def test_the_gap_of_accelerated_optimistic_gradient_falls_like_one_over_t():
    """The gap times t stays about 6 in biased rock-paper-scissors with step size 0.1."""
    with jax.enable_x64(True):
        matrix = jnp.asarray(BIASED)
        anchor = jnp.array([[1.0, 0, 0], [0, 1.0, 0]])

        def field(z):
            return jnp.stack([-matrix @ z[1], z[0] @ matrix])

        def step(t, carry):
            z, half = carry
            half = solvers.aog(z, anchor, field(half), t, 0.1)
            return solvers.aog(z, anchor, field(half), t, 0.1), half

        gaps = [
            t * solvers.duality_gap(matrix, *jax.lax.fori_loop(1, t, step, (anchor, anchor))[0])
            for t in (1000, 10000)
        ]
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=0.02)
    assert 3 < gaps[0] < 9


def bilinear(update, x, y, steps):
    """Distance from the saddle (0, 0) of x'My after simultaneous steps; M random, 3 x 3."""
    matrix = jnp.float32(np.random.default_rng(0).normal(size=(3, 3)))
    state = jax.lax.fori_loop(0, steps, lambda _, s: update(matrix, *s), (x, y))
    return float(jnp.sqrt(sum(jnp.square(v).sum() for v in state[:2])))


def test_competitive_gradients_converge_where_descent_ascent_diverges():
    def update(matrix, x, y, a):
        dx, dy = solvers.cgo(matrix @ y, x @ matrix, matrix, a)
        return x - 0.1 * dx, y + 0.1 * dy

    one = jnp.ones(3)
    assert bilinear(lambda m, x, y: update(m, x, y, 0.0), one, one, 2000) > 1e4
    assert bilinear(lambda m, x, y: update(m, x, y, 1.0), one, one, 2000) < 1e-2


def test_competitive_gradients_by_their_definition():
    x = example(CASES, solvers.cgo)
    dx, dy = solvers.cgo(**x)
    for k in range(2):
        cross, a = x["cross_hessian"][k], 0.5
        left = (np.eye(3) + a**2 * cross @ cross.T) @ dx[k]
        right = (np.eye(4) + a**2 * cross.T @ cross) @ dy[k]
        expected = x["x_gradient"][k] + a * cross @ x["y_gradient"][k]
        np.testing.assert_allclose(left, expected, rtol=1e-4, atol=1e-5)
        expected = x["y_gradient"][k] - a * cross.T @ x["x_gradient"][k]
        np.testing.assert_allclose(right, expected, rtol=1e-4, atol=1e-5)


def test_optimistic_gradients_converge_on_a_bilinear_game():
    def update(x, y, ahead_x, ahead_y):
        g_x, g_y = ahead_y, -ahead_x  # gradients of the players' losses, xy and -xy
        x, next_x = solvers.optimistic_gradient(x, g_x, 0.1, 0.2)
        y, next_y = solvers.optimistic_gradient(y, g_y, 0.1, 0.2)
        return x, y, next_x, next_y

    start = tuple(jnp.ones(()) for _ in range(4))
    x, y, *_ = jax.lax.fori_loop(0, 1500, lambda _, s: update(*s), start)
    assert abs(x) + abs(y) < 1e-3


@pytest.mark.parametrize(("phase", "converges"), [(np.pi / 8, True), (0.0, False)])
def test_complex_momentum_converges_on_a_simultaneous_bilinear_game(phase, converges):
    """Play min_x max_y xy at rate 0.05 and magnitude 0.9."""

    def update(_, carry):
        x, y, m_x, m_y = carry
        m_x, u_x = solvers.complex_momentum(m_x, y, 0.9, phase, 0.05)
        m_y, u_y = solvers.complex_momentum(m_y, -x, 0.9, phase, 0.05)
        return x + u_x, y + u_y, m_x, m_y

    start = jnp.ones(()), jnp.ones(()), jnp.zeros(2), jnp.zeros(2)
    x, y, *_ = jax.lax.fori_loop(0, 1000 if converges else 200, update, start)
    distance = abs(x) + abs(y)
    assert distance < 1e-2 if converges else distance > 1e2


def test_complex_momentum_by_complex_numbers():
    momentum, gradient, beta = 0.3 - 0.7j, 0.4, 0.8 * np.exp(0.5j)
    expected = beta * momentum - gradient
    ours, update = solvers.complex_momentum(
        jnp.array([0.3, -0.7]), jnp.array(gradient), 0.8, 0.5, 0.1
    )
    np.testing.assert_allclose(ours, [expected.real, expected.imag], rtol=1e-5)
    np.testing.assert_allclose(update, 0.1 * expected.real, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_mirror_descent_is_the_best_of_its_objective(temperature):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        old, q_values = jnp.asarray(rng.normal(size=(2, 4)))

        def loss(logits):
            entropy = losses.categorical_entropy(logits)
            return losses.mdpo(logits, old, q_values, 0.5) - temperature * entropy

        best = solvers.mirror_descent(old, q_values, 0.5, temperature)
        np.testing.assert_allclose(jnp.exp(best).sum(), 1)
        np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-12)
        for noise in 0.1 * rng.normal(size=(5, 4)):
            assert loss(best + noise) > loss(best)


def test_mirror_ascent_with_entropy_converges_to_the_regularized_best_policy():
    q_values, log_prob = jnp.array([1.0, 0.5, -0.2]), jnp.log(jnp.array([0.1, 0.1, 0.8]))
    for _ in range(100):
        log_prob = solvers.mirror_descent(log_prob, q_values, 0.5, 0.3)
    np.testing.assert_allclose(log_prob, jax.nn.log_softmax(q_values / 0.3), atol=1e-5)
