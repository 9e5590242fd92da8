import jax
import jax.numpy as jnp
import numpy as np

from tests.losses.compiled import diffusion, losses
from tests.losses.contract import Case, contract, example

SHAPE = (5, 3)


def normals(rng, *names, shape=SHAPE):
    return {name: rng.normal(size=shape) for name in names}


CASES = [
    Case(
        diffusion.compose_scores,
        lambda rng: {
            "unconditional": rng.normal(size=SHAPE),
            "conditional": rng.normal(size=(*SHAPE, 2)),
            "weight": rng.uniform(size=2),
        },
        gradient=("unconditional", "conditional", "weight"),
    ),
    Case(
        diffusion.classifier_free_guidance,
        lambda rng: {**normals(rng, "conditional", "unconditional"), "weight": 3.0},
        gradient=("conditional", "unconditional"),
    ),
    Case(
        diffusion.classifier_guidance,
        lambda rng: {
            **normals(rng, "mean", "gradient"),
            "variance": rng.uniform(size=5),
            "scale": 2.0,
        },
        gradient=("mean", "gradient", "variance"),
        extremes=lambda rng: [{"variance": np.zeros(5)}],
    ),
    Case(
        diffusion.guided_noise,
        lambda rng: {
            **normals(rng, "noise", "gradient"),
            "alpha_bar": rng.uniform(0.2, 0.8, 5),
            "scale": 2.0,
        },
        gradient=("noise", "gradient", "alpha_bar"),
        extremes=lambda rng: [{"alpha_bar": np.zeros(5)}],
    ),
    Case(
        diffusion.policy_guidance,
        lambda rng: {**normals(rng, "action", "gradient"), "weight": 0.1},
        gradient=("action",),
        stopped=("gradient",),
        extremes=lambda rng: [
            {"gradient": np.zeros(SHAPE)},
            {"gradient": np.full(SHAPE, 1e30)},
            {"gradient": np.tile([0, 1e30, 1], (5, 1))},
            {"gradient": np.full(SHAPE, 1e-30)},
        ],
    ),
    Case(
        diffusion.policy_guidance_weight,
        lambda rng: {"step": rng.uniform(0, 7, 5), "steps": 10},
        gradient=("step",),
    ),
    Case(
        diffusion.select_best,
        lambda rng: {"candidates": rng.normal(size=(5, 4, 3)), "score": rng.normal(size=(5, 4))},
        gradient=("candidates",),
        stopped=("score",),
        extremes=lambda rng: [{"score": np.full((5, 4), -np.inf)}],
    ),
    Case(
        diffusion.inpaint,
        lambda rng: {**normals(rng, "noisy", "known"), "mask": rng.uniform(size=SHAPE) < 0.5},
        gradient=("noisy", "known"),
        extremes=lambda rng: [{"mask": np.zeros(SHAPE, bool), "known": np.full(SHAPE, 1e30)}],
    ),
]
test_contract = contract(CASES)


def test_guidance_weights():
    conditional, unconditional = jnp.float32([3.0, -1]), jnp.float32([1.0, 1])
    guide = lambda weight: diffusion.classifier_free_guidance(conditional, unconditional, weight)
    np.testing.assert_allclose(guide(0.0), unconditional)
    np.testing.assert_allclose(guide(1.0), conditional)
    np.testing.assert_allclose(guide(2.0), [5, -3])


def test_composition_is_the_product_of_experts():
    """Differentiate p(x) (p(x|1) / p(x))^w1 (p(x|2) / p(x))^w2 for Gaussians."""
    x = jnp.float32([0.3, -2.0])
    log_p = [
        lambda x, m=m, s=s: losses.gaussian_log_prob(x, m, jnp.full(2, s))
        for m, s in ((0.0, 2.0), (1.0, 1.0), (-1.0, 0.7))
    ]
    w = [1.5, -0.4]
    product = lambda x: log_p[0](x) + sum(w[k] * (log_p[k + 1](x) - log_p[0](x)) for k in range(2))
    score = [jax.grad(f)(x) for f in log_p]
    ours = diffusion.compose_scores(score[0], jnp.stack(score[1:], -1), jnp.float32(w))
    np.testing.assert_allclose(ours, jax.grad(product)(x), rtol=1e-5)


def test_guided_noise_adds_to_the_score():
    x = {
        k: jnp.float32(v) for k, v in example(CASES, diffusion.guided_noise).items() if k != "scale"
    }
    level = x["alpha_bar"]
    guided = diffusion.score_from_noise(diffusion.guided_noise(**x, scale=2.0), level)
    plain = diffusion.score_from_noise(x["noise"], level)
    np.testing.assert_allclose(guided, plain + 2 * x["gradient"], rtol=1e-4, atol=1e-5)


def test_classifier_guidance_samples_the_tilted_gaussian():
    """N(m, v) tilted by exp(scale c x) is N(m + scale v c, v)."""
    ours = diffusion.classifier_guidance(
        jnp.float32([1, 2]), jnp.float32([3, -1]), jnp.float32(0.5), 2.0
    )
    np.testing.assert_allclose(ours, [1 + 3, 2 - 1])


def test_policy_guidance_moves_by_its_weight():
    action, gradient = jnp.zeros((2, 2)), jnp.float32([[3, 0], [0, -4]])
    moved = diffusion.policy_guidance(action, gradient, 0.5)
    np.testing.assert_allclose(moved, [[0.5, 0], [0, -0.5]])
    together = diffusion.policy_guidance(action, gradient, 0.5, axis=(-2, -1))
    np.testing.assert_allclose(together, 0.5 * np.array([[0.6, 0], [0, -0.8]]), rtol=1e-6)
    np.testing.assert_allclose(
        diffusion.policy_guidance(action, jnp.full((2, 2), 1e-30), 0.5), np.sqrt(0.125), rtol=1e-5
    )


def test_policy_guidance_by_huge_gradients():
    ours = diffusion.policy_guidance(jnp.zeros(3), jnp.float32([0, 1e30, 1]), 0.5)
    np.testing.assert_allclose(ours, [0, 0.5, 0], atol=1e-6)


def test_policy_guidance_weight():
    ours = diffusion.policy_guidance_weight(jnp.arange(4), 4, 2.0, bump=0.3)
    expected = [2 * (1 - i / 4 + 0.3 * np.sin(np.pi * (i + 1) / 4)) for i in range(3)] + [0]
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_selection_and_inpainting():
    candidates = jnp.arange(12.0).reshape(2, 3, 2)
    best = diffusion.select_best(candidates, jnp.float32([[0, 5, 1], [2, 1, 2]]))
    np.testing.assert_allclose(best, [[2, 3], [6, 7]])
    ours = diffusion.inpaint(jnp.float32([1, 2]), jnp.float32([7, 8]), jnp.array([False, True]))
    np.testing.assert_allclose(ours, [1, 8])
