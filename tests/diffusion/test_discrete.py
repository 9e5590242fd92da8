import jax.numpy as jnp
import numpy as np

from tests.losses.compiled import diffusion
from tests.losses.contract import Case, contract

CASES = [
    Case(
        diffusion.unmasking_probs,
        lambda rng: {
            "logits": rng.normal(size=(3, 4)),
            "alpha": rng.uniform(0.1, 0.4, 3),
            "next_alpha": rng.uniform(0.5, 0.9, 3),
        },
        gradient=("logits", "alpha", "next_alpha"),
        extremes=lambda rng: [
            {"logits": np.array([[0, -np.inf, 1, -np.inf]] * 3)},
            {"alpha": np.zeros(3), "next_alpha": np.ones(3)},
        ],
    ),
]
test_contract = contract(CASES)


def test_reverse_step_is_bayes_rule():
    """Check q(x_s | x_t = mask) = q(mask | x_s) q(x_s) / q(x_t = mask), over clean tokens."""
    clean, alpha, cleaner = np.array([0.5, 0.3, 0.2]), 0.3, 0.7
    before = np.append(cleaner * clean, 1 - cleaner)  # x_s: a token or the mask
    stays_masked = np.append(np.full(3, 1 - alpha / cleaner), 1.0)
    expected = before * stays_masked / (1 - alpha)
    ours = diffusion.unmasking_probs(
        jnp.log(jnp.float32(clean)), jnp.float32(alpha), jnp.float32(cleaner)
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
