"""The transformer over payoffs: equivariance, and attention against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.networks.game_transformer import Attend, GameTransformer

NETWORK = GameTransformer(blocks=2, heads=2, size=8, width=8)


@pytest.fixture(scope="module")
def params():
    return NETWORK.init(jax.random.key(0), jnp.zeros((2, 3, 3)))


@pytest.mark.parametrize("players", [2, 3])
def test_policies_are_permuted_as_games_are(params, players):
    """The parameters are those of games of two players with three actions."""
    payoff = jax.random.normal(jax.random.key(1), (players, *([4] * players)))
    plain = NETWORK.apply(params, payoff)
    assert plain.shape == (players, 4) and np.ptp(plain, 1).min() > 1e-3
    orders = [np.random.default_rng(p).permutation(4) for p in range(players)]
    moved = payoff[np.ix_(range(players), *orders)]
    expected = np.stack([plain[p, order] for p, order in enumerate(orders)])
    np.testing.assert_allclose(NETWORK.apply(params, moved), expected, atol=1e-5)
    turned = np.roll(np.arange(players), 1)  # new player p is the old player turned[p]
    others = jnp.transpose(payoff, (0, *(1 + turned)))[turned]
    np.testing.assert_allclose(NETWORK.apply(params, others), plain[turned], atol=1e-5)


def test_a_player_of_a_game_is_told_from_the_other(params):
    """A player who is paid what the other was has another policy."""
    payoff = jax.random.normal(jax.random.key(2), (2, 3, 3))
    logits = NETWORK.apply(params, payoff)
    swapped = NETWORK.apply(params, payoff[::-1])
    assert np.abs(logits - swapped).max() > 1e-3


def test_attention_by_loops():
    module = Attend(heads=2, width=4)
    x, others = (jax.random.normal(jax.random.key(k), (n, 6)) for k, n in ((3, 2), (4, 5)))
    params = module.init(jax.random.key(5), x, others)
    p = jax.tree.map(np.asarray, params["params"])
    norm = lambda y: y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6)
    query, key = (norm(norm(y) @ p[n]["kernel"]) for y, n in ((x, "query"), (others, "key")))
    value = norm(np.asarray(others)) @ p["value"]["kernel"]
    found = np.zeros((2, 4))
    for m in range(2):
        for head in (slice(0, 2), slice(2, 4)):
            weights = np.exp([query[m, head] @ k[head] / np.sqrt(2) for k in key])
            found[m, head] = weights @ value[:, head] / weights.sum()
    after = np.asarray(x) + found @ p["mix"]["kernel"] + p["mix"]["bias"]
    grown = np.asarray(jax.nn.gelu(norm(after) @ p["grow"]["kernel"] + p["grow"]["bias"]))
    expected = after + grown @ p["shrink"]["kernel"] + p["shrink"]["bias"]
    np.testing.assert_allclose(module.apply(params, x, others), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 2, 2), (2, 3)])
def test_payoffs_of_another_shape_are_refused(params, shape):
    with pytest.raises(UserError, match=r"\[N, A, ..., A\]"):
        NETWORK.apply(params, jnp.zeros(shape))
