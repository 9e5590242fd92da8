import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

B, D, M = 6, 3, 5
HUGE = np.full(B, 1e6)
MASK = np.array([True, False, True, True, False, True])


def logits(rng):
    return {"logits": rng.normal(size=B)}


BOTH_WAYS = [{"logits": HUGE}, {"logits": -HUGE}]
CASES = [
    *(
        Case(
            losses.adversarial_reward,
            lambda rng, form=form: {**logits(rng), "form": form},
            stopped=("logits",),
            extremes=lambda rng: BOTH_WAYS,
            name=f"adversarial_reward_{form}",
        )
        for form in ("positive", "negative", "logit")
    ),
    Case(
        losses.airl_logits,
        lambda rng: {
            "reward": rng.normal(size=B),
            "potential": rng.normal(size=B),
            "next_potential": rng.normal(size=B),
            "log_prob": -rng.uniform(1, 2, B),
            "terminated": ~MASK,
            "discount": 0.9,
        },
        gradient=("reward", "potential", "next_potential"),
        stopped=("log_prob",),
        extremes=lambda rng: [
            {"log_prob": np.full(B, -500.0)},
            {"next_potential": np.where(MASK, 1.0, np.nan)},
        ],
    ),
    Case(
        losses.drail_logits,
        lambda rng: {"expert_error": rng.uniform(0, 1, B), "agent_error": rng.uniform(0, 1, B)},
        gradient=("expert_error", "agent_error"),
    ),
    Case(
        losses.dynamics_reward,
        lambda rng: {"logits": rng.normal(size=(B, 3))},
        stopped=("logits",),
        extremes=lambda rng: [{"logits": np.full((B, 3), x)} for x in (300.0, -300.0)],
    ),
    Case(
        losses.density_ratio,
        lambda rng: {**logits(rng), "prior": 0.3},
        gradient=("logits",),
        extremes=lambda rng: BOTH_WAYS,
    ),
    Case(
        losses.occupancy_penalty,
        lambda rng: {**logits(rng), "mask": MASK},
        stopped=("logits",),
        extremes=lambda rng: [
            {"logits": np.full(B, 20.0)},
            {"logits": -HUGE},
            {"logits": np.zeros(B)},
            {"mask": np.zeros(B, bool)},
            {"logits": np.where(MASK, 1.0, np.nan)},
        ],
    ),
    *(
        Case(
            losses.gradient_penalty,
            lambda rng, one_sided=one_sided: {
                "gradient": rng.normal(size=(B, D)),
                "target": 0.8,
                "one_sided": one_sided,
            },
            gradient=("gradient",),
            extremes=lambda rng: [
                {"gradient": np.zeros((B, D))},
                {"gradient": np.zeros((B, D)), "target": 0.0},
                {"gradient": np.full((B, D), 1e10)},
            ],
            name=f"gradient_penalty_{one_sided}",
        )
        for one_sided in (False, True)
    ),
    Case(
        losses.lipschitz_preconditioner,
        lambda rng: {"penalty": rng.uniform(0, 1, B)},
        stopped=("penalty",),
        extremes=lambda rng: [{"penalty": HUGE}, {"penalty": np.zeros(B)}],
    ),
    Case(
        losses.random_features,
        lambda rng: {
            "x": rng.normal(size=(B, D)),
            "frequency": rng.normal(size=(D, M)),
            "phase": rng.uniform(0, 6, M),
        },
        gradient=("x", "frequency", "phase"),
    ),
    Case(
        losses.ball_projection,
        lambda rng: {"x": rng.normal(size=(B, D)), "radius": 1.2},
        gradient=("x",),
        extremes=lambda rng: [{"x": np.zeros((B, D))}, {"x": np.full((B, D), 1e15)}],
    ),
    Case(
        losses.kernel_reward,
        lambda rng: {
            "features": rng.normal(size=(B, M)),
            "weight": rng.normal(size=M),
            "radius": 1.0,
        },
        gradient=("features", "weight"),
        extremes=lambda rng: [{"weight": np.zeros(M)}],
    ),
    Case(
        losses.reward_gap,
        lambda rng: {
            "reward": rng.normal(size=B),
            "expert_reward": rng.normal(size=4),
            "mask": MASK,
            "expert_mask": np.array([True, True, False, True]),
        },
        gradient=("reward", "expert_reward"),
        extremes=lambda rng: [{"mask": np.zeros(B, bool)}, {"mask": None, "expert_mask": None}],
    ),
    Case(
        losses.feature_gap,
        lambda rng: {
            "features": rng.normal(size=(2, B, M)),
            "expert_features": rng.normal(size=(2, 4, M)),
            "mask": np.tile(MASK, (2, 1)),
            "expert_mask": np.tile([True, True, False, True], (2, 1)),
        },
        gradient=("features", "expert_features"),
        extremes=lambda rng: [
            {"features": np.ones((2, B, M)), "expert_features": np.ones((2, 4, M))},
            {"mask": np.zeros((2, B), bool)},
            {"mask": None, "expert_mask": None},
        ],
    ),
    Case(
        losses.dagger_mixing,
        lambda rng: {"iteration": np.arange(5), "decay": 0.5},
        extremes=lambda rng: [{"decay": 0.0}, {"decay": 1.0}],
    ),
    Case(
        losses.skill_boundaries,
        lambda rng: {"loss": rng.uniform(0, 1, (7, 2)), "gap": 0.3},
        stopped=("loss",),
        time=("loss",),
        extremes=lambda rng: [{"loss": 1e6 * rng.uniform(0, 1, (7, 2))}],
    ),
]
test_contract = contract(CASES)


