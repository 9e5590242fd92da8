"""Reward models: scores, their combination, what is taken over, and exact optima of scores."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences.copg import copg
from jaxrl.algorithms.preferences.pf_ppo import choose_answers, pf_ppo, r_squared
from jaxrl.algorithms.preferences.reward_ensembles import reward_ensembles
from jaxrl.algorithms.preferences.reward_model import recipe as model_recipe
from jaxrl.algorithms.preferences.reward_model import reward_model
from jaxrl.algorithms.preferences.reward_robust_rlhf import reward_robust_rlhf
from jaxrl.algorithms.preferences.shared.measures import all_answers
from jaxrl.algorithms.preferences.shared.measures import log_probs as network_log_probs
from jaxrl.algorithms.preferences.shared.pairs import loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.reward_models import (
    COMBINATIONS,
    Judges,
    Reading,
    combine_sums,
    on_scores,
    score_answers,
    token_scores,
    with_reward,
)
from jaxrl.algorithms.preferences.spo import recipe as spo_recipe
from jaxrl.algorithms.preferences.spo import spo
from jaxrl.algorithms.tokens import ppo_max as of_ppo_max
from jaxrl.algorithms.tokens import rloo as of_rloo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, Values
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, Policy, TimeStep, Transition
from jaxrl.exact.answers import (
    answer_log_probs,
    best_of_n,
    enumerate_answers,
    frontier,
    optimal_answers,
)
from jaxrl.kit import Minibatch, Recipe, group
from jaxrl.kit.stages import stages
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}
MODEL = SIZES | {"count": 16, "batch_size": 8, "members": 2}


@group
class OnScores(of_rloo.Config):
    """RLOO on the scores of reward models."""

    reward: Judges = Judges(members=2)


rloo = on_scores("rloo_on_scores", of_rloo.rloo, OnScores)


@group
class PPOMaxOnScores(of_ppo_max.Config):
    """PPO-max on the scores of reward models, as its authors have it."""

    reward: Judges = Judges(members=2)


ppo_max = on_scores("ppo_max_on_scores", of_ppo_max.ppo_max, PPOMaxOnScores)

# ------------------------------------------------------------------------------------- scores

T, B, M = 3, 4, 2
RNG = np.random.default_rng(0)
VALUE = RNG.normal(size=(M, T + 1, B)).astype(np.float32)
DONE = np.array([[False] * 4, [True, False, True, False], [False, True, False, True]])
MASK = np.array([[True] * 4, [True] * 4, [False, True, False, True]])
DECISION = np.array([[False] * 4, [True] * 4, [True] * 4, [False] * 4])  # of each time step


def time_step(rows, done):
    no = jnp.zeros_like(done)
    tokens = {"decision": jnp.asarray(DECISION[rows])}
    return TimeStep(jnp.zeros(done.shape), jnp.zeros(done.shape), done, no, no, tokens=tokens)


READING = Reading(
    time_step(slice(0, 1), jnp.zeros((1, B), bool)), time_step(slice(1, 4), jnp.asarray(DONE))
)


@pytest.mark.parametrize("dense", [False, True])
def test_a_score_is_the_value_after_the_last_token_or_after_each_decision(dense):
    found = token_scores(jnp.asarray(VALUE), READING, jnp.asarray(MASK), dense)
    expected = np.zeros((M, T, B))
    for t, b in np.argwhere(MASK):
        if DECISION[t, b] if dense else DONE[t, b]:
            expected[:, t, b] = VALUE[:, t + 1, b]  # after the token that was written at t
    np.testing.assert_allclose(found, expected)
    assert (np.count_nonzero(found[0], 0) == ([1, 2, 1, 2] if dense else [1, 1, 1, 1])).all()


def test_scores_of_members_are_combined_as_papers_have_it():
    scores = RNG.normal(size=(5, 4)).astype(np.float32)
    h = Values({"variance_weight": 0.3, "nominal_weight": 0.8})
    expected = {
        "mean": scores.mean(-1),
        "worst": scores.min(-1),
        "uncertainty": scores.mean(-1) - 0.3 * np.var(scores, -1),
        "robust": 0.8 * scores.mean(-1) + 0.2 * scores.min(-1),
    }  # fmt: skip
    assert expected.keys() == COMBINATIONS.keys()
    for name, combine in COMBINATIONS.items():
        np.testing.assert_allclose(combine(h, jnp.asarray(scores)), expected[name], rtol=1e-5)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_rewards_of_tokens_add_up_to_the_combined_score_of_their_answer(combine):
    scores = jnp.asarray(RNG.normal(size=(5, T, B)).astype(np.float32))
    config = Static(reward_ensembles.complete_config({"combine": combine}))
    hyper = Values({"reward.variance_weight": 0.1, "reward.nominal_weight": 0.5})
    ended = jnp.asarray(MASK & DONE)
    paid = combine_sums(config, hyper, scores, ended)
    h = Values({"variance_weight": 0.1, "nominal_weight": 0.5})
    expected = COMBINATIONS[combine](h, scores.sum(1).T)
    np.testing.assert_allclose(paid.sum(0), expected, rtol=1e-5)
    np.testing.assert_array_equal(paid[~ended], scores.mean(0)[~ended])


def test_the_loss_is_bradley_terrys_of_each_member_and_the_squared_sum():
    config = Static(reward_model.complete_config(MODEL))
    (loss,) = model_recipe(ENV, config).losses
    net = stub(
        hyper={"label_smoothing": 0.1, "centering": 0.2},
        network=lambda name: type("", (), {"initial": lambda self, n: ()})(),
        reward=lambda text, memory, method: (None, jnp.asarray(VALUE)),
    )
    found = loss(net, Minibatch(READING, jnp.asarray(MASK)))
    last = np.array([2, 3, 2, 3])
    score = VALUE[:, last, np.arange(B)]
    chosen, rejected = score[:, ::2], score[:, 1::2]
    logistic = lambda x: np.log1p(np.exp(-x))
    lead = chosen - rejected
    own = 0.9 * logistic(lead) + 0.1 * logistic(-lead) + 0.2 * (chosen + rejected) ** 2
    np.testing.assert_allclose(found.value, own.sum(0), rtol=1e-5)
    np.testing.assert_allclose(found.metrics["accuracy"], (lead > 0).mean(0))


def test_a_recipe_sees_the_rewards_of_another_and_logs_both():
    reward = jnp.asarray(RNG.normal(size=(T, B)).astype(np.float32))
    paid = jnp.asarray(RNG.normal(size=(T, B)).astype(np.float32))
    begun = time_step(slice(0, 3), jnp.zeros((T, B), bool))
    after = dataclasses.replace(time_step(slice(1, 4), jnp.asarray(DONE)), reward=reward)
    batch = Batch(
        Transition(begun, jnp.zeros((T, B)), after, (), {}), jnp.float32(0), mask=jnp.asarray(MASK)
    )
    seen = []

    def update(net, batch):
        seen.append(batch.transitions)
        return net

    reports = {}
    net = stub(report=lambda **x: reports.update(x))
    inner = Recipe({}, None, (), update)  # type: ignore[arg-type]
    with_reward(inner, lambda net, batch: (paid, {"other": 1.0})).update(net, batch)
    np.testing.assert_array_equal(seen[0].reward, paid)
    np.testing.assert_array_equal(seen[0].next_timestep.true_reward, np.where(MASK, reward, 0))
    np.testing.assert_allclose(reports["proxy"], paid.sum() / B, rtol=1e-5)
    np.testing.assert_allclose(reports["gold"], np.where(MASK, reward, 0).sum() / B, rtol=1e-5)
    assert reports["other"] == 1.0


# ------------------------------------------------------------------------------------ filters


def test_a_filter_keeps_the_best_and_another_answer():
    score = jnp.broadcast_to(jnp.array([0.3, 2.0, -1.0, 0.5]), (3000, 4))
    keep = lambda kind: np.asarray(choose_answers(random.key(0), score, kind))
    assert (keep("best") == [[1]]).all() and keep("best").shape == (3000, 1)
    assert (keep("best_and_worst") == [[1, 2]]).all()
    best, other = keep("best_and_random").T
    assert (best == 1).all()
    np.testing.assert_allclose(np.bincount(other) / 3000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.04)
    tied = jnp.zeros((3000, 4))  # an answer is never kept twice
    best, other = np.asarray(choose_answers(random.key(1), tied, "best_and_random")).T
    assert (best != other).all() and len(set(best)) == 4


def test_r_squared_is_that_of_a_linear_fit():
    x, y = RNG.normal(size=(2, 50)).astype(np.float32)
    y = y + x
    residual = y - np.polyval(np.polyfit(x, y, 1), x)
    np.testing.assert_allclose(r_squared(x, y), 1 - residual.var() / y.var(), rtol=1e-4)
    assert r_squared(jnp.ones(3), jnp.arange(3.0)) == 0


def test_groups_that_are_too_small_are_refused():
    with pytest.raises(UserError, match=r"keeps 2 answers of a group; groups\.answers is 1"):
        pf_ppo(ENV, SIZES | {"prompts": 4, "answers": 1})


# --------------------------------------------------------------------------------- win rates


def test_a_reward_of_spo_is_the_share_of_the_others_that_an_answer_beats(monkeypatch):
    algorithm = spo(ENV, SIZES | {"prompts": 4, "answers": 3})
    state = start(algorithm, random.key(0)).state
    policy = algorithm.policy(state)
    _, batch, _ = algorithm.source.collect(state.source, policy, random.key(1))
    t = batch.transitions
    ended = np.asarray(batch.mask & t.done)
    judged = np.where(ended[..., None], t.next_timestep.privileged["judged"], 0).sum(0)
    expected = []
    for rows in judged.reshape(-1, 3, 3):
        for i in range(3):
            won = [ENV.judge(rows[i][None], rows[j][None])[0] for j in range(3) if j != i]
            expected.append(np.mean(won))
    seen = []
    config = Static(algorithm.config)

    def capture(net, batch):
        seen.append(batch.transitions.reward)
        return net

    net = stub(report=lambda **x: None)
    captured = dataclasses.replace(of_rloo.recipe(ENV, config), update=capture)
    monkeypatch.setattr(of_rloo, "recipe", lambda env, config: captured)
    spo_recipe(ENV, config).update(net, batch)
    np.testing.assert_allclose(seen[0].sum(0), expected, rtol=1e-4)
    assert (np.asarray(seen[0])[~ended] == 0).all()


# ------------------------------------------------------------------- scores as algorithms use them


@pytest.mark.parametrize(
    ("builder", "changes", "combine"),
    [
        (reward_ensembles, {}, lambda s: s.min(0)),
        (reward_ensembles, {"combine": "mean"}, lambda s: s.mean(0)),
        (
            reward_ensembles,
            {"combine": "uncertainty", "variance_weight": 0.7},
            lambda s: s.mean(0) - 0.7 * s.var(0),
        ),
        (
            reward_robust_rlhf,
            {"nominal_weight": 0.3},
            lambda s: 0.3 * s.mean(0) + 0.7 * s.min(0),
        ),
    ],
)
def test_what_is_paid_is_the_combination_of_the_paper(builder, changes, combine):
    """The expected score of all answers, by the builder's measure."""
    sizes = {"recurrent": 8, "transformer": 0, "prompts": 4, "answers": 2, "members": 3}
    config = builder.complete_config(sizes | changes)
    agent = builder.agent(ENV, config)
    state = agent.init(random.key(0), agent.hyper)
    found = builder.measure(
        ENV, Static(config), Policy(agent.act, agent.memory, state), random.key(0)
    )
    answers = all_answers(ENV)
    scores = np.asarray(score_answers(ENV, config, state.parts, answers))
    assert scores.shape == (3, *answers.reward.shape) and scores.std(0).min() > 0
    share = np.exp(network_log_probs(ENV, config, state.parts["actor_critic"].params))
    expected = (share * combine(scores)).sum(-1).mean()
    np.testing.assert_allclose(found["exact_proxy"], expected, rtol=1e-4)
    np.testing.assert_allclose(found["exact_kl"], 0, atol=1e-5)


