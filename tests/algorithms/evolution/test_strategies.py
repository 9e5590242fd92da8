"""Evolution strategies against closed forms and an independent NumPy implementation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.algorithms.evolution.shared import cma, ranking, xnes
from jaxrl.algorithms.evolution.shared.eigen import eigh
from jaxrl.algorithms.evolution.shared.strategies import strategy
from jaxrl.core import random
from jaxrl.core.errors import UserError

HYPER = {"sigma": 0.5, "learning_rate": 0.1, "weight_decay": 0.0}
HYPER = {name: jnp.float32(value) for name, value in HYPER.items()}


def test_centered_ranks_by_hand():
    fitness = jnp.float32([3.0, -1.0, jnp.nan, 3.0, 10.0])
    # Ascending: NaN 0, -1 1, both 3s (2 + 3) / 2, 10 4; over 4, less 1/2.
    expected = [0.125, -0.25, -0.5, 0.125, 0.5]
    np.testing.assert_allclose(losses.centered_ranks(fitness), expected)
    np.testing.assert_array_equal(losses.centered_ranks(jnp.full(4, 7.0)), np.zeros(4))
    np.testing.assert_array_equal(ranking.ranks(fitness), [1, 3, 4, 2, 0])


def test_gradient_of_a_quadratic_has_its_closed_form():
    """The estimate with orthogonal antithetic pairs +-e_i sqrt(D) is exact: for -|x - a|^2 / 2 it
    is a - mean, for any sigma."""
    mean, target = jnp.float32([1.0, -2.0, 0.5]), jnp.float32([0.3, 0.1, 2.0])
    noise = np.sqrt(3) * np.concatenate([np.eye(3), -np.eye(3)])
    for sigma in (0.1, 3.0):
        genotypes = mean + sigma * noise
        fitness = -jnp.square(genotypes - target).sum(1) / 2
        estimate = losses.es_gradient(fitness, jnp.float32(noise), sigma)
        np.testing.assert_allclose(estimate, target - mean, rtol=1e-4)


def test_openai_asks_for_antithetic_pairs_and_stays_on_a_plateau():
    search = strategy("openai", 3, 10, "sgd")
    state = search.init(jnp.arange(3.0), HYPER)
    genotypes = search.ask(state, random.key(0))
    np.testing.assert_allclose(genotypes[:5] + genotypes[5:], 2 * np.tile([0, 1, 2], (5, 1)), 1e-5)
    same = search.tell(state, genotypes, jnp.ones(10), HYPER)
    np.testing.assert_array_equal(same.mean, state.mean)
    slope = search.tell(state, genotypes, genotypes @ jnp.float32([1.0, 0, 0]), HYPER)
    assert slope.mean[0] > state.mean[0]
    decayed = search.tell(state, genotypes, jnp.ones(10), HYPER | {"weight_decay": jnp.float32(1)})
    np.testing.assert_allclose(decayed.mean, 0.9 * np.arange(3), rtol=1e-6)


def random_covariance(values, seed=0):
    """Return a float32 covariance with these eigenvalues and random eigenvectors."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(len(values), len(values))))[0]
    return np.tril(a := np.float32((basis * values) @ basis.T)) + np.tril(a, -1).T


SPECTRA = {
    "one": np.float64([3.0]),
    "distinct": np.float64([1.0, 2.0, 5.0, 20.0]),
    "equal": np.float64([1.0, 1.0, 1.0, 3.0, 3.0]),
    "nearly equal": 1 + 1e-6 * np.arange(7),
    "two of two": np.float64([1.0, 1 + 1e-7]),
    "many equal": np.repeat([1.0, 3.0], [16, 17]),
    "ill-conditioned": 10.0 ** np.linspace(0, 6, 33),
}


