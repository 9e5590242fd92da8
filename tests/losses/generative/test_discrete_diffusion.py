import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

MASKED = np.array([[True, False, True, False], [False, True, True, False], [False] * 4])
STAYS = np.array([True, False, True])
NAN = np.where(STAYS[:, None, None], 0.5, np.nan) * np.ones((3, 2, 4))
CASES = [
    Case(
        losses.masked_diffusion_weight,
        lambda rng: {"alpha": rng.uniform(0.2, 0.8, 5), "alpha_rate": -rng.uniform(size=5)},
        gradient=("alpha", "alpha_rate"),
        extremes=lambda rng: [{"alpha": np.zeros(5)}],
    ),
    Case(
        losses.masked_diffusion,
        lambda rng: {
            "log_prob": -rng.uniform(size=(3, 4)),
            "masked": MASKED,
            "weight": rng.uniform(1, 2, 3),
        },
        gradient=("log_prob",),
        stopped=("weight",),
        extremes=lambda rng: [
            {"log_prob": np.where(MASKED, -500, np.nan)},
            {"masked": np.zeros((3, 4), bool)},
            {"log_prob": np.where(MASKED, -1, -np.inf)},
        ],
    ),
    Case(
        losses.sepo,
        lambda rng: {
            "log_score": 0.1 * rng.normal(size=(3, 4)),
            "old_log_score": 0.1 * rng.normal(size=(3, 4)),
            "log_prob": -rng.uniform(1, 2, (3, 4)),
            "old_log_prob": -rng.uniform(1, 2, (3, 4)),
            "advantage": rng.normal(size=3),
            "clip": 0.2,
        },
        surrogate=("log_score",),
        stopped=("old_log_score", "log_prob", "old_log_prob", "advantage"),
        extremes=lambda rng: [
            {"log_prob": np.full((3, 4), -500.0)},
            {"old_log_prob": np.full((3, 4), -500.0)},
            {"advantage": np.full(3, 1e6)},
        ],
    ),
    Case(
        losses.ctmc_kl,
        lambda rng: {
            "log_rate": rng.normal(size=(3, 2, 4)),
            "base_log_rate": rng.normal(size=(3, 2, 4)),
            "duration": rng.uniform(size=(3, 2)),
            "mask": STAYS[:, None],
        },
        gradient=("log_rate", "base_log_rate"),
        stopped=("duration",),
        time=("log_rate", "base_log_rate", "duration", "mask"),
        extremes=lambda rng: [
            {"mask": np.zeros((3, 1), bool)},
            {"log_rate": NAN},
            {"base_log_rate": NAN},
            {"log_rate": np.full((3, 2, 4), -np.inf)},
            {"log_rate": np.full((3, 2, 4), -np.inf), "base_log_rate": np.full((3, 2, 4), -np.inf)},
            {"log_rate": np.full((3, 2, 4), -500.0), "base_log_rate": np.full((3, 2, 4), -500.0)},
        ],
        diverging=lambda rng: [{"base_log_rate": np.full((3, 2, 4), -np.inf)}],
    ),
]
test_contract = contract(CASES)


def test_the_exact_model_attains_the_log_likelihood():
    """The bound with exact conditionals of two dependent binary tokens is tight, -log p(a, b)."""
    p = np.array([[0.1, 0.4], [0.3, 0.2]])
    points, weights = np.polynomial.legendre.leggauss(8)
    times, weights = (points + 1) / 2, weights / 2
    for a, b in itertools.product(range(2), repeat=2):
        # log p of each masked true token, given the unmasked ones
        cases = {
            (True, False): (np.log(p[a, b] / p[:, b].sum()), np.nan),
            (False, True): (np.nan, np.log(p[a, b] / p[a].sum())),
            (True, True): (np.log(p[a].sum()), np.log(p[:, b].sum())),
        }
        total = 0.0
        for masked, log_prob in cases.items():
            chance = np.prod([np.where(m, times, 1 - times) for m in masked], axis=0)
            weight = losses.masked_diffusion_weight(jnp.float32(1 - times), -jnp.ones(8))
            loss = losses.masked_diffusion(
                jnp.tile(jnp.float32(log_prob), (8, 1)), jnp.array(masked), weight
            )
            total += (weights * chance * np.array(loss)).sum()
        np.testing.assert_allclose(total, -np.log(p[a, b]), rtol=1e-4)


