import jax
import jax.numpy as jnp
import numpy as np
import scipy.spatial

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def numbers(rng, *names, shape=(5, 3)):
    return {name: rng.normal(size=shape) for name in names}


def curiosity_inputs(rng):
    vectors = numbers(rng, "prediction", "next_features")
    return {**vectors, "logits": rng.normal(size=(5, 4)), "action": np.array([0, 3, 1, 2, 2])}


def archive_inputs(rng):
    x, archive = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 7, 3))
    return {"x": x, "archive": archive, "neighbors": 3, "mask": MASK}


def precision(rng):
    x = rng.normal(size=(6, 3))
    return np.eye(3) + x.T @ x


def densities(rng):
    log_prob = -rng.uniform(1, 3, 5)
    return {"log_prob": log_prob, "recoding_log_prob": log_prob + rng.uniform(0.1, 0.5, 5)}


MASK = np.array([True, True, False, True, True, False, True])
BATCH = np.array([True, False, True, True, True])
POINTS = np.random.default_rng(9).normal(size=(2, 5, 3))
HIDDEN = np.where(MASK[:, None], np.ones((2, 7, 3)), np.nan)
ARCHIVES = [
    {"archive": HIDDEN},
    {"archive": np.full((2, 7, 3), np.nan), "mask": np.zeros(7, bool)},
    {"x": POINTS, "archive": POINTS, "mask": None},
    {"x": POINTS, "archive": POINTS, "mask": ~np.eye(5, dtype=bool)},
    {"archive": np.zeros((2, 0, 3)), "mask": None},
]
CASES = [
    Case(
        losses.whiten,
        lambda rng: {
            **numbers(rng, "x", "mean"),
            "scale": rng.uniform(0.5, 1.5, (5, 3)),
            "clip": 1.3,
        },
        gradient=("x",),
        stopped=("mean", "scale"),
        extremes=lambda rng: [{"scale": np.zeros((5, 3))}, {"x": np.full((5, 3), 1e15)}],
    ),
    Case(
        losses.forward_error,
        lambda rng: numbers(rng, "prediction", "next_features"),
        gradient=("prediction", "next_features"),
        extremes=lambda rng: [{"prediction": np.full((5, 3), 1e15)}],
    ),
    Case(
        losses.icm,
        lambda rng: {**curiosity_inputs(rng), "beta": 0.2},
        gradient=("prediction", "next_features", "logits"),
        extremes=lambda rng: [{"logits": 1e6 * rng.normal(size=(5, 4))}],
    ),
    Case(
        losses.ensemble_disagreement,
        lambda rng: numbers(rng, "prediction"),
        gradient=("prediction",),
        extremes=lambda rng: [{"prediction": np.ones((5, 3))}],
    ),
    Case(
        losses.count_bonus,
        lambda rng: {"count": np.array([0.0, 1.0, 2.0, 10.0, 1e4])},
        stopped=("count",),
        extremes=lambda rng: [{"count": np.zeros(5)}, {"count": np.full(5, np.inf)}],
    ),
    Case(
        losses.ucb_bonus,
        lambda rng: {"count": np.array([1.0, 2.0, 5.0]), "total": np.float64(8.0)},
        stopped=("count", "total"),
        extremes=lambda rng: [{"count": np.ones(3), "total": np.float64(1.0)}],
        diverging=lambda rng: [{"count": np.array([0.0, 1.0, 0.0])}],
    ),
    Case(
        losses.elliptical_bonus,
        lambda rng: {"features": rng.normal(size=(5, 3)), "precision": precision(rng)},
        gradient=("features",),
        stopped=("precision",),
        extremes=lambda rng: [
            {"features": np.zeros((5, 3))},
            {"precision": 1e10 * np.eye(3)},
            {"precision": np.ones((3, 3)) + 1e-2 * np.eye(3)},
        ],
    ),
    Case(
        losses.elliptical_precision,
        lambda rng: {
            "precision": precision(rng),
            "features": rng.normal(size=(5, 3)),
            "mask": BATCH,
        },
        stopped=("precision", "features"),
        extremes=lambda rng: [
            {"features": np.where(BATCH[:, None], np.ones((5, 3)), np.nan)},
            {"features": np.zeros((0, 3)), "mask": None},
        ],
    ),
    Case(
        losses.prediction_gain,
        densities,
        stopped=("log_prob", "recoding_log_prob"),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}],
    ),
    Case(
        losses.pseudo_count,
        densities,
        stopped=("log_prob", "recoding_log_prob"),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}],
        diverging=lambda rng: [{"recoding_log_prob": np.full(5, -500.0)}],
        bfloat16=0.3,  # a difference of logarithms
    ),
    Case(
        losses.surprisal,
        lambda rng: {"log_prob": -rng.uniform(0, 3, 5)},
        stopped=("log_prob",),
        diverging=lambda rng: [{"log_prob": np.full(5, -np.inf)}],
    ),
    *(
        Case(
            function,
            archive_inputs,
            gradient=("x", "archive"),
            extremes=lambda rng: ARCHIVES,
        )
        for function in (losses.novelty, losses.particle_bonus)
    ),
    Case(
        losses.action_distance,
        lambda rng: {**numbers(rng, "action", "perturbed_action"), "mask": BATCH},
        stopped=("action", "perturbed_action"),
        extremes=lambda rng: [
            {"action": np.full((5, 3), np.nan), "mask": np.zeros(5, bool)},
            {"action": np.ones((5, 3)), "perturbed_action": np.ones((5, 3))},
        ],
    ),
    Case(
        losses.adapt_noise,
        lambda rng: {
            "scale": rng.uniform(0.1, 1, 5),
            "distance": rng.uniform(0, 1, 5),
            "target": 0.4,
        },
        stopped=("scale", "distance"),
    ),
    Case(
        losses.exploitation_value,
        lambda rng: {
            "cross_value": rng.normal(size=(5, 2, 3)),
            "belief": rng.dirichlet(np.ones(3), 5),
        },
        stopped=("cross_value", "belief"),
    ),
]
test_contract = contract(CASES)


