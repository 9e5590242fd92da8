"""Search self-play: rewards and roles against loops over texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import ssp as module
from jaxrl.algorithms.multi_agent.ssp import Config, proposer_reward, ssp
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel

SIZES = {"entities": 4, "relations": 1, "hops": 1, "noise": 1}
ENV = envs.make("posed_lookups", **SIZES)


def test_rewards_of_questions():
    rate, counts = jnp.array([0.0, 0.25, 1.0, 0.25]), jnp.array([True, True, True, False])
    h = replace(Config(), {"invalid_reward": -0.5})
    for kind, expected in {
        "failures": [1, 0.75, 0, -0.5],
        "intermediate": [0, 0.75, 0, -0.5],
    }.items():
        np.testing.assert_allclose(proposer_reward(h, rate, counts, kind), expected, atol=1e-6)


def noisy_texts(config):
    """Return a batch of texts by the expert, of whose tokens some are replaced."""
    env = expert_channel(ENV)
    noisy = add_noise(ENV, expert_policy(env), 0.06)

    def act(state, timestep, memory, key, greedy):
        action, memory, extras = noisy.act(state, timestep, memory, key, greedy)
        return action, memory, {**extras, "log_prob": jnp.zeros(action.shape)}

    policy = Policy(act, noisy.memory, noisy.state)
    source = module.source(env, config)
    return jax.jit(lambda key: source.collect(source.init(key, {}, policy), policy, key)[1])(
        random.key(1)
    )


@pytest.mark.parametrize("proposals", [1, 3])
def test_each_token_has_the_advantage_of_its_role(proposals, monkeypatch):
    prompts, answers = 24, 4
    sizes = {"prompts": prompts, "proposals": proposals, "answers": answers}
    config = replace(Config(), {**sizes, "recurrent": 8, "transformer": 1})
    batch = noisy_texts(config)
    seen = {}

    def keep(env, config, judge, losses, learned):
        seen[losses[0].name] = judge, learned
        return real(env, config, judge, losses, learned=learned)

    real = module.on_answers
    monkeypatch.setattr(module, "on_answers", keep)
    module.recipe(ENV, config)
    net = type("Net", (), {"hyper": config})
    judged = {name: judge(net, batch) for name, (judge, _) in seen.items()}
    advantage = np.asarray(judged["solver_loss"]["advantage"])
    np.testing.assert_array_equal(advantage, judged["proposer_loss"]["advantage"])
    t, mask = batch.transitions, np.asarray(batch.mask)
    reader, decision = (np.asarray(t.timestep.tokens[k]) for k in ("reader", "decision"))
    target = np.asarray(judged["solver_loss"]["target"])
    reward = np.where(mask, np.asarray(t.reward), 0).sum(0).reshape(prompts, proposals, answers)
    counts = ((reader == 2) & mask).any(0).reshape(reward.shape)
    assert (counts == counts[..., :1]).all() and 0.2 < counts.mean() < 0.95
    posed = np.where(counts[..., 0], 1 - reward.mean(-1), 0)
    standard = lambda x: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6)
    posed = posed if proposals == 1 else standard(posed)
    solved = standard(reward)
    assert 0 < reward.mean() < 1 and np.abs(solved).max() > 0.5
    learned = {0: 0, 1: 0, 2: 0}
    for b, (p, m, g) in enumerate(np.ndindex(*reward.shape)):
        for step in np.flatnonzero(mask[:, b] & decision[:, b]):
            role = reader[step, b]
            if role == 0:
                assert advantage[step, b] == pytest.approx(posed[p, m], abs=2e-3)
                assert (target[step, b] == 0) == (g == 0)  # once, and not with each attempt
            elif role == 2:
                assert advantage[step, b] == pytest.approx(solved[p, m, g], abs=2e-3)
                assert target[step, b] == 2
            else:
                assert target[step, b] == 1
            learned[int(role)] += 1
    assert min(learned.values()) > 20
    sample = type("Sample", (), {"target": target})
    for name, role in {"proposer_loss": 0, "solver_loss": 2}.items():
        np.testing.assert_array_equal(seen[name][1](sample), target == role)


def test_environments_without_a_verifier_are_refused():
    with pytest.raises(UserError, match="'posed_sums' does not report"):
        ssp(envs.make("posed_sums"), Config())
    with pytest.raises(UserError, match="restart"):
        ssp(envs.make("lookup"), Config())
