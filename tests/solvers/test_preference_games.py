import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract


def game(rng, *names):
    score = rng.normal(size=(4, 4))
    x = {name: rng.normal(size=4) for name in names}
    return {"preference": 1 / (1 + np.exp(score.T - score)), **x}


def step(rng):
    return game(rng, "logits", "reference_logits") | {"eta": 0.5, "beta": 0.1}


def peaked_inputs(rng):
    return [{"logits": np.array([1e3, 0, 0, 0])}, {"reference_logits": np.array([1e3, 0, 0, 0])}]


EVERY = ("preference", "logits", "reference_logits")
CASES = [
    Case(
        solvers.geometric_mixture,
        lambda rng: {
            "logits": rng.normal(size=4),
            "reference_logits": rng.normal(size=4),
            "weight": 0.3,
        },
        gradient=("logits", "reference_logits"),
        extremes=peaked_inputs,
    ),
    Case(
        solvers.preference_gap,
        lambda rng: game(rng, "logits", "reference_logits") | {"beta": 0.5},
        gradient=EVERY,
        extremes=peaked_inputs,
    ),
    Case(
        solvers.preference_mirror_step,
        lambda rng: (
            game(rng, "logits", "opponent_logits", "reference_logits") | {"eta": 0.5, "beta": 0.1}
        ),
        gradient=(*EVERY, "opponent_logits"),
        extremes=peaked_inputs,
    ),
    *(
        Case(function, step, gradient=EVERY, extremes=peaked_inputs)
        for function in (solvers.nash_md, solvers.egpo, solvers.nash_mirror_prox)
    ),
]
test_contract = contract(CASES)


def cyclic(n=10, strength=0.4):
    """Cyclic preferences: a response beats those slightly ahead on a circle; none is best."""
    ahead = (np.arange(n)[None] - np.arange(n)[:, None]) % n
    return jnp.asarray(0.5 + strength * np.sin(2 * np.pi * ahead / n))


def last_gap(function, steps, *more):
    """Return the gap of the last iterate, in float64."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        preference, logits = cyclic(), jnp.asarray(rng.normal(size=10))
        reference = jnp.asarray(rng.normal(size=10))
        eta, beta = more or (2.0, 0.05)
        run = jax.lax.fori_loop(
            0, steps, lambda _, x: function(preference, x, reference, eta, beta), logits
        )
        return float(solvers.preference_gap(preference, run, reference, beta))


def mirror_descent(preference, logits, reference, eta, beta):
    return solvers.preference_mirror_step(preference, logits, logits, reference, eta, beta)


def test_looking_ahead_converges_where_plain_mirror_descent_cycles():
    """Ten responses, beta 0.05, eta 2, 100 iterations."""
    assert last_gap(mirror_descent, 100) > 1e-4
    assert last_gap(solvers.egpo, 100) < 1e-10
    assert last_gap(solvers.nash_mirror_prox, 100) < 1e-9
    assert 1e-3 < last_gap(solvers.nash_mirror_prox, 10) < 1e-1


def test_nash_mirror_descent_approaches_the_equilibrium_with_smaller_steps():
    coarse, fine = (
        last_gap(solvers.nash_md, 300, 1.0, 0.2),
        last_gap(solvers.nash_md, 3000, 0.1, 0.2),
    )
    assert fine < 3e-5 and fine < coarse / 30


def test_nash_mirror_descent_by_hand():
    x = {k: np.asarray(v) for k, v in step(np.random.default_rng(0)).items()}
    policy, reference = (np.exp(x[k]) / np.exp(x[k]).sum() for k in EVERY[1:])
    mixture = policy**0.95 * reference**0.05
    mixture /= mixture.sum()
    expected = mixture * np.exp(0.5 * x["preference"] @ mixture)
    np.testing.assert_allclose(jnp.exp(solvers.nash_md(**x)), expected / expected.sum(), rtol=1e-5)


@pytest.mark.slow
def test_mirror_prox_solves_its_proximal_problem():
    x = {k: jnp.asarray(v) for k, v in step(np.random.default_rng(0)).items()}
    preference, beta, eta = x["preference"], 0.3, 2.0

    def objective(logits, opponent):
        p = jax.nn.softmax(logits)
        wins = p @ preference @ jax.nn.softmax(opponent)
        near = losses.categorical_kl(logits, x["reference_logits"])
        return eta * (wins - beta * near) - losses.categorical_kl(logits, x["logits"])

    # An EGPO step of this size equals two proximal steps, the first against itself.
    half = solvers.preference_mirror_step(
        preference, x["logits"], x["logits"], x["reference_logits"], eta / (1 + eta * beta), beta
    )
    np.testing.assert_allclose(jax.grad(objective)(half, x["logits"]), 0, atol=1e-5)
    full = solvers.nash_mirror_prox(preference, x["logits"], x["reference_logits"], eta, beta)
    np.testing.assert_allclose(jax.grad(objective)(full, half), 0, atol=1e-5)


def test_the_gap_is_that_of_the_best_response():
    x = {k: jnp.asarray(v) for k, v in step(np.random.default_rng(1)).items()}
    preference, logits, reference = (x[name] for name in EVERY)
    values = preference @ jax.nn.softmax(logits)
    best = solvers.mirror_descent(reference, values, 1 / 0.3)

    def payoff(p, q):
        wins = jax.nn.softmax(p) @ preference @ jax.nn.softmax(q)
        return wins - 0.3 * (
            losses.categorical_kl(p, reference) - losses.categorical_kl(q, reference)
        )

    gap = payoff(best, logits) - payoff(logits, best)
    np.testing.assert_allclose(solvers.preference_gap(*(x[n] for n in EVERY), 0.3), gap, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(payoff)(best, logits), 0, atol=1e-6)


def test_the_gap_approaches_that_of_the_game_without_a_reference():
    x = {k: jnp.asarray(v) for k, v in step(np.random.default_rng(1)).items()}
    policy = jax.nn.softmax(x["logits"])
    free = solvers.duality_gap(x["preference"] - 0.5, policy, policy)
    gap = solvers.preference_gap(x["preference"], x["logits"], x["reference_logits"], 1e-4)
    np.testing.assert_allclose(gap, free, rtol=1e-2)


def test_a_geometric_mixture_lies_between():
    a, b = jnp.array([1.0, 0.0, -2.0]), jnp.array([0.0, 3.0, 1.0])
    p, q = jax.nn.softmax(a), jax.nn.softmax(b)
    expected = p**0.7 * q**0.3
    ours = jnp.exp(solvers.geometric_mixture(a, b, 0.3))
    np.testing.assert_allclose(ours, expected / expected.sum(), rtol=1e-5)
