"""Self-RedTeam: what each role's tokens are paid, against loops over texts."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.self_redteam import Config, self_redteam
from jaxrl.algorithms.tokens.shared.turns import to_come_in_turns
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition


def batch_of(turn, reward):
    none = np.zeros(turn.shape, bool)
    step = TimeStep(none, jnp.float32(reward), none, none, none, tokens={"turn": jnp.asarray(turn)})
    mask = jnp.ones(turn.shape, bool)
    return Batch(Transition(step, turn, step, (), {}), jnp.float32(0), mask=mask)


def test_rewards_to_come_end_with_an_utterance():
    rng = np.random.default_rng(0)
    turn = np.sort(rng.integers(0, 3, (9, 20)), 0)
    reward, paid = rng.normal(size=(9, 20)), rng.normal(size=(3, 20))
    found = np.asarray(to_come_in_turns(batch_of(turn, reward), jnp.float32(paid)))
    for b in range(20):
        for t in range(9):
            same = turn[t:, b] == turn[t, b]
            expected = reward[t:, b][same].sum() + paid[turn[t, b], b]
            assert found[t, b] == pytest.approx(expected, abs=1e-5)


def test_environments_without_roles_are_refused():
    with pytest.raises(UserError, match="'lookup' lacks"):
        self_redteam(envs.make("lookup"), Config())
    env = envs.make("guarded_requests")
    small = dataclasses.replace(Config(), groups=dataclasses.replace(Config().groups, prompts=3))
    with pytest.raises(UserError, match="3"):
        self_redteam(env, small)
