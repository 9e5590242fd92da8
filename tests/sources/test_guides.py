"""A guide writes the beginning or the end of an answer, and the policy the rest."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import episodes, with_guide

ENV = expert_channel(envs.make("addition", digits=3))
LONGEST = 3


def play(**settings):
    source = with_guide(episodes(ENV, 1024), expert_policy(ENV), LONGEST, **settings)
    policy = random_policy(ENV)
    state = source.init(random.key(0), {}, policy)
    batch = jax.jit(lambda state: source.collect(state, policy, random.key(1)))(state)[1]
    t, mask = jax.tree.map(np.asarray, (batch.transitions, batch.mask))
    decision = mask & t.timestep.tokens["decision"]
    expert = t.action == t.timestep.privileged["expert_action"]
    return decision, t.extras["guided"] & decision, expert


@pytest.mark.parametrize("completes", [0.0, 1.0])
def test_the_guide_writes_one_part(completes):
    decision, guide, expert = play(completes=completes)
    assert expert[guide].all() and expert[decision & ~guide].mean() < 0.3
    number = np.cumsum(decision, 0) - 1
    share = lambda n: (guide & (number == n)).any(0)[(decision & (number == n)).any(0)].mean()
    expected = [2 / 3, 1 / 3, 0.0] if completes == 0 else [1 / 3, 2 / 3, 1.0]
    np.testing.assert_allclose([share(n) for n in range(3)], expected, atol=0.06)
    order = np.where(decision, guide, np.nan)
    for column in order.T[:200]:
        row = column[~np.isnan(column)]
        np.testing.assert_array_equal(row, np.sort(row) if completes else np.sort(row)[::-1])


def test_some_answers_have_no_guide():
    _, guide, _ = play(share=0.3, completes=1.0)
    assert 0.2 < guide.any(0).mean() < 0.4
    assert not play(share=0.0)[1].any()


def test_a_switch_that_cannot_be_is_refused():
    with pytest.raises(UserError, match="longest is 0"):
        with_guide(episodes(ENV, 4), expert_policy(ENV), 0)


def test_counts_stay_int32_in_double_precision():
    with jax.enable_x64(True):
        source = with_guide(episodes(ENV, 4), expert_policy(ENV), LONGEST)
        policy = random_policy(ENV)
        state = source.init(random.key(0), {}, policy)
        assert "guided" in source.collect(state, policy, random.key(1))[1].transitions.extras
