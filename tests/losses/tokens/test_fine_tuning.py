import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

T, G = 5, 4
LENGTHS = np.array([5, 3, 1, 0])
MASK = np.arange(T)[:, None] < LENGTHS


def log_probs(rng, *names, shape=(T, G)):
    return {name: -rng.uniform(0.5, 1.5, shape) for name in names}


FAR = np.full((T, G), -500.0)
CASES = [
    Case(
        losses.dft,
        lambda rng: log_probs(rng, "log_prob"),
        surrogate=("log_prob",),
        time=("log_prob",),
        extremes=lambda rng: [{"log_prob": FAR}, {"log_prob": np.zeros((T, G))}],
    ),
    Case(
        losses.iw_sft,
        lambda rng: log_probs(rng, "log_prob", "reference_log_prob"),
        surrogate=("log_prob",),
        stopped=("reference_log_prob",),
        time=("log_prob", "reference_log_prob"),
        extremes=lambda rng: [{"log_prob": FAR}, {"reference_log_prob": FAR}],
    ),
    Case(
        losses.nft,
        lambda rng: {
            **log_probs(rng, "log_prob", "old_log_prob"),
            "correct": np.array([True, False, False, True]),
            "pass_rate": np.array([0.3]),
            "epsilon": 0.1,
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "pass_rate"),
        time=("log_prob", "old_log_prob"),
        extremes=lambda rng: [
            {"log_prob": FAR},
            {"old_log_prob": FAR},
            {"correct": np.ones(G, bool), "pass_rate": np.ones(1)},
            {"correct": np.zeros(G, bool), "pass_rate": np.zeros(1)},
            {"pass_rate": np.array([0.99]), "old_log_prob": FAR},
        ],
    ),
    *(
        Case(
            losses.a_lol,
            lambda rng, ratio=ratio: {
                **log_probs(rng, "log_prob", "reference_log_prob"),
                "advantage": np.array([1.0, 0.5, -1.0, 2.0]),
                "clip": 0.2,
                "ratio": ratio,
                "beta": 0.1,
                "mask": MASK,
            },
            gradient=("log_prob",) if ratio == "none" else (),
            surrogate=() if ratio == "none" else ("log_prob",),
            stopped=("reference_log_prob", "advantage"),
            time=("log_prob", "reference_log_prob", "mask"),
            extremes=lambda rng: [
                {"log_prob": FAR},
                {"reference_log_prob": FAR, "clip": float("inf")},
                {"advantage": np.full(G, 1e6)},
                {"log_prob": np.where(MASK, -1.0, np.nan)},
            ],
            name=f"a_lol_{ratio}",
        )
        for ratio in ("sequence", "token", "none")
    ),
]
test_contract = contract(CASES)


def gradient(loss, x):
    return jax.jit(jax.grad(lambda x: loss(x).sum()))(x)


def test_dft_takes_out_the_implicit_reward():
    """Fine-tuning is a policy gradient with reward 1 / p for the target; with DFT it is 1."""
    log_prob = jnp.log(jnp.array([0.01, 0.5, 1.0]))
    np.testing.assert_allclose(losses.dft(log_prob), -jnp.exp(log_prob) * log_prob, rtol=1e-6)
    np.testing.assert_allclose(gradient(losses.dft, log_prob), -jnp.exp(log_prob), rtol=1e-6)
    logits, target = jnp.array([0.3, -1.0, 0.5]), 1
    ours = jax.grad(lambda x: losses.dft(jax.nn.log_softmax(x)[target]))(logits)
    p = jax.nn.softmax(logits)
    # On-policy REINFORCE with reward 1 only for the target, in expectation.
    reinforce = lambda x: (
        p * losses.policy_gradient(jax.nn.log_softmax(x), jax.nn.one_hot(target, 3))
    ).sum()
    expected = jax.grad(reinforce)(logits)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_iw_sft_weights_by_the_ratio():
    p, ref = jnp.array([-1.0, -2.0, -0.1]), jnp.array([-1.5, -1.0, -9.0])
    weight = np.clip(np.exp(np.asarray(p - ref)), 0.5, 3)
    ours = losses.iw_sft(p, ref, 0.5, 3.0)
    np.testing.assert_allclose(ours, -weight * np.asarray(p), rtol=1e-6)
    np.testing.assert_allclose(
        gradient(lambda x: losses.iw_sft(x, ref, 0.5, 3.0), p), -weight, rtol=1e-6
    )


