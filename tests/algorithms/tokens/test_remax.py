"""ReMax: whose return the baseline is, and that its gradient is that of the return."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.tokens.remax import remax, subtract_greedy
from jaxrl.core.settings import Static
from jaxrl.core.types import Batch
from jaxrl.kit import Minibatch
from tests.algorithms.tokens.test_sampling import (
    ENV,
    TEMPERATURE,
    begin,
    exact,
    logits_of,
    net_of,
    texts,
)
from tests.kit.stub import losses_of

BETA = 0.3


@functools.cache
def greedy_answers():
    """The place of the greedy answer to each prompt among all answers, [P]."""
    algorithm, run = begin(remax)
    found, t = exact()[0], exact()[0].transitions
    logits = logits_of(algorithm, run.state.agent.parts["actor_critic"].params, t.timestep)
    best = np.where(found.mask, np.argmax(logits, -1) == t.action, True).all(0)
    best = best.reshape(found.reward.shape)
    return best.argmax(-1)


@pytest.mark.slow
def test_the_baseline_is_the_return_of_the_greedy_answer_to_the_same_prompt():
    algorithm, run = begin(remax)
    found, size = exact()[0], exact()[0].reward.shape[1]
    prompts = np.asarray(found.transitions.timestep.observation)[0].reshape(-1, size)[:, 0]
    greedy = {
        int(prompt): float(found.reward[i, place])
        for i, (prompt, place) in enumerate(zip(prompts, greedy_answers(), strict=True))
    }
    assert algorithm.source is not None
    policy = algorithm.policy(run.state)
    _, batch, _ = algorithm.source.collect(run.state.source, policy, jax.random.key(3))
    count = algorithm.config.groups.answers
    own = subtract_greedy(batch, count)
    begins = np.asarray(own.transitions.timestep.observation)[0]
    baseline = np.asarray(own.transitions.extras["baseline"])
    expected = np.broadcast_to([greedy[int(p)] for p in begins], baseline.shape)
    np.testing.assert_allclose(baseline, expected, rtol=1e-5)
    # The sampled answers are the others, and they differ from the greedy ones.
    words = texts(batch.transitions, batch.mask)
    others = [w for i, w in enumerate(words) if i % (count + 1) < count]
    assert texts(own.transitions, own.mask) == others
    assert (np.asarray(own.transitions.reward.sum(0)) != expected[0]).any()


def test_its_gradient_is_that_of_the_return_less_the_divergence():
    """The expectation over all sampled answers beside the greedy one of their prompt."""
    algorithm, run = begin(remax)
    build, params = net_of(algorithm, run)
    found, probability, kept = exact()
    size = probability.shape[1]
    column = np.arange(probability.size).reshape(-1, size)
    best = np.take_along_axis(column, greedy_answers()[:, None], -1)
    column = np.concatenate([column, best], -1).reshape(-1)
    t = jax.tree.map(lambda x: x[:, column], found.transitions)
    reference = jax.tree.map(lambda x: 0.5 * x, params)
    allowed = jnp.asarray(kept)

    def log_probs(params, t, allowed):
        logits = logits_of(algorithm, params, t.timestep) / TEMPERATURE
        log_p = jax.nn.log_softmax(jnp.where(allowed, logits, -1e9))
        return jnp.take_along_axis(log_p, t.action[..., None], -1)[..., 0]

    inside = jnp.cumsum(t.done, 0) - t.done == 0
    extras = {"log_prob": log_probs(params, t, allowed[:, column]), "allowed": allowed[:, column]}
    batch = Batch(dataclasses.replace(t, extras=extras), jnp.float32(0), mask=inside)
    net = build(params)
    net.hyper._values = {**net.hyper._values, "kl.weight": jnp.float32(BETA)}
    net.target = types.SimpleNamespace(actor_critic=build(reference).actor_critic)
    ended = types.SimpleNamespace(report=lambda **reports: None)

    def epochs(passes, window, step, unit, max_drift):
        net.window = window
        return types.SimpleNamespace(update_targets=lambda *_: ended)

    net.epochs = epochs
    recipe = remax.recipe(ENV, Static(dataclasses.replace(
        algorithm.config, groups=dataclasses.replace(algorithm.config.groups, answers=size)
    )))  # fmt: skip
    recipe.update(net, batch)
    window: Minibatch = net.window
    assert window.x.advantage.shape[1] == probability.size
    loss = losses_of(recipe)["loss"]

    def estimate(params):
        value = loss(build(params), window.x).value
        return (jnp.where(window.mask, value, 0).sum(0) * probability.reshape(-1)).sum()

    def objective(params):
        now, then = (log_probs(x, found.transitions, allowed) for x in (params, reference))
        total = lambda x: jnp.where(found.mask, x, 0).sum(0)
        p = jnp.exp(total(now))
        ratio = jnp.where(p > 0, total(now) - total(then), 0)
        return -(p * (found.reward.reshape(-1) - BETA * ratio)).sum()

    ravel = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    got, want = (ravel(jax.jit(jax.grad(f))(params)) for f in (estimate, objective))
    np.testing.assert_allclose(got, want, atol=5e-5 * np.abs(want).max())
