"""CoT2: mixtures of tokens, their likelihood, and the losses of both stages on tables."""

import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.cot2 import cot2
from jaxrl.algorithms.tokens.cot2_supervised import cot2_supervised
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import TimeStep
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.networks.heads import Categorical, Mixture
from jaxrl.networks.thoughts import ThoughtPolicy
from tests.kit.stub import losses_of, stub

ENV = envs.make("signed_sums", numbers=2, largest=2)
V = 2 + 9
SMALL = {"recurrent": 8, "transformer": 1}


def softmax(x):
    p = np.exp(x)
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("joint", [True, False])
def test_a_thought_is_the_mean_of_independent_tokens(joint):
    logits = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32) * 2
    policy = Mixture(jnp.asarray(logits), jnp.array([False, True]), 2, joint)
    scale = np.array([2.0 if joint else 1.0, 1.0])
    p = softmax(logits / scale[:, None])
    drawn = np.asarray(policy.sample(seed=jax.random.key(0), sample_shape=(20_000,)))
    for (i, j), two in zip(itertools.product(range(3), repeat=2), np.ndindex(3, 3), strict=True):
        thought = (np.eye(3)[i] + np.eye(3)[j]) / 2
        share = (np.abs(drawn[:, 0] - thought) < 1e-6).all(-1).mean()
        np.testing.assert_allclose(share, p[0, i] * p[0, j] * (1 if i == j else 2), atol=0.015)
        own = np.log(p[0, i]) + np.log(p[0, j])
        found = policy.log_prob(jnp.asarray(np.stack([thought, np.eye(3)[i]])))
        np.testing.assert_allclose(found, [own * (1 if joint else 0.5), np.log(p[1, i])], rtol=1e-5)
        assert two == (i, j)
    for v in range(3):
        np.testing.assert_allclose(drawn[:, 1, v].mean(), p[1, v], atol=0.015)
    assert set(np.unique(drawn[:, 1])) == {0, 1}
    entropy = -(p * np.log(p)).sum(-1) * [2.0 if joint else 1.0, 1.0]
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-5)
    np.testing.assert_allclose(policy.mode(), [p[0], np.eye(3)[p[1].argmax()]], rtol=1e-5)


def test_with_one_draw_it_is_an_ordinary_policy():
    logits = jax.random.normal(jax.random.key(0), (5, 4))
    one, plain = Mixture(logits, jnp.zeros(5, bool), 1), Categorical(jax.nn.log_softmax(logits))
    token = jnp.array([0, 1, 2, 3, 0])
    np.testing.assert_allclose(
        one.log_prob(jax.nn.one_hot(token, 4)), plain.log_prob(token), rtol=1e-6
    )
    drawn = one.sample(seed=jax.random.key(1))
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_allclose(one.entropy(), plain.entropy(), rtol=1e-6)


@pytest.fixture(scope="module")
def network():
    return ThoughtPolicy(
        ENV.observation_space, ENV.action_space, (), recurrent=8, layers=1, context=4
    )


def steps(observation):
    """Time steps [T, B] of an episode with these observations [T, B, V]; the last is an answer."""
    shape = observation.shape[:2]
    no, place = np.zeros(shape, bool), np.arange(shape[0])[:, None] + np.zeros(shape)
    tokens = {"answer": place == shape[0] - 1, "decision": place > 0}
    first = jnp.asarray(place == 0)
    return TimeStep(jnp.asarray(observation), jnp.zeros(shape), no, no, first, tokens=tokens)


def test_mixtures_are_embedded_as_mixtures_step_by_step_as_in_a_window(network):
    rng = np.random.default_rng(0)
    seen = rng.dirichlet(np.ones(V), (3, 2)).astype(np.float32)
    timestep, memory = steps(seen), network.initial(2)
    init = jax.jit(lambda *x: network.init(jax.random.key(0), *x, method="unroll"))
    params = init(timestep, memory)

    @jax.jit
    def both(params, timestep, memory):
        whole, _, _ = network.apply(params, timestep, memory, method="unroll")
        each = []
        for t in range(3):
            now = jax.tree.map(lambda x, t=t: x[t], timestep)
            policy, _, memory = network.apply(params, now, memory)
            each.append(policy.log_probs)
        return whole.log_probs, jnp.stack(each)

    whole, each = both(params, timestep, memory)
    np.testing.assert_allclose(whole, each, atol=1e-5)
    embed = lambda x: network.apply(params, x, method=lambda module, x: module.embedding(x))
    each = embed(jnp.eye(V))
    np.testing.assert_allclose(embed(jnp.asarray(seen)), seen @ each, atol=1e-5)
    assert np.abs(each[0] - each[1]).max() > 0.1


def mixture_net(logits, draws, joint, **hyper):
    """A net whose policy is a table of logits [T, B, V]."""
    policy = lambda timestep, memory, method: (
        Mixture(jnp.asarray(logits), timestep.tokens["answer"], draws, joint),
        jnp.zeros(logits.shape[:2]),
    )
    defaults = {"entropy_weight": 0.0, "sampling": {"temperature": 1.0}}
    empty = types.SimpleNamespace(initial=lambda n: ())
    return stub(actor_critic=policy, network=lambda name: empty, hyper=defaults | hyper)


