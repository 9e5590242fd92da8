"""StarPO-S: only the groups whose returns vary most are learned from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.starpo_s import starpo_s
from jaxrl.core import random
from jaxrl.core.types import Policy

SIZE, GROUPS = 4, 4
SETTINGS = {"prompts": GROUPS, "answers": SIZE, "keep": 0.5, "recurrent": 8, "transformer": 0}
SETTINGS |= {"optimizer.learning_rate": 0.01, "critic.learning_rate": 0.01}


@pytest.mark.slow
@pytest.mark.parametrize("advantage", ["critic", "group"])
def test_other_groups_have_no_influence(advantage):
    env = envs.make("guess_letter", letters=3, turns=2)
    config = starpo_s.complete_config(SETTINGS | {"advantage": advantage})
    agent, source = starpo_s.agent(env, config), starpo_s.source(env, config)
    state = agent.init(random.key(0), agent.hyper)
    policy = Policy(agent.act, agent.memory, state)
    held = source.init(random.key(1), {}, policy)
    _, batch, _ = jax.jit(source.collect)(held, policy, random.key(2))
    t, mask = batch.transitions, np.asarray(batch.mask)
    # Returns of the groups that vary by 0, 3, 1 and 2: the second and the last one are kept.
    spread = np.repeat([0.0, 3.0, 1.0, 2.0], SIZE) * np.tile([0, 1, 0, 1], GROUPS)
    reward = np.where(np.asarray(t.done) & mask, spread, 0).astype(np.float32)
    with_reward = lambda t, reward: dataclasses.replace(
        t, next_timestep=dataclasses.replace(t.next_timestep, reward=jnp.asarray(reward))
    )
    update = jax.jit(agent.update)

    def learn(columns):
        """Return the weights after an update in which these columns said something else."""
        said = np.asarray(t.action).copy()
        said[:, columns] = (said[:, columns] + 1) % 3
        changed = dataclasses.replace(with_reward(t, reward), action=jnp.asarray(said))
        new, info = update(state, dataclasses.replace(batch, transitions=changed), random.key(3))
        assert float(info.metrics["kept_deviation"]) == pytest.approx(1.25)
        return jnp.concatenate(
            [x.ravel() for x in jax.tree.leaves(new.parts["actor_critic"].params)]
        )

    plain = learn([])
    np.testing.assert_allclose(plain, learn([0, 1, 2, 3, 8, 9, 10, 11]), atol=1e-6)
    assert abs(plain - learn([4])).max() > 1e-4
