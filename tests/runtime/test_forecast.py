"""Forecasts of `jaxrl train --plan`: counts against sums by hand."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl.commands import command_line, train
from jaxrl.core import random
from jaxrl.runtime import forecast
from jaxrl.runtime.building import build
from jaxrl.runtime.driver import Program
from jaxrl.sweeps import memory
from tests.runtime import tiny

X, W = jnp.ones((4, 3)), jnp.ones((3, 5))
ONCE = 2 * 4 * 3 * 5


def work(function, *args):
    return forecast.count(jax.make_jaxpr(function)(*args).jaxpr)


def test_a_product_is_a_multiplication_and_an_addition_for_each_term():
    found = work(jnp.dot, X, W)
    assert found.flops == {"float32": ONCE} and found.is_bounded
    assert found.bytes == 4 * (12 + 15 + 20)
    batched = work(
        lambda x, y: jnp.einsum("bij,bjk->bik", x, y), jnp.ones((7, 4, 3)), jnp.ones((7, 3, 5))
    )
    assert batched.flops == {"float32": 7 * ONCE}
    assert work(
        lambda x, w: (x @ w).sum(), X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    ).flops == {"bfloat16": ONCE}


def test_a_convolution_is_a_product_at_each_place():
    image, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 6))
    order = ("NHWC", "HWIO", "NHWC")
    convolve = lambda x, w: jax.lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=order
    )
    assert work(convolve, image, kernel).total == 2 * (2 * 6 * 6 * 6) * (3 * 3 * 3)


def test_gradients_are_two_products_more():
    gradient = jax.grad(lambda x, w: ((x @ w) ** 2).sum(), (0, 1))
    assert work(gradient, X, W).total == 3 * ONCE


def test_loops_count_as_often_as_they_run_and_branches_once():
    def scan(x, w):
        return jax.lax.scan(lambda c, _: (c + (x @ w).sum(), None), 0.0, length=6)[0]

    assert work(scan, X, W).total == 6 * ONCE
    assert (
        work(lambda x, w: jax.lax.fori_loop(0, 6, lambda i, c: c + (x @ w).sum(), 0.0), X, W).total
        == 6 * ONCE
    )
    branch = lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda: (x @ w) @ w.T, lambda: x)
    assert work(branch, X, W).total == 2 * ONCE
    unknown = work(
        lambda x, w: jax.lax.while_loop(lambda c: c < x[0, 0], lambda c: c + (x @ w).sum(), 0.0),
        X,
        W,
    )
    assert unknown.total == ONCE and not unknown.is_bounded


def test_a_chip_is_as_slow_as_what_it_is_slowest_in():
    chip = forecast.Accelerator("one", {"float32": 10.0, "bfloat16": 20.0}, 5.0)
    assert forecast.Work({"float32": 20.0, "bfloat16": 20.0}, 5.0).seconds_on(chip) == 3.0
    assert forecast.Work({"float32": 20.0}, 50.0).seconds_on(chip) == 10.0


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_bytes_are_those_of_the_state(name):
    config = tiny.config() if name == "ppo" else tiny.configuration.experiment({"algorithm": "dqn"})
    state = Program(build(config)[1]).shapes(random.key(0)).run.state
    groups = forecast._bytes_by_group(state)
    assert sum(groups.values()) == memory.size(state)
    params = memory.size([part.params for part in state.agent.parts.values()])
    assert groups["parameters"] == params and groups["optimizers"] >= 2 * params
    assert ("target networks" in groups) == (name == "dqn")


def test_a_plan_is_printed_and_nothing_is_written(tmp_path, capsys):
    words = [tiny.write_settings(tmp_path), "--plan", "--seeds", "2"]
    assert command_line.call(train.main, words) == 0
    said = capsys.readouterr().out
    for text in (
        "all 2 seeds together",
        "parameters",
        "An update is 64 environment steps, and",
        "Measured here",
        "steps/s",
        "H100 SXM",
    ):
        assert text in said
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
