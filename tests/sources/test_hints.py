"""Groups with hints: which episodes are handed out, and what was read in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.guide_grpo import Guided
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.language.arithmetic import HINTED_VOCABULARY
from jaxrl.envs.wrappers.start_key import Params, start_key
from jaxrl.kit.groups import LinearTorso, Memory
from jaxrl.sources import episodes, with_hints
from jaxrl.tasks import hinted_starts

ENV, SIZE = envs.make("hinted_addition", digits=1, hint=2, high=3), 3
HIDDEN, END = (HINTED_VOCABULARY.index(token) for token in "?.")


def guesser():
    """Return a policy that writes digits up to 2 and ends at random."""
    network = policy_network(ENV, LinearTorso(), Memory(recurrent=8, transformer=1))
    timestep = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(random.key(5), 1), ENV.params
    )
    params = network.init(random.key(3), timestep[1], network.initial(1))

    def act(state, timestep, memory, key, greedy):
        policy, _, memory = network.apply(state, timestep, memory)
        forced = timestep.legal_actions.argmax(-1)
        guess = jax.random.choice(key, jnp.array([0, 1, 2, END]), forced.shape)
        action = jnp.where(timestep.tokens["decision"], guess, forced)
        return action, memory, {"log_prob": policy.log_prob(action)}

    return Policy(act, network.initial, params)


def test_hinted_episodes_replace_groups_that_fail():
    starts = hinted_starts(ENV.params, Params, SIZE)
    played = episodes(start_key(ENV), 48 * SIZE, starts)
    source = with_hints(played, SIZE)

    @jax.jit
    def play(key):
        policy = guesser()
        state = source.init(key, {}, policy)
        return played.collect(state, policy, key)[1], source.collect(state, policy, key)[1]

    whole, batch = play(random.key(0))
    t, own = whole.transitions, batch.transitions
    mask = np.asarray(whole.mask)
    returns = np.where(mask, t.reward, 0).sum(0).reshape(24, 2, SIZE)
    failed = (returns[:, 0] == 0).all(-1)
    assert 0 < failed.sum() < 24 and (returns[failed, 1] > 0).any()
    np.testing.assert_array_equal(own.extras["hinted"][0].reshape(24, SIZE)[:, 0], failed)
    first = np.asarray(t.timestep.observation)[0].reshape(24, 2, SIZE)
    assert (first[:, 0] == HIDDEN).all() and (first[:, 1] != HIDDEN).all()
    column = lambda p, g: (2 * p + int(failed[p])) * SIZE + g
    for p in range(24):
        for g in range(SIZE):
            here, there = p * SIZE + g, column(p, g)
            np.testing.assert_array_equal(batch.mask[:, here], mask[:, there])
            said = np.asarray(t.timestep.tokens["decision"])[:, there]
            for found, expected in (
                (own.action, t.action),
                (own.reward, t.reward),
                (own.extras["log_prob"], t.extras["log_prob"]),
            ):
                np.testing.assert_array_equal(found[said, here], expected[said, there])
            text = np.asarray(own.timestep.observation)[:, here]
            np.testing.assert_array_equal(text[:2], HIDDEN)
            np.testing.assert_array_equal(
                text[2:][mask[2:, there]],
                np.asarray(t.timestep.observation)[2:, there][mask[2:, there]],
            )
            forced = ~said & mask[:, there]
            np.testing.assert_array_equal(
                np.asarray(own.action)[forced, here],
                np.asarray(own.next_timestep.observation)[forced, here],
            )


def test_what_has_no_hints_is_refused():
    with pytest.raises(UserError, match="parameter 'hinted'"):
        Guided(prompts=2, answers=2).source(envs.make("addition"))
    with pytest.raises(UserError, match="do not form groups of 4"):
        hinted_starts(ENV.params, Params, 2).sample((), random.key(0), 6)
