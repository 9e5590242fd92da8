"""All answers of small text environments, against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses, solvers
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.exact.answers import (
    answer_log_probs,
    enumerate_answers,
    nash_answers,
    optimal_answers,
)
from jaxrl.kit.groups import LinearTorso, Memory


def policy_of(env, memory):
    network = policy_network(env, LinearTorso(hidden=(), activation="tanh"), memory)
    params = network.init(jax.random.key(3), example_timestep(env), network.initial(1))
    return network, jax.tree.map(lambda x: 3 * x, params)  # far from uniform


@pytest.mark.parametrize("memory", [Memory(recurrent=8), Memory(recurrent=8, transformer=1)])
def test_probabilities_of_all_answers_add_up_to_one(memory):
    env = envs.make("judged_words")
    found = enumerate_answers(env)
    log_prob = answer_log_probs(*policy_of(env, memory), found)
    assert log_prob.shape == found.reward.shape == (3, 1 + 3 + 9 + 27)
    np.testing.assert_allclose(jnp.exp(log_prob).sum(-1), 1, rtol=1e-4)


def test_probabilities_are_those_of_acting_step_by_step():
    env = envs.make("judged_words", length=2)
    network, params = policy_of(env, Memory(recurrent=8))
    found = enumerate_answers(env)
    log_prob = answer_log_probs(network, params, found)
    for prompt, key in enumerate(found.prompts):
        for answer, text in enumerate(found.text[:6]):
            state, timestep = env.reset(key, env.params)
            memory, total = network.initial(1), 0.0
            for token in text:
                one = jax.tree.map(lambda x: x[None], timestep)
                policy, _, memory = network.apply(params, one, memory)
                total += float(policy.log_prob(token[None])[0])
                state, timestep = env.step(key, state, token, env.params)
                if timestep.done:
                    break
            np.testing.assert_allclose(log_prob[prompt, answer], total, rtol=1e-4)


def test_prompts_that_are_read_are_enumerated_and_graded_by_a_verifier():
    env = envs.make("splitting", digits=1, low=2, high=5)
    found = enumerate_answers(env, most=400_000)
    assert len(found.prompts) == 3 and found.preference is None
    # 2 = 1+1, 3 = 1+2 = 2+1, 4 = 1+3 = 2+2 = 3+1, each in one way and with its END
    np.testing.assert_array_equal(found.reward.sum(-1), [1, 2, 3])
    right = found.text[np.argmax(found.reward[0])]
    np.testing.assert_array_equal(right, [1, 10, 1, 12])


def test_the_optimum_is_best_and_its_lead_is_a_divergence():
    """J(optimum) - J(pi) = beta KL(pi || optimum), for any policy."""
    rng, beta = np.random.default_rng(0), 0.4
    reward, reference, other = rng.normal(size=(3, 2, 7))
    best = optimal_answers(reward, reference, beta)
    objective = lambda x: (
        (jax.nn.softmax(x) * reward).sum(-1) - beta * losses.categorical_kl(x, reference)
    )
    lead = objective(best) - objective(jnp.asarray(other))
    np.testing.assert_allclose(lead, beta * losses.categorical_kl(other, best), rtol=1e-4)
    assert (lead > 0).all()


def test_the_equilibrium_has_no_gap_where_the_best_reward_has_one():
    env = envs.make("judged_words", length=2, cycle=2.0)
    found, beta = enumerate_answers(env), 0.1
    reference = jnp.zeros(found.reward.shape)
    nash = nash_answers(found.preference, reference, beta)
    gap = solvers.preference_gap(found.preference, nash, reference, beta)
    np.testing.assert_allclose(gap, 0, atol=1e-4)
    greedy = solvers.preference_gap(
        found.preference, optimal_answers(found.reward, reference, beta), reference, beta
    )
    assert (greedy > 0.1).all()


@pytest.mark.parametrize(
    ("env", "most", "message"),
    [
        ("cartpole", 10, "'cartpole' has no answers to enumerate"),
        ("text_maze", 10**9, "'text_maze' has several turns"),
        ("judged_words", 100, "'judged_words' has 40 answers to each prompt; at most 33 can"),
    ],
)
def test_what_cannot_be_enumerated_is_refused(env, most, message):
    with pytest.raises(UserError, match=message):
        enumerate_answers(envs.make(env), most=most)
