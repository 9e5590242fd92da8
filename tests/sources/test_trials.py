"""Hyperparameters chosen by trials: the best one plays, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import metrics, random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.kit.state import State
from jaxrl.sources import best_of_trials, episodes

ENV = envs.make("judged_words", letters=2, length=2)
LOGITS = jnp.array([0.0, 3.0, -1.0])


def act(state, timestep, memory, key, greedy):
    logits = LOGITS / state.hyper["sampling.temperature"]
    action = jax.random.categorical(key, jnp.where(timestep.legal_actions, logits, -1e9))
    return action, memory, {"log_prob": jnp.zeros(action.shape)}


STATE = State({}, (), jnp.int32(0), jnp.float32(0), {"sampling.temperature": jnp.float32(1.0)})
POLICY = Policy(act, lambda n: (), STATE)


def share_of(letter):
    """Score a batch by how many of its letters are this one, beside the share itself."""

    def score(batch):
        written = batch.mask & batch.transitions.timestep.tokens["decision"]
        share = ((batch.transitions.action == letter) & written).sum() / written.sum()
        return share, {"share": share}

    return score


@pytest.mark.parametrize(
    ("letter", "best"), [(1, 0.1), pytest.param(0, 10.0, marks=pytest.mark.slow)]
)
def test_the_best_of_the_trials_plays(letter, best):
    """The likeliest letter is written most at a low temperature, another one at a high one."""
    source = episodes(ENV, 512)
    choose = best_of_trials(
        source,
        episodes(ENV, 64),
        "temperature",
        values=(1.0, best, 2.0),
        score=share_of(letter),
    )
    state = choose.init(random.key(0), {}, POLICY)
    state, batch, row = jax.jit(choose.collect)(state, POLICY, random.key(1))
    row = metrics.values(row)
    np.testing.assert_allclose(row["chosen_temperature"], best)
    np.testing.assert_allclose(row["score"], row["chosen_share"])
    share = batch.transitions.extras["share"]
    assert share.shape == batch.mask.shape and len(np.unique(share)) == 1
    np.testing.assert_allclose(share_of(letter)(batch)[0], row["score"], atol=0.1)
    assert choose.env_steps == 2 * 512 + 3 * 2 * 64 == int(batch.env_steps)
    assert STATE.hyper["sampling.temperature"] == 1


def test_what_cannot_be_is_refused():
    source, options = episodes(ENV, 2), {"values": (), "score": share_of(0)}
    with pytest.raises(UserError, match="must be a value of temperature"):
        best_of_trials(source, source, "temperature", **options)