def test_iw_sft_approaches_the_best_policy_and_fine_tuning_does_not():
    """Three arms; the filtered data is p_ref times the success rate."""
    success = jnp.array([0.9, 0.5, 0.1])
    ref = jnp.log(jnp.array([0.2, 0.3, 0.5]))
    data = jnp.exp(ref) * success
    data = data / data.sum()

    def fit(loss):
        step = lambda i, x: x - jax.grad(lambda x: (data * loss(jax.nn.log_softmax(x))).sum())(x)
        return jax.nn.softmax(jax.lax.fori_loop(0, 200, step, ref))

    plain = fit(lambda x: -x)
    weighted = fit(lambda x: losses.iw_sft(x, ref))
    np.testing.assert_allclose(plain, data, atol=1e-3)
    assert (weighted * success).sum() > (plain * success).sum() + 0.1


@pytest.mark.parametrize("right", [1, 2, 3])
def test_on_policy_nft_is_grpo(right):
    with jax.enable_x64(True):
        log_prob = jnp.array(-np.random.default_rng(0).uniform(0.5, 1.5, (T, G)))
        correct = jnp.arange(G) < right
        rate = jnp.array([right / G])
        advantage = losses.group_relative(correct.astype(log_prob.dtype), epsilon=0.0)
        ours = gradient(
            lambda x: jnp.sqrt((1 - rate) / rate) * losses.nft(x, log_prob, correct, rate, 0.5),
            log_prob,
        )
        theirs = gradient(
            lambda x: losses.grpo(x, log_prob, log_prob, advantage, 0.2, 0.0), log_prob
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.slow
def test_nfts_optimum_is_the_policy_of_correct_answers():
    """The expected gradient is 0 at p_old c / q if answers are correct with probability c(a)."""
    with jax.enable_x64(True):
        old, c = jnp.array([0.2, 0.5, 0.3]), jnp.array([0.9, 0.4, 0.1])
        q = (old * c).sum()

        def expected_loss(log_p):
            right, wrong = (
                losses.nft(log_p[None], jnp.log(old)[None], jnp.array(x), q, 1e-6)
                for x in (True, False)
            )
            return (old * (c * right + (1 - c) * wrong)).sum()

        best = jnp.log(old * c / q)
        np.testing.assert_allclose(jax.grad(expected_loss)(best), 0, atol=1e-12)
        assert jnp.abs(jax.grad(expected_loss)(jnp.log(old))).max() > 0.05


def test_nft_still_has_a_gradient_beyond_the_bound():
    old, correct, q = jnp.log(0.1), jnp.array(False), 0.5
    value, slope = jax.value_and_grad(losses.nft)(jnp.log(0.3), old, correct, q, 0.2)
    np.testing.assert_allclose(value, -np.log(0.2), rtol=1e-5)  # (1 - 0.5 * 3) / 0.5 < 0.2
    np.testing.assert_allclose(slope, 0.5 * 3 / 0.5 / 0.2, rtol=1e-5)
    value = losses.nft(jnp.log(0.12), old, correct, q, 0.2)
    np.testing.assert_allclose(value, -np.log((1 - 0.5 * 1.2) / 0.5), rtol=1e-5)
    value = losses.nft(jnp.log(0.3), old, jnp.array(True), q, 0.2)
    np.testing.assert_allclose(value, -np.log(3), rtol=1e-5)


@pytest.mark.parametrize("ratio", ["sequence", "token", "none"])
def test_a_lol(ratio):
    rng = np.random.default_rng(0)
    p, ref = -rng.uniform(0.5, 1.5, (2, T, G))
    advantage, beta = np.array([1.0, 0.5, -1.0, 2.0]), 0.1
    value, slope = np.zeros(G), np.zeros((T, G))
    for g, n in enumerate(LENGTHS):
        log_ratio = (p - ref)[:n, g]
        weight = {
            "sequence": np.full(n, np.clip(np.exp(log_ratio.sum()), 0.1, 1.9)),
            "token": np.clip(np.exp(log_ratio), 0.1, 1.9),
            "none": np.ones(n),
        }[ratio]
        weight = weight * max(advantage[g], 0)
        value[g] = -(weight * p[:n, g]).sum() + beta * log_ratio.sum()
        slope[:n, g] = -weight + beta
    given = [jnp.float32(x) for x in (np.where(MASK, p, np.nan), ref, advantage)]
    loss = lambda x: losses.a_lol(x, *given[1:], 0.9, ratio, beta, jnp.array(MASK))
    np.testing.assert_allclose(loss(given[0]), value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient(loss, given[0]), slope, rtol=1e-4, atol=1e-6)


def test_a_lol_rejects_other_ratios():
    x = jnp.zeros((T, G))
    with pytest.raises(ValueError):
        losses.a_lol(x, x, jnp.ones(G), 0.2, "word")  # type: ignore[arg-type]
