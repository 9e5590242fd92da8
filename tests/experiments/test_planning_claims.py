"""Measures and notes of claims about planning and models."""

import itertools

import jax.numpy as jnp
import numpy as np

from experiments.claims.planning._dreamer4 import COLUMNS, STEPS
from experiments.claims.planning.dreamer_4 import CLAIM
from experiments.claims.planning.shortcut_forcing import energy_score

FRAMES = np.eye(3, dtype=np.float32)  # three of equal probability


def expectation(*samples):
    """Return the mean energy score of all pairs of `samples` for all frames."""
    rows = [np.stack(x) for x in zip(*itertools.product(samples, samples, FRAMES), strict=True)]
    return float(energy_score(*map(jnp.asarray, rows)).mean())


def test_the_energy_score_is_best_for_the_true_distribution_not_for_its_mean_or_one_mode():
    true, blurred, collapsed = (
        expectation(*FRAMES),
        expectation(FRAMES.mean(0)),
        expectation(FRAMES[0]),
    )
    np.testing.assert_allclose(true, np.sqrt(2) / 3, rtol=1e-5)
    np.testing.assert_allclose(blurred, np.sqrt(2 / 3), rtol=1e-5)
    np.testing.assert_allclose(collapsed, np.sqrt(2) * 2 / 3, rtol=1e-5)
    assert true < blurred < collapsed


def test_what_dreamer_4s_notes_say_of_the_slippery_paddle_is_so():
    """Catch as a table: V[k, x] is the probability of a catch, paddle at k, ball above x."""
    slip, cells = 0.25, range(COLUMNS)
    happens = slip / 3 + (1 - slip) * np.eye(3)  # [chosen, done]
    moved = np.array([[min(max(k + a - 1, 0), COLUMNS - 1) for a in range(3)] for k in cells])
    expert = np.array([[1 + np.sign(x - k) for x in cells] for k in cells])
    player = np.where(np.eye(3, dtype=bool)[expert], 0, 1 / 2) / 2 + 1 / 6  # half not as an expert

    def catches(policy):
        """Return the mean over starts, and each step's Q[k, x, a]; of the best policy if None."""
        value, found = np.eye(COLUMNS), []
        for step in reversed(range(STEPS)):
            q = np.einsum("ab,kbx->kxa", happens, value[moved])
            found.insert(0, q)
            value = q.max(-1) if policy is None else (policy[step] * q).sum(-1)
        return value[COLUMNS // 2].mean(), found

    score, q = catches([player] * STEPS)
    cloned = [player * of_step for of_step in q]  # Bayes: actions given a catch after them
    cloned = [joint / np.maximum(joint.sum(-1, keepdims=True), 1e-12) for joint in cloned]
    likeliest = [np.eye(3)[policy.argmax(-1)] for policy in cloned]
    scores = [score, *(catches(policy)[0] for policy in (cloned, likeliest, None))]
    said = [f"{2 * score - 1:.2f}" for score in scores]
    assert said == ["-0.62", "0.16", "0.60", "0.75"]
    assert all(number in CLAIM.notes for number in said)
