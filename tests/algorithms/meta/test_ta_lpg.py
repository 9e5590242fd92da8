"""Meta-learning: the gradient through whole inner training, evolution over whole lives."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxrl import envs
from jaxrl.algorithms.meta import lpg, ta_lpg
from jaxrl.algorithms.meta.shared import environments, estimators, lifetimes
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import replace_hyper, without_hyper
from jaxrl.core.learn import learn
from jaxrl.core.train import start, train
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.sources.rollouts import rollouts
from jaxrl.tasks.basic import draw_once
from tests.contracts.structure import check_structure

ENV = time_limit(envs.make("random_mdp", num_states=4, num_actions=3), 3)  # cut in mid-window
CONFIG = ta_lpg.Config(
    outer="gradient", lifetimes=(2, 4), updates=2, learners=2, pairs=2, num_envs=2, num_steps=5,
    bootstrap=3, rule_width=4, baseline_updates=2, learning_rate=2.0,
)  # fmt: skip
UPDATES = 3


@functools.cache
def inner():
    return lpg.on_rollouts(
        ENV, ta_lpg.inner_config(CONFIG), draw_once(environments.around(ENV, 2.0))
    )


def float64(tree):
    cast = lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x
    return jax.tree.map(cast, tree)


# ------------------------------------------------------------------------------- the meta-gradient


def with_update(algorithm, change):
    """Return `algorithm` with `change` applied to the agent's state before each update."""
    agent = algorithm.agent

    def update(state, batch, key):
        return agent.update(change(state), batch, key)

    tasks = draw_once(environments.around(ENV, 2.0))
    source = rollouts(ENV, CONFIG.num_envs, CONFIG.num_steps, tasks)
    return learn(dataclasses.replace(agent, update=update), source)


def meta_gradient(algorithm):
    """Return the meta-gradient through `UPDATES` updates of a learner, the loss as a function of
    the rule's vector, and that vector, all in float64. The regularizers by inner metrics are
    excluded, since metrics are float32 by design; see below."""
    baseline = estimators.Baseline(ENV, ())
    example = example_timestep(ENV)
    outputs = lpg.network(ENV, ta_lpg.inner_config(CONFIG)).apply
    outer = estimators.objective(algorithm, outputs, baseline, UPDATES)
    run = start(algorithm, random.key(0))
    value = jax.jit(baseline.init)(random.key(1), example)
    with jax.enable_x64(True):
        agent = run.state.agent
        agent = dataclasses.replace(agent, rule=float64(agent.rule), params=float64(agent.params))
        run = dataclasses.replace(run, state=dataclasses.replace(run.state, agent=agent))
        life = lifetimes.Life(run, jnp.int32(8))
        learner = estimators.Learner(life, float64(value), ())
        vector, unravel = ravel_pytree(agent.rule)
        hyper = {"gae_lambda": 0.9, "entropy_weight": 0.3, "prediction_entropy_weight": 0.2,
                 "signal_weight": 0.0, "target_weight": 0.0}  # fmt: skip

        @jax.jit
        def loss(vector):
            return outer(unravel(vector), learner, random.key(7), hyper, 0.9)[0]

        return jax.jit(jax.grad(loss))(vector), loss, vector


def slopes(gradient, loss, vector, size=1e-6):
    """Return the slopes along 4 random directions, by the gradient and by central differences."""
    with jax.enable_x64(True):
        directions = np.random.default_rng(0).normal(size=(4, vector.size))
        ends = jnp.concatenate([vector + size * directions, vector - size * directions])
        up, down = np.split(np.asarray(jax.jit(jax.vmap(loss))(ends)), 2)
        return np.asarray(directions @ gradient), (up - down) / (2 * size)


def test_the_gradient_through_inner_training_is_that_of_finite_differences():
    gradient, loss, vector = meta_gradient(inner())
    assert gradient.dtype == jnp.float64
    claimed, true = slopes(gradient, loss, vector)
    np.testing.assert_allclose(claimed, true, rtol=1e-5)
    assert np.abs(true).min() > 1e-4
    # No part of the rule is cut off: its LSTM, embedding and both heads all have gradients.
    _, unravel = ravel_pytree(inner().agent.init(random.key(0), inner().hyper).rule)
    assert all(np.abs(x).max() > 1e-8 for x in jax.tree.leaves(unravel(gradient)))


