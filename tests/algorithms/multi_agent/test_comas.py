"""CoMAS: interaction rewards, writers and cut utterances against loops over texts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import comas as module
from jaxrl.algorithms.multi_agent.comas import Config, comas, interaction_rewards
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.speakers import Speakers

A, R, TEXTS = 2, 2, 24
ENV = envs.make("discussed_sums", agents=A, rounds=R, shown=1)
END = len(ENV.vocabulary) - 1


def test_interaction_rewards():
    found = interaction_rewards(jnp.array([[[1, 2, 3, 0]]]))
    expected = [[0, 0.5, 1, 0], [1, 0.5, 0, 0], [0, 0, 0, -1]]
    np.testing.assert_allclose(found[0, 0], expected)


@pytest.fixture(scope="module")
def noisy_batch():
    """Texts by the expert, of whose tokens some are replaced, with the decisions as mask."""
    env = expert_channel(ENV)
    policy = add_noise(ENV, expert_policy(env), 0.15)
    source = Groups(prompts=TEXTS, answers=1).source(env)

    @jax.jit
    def play(key):
        state = source.init(key, {}, policy)
        return source.collect(state, policy, key)[1]

    batch = play(random.key(0))
    decision = batch.transitions.timestep.tokens["decision"]
    return dataclasses.replace(batch, mask=batch.mask & decision)


def test_each_agent_learns_what_it_wrote(noisy_batch, monkeypatch):
    seen, real = {}, module.on_answers

    def keep(env, config, judge, losses, learned, network):
        seen.update(judge=judge, learned=learned, network=network)
        return real(env, config, judge, losses, learned=learned, network=network)

    monkeypatch.setattr(module, "on_answers", keep)
    config = replace(Config(), {"recurrent": 8, "transformer": 1})
    module.recipe(ENV, config)
    assert len(seen["network"].speakers) == A and seen["network"].part == "agent"
    found = seen["judge"](type("Net", (), {"hyper": config}), noisy_batch)
    t, mask = noisy_batch.transitions, np.asarray(noisy_batch.mask)
    tokens = {name: np.asarray(x) for name, x in t.timestep.tokens.items()}
    action, done = np.asarray(t.action), np.asarray(t.done)
    score = np.asarray(t.next_timestep.privileged["judged"])
    learned, paid = np.zeros(mask.shape, bool), np.zeros(mask.shape)
    for b in range(TEXTS):
        end = done[:, b].argmax()
        for turn in range(3 * A * R):
            steps = np.flatnonzero(mask[:, b] & (tokens["turn"][:, b] == turn))
            number, stage, one = turn // (3 * A), turn // A % 3, turn % A
            s = score[end, b, number, one]
            values = ((s - 1) / 2, 1 - (s - 1) / 2, 0) if s else (0, 0, -1)
            paid[steps, b] = values[stage]
            learned[steps, b] = (action[steps, b] == END).any()
    assert (score[done] == 0).any() and (score[done] == 3).any()
    assert 0.4 < learned[mask].mean() < 0.98
    np.testing.assert_array_equal(np.asarray(found["target"]) > 0, learned)
    for agent in range(A):
        mine = learned & (tokens["agent"] == agent)
        assert paid[mine].std() > 0.1
        standard = (paid[mine] - paid[mine].mean()) / paid[mine].std()
        np.testing.assert_allclose(np.asarray(found["advantage"])[mine], standard, atol=2e-4)


def test_speakers_are_chosen_by_the_agent(noisy_batch):
    one = ActorCritic(ENV.observation_space, ENV.action_space, (8,), recurrent=8)
    both = Speakers((one, one.clone()), "agent")
    timestep = noisy_batch.transitions.timestep
    first = jax.tree.map(lambda x: x[0], timestep)
    params = both.init(random.key(1), first, both.initial(TEXTS))
    together = both.apply(params, timestep, both.initial(TEXTS), method="unroll")[0].logits
    agent = np.asarray(timestep.tokens["agent"])
    for i in range(A):
        mine = {"params": params["params"][f"speakers_{i}"]}
        alone = one.apply(mine, timestep, one.initial(TEXTS), method="unroll")[0].logits
        np.testing.assert_allclose(together[agent == i], alone[agent == i], atol=1e-6)


def test_environments_without_agents_are_refused():
    for name in ("posed_sums", "judged_sums"):
        with pytest.raises(UserError, match=f"'{name}' lacks"):
            comas(envs.make(name), Config())
    with pytest.raises(UserError):
        comas(ENV, replace(Config(), {"decoder.model": "nowhere"}))
