"""Recipes around recipes, and losses added to losses, on parts of one number."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.kit import Loss, LossOutput, Part, Recipe
from jaxrl.kit.composing import around, plus
from jaxrl.kit.learner import learner
from tests.kit.test_learner import STATIC, Config, Table, act, batch, square, weights

SQUARE = Loss(square, ("a",), "loss")
PARTS = {"a": Part(Table([0.0]), (), STATIC.optimizer, STATIC.target)}
BONUS = Loss(lambda net, x: 0.5 * jnp.square(net.b(x.observation) - x.reward), ("b",), "bonus")
MORE = {"b": Part(Table([0.0]), (), STATIC.other, STATIC.target)}


def run(recipe, data, times=1):
    agent = learner("tiny", Config(), recipe)
    state = agent.init(random.key(0), agent.hyper)
    for _ in range(times):
        state, info = jax.jit(agent.update)(state, data, random.key(1))
    return state, info


def pay(net, data):
    """One more of reward than there is; what was added is counted."""
    x = data.transitions
    after = dataclasses.replace(x.next_timestep, reward=x.reward + 1.0)
    changed = dataclasses.replace(data, transitions=dataclasses.replace(x, next_timestep=after))
    return net.replace(extra=net.extra + 1.0), changed, "kept"


def test_an_inner_update_descends_and_follows_its_own_alone():
    inner = Recipe(PARTS, act, (SQUARE,), extra=jnp.float32(7))
    recipe = around(inner, parts=MORE, losses=(BONUS,), extra=jnp.float32(0), before=pay)
    state, info = run(recipe, batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state), 0.5 * 3.0)  # of rewards 2 and 4
    np.testing.assert_allclose(weights(state, "b"), 0.0)
    np.testing.assert_allclose(state.parts["a"].target["w"], 0.25 * 1.5)
    np.testing.assert_allclose(state.parts["b"].target["w"], 0.0)
    assert "bonus" not in info.metrics
    assert (state.extra.inner, state.extra.own) == (7, 1)


def test_what_is_around_learns_from_the_batch_as_it_was_sampled():
    def after(net, data, kept):
        assert kept == "kept"
        return net.descend(BONUS, data).update_targets("b")

    inner = Recipe(PARTS, act, (SQUARE,))
    recipe = around(inner, parts=MORE, losses=(BONUS,), extra=0.0, before=pay, after=after)
    state, _ = run(recipe, batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state, "b"), 0.5 * 2.0)
    np.testing.assert_allclose(state.parts["b"].target["w"], 0.25)


def test_two_around_one_keep_their_extras_apart():
    inner = Recipe(PARTS, act, (SQUARE,), extra=jnp.float32(7))
    once = around(inner, extra=jnp.float32(0), before=pay)
    twice = around(once, extra=jnp.float32(10), before=pay)
    state, _ = run(twice, batch([1.0, 3.0]), times=2)
    assert (state.extra.own, state.extra.inner.own, state.extra.inner.inner) == (12, 2, 7)


def test_what_is_around_may_act():
    shifted = lambda act: lambda net, *rest: (act(net, *rest)[0] + net.extra, *act(net, *rest)[1:])
    inner = Recipe(PARTS, act, (SQUARE,), extra=jnp.int32(7))
    agent = learner("tiny", Config(), around(inner, act=shifted))
    state = agent.init(random.key(0), agent.hyper)
    step = batch([1.0], [2]).transitions.timestep
    assert int(agent.act(state, step, (), random.key(0), True)[0][0]) == 9


def test_names_that_are_taken_are_refused():
    inner = Recipe(PARTS, act, (SQUARE,))
    with pytest.raises(UserError, match="The part 'a' is in the inner recipe too"):
        around(inner, parts=PARTS)
    with pytest.raises(UserError, match="The loss 'loss' is in the inner recipe too"):
        around(inner, losses=(SQUARE,))


@pytest.mark.parametrize("weight", [0.5, lambda net: 0.5 * net.hyper.scale])
def test_an_auxiliary_loss_adds_its_gradient(weight):
    """d/dw of mean(0.5 (w - r)^2) + 0.5 mean(3 w) at 0."""
    linear = Loss(
        lambda net, x: LossOutput(3 * net.a(x.observation), {"seen": x.reward}), ("a",), "aux"
    )
    both = plus(SQUARE, linear, weight)
    state, info = run(Recipe(PARTS, act, (both,)), batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state), -0.5 * (-2.0 + 1.5))
    assert both.name == "loss" and info.metrics["seen"] == 2 and info.metrics["aux"] == 0


def test_an_auxiliary_loss_may_descend_another_part_and_be_a_sum_with_its_own_count():
    counted = lambda net, x: LossOutput(m.Mean(3 * net.b(x.observation).sum(), jnp.float32(4)))
    both = plus(SQUARE, Loss(counted, ("b",), "aux"), 2.0)
    state, _ = run(Recipe({**PARTS, **MORE}, act, (both,)), batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state), 0.5 * 2.0)
    np.testing.assert_allclose(weights(state, "b"), -0.5 * 2 * 3 * 2 / 4)


def test_what_would_be_lost_is_refused():
    kept = Loss(lambda net, x: LossOutput(square(net, x), aux=x.reward), ("a",), "aux")
    with pytest.raises(UserError, match="'aux' has aux, a priority or a drift"):
        run(Recipe(PARTS, act, (plus(SQUARE, kept),)), batch([1.0]))
    counted = Loss(
        lambda net, x: LossOutput(m.Mean(square(net, x).sum(), jnp.float32(1))), ("a",), "c"
    )
    with pytest.raises(UserError, match="Swap the two"):
        run(Recipe(PARTS, act, (plus(counted, SQUARE),)), batch([1.0]))