@pytest.mark.parametrize("what", ["params", "rule"])
def test_a_stopped_gradient_is_detected(what):
    """Stops the gradient before an update, at the learner's parameters (only the last update then
    contributes) or at the rule (nothing does): the loss is the same, its gradient is not."""

    def stop(state):
        value = jax.lax.stop_gradient(getattr(state, what))
        return dataclasses.replace(state, **{what: value})

    gradient, loss, vector = meta_gradient(with_update(inner(), stop))
    claimed, true = slopes(gradient, loss, vector)
    assert (np.abs(claimed - true) > 0.1 * np.abs(true)).any()
    assert (what == "rule") == bool((claimed == 0).all())


def test_the_gradient_flows_through_the_inner_metrics():
    """The regularizers of pi_hat and y_hat are metrics of the learner's updates."""
    algorithm = inner()
    run = start(algorithm, random.key(0))
    vector, unravel = ravel_pytree(run.state.agent.rule)

    def report(vector, name):
        life = lifetimes.Life(run, jnp.int32(8))
        return lifetimes.live(algorithm, unravel(vector), life, UPDATES)[1][name].value()

    for name in ("signal_square", "target_square"):
        loss = functools.partial(report, name=name)
        gradient = jax.jit(jax.grad(loss))(vector)
        direction = gradient / jnp.linalg.norm(gradient)
        ends = jax.jit(jax.vmap(loss))(jnp.stack([vector + 0.01 * direction,
                                                  vector - 0.01 * direction]))  # fmt: skip
        np.testing.assert_allclose((ends[0] - ends[1]) / 0.02, gradient @ direction, rtol=0.02)


# ------------------------------------------------------------------------------- lives


def test_a_life_ends_at_its_horizon_and_another_begins_in_another_environment():
    algorithm, rule = inner(), start(inner(), random.key(3)).state.agent.rule
    hyper = {"learning_rate": jnp.float32(0.5)}

    @jax.jit
    def lead(key):
        life = lifetimes.begin(algorithm, rule, key, hyper, jnp.int32(4))
        seen = []
        for i in range(3):
            life, row, final = lifetimes.live(algorithm, rule, life, 2)
            seen.append((life, row["episode_return"], final))
            life = lifetimes.renew(algorithm, rule, life, random.key(i), hyper)
        return seen

    first, second, third = lead(random.key(0))
    assert [int(x[0].run.step) for x in (first, second, third)] == [2, 4, 2]
    assert all(int(x[0].horizon) == 4 for x in (first, second, third))
    environment = lambda x: np.asarray(x[0].run.state.source.tasks.reward)
    assert (environment(first) == environment(second)).all() and (
        environment(second) != environment(third)
    ).any()
    # Success is measured only in the last updates of a life.
    assert first[2].weight == third[2].weight == 0
    assert second[2].weight == second[1].weight > 0 and second[2].total == second[1].total
    # The learner has its own horizon in environment steps, and the given hyperparameters.
    given = third[0].run.state.agent.hyper
    assert given["lifetime"] == 4 * algorithm.env_steps and given["learning_rate"] == 0.5


def test_evolution_compares_mirrored_rules_in_the_same_lives():
    """The gradient is a sum of the perturbations, each with the sign of its pair; the sign is
    recomputed by running the lives one by one."""
    pairs, sigma = 2, 2.0
    found = estimators.evolution(inner(), (2, 4), pairs, 2)
    rule = start(inner(), random.key(3)).state.agent.rule
    hyper, key = {"sigma": jnp.float32(sigma)}, random.key(11)
    own = {"learning_rate": jnp.float32(10.0)}
    gradient, _, metrics = jax.jit(found.estimate)(rule, (), key, hyper, own)
    assert found.env_steps == 2 * pairs * 4 * inner().env_steps

    noise_key, key = jax.random.split(key)
    center, unravel = ravel_pytree(rule)
    noise = jax.random.normal(noise_key, (pairs, center.size))
    go = jax.jit(train, static_argnums=(0, 2))

    def success(vector, key, horizon):
        first, key = jax.random.split(key)
        births = [first, *jax.random.split(key, 2)]
        ends = {2: (1, 2), 4: (2,)}[horizon]  # after which blocks a life is over
        total, life = m.Mean(jnp.float32(0), jnp.float32(0)), None
        for block in (1, 2):
            if life is None:
                key = births[block - 1]
                life = lifetimes.begin(inner(), unravel(vector), key, own, jnp.int32(horizon))
            run, row = go(inner(), life.run, 2)
            life = lifetimes.Life(run, life.horizon)
            if block in ends:
                total, life = total.merge(row["episode_return"]), None
        return float(total.value())

    weights = []
    for i, k in enumerate(jax.random.split(key, pairs)):
        up, down = (success(center + s * sigma * noise[i], k, (2, 4)[i]) for s in (1, -1))
        weights.append(np.sign(up - down))
    assert any(weights)
    expected = -(np.array(weights) @ np.asarray(noise)) / (2 * pairs * sigma)
    np.testing.assert_allclose(ravel_pytree(gradient)[0], expected, atol=1e-5)
    assert metrics["final_return"].weight > 0
    # Without a perturbation the rules of a pair are equal, so neither is better.
    same, _, metrics = jax.jit(found.estimate)(rule, (), key, {"sigma": jnp.float32(1e-12)}, own)
    assert metrics["pair_difference"].value() == 0 and (ravel_pytree(same)[0] == 0).all()