# -------------------------------------------------------------------------------- warm starts


def same(a, b):
    leaves = zip(*map(jax.tree.leaves, (a, b)), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


@functools.cache
def agents(builder):
    """An agent's `adopt` and a state of it, and a state of a reward model."""
    own = {"recurrent": 16, "transformer": 0, "prompts": 4, "answers": 2}
    agent = builder.agent(ENV, builder.complete_config(own))
    model = reward_model.agent(ENV, reward_model.complete_config(MODEL))
    return agent, agent.init(random.key(0), agent.hyper), model.init(random.key(1), model.hyper)


@pytest.mark.parametrize("builder", [rloo, ppo_max], ids=lambda b: b.name)
def test_policy_reference_and_critic_begin_as_the_models_run_had_them(builder):
    agent, own, model = agents(builder)
    adopted = agent.adopt(own, model)
    policy, reward = adopted.parts["actor_critic"], adopted.parts["reward"]
    assert same(policy.params, model.parts["actor_critic"].params)
    assert same(policy.target, policy.params)
    assert same(policy.optimizer, own.parts["actor_critic"].optimizer)
    assert same(reward.params, model.parts["reward"].params)
    assert not jax.tree.leaves(reward.optimizer)
    assert jax.tree.structure(adopted) == jax.tree.structure(own)
    if builder is ppo_max:
        first = jax.tree.map(lambda x: x[0], model.parts["reward"].params)
        assert same(adopted.parts["critic"].params, first)
    assert agent.adopt(own, own) is own  # a run of the same algorithm goes on


def test_the_writer_of_the_pairs_is_the_policy_that_was_taken_over():
    model = reward_model.agent(ENV, reward_model.complete_config(MODEL))
    own = model.init(random.key(1), model.hyper)
    other = of_rloo.rloo.agent(ENV, of_rloo.rloo.complete_config(SIZES))
    other = other.init(random.key(2), other.hyper)
    adopted = model.adopt(own, other)
    assert same(adopted.parts["actor_critic"].params, other.parts["actor_critic"].params)
    assert same(adopted.parts["reward"], own.parts["reward"])
    assert jax.tree.structure(adopted) == jax.tree.structure(own)


# ------------------------------------------------------------------------------ exact optima

LEARNED = {"recurrent": 32, "transformer": 0, "learning_rate": 5e-3}
BETA = 0.5


def log_probs(algorithm, run, found, target=False):
    """Log-probabilities [P, A] of all answers by the policy of a run, or by its reference."""
    config, part = algorithm.config, run.state.agent.parts["actor_critic"]
    network = policy_network(ENV, config.torso, config.memory)
    return answer_log_probs(network, part.target if target else part.params, found)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"dense": True}])
