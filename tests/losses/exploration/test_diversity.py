import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def skills(rng):
    return {"logits": rng.normal(size=(5, 4)), "skill": np.array([0, 3, 1, 2, 2])}


def kernel_of(x, bandwidth=1.0):
    square = np.square(x[..., :, None, :] - x[..., None, :, :]).sum(-1)
    return np.exp(-square / (2 * bandwidth**2))


IMPOSSIBLE = np.tile([-np.inf, 0.0, 1.0, 0.0], (5, 1))
CASES = [
    Case(
        losses.skill_reward,
        lambda rng: {**skills(rng), "prior_logits": rng.normal(size=4)},
        stopped=("logits", "prior_logits"),
        extremes=lambda rng: [{"logits": 1e6 * rng.normal(size=(5, 4))}],
    ),
    Case(
        losses.gated_diversity,
        lambda rng: {
            **{k: rng.normal(size=5) for k in ("reward", "diversity")},
            "episode_return": np.array([0.0, 9.0, 9.5, 10.0, 11.0]),
            "best_return": 10.0,
            "tolerance": 0.8,
            "weight": 0.5,
        },
        stopped=("reward", "diversity", "episode_return"),
    ),
    Case(
        losses.median_bandwidth,
        lambda rng: {"x": rng.normal(size=(2, 5, 3))},
        stopped=("x",),
        extremes=lambda rng: [{"x": np.ones((2, n, 3))} for n in (0, 1, 5)],
    ),
    Case(
        losses.svgd,
        lambda rng: {
            "particles": rng.normal(size=(2, 5, 3)),
            "score": rng.normal(size=(2, 5, 3)),
            "bandwidth": rng.uniform(1, 2, 2),
        },
        stopped=("particles", "score", "bandwidth"),
        extremes=lambda rng: [{"particles": np.ones((2, 5, 3))}],
    ),
    Case(
        losses.population_volume,
        lambda rng: {"kernel": kernel_of(rng.normal(size=(2, 4, 3)))},
        gradient=("kernel",),
        extremes=lambda rng: [
            {"kernel": np.ones((2, 4, 4))},
            {"kernel": np.tile(np.eye(4), (2, 1, 1))},
        ],
    ),
    Case(
        losses.population_log_volume,
        lambda rng: {"kernel": kernel_of(rng.normal(size=(2, 4, 3))), "jitter": 0.1},
        gradient=("kernel",),
        extremes=lambda rng: [
            {"kernel": np.ones((2, 4, 4)), "jitter": 1e-4},
            {"kernel": np.tile(np.eye(4), (2, 1, 1))},
        ],
    ),
]
test_contract = contract(CASES)


def test_skill_rewards_bound_the_information_of_skills_and_states():
    """The mean reward of the true posterior is the information of three skills and four states."""
    visits = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    prior = np.array([0.5, 0.3, 0.2])
    joint = prior[:, None] * visits
    information = (joint * np.log(visits / joint.sum(0))).sum()

    def mean_reward(posterior):
        logits = jnp.float32(np.broadcast_to(np.log(posterior.T), (3, 4, 3)))
        skill = jnp.broadcast_to(jnp.arange(3)[:, None], (3, 4))
        return (joint * losses.skill_reward(logits, skill, jnp.log(jnp.float32(prior)))).sum()

    posterior = joint / joint.sum(0)
    np.testing.assert_allclose(mean_reward(posterior), information, rtol=1e-4)
    assert mean_reward(0.5 * posterior + 0.5 / 3) < information
    uniform = losses.skill_reward(jnp.zeros((1, 3)), jnp.array([1]), jnp.zeros(3))
    np.testing.assert_allclose(uniform, 0, atol=1e-6)  # no reward before learning


def test_the_discriminator_learns_the_posterior():
    state, skill = jnp.array([0, 0, 0, 1, 1]), jnp.array([0, 0, 1, 1, 1])
    loss = lambda logits: losses.categorical_nll(logits[state], skill).mean()
    best = jnp.log(jnp.array([[2 / 3, 1 / 3], [1e-9, 1.0]]))
    np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-6)


def test_the_gate_opens_near_the_best_return():
    reward, diversity = jnp.zeros(3), jnp.ones(3)
    ours = losses.gated_diversity(reward, diversity, jnp.array([5.0, 9.0, 11.0]), 10.0, 1.0, 0.5)
    np.testing.assert_allclose(ours, [0, 0.5, 0.5])