@pytest.mark.parametrize("name", list(SPECTRA))
def test_eigenvectors_are_orthonormal_whatever_the_eigenvalues(name):
    """Includes equal eigenvalues, for which rounding leaves off-diagonal entries of any sign."""
    matrices = np.stack([random_covariance(SPECTRA[name], seed) for seed in range(20)])
    values, vectors = (np.float64(x) for x in jax.vmap(eigh)(matrices))
    transposed = vectors.swapaxes(1, 2)
    most = SPECTRA[name].max()
    identity = np.tile(np.eye(len(SPECTRA[name])), (20, 1, 1))
    np.testing.assert_allclose(transposed @ vectors, identity, atol=2e-6)
    np.testing.assert_allclose((vectors * values[:, None]) @ transposed, matrices, atol=4e-6 * most)
    expected = np.linalg.eigvalsh(np.float64(matrices))
    np.testing.assert_allclose(np.sort(values), expected, atol=4e-6 * most)


@pytest.mark.parametrize("name", [n for n in SPECTRA if n != "ill-conditioned"])
def test_the_roots_of_a_covariance(name):
    covariance = random_covariance(SPECTRA[name])
    values, basis = np.linalg.eigh(np.float64(covariance))
    root, inverse = (np.float64(x) for x in cma.roots(jnp.asarray(covariance)))
    np.testing.assert_allclose(root, (basis * values**0.5) @ basis.T, atol=1e-5)
    np.testing.assert_allclose(inverse, (basis * values**-0.5) @ basis.T, atol=1e-5)
    np.testing.assert_allclose(root @ root, covariance, atol=4e-6 * values.max())
    np.testing.assert_allclose(root @ inverse, np.eye(len(values)), atol=1e-5)
    diagonal = cma.roots(jnp.asarray(np.diag(covariance)))
    np.testing.assert_allclose(diagonal[0], np.diag(covariance) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(diagonal[1], np.diag(covariance) ** -0.5, rtol=1e-6)


def test_the_root_is_a_continuous_function_of_the_covariance():
    """Holds whichever basis is found for eigenvalues that are equal up to rounding."""
    move = jax.jit(jax.vmap(lambda c: cma.roots(c)[0]))
    for spectrum in (np.ones(5), SPECTRA["equal"]):
        covariance = random_covariance(spectrum)
        noise = 1e-6 * np.random.default_rng(0).normal(size=(50, *covariance.shape))
        noise = np.float32(noise + noise.swapaxes(1, 2))
        roots = move(np.concatenate([covariance[None], covariance + noise]))
        np.testing.assert_allclose(roots[1:], np.broadcast_to(roots[0], noise.shape), atol=2e-5)


@pytest.mark.parametrize("name", ["distinct", "equal", "nearly equal"])
def test_samples_have_the_covariance(name):
    covariance, mean = (
        random_covariance(SPECTRA[name]),
        np.arange(len(SPECTRA[name]), dtype=np.float32),
    )
    search = strategy("cma", len(mean), 100_000)
    state = search.init(mean, HYPER)
    root, inverse = cma.roots(jnp.asarray(covariance))
    state = dataclasses.replace(state, covariance=covariance, root=root, inverse_root=inverse)
    samples = np.asarray(search.ask(state, random.key(0)))
    scale = 0.5**2 * SPECTRA[name].max()
    np.testing.assert_allclose(samples.mean(0), mean, atol=0.02 * scale**0.5)
    np.testing.assert_allclose(np.cov(samples.T), 0.5**2 * covariance, atol=0.02 * scale)


class Reference:
    """Generations of the tutorial's figure 6 in float64, by loops; a mask selects the entries of
    the covariance that a variant keeps."""

    def __init__(self, dimension, population, mask, factor):
        n, count = dimension, population
        raw = [np.log((count + 1) / 2) - np.log(i) for i in range(1, count // 2 + 1)]
        self.weights = [w / sum(raw) for w in raw]
        self.mu = 1 / sum(w * w for w in self.weights)
        mu = self.mu
        self.cs = (mu + 2) / (n + mu + 5)
        self.ds = 1 + 2 * max(0, ((mu - 1) / (n + 1)) ** 0.5 - 1) + self.cs
        self.cc = (4 + mu / n) / (n + 4 + 2 * mu / n)
        self.c1 = factor * 2 / ((n + 1.3) ** 2 + mu)
        rank = factor * 2 * (0.25 + mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu)
        self.cm = min(1 - self.c1, rank)
        self.chi = n**0.5 * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        self.mask, self.n, self.t = mask, n, 0
        self.C, self.ps, self.pc = np.eye(n), np.zeros(n), np.zeros(n)
        self.m, self.s = np.ones(n), 0.5

    def tell(self, x, fitness):
        order = np.argsort(-fitness)[: len(self.weights)]
        ys = [(x[i] - self.m) / self.s for i in order]
        step = sum(w * y for w, y in zip(self.weights, ys, strict=True))
        values, basis = np.linalg.eigh(self.C)
        root = basis @ np.diag(values**-0.5) @ basis.T
        self.t += 1
        self.ps = (1 - self.cs) * self.ps + (self.cs * (2 - self.cs) * self.mu) ** 0.5 * root @ step
        norm = np.linalg.norm(self.ps)
        h = norm / (1 - (1 - self.cs) ** (2 * self.t)) ** 0.5 < (1.4 + 2 / (self.n + 1)) * self.chi
        self.pc = (1 - self.cc) * self.pc + h * (self.cc * (2 - self.cc) * self.mu) ** 0.5 * step
        delta = (1 - h) * self.cc * (2 - self.cc)
        rank = sum(w * np.outer(y, y) for w, y in zip(self.weights, ys, strict=True))
        new = (1 + self.c1 * delta - self.c1 - self.cm) * self.C
        new = new + self.c1 * np.outer(self.pc, self.pc) + self.cm * rank
        self.C = np.where(self.mask, new, self.C)
        self.m = self.m + self.s * step
        self.s = self.s * np.exp(self.cs / self.ds * (norm / self.chi - 1))


N = 5
MASKS = {
    "csa": (np.zeros((N, N), bool), 1),
    "sep_cma": (np.eye(N, dtype=bool), (N + 2) / 3),
    "cma": (np.ones((N, N), bool), 1),
}


def ellipsoid(x):
    scales = 10.0 ** np.linspace(0, 2, N)
    rotated = x @ np.linalg.qr(np.random.default_rng(1).normal(size=(N, N)))[0]
    return -(scales * rotated**2).sum(-1)


@pytest.mark.parametrize("name", list(MASKS))
def test_updates_agree_with_numpy(name):
    search, reference = strategy(name, N, 8), Reference(N, 8, *MASKS[name])
    ask, tell = jax.jit(search.ask), jax.jit(search.tell)
    state = search.init(jnp.ones(N), HYPER)
    for generation in range(12):
        genotypes = ask(state, random.key(generation))
        fitness = ellipsoid(np.asarray(genotypes, np.float64))
        state = tell(state, genotypes, jnp.float32(fitness), HYPER)
        reference.tell(np.asarray(genotypes, np.float64), fitness)
    np.testing.assert_allclose(state.mean, reference.m, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(state.sigma, reference.s, rtol=1e-3)
    np.testing.assert_allclose(state.path_sigma, reference.ps, rtol=1e-2, atol=1e-3)
    if name != "csa":
        covariance = reference.C if name == "cma" else np.diag(reference.C)
        np.testing.assert_allclose(state.covariance, covariance, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("dimension", "population"), [(6, 12), (10, 6)])
def test_a_seed_searches_alike_alone_and_in_a_vmapped_population(dimension, population):
    """Sums round differently under vmap. With ten dimensions and three parents, most eigenvalues
    of the covariance stay equal for a while."""
    search = strategy("cma", dimension, population)
    scales = jnp.float32(10.0 ** np.linspace(0, 2, dimension))
    turn = jnp.asarray(random_covariance(np.linspace(1, 2, dimension)))

    def means(key):
        def generation(state, key):
            genotypes = search.ask(state, key)
            fitness = -(scales * jnp.square(genotypes @ turn)).sum(-1)
            state = search.tell(state, genotypes, fitness, HYPER)
            return state, state.mean

        first = search.init(jnp.ones(dimension), HYPER)
        return jax.lax.scan(generation, first, jax.random.split(key, 15))[1]

    alone = jax.jit(means)(random.key(0))
    assert jnp.abs(alone[-1] - alone[0]).max() > 0.1
    for others in (1, 3, 8):
        keys = jnp.stack([random.key(i) for i in range(others + 1)])
        together = jax.jit(jax.vmap(means))(keys)[0]
        np.testing.assert_allclose(together, alone, atol=1e-4)


def test_cma_is_rotation_invariant():
    """A rotated problem, from a rotated mean and with rotated random numbers, gives the rotated
    search."""
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(N, N)))[0].astype(np.float32)
    search = strategy("cma", N, 8)
    tell = jax.jit(search.tell)
    state, rotated = (search.init(mean, HYPER) for mean in (jnp.ones(N), jnp.ones(N) @ turn))
    for generation in range(12):
        normal = jax.random.normal(random.key(generation), (8, N))
        genotypes = cma.genotypes(state, normal)
        there = cma.genotypes(rotated, normal @ turn)
        np.testing.assert_allclose(there, genotypes @ turn, atol=1e-3)
        fitness = jnp.float32(ellipsoid(np.asarray(genotypes, np.float64)))
        same = jnp.float32(ellipsoid(np.asarray(there, np.float64) @ turn.T))
        state = tell(state, genotypes, fitness, HYPER)
        rotated = tell(rotated, there, same, HYPER)
    np.testing.assert_allclose(rotated.sigma, state.sigma, rtol=1e-3)
    np.testing.assert_allclose(rotated.path_sigma, state.path_sigma @ turn, atol=1e-3)
    np.testing.assert_allclose(rotated.covariance, turn.T @ state.covariance @ turn, atol=1e-3)


def test_cma_converges_on_a_rotated_ellipsoid_and_its_separable_form_does_not():
    def run(name):
        search = strategy(name, N, 12)
        turn = jnp.float32(np.linalg.qr(np.random.default_rng(1).normal(size=(N, N)))[0])
        scales = jnp.float32(10.0 ** np.linspace(0, 4, N))

        def generation(state, key):
            genotypes = search.ask(state, key)
            fitness = -(scales * jnp.square(genotypes @ turn)).sum(-1)
            return search.tell(state, genotypes, fitness, HYPER), fitness.max()

        keys = jax.random.split(random.key(0), 150)
        return jax.jit(lambda: jax.lax.scan(generation, search.init(jnp.ones(N), HYPER), keys)[1])()

    full, diagonal = run("cma"), run("sep_cma")
    assert full[-1] > -1e-6 and full[-1] > 1e3 * diagonal[-1]


def test_xnes_agrees_with_its_equations_and_climbs():
    generator = np.random.default_rng(0)
    normal, fitness = generator.normal(size=(6, 2)), generator.normal(size=6)
    shape = np.array([[1.2, 0.3], [0.1, (1 + 0.03) / 1.2]])
    state = xnes.State(jnp.float32([1.0, 2.0]), jnp.float32(0.7), jnp.float32(shape))
    new = xnes.tell(state, jnp.float32(normal), jnp.float32(fitness))

    u = xnes.utilities(6)
    np.testing.assert_allclose(u.sum(), 0, atol=1e-12)
    u = u[np.argsort(np.argsort(-fitness))]
    toward = sum(u[i] * normal[i] for i in range(6))
    both = sum(u[i] * (np.outer(normal[i], normal[i]) - np.eye(2)) for i in range(6))
    size = np.trace(both) / 2
    rate = (9 + 3 * np.log(2)) / (5 * 2 * np.sqrt(2))
    generator_ = rate / 2 * (both - size * np.eye(2))
    power, expm = np.eye(2), np.eye(2)
    for k in range(1, 20):
        power = power @ generator_ / k
        expm = expm + power
    np.testing.assert_allclose(new.mean, [1, 2] + 0.7 * shape @ toward, rtol=1e-5)
    np.testing.assert_allclose(new.sigma, 0.7 * np.exp(rate / 2 * size), rtol=1e-5)
    np.testing.assert_allclose(new.shape, shape @ expm, rtol=1e-4)
    genotypes = xnes.genotypes(state, jnp.float32(normal))
    np.testing.assert_allclose(genotypes[0], [1, 2] + 0.7 * shape @ normal[0], rtol=1e-5)


def test_invalid_arguments_are_rejected():
    for arguments in (("openai", 3, 5), ("cma", 3, 3), ("cma", cma.LARGEST + 1, 8), ("xma", 3, 8)):
        with pytest.raises(UserError):
            strategy(*arguments)
