"""A diverged algorithm keeps its state, alone or beside others under vmap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.divergence import forgive, freeze, guard
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import Algorithm, Policy, struct


@struct
class State:
    total: jax.Array
    large: jax.Array
    steps: jax.Array
    diverged: jax.Array
    hyper: dict


def counting(but=()):
    """Make an algorithm that adds 1 to `total` and `large` in each step, and NaN to `total` in step
    `breaks_at`."""

    def init(key, hyper):
        return State(jnp.float32(0), jnp.zeros(2), jnp.int32(0), jnp.int32(m.NEVER), dict(hyper))

    def step(state, key):
        breaks = state.steps == state.hyper["breaks_at"]
        total = state.total + jnp.where(breaks, jnp.nan, 1.0)
        sound = ~breaks & (state.diverged == m.NEVER)
        new = dataclasses.replace(state, total=total, large=state.large + (sound if but else True))
        return new, {"total": m.mean(total)}

    policy = lambda state: Policy(lambda *_: None, lambda n: (), state.total)
    hyper = {"breaks_at": jnp.float32(-1)}
    algorithm = Algorithm("counting", init, step, policy, hyper, env_steps=1)
    return guard(algorithm, lambda state, metrics: jnp.isfinite(metrics["total"].total), but)


def test_a_guarded_algorithm_keeps_the_state_before_the_first_bad_step():
    """The state stays for good, though the numbers of the next step are finite again."""
    for algorithm in (counting(), counting(but=("large",))):
        runs = jax.vmap(lambda at: start(algorithm, random.key(0), {"breaks_at": at}))(  # noqa: B023
            jnp.float32([-1, 3, 0])
        )
        after, row = jax.jit(jax.vmap(lambda run: train(algorithm, run, 6)))(runs)  # noqa: B023
        assert after.state.total.tolist() == [6, 3, 0]
        assert after.state.large[:, 0].tolist() == [6, 3, 0]
        assert after.state.steps.tolist() == [6, 6, 6]
        assert after.state.diverged.tolist() == row["diverged"].step.tolist() == [m.NEVER, 3, 0]


def test_fields_that_are_not_selected_are_left_to_the_algorithm():
    algorithm = counting()
    whole = guard(
        dataclasses.replace(algorithm, step=lambda s, key: (
            dataclasses.replace(s, large=s.large + 1), {}
        )),
        lambda state, metrics: jnp.bool_(False),
        ("large",),
    )  # fmt: skip
    run, _ = advance(whole, start(whole, random.key(0)))
    assert run.state.large.tolist() == [1, 1] and run.state.diverged == 0


def test_the_first_bad_step_is_remembered():
    old, new = {"x": jnp.float32(1)}, {"x": jnp.float32(2)}
    for finite, steps, before, kept, diverged in (
        (True, 4, m.NEVER, 2, m.NEVER),
        (False, 4, m.NEVER, 1, 4),
        (True, 5, 4, 1, 4),
        (False, 5, 4, 1, 4),
    ):
        left, at = freeze(new, old, jnp.bool_(finite), jnp.int32(steps), jnp.int32(before))
        assert left["x"] == kept and at == diverged


def test_every_part_that_diverged_is_forgiven():
    inner = start(counting(), random.key(0)).state
    frozen = dataclasses.replace(inner, diverged=jnp.int32(3))
    life = dataclasses.replace(inner, total=frozen, diverged=jnp.int32(4))
    after = forgive({"life": life, "diverged": 1})
    assert after["life"].diverged == after["life"].total.diverged == m.NEVER
    assert (
        after["diverged"] == 1
    )  # an entry of a dictionary, such as a metric, does not count steps
    np.testing.assert_array_equal(after["life"].large, inner.large)
    members = forgive(dataclasses.replace(inner, diverged=np.int32([3, m.NEVER])))
    assert members.diverged.dtype == np.int32 and (members.diverged == m.NEVER).all()
