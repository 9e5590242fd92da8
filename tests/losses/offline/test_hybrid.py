import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

B = 6
HUGE = np.full(B, 1e6)
MASK = np.array([True, False, True, True, False, True])


def two_logits(rng):
    return {"transition_logits": rng.normal(size=B), "pair_logits": rng.normal(size=B)}


CASES = [
    Case(losses.dynamics_gap, two_logits, gradient=("transition_logits", "pair_logits")),
    Case(
        losses.dynamics_ratio,
        two_logits,
        stopped=("transition_logits", "pair_logits"),
        extremes=lambda rng: [{"pair_logits": HUGE}, {"transition_logits": HUGE}],
    ),
    Case(
        losses.dynamics_gap_regularizer,
        lambda rng: {
            "q_value": rng.normal(size=(2, B)),
            "gap": rng.uniform(0.1, 1, (2, B)),
            "data_q_value": rng.normal(size=(2, 4)),
            "temperature": 0.7,
            "mask": MASK,
            "data_mask": np.array([True, True, False, True]),
        },
        gradient=("q_value", "data_q_value"),
        stopped=("gap",),
        extremes=lambda rng: [
            {"gap": np.zeros((2, B))},
            {"gap": np.tile(HUGE, (2, 1)), "q_value": np.tile(HUGE, (2, 1))},
            {"mask": np.zeros(B, bool), "data_mask": np.zeros(4, bool)},
            {"mask": None, "data_mask": None, "gap": np.tile(np.arange(B) * 1e-3, (2, 1))},
            {"q_value": np.where(MASK, 1.0, np.nan) * np.ones((2, 1))},
        ],
    ),
]
test_contract = contract(CASES)


def test_ratio_and_gap_of_the_exact_classifiers():
    """Tabular case, with different state-action and next-state distributions."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        real, sim = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
        real_next, sim_next = rng.dirichlet(np.ones(3), 4), rng.dirichlet(np.ones(3), 4)
        pair = jnp.asarray(np.log(real / sim))[:, None] * jnp.ones(3)
        transition = jnp.log(real[:, None] * real_next) - jnp.log(sim[:, None] * sim_next)
        ratio = real_next / sim_next
        ours = losses.dynamics_ratio(transition, pair, low=0.5, high=2.0)
        np.testing.assert_allclose(ours, np.clip(ratio, 0.5, 2.0), rtol=1e-9)
        assert losses.dynamics_ratio(transition, pair).max() <= 1 + 1e-12
        kl = (sim_next * np.log(sim_next / real_next)).sum(-1)
        gap = (sim_next * losses.dynamics_gap(transition, pair)).sum(-1)
        np.testing.assert_allclose(gap, kl, rtol=1e-9)
        assert (gap > 0).all()


def test_regularizer_by_hand_and_masks():
    with jax.enable_x64(True):
        x = example(CASES, losses.dynamics_gap_regularizer)
        kept, data_kept = np.flatnonzero(MASK), np.array([0, 1, 3])
        expected = []
        for q, gap, data in zip(x["q_value"], x["gap"], x["data_q_value"], strict=True):
            weight = gap[kept] / gap[kept].sum()
            pushed = 0.7 * np.log((np.exp(q[kept] / 0.7) * weight ** (1 / 0.7)).sum())
            expected.append(pushed - data[data_kept].mean())
        arrays = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in x.items()}
        ours = losses.dynamics_gap_regularizer(**arrays)
        np.testing.assert_allclose(ours, expected, rtol=1e-9)
        arrays["q_value"] = arrays["q_value"].at[:, 1].set(jnp.nan)
        arrays["gap"] = arrays["gap"].at[:, 4].set(jnp.nan)
        np.testing.assert_allclose(losses.dynamics_gap_regularizer(**arrays), ours, rtol=1e-12)


@pytest.mark.slow
def test_regularizer_pushes_most_where_the_gap_is_large():
    q_value, data = jnp.zeros(3), jnp.zeros(2)
    gradient = jax.grad(losses.dynamics_gap_regularizer, argnums=(0, 2))(
        q_value, jnp.float32([1.0, 0.0, 3.0]), data
    )
    np.testing.assert_allclose(gradient[0], [0.25, 0, 0.75], rtol=1e-5)
    np.testing.assert_allclose(gradient[1], [-0.5, -0.5], rtol=1e-5)
