import jax
import jax.numpy as jnp
import numpy as np

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

B, D, N = 4, 3, 5


def ensemble(rng):
    return {"mean": rng.normal(size=(B, D, N)), "scale": rng.uniform(0.5, 1.5, (B, D, N))}


SAME = {"mean": np.ones((B, D, N))}
FAR = {"mean": np.full((B, D, N), 1e10)}
CASES = [
    Case(
        losses.max_aleatoric,
        lambda rng: {"scale": ensemble(rng)["scale"]},
        gradient=("scale",),
        extremes=lambda rng: [{"scale": np.zeros((B, D, N))}],
    ),
    Case(
        losses.max_pairwise_difference,
        lambda rng: {"mean": ensemble(rng)["mean"]},
        gradient=("mean",),
        extremes=lambda rng: [SAME, FAR, {"mean": np.ones((B, D, 1))}],
    ),
    Case(
        losses.ensemble_variance, ensemble, gradient=("mean", "scale"), extremes=lambda rng: [SAME]
    ),
    Case(
        losses.ensemble_deviation,
        ensemble,
        gradient=("mean", "scale"),
        extremes=lambda rng: [FAR, {**SAME, "scale": np.zeros((B, D, N))}],
    ),
    Case(
        losses.leave_one_out_kl,
        ensemble,
        gradient=("mean", "scale"),
        extremes=lambda rng: [SAME, {"scale": np.full((B, D, N), 1e-8)}, FAR],
    ),
    Case(
        losses.pessimistic_reward,
        lambda rng: {"reward": rng.normal(size=B), "penalty": rng.uniform(0, 1, B), "beta": 2.0},
        gradient=("reward", "penalty"),
    ),
]
test_contract = contract(CASES)


def test_penalties_by_loops_over_members():
    with jax.enable_x64(True):
        x = ensemble(np.random.default_rng(0))
        mean, scale = x.values()
        rows = range(B)
        members = range(N)
        norm = np.linalg.norm
        np.testing.assert_allclose(
            losses.max_aleatoric(jnp.asarray(scale)),
            [max(norm(scale[b, :, n]) for n in members) for b in rows],
        )
        np.testing.assert_allclose(
            losses.max_pairwise_difference(jnp.asarray(mean)),
            [
                max(norm(mean[b, :, i] - mean[b, :, j]) for i in members for j in members)
                for b in rows
            ],
        )
        second = (scale**2 + mean**2).mean(-1)
        np.testing.assert_allclose(
            losses.ensemble_variance(jnp.asarray(mean), jnp.asarray(scale)),
            (second - mean.mean(-1) ** 2).sum(-1),
        )
        np.testing.assert_allclose(
            losses.ensemble_deviation(jnp.asarray(mean), jnp.zeros((B, D, N))),
            np.sqrt(mean.var(-1).sum(-1)),
        )
        np.testing.assert_allclose(
            losses.ensemble_disagreement(jnp.asarray(mean[:, 0])), mean[:, 0].var(-1)
        )


def test_total_variance_is_that_of_samples_of_the_mixture():
    rng = np.random.default_rng(0)
    mean, scale = (x[0] for x in ensemble(rng).values())
    samples = mean[..., None] + scale[..., None] * rng.normal(size=(D, N, 100_000))
    ours = losses.ensemble_variance(jnp.float32(mean), jnp.float32(scale))
    np.testing.assert_allclose(ours, samples.reshape(D, -1).var(-1).sum(), rtol=1e-2)


def test_leave_one_out_by_loops():
    with jax.enable_x64(True):
        mean, scale = ensemble(np.random.default_rng(0)).values()
        ours = losses.leave_one_out_kl(jnp.asarray(mean), jnp.asarray(scale))
        for b in range(B):
            for n in range(N):
                m, s = np.delete(mean[b], n, -1), np.delete(scale[b], n, -1)
                rest_mean = m.mean(-1)
                rest_variance = (s**2 + m**2).mean(-1) - rest_mean**2
                p, q = mean[b, :, n], scale[b, :, n]
                kl = (
                    np.log(np.sqrt(rest_variance) / q)
                    + (q**2 + (p - rest_mean) ** 2) / (2 * rest_variance)
                    - 0.5
                ).sum()
                np.testing.assert_allclose(ours[b, n], kl, rtol=1e-9)


def test_leave_one_out_finds_the_odd_one_and_does_not_lose_precision_far_from_zero():
    mean = jnp.zeros((D, N)).at[:, 2].set(3.0)
    scale = jnp.ones((D, N))
    near = losses.leave_one_out_kl(mean, scale)
    assert near.argmax() == 2 and near[2] > 5 * near[0]
    np.testing.assert_allclose(losses.leave_one_out_kl(mean + 1e4, scale), near, rtol=1e-3)


def test_pessimistic_reward():
    assert losses.pessimistic_reward(jnp.float32(1), jnp.float32(3), 0.5) == -0.5
