"""NFT: on its own samples it is GRPO, and what wrong answers teach."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.algorithms.tokens.nft import PROMPT_WEIGHTS, nft
from jaxrl.algorithms.tokens.shared.answers import Sample
from tests.algorithms.tokens.test_answers import (
    ACTED,
    MASK,
    NOW,
    RETURNS,
    B,
    T,
    loss_of,
    record_update,
    speaks,
)
from tests.kit.stub import losses_of

G = 4
Q = RETURNS.reshape(3, G).mean(1)  # 1/2, 0, 1/4


def sample_of(weight):
    return record_update(nft, prompt_weight=weight).data.x


@pytest.mark.parametrize("weight", PROMPT_WEIGHTS)
def test_what_is_known_of_an_answer(weight):
    """Prompts without a right answer teach nothing."""
    x = sample_of(weight)
    expected = {"dr_grpo": [0.5, 0, 0.75], "grpo": [1, 0, np.sqrt(3)], "equal": [1, 0, 1]}[weight]
    of_tokens = lambda of_prompts: np.broadcast_to(np.repeat(of_prompts, G), (T, B))
    np.testing.assert_allclose(x.advantage, of_tokens(expected), rtol=1e-6)
    np.testing.assert_allclose(x.value, of_tokens(Q), rtol=1e-6)
    np.testing.assert_array_equal(x.target, np.broadcast_to(RETURNS > 0, (T, B)))


def test_the_loss_of_a_token():
    values, _, _ = loss_of(nft, epsilon=0.7)
    ratio, q = np.exp(NOW - ACTED), np.repeat(Q, G)
    wrong = np.log(np.maximum((1 - q * ratio) / (1 - q), 0.7))
    assert ((1 - q * ratio) / (1 - q) < 0.7)[MASK].any()
    expected = -np.where(RETURNS > 0, NOW - ACTED, wrong) * np.repeat([0.5, 0, 0.75], G)
    np.testing.assert_allclose(values, np.where(MASK, expected, 0), rtol=1e-4, atol=1e-5)


def test_answers_may_share_a_column():
    """Packed minibatches: another answer begins with the fourth token of each column."""
    found = record_update(nft, epsilon=0.7)
    x = found.data.x
    right = np.where(np.arange(T)[:, None] < 3, RETURNS > 0, RETURNS <= 0)
    q = np.where(np.arange(T)[:, None] < 3, np.repeat(Q, G), 0.4)
    x = dataclasses.replace(x, target=jnp.float32(right), value=jnp.float32(q))
    values = losses_of(found.recipe)["loss"](found.net, x).value
    wrong = np.log(np.maximum((1 - q * np.exp(NOW - ACTED)) / (1 - q), 0.7))
    expected = -np.where(right, NOW - ACTED, wrong) * np.asarray(x.advantage)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_the_first_gradient_is_that_of_grpo():
    """The policy is the one that wrote; deviations are the population's, without epsilon."""
    with jax.enable_x64(True):
        found = record_update(nft, prompt_weight="grpo")
        loss = losses_of(found.recipe)["loss"]
        x = found.data.x
        acted = jnp.asarray(np.asarray(ACTED, np.float64))
        wide = lambda y: jnp.asarray(np.asarray(y, np.float64))
        q, right = wide(np.repeat(Q, G)), wide(RETURNS)
        weight = jnp.sqrt(jnp.where(q > 0, (1 - q) / jnp.where(q > 0, q, 1), 0))
        sample = Sample(
            x.timestep, x.action, acted, wide(x.reference),
            advantage=jnp.broadcast_to(weight, (T, B)),
            value=jnp.broadcast_to(q, (T, B)),
            target=jnp.broadcast_to(right, (T, B)),
        )  # fmt: skip

        def objective(log_prob):
            found.net.actor_critic = speaks(log_prob)
            return jnp.where(MASK, loss(found.net, sample).value, 0).sum()

        ours = jax.grad(objective)(acted)
        advantage = losses.group_relative(right.reshape(3, G), epsilon=0.0).reshape(-1)
        grpo = lambda p: losses.grpo(p, acted, acted, jnp.broadcast_to(advantage, (T, B)), 0.2, 0.0)
        theirs = jax.grad(lambda p: jnp.where(MASK, grpo(p), 0).sum())(acted)
        assert np.abs(theirs).max() > 1
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
        np.testing.assert_allclose(x.advantage, sample.advantage, rtol=1e-6)