@jax.jit
def enumerated_sepo(logits, old_logits, reward, clip, neighbors=None):
    """Gradient of sum_x q_old(x) sepo(x) over all sequences, with exact ratios."""
    old = jax.nn.log_softmax(old_logits)

    def loss(logits):
        log_q = jax.nn.log_softmax(logits)
        log_score, old_log_score = (x[None, :] - x[:, None] for x in (log_q, old))
        if neighbors is not None:
            log_score = jnp.where(neighbors, log_score, 0)
        shape = log_score.shape
        each = losses.sepo(
            log_score,
            old_log_score,
            jnp.broadcast_to(log_q, shape),
            jnp.broadcast_to(old, shape),
            reward,
            clip,
        )
        return (jnp.exp(old) * each).sum()

    return jax.grad(loss)(logits)


@pytest.mark.slow
def test_sepo_is_the_policy_gradient_where_the_ratios_are_exact():
    """Enumerate three binary tokens, on policy and, with importance weights, off policy."""
    rng = np.random.default_rng(0)
    logits, other, reward = jnp.float32(rng.normal(size=(3, 8)))
    exact = jax.grad(lambda x: -(jax.nn.softmax(x) * reward).sum())(logits)
    np.testing.assert_allclose(
        enumerated_sepo(logits, logits, reward, 0.2), exact, rtol=1e-3, atol=1e-6
    )
    # Off policy the ratio is q(x) / q_old(x), which gives the same gradient unless it is clipped.
    np.testing.assert_allclose(
        enumerated_sepo(logits, other, reward, 1e6), exact, rtol=1e-3, atol=1e-5
    )
    clipped = enumerated_sepo(logits, other, reward, 0.1)
    q, q_old = (np.array(jax.nn.softmax(x)) for x in (logits, other))
    ratio = q / q_old
    weight = q_old * np.minimum(ratio * reward, np.clip(ratio, 0.9, 1.1) * reward)
    expected = -(weight - weight.sum() * q)  # -sum_x weight_x grad log q(x)
    np.testing.assert_allclose(clipped, expected, rtol=1e-3, atol=1e-5)


def test_sepo_over_neighbors_only_is_not_exact():
    """The docstring says so: sequences that differ in one token are not all sequences."""
    rng = np.random.default_rng(0)
    logits, _, reward = jnp.float32(rng.normal(size=(3, 8)))
    words = np.array(list(itertools.product(range(2), repeat=3)))
    near = jnp.array((words[:, None] != words[None]).sum(-1) <= 1)
    exact = jax.grad(lambda x: -(jax.nn.softmax(x) * reward).sum())(logits)
    ours = enumerated_sepo(logits, logits, reward, 0.2, near)
    assert abs(ours - exact).max() > 0.01


def test_divergence_of_jump_processes():
    """The divergence of Poisson counts over time T is that of the numbers of jumps."""
    rate, base, time = 1.7, 0.6, 2.0
    count = np.arange(60)
    p, q = (scipy.stats.poisson(r * time).logpmf(count) for r in (rate, base))
    expected = (np.exp(p) * (p - q)).sum()
    rates = [jnp.log(jnp.full((4, 2), x)) for x in (rate, base)]  # two independent counts
    ours = losses.ctmc_kl(*rates, jnp.full(4, time / 4))
    np.testing.assert_allclose(ours, 2 * expected, rtol=1e-4)


def test_masked_steps_and_equal_rates_cost_nothing():
    x = {k: jnp.array(v) for k, v in example(CASES, losses.ctmc_kl).items()}
    alone = jax.jit(losses.ctmc_kl)(**{k: v[np.array([0, 2])] for k, v in x.items()})
    np.testing.assert_allclose(jax.jit(losses.ctmc_kl)(**x), alone, rtol=1e-5)
    same = jax.jit(losses.ctmc_kl)(x["log_rate"], x["log_rate"], x["duration"])
    np.testing.assert_allclose(same, 0, atol=1e-6)
