"""A diverged algorithm keeps its state, alone or beside others under vmap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.divergence import Buffer, forgive, freeze, guard
from jaxrl.core.learn import learn
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import Agent, Algorithm, Batch, Info, Policy, Source, struct


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


ROWS = 1009  # a size that nothing else in the program has


def writer(node):
    """Make an agent that writes each observation's sum into a large array, which `node` holds."""

    def init(key, hyper):
        return {"weight": jnp.float32(0), "rows": node(jnp.zeros(ROWS)), "steps": jnp.int32(0)}

    def update(state, batch, key):
        rows = state["rows"].content if isinstance(state["rows"], Buffer) else state["rows"]
        rows = rows.at[state["steps"]].set(1.0)
        loss = jnp.where(state["steps"] == 2, jnp.nan, 1.0)
        steps = state["steps"] + 1
        new = {"weight": state["weight"] + loss, "rows": node(rows), "steps": steps}
        return new, Info({"loss": loss})

    act = lambda state, timestep, memory, key, greedy: (0.0, memory, {})
    source = Source(
        "nothing",
        lambda key, hyper, policy: (),
        lambda state, policy, key: ((), (), {}),
        lambda state, fresh, key: Batch((), jnp.float32(0)),
        env_steps=1,
    )
    return learn(Agent("writer", init, act, update), source)


def selects(algorithm):
    """Count the selects over `ROWS` numbers in the compiled step."""
    state = algorithm.init(random.key(0), {})
    step = jax.jit(algorithm.step, donate_argnums=0).lower(state, random.key(1))
    lowered = sum("stablehlo.select" in x and f"tensor<{ROWS}x" in x for x in lines(step.as_text()))
    compiled = step.compile().as_text()
    return lowered, sum("select(" in x and f"[{ROWS}]" in x for x in lines(compiled))


def lines(text):
    return text.splitlines()


def test_buffers_are_not_selected():
    assert selects(writer(Buffer)) == (0, 0)
    assert selects(writer(lambda rows: rows))[0] > 0  # what a plain array costs


def test_buffers_go_on_and_all_else_is_frozen():
    algorithm = writer(Buffer)
    state = algorithm.init(random.key(0), {})
    for i in range(5):
        state, _ = jax.jit(algorithm.step)(state, random.key(i))
    assert state.diverged == 2 and state.agent["weight"] == 2 and state.agent["steps"] == 2
    np.testing.assert_array_equal(np.flatnonzero(state.agent["rows"].content), [0, 1, 2])
