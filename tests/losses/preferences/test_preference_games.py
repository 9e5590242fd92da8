import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract
from tests.solvers.test_preference_games import cyclic

PAIR = ("chosen_log_prob", "rejected_log_prob")
FROZEN = tuple(f"{x}_{y}_log_prob" for x in ("chosen", "rejected") for y in ("old", "reference"))


def log_probs(rng, *names):
    return {name: -rng.uniform(1, 3, 5) for name in names}


def win_rates(rng, *names):
    return {name: rng.uniform(size=5) for name in names}


CASES = [
    Case(
        losses.preference_score,
        lambda rng: {x: rng.normal(size=(5, 4)) for x in ("embedding", "other_embedding")},
        gradient=("embedding", "other_embedding"),
        extremes=lambda rng: [{"embedding": np.full((5, 4), 1e6)}],
    ),
    Case(
        losses.general_preference,
        lambda rng: {x: rng.normal(size=(5, 4)) for x in ("embedding", "other_embedding")},
        gradient=("embedding", "other_embedding"),
        extremes=lambda rng: [{"embedding": np.full((5, 4), 1e6)}],
    ),
    Case(
        losses.sppo,
        lambda rng: (
            log_probs(rng, "log_prob", "old_log_prob") | win_rates(rng, "win_rate") | {"eta": 2.0}
        ),
        gradient=("log_prob",),
        stopped=("old_log_prob", "win_rate"),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}],
    ),
    Case(
        losses.inpo,
        lambda rng: log_probs(rng, *PAIR, *FROZEN) | {"eta": 0.5, "beta": 0.2},
        gradient=PAIR,
        stopped=FROZEN,
        extremes=lambda rng: [{PAIR[0]: np.full(5, -500.0)}],
    ),
    Case(
        losses.online_ipo,
        lambda rng: (
            log_probs(
                rng, "log_prob", "other_log_prob", "reference_log_prob", "other_reference_log_prob"
            )
            | win_rates(rng, "win_rate", "other_win_rate")
            | {"beta": 0.5}
        ),
        gradient=("log_prob", "other_log_prob"),
        stopped=(
            "reference_log_prob",
            "other_reference_log_prob",
            "win_rate",
            "other_win_rate",
        ),
        extremes=lambda rng: [{"log_prob": np.full(5, -500.0)}],
    ),
]
test_contract = contract(CASES)


def test_a_general_preference_is_bradley_terry_in_one_plane_and_a_cycle_in_another():
    rating = np.array([0.3, -1.0, 2.0])
    embedding = np.stack([rating, np.ones(3)], -1)
    rows, columns = (np.broadcast_to(np.expand_dims(embedding, i), (3, 3, 2)) for i in (1, 0))
    found = losses.general_preference(rows, columns)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(rating - rating[:, None])), rtol=1e-5)
    # The corners of a triangle: each is preferred to the next, by the same odds.
    angle = 2 * np.pi * np.arange(3) / 3
    corner = 2 * np.stack([np.cos(angle), np.sin(angle)], -1)
    wins = losses.general_preference(corner, np.roll(corner, -1, 0))
    np.testing.assert_allclose(wins, 1 / (1 + np.exp(-4 * np.sin(2 * np.pi / 3))), rtol=1e-5)


def test_a_preference_score_is_a_skew_symmetric_form():
    one, other = np.random.default_rng(0).normal(size=(2, 7, 6)).astype(np.float32)
    block = np.array([[0, 1], [-1, 0]])
    expected = np.einsum("ni,ij,nj->n", one, np.kron(np.eye(3), block), other)
    found = losses.preference_score(one, other)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_array_equal(found, -losses.preference_score(other, one))  # to the last bit
    np.testing.assert_array_equal(losses.preference_score(one, one), 0)
    np.testing.assert_allclose(
        losses.general_preference(one, other), 1 / (1 + np.exp(-expected)), rtol=1e-4
    )


def test_inpo_is_ipo_without_old_policy():
    x = log_probs(np.random.default_rng(0), *PAIR, *FROZEN)
    rest = [x[name] for name in (*PAIR, "chosen_reference_log_prob", "rejected_reference_log_prob")]
    np.testing.assert_allclose(
        losses.inpo(**x, eta=0.3, beta=0.3), losses.ipo(*rest, 0.3), rtol=1e-5
    )


PREFERENCE = cyclic(4, 0.3)
REFERENCE, OLD = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.1, 0.4]]))
FIRST, SECOND = (x.ravel() for x in np.indices((4, 4)))


def test_inpo_takes_a_mirror_descent_step_from_labeled_pairs_alone():
    """Use pairs of the old policy, ordered by preference, with inverse step size 0.5."""
    old = jnp.exp(OLD)
    weight = old[FIRST] * old[SECOND] * PREFERENCE[FIRST, SECOND]

    def loss(logits):
        p = jax.nn.log_softmax(logits)
        pairs = (x[i] for x in (p, OLD, REFERENCE) for i in (FIRST, SECOND))
        return (weight * losses.inpo(*pairs, 0.5, 0.2)).sum()

    best = solvers.preference_mirror_step(PREFERENCE, OLD, OLD, REFERENCE, 2.0, 0.2)
    np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-5)
    assert abs(jax.grad(loss)(OLD)).max() > 1e-2


def online(logits, wins, others):
    p = jax.nn.log_softmax(logits)
    pairs = (x[i] for x in (p, REFERENCE) for i in (FIRST, SECOND))
    return losses.online_ipo(*pairs, wins, others, 0.2)


def test_a_gradient_step_on_online_ipo_is_a_step_of_the_game():
    """Use uniform pairs against an opponent's samples, with step size eta * beta * A / 4."""
    wins = PREFERENCE @ jnp.exp(OLD)
    logits = jnp.array([0.3, -0.2, 0.5, 0.0])
    gradient = jax.grad(lambda x: online(x, wins[FIRST], wins[SECOND]).mean())(logits)
    ours = jax.nn.log_softmax(logits - 1.5 * 0.2 * 4 / 4 * gradient)
    expected = solvers.preference_mirror_step(PREFERENCE, logits, OLD, REFERENCE, 1.5, 0.2)
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_online_ipo_on_its_own_pairs_rests_at_the_equilibrium():
    """Pairs of the policy, preference against 1/2, have no gradient at the equilibrium."""
    logits = REFERENCE
    for _ in range(300):
        logits = solvers.egpo(PREFERENCE, logits, REFERENCE, 1.0, 0.2)
    policy = jnp.exp(logits)
    weight = policy[FIRST] * policy[SECOND]

    def loss(x):
        return (weight * online(x, PREFERENCE[FIRST, SECOND], 0.5)).sum()

    np.testing.assert_allclose(jax.grad(loss)(logits), 0, atol=1e-5)


@pytest.mark.parametrize(("wins", "sign"), [(0.9, -1), (0.2, 1)])
def test_sppo_moves_each_sequence_by_its_own_win_rate(wins, sign):
    at_old = jax.grad(losses.sppo)(-2.0, -2.0, wins, 3.0)
    np.testing.assert_allclose(at_old, -2 * 3 * (wins - 0.5), rtol=1e-5)
    assert np.sign(at_old) == sign
    np.testing.assert_allclose(
        losses.sppo(-1.0, -2.0, wins, 3.0), (1 - 3 * (wins - 0.5)) ** 2, rtol=1e-4
    )
