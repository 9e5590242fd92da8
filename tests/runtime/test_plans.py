"""Execution plans: estimates against compiled programs and sums by hand, and searches."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from jaxrl.core.errors import UserError
from jaxrl.networks.decoder import Architecture, LanguageModel
from jaxrl.runtime import plans
from jaxrl.runtime.plans import Call, Job, Layout, Machine, layouts, simulate
from jaxrl.runtime.resharding import Engine, Groups
from jaxrl.runtime.workers import Ledger, Model, TextCalls, Worker, text_steps

SIZES = Architecture(32, 32, 64, 1, 4, 4, 8, 8, (1.0, 0.5, 0.2, 0.1))
JOB = Job(SIZES, texts=16, prompt=4, answer=4)
WEIGHTS = 4 * 32 * 32 + 3 * 32 * 64 + 32 * 32
MACHINE = Machine(flops=1e9, memory_speed=1e9, link=1e8)
CALLS = plans.ppo_calls()


def everywhere(layout):
    return {call.name: layout for call in CALLS}


def cost(machine=MACHINE, calls=CALLS):
    return lambda plan: simulate(calls, plan, JOB, machine).cost


@pytest.mark.slow
def test_estimates_are_ordered_as_compiled_programs_are():
    network = LanguageModel(SIZES, length=8)
    text, zeros = jnp.zeros((8, 16), jnp.int32), jnp.zeros((4, 16))
    step = jax.tree.map(lambda x: x[0], text_steps(text))
    model = Model(network.init(jax.random.key(0), step, network.initial(16)), optax.sgd(0.1))
    calls, found, expected = TextCalls(network, 4, 4), [], []
    for count, parts in ((8, 1), (8, 2), (8, 4), (4, 4), (2, 2)):
        groups, ledger = Groups(count // parts, parts, parts), Ledger()
        worker = Worker("actor", model, Engine(groups, groups.mesh(jax.devices())), ledger)
        worker.train(calls.update_actor, text, zeros, zeros)
        name = "actor.update_actor"
        found.append((ledger.flops[name], ledger.sent[name]))
        counts = plans.count_call("train", Layout(0, count, parts), JOB)
        expected.append((counts.flops, counts.sent))
    ratio = np.array(found) / np.array(expected)
    assert (ratio[:, 0] > 1).all() and (ratio[:, 0] < 1.25).all()
    assert (ratio[:, 1] > 1).all() and (ratio[:, 1] < 1.6).all()  # XLA sends more than it must
    for ours, theirs in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True):
        assert scipy.stats.spearmanr(ours, theirs)[0] > 0.85  # three estimates are equal


def test_counts_by_hand():
    assert JOB.weights == WEIGHTS
    score = plans.count_call("score", Layout(0, 4, 2), JOB)
    each = 2 * WEIGHTS * 8 + 4 * 32 * 8**2
    assert score.flops == each * 8 / 2 and score.read == 4 * WEIGHTS / 2
    assert score.sent == 3 * 2 * (4 * 8 * 8 * 32) / 2  # three sums between two
    train = plans.count_call("train", Layout(0, 4, 2), JOB)
    assert train.flops == 3 * score.flops
    assert train.sent == 2 * score.sent + 2 * (4 * WEIGHTS / 2) / 2
    said = plans.count_call("generate", Layout(0, 4, 2), JOB)
    cache = 2 * 32 * 8 * 4 * 8 / 2
    assert said.read == 4 * (4 * WEIGHTS / 2 + cache / 2) and said.flops == score.flops


@pytest.mark.parametrize(("before", "after"), [(4, 2), (4, 1), (2, 2)])
def test_reallocation_moves_what_is_not_held_yet(before, after):
    """Against the places of shards of an array."""
    size, count = 8 * 4, 4
    groups = Groups(count // before, before, after)
    engine = Engine(groups, groups.mesh(jax.devices(), "consecutive"), "consecutive")
    tree = {"blocks_0": {"o_proj": {"kernel": jax.ShapeDtypeStruct((8, 1), jnp.float32)}}}
    places = [jax.tree.leaves(engine.shardings(tree, g))[0] for g in (False, True)]
    held, needed = (place.devices_indices_map((8, 1)) for place in places)
    rows = lambda index: set(range(*index[0].indices(8)))
    most = max(len(rows(needed[d]) - rows(held[d])) for d in needed)
    assert plans.count_reallocated(
        Layout(0, count, before), Layout(0, count, after), size
    ) == pytest.approx(4 * most)
    # To other devices all of a share is sent.
    assert plans.count_reallocated(Layout(0, 2, 2), Layout(2, 2, 1), size) == size


def test_calls_on_different_devices_run_at_once():
    """Times by hand: the two models are trained beside each other, or one after the other."""
    machine = Machine(flops=1.0, memory_speed=math.inf, link=math.inf)
    calls = (Call("one", "actor", "train"), Call("two", "critic", "train"))
    alone = plans.count_call("train", Layout(0, 1), JOB).flops
    beside = simulate(calls, {"one": Layout(0, 1), "two": Layout(1, 1)}, JOB, machine)
    assert beside.seconds == alone
    after = simulate(calls, {"one": Layout(0, 1), "two": Layout(0, 1)}, JOB, machine)
    assert after.seconds == 2 * alone
    overlapping = simulate(calls, {"one": Layout(0, 2), "two": Layout(1, 1)}, JOB, machine)
    assert overlapping.seconds == alone / 2 + alone
    waiting = (calls[0], dataclasses.replace(calls[1], after=("one",)))
    plan = {"one": Layout(0, 1), "two": Layout(1, 1)}
    assert simulate(waiting, plan, JOB, machine).seconds == 2 * alone


def test_a_model_that_changes_its_layout_is_moved_before_its_call():
    machine = Machine(flops=math.inf, memory_speed=math.inf, link=1.0)
    calls = (Call("say", "actor", "generate"), Call("learn", "actor", "train", ("say",)))
    size = 4 * WEIGHTS
    same = simulate(calls, dict.fromkeys(("say", "learn"), Layout(0, 1)), JOB, machine)
    assert same.seconds == 0
    # From where it was trained last and back again, each time as a whole.
    moved = simulate(calls, {"say": Layout(0, 1), "learn": Layout(1, 1)}, JOB, machine)
    assert moved.seconds == 2 * size


def test_a_walk_finds_what_trying_all_finds_and_beats_one_layout_for_all():
    choices = layouts(4, least=2)
    assert len(choices) == 2 * 2 + 3
    calls = [dataclasses.replace(c, after=()) for c in CALLS if c.name in ("generate",)]
    calls += [dataclasses.replace(c, after=("generate",)) for c in CALLS if c.kind == "train"]
    best, least = plans.search(calls, choices, cost(calls=calls))
    begin = plans.fastest_calls(calls, choices, JOB, MACHINE)
    found, reached = plans.walk(calls, choices, cost(calls=calls), begin, steps=2000)
    assert reached == least == cost(calls=calls)(found) == cost(calls=calls)(best)
    alike = min(cost(calls=calls)({c.name: x for c in calls}) for x in choices)
    assert least < 0.95 * alike
    assert plans.walk(calls, choices, cost(calls=calls), begin, steps=0)[0] == begin


def test_a_plan_must_fit_into_memory():
    """Weights are split on small devices, although that sends more."""
    small = dataclasses.replace(MACHINE, memory_speed=1e12, capacity=4 * WEIGHTS / 2)
    large = dataclasses.replace(small, capacity=math.inf)
    roomy, _ = plans.search(CALLS[:1], layouts(4), cost(large, CALLS[:1]))
    tight, _ = plans.search(CALLS[:1], layouts(4), cost(small, CALLS[:1]))
    assert roomy["generate"].tensor == 1 and tight["generate"].tensor == 4
    assert simulate(CALLS[:1], tight, JOB, small).fits
    whole = simulate(CALLS, everywhere(Layout(0, 4, 1)), JOB, small)
    assert not whole.fits and whole.cost == 3 * whole.seconds
    # Two trained models with a gradient and two moments each, two that are not, and the cache.
    assert whole.memory == (2 * 4 + 2) * 4 * WEIGHTS + 2 * 32 * 8 * 4 * 16 / 4


def test_what_is_no_plan_is_refused():
    with pytest.raises(UserError, match="its parts must divide its devices"):
        Layout(0, 4, 3)
    with pytest.raises(UserError, match="Unknown kind of call 'sample'"):
        Call("one", "actor", "sample")
    circle = (Call("one", "actor", "train", ("two",)), Call("two", "critic", "train", ("one",)))
    with pytest.raises(UserError, match="wait for each other"):
        simulate(circle, dict.fromkeys(("one", "two"), Layout(0, 1)), JOB, MACHINE)
