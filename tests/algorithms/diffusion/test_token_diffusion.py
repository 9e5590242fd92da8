"""Masked diffusion of strings: sampling, DRAKES's chain and divergence, SEPO's neighbors."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion import drakes, mdlm, sepo
from jaxrl.algorithms.diffusion.shared import token_diffusion as shared
from jaxrl.core.errors import UserError
from jaxrl.envs import make

LENGTH, LETTERS = 3, 2


def exact_logits(p):
    """Return the logits of the exact model of strings with probabilities p [2, 2, 2]."""
    strings = np.array(list(itertools.product(range(LETTERS), repeat=LENGTH)))
    log_p = jnp.log(jnp.asarray(p).reshape(-1))

    def logits(string, level):
        del level
        # Whether each string agrees with the letters that are not masked: [..., 8].
        known = string[..., :LETTERS]
        agrees = (known[..., None, :, :] * jax.nn.one_hot(strings, LETTERS)).sum(-1)
        agrees = jnp.log(jnp.maximum(agrees + string[..., None, :, LETTERS], 1e-9)).sum(-1)
        total = agrees + log_p
        of = jax.nn.one_hot(strings, LETTERS, dtype=bool)  # [8, L, V]
        return jax.nn.logsumexp(jnp.where(of, total[..., None, None], -jnp.inf), -3)

    return logits


@pytest.fixture(scope="module")
def law():
    return np.random.default_rng(0).dirichlet(np.ones(8)).reshape(2, 2, 2).astype(np.float32)


def shares(strings):
    number = np.asarray(strings) @ [4, 2, 1]
    return np.bincount(number, minlength=8) / len(number)


def test_many_steps_of_the_exact_model_draw_from_its_law(law):
    draw = jax.jit(
        lambda key: shared.sample_strings(key, exact_logits(law), 20_000, (LENGTH, LETTERS), 64)
    )
    assert np.abs(shares(draw(jax.random.key(0))) - law.reshape(-1)).max() < 0.02


def test_one_step_draws_letters_independently(law):
    drawn = shared.sample_strings(
        jax.random.key(0), exact_logits(law), 20_000, (LENGTH, LETTERS), 1
    )
    marginals = [law.sum((1, 2)), law.sum((0, 2)), law.sum((0, 1))]
    expected = np.einsum("a,b,c->abc", *marginals).reshape(-1)
    assert np.abs(shares(drawn) - expected).max() < 0.02


def test_a_cold_chain_draws_the_same_law_and_has_a_gradient(law):
    def play(key, scale, heat):
        logits = lambda string, level: scale * exact_logits(law)(string, level)
        size = LENGTH, LETTERS
        return drakes.soft_chain(key, logits, 8192, size, 32, 32, heat)

    begun, last = jax.jit(lambda key: play(key, 1.0, 0.01))(jax.random.key(0))
    assert begun.shape == (32, 8192, LENGTH, LETTERS + 1)
    assert (np.asarray(begun[0]).argmax(-1) == LETTERS).all()
    assert np.abs(shares(np.asarray(last).argmax(-1)) - law.reshape(-1)).max() < 0.03
    # The end is rounded, and still has the gradient of what is rounded.
    np.testing.assert_allclose(np.sort(last, -1)[..., -1], 1, atol=1e-5)
    first = lambda scale: play(jax.random.key(1), scale, 1.0)[1][..., 0].mean()
    assert abs(float(jax.grad(first)(1.0))) > 1e-4


def test_only_the_last_steps_of_a_chain_have_a_gradient(law):
    def ends(scale, soft):
        logits = lambda string, level: scale * exact_logits(law)(string, level)
        return drakes.soft_chain(jax.random.key(0), logits, 64, (LENGTH, LETTERS), 4, soft, 1.0)

    early = lambda scale: ends(scale, 1)[0][3, ..., 0].mean()  # what the last step begins with
    assert float(jax.grad(early)(1.0)) == 0
    assert float(jax.grad(lambda scale: ends(scale, 1)[1][..., 0].mean())(1.0)) != 0
    assert float(jax.grad(lambda scale: ends(scale, 4)[0][3, ..., 0].mean())(1.0)) != 0


def test_the_divergence_of_chains_is_that_of_their_laws(law):
    """The expected divergence of exact models is KL(q || p), with many steps."""
    other = np.random.default_rng(1).dirichlet(2 * np.ones(8)).reshape(2, 2, 2).astype(np.float32)

    @jax.jit
    def measure(key):
        chain, _ = drakes.soft_chain(key, exact_logits(law), 8192, (LENGTH, LETTERS), 128, 0, 1.0)
        return drakes.chain_divergence(exact_logits(law), exact_logits(other), chain)

    found = np.asarray(measure(jax.random.key(0)))
    expected = (law * np.log(law / other)).sum()
    assert float(found.mean()) == pytest.approx(float(expected), abs=0.03)


@pytest.mark.parametrize("seed", [1, 3])
def test_the_divergence_has_its_gradient_through_both_models(law, seed):
    """A chain's states move both models; without the frozen one's part the error is above 0.14."""
    other = np.random.default_rng(seed).dirichlet(np.ones(8)).reshape(2, 2, 2).astype(np.float32)
    way = np.random.default_rng(seed + 10).normal(size=(2, 2, 2)).astype(np.float32)

    def tilt(t):
        weight = law * jnp.exp(t * way)
        return weight / weight.sum()

    def divergence(t):
        own, size = exact_logits(tilt(t)), (LENGTH, LETTERS)
        begun, _ = drakes.soft_chain(jax.random.key(1), own, 4096, size, 16, 16, 0.1)
        return drakes.chain_divergence(own, exact_logits(other), begun).mean()

    expected = jax.grad(lambda t: (tilt(t) * jnp.log(tilt(t) / other)).sum())(0.0)
    assert float(jax.jit(jax.grad(divergence))(0.0)) == pytest.approx(float(expected), abs=0.1)


def test_scores_of_neighbors_are_ratios_of_the_law(law):
    string = jnp.asarray([[0, 1, 1], [1, 0, 0]])
    found = np.asarray(sepo.neighbor_scores(exact_logits(law), string, LETTERS)).reshape(2, 3, 2)
    for row, x in enumerate(np.asarray(string)):
        for place, letter in itertools.product(range(3), range(2)):
            y = x.copy()
            y[place] = letter
            ratio = law[tuple(y)] / law[tuple(x)]
            assert np.exp(found[row, place, letter]) == pytest.approx(ratio, rel=1e-4)


def test_probabilities_of_neighbors_and_the_string_sum_to_one(law):
    string = jnp.asarray([[0, 1, 1]])
    score = sepo.neighbor_scores(exact_logits(law), string, LETTERS)
    found = np.exp(np.asarray(sepo.neighbor_log_probs(score, string, LETTERS))).reshape(3, 2)
    own = found[np.arange(3), [0, 1, 1]]
    np.testing.assert_allclose(own, own[0], rtol=1e-5)  # x itself, at each place
    assert found.sum() - 2 * own[0] == pytest.approx(1, rel=1e-5)
    total = law[0, 1, 1] + law[1, 1, 1] + law[0, 0, 1] + law[0, 1, 0]
    assert own[0] == pytest.approx(law[0, 1, 1] / total, rel=1e-4)


def test_they_need_strings():
    for builder in (mdlm.mdlm, drakes.drakes, sepo.sepo):
        with pytest.raises(UserError, match="needs strings"):
            builder.agent(make("mixture"))


@pytest.mark.parametrize("steps", [8, 50, 100])
def test_no_mask_is_left_after_the_last_step(steps):
    """The rest of the time and 1 / steps differ by rounding with some numbers of steps."""
    string = jnp.zeros((1, LENGTH, LETTERS + 1)).at[..., -1].set(1)
    logits = lambda string, level: jnp.zeros((1, LENGTH, LETTERS))
    found = jax.jit(lambda step: shared.unmask(logits, string, step, steps))(steps - 1.0)
    assert (found[..., -1] == 0).all()
