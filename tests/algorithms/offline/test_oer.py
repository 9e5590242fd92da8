"""OER: the steps that it selects against brute force, its buffer, and its two policies."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import oer
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.networks.dynamics import Prediction
from tests.datasets.stand_in import no_training
from tests.kit.stub import losses_of, stub

__all__ = ["no_training"]

ENV = envs.make("pendulum")  # actions in [-2, 2]
K, N, C, ROUNDS = 3, 40, 10, 2
CHANGES = {
    "values": (5.0, 10.0, 15.0), "data.batch_size": 6, "data.updates": 2, "windows": 1,
    "periods": ROUNDS, "experience.capacity": C, "hidden": (8,), "model_hidden": (8,),
    "members": 2, "delay": 1,
}  # fmt: skip
CONFIG = replace(oer.Config(), CHANGES)
LENGTH = ROUNDS * 2  # gradient steps of a task
KEY = random.key(7)


def steps(observation, first=None, reward=None, goal=None):
    """Return time steps with these observations [..., D]."""
    shape = observation.shape[:-1]
    no = np.zeros(shape, bool)
    reward = np.zeros(shape, np.float32) if reward is None else reward
    first = no if first is None else first
    return TimeStep(observation, reward, no, no, first, goal=goal)


def data_of(seed=0):
    """Return datasets [K, N] of three numbers, whose first number tells task and row."""
    rng = np.random.default_rng(seed)
    shape = (K, N)
    before, after = rng.normal(size=(2, *shape, 3)).astype(np.float32)
    before[..., 0] = np.arange(K * N).reshape(shape)
    goal = np.broadcast_to(np.eye(K, dtype=np.float32)[:, None], (K, N, K))
    reward = rng.normal(size=shape).astype(np.float32)
    action = rng.uniform(-2, 2, (*shape, 1)).astype(np.float32)
    first = np.arange(N) % 20 == 0
    begun = steps(before, first=np.broadcast_to(first, shape), goal=goal)
    return Transition(begun, action, steps(after, reward=reward, goal=goal), (), {})


# ---------------------------------------------------------------------------------- selection


def linear_policy(matrix, ends=lambda x: np.zeros(len(x), bool)):
    """Return a policy by which states x are followed by `matrix` x in the model."""

    def act(state, timestep, memory, key, greedy):
        assert not greedy
        after = timestep.observation @ matrix.T
        extras = {oer.IMAGINED: {"observation": after, "terminated": ends(after)}}
        return jnp.zeros((len(after), 1)), memory, extras | {oer.LEARNED: after[:, :1]}

    return Policy(act, lambda n: jnp.zeros(n), ())


def test_the_model_selects_the_steps_nearest_to_the_policys_rollout():
    """The rollout of a linear system from the only first state is known, and so is, by brute force,
    the nearest step to each of its states; all differ here, so the order does not matter."""
    rng = np.random.default_rng(3)
    turn = 0.35
    matrix = 0.97 * np.float32([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    stored = (rng.normal(size=(3000, 2)) * [1.0, 4.0]).astype(np.float32)
    stored[0] = [1.2, 0.8]
    x = Transition(steps(stored, first=np.arange(3000) == 0), None, steps(stored), (), {})
    experience = oer.Experience(capacity=12, selector="model", horizon=12)
    rows = np.asarray(oer.select(x, linear_policy(matrix), experience, KEY))

    unit = stored.astype(np.float64).std(0)
    state, expected, unscaled = stored[0].astype(np.float64), [], []
    for _ in range(12):
        expected.append(int((((stored - state) / unit) ** 2).sum(-1).argmin()))
        unscaled.append(int(((stored - state) ** 2).sum(-1).argmin()))
        state = matrix.astype(np.float64) @ state
    assert len(set(expected)) == 12 and set(expected) != set(unscaled)
    assert sorted(rows) == sorted(expected)
    assert list(rows) != expected  # in a random order, so that the first ones are a fair sample


def test_what_was_taken_is_not_taken_again():
    rng = np.random.default_rng(4)
    stored, visited = rng.normal(size=(30, 2)), 0.1 * rng.normal(size=(20, 2))
    free, expected = set(range(30)), []
    for x in visited:
        nearest = min(free, key=lambda i: ((stored[i] - x) ** 2).sum())
        free.remove(nearest)
        expected.append(nearest)
    rows = oer.take_nearest(jnp.float32(stored), jnp.float32(visited))
    np.testing.assert_array_equal(rows, expected)


def test_a_rollout_begins_again_after_an_end():
    start = steps(jnp.float32([[1.0, 0.0], [4.0, 0.0]]))
    policy = linear_policy(2 * np.eye(2, dtype=np.float32), lambda x: x[:, 0] > 6)
    visited = oer.roll_out(policy, start, 4, KEY)
    np.testing.assert_array_equal(visited[:, 0, 0], [1, 2, 4, 1])
    np.testing.assert_array_equal(visited[:, 1, 0], [4, 4, 4, 4])


def test_the_other_selectors_take_any_steps_or_the_best_paid():
    x = jax.tree.map(lambda x: x[1], data_of())
    choose = lambda kind, key=KEY: np.asarray(
        oer.select(x, linear_policy(np.eye(3)), oer.Experience(C, kind), key)
    )
    np.testing.assert_array_equal(choose("reward"), np.argsort(-x.reward)[:C])
    each = choose("random"), choose("random", random.key(8))
    assert all(len(set(rows)) == C for rows in each) and set(each[0]) != set(each[1])


# ------------------------------------------------------------------------------------- buffer


def test_the_buffer_keeps_its_size_and_equal_shares():
    buffer, shares = {"x": jnp.zeros(C, jnp.int32)}, {}
    for task in range(4):
        wanted = 100 * task + np.arange(C)
        buffer = oer.extend(buffer, {"x": jnp.asarray(wanted)}, jnp.int32(task))
        held = np.asarray(buffer["x"])
        assert held.shape == (C,)
        for other in range(task + 1):
            rank = sorted(held[held // 100 == other] % 100)
            assert C // (task + 1) <= len(rank) <= -(-C // (task + 1))
            assert rank == list(range(len(rank)))  # the first ones
            shares[other] = len(rank)
        assert sum(shares.values()) == C


@functools.cache
def collect_rounds(selector="reward", actions="data"):
    """Return the source, and its states after each round of three tasks and one more."""
    config = replace(CONFIG, {"selector": selector, "actions": actions, "horizon": 3})
    source = oer.memories(data_of(), config, "some data")
    policy = linear_policy(0.9 * np.eye(3, dtype=np.float32))
    collect = jax.jit(lambda state, key: source.collect(state, policy, key)[:2])
    state, found = source.init(KEY, {}, policy), []
    for i in range(K * ROUNDS + 1):
        state, task = collect(state, random.key(i))
        found.append((state, int(task), source.sample(state, task, random.key(100 + i))))
    return source, found


def test_tasks_follow_each_other_and_are_stored_when_they_end():
    data, (_, found) = data_of(), collect_rounds()
    assert [task for _, task, _ in found] == [0, 0, 1, 1, 2, 2, 2]
    best = [np.argsort(-data.reward[k])[:C] + k * N for k in range(2)]
    for state, task, batch in found:
        x, old = batch.transitions, batch.transitions.extras[oer.REPLAYED]
        row = np.asarray(x.timestep.observation)[:, 0].astype(int)
        assert (row // N == task).all()
        assert (np.asarray(x.timestep.goal).argmax(-1) == task).all()
        np.testing.assert_array_equal(x.action, data.action.reshape(-1, 1)[row])
        np.testing.assert_array_equal(x.reward, data.reward.reshape(-1)[row])
        assert (old["held"] == (task > 0)).all()
        held = np.asarray(state.buffer["timestep"].observation)[:, 0].astype(int)
        assert set(held) == {0: {0}, 1: set(best[0]), 2: {*best[0][:5], *best[1][:5]}}[task]
        if task:
            kept = np.asarray(old["timestep"].observation)[:, 0].astype(int)
            assert set(kept) <= set(held)
            np.testing.assert_array_equal(old["action"], data.action.reshape(-1, 1)[kept])
    assert [float(batch.env_steps) for *_, batch in found[:2]] == [2.0, 4.0]


def test_the_actions_of_the_policy_can_be_stored_instead():
    state = collect_rounds("random", "policy")[1][-1][0]
    seen = np.asarray(state.buffer["timestep"].observation)
    np.testing.assert_allclose(state.buffer["action"], 0.9 * seen[:, :1], rtol=1e-5)


def test_a_buffer_larger_than_a_dataset_is_refused():
    with pytest.raises(UserError, match=r"^experience.capacity is 41; the dataset of a task has"):
        oer.memories(data_of(), replace(CONFIG, {"experience.capacity": N + 1}), "some data")


# -------------------------------------------------------------------------------------- agent


def test_the_policy_of_all_tasks_clones_the_learned_one_and_the_buffer():
    rng = np.random.default_rng(5)
    multi, actor = rng.uniform(-2, 2, (2, 2 * N, 1)).astype(np.float32)
    at = lambda table: lambda s: table[np.asarray(s.observation)[..., 0].astype(int)]
    row = lambda start: steps(np.float32(start + np.arange(5))[:, None])
    kept = rng.uniform(-2, 2, (5, 1)).astype(np.float32)
    held = np.array([1, 1, 0, 1, 0], bool)
    old = {"timestep": row(N), "action": kept, "held": held}
    x = Transition(row(0), None, row(0), (), {oer.REPLAYED: old})
    net = stub(multi=at(multi), actor=at(actor), hyper={"replay_weight": 0.7})
    new = ((multi[:5] - actor[:5]) / 2) ** 2
    earlier = ((multi[N : N + 5] - kept) / 2) ** 2 * held[:, None]
    for dual, expected in ((True, new + 0.7 * earlier), (False, None)):
        config = dataclasses.replace(CONFIG, dual=dual)
        loss = losses_of(oer.recipe(ENV, Static(config)))["clone_loss"]
        assert loss.parts == (("multi",) if dual else ("actor",))
        if not dual:
            expected = 0.7 * ((actor[N : N + 5] - kept) / 2) ** 2 * held[:, None]
        np.testing.assert_allclose(loss(net, x).value, expected[:, 0], rtol=1e-5, atol=1e-6)


@functools.cache
def agent(dual=True):
    return oer.inner.agent(ENV, dataclasses.replace(CONFIG, dual=dual))


@functools.cache
def updater(dual=True):
    return jax.jit(agent(dual).update)


def start_state(dual=True, seed=0):
    return agent(dual).init(random.key(seed), hypers(CONFIG))


def batch_of(buffer_seed=0):
    _, found = collect_rounds()
    batch = found[2][2]
    x = jax.tree.map(jnp.asarray, batch.transitions)
    old = dict(x.extras[oer.REPLAYED])
    old["action"] = jax.random.uniform(random.key(buffer_seed), old["action"].shape)
    return dataclasses.replace(
        batch, transitions=dataclasses.replace(x, extras={oer.REPLAYED: old})
    )


def same(a, b, part):
    pairs = zip(jax.tree.leaves(a.parts[part]), jax.tree.leaves(b.parts[part]), strict=True)
    return all((x == y).all() for x, y in pairs)


def learn(dual, buffer_seed, weight):
    state = start_state(dual)
    state = dataclasses.replace(state, hyper=state.hyper | {"replay_weight": jnp.float32(weight)})
    for i in range(3):
        state, _ = updater(dual)(state, batch_of(buffer_seed), random.key(i))
    return state


def test_cloning_has_no_effect_on_the_policy_that_q_learning_improves():
    plain, cloned = learn(True, 0, 0.0), learn(True, 1, 5.0)
    assert all(same(plain, cloned, part) for part in ("actor", "critic", "model"))
    assert not same(plain, cloned, "multi")
    one, other = learn(False, 0, 0.0), learn(False, 1, 5.0)
    assert not same(one, other, "actor") and not same(one, other, "critic")


def test_q_learning_begins_anew_with_a_task_and_the_policy_of_all_tasks_goes_on():
    first, second = start_state(seed=0), start_state(seed=1)
    ends = {}
    for updates in (LENGTH - 1, LENGTH, LENGTH + 1, K * LENGTH):
        begun = [dataclasses.replace(s, updates=jnp.int32(updates)) for s in (first, second)]
        ends[updates] = [updater()(s, batch_of(), KEY)[0] for s in begun]
        anew = updates == LENGTH
        for part in ("actor", "critic", "model"):
            assert same(*ends[updates], part) == anew, (updates, part)
        assert not same(*ends[updates], "multi")
    kept = updater()(dataclasses.replace(first, updates=jnp.int32(LENGTH)), batch_of(), KEY)[0]
    moved = jax.tree.leaves(
        jax.tree.map(
            lambda x, y: jnp.abs(x - y).max(), *(s.parts["multi"].params for s in (kept, first))
        )
    )
    assert max(moved) < 0.01


def test_single_policies_go_on_too():
    states = [start_state(False, seed) for seed in (0, 1)]
    states = [dataclasses.replace(s, updates=jnp.int32(LENGTH)) for s in states]
    ends = [updater(False)(s, batch_of(), KEY)[0] for s in states]
    assert not same(*ends, "actor") and same(*ends, "model")


def test_the_policy_that_explores_says_where_the_model_leads():
    """The model's next state is that of the learned policy's action, whichever policy acts."""

    def model(s, action):
        change = jnp.stack([s.observation * action] * 2)
        return Prediction(change, jnp.full_like(change, -60.0), jnp.float32([[1, -1]] * 2))

    told = lambda scale: lambda s: scale * s.goal.argmax(-1)[..., None]
    net = stub(multi=told(1.0), actor=told(0.1), model=model, updates=jnp.int32(LENGTH + 1))
    act = oer.recipe(ENV, Static(CONFIG)).act
    net.extra = type("Extra", (), {"inner": ()})
    net.replace = lambda **changes: net
    seen = steps(np.float32([[1, 2, 3], [4, 5, 6]]), goal=np.eye(3, dtype=np.float32)[[1, 2]])
    action, _, extras = act(net, seen, (), KEY, False)
    np.testing.assert_array_equal(action, [[1], [2]])
    np.testing.assert_allclose(extras[oer.LEARNED], [[0.1], [0.2]], rtol=1e-6)
    led = extras[oer.IMAGINED]
    np.testing.assert_allclose(led["observation"], [[1.1, 2.2, 3.3], [4.8, 6, 7.2]], rtol=1e-5)
    np.testing.assert_array_equal(led["terminated"], [True, False])
    blind = dataclasses.replace(seen, goal=None)  # the second task is the last one learned
    for updates, task in ((1, 0), (LENGTH, 0), (LENGTH + 1, 1), (9 * LENGTH, 2)):
        net.updates = jnp.int32(updates)
        assert (act(net, blind, (), KEY, True)[0] == task).all()


def test_each_task_has_a_dataset_of_its_own(no_training):
    x = oer.datasets(ENV, CONFIG)
    assert x.reward.shape[0] == K and x.reward.shape == x.first.shape
    assert (x.timestep.goal == np.eye(K)[:, None]).all()
    assert (x.next_timestep.goal == x.timestep.goal).all()
    falls = []  # the angle's acceleration at rest grows with gravity
    for task in range(K):
        _, sin, speed = np.moveaxis(x.timestep.observation[task], -1, 0)
        change = x.next_timestep.observation[task, :, 2] - speed
        free = change - 0.05 * 3 * np.clip(x.action[task, :, 0], -2, 2)
        inside = np.abs(x.next_timestep.observation[task, :, 2]) < 7.9
        falls.append(np.median((free / (0.05 * 1.5 * sin))[inside & (np.abs(sin) > 0.1)]))
    np.testing.assert_allclose(falls, [5.0, 10.0, 15.0], rtol=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": (10.0,)}, "oer learns a sequence of tasks: values must have at least 2"),
        ({"normalization.observation": True}, "a life has no normalization"),
        ({"num_envs": 4}, "oer learns from a dataset alone"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        oer.inner.agent(ENV, replace(CONFIG, changes))