def test_kernel_and_bandwidth():
    x, y = np.random.default_rng(0).normal(size=(2, 6, 3))
    square = scipy.spatial.distance.cdist(x, y, "sqeuclidean")
    ours = losses.rbf_kernel(jnp.float32(x), jnp.float32(y), 0.7)
    np.testing.assert_allclose(ours, np.exp(-square / (2 * 0.49)), rtol=1e-4)
    median = np.median(scipy.spatial.distance.pdist(x))
    ours = losses.median_bandwidth(jnp.float32(x))
    np.testing.assert_allclose(ours, median / np.sqrt(2 * np.log(7)), rtol=1e-5)


def test_svgd_by_its_definition():
    rng = np.random.default_rng(0)
    x, score, h = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), 0.8
    expected = np.zeros((5, 3))
    for i in range(5):
        for j in range(5):
            k = np.exp(-np.square(x[i] - x[j]).sum() / (2 * h**2))
            expected[i] += (k * score[j] + k * (x[i] - x[j]) / h**2) / 5
    np.testing.assert_allclose(
        losses.svgd(jnp.float32(x), jnp.float32(score), h), expected, rtol=1e-4
    )
    grid = np.round(64 * x) / 64  # so that the shifted particles are exact
    near = losses.svgd(jnp.float32(grid), jnp.float32(score), h)
    far = losses.svgd(jnp.float32(grid + 2**14), jnp.float32(score), h)
    np.testing.assert_allclose(far, near, atol=5e-4)


@pytest.mark.slow
def test_svgd_finds_the_moments_of_a_gaussian():
    mean, covariance = np.array([2.0, -1.0]), np.array([[1.0, 0.6], [0.6, 2.0]])
    precision = jnp.float32(np.linalg.inv(covariance))
    start = jnp.float32(np.random.default_rng(0).normal(size=(60, 2)) * 0.1)

    @jax.jit
    def run(x):
        def step(x, _):
            score = -(x - jnp.float32(mean)) @ precision
            return x + 0.5 * losses.svgd(x, score, losses.median_bandwidth(x)), None

        return jax.lax.scan(step, x, length=500)[0]

    particles = np.array(run(start))
    np.testing.assert_allclose(particles.mean(0), mean, atol=0.05)
    # A few particles spread slightly less than the density.
    np.testing.assert_allclose(np.cov(particles.T), covariance, rtol=0.15)


def test_goals_by_svgd_gather_where_success_is_uncertain():
    """One-dimensional goals, whose success falls with distance, gather around p = 1/2."""
    success = lambda g: jax.nn.sigmoid(4 - g)
    log_density = lambda g: losses.goal_difficulty(success(g[0]))
    goals = jnp.linspace(0.0, 2.0, 12)[:, None]

    @jax.jit
    def run(goals):
        def step(goals, _):
            score = jax.vmap(jax.grad(log_density))(goals)
            return goals + 0.1 * losses.svgd(goals, score, losses.median_bandwidth(goals)), None

        return jax.lax.scan(step, goals, length=300)[0]

    ended = run(goals)[:, 0]
    np.testing.assert_allclose(ended.mean(), 4, atol=0.1)
    assert ended.std() > 0.25


def test_volumes():
    x = np.random.default_rng(0).normal(size=(4, 3))
    K = kernel_of(x)
    np.testing.assert_allclose(
        losses.population_volume(jnp.float32(K)), np.linalg.det(K), rtol=1e-3
    )
    ours = losses.population_log_volume(jnp.float32(K), 0.1)
    np.testing.assert_allclose(ours, np.linalg.slogdet(K + 0.1 * np.eye(4))[1], rtol=1e-4)
    assert losses.population_volume(jnp.eye(4)) == 1
    x[1] = x[0]
    np.testing.assert_allclose(losses.population_volume(jnp.float32(kernel_of(x))), 0, atol=1e-6)


def test_the_volumes_gradient_of_a_singular_kernel_is_its_adjugate():
    for same in (2, 3):
        x = np.random.default_rng(1).normal(size=(4, 3))
        x[:same] = x[0]
        K = kernel_of(x)
        minors = [[np.delete(np.delete(K, i, 0), j, 1) for j in range(4)] for i in range(4)]
        signs = (-1.0) ** np.add.outer(range(4), range(4))
        cofactors = signs * np.linalg.det(np.array(minors))
        ours = jax.grad(losses.population_volume)(jnp.float32(K))
        np.testing.assert_allclose(ours, cofactors, atol=1e-5)


def test_policies_that_follow_the_volume_diverge():
    start = jnp.float32(np.random.default_rng(0).normal(size=(3, 2)) * 0.01)
    volume = lambda x: losses.population_log_volume(losses.rbf_kernel(x, x, 1.0))
    step = jax.jit(lambda x: x + 0.05 * jax.grad(volume)(x))
    x = start
    for _ in range(100):
        x = step(x)
    assert losses.population_volume(losses.rbf_kernel(x, x, 1.0)) > 0.5