def test_a_reward_model_of_many_labels_is_the_reward_up_to_a_constant(changes):
    updates = 400
    config = {"count": 32_768, "batch_size": 256, "learning_rate_steps": updates, "centering": 0.0}
    algorithm = reward_model(ENV, LEARNED | config | changes)
    run = start(algorithm, random.key(0))
    measure = jax.jit(algorithm.measure)
    before = measure(run.state, random.key(0))
    run, _ = train(algorithm, run, updates)
    after = measure(run.state, random.key(0))
    assert before["reward_error"] > 0.5 and before["exact_accuracy"] < 0.6
    assert after["reward_error"] < 0.08, after
    # Two answers of the policy may be the same, so that 1 is out of reach.
    assert after["exact_accuracy"] > 0.8, after


@pytest.mark.slow
def test_a_policy_of_scores_ends_at_their_optimum_and_the_model_stays():
    """The optimum of the reward is elsewhere, since the model has seen few labels."""
    model = reward_model(ENV, LEARNED | {"count": 48, "batch_size": 16, "members": 2})
    config = {"prompts": 32, "answers": 8, "kl.weight": BETA, "combine": "worst"}
    config |= {"learning_rate_steps": 300 * 256 * 2.0}
    both = stages(model, 60, rloo(ENV, LEARNED | config))
    begun = start(both, random.key(0))
    after, _ = train(both, begun, 300)
    parts = begun.state.agent.parts, after.state.agent.parts
    assert same(parts[0]["reward"].params, parts[1]["reward"].params)
    found = enumerate_answers(ENV)
    reference, now = log_probs(both, after, found, target=True), log_probs(both, after, found)
    np.testing.assert_allclose(reference, log_probs(both, begun, found), rtol=1e-4)
    scores = score_answers(ENV, both.config, parts[1], found).min(0)
    best, gold = (optimal_answers(x, reference, BETA) for x in (scores, found.reward))
    to = lambda target: losses.categorical_kl(now, target).mean()
    assert losses.categorical_kl(reference, best).mean() > 0.1
    assert to(best) < 0.02, (to(best), to(gold))
    assert to(gold) > 3 * to(best)
    measured = jax.jit(both.measure)(after.state, random.key(0))
    assert set(measured) <= set(both.scores)
    np.testing.assert_allclose(
        measured["exact_return"], (jnp.exp(now) * found.reward).sum(-1).mean(), rtol=1e-3
    )
    np.testing.assert_allclose(
        measured["exact_proxy"], (jnp.exp(now) * scores).sum(-1).mean(), rtol=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("contrastive", [True, False])
def test_pairs_of_the_past_lead_to_the_optimum_if_each_is_the_others_baseline(contrastive):
    """A policy gradient of the same pairs without the baseline, nor importance weights, does not
    end there."""

    def own_alone(net, first, second):
        total = 0.0
        for x in (first, second):
            regularized = x.reward - net.hyper.beta * (x.log_prob - x.reference)
            total -= jax.lax.stop_gradient(regularized) * x.log_prob
        return total

    builder = copg
    if not contrastive:
        policy_loss = lambda env, config: on_pairs(
            env, config, loss_of_pairs(own_alone), rewards=True
        )
        builder = copg.variant("off_policy", recipe=policy_loss)
    updates, found = 600, enumerate_answers(ENV)
    config = {"count": 32_768, "batch_size": 256, "beta": BETA, "learning_rate_steps": updates}
    algorithm = builder(ENV, LEARNED | config)
    run = start(algorithm, random.key(0))
    reference = log_probs(algorithm, run, found)
    best = optimal_answers(found.reward, reference, BETA)
    after, _ = train(algorithm, run, updates)
    kl = losses.categorical_kl(log_probs(algorithm, after, found), best)
    assert losses.categorical_kl(reference, best).max() > 0.5
    assert (kl < 0.01).all() if contrastive else kl.max() > 0.1, kl


@pytest.mark.slow
def test_the_average_policy_of_spo_is_the_minimax_winner_of_cyclic_preferences():
    """Single policies go round it, and the answers with the best rewards lose to others."""
    env = envs.make("judged_words", letters=2, length=2, cycle=4.0, seed=4)
    groups = {"prompts": 128, "answers": 8, "kl.weight": 0.02}
    step = {"optimizer.name": "sgd", "learning_rate": 1.0}
    algorithm = spo(env, LEARNED | groups | step)
    found = enumerate_answers(env)

    def chunk(run, _):
        run, _ = train(algorithm, run, 5)
        return run, jnp.exp(log_probs(algorithm, run, found))

    run = start(algorithm, random.key(0))
    _, policies = jax.jit(lambda run: jax.lax.scan(chunk, run, None, 150))(run)
    lost = lambda p: (found.preference * p[..., None, :]).sum(-1).max(-1) - 0.5
    average = lost(policies.mean(0))
    assert (average < 0.06).all(), average
    assert lost(policies[75:]).max() > 0.1
    best = jax.nn.one_hot(found.reward.argmax(-1), found.reward.shape[1])
    assert (lost(best) > 0.4).all()


@pytest.mark.slow
def test_the_score_of_few_noisy_labels_is_over_optimized():
    """The best of ever more answers has ever higher scores, and from some number on lower rewards;
    all of it is exact but the labels."""
    env = envs.make("judged_words", length=4)
    labels = {"count": 64, "batch_size": 32, "flipped": 0.25}
    algorithm = reward_model(env, LEARNED | labels | {"recurrent": 16, "learning_rate": 3e-3})
    found = enumerate_answers(env)

    def one(key):
        run, _ = train(algorithm, start(algorithm, key), 300)
        parts, config = run.state.agent.parts, algorithm.config
        scores = score_answers(env, config, parts, found)[0]
        reference = network_log_probs(env, config, parts["actor_critic"].params)
        best = jnp.stack([best_of_n(reference, scores, n) for n in (1, 4, 64, 512)])
        return frontier(best, reference, found.reward, scores)

    points = jax.jit(jax.vmap(one))(jax.random.split(random.key(0), 12))
    kl, gold, proxy = (np.asarray(x).mean(0) for x in (points.kl, points.gold, points.proxy))
    assert (np.diff(kl) > 0).all() and (np.diff(proxy) > 0).all()
    first, few, more, most = gold
    assert few > first + 0.2 and more < few - 0.1 and most < few - 0.15, gold
