"""Contrastive RL: its loss by loops, its optimum in a maze, and the advantage."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.goals import crl
from jaxrl.core.settings import Static, replace
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

RNG = np.random.default_rng(0)


def test_own_goals_are_told_from_others():
    state, goal = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)  # members, batch, latent
    output = crl.contrastive_loss(jnp.asarray(state), jnp.asarray(goal))
    for i in range(5):
        error, scores = 0.0, np.zeros(5)
        for member in range(3):
            for j in range(5):
                logit = state[member, i] @ goal[member, j] / 2.0
                chance = 1 / (1 + np.exp(-logit))
                error -= np.log(chance if i == j else 1 - chance)
                scores[j] += logit
        np.testing.assert_allclose(output.value[i], error / 15, rtol=1e-4)
        assert output.metrics["accuracy"][i] == (scores.argmax() == i)
    single = crl.contrastive_loss(jnp.asarray(state[0]), jnp.asarray(goal[0]))
    assert single.value.shape == (5,)


def test_the_optimum_is_the_log_ratio_of_discounted_visits():
    """Embeddings that are tables (one-hot states) have the exact optimum of the expected loss:
    log p(g | s) / p(g), less log(B - 1) for the B - 1 wrong goals of a batch."""
    places, batch = 4, 8
    chance = RNG.dirichlet(np.ones(places), places)  # of a goal, given a state
    marginal = chance.mean(0)
    best = np.log(chance / marginal) - np.log(batch - 1)

    def expected_loss(table):
        """The loss of a state, in expectation over its goal and over those of the others."""
        logit = 2.0 * table  # of embeddings of length 4: the root is 2
        own = jax.nn.softplus(-logit / 2.0)
        other = jax.nn.softplus(logit / 2.0)
        return (chance * own + (batch - 1) * marginal * other).sum() / batch

    slope = jax.grad(expected_loss)(jnp.asarray(best))
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    # The loss of one batch, drawn often, has that expectation.
    draws = 3000
    states = RNG.integers(0, places, (draws, batch))
    goals = np.array([[RNG.choice(places, p=chance[s]) for s in row] for row in states])
    eye = np.eye(places)
    table = 2.0 * best
    loss = jax.vmap(lambda s, g: crl.contrastive_loss(s, g).value.mean())
    found = np.asarray(loss(jnp.asarray(table[states]), jnp.asarray(eye[goals])))
    exact = (
        chance * np.log1p(np.exp(-best)) + (batch - 1) * marginal * np.log1p(np.exp(best))
    ).sum()
    tolerance = 4 * found.std() / draws**0.5
    np.testing.assert_allclose(found.mean(), exact / places / batch, atol=tolerance)


def test_the_policy_imitates_by_advantage():
    x = everything.steps("actor_goal")
    n = len(x.reward)
    q, v, log_prob = RNG.normal(size=(2, n)), RNG.normal(size=n), RNG.normal(size=n)
    q, v, log_prob = (a.astype(np.float32) for a in (q, v, log_prob))
    recipe = crl.recipe(everything.ENV, Static(replace(crl.Config(), {"latent": 4})))
    net = stub(
        critic=lambda t, a: q,
        value=lambda t: v,
        actor=lambda t: everything.policy(log_prob),
        hyper={"extraction.temperature": 0.5, "extraction.cloning": 0.1},
    )
    weight = np.minimum(np.exp((q.min(0) - v) / 0.5), 100)
    found = losses_of(recipe)["actor_loss"](net, x).value
    np.testing.assert_allclose(found, -weight * log_prob, rtol=1e-4)
