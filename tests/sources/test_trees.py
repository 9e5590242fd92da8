"""Trees of texts: who shares which tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.kit.groups import LinearTorso, Memory
from jaxrl.sources import as_trees

ENV = envs.make("judged_words", letters=3, length=5)


def new_policy():
    network = policy_network(ENV, LinearTorso(), Memory(recurrent=8, transformer=1))
    timestep = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(random.key(5), 1), ENV.params
    )
    params = network.init(random.key(3), timestep[1], network.initial(1))

    def act(state, timestep, memory, key, greedy):
        policy, _, memory = network.apply(state, timestep, memory)
        action = policy.sample(seed=key)
        return action, memory, {"log_prob": policy.log_prob(action)}

    return Policy(act, network.initial, params)


def test_paths_share_their_beginnings_and_part_at_the_nodes():
    branching, segment = (2, 3), 2
    source = as_trees(Groups(prompts=8, answers=6).source(ENV), branching, segment)

    @jax.jit
    def play(key):
        policy = new_policy()
        return source.collect(source.init(key, {}, policy), policy, key)[1]

    batch = play(random.key(0))
    t, mask = batch.transitions, np.asarray(batch.mask)
    decision = mask & np.asarray(t.timestep.tokens["decision"])
    written = np.cumsum(decision, 0) - decision
    level = np.minimum(written // segment, 1)
    np.testing.assert_array_equal(np.asarray(t.extras["level"])[mask], level[mask])
    path = np.arange(48) % 6
    leads = np.where(level == 0, path % 3 == 0, True)
    np.testing.assert_array_equal(np.asarray(t.extras["leads"])[mask], leads[mask])
    action, log_prob = np.asarray(t.action), np.asarray(t.extras["log_prob"])
    same = parted = 0
    for b in range(48):
        first = b - b % 3  # the first path through the same node of level 1
        for step in np.flatnonzero(decision[:, b]):
            if level[step, b] == 0:
                assert action[step, b] == action[step, first]
                np.testing.assert_allclose(log_prob[step, b], log_prob[step, first], rtol=1e-5)
                same += b != first
            else:
                parted += action[step, b] != action[step, first]
    assert same > 10 and parted > 10
    begins = action.reshape(-1, 8, 2, 3)[1, :, :, 0]  # the first letters of both segments
    assert (begins[:, 0] != begins[:, 1]).any()


def test_trees_part_where_an_utterance_begins():
    env = envs.make("guarded_requests", letters=3, length=2)
    source = as_trees(Groups(prompts=4, answers=6).source(env), (2, 3), (0, 1))

    def act(state, timestep, memory, key, greedy):
        logits = jnp.where(timestep.legal_actions, 0.0, -jnp.inf)
        return jax.random.categorical(key, logits), memory, {}

    policy = Policy(act, lambda n: (), ())
    batch = jax.jit(lambda key: source.collect(source.init(key, {}, policy), policy, key)[1])(
        random.key(0)
    )
    t = batch.transitions
    turn = np.asarray(t.timestep.tokens["turn"])
    np.testing.assert_array_equal(np.asarray(t.extras["level"]), turn)
    leads = np.where(turn == 0, np.arange(24) % 3 == 0, True)
    np.testing.assert_array_equal(np.asarray(t.extras["leads"]), leads)
    attack = np.asarray(t.action)[turn[:, 0] == 0].reshape(-1, 4, 2, 3)
    assert (attack == attack[..., :1]).all() and (attack[:, :, 0] != attack[:, :, 1]).any()
    defense = np.asarray(t.action)[turn[:, 0] == 1].reshape(-1, 4, 2, 3)
    assert (defense != defense[..., :1]).any()


WRONG = [((2, 0), 1), ((2,), 0), ((), 1), ((5,), 1)]
WRONG += [((2, 3), (0,)), ((2, 3), (1, 2)), ((2, 3), (0, 0))]


@pytest.mark.parametrize(("branching", "segment"), WRONG)
def test_what_is_no_tree_is_refused(branching, segment):
    with pytest.raises(UserError, match=r"at least 1|do not form trees|must name an utterance"):
        as_trees(Groups(prompts=2, answers=6).source(ENV), branching, segment)
