"""Recordings: whole episodes of players of mixed skill, the given share of them labeled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.planning.shared.dreamer4 import Data
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.pixels.catch import catch
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import recordings
from tests.envs.wrappers.environments import arm

ENV = catch(rows=4, columns=5)
NOBODY = Policy(lambda *_: ((), (), {}), lambda n: (), ())
COUNT, BATCH = 400, 256


def draw(data, **hyper):
    environment = data.source(ENV)

    @jax.jit
    def run(key):
        state = environment.init(key, {**environment.hyper, **hyper}, NOBODY)
        state, fresh, _ = environment.collect(state, NOBODY, key)
        return state, environment.sample(state, fresh, random.key(1))

    return jax.tree.map(np.asarray, run(random.key(0)))


@pytest.mark.slow
def test_batches_are_whole_episodes_half_of_them_labeled():
    state, batch = draw(Data(COUNT, BATCH, labeled=0.1))
    t = batch.transitions
    assert t.reward.shape == (3, BATCH) and batch.env_steps == state.batches == 1
    assert t.first[0].all() and not t.first[1:].any() and t.terminated[-1].all()
    assert batch.mask.all()
    np.testing.assert_array_equal(t.observation[1:], t.next_observation[:-1])
    assert t.timestep.privileged is None and t.next_timestep.privileged is None
    whole = state.whole.transitions.extras["labeled"]
    np.testing.assert_array_equal(whole, np.broadcast_to(np.arange(COUNT) < 40, (3, COUNT)))
    told = t.extras["labeled"]
    assert told[:, ::2].all() and (told[0] == told).all()
    assert 0 < told[0, 1::2].mean() < 0.3
    # Another share changes which episodes are labeled, and not the episodes.
    other, _ = draw(Data(COUNT, BATCH), **{"data.labeled": jnp.float32(0.5)})
    np.testing.assert_array_equal(
        other.whole.transitions.observation, state.whole.transitions.observation
    )
    assert other.whole.transitions.extras["labeled"][0].sum() == 200


@pytest.mark.parametrize("skills", [(1.0,), (0.0,), (-1.0,), (0.25, 1.0)])
def test_players_have_the_skills_that_were_given(skills):
    t = draw(Data(COUNT, 1, skills))[0].whole.transitions
    # The ball falls for 3 steps; the expert moves until it is under the ball, and then stays.
    ball, paddle = t.observation[..., :-1, :, 0].any(-2), t.observation[..., -1, :, 0]
    advice = 1 + np.sign(ball.argmax(-1) - paddle.argmax(-1))
    alike = (t.action == advice).mean(0)
    expected = np.mean([max(s, 0) + (1 - abs(s)) / 3 for s in skills])
    np.testing.assert_allclose(alike.mean(), expected, atol=0.04)
    if (
        len(skills) == 2
    ):  # a player keeps the skill for an episode, so about half of them are without fault
        assert 0.45 < (alike == 1).mean() < 0.7


def test_bad_settings():
    env = expert_channel(ENV)
    players = mixed_skill(env, (0.5,))
    for make, what in (
        (lambda: recordings(env, players, 0, 1), "count of recordings must be at least 1"),
        (lambda: recordings(env, players, 1, 1, 1.5), "labeled is 1.5; it must be a share"),
        (lambda: mixed_skill(env, (1.5,)), "skills must be probabilities"),
        (lambda: mixed_skill(arm(), (0.5,)), "expert_channel"),
    ):
        with pytest.raises(UserError, match=what):
            make()
