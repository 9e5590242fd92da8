"""What checks of planning and of models measure by."""

import itertools

import jax.numpy as jnp
import numpy as np

from experiments.systems.models_and_planning.shortcut_forcing import energy_score

FRAMES = np.eye(3, dtype=np.float32)  # three that are alike probable


def expected(*samples):
    """The mean energy score of all pairs of `samples` for all frames."""
    rows = [np.stack(x) for x in zip(*itertools.product(samples, samples, FRAMES), strict=True)]
    return float(energy_score(*map(jnp.asarray, rows)).mean())


def test_the_energy_score_is_best_for_the_true_distribution_not_for_its_mean_or_one_mode():
    true, blurred, collapsed = expected(*FRAMES), expected(FRAMES.mean(0)), expected(FRAMES[0])
    np.testing.assert_allclose(true, np.sqrt(2) / 3, rtol=1e-5)
    np.testing.assert_allclose(blurred, np.sqrt(2 / 3), rtol=1e-5)
    np.testing.assert_allclose(collapsed, np.sqrt(2) * 2 / 3, rtol=1e-5)
    assert true < blurred < collapsed