def test_the_supervised_loss_is_the_divergence_from_the_targets():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3, 2, V)).astype(np.float32)
    target = rng.dirichlet(np.full(V, 0.3), (3, 2)).astype(np.float32)
    target[2] = np.eye(V)[:2]
    x = types.SimpleNamespace(timestep=steps(target), action=jnp.asarray(target), allowed=None)
    recipe = cot2_supervised.recipe(ENV, Static(replace(cot2_supervised.Config(), SMALL)))
    out = losses_of(recipe)["loss"].function(mixture_net(logits, 1, True), x)
    log_p = np.log(softmax(logits))
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(target > 0, target * np.log(target), 0.0)
    np.testing.assert_allclose(out.value, (own - target * log_p).sum(-1), atol=1e-5)
    same = log_p.argmax(-1) == target.argmax(-1)
    np.testing.assert_array_equal(out.metrics["token_accuracy"], same)


@pytest.mark.parametrize("joint", [True, False])
def test_ratios_of_all_tokens_of_a_thought_are_clipped(joint):
    rng = np.random.default_rng(2)
    new, old = rng.normal(size=(2, 3, 4, V)).astype(np.float32)
    draws, clip, beta = 3, 0.2, 0.1
    tokens = rng.integers(0, V, (draws, 3, 4))
    tokens[:, 2] = tokens[0, 2]  # the answer is one token
    action = np.eye(V, dtype=np.float32)[tokens].mean(0)
    advantage = np.broadcast_to(rng.normal(size=4), (3, 4))
    count = np.array([draws, draws, 1])[:, None]
    heat = count[..., None] if joint else np.ones((3, 1, 1))

    def log_prob(logits):
        log_p = np.log(softmax(logits / heat))
        each = np.take_along_axis(log_p[None], tokens[..., None], -1)[..., 0]  # [K, T, B]
        total = np.where(count == 1, each[0], each.sum(0))
        return total if joint else total / count

    before, now = log_prob(old), log_prob(new)
    ratio = np.exp(now - before)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
    expected = -surrogate + beta * (np.exp(before - now) - (before - now) - 1)
    x = types.SimpleNamespace(
        timestep=steps(action), action=jnp.asarray(action), allowed=None,
        log_prob=jnp.asarray(before), reference=jnp.asarray(before), advantage=advantage,
    )  # fmt: skip
    recipe = cot2.recipe(ENV, Static(replace(cot2.Config(), SMALL)))
    net = mixture_net(new, draws, joint, clip=clip, kl=types.SimpleNamespace(weight=beta))
    out = losses_of(recipe)["loss"].function(net, x)
    np.testing.assert_allclose(out.value, expected, rtol=2e-4, atol=1e-5)


@pytest.fixture(scope="module")
def episode_batch():
    """The algorithm, its state, and a batch of its own episodes, some of them right."""
    sizes = SMALL | {"prompts": 8, "answers": 4, "draws": 2, "optimizer.eps": 1e-8}
    algorithm = cot2(ENV, sizes)
    state = start(algorithm, random.key(0)).state
    policy = algorithm.policy(state)
    batch = jax.jit(lambda s, k: algorithm.source.collect(s, policy, k)[1])(
        state.source, random.key(3)
    )
    return algorithm, state.agent, batch


def test_thoughts_are_sampled_with_their_log_probabilities(episode_batch):
    _, _, batch = episode_batch
    t = batch.transitions
    said, here = np.asarray(t.action), np.asarray(t.timestep.tokens["decision"])
    answer = np.asarray(t.timestep.tokens["answer"])
    assert set(np.unique(said[here & ~answer])) <= {0, 0.5, 1} and 0.5 in said[here & ~answer]
    assert set(np.unique(said[answer])) == {0, 1}
    np.testing.assert_allclose(said[here & ~answer], t.next_timestep.observation[here & ~answer])
    assert batch.mask.all() and batch.mask.shape == (3, 32)


def test_actions_that_are_no_decisions_teach_nothing(episode_batch):
    algorithm, agent, batch = episode_batch
    update = jax.jit(algorithm.agent.update)
    params = lambda batch: update(agent, batch, random.key(0))[0].parts["actor_critic"].params
    t = batch.transitions
    reward = t.next_timestep.reward.at[-1, ::3].set(1.0)  # so that groups differ
    after = dataclasses.replace(t.next_timestep, reward=reward)
    batch = dataclasses.replace(batch, transitions=dataclasses.replace(t, next_timestep=after))
    forced = ~t.timestep.tokens["decision"]

    def other(where):
        action = jnp.where(where[..., None], jnp.eye(V)[3], t.action)
        changed = dataclasses.replace(batch.transitions, action=action)
        return params(dataclasses.replace(batch, transitions=changed))

    same = lambda x, y: all(map(np.array_equal, jax.tree.leaves(x), jax.tree.leaves(y)))
    own = params(batch)
    assert bool(forced.any()) and same(own, other(forced)) and not same(own, other(~forced))


@pytest.mark.slow
def test_supervision_finds_the_targets_and_a_policy_that_feeds_back_its_own_is_right():
    sizes = {"recurrent": 16, "transformer": 1, "num_envs": 64, "optimizer.learning_rate": 0.01}
    algorithm = cot2_supervised(ENV, sizes)
    run, _ = train(algorithm, start(algorithm, random.key(0)), 300)
    _, metrics = advance(algorithm, run)
    assert metrics["policy_loss"].value() < 0.03
    scores = evaluate(ENV, algorithm.policy(run.state), random.key(1), 64)
    assert np.mean(scores.metrics["success"]) == 1


def test_what_does_not_fit_is_refused():
    words = envs.make("judged_words")
    for builder in (cot2, cot2_supervised):
        with pytest.raises(UserError, match="thinks in mixtures of tokens, but 'judged_words'"):
            builder(words, SMALL)
    with pytest.raises(UserError, match="cot2_supervised cannot stop early"):
        cot2_supervised(ENV, SMALL | {"passes.early_stop": True})
    with pytest.raises(UserError, match="sampling"):
        cot2(ENV, SMALL | {"sampling.temperature": 2.0})