def test_whiten():
    x = jnp.array([1.0, 5.0, -30.0, 30.0])
    np.testing.assert_allclose(losses.whiten(x, 1.0, 2.0, 5.0), [0, 2, -5, 5])
    np.testing.assert_allclose(losses.whiten(x, 0.0, 2.0), x / 2)


def test_the_rnd_bonus_vanishes_where_the_predictor_has_learned():
    """The error for one-hot states falls on visited states and stays on the others."""
    rng = np.random.default_rng(0)
    target = jnp.float32(rng.normal(size=(4, 3)))
    table = jnp.zeros((4, 3))
    visited = jnp.array([0, 1])
    loss = lambda table: losses.prediction_error(table[visited], target[visited]).sum()
    step = lambda table, _: (table - jax.grad(loss)(table), None)
    learned = jax.lax.scan(step, table, length=30)[0]
    bonus = losses.prediction_error(learned, target)
    np.testing.assert_allclose(bonus[:2], 0, atol=1e-5)
    np.testing.assert_allclose(bonus[2:], np.square(target[2:]).mean(-1), rtol=1e-5)


def test_curiosity_by_hand():
    x = curiosity_inputs(np.random.default_rng(0))
    forward = 0.5 * np.square(x["prediction"] - x["next_features"]).sum(-1)
    logits = x["logits"]
    log_prob = logits[range(5), x["action"]] - np.log(np.exp(logits).sum(-1))
    arrays = {k: jnp.asarray(v) for k, v in x.items()}
    np.testing.assert_allclose(losses.icm(**arrays), 0.2 * forward - 0.8 * log_prob, rtol=1e-4)


def test_disagreement_is_the_population_variance():
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(losses.ensemble_disagreement(jnp.float32(x)), x.var(-1), rtol=1e-4)


def test_pseudo_counts_of_an_empirical_density_are_the_counts():
    """rho = N / n and rho' = (N + 1) / (n + 1): the pseudo-count is N."""
    visits, total = np.array([1.0, 3.0, 17.0]), 40.0
    before, after = visits / total, (visits + 1) / (total + 1)
    ours = losses.pseudo_count(jnp.log(jnp.float32(before)), jnp.log(jnp.float32(after)))
    np.testing.assert_allclose(ours, visits, rtol=1e-3)
    assert (losses.prediction_gain(jnp.log(before), jnp.log(after)) > 0).all()
    np.testing.assert_allclose(losses.count_bonus(jnp.array([0.0, 99.99])), [10, 0.1], rtol=1e-4)
    np.testing.assert_allclose(
        losses.ucb_bonus(jnp.array([2.0, 0.0]), jnp.array(8.0)), [np.sqrt(np.log(8.0)), np.inf]
    )


def test_elliptical_bonus_counts_one_hot_features():
    """1 / sqrt(visits + ridge) of each state; rotating the features changes nothing."""
    visits = np.array([0, 3, 17])
    seen = jnp.float32(np.eye(3)[np.repeat(np.arange(3), visits)])
    rotation = jnp.float32(np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0])
    for turn in (jnp.eye(3), rotation):
        start = 0.5 * jnp.eye(3)
        both = losses.elliptical_precision(start, seen @ turn)
        ours = losses.elliptical_bonus(turn, both)
        np.testing.assert_allclose(ours, 1 / np.sqrt(visits + 0.5), rtol=1e-5)
        first = losses.elliptical_precision(start, seen[:5] @ turn)
        rest = losses.elliptical_precision(first, seen @ turn, jnp.arange(20) >= 5)
        np.testing.assert_allclose(rest, both, rtol=1e-5, atol=1e-5)


def test_elliptical_bonus_is_the_deviation_of_a_bayesian_regression():
    """Deviation of phi^T w, w ~ N(0, 1), given observations with unit noise, by conditioning."""
    rng = np.random.default_rng(0)
    seen, query = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    gain = query @ seen.T @ np.linalg.inv(seen @ seen.T + np.eye(6))
    variance = np.square(query).sum(-1) - (gain * (query @ seen.T)).sum(-1)
    precision = losses.elliptical_precision(jnp.eye(3), jnp.float32(seen))
    ours = losses.elliptical_bonus(jnp.float32(query), precision)
    np.testing.assert_allclose(ours, np.sqrt(variance), rtol=1e-4)