def test_discriminator_is_cross_entropy_and_its_optimum_the_ratio_of_densities():
    x = jnp.float32(np.random.default_rng(0).normal(size=B))
    np.testing.assert_allclose(
        losses.binary_cross_entropy(x, MASK),
        optax.losses.sigmoid_binary_cross_entropy(x, jnp.float32(MASK)),
        rtol=1e-5,
    )
    with jax.enable_x64(True):
        expert, policy = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.1, 0.3, 0.6])

        def loss(logits, prior):
            return (
                prior * expert * losses.binary_cross_entropy(logits, True)
                + (1 - prior) * policy * losses.binary_cross_entropy(logits, False)
            ).sum()

        for prior in (0.5, 0.2):
            best = jnp.log(prior * expert / ((1 - prior) * policy))
            np.testing.assert_allclose(jax.grad(loss)(best, prior), 0, atol=1e-12)
            ratio = losses.density_ratio(best, prior)
            np.testing.assert_allclose(ratio, expert / policy, rtol=1e-9)


def test_rewards_of_a_discriminator():
    x = jnp.float32([-3.0, 0.0, 2.0])
    d = 1 / (1 + np.exp(-np.float64(x)))
    reward = losses.adversarial_reward
    np.testing.assert_allclose(reward(x), -np.log(1 - d), rtol=1e-5)
    np.testing.assert_allclose(reward(x, "negative"), np.log(d), rtol=1e-5)
    np.testing.assert_allclose(reward(x, "logit"), np.log(d) - np.log(1 - d), rtol=1e-5, atol=1e-7)
    assert (jnp.diff(reward(x)) > 0).all() and (reward(x) > 0).all()
    with pytest.raises(ValueError):
        reward(x, "other")


def test_airl_discriminator_is_exp_f_over_exp_f_plus_pi():
    x = example(CASES, losses.airl_logits)
    future = np.where(x["terminated"], 0, 0.9 * x["next_potential"])
    f = x["reward"] + future - x["potential"]
    d = np.exp(f) / (np.exp(f) + np.exp(x["log_prob"]))
    ours = losses.airl_logits(**{k: np.array(v) for k, v in x.items()})
    np.testing.assert_allclose(jax.nn.sigmoid(ours), d, rtol=1e-5)


def test_drail_is_a_softmax_of_two_errors():
    expert, agent = jnp.float32([0.1, 2.0]), jnp.float32([1.0, 0.5])
    d = np.exp(-expert) / (np.exp(-expert) + np.exp(-agent))
    np.testing.assert_allclose(jax.nn.sigmoid(losses.drail_logits(expert, agent)), d, rtol=1e-6)
    assert losses.drail_logits(expert, agent)[0] > 0  # denoised better as the expert's


def test_occupancy_penalty_has_the_mean_of_the_root_of_the_divergence():
    policy, base = np.array([0.5, 0.3, 0.2]), np.array([0.25, 0.25, 0.5])
    chi2 = (base * (policy / base - 1) ** 2).sum()
    samples = np.repeat([0, 1, 2], [5, 3, 2])  # exactly the policy's distribution
    logits = jnp.float32(np.log(policy / base)[samples])
    ours = losses.occupancy_penalty(logits)
    np.testing.assert_allclose(ours.mean(), np.sqrt(chi2), rtol=1e-5)
    np.testing.assert_allclose(ours, (policy / base - 1)[samples] / np.sqrt(chi2), rtol=1e-4)
    masked = losses.occupancy_penalty(
        jnp.append(logits, jnp.nan), jnp.append(jnp.ones(10, bool), False)
    )
    np.testing.assert_allclose(masked, np.append(ours, 0), rtol=1e-6)


