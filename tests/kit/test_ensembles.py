"""Tests of a learner by networks of two weights: members that descend alone, slices of a batch,
and what is handed over."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.types import Batch
from jaxrl.kit import Loss, LossOutput, Part, Recipe, group
from jaxrl.kit.groups import Optimizer, Target
from jaxrl.kit.learner import learner

LINE = types.SimpleNamespace(
    init=lambda key, x: {"a": jax.random.normal(key, ()), "b": jnp.float32(0)},
    apply=lambda params, x: params["a"] * x + params["b"],
)
X = jnp.float32([1.0, 2.0, -1.0, 3.0])


@group
class Config:
    optimizer: Optimizer = Optimizer(learning_rate=0.1, max_grad_norm=1.0)
    target: Target = Target(rate=0.5)


def error(net, x):
    """Squared: of each member to a goal of its own, or of one network to what is held."""
    y = net.line(x)
    goals = 5.0 * jnp.arange(len(y))[:, None] if y.ndim > 1 else net.extra
    values = (y - goals) ** 2
    return LossOutput(values.sum(0) if y.ndim > 1 else values, {"output": y})


ERROR = Loss(error, ("line",), "error")


def agent(update, config=Config(), **more):
    static = Static(config)
    part = Part(LINE, (X,), static.optimizer, static.target, members=more.pop("members", 0))
    recipe = Recipe({"line": part}, lambda *_: (None, (), {}), (ERROR,), update, **more)
    return learner("line", config, recipe)


def batch(x=X):
    return Batch(x, jnp.float32(7))


def same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("in_slices", [False, True])
def test_each_member_descends_as_it_would_alone(flat, in_slices):
    """Adam and the bound of a gradient's norm are one member's, which the others do not know of."""

    def update(net, batch):
        turn = lambda net, batch: net.descend(ERROR, batch).update_targets()
        return net.minibatches(2, batch, turn) if in_slices else turn(net, batch)

    config = Config(optimizer=dataclasses.replace(Config().optimizer, flat=flat))
    ensemble = agent(update, config, members=3)
    state = ensemble.init(random.key(0), ensemble.hyper)
    begun = state.parts["line"]
    assert len(set(np.asarray(begun.params["a"]).tolist())) == 3
    for _ in range(2):
        state, info = ensemble.update(state, batch(), random.key(1))
    assert info.metrics["line_grad_norm"].shape == ()
    for i in range(3):
        one = lambda tree, i=i: jax.tree.map(lambda x: x[i], tree)
        alone = agent(update, config, extra=jnp.float32(5.0 * i))
        single = alone.init(random.key(0), alone.hyper)
        single = dataclasses.replace(single, parts={"line": one(begun)})
        for _ in range(2):
            single, _ = alone.update(single, batch(), random.key(1))
        same(one(state.parts["line"]), single.parts["line"])


def test_an_ensemble_and_its_copy_say_what_each_member_does():
    seen = {}

    def update(net, batch):
        seen["now"], seen["before"] = net.line(X), net.target.line(X)
        params = net.parts["line"].params
        seen["moved"] = net.with_params(line=jax.tree.map(lambda p: p + 1, params)).line(X)
        seen["one"] = net.network("line").apply(jax.tree.map(lambda p: p[1], params), X)
        return net

    ensemble = agent(update, members=3)
    state = ensemble.init(random.key(0), ensemble.hyper)
    ensemble.update(state, batch(), random.key(1))
    slopes = np.asarray(state.parts["line"].params["a"])[:, None]
    np.testing.assert_allclose(seen["now"], slopes * X, rtol=1e-6)
    np.testing.assert_allclose(seen["before"], slopes * X, rtol=1e-6)
    np.testing.assert_allclose(seen["one"], slopes[1] * X, rtol=1e-6)
    np.testing.assert_allclose(seen["moved"], (slopes + 1) * X + 1, rtol=1e-6)


def test_slices_are_updates_one_after_the_other():
    """Include what is held beside the parts, and delays counted from slice to slice."""

    def turn(net, batch):
        net = net.descend(ERROR, batch).update_targets(every=2)
        return net.replace(extra=net.extra + net.updates)

    start = jnp.float32(0)
    cut = agent(lambda net, batch: net.minibatches(4, batch, turn), extra=start)
    whole = agent(turn, extra=start)
    state = cut.init(random.key(0), cut.hyper)
    a, said = cut.update(state, batch(), random.key(1))
    a, _ = cut.update(a, batch(), random.key(1))
    b, each = state, []
    for i in range(8):
        b, info = whole.update(b, batch(X[i % 4 : i % 4 + 1]), random.key(1))
        each.append(info.metrics["error"])
    same((a.parts, a.extra), (b.parts, b.extra))
    assert b.extra == sum(range(8)) and (a.updates, b.updates) == (2, 8)
    np.testing.assert_allclose(said.metrics["error"], np.mean(each[:4]), rtol=1e-6)


def test_slices_draw_other_random_numbers_and_have_no_priorities():
    def turn(net, batch):
        return net.replace(extra=net.extra.at[net.updates].set(jax.random.uniform(net.key())))

    update = lambda net, batch: net.minibatches(4, batch, turn)
    drawing = agent(update, extra=jnp.zeros(4))
    state = drawing.init(random.key(0), drawing.hyper)
    state, _ = drawing.update(state, batch(), random.key(1))
    assert len(set(np.asarray(state.extra).tolist())) == 4
    feeding = agent(
        lambda net, batch: net.minibatches(4, batch, lambda net, x: net.feed(priority=X))
    )
    with pytest.raises(UserError, match="no replay index"):
        feeding.update(state, batch(), random.key(1))


def test_what_is_handed_over_counts_from_zero():
    update = lambda net, batch: net.descend(ERROR, batch)
    first = agent(update, extra=jnp.float32(3))
    state = first.init(random.key(0), first.hyper)
    state, _ = first.update(state, batch(), random.key(1))
    given = first.hand_over(state)
    assert (state.updates, state.env_steps) == (1, 7) and (given.updates, given.env_steps) == (0, 0)
    same((given.parts, given.extra), (state.parts, state.extra))
    other = agent(update, extra=jnp.float32(3), hand_over=lambda s: s.extra)
    assert other.hand_over(state) == 3