def test_novelty_is_the_mean_distance_to_the_nearest():
    rng = np.random.default_rng(0)
    x, archive = rng.normal(size=(5, 3)), rng.normal(size=(20, 3))
    theirs = scipy.spatial.KDTree(archive).query(x, k=4)[0].mean(-1)
    ours = losses.novelty(jnp.float32(x), jnp.float32(archive), 4)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    allowed = rng.uniform(size=20) < 0.5
    theirs = scipy.spatial.KDTree(archive[allowed]).query(x, k=4)[0].mean(-1)
    hidden = np.where(allowed[:, None], archive, np.nan)
    ours = losses.novelty(jnp.float32(x), jnp.float32(hidden), 4, allowed)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    bonus = losses.particle_bonus(jnp.float32(x), jnp.float32(hidden), 4, allowed)
    np.testing.assert_allclose(bonus, np.log1p(theirs), rtol=1e-4)


def test_novelty_with_fewer_entries_than_neighbors():
    x, archive = jnp.array([[0.0]]), jnp.array([[3.0], [5.0], [jnp.nan]])
    mask = jnp.array([True, True, False])
    assert losses.novelty(x, archive, 8, mask)[0] == 4
    assert losses.novelty(x, archive, 8, jnp.zeros(3, bool))[0] == 0


def test_particles_that_seek_novelty_spread():
    points = jnp.float32(np.random.default_rng(0).normal(size=(8, 2)) * 0.1)
    others = ~jnp.eye(8, dtype=bool)
    entropy = lambda x: losses.particle_bonus(x, x, 3, others).sum()
    step = jax.jit(lambda x: x + 0.05 * jax.grad(entropy)(x))
    spread = points
    for _ in range(20):
        spread = step(spread)
    assert entropy(spread) > entropy(points) + 1


def test_rewarding_rare_states_spreads_visits():
    """Mixing in the state that surprisal favors (Frank-Wolfe) leads to the uniform density."""
    density = jnp.array([0.97, 0.01, 0.01, 0.01])
    for k in range(400):
        best = losses.surprisal(jnp.log(density)).argmax()
        density = density + 2 / (k + 10) * (jnp.eye(4)[best] - density)
    np.testing.assert_allclose(density, 0.25, atol=0.01)


def test_parameter_noise_tracks_its_target():
    """The distance grows with the scale, so the rule settles around the target."""
    scale = jnp.float32(1.0)
    for _ in range(400):
        scale = losses.adapt_noise(scale, 3 * scale, 0.3)
    np.testing.assert_allclose(3 * scale, 0.3, rtol=0.03)
    a, b = np.random.default_rng(0).normal(size=(2, 5, 3))
    ours = losses.action_distance(jnp.float32(a), jnp.float32(b), BATCH)
    np.testing.assert_allclose(ours, np.sqrt(np.square(a - b)[BATCH].mean()), rtol=1e-5)


# Two environments, each with its right door. Beliefs: 0 unknown, 1 and 2 known. Actions: left door,
# right door, and reading a sign, which costs a step and COST, and reveals the environment.
GAIN, COST, DISCOUNT = np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.05, 0.9  # [door, environment]
BELIEFS = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])


def test_cashed_rewards_pay_for_information_and_keep_the_optimum():
    known = losses.exploitation_value(jnp.float32(GAIN)[None], jnp.float32(BELIEFS))
    np.testing.assert_allclose(known, [0, 1, 1])

    def solve(shape):
        """Solve the belief MDP exactly: doors end it, the sign reveals the environment."""
        value = np.zeros(3)
        for _ in range(50):
            doors = np.array([[b @ GAIN[d] for d in (0, 1)] for b in BELIEFS])
            doors = np.array(shape(doors, known[:, None], 0.0, True))
            stay = np.array([BELIEFS[0] @ value[1:], value[1], value[2]])
            following = np.array([BELIEFS[0] @ known[1:], known[1], known[2]])
            sign = np.array(shape(np.full(3, -COST), known, following, False))
            q = np.c_[doors, sign + DISCOUNT * stay]
            value = q.max(1)
        return q

    plain = solve(lambda r, k, n, end: r)
    cash = lambda r, k, n, end: losses.potential_shaping(r, k, n, end, DISCOUNT)
    cashed = solve(cash)
    np.testing.assert_array_equal(plain.argmax(1), [2, 0, 1])
    np.testing.assert_array_equal(cashed.argmax(1), [2, 0, 1])
    np.testing.assert_allclose(plain - cashed, np.broadcast_to(known[:, None], (3, 3)), atol=1e-5)
    # Now the sign itself is rewarded, and the door after it no longer is.
    reading = losses.potential_shaping(-COST, known[0], known[1], False, DISCOUNT)
    entering = losses.potential_shaping(1.0, known[1], jnp.nan, True, DISCOUNT)
    np.testing.assert_allclose([reading, entering], [0.85, 0], atol=1e-6)
