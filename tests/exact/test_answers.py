"""All answers of small text environments, against brute force."""

import itertools

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
    best_of_n,
    enumerate_answers,
    frontier,
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


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_best_of_n_is_that_of_all_tuples_of_n_answers(n):
    rng = np.random.default_rng(n)
    p = rng.dirichlet(np.ones(5), 2)
    score = rng.integers(0, 3, (2, 5)).astype(np.float32)  # with ties
    expected = np.zeros((2, 5))
    for row in range(2):
        for drawn in itertools.product(range(5), repeat=n):
            best = [y for y in drawn if score[row, y] == score[row, list(drawn)].max()]
            for y in best:
                expected[row, y] += p[row, list(drawn)].prod() / len(best)
    log_p = jnp.asarray(np.log(p), jnp.float32)
    found = best_of_n(log_p, jnp.asarray(score), n)
    np.testing.assert_allclose(jnp.exp(found), expected, rtol=1e-4)
    assert (losses.categorical_kl(found, log_p) <= losses.best_of_n_kl(n) + 1e-6).all()


def test_the_best_of_many_has_the_divergence_of_the_formula_where_no_answer_is_likely():
    log_p = jnp.full((1, 2000), -jnp.log(2000.0))
    found = best_of_n(log_p, jnp.arange(2000.0)[None], 16)
    np.testing.assert_allclose(jnp.exp(found).sum(), 1, rtol=1e-4)
    kl = losses.categorical_kl(found, log_p)
    np.testing.assert_allclose(kl, losses.best_of_n_kl(16), rtol=0.01)


def test_a_frontier_is_the_means_over_prompts_of_each_policy():
    rng = np.random.default_rng(0)
    policies, reference = rng.dirichlet(np.ones(4), (3, 2)), rng.dirichlet(np.ones(4), 2)
    reward, score = rng.normal(size=(2, 2, 4))
    preference = rng.uniform(size=(2, 4, 4))
    arguments = (np.log(policies), np.log(reference), reward, score, preference)
    found = frontier(*(jnp.asarray(x, jnp.float32) for x in arguments))
    for i, p in enumerate(policies):
        np.testing.assert_allclose(
            found.kl[i], (p * np.log(p / reference)).sum(-1).mean(), rtol=1e-4
        )
        np.testing.assert_allclose(found.gold[i], (p * reward).sum(-1).mean(), rtol=1e-4)
        np.testing.assert_allclose(found.proxy[i], (p * score).sum(-1).mean(), rtol=1e-4)
        won = np.mean([p[k] @ preference[k] @ reference[k] for k in range(2)])
        np.testing.assert_allclose(found.win_rate[i], won, rtol=1e-4)
    never = jnp.array([[0.0, -jnp.inf]])  # an answer without probability costs nothing
    assert jnp.isfinite(frontier(never, jnp.log(jnp.full((1, 2), 0.5)), never * 0, never * 0).kl)
