"""The driven loop computes what the pure one does, bit for bit, whatever its chunks."""

import functools
import logging

import jax
import numpy as np
import pytest

from jaxrl.core import metrics as m
from jaxrl.core import train
from jaxrl.runtime import building, driver
from jaxrl.runtime.members import seed_members
from tests.runtime import tiny

STEPS = 12


def setup(count: int):
    config = tiny.config(seeds=count)
    members = seed_members(config)
    program = building.program(config, building.build(config)[1], members)
    return program, members.keys("pcg")


@pytest.fixture(scope="module", params=[1, 3], ids=["one", "three"])
def case(request):
    program, keys = setup(request.param)

    def pure(run, steps):
        return train.train(program.algorithm, run, steps)

    if program.members is not None:
        pure = lambda run, steps: jax.vmap(lambda run: train.train(program.algorithm, run, steps))(
            run
        )
    pure = jax.jit(pure, static_argnums=1)
    return program, keys, pure, program.compile(program.start(keys))


def bits(tree):
    raw = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(
        x.dtype, jax.dtypes.prng_key
    ) else x  # fmt: skip
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(raw(x)).tobytes() for path, x in leaves}


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [[1] * STEPS, [5, 3, 4], [STEPS]], ids=str)
def test_pure_and_driven_bits_are_equal(case, chunks):
    program, keys, pure, chunk = case
    progress = program.start(keys)
    run, row = pure(progress.run, STEPS)
    for steps in chunks:
        progress = chunk(progress, steps)
    assert bits(progress.run) == bits(run)
    assert bits(progress.row) == bits(row)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.003, 10.0])
def test_the_clock_changes_no_bit_and_no_row(case, monkeypatch, seconds, ahead):
    program, keys, pure, chunk = case
    monkeypatch.setattr(driver, "CHUNK_SECONDS", seconds)
    start = program.start(keys)
    run, expected = start.run, []
    for steps in (5, 5, 2):
        run, row = pure(run, steps)
        expected.append(bits(row))
    happened, done, logged = [], [], []

    def happen(name, step, progress):
        happened.append((name, step))
        if name == "log":
            logged.append(bits(progress.row))
        return lambda: done.append((name, step))

    plan = driver.Plan(total=STEPS, log=5, evaluate=6, checkpoint=4)
    progress, step, reason = driver.drive(
        chunk, start, 0, plan, happen, stop=lambda step, progress: None, ahead=ahead
    )
    assert happened == done
    assert (step, reason) == (STEPS, None)
    assert bits(progress.run) == bits(run)
    assert logged == expected
    assert happened == [
        ("checkpoint", 4),
        ("log", 5),
        ("evaluate", 6),
        ("checkpoint", 8),
        ("log", 10),
        ("log", 12),
        ("evaluate", 12),
        ("checkpoint", 12),
    ]


def test_a_reason_to_stop_is_returned_with_the_step(case):
    program, keys, _, chunk = case
    stop = lambda step, progress: "enough" if step >= 3 else None
    plan = driver.Plan(total=STEPS, log=0, evaluate=0, checkpoint=1)
    written = []
    happen = lambda name, step, progress: functools.partial(written.append, step)
    start = program.start(keys)
    _, step, reason = driver.drive(chunk, start, 0, plan, happen, stop, ahead=True)
    assert (step, reason) == (3, "enough")
    assert written == [1, 2, 3]  # including work left when it stopped


def test_what_breaks_off_leaves_the_last_whole_step():
    """Progress is a number here, since the driver looks only at the steps of the plan."""
    plan = driver.Plan(total=STEPS, log=0, evaluate=6, checkpoint=0)
    happened = []

    def chunk(progress, steps):
        if progress + steps < 9:
            return progress + steps
        halted = driver.Halted("no fuel")
        halted.progress, halted.steps = 8, 8 - progress
        raise halted

    def happen(name, step, progress):
        return lambda: happened.append((name, step, progress))

    go_on = lambda step, progress: None
    assert driver.drive(chunk, 3, 3, plan, happen, go_on, pending=["log"]) == (8, 8, "no fuel")
    assert happened == [("log", 3, 3), ("evaluate", 6, 6)]
    stop = lambda step, progress: "terminated" if step == 8 else None
    assert driver.drive(chunk, 3, 3, plan, happen, stop) == (8, 8, "terminated")

    def broken(name, step, progress):
        raise driver.Halted("no evaluation")

    assert driver.drive(chunk, 3, 3, plan, broken, go_on) == (6, 6, "no evaluation")


