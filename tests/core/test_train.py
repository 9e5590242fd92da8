import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.train import Run, advance, empty_row, start, train
from jaxrl.core.types import Agent
from tests.toy import NOT, toy, toy_agent, toy_source

STEPS = 12


@functools.cache
def algorithm():
    return toy(2)


def bits(tree):
    """View leaves as integers, so that equality is of bits (and NaN equals NaN)."""

    def view(x):
        x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        x = np.asarray(x)
        return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "f" else x

    return [view(x) for x in jax.tree.leaves(tree)]


def assert_same_bits(a, b):
    for x, y in zip(bits(a), bits(b), strict=True):
        np.testing.assert_array_equal(x, y)


def assert_close(a, b, rtol=1e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-7)


def member(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


jitted = jax.jit(train, static_argnums=(0, 2))


def test_train_is_the_python_loop_of_advance():
    run = begin = start(algorithm(), random.key(0))
    rows = []
    for _ in range(STEPS):
        run, metrics = advance(algorithm(), run)
        rows.append(metrics)
    scanned, row = jitted(algorithm(), begin, STEPS)
    assert_close(scanned, run)
    assert_close(row, functools.reduce(m.merge, rows), 1e-5)
    assert scanned.step == STEPS
    assert_same_bits(scanned.key, begin.key)


@pytest.mark.parametrize("chunks", [(1,) * STEPS, (5, 7), (3, 0, 9)])
def test_any_chunking_has_the_same_bits(chunks):
    begin = start(algorithm(), random.key(0))
    whole, whole_row = jitted(algorithm(), begin, STEPS)
    run, row = begin, empty_row(algorithm(), begin)
    for chunk in chunks:
        run, part = jitted(algorithm(), run, chunk)
        row = m.merge(row, part)
    assert_same_bits(whole, run)
    assert_close(whole_row, row, 1e-5)


@jax.jit
def drive(run, row, steps):
    """Run as a driver does: the trip count is an argument."""

    def body(_, carry):
        run, row = carry
        run, metrics = advance(algorithm(), run)
        return run, m.merge(row, metrics)

    return jax.lax.fori_loop(0, steps, body, (run, row))


@pytest.mark.parametrize("chunks", [(STEPS,), (4, 1, 7), (6, 6)])
def test_a_driven_loop_with_a_traced_trip_count_has_the_same_bits(chunks):
    begin = start(algorithm(), random.key(0))
    whole, whole_row = jitted(algorithm(), begin, STEPS)
    run, row = begin, empty_row(algorithm(), begin)
    for chunk in chunks:
        run, row = drive(run, row, chunk)
    assert_same_bits((whole, whole_row), (run, row))
    assert drive._cache_size() == 1


def test_each_step_draws_from_its_own_key():
    """Step t draws from fold_in(key, t + 1), init from fold_in(key, 0), however long a call is."""
    key = random.key(5)
    run = start(algorithm(), key)
    state = algorithm().init(jax.random.fold_in(key, 0), algorithm().hyper)
    assert_same_bits(run.state, state)
    for t in range(3):
        state, _ = algorithm().step(state, jax.random.fold_in(key, t + 1))
        run, _ = advance(algorithm(), run)
    assert_same_bits(run.state, state)


def test_vmap_over_keys():
    keys = jax.random.split(random.key(1), 5)
    go = lambda key: train(algorithm(), start(algorithm(), key), 4)
    together, rows = jax.jit(jax.vmap(go))(keys)
    assert len(np.unique(together.state.agent.weight)) == 5
    for i in range(5):
        alone, row = jax.jit(go)(keys[i])
        assert_close(member(together, i), alone)
        assert_close(member(rows, i), row, 1e-5)


@pytest.mark.slow
def test_vmap_over_every_hyper():
    sweep = {"rate": jnp.array([0.1, 0.2, 0.3]), "breaks_at": jnp.array([NOT, 3.0, NOT])}
    for name, values in sweep.items():
        go = lambda value, name=name: train(
            algorithm(), start(algorithm(), random.key(0), {name: value}), 4
        )
        together, _ = jax.vmap(go)(values)
        for i, value in enumerate(values):
            alone, _ = go(value)
            assert_close(member(together, i), alone)
    with pytest.raises(UserError, match=r"did you mean 'rate'\?"):
        start(algorithm(), random.key(0), {"rates": 1.0})


def test_a_new_hyper_or_key_or_state_compiles_nothing():
    traces = []

    @jax.jit
    def go(run):
        traces.append(1)
        return train(algorithm(), run, 3)

    run, _ = go(start(algorithm(), random.key(0)))
    for hyper in (
        {"rate": 0.5},
        {"rate": 1},
        {"rate": np.float64(0.1)},
        {"breaks_at": jnp.float32(1)},
    ):
        go(start(algorithm(), random.key(1), hyper))
    go(run)
    assert len(traces) == 1 and go._cache_size() == 1


@pytest.mark.slow
def test_gradient_of_the_end_by_a_hyperparameter():
    def end(rate):
        def one(key):
            run, row = train(algorithm(), start(algorithm(), key, {"rate": rate}), 5)
            return run.state.agent.weight**2 + m.values(row)["loss"]

        return jax.vmap(one)(jax.random.split(random.key(0), 8)).sum()

    end = jax.jit(end)
    exact = jax.jit(jax.grad(end))(0.3)
    numeric = (end(0.3 + 1e-2) - end(0.3 - 1e-2)) / 2e-2
    assert abs(exact) > 0.1
    np.testing.assert_allclose(exact, numeric, rtol=1e-2)


def test_inside_an_outer_scan():
    """Hyperparameters that change between inner runs share one program."""

    @jax.jit
    def outer(rates):
        def body(total, rate):
            run, _ = train(algorithm(), start(algorithm(), random.key(0), {"rate": rate}), 3)
            return total + run.state.agent.weight, run.state.agent.weight

        return jax.lax.scan(body, 0.0, rates)

    total, each = outer(jnp.array([0.1, 0.2]))
    for rate, weight in zip((0.1, 0.2), each, strict=True):
        run, _ = train(algorithm(), start(algorithm(), random.key(0), {"rate": rate}), 3)
        np.testing.assert_allclose(weight, run.state.agent.weight, rtol=1e-6)
    np.testing.assert_allclose(total, each.sum(), rtol=1e-6)


def test_another_algorithm_of_the_same_name_never_runs_old_code():
    """After editing a cell of a notebook, names are equal and objects are not."""

    def make(sign):
        base = toy_agent()

        def update(state, batch, key):
            state, info = base.update(state, batch, key)
            return state, type(info)(info.metrics | {"sign": jnp.float32(sign)}, info.feedback)

        return learn(Agent(base.name, base.init, base.act, update, hyper=base.hyper), toy_source())

    for sign in (1.0, -1.0):
        changed = make(sign)
        _, row = jitted(changed, start(changed, random.key(0)), 2)
        assert m.values(row)["sign"] == sign


COMPILED = "/jax/core/compile/backend_compile_duration"
compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration_secs, **_: compiled.append(event) if event == COMPILED else None
)