def test_gradient_penalty():
    gradient = jnp.float32([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(losses.gradient_penalty(gradient), [16, 0.25], rtol=1e-5)
    np.testing.assert_allclose(
        losses.gradient_penalty(gradient, one_sided=True), [16, 0], rtol=1e-5
    )
    np.testing.assert_allclose(losses.gradient_penalty(gradient, 0.0), [25, 0.25], rtol=1e-5)


def test_penalized_critic_of_two_gaussians_becomes_lipschitz():
    """The slope w of a critic w * x grows without bound, but with the penalty |w| is near 1."""

    def loss(w, weight):
        x, y = jnp.float32([0.0, 1.0]), jnp.float32([2.0, 3.0])
        penalty = losses.gradient_penalty(w[None, None])[0]
        return losses.reward_gap(w * x, w * y) + weight * penalty

    descend = jax.jit(lambda w: w - 0.04 * jax.grad(loss)(w, 10.0))
    w = jax.lax.fori_loop(0, 100, lambda _, w: descend(w), jnp.float32(0.5))
    np.testing.assert_allclose(w, 1 + 2 / 20, rtol=1e-3)
    assert jax.grad(loss)(w, 0.0) == -2  # higher on the expert's data y


def test_preconditioner():
    ours = losses.lipschitz_preconditioner(jnp.float32([0.0, 0.2, 5.0]))
    np.testing.assert_allclose(ours, [1, np.exp(-0.2), 0.7], rtol=1e-6)


def test_random_features_approximate_the_kernel():
    rng = np.random.default_rng(0)
    number, scale = 20_000, 1.5
    frequency, phase = rng.normal(size=(D, number)) / scale, rng.uniform(0, 2 * np.pi, number)
    x = rng.normal(size=(4, D))
    features = losses.random_features(*map(jnp.float32, (x, frequency, phase)))
    kernel = np.exp(-((x[:, None] - x) ** 2).sum(-1) / (2 * scale**2))
    np.testing.assert_allclose(features @ features.T, kernel, atol=0.03)
    # The feature gap is then the kernel's discrepancy.
    gap = losses.feature_gap(features[:2], features[2:])
    mmd = losses.kernel_mmd(jnp.float32(x[:2]), jnp.float32(x[2:]), scale)
    np.testing.assert_allclose(jnp.square(gap), mmd, atol=0.03)


def test_projection():
    x = jnp.float32([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(losses.ball_projection(x, 1.0), [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


def test_feature_gap_is_the_largest_gap_of_a_kernel_reward():
    rng = np.random.default_rng(0)
    policy, expert = jnp.float32(rng.normal(size=(5, M))), jnp.float32(rng.normal(size=(7, M)))
    gap = losses.feature_gap(policy, expert)

    def reward_gain(weight):  # minus `reward_gap`
        return -losses.reward_gap(
            losses.kernel_reward(policy, weight, 1.0), losses.kernel_reward(expert, weight, 1.0)
        )

    best = 10 * (expert.mean(0) - policy.mean(0))
    np.testing.assert_allclose(reward_gain(best), gap, rtol=1e-5)
    for weight in jnp.float32(rng.normal(size=(20, M)) * 5):
        assert reward_gain(weight) <= gap + 1e-6


def test_masks_of_the_gaps():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(B, M)), rng.normal(size=(4, M))
    kept = np.array([True, False, True, False])
    full = losses.feature_gap(*map(jnp.float32, (x[MASK], y[kept])))
    x[~MASK], y[~kept] = np.nan, np.nan
    ours = losses.feature_gap(*map(jnp.float32, (x, y)), jnp.asarray(MASK), jnp.asarray(kept))
    np.testing.assert_allclose(ours, full, rtol=1e-5)
    gap = losses.reward_gap(*map(jnp.float32, (x[:, 0], y[:, 0])), MASK, kept)
    np.testing.assert_allclose(gap, x[MASK, 0].mean() - y[kept, 0].mean(), rtol=1e-5)


def test_dagger_mixing():
    iteration = jnp.arange(3)
    np.testing.assert_allclose(losses.dagger_mixing(iteration, 0.5), [1, 0.5, 0.25])
    np.testing.assert_allclose(losses.dagger_mixing(iteration, 0.0), [1, 0, 0])


def test_boundaries_by_a_loop():
    rng = np.random.default_rng(0)
    loss = rng.exponential(size=(40, 3))
    expected = np.zeros_like(loss)
    for b in range(3):
        since = []
        for t in range(40):
            since.append(loss[t, b])
            if loss[t, b] - np.mean(since) > 0.8:
                expected[t, b], since = 1, []
    ours = losses.skill_boundaries(jnp.float32(loss), 0.8)
    np.testing.assert_array_equal(ours, expected)
    assert 3 < expected.sum() < 40
    jump = jnp.float32([0.1, 0.1, 0.1, 5.0, 0.1, 0.1])
    np.testing.assert_array_equal(losses.skill_boundaries(jump, 1.0), [0, 0, 0, 1, 0, 0])


def test_the_dynamics_reward_is_of_the_mean_probability():
    logits = np.random.default_rng(3).normal(size=(B, 4)).astype(np.float32)
    mean = (1 / (1 + np.exp(-logits))).mean(-1)
    np.testing.assert_allclose(losses.dynamics_reward(logits), -np.log(1 - mean), rtol=1e-5)
    one = losses.adversarial_reward(logits[:, 0], "positive")
    np.testing.assert_allclose(losses.dynamics_reward(logits[:, :1]), one, rtol=1e-5)
