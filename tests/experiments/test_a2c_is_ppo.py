"""A2C written out on its own, A2C and PPO: the same parameters."""

import jax
import pytest

from experiments.claims.policy_gradient import a2c_is_ppo
from jaxrl.core import random


@pytest.mark.slow
def test_a2c_is_ppo_as_long_as_there_is_one_epoch():
    names = ("A2C of jaxrl", "PPO with matched settings", "two epochs")
    with jax.enable_x64(True):
        found = a2c_is_ppo.differences(random.key(1), names)
    assert max(found[name] for name in names[:2]) <= a2c_is_ppo.CLAIM.tolerance
    assert found["two epochs"] > a2c_is_ppo.CLAIM.effect