# ------------------------------------------------------------------------------- the algorithm


@functools.cache
def algorithm(outer):
    return ta_lpg.ta_lpg(ENV, dataclasses.replace(CONFIG, outer=outer))


@pytest.mark.parametrize("outer", ta_lpg.OUTER)
def test_structure(outer):
    check_structure(algorithm(outer))
    again = dataclasses.replace(CONFIG, outer=outer)
    assert algorithm(outer) is ta_lpg.ta_lpg(ENV, config=again)


jitted = jax.jit(train, static_argnums=(0, 2))


def test_a_rule_that_diverges_is_frozen_with_its_learners():
    a = algorithm("gradient")
    run, _ = jitted(a, start(a, random.key(0)), 2)
    broken = replace_hyper(run.state, {"meta_learning_rate": np.inf})
    after, row = jitted(a, dataclasses.replace(run, state=broken), 2)
    assert row["diverged"].value() == after.state.diverged == 2 and after.state.steps == 4
    before, now = without_hyper(run.state), without_hyper(after.state)
    for name in before.keys() - {".steps", ".diverged"}:
        if not jnp.issubdtype(now[name].dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(now[name], before[name], name)


def test_the_rule_changes_and_its_policy_is_trained_by_it():
    a = algorithm("gradient")
    run, row = jitted(a, start(a, random.key(0)), 2)
    before = start(a, random.key(0)).state.rule
    assert any((x != y).any() for x, y in zip(
        jax.tree.leaves(before), jax.tree.leaves(run.state.rule), strict=True
    ))  # fmt: skip
    assert np.isnan(row["diverged"].value()) and np.isfinite(row["final_return"].value())
    assert set(np.asarray(run.state.learners.life.horizon)) == {2, 4}
    learner = a.policy(run.state).state
    for x, y in zip(jax.tree.leaves(learner.rule), jax.tree.leaves(run.state.rule), strict=True):
        np.testing.assert_array_equal(x, y)
    assert learner.hyper["lifetime"] == 4 * 2 * 5  # the longest life's updates, B and T


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"outer": "magic"}, "magic"),
        ({"lifetimes": (3, 4)}, "lifetimes is"),
        ({"lifetimes": (4, 6)}, "lifetimes is"),
        ({"lifetimes": ()}, "lifetimes is"),
        ({"pairs": 0}, "pairs is 0; it must be at least 1"),
        ({"rule_width": 0}, "rule_width is 0; it must be at least 1"),
        ({"spread": 0.5}, "spread is 0.5"),
    ],
)
def test_invalid_settings_are_rejected(changes, message):
    with pytest.raises(UserError, match=message):
        ta_lpg.ta_lpg(ENV, dataclasses.replace(CONFIG, **changes))


# ------------------------------------------------------------------------------- environments


def shapes(tree):
    return [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]


def test_random_environments_have_the_same_shapes_and_differ():
    draw = jax.jit(environments.around(ENV, 2.0))
    one, other = draw(random.key(0)), draw(random.key(1))
    assert shapes(one) == shapes(other) == shapes(ENV.params)
    assert (one.reward != other.reward).any() and (one.successor != other.successor).any()
    np.testing.assert_allclose(one.probability.sum(-1), 1, rtol=1e-5)


def test_parameters_of_other_environments_stay_within_the_spread():
    env = envs.make("cartpole")
    drawn_params = jax.jit(jax.vmap(environments.around(env, 3.0)))(
        jax.random.split(random.key(0), 64)
    )
    before, after = jax.tree.leaves(env.params), jax.tree.leaves(drawn_params)
    ratios = np.array([y / x for x, y in zip(before, after, strict=True) if x != 0])
    assert ratios.min() >= 1 / 3.001 and ratios.max() <= 3.001
    assert ratios.min() < 0.5 and ratios.max() > 2
    assert np.abs(np.log(ratios).mean()) < 0.3