@pytest.mark.parametrize("ahead", [False, True])
def test_the_device_works_while_the_host_writes(ahead):
    order = []

    def chunk(progress, steps):
        order.append("begin")
        return progress + steps

    happen = lambda name, step, progress: functools.partial(order.append, f"write {step}")
    plan = driver.Plan(total=2, log=0, evaluate=0, checkpoint=1)
    driver.drive(chunk, 0, 0, plan, happen, lambda step, progress: None, ahead=ahead)
    assert order == ["begin", *(["begin", "write 1"] if ahead else ["write 1", "begin"]), "write 2"]


def test_a_chunk_begins_before_the_row_of_the_last_is_looked_at(case):
    program, keys, _, chunk = case
    order = []

    def begin(progress, steps):
        order.append("begin")
        return chunk(progress, steps)

    def happen(name, step, progress):
        order.append(f"{name} {step}")
        return lambda: order.append(f"wrote {step}")

    stop = lambda step, progress: "enough" if step >= 3 else None
    plan = driver.Plan(total=STEPS, log=1, evaluate=0, checkpoint=2)
    args = program.start(keys), 0, plan, happen, stop
    _, step, reason = driver.drive(begin, *args, ahead=True)
    assert (step, reason) == (4, "enough")  # seen at 3, when the next chunk had started
    after_2 = ["log 2", "checkpoint 2", "begin", "wrote 2", "wrote 2"]
    after_3 = ["begin", "log 3", "wrote 3", "log 4", "checkpoint 4", "wrote 4", "wrote 4"]
    assert order == ["begin", "begin", "log 1", "wrote 1", *after_2, *after_3]


def test_what_is_left_is_written_though_the_next_chunk_fails():
    def chunk(progress, steps):
        if progress:
            raise MemoryError
        return progress + steps

    written = []
    happen = lambda name, step, progress: functools.partial(written.append, step)
    plan = driver.Plan(total=2, log=0, evaluate=0, checkpoint=1)
    with pytest.raises(MemoryError):
        driver.drive(chunk, 0, 0, plan, happen, lambda step, progress: None, ahead=True)
    assert written == [1]


def test_the_chunk_is_compiled_once(caplog):
    program, keys = setup(1)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        progress = program.start(keys)
        chunk = program.compile(progress)
        for steps in (1, 2, 5):
            progress = chunk(progress, steps)
    compiled = [r for r in caplog.records if "XLA compilation of jit(_chunk)" in r.getMessage()]
    assert len(compiled) == 1


@pytest.mark.slow
def test_members_of_one_width_do_not_touch_each_other():
    """A seed's numbers do not depend on the other seeds."""
    program, keys = setup(2)
    other = jax.vmap(lambda seed: jax.random.key(seed, impl="threefry2x32"))(np.arange(2))
    assert other.shape == keys.shape
    chunk = program.compile(program.start(keys))
    together = chunk(program.start(keys), 5)
    again = chunk(program.start(keys[np.array([0, 0])]), 5)
    first = lambda tree: bits(jax.tree.map(lambda x: x[0], tree))
    assert first(together) == first(again)


@pytest.mark.parametrize("seeds", [1, 2])
def test_shapes_are_those_of_a_start(seeds):
    program, keys = setup(seeds)
    progress = program.start(keys)
    shapes = program.shapes(keys)
    assert jax.tree.structure(progress) == jax.tree.structure(shapes)
    of = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]
    assert of(progress) == of(shapes)


def test_plan():
    plan = driver.Plan(total=10, log=4, evaluate=0, checkpoint=3)
    stops, step = [], 0
    while step < plan.total:
        step = plan.next_stop(step)
        stops.append(step)
    assert stops == [3, 4, 6, 8, 9, 10]
    assert [s for s in range(11) if plan.is_due("log", s)] == [4, 8, 10]
    assert [s for s in range(11) if plan.is_due("checkpoint", s)] == [3, 6, 9, 10]
    assert not any(plan.is_due("evaluate", s) for s in range(11))


def test_diverged_without_such_a_metric():
    assert driver.diverged_at({}).tolist() == [m.NEVER]