def programs(function):
    """Return how many programs a call compiles, and its result."""
    compiled.clear()
    result = jax.block_until_ready(function())
    return len(compiled), result


def test_a_second_call_from_python_compiles_nothing():
    """Call every public function bare, with arguments built anew, as in a notebook."""
    env = lambda: jaxrl.make("catch")
    sizes = {"num_envs": 2, "num_steps": 4, "minibatches": 2, "hidden": (4,)}
    build = lambda: jaxrl.algorithms.ppo(env(), dict(sizes))
    run = jaxrl.start(build(), jaxrl.key(0))
    policy = lambda run: build().policy(run.state)
    for number, call in enumerate(
        (
            lambda: jaxrl.key(1),
            lambda: jaxrl.start(build(), jaxrl.key(1)),
            lambda: jaxrl.start(build(), jaxrl.key(1), {"learning_rate": 1e-3}),
            lambda: jaxrl.train(build(), run, 2),
            lambda: jaxrl.train(build(), run, np.int64(2)),
            lambda: m.values(jaxrl.train(build(), run, 2)[1]),
            lambda: jaxrl.evaluate(env(), policy(run), jaxrl.key(1), 2),
            lambda: jax.vmap(lambda x: jaxrl.train(build(), x, 2))(
                jax.tree.map(lambda x: x[None], run)
            ),
        )
    ):
        programs(call)
        assert programs(call)[0] == 0, number
    later, _ = jaxrl.train(build(), run, 2)
    assert programs(lambda: jaxrl.train(build(), later, 2))[0] == 0
    assert programs(lambda: jaxrl.evaluate(env(), policy(later), jaxrl.key(1), 2))[0] == 0


def test_training_does_not_donate_the_run():
    begin = start(algorithm(), random.key(0))
    first, second = (train(algorithm(), begin, 3) for _ in range(2))
    assert_same_bits(first, second)
    assert not any(x.is_deleted() for x in jax.tree.leaves((begin, first)))


def test_inside_another_program_there_is_no_call_of_its_own():
    """A program that trains is the same one whether or not `train` is jitted."""
    begin = start(algorithm(), random.key(0))
    program = jax.make_jaxpr(lambda run: train(algorithm(), run, 3))(begin)
    calls = [x for x in program.eqns if x.params.get("name") == "_train"]
    assert all(x.params["inline"] for x in calls)  # before jax 0.11 there are none left
    assert " = scan[" in str(program)


def test_no_steps_change_nothing():
    begin = start(algorithm(), random.key(0))
    run, row = train(algorithm(), begin, 0)
    assert_same_bits(run, begin)
    assert_same_bits(row, empty_row(algorithm(), begin))
    assert isinstance(run, Run)


def test_the_empty_row_has_the_shapes_of_a_row():
    row = empty_row(algorithm(), start(algorithm(), random.key(0)))
    shapes = jax.eval_shape(
        lambda run: advance(algorithm(), run)[1], start(algorithm(), random.key(0))
    )
    for leaf, shape in zip(jax.tree.leaves(row), jax.tree.leaves(shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)
