"""Policies that learn from pairs: every loss, references, warm starts, and the exact optimum."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences.cpo import cpo
from jaxrl.algorithms.preferences.cpo import pair_loss as cpo_loss
from jaxrl.algorithms.preferences.dpo import OBJECTIVES, dpo
from jaxrl.algorithms.preferences.kto import kto, swap_answers
from jaxrl.algorithms.preferences.online_dpo import online_dpo
from jaxrl.algorithms.preferences.orpo import orpo
from jaxrl.algorithms.preferences.orpo import pair_loss as orpo_loss
from jaxrl.algorithms.preferences.shared.pairs import Answers, Sample, answers_of
from jaxrl.algorithms.preferences.simpo import pair_loss as simpo_loss
from jaxrl.algorithms.preferences.simpo import simpo
from jaxrl.algorithms.tokens.token_reinforce import token_reinforce
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import TimeStep
from jaxrl.exact.answers import answer_log_probs, enumerate_answers, optimal_answers
from jaxrl.kit import Minibatch
from jaxrl.kit.stages import stages
from tests.contracts.structure import check_structure
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 3e-3}
PAIRS = SIZES | {"count": 16, "batch_size": 8}
BUILDERS = (dpo, online_dpo, orpo, simpo, cpo, kto)

N = 6
RNG = np.random.default_rng(0)
LENGTH = RNG.integers(1, 5, (2, N)).astype(np.float32)
NOW, FROZEN = -RNG.uniform(0.2, 1.5, (2, 2, N)).astype(np.float32) * LENGTH
CHOSEN, REJECTED = (Answers(*(jnp.asarray(y[i]) for y in (NOW, FROZEN, LENGTH))) for i in (0, 1))
BETA, SMOOTHING, TAU = 0.6, 0.1, 0.3
A, B = BETA * (NOW - FROZEN)
MEAN_A, MEAN_B = BETA * (NOW - FROZEN) / LENGTH
HYPER = Values({"beta": BETA, "label_smoothing": SMOOTHING, "temperature": TAU})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def logistic(x):
    return np.log1p(np.exp(-x))


def smooth(x):
    return (1 - SMOOTHING) * logistic(x) + SMOOTHING * logistic(-x)


def transport():
    return BETA * (np.sort(NOW[0] - NOW[1]) - np.sort(FROZEN[0] - FROZEN[1]))


def modulate(x):
    share = sigmoid(x / TAU)
    return (1 - share) * logistic(x) + share * np.exp(-x)


def reverse_divergence(x):
    q = sigmoid(x)
    return q * np.log(q / (1 - SMOOTHING)) + (1 - q) * np.log((1 - q) / SMOOTHING)


# TRL's DPOTrainer, by loss type, with the settings above.
EXPECTED = {
    "sigmoid": lambda: smooth(A - B),
    "sigmoid_norm": lambda: smooth(MEAN_A - MEAN_B),
    "hinge": lambda: np.maximum(1 - (A - B), 0),
    "ipo": lambda: ((MEAN_A - MEAN_B) / BETA - 1 / (2 * BETA)) ** 2,
    "ipo_sum": lambda: ((A - B) / BETA - 1 / (2 * BETA)) ** 2,
    "exo_pair": lambda: reverse_divergence(A - B),
    "nca_pair": lambda: logistic(A) + (logistic(-A) + logistic(-B)) / 2,
    "robust": lambda: (
        ((1 - SMOOTHING) * logistic(A - B) - SMOOTHING * logistic(B - A)) / (1 - 2 * SMOOTHING)
    ),
    "bco_pair": lambda: logistic(A) + logistic(-B),
    "sppo_hard": lambda: (A / BETA - 0.5 / BETA) ** 2 + (B / BETA + 0.5 / BETA) ** 2,
    "aot": lambda: smooth(transport()),
    "aot_unpaired": lambda: smooth(np.sort(A) - np.sort(B)),
    "apo_zero": lambda: 1 - sigmoid(A) + sigmoid(B),
    "apo_down": lambda: sigmoid(A) + 1 - sigmoid(A - B),
    "discopop": lambda: modulate(A - B),
    "sft": lambda: -NOW[0] / LENGTH[0],
}


def test_every_loss_has_a_formula_here():
    assert set(EXPECTED) == set(OBJECTIVES)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_loss_of_a_name_is_that_of_the_formula(name):
    found = OBJECTIVES[name](HYPER, CHOSEN, REJECTED)
    np.testing.assert_allclose(found, EXPECTED[name](), rtol=1e-4, atol=1e-6)


def test_losses_without_a_reference():
    first, second = NOW / LENGTH
    net = stub(hyper={"beta": BETA, "margin": 0.2, "cloning_weight": 0.5})
    found = simpo_loss(net, CHOSEN, REJECTED)
    np.testing.assert_allclose(found, logistic(BETA * (first - second) - 0.2), rtol=1e-4)
    found = cpo_loss(net, CHOSEN, REJECTED)
    expected = logistic(BETA * (NOW[0] - NOW[1])) - 0.5 * first
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    odds = lambda x: x - np.log1p(-np.exp(x))
    expected = BETA * logistic(odds(first) - odds(second)) - first
    np.testing.assert_allclose(orpo_loss(net, CHOSEN, REJECTED), expected, rtol=1e-4)


T = 3


def episodes():
    """Two pairs whose prompts are one token, of which the first decides: [T, 4]."""
    env = ENV
    keys = jax.random.split(random.key(0), 4)
    actions = jnp.array([[0, 1, 2, 1], [2, 0, 0, 1]])

    def play(key, actions):
        def step(carry, action):
            state, timestep = env.step(key, carry[0], action, env.params)
            return (state, timestep), carry[1]

        return jax.lax.scan(step, env.reset(key, env.params), actions)[1]

    timestep = jax.vmap(play, in_axes=(0, 1), out_axes=1)(keys, actions)
    mask = jnp.array([[True, True, True, True], [True, True, False, True]])
    return Minibatch(Sample(timestep, actions), mask)


def test_log_probabilities_are_sums_over_the_decisions_of_each_answer():
    x = episodes()
    table = jnp.asarray(RNG.normal(-1, 0.3, (2, 4)))
    frozen = jnp.asarray(RNG.normal(-1, 0.3, (2, 4)))
    policy = type("", (), {"log_prob": lambda self, action: table})()
    net = stub(
        actor_critic=lambda timestep, memory, method: (policy, None, ()),
        network=lambda name: type("", (), {"initial": lambda self, n: ()})(),
    )
    x = dataclasses.replace(x, x=dataclasses.replace(x.x, reference=frozen))
    chosen, rejected = answers_of(net, x)
    total = np.where(x.mask, table, 0).sum(0)
    np.testing.assert_allclose(chosen.log_prob, total[[0, 2]], rtol=1e-6)
    np.testing.assert_allclose(rejected.log_prob, total[[1, 3]], rtol=1e-6)
    np.testing.assert_array_equal(chosen.length, [2, 1])
    np.testing.assert_allclose(
        rejected.reference, np.where(x.mask, frozen, 0).sum(0)[[1, 3]], rtol=1e-6
    )
    np.testing.assert_allclose(chosen.per_token.log_prob, total[[0, 2]] / [2, 1], rtol=1e-6)


def test_answers_to_other_prompts_keep_the_prompt_and_take_the_answer():
    x = episodes()
    other = swap_answers(x)
    prompt, read = np.asarray(x.x.timestep.observation)
    np.testing.assert_array_equal(other.x.timestep.observation[0], prompt)
    np.testing.assert_array_equal(other.x.timestep.observation[1], read[[2, 3, 0, 1]])
    np.testing.assert_array_equal(other.x.action, np.asarray(x.x.action)[:, [2, 3, 0, 1]])
    np.testing.assert_array_equal(other.mask, np.asarray(x.mask)[:, [2, 3, 0, 1]])


def test_an_answer_that_outlasts_the_other_is_read_to_its_end():
    """The prompt has two tokens. Where a text has ended, that of the next episode begins."""
    observation = np.arange(16).reshape(4, 4)
    action = 100 + observation
    decision = np.tile([[False], [True], [True], [True]], 4)
    first = np.tile([[True], [False], [False], [False]], 4)
    decision[2, :2], first[2, :2] = False, True  # the first two answers have one token
    mask = np.array(
        [[False] * 4, [True] * 4, [False, False, True, True], [False, False, True, True]]
    )
    none = np.zeros((4, 4), bool)
    tokens = {"decision": jnp.asarray(decision)}
    step = TimeStep(*map(jnp.asarray, (observation, none, none, none, first)), tokens=tokens)
    other = swap_answers(Minibatch(Sample(step, jnp.asarray(action)), jnp.asarray(mask)))
    np.testing.assert_array_equal(other.mask, mask[:, [2, 3, 0, 1]])
    own, theirs = np.array([0, 1]), np.array([2, 3])  # what the short ones go on with
    seen = np.concatenate([observation[:2, own], observation[2:, theirs]])
    np.testing.assert_array_equal(other.x.timestep.observation[:, own], seen)
    np.testing.assert_array_equal(other.x.timestep.first[:, own], first[:, theirs])
    said = np.concatenate([action[:1, own], action[1:, theirs]])
    np.testing.assert_array_equal(other.x.action[:, own], said)


@functools.cache
def small(builder):
    config = SIZES | {"prompts": 8, "answers": 3} if builder is online_dpo else PAIRS
    return builder(ENV, config)


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda b: b.name)
def test_structure(builder):
    check_structure(small(builder))


@pytest.mark.parametrize("builder", [dpo, kto, online_dpo], ids=lambda b: b.name)
def test_the_reference_stays_what_training_began_with(builder):
    algorithm = small(builder)
    begun = start(algorithm, random.key(0))
    after, _ = train(algorithm, begun, 3)
    policies = [x.state.agent.parts["actor_critic"] for x in (begun, after)]
    same = lambda a, b: all(
        np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    assert same(policies[0].params, policies[1].target)
    assert not same(policies[0].params, policies[1].params)


def test_after_a_first_stage_its_policy_is_the_reference_and_wrote_the_pairs():
    """The first stage has another optimizer, and learns to write one word."""
    first = token_reinforce(ENV, SIZES | {"prompts": 32, "answers": 4, "learning_rate": 0.05})
    second = dpo(ENV, PAIRS | {"count": 512})
    both = stages(first, 30, second)
    keys = jax.random.split(jax.random.fold_in(random.key(1), 0), 3)
    run = start(both, random.key(1))
    part = run.state.agent.parts["actor_critic"]
    fresh = second.init(keys[2], second.hyper)
    own = fresh.agent.parts["actor_critic"].params
    leaves = [jax.tree.leaves(x) for x in (part.params, part.target, own)]
    assert all(np.array_equal(a, b) for a, b in zip(*leaves[:2], strict=True))
    assert sum(not np.array_equal(a, c) for a, c in zip(*leaves[::2], strict=True)) > 3
    reward = lambda state: np.asarray(
        jnp.where(state.source.data[1], state.source.data[0].reward, 0).sum(0).mean()
    )
    assert reward(run.state) > reward(fresh) + 0.5


@pytest.mark.parametrize(
    ("builder", "changes", "message"),
    [
        (dpo, {"loss": "exo_pair"}, "exo_pair needs label_smoothing above 0"),
        (dpo, {"loss": "robust", "label_smoothing": 0.5}, "needs label_smoothing below 0.5"),
        (dpo, {"loss": "aot", "chunk_rows": 4}, "aot compares all pairs of a minibatch, so"),
        (kto, {"chunk_rows": 4}, "kto compares all pairs of a minibatch"),
        (kto, {"minibatches": 8}, "a minibatch needs at least 2 pairs"),
        (dpo, {"minibatches": 3}, "8 groups of 2 sequences"),
    ],
)
def test_settings_that_do_not_fit_are_refused(builder, changes, message):
    with pytest.raises(UserError, match=message):
        builder(ENV, PAIRS | changes)


def test_an_environment_without_a_judge_is_refused():
    with pytest.raises(UserError, match="'addition' has no judge"):
        dpo(envs.make("addition", digits=1), PAIRS)


# ------------------------------------------------------------------------- the exact optimum


LEARNED = SIZES | {"optimizer.name": "adam", "recurrent": 32}
OFFLINE = LEARNED | {"count": 32_768, "batch_size": 256, "learning_rate_steps": 600.0}
ONLINE = LEARNED | {"prompts": 256, "learning_rate_steps": 600 * 512 * 2.0}
BETA_OF_OPTIMUM = 0.5


def learn(builder, config, target, steps=600):
    """Return KL(policy || target) [P] of the reference and of what was learned.

    target: (answers, log-probabilities by the reference) -> log-probabilities, all [P, A].
    """
    algorithm = builder(ENV, {"beta": BETA_OF_OPTIMUM} | config)
    found = enumerate_answers(ENV)
    network = policy_network(ENV, algorithm.config.torso, algorithm.config.memory)
    run = start(algorithm, random.key(0))
    probabilities = lambda run: answer_log_probs(
        network, run.state.agent.parts["actor_critic"].params, found
    )
    reference = probabilities(run)
    best = target(found, reference)
    run, _ = train(algorithm, run, steps)
    return losses.categorical_kl(reference, best), losses.categorical_kl(probabilities(run), best)


def optimum(found, reference):
    return optimal_answers(found.reward, reference, BETA_OF_OPTIMUM)


def minimizer(pair_loss, found, reference):
    """Return the table of probabilities whose expected loss over all pairs is least, where the
    reference writes both answers and the judge labels them."""
    length = jnp.minimum((found.text != 2).sum(-1) + 1.0, found.text.shape[1])
    size = len(length)
    first, second = (x.ravel() for x in jnp.meshgrid(*[jnp.arange(size)] * 2, indexing="ij"))
    share = jnp.exp(reference[:, first] + reference[:, second])
    share = share * found.preference[:, first, second]

    def objective(logits):
        now = jax.nn.log_softmax(logits)
        take = lambda i: jax.vmap(
            lambda x, y: Answers(x[i], y[i], length[i])
        )(now, reference)  # fmt: skip
        chosen, rejected = (
            Answers(x.log_prob, x.reference, jnp.broadcast_to(x.length, x.log_prob.shape))
            for x in map(take, (first, second))
        )
        return (share * pair_loss(chosen, rejected)).sum()

    adam = optax.adam(0.02)

    def step(_, carry):
        logits, state = carry
        updates, state = adam.update(jax.grad(objective)(logits), state)
        return logits + updates, state

    begun = reference, adam.init(reference)
    return jax.nn.log_softmax(jax.jit(lambda x: jax.lax.fori_loop(0, 4000, step, x))(begun)[0])


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"loss": "robust"}, {"transformer": 1}])
def test_dpo_reaches_the_optimum_of_reward_less_divergence(changes):
    before, after = learn(dpo, OFFLINE | changes, optimum)
    assert before.max() > 0.5
    assert (after < 0.03).all(), after


@pytest.mark.slow
def test_with_the_wrong_strength_it_does_not():
    _, after = learn(dpo, OFFLINE | {"beta": 1.0}, optimum)
    assert after.max() > 0.1


@pytest.mark.slow
def test_online_pairs_reach_it_too():
    _, after = learn(online_dpo, ONLINE, optimum)
    assert (after < 0.03).all(), after


FREE = {"margin": 0.2, "cloning_weight": 0.3, "label_smoothing": 0.0, "beta": BETA_OF_OPTIMUM}
LEAST = {
    "orpo": (orpo, {}, orpo_loss),
    "simpo": (simpo, {"margin": 0.2}, simpo_loss),
    "cpo": (cpo, {"cloning_weight": 0.3}, cpo_loss),
    "ipo_sum": (dpo, {"loss": "ipo_sum"}, None),
    "ipo": (dpo, {"loss": "ipo"}, None),
    "nca_pair": (dpo, {"loss": "nca_pair"}, None),
    "bco_pair": (dpo, {"loss": "bco_pair"}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAST)
def test_each_loss_ends_at_the_table_that_has_the_least_of_it(name):
    builder, changes, pair_loss = LEAST[name]
    net = stub(hyper=FREE)
    function = pair_loss or (lambda net, *both: OBJECTIVES[name](net.hyper, *both))
    before, after = learn(
        builder, OFFLINE | changes, functools.partial(minimizer, functools.partial(function, net))
    )
    assert after.max() < max(0.03, before.max() / 15), (before, after)


@pytest.mark.slow
def test_kto_prefers_what_the_judge_prefers():
    algorithm = kto(ENV, LEARNED | {"count": 4096, "batch_size": 128, "beta": 0.5})
    begun = start(algorithm, random.key(0))
    _, first = advance(algorithm, begun)
    after, _ = train(algorithm, begun, 300)
    _, last = advance(algorithm, after)
    value = lambda row: float(row["margin"].value())
    assert value(last) > value(first) + 0.3


def test_small_environments_are_measured_exactly_and_large_ones_are_not():
    algorithm = small(dpo)
    run = start(algorithm, random.key(0))
    found = jax.jit(algorithm.measure)(run.state, random.key(0))
    assert set(found) == set(algorithm.scores) == {"exact_return", "kl_to_optimum"}
    answers, config = enumerate_answers(ENV), algorithm.config
    network = policy_network(ENV, config.torso, config.memory)
    now = answer_log_probs(network, run.state.agent.parts["actor_critic"].params, answers)
    expected = (jnp.exp(now) * answers.reward).sum(-1).mean()
    np.testing.assert_allclose(found["exact_return"], expected, rtol=1e-4)
    best = optimal_answers(answers.reward, now, 0.1)  # the reference is the policy
    kl = losses.categorical_kl(now, best).mean()
    np.testing.assert_allclose(found["kl_to_optimum"], kl, rtol=1e-4)
    assert set(small(orpo).scores) == {"exact_return"}
    assert not dpo(envs.make("judged_words", letters=5, length=5), PAIRS).scores
