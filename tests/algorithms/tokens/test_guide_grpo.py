"""Guide-GRPO: the loss against NumPy."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.tokens import guide_grpo
from jaxrl.algorithms.tokens.shared.answers import Evaluation, Sample


def test_hinted_answers_have_a_shaped_ratio_and_others_a_clipped_one(monkeypatch):
    rng = np.random.default_rng(0)
    now, old, advantage = rng.normal(size=(3, 4, 6)).astype(np.float32)
    hinted = np.array([0, 0, 0, 1, 1, 1.0]) * np.ones((4, 1))
    known = Evaluation(jnp.asarray(now), jnp.zeros((4, 6)), jnp.zeros(()), None)
    monkeypatch.setattr(guide_grpo, "evaluate", lambda net, x: known)
    zero: Any = jnp.zeros((4, 6))
    x = Sample(None, None, *map(jnp.asarray, (old, old, advantage)), target=jnp.asarray(hinted))
    hyper = SimpleNamespace(clip=0.2, shaping=0.5, entropy_weight=0.0)
    net: Any = SimpleNamespace(hyper=hyper)
    output = guide_grpo.guide_loss.function(net, x)
    found = output.value + zero
    ratio = np.exp(now - old)
    clipped = -np.minimum(advantage * ratio, advantage * np.clip(ratio, 0.8, 1.2))
    expected = np.where(hinted > 0, -advantage * ratio / (ratio + 0.5), clipped)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    drift = np.asarray(output.drift)  # of the policy, not of what the hint changes
    assert (drift[hinted > 0] == 0).all() and (drift[hinted == 0] > 0).all()
    np.testing.assert_array_equal(output.metrics["approximate_kl"], drift)
