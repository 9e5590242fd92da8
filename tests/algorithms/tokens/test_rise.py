"""RISE: weights of attempts against loops, improved attempts, and a round's exact policy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.rise import CRITERIA, attempt_weights, rise
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.exact.answers import answer_log_probs, best_of_n, enumerate_answers
from jaxrl.sources import episodes, improve_utterances

ENV = envs.make("second_try")
TAU = 0.4


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_weights_of_attempts_are_those_of_loops(criterion):
    reward = np.random.default_rng(0).integers(0, 5, (4, 40)) / 4
    found = attempt_weights(jnp.asarray(reward, jnp.float32), TAU, criterion)
    expected = np.zeros_like(reward)
    for b in range(reward.shape[1]):
        for k, r in enumerate(reward[:, b]):
            earlier = reward[:k, b]
            kept = {
                "all": True,
                "better": k == 0 or r > earlier[-1],
                "best": k == 0 or r >= earlier.max(),
                "success": r == 1,
            }[criterion]
            expected[k, b] = np.exp(r / TAU) if kept else 0
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@functools.cache
def improve(tries, by_expert=False):
    """Conversations of a random policy in which one attempt is improved: transitions, mask."""
    env = expert_channel(ENV) if by_expert else ENV
    writer = expert_policy(env) if by_expert else None
    source = improve_utterances(episodes(env, 512, keep_states=True), env, tries, 1.0, writer)
    policy = random_policy(env)
    state = source.init(random.key(0), {}, policy)
    batch = jax.jit(functools.partial(source.collect, policy=policy))(state, key=random.key(1))[1]
    assert float(batch.env_steps) == source.env_steps == 512 * (1 + tries) * ENV.max_steps
    return jax.tree.map(np.asarray, (batch.transitions, batch.mask))


def attempts_of(t, mask, turn):
    """Rewards [B] of an attempt, and whether it was made."""
    here = mask & t.timestep.tokens["decision"] & (t.timestep.tokens["turn"] == turn)
    return np.where(here, t.reward, 0).sum(0), here.any(0)


def test_an_attempt_is_improved_only_after_wrong_ones():
    t, mask = improve(16)
    anew = t.extras["anew"]
    first, _ = attempts_of(t, mask, 0)
    second, made = attempts_of(t, mask, 1)
    assert 0.3 < made.mean() < 0.7 and not first[made].any()
    last = np.where(anew, np.arange(len(mask))[:, None], 0).max(0)
    np.testing.assert_array_equal(mask, np.arange(len(mask))[:, None] <= last)
    assert set(anew.sum(0)) == {1, 2}  # tokens
    turn = np.where(anew, t.timestep.tokens["turn"], 0).max(0)
    np.testing.assert_array_equal(turn, made)
    # Two random tokens of 17 are right once in 289 times; one of 16 such attempts in 18.
    for rate in (first[~made].mean(), second[made].mean()):
        assert 0.02 < rate < 0.12


def test_the_expert_improves_the_attempts_of_the_policy():
    t, mask = improve(1, by_expert=True)
    own, right = t.timestep.privileged["expert_action"], t.extras["anew"]
    np.testing.assert_array_equal(t.action[right], own[right])
    earlier = mask & ~right & t.timestep.tokens["decision"]
    assert earlier.any() and (t.action != own)[earlier].mean() > 0.5


@pytest.mark.slow
def test_a_round_is_the_best_of_n_weighted_by_reward():
    env = envs.make("judged_words", letters=2, length=2)
    answers = enumerate_answers(env)
    sizes = {"recurrent": 16, "transformer": 0, "num_envs": 8192, "tries": 2, "right": 100.0}
    sizes |= {"minibatches": 8, "epochs": 20, "optimizer.learning_rate": 0.01, "tau": 1.0}
    algorithm = rise(env, sizes)
    config = algorithm.config
    network = policy_network(env, config.torso, config.memory)
    exact = jax.jit(lambda params: answer_log_probs(network, params, answers))
    run = start(algorithm, random.key(0))
    params = lambda run: run.state.agent.parts["actor_critic"].params
    before = exact(params(run))
    found = jnp.exp(exact(params(jax.jit(lambda run: advance(algorithm, run)[0])(run))))
    # The mean is over tokens, so the likelihood of each token is weighted alike.
    best = best_of_n(before, answers.reward, 2)
    weighted = jax.nn.softmax(best + answers.reward)
    apart = lambda p: float(jnp.abs(p - found).max())
    assert apart(weighted) < 0.04
    assert apart(jnp.exp(best)) > 0.08 < apart(jax.nn.softmax(before + answers.reward))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="rise cannot stop early"):
        rise(ENV, {"passes.early_stop": True})
    with pytest.raises(UserError, match="needs the turns of texts"):
        rise(envs.make("cartpole"))
    with pytest.raises(UserError, match="tries is 0"):
        improve_utterances(episodes(ENV, 4, keep_states=True), ENV, 0, 1.0)
