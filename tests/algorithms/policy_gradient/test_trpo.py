"""TRPO's step: its Fisher-vector product, its line search, and their guarantees."""

import types

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxrl.algorithms.policy_gradient import trpo
from tests.kit.stub import stub

STATES, ACTIONS, FEATURES = 5, 3, 4
N = 64
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STATES, FEATURES)).astype(np.float32)
TINY = {"weight": RNG.normal(size=(FEATURES, ACTIONS)).astype(np.float32)}
POLICIES = {
    "categorical": (TINY, lambda p, x: distrax.Categorical(x @ p["weight"])),
    "gaussian": (
        TINY | {"log_std": RNG.normal(size=ACTIONS).astype(np.float32)},
        lambda p, x: distrax.MultivariateNormalDiag(
            x @ p["weight"], jnp.exp(p["log_std"]) + jnp.zeros((len(x), 1))
        ),
    ),
}


def net_of(kind, params, **hyper):
    """Return a net with a tiny policy, and a window [N] of its actions."""
    apply = POLICIES[kind][1]

    def net(params, **reports):
        return stub(
            hyper=hyper,
            actor=lambda timestep: apply(params, X[timestep.observation]),
            parts={"actor": types.SimpleNamespace(params=params)},
            with_params=lambda actor: net(actor, **reports),
            report=lambda **metrics: net(params, **metrics),
            metrics=reports,
        )

    rng = np.random.default_rng(1)
    timestep = types.SimpleNamespace(observation=rng.integers(0, STATES, N))
    policy = apply(params, X[timestep.observation])
    action, log_prob = policy.sample_and_log_prob(seed=jax.random.key(3))
    advantage = rng.normal(size=N).astype(np.float32)
    return net(params), stub(
        timestep=timestep, action=action, log_prob=log_prob, advantage=advantage
    )


@pytest.mark.parametrize("kind", POLICIES)
def test_products_are_those_of_the_explicit_fisher_matrix(kind):
    params, apply = POLICIES[kind]
    net, x = net_of(kind, params)
    flat, back = ravel_pytree(params)
    if kind == "categorical":  # the mean of the score's outer product, over all actions
        of = lambda p, s, a: apply(back(p), X[s : s + 1]).log_prob(a)[0]
        fisher = 0
        for s in range(STATES):
            share = (x.timestep.observation == s).mean()
            probability = np.asarray(apply(params, X[s : s + 1]).probs[0])
            for a in range(ACTIONS):
                g = np.asarray(jax.grad(of)(flat, s, jnp.asarray([a])), np.float64)
                fisher = fisher + share * probability[a] * np.outer(g, g)
    else:  # x x^T / s^2 of each dimension's weights, 2 of each log s
        seen = X[x.timestep.observation].astype(np.float64)
        outer = np.einsum("ni,nj->ij", seen, seen) / N
        precision = np.diag(np.exp(-2 * params["log_std"].astype(np.float64)))
        fisher = np.zeros((flat.size, flat.size))  # leaves in the order of their names
        fisher[:ACTIONS, :ACTIONS] = 2 * np.eye(ACTIONS)
        fisher[ACTIONS:, ACTIONS:] = np.kron(outer, precision)
    product = trpo.fisher(trpo.make_objective(net, x), params)
    for v in np.random.default_rng(2).normal(size=(3, flat.size)).astype(np.float32):
        got = ravel_pytree(product(back(jnp.asarray(v))))[0]
        np.testing.assert_allclose(got, fisher @ v, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("max_kl", [1e-3, 0.3])
def test_an_accepted_step_is_better_and_within_the_bound(kind, max_kl):
    net, x = net_of(kind, POLICIES[kind][0], max_kl=max_kl, damping=0.01)
    after = trpo.improve_policy(net, x, 10, 10)
    metrics = after.metrics
    assert metrics["accepted"] == 1
    assert 0.3 * max_kl < metrics["kl"] <= max_kl
    assert metrics["improvement"] > 0
    # The reported metrics are those of the new parameters.
    policy, old = after.actor(x.timestep), net.actor(x.timestep)
    gain = np.expm1(policy.log_prob(x.action) - x.log_prob) * x.advantage
    np.testing.assert_allclose(gain.mean(), metrics["improvement"], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(
        old.kl_divergence(policy).mean(), metrics["kl"], rtol=1e-3, atol=1e-6
    )


def test_the_line_search_halves_until_both_conditions_hold():
    # The loss is better within 0.2 of the start, the divergence within its bound nearer than 0.1.
    objective = lambda p: (jnp.where(jnp.abs(p) < 0.2, -jnp.abs(p), 0.0) + 5, p**2)
    found = lambda step, tries=10, max_kl=0.01: trpo.line_search(
        objective, jnp.float32(0), jnp.float32(step), jnp.float32(max_kl), tries
    )
    params, metrics = found(1.0)
    assert params == 1 / 16 and metrics["accepted"] == 1
    np.testing.assert_allclose(metrics["kl"], 1 / 256)
    assert found(1.0, max_kl=10.0)[0] == 1 / 8  # longer steps are not better
    assert found(0.09)[0] == np.float32(0.09)  # the first step


@pytest.mark.parametrize("shrinkage", [0.5, 0.8, 0.1])
def test_steps_shrink_by_the_given_factor(shrinkage):
    """The step taken is the longest power of the factor within the bound on the divergence."""
    objective = lambda p: (-p, p**2)
    one, bound = jnp.float32(1), jnp.float32(0.1001**2)  # 0.1^2 may round up
    params, _ = trpo.line_search(objective, jnp.float32(0), one, bound, 20, shrinkage)
    tried = shrinkage ** np.arange(20)
    np.testing.assert_allclose(params, tried[tried <= 0.1001][0], rtol=1e-5)


@pytest.mark.parametrize("what", ["too far", "no better", "too few tries", "no number"])
def test_a_rejected_step_leaves_the_parameters(what):
    loss = {"no better": lambda p: p**2, "no number": lambda p: jnp.where(p == 1, 0, jnp.nan)}
    objective = lambda p: (
        loss.get(what, lambda p: -p)(p),
        jnp.float32(1) if what == "too far" else (p - 1) ** 2,
    )
    start = jnp.float32(1)
    tries = 2 if what == "too few tries" else 10
    params, metrics = trpo.line_search(objective, start, jnp.float32(1), jnp.float32(1e-3), tries)
    assert params == start
    assert metrics["accepted"] == 0 and metrics["kl"] == 0 and metrics["improvement"] == 0


def test_each_member_of_a_sweep_searches_separately():
    objective = lambda p: (-p, p**2)
    search = lambda bound: trpo.line_search(objective, jnp.float32(0), jnp.float32(1), bound, 4)[0]
    np.testing.assert_array_equal(jax.vmap(search)(jnp.asarray([2.0, 0.3, 1e-9])), [1, 0.5, 0])
