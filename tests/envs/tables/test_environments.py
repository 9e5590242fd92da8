"""Finite environments against their published rules: Gymnasium's tables, closed forms, NumPy."""

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text import cliffwalking, frozen_lake, taxi

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.envs.tables import combination_lock, linear, mdp

GYMNASIUM = [
    ("frozen_lake", {}, lambda: frozen_lake.FrozenLakeEnv()),
    ("frozen_lake", {"size": 8}, lambda: frozen_lake.FrozenLakeEnv(map_name="8x8")),
    ("frozen_lake", {"slippery": False}, lambda: frozen_lake.FrozenLakeEnv(is_slippery=False)),
    (
        "frozen_lake",
        {"success_probability": 0.6},
        lambda: frozen_lake.FrozenLakeEnv(success_rate=0.6),
    ),
    ("cliff_walking", {}, lambda: cliffwalking.CliffWalkingEnv()),
    ("cliff_walking", {"slippery": True}, lambda: cliffwalking.CliffWalkingEnv(is_slippery=True)),
    ("taxi", {}, lambda: taxi.TaxiEnv()),
    ("taxi", {"rainy": True}, lambda: taxi.TaxiEnv(is_rainy=True)),
]


def make_table(name, **settings) -> mdp.Table:
    return envs.make(name, **settings).params


def dense(table: mdp.Table) -> tuple[np.ndarray, np.ndarray]:
    tensors = jax.tree.map(np.asarray, jax.jit(mdp.tensors)(table))
    return tensors.transition.astype(float), tensors.reward.astype(float)


def values(table: mdp.Table, policy: np.ndarray, discount: float) -> np.ndarray:
    """Compute the values [S] of `policy` [S, A]."""
    transition, reward = dense(table)
    chain = np.einsum("sa,sat->st", policy, transition)
    return np.linalg.solve(np.eye(len(chain)) - discount * chain, (policy * reward).sum(-1))


def best_values(name: str, discount: float = 1.0, **settings) -> np.ndarray:
    table = make_table(name, **settings)
    return values(table, np.eye(table.successor.shape[1])[table.optimal], discount)


def outcomes(table: mdp.Table, s: int, a: int) -> dict[tuple[int, float, bool], float]:
    """Map (successor, reward, terminated) to its probability."""
    found = {}
    for k in np.flatnonzero(table.probability[s, a]):
        successor = int(table.successor[s, a, k])
        key = (successor, float(table.reward[s, a, k]), bool(table.terminal[successor]))
        found[key] = found.get(key, 0.0) + table.probability[s, a, k]
    return found


def reachable(table: mdp.Table) -> set[int]:
    """Return the states in which an episode can go on."""
    found, frontier = set(), set(table.start.tolist())
    while frontier:
        state = frontier.pop()
        if not table.terminal[state]:
            found.add(state)
            possible = table.successor[state][table.probability[state] > 0]
            frontier |= set(possible.tolist()) - found
    return found


@pytest.mark.parametrize("name,settings,make", GYMNASIUM)
def test_outcomes_are_gymnasiums(name, settings, make):
    ours, gym = make_table(name, **settings), make().unwrapped
    assert ours.successor.shape[:2] == (gym.observation_space.n, gym.action_space.n)
    compared = 0
    for s, a in itertools.product(reachable(ours), range(gym.action_space.n)):
        theirs = {}
        for probability, successor, reward, terminated in gym.P[s][a]:
            key = (int(successor), float(reward), bool(terminated))
            theirs[key] = theirs.get(key, 0.0) + probability
        mine = outcomes(ours, s, a)
        assert mine.keys() == theirs.keys(), (s, a)
        np.testing.assert_allclose([mine[k] for k in theirs], list(theirs.values()), atol=1e-12)
        compared += 1
    assert compared > 0.6 * ours.successor.shape[0] * ours.successor.shape[1]
    initial = np.zeros(len(ours.terminal))
    initial[ours.start] = ours.start_probability
    np.testing.assert_allclose(initial, gym.initial_state_distrib, atol=1e-12)


@pytest.mark.parametrize(
    "name,settings,gym_id",
    [
        ("frozen_lake", {}, "FrozenLake-v1"),
        ("frozen_lake", {"size": 8}, "FrozenLake8x8-v1"),
        ("taxi", {}, "Taxi-v4"),
    ],
)
def test_time_limits_are_gymnasiums(name, settings, gym_id):
    limit = gymnasium.envs.registration.registry[gym_id].max_episode_steps
    assert envs.make(name, **settings).max_steps == limit


@pytest.mark.parametrize("stochastic", [False, True])
def test_deep_sea_keeps_its_rules(stochastic):
    size, cost = 5, 0.02
    settings = {"size": size, "stochastic": stochastic, "move_cost": cost}
    end, treasure = size * size, size * size + 1
    table = make_table("deep_sea", **settings, randomize_actions=False)
    for row, column, right in np.ndindex(size, size, 2):
        reached = {min(column + 1, size - 1): 1.0} if right else {max(column - 1, 0): 1.0}
        if right and stochastic:
            reached = {min(column + 1, size - 1): 1 - 1 / size}
            reached[column] = reached.get(column, 0.0) + 1 / size
        found = right and column == size - 1
        reward = (float(found) - cost / size) if right else 0.0
        expected = {}
        for to, probability in reached.items():
            last = row == size - 1
            state = (treasure if found else end) if last else (row + 1) * size + to
            key = (state, reward, last)
            expected[key] = expected.get(key, 0.0) + probability
        mine = outcomes(table, row * size + column, right)
        assert mine.keys() == expected.keys()
        np.testing.assert_allclose([mine[k] for k in expected], list(expected.values()))
    if stochastic:
        noisy = np.flatnonzero(table.noise[:, 0])
        np.testing.assert_array_equal(noisy, [size * (size - 1), size * size - 1])
        assert set(np.unique(table.noise)) == {0.0, 1.0}
    else:
        assert table.noise is None
    # The mapping of actions swaps the two in about half of the cells and changes nothing else.
    mapped = make_table("deep_sea", **settings, seed=3)
    swapped = [
        outcomes(mapped, s, 0) == outcomes(table, s, 1)
        and outcomes(mapped, s, 1) == outcomes(table, s, 0)
        for s in range(size * size)
    ]
    kept = [
        all(outcomes(mapped, s, a) == outcomes(table, s, a) for a in (0, 1))
        for s in range(size * size)
    ]
    assert all(a ^ b for a, b in zip(swapped, kept, strict=True)) and 5 < sum(swapped) < 20


def test_deep_seas_best_return_is_known():
    np.testing.assert_allclose(best_values("deep_sea", size=10)[0], 0.99, atol=1e-6)
    n = 8
    stay = (
        1 - 1 / n
    )  # on the path as long as no move right has failed; after that, left costs nothing
    expected = stay ** (n - 1) - 0.01 / n * sum(stay**t for t in range(n))
    found = best_values("deep_sea", size=n, stochastic=True)[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_chain_is_strens():
    table = make_table("chain")
    for s in range(5):
        on = (min(s + 1, 4), 10.0 if s == 4 else 0.0, False)
        back = (0, 2.0, False)
        assert outcomes(table, s, 0) == {on: 0.8, back: 0.2}
        assert outcomes(table, s, 1) == {on: 0.2, back: 0.8}
    # Always on: 3,677 in 1,000 steps (Strens 2000); the last state holds 0.8 ^ 4 of the time.
    chain = dense(table)[0][:, 0]
    settled = np.linalg.matrix_power(chain, 1000)[0]
    np.testing.assert_allclose(settled @ dense(table)[1][:, 0], 3.6768, atol=1e-4)
    assert not np.any(table.optimal) and envs.make("chain").max_steps == 1000


def test_river_swim_is_osbands():
    transition, reward = dense(make_table("river_swim"))
    assert np.all(transition[np.arange(6), 0, np.maximum(np.arange(6) - 1, 0)] == 1)
    np.testing.assert_allclose(transition[0, 1], [0.4, 0.6, 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(transition[3, 1], [0, 0, 0.05, 0.6, 0.35, 0], atol=1e-6)
    np.testing.assert_allclose(transition[5, 1], [0, 0, 0, 0, 0.4, 0.6], atol=1e-6)
    expected = np.zeros((6, 2))
    expected[0, 0], expected[5, 1] = 0.005, 1.0
    np.testing.assert_allclose(reward, expected, atol=1e-7)
    assert envs.make("river_swim").max_steps == 20


@pytest.mark.parametrize("number,length,best", [(2, 4, 6), (3, 4, 4), (3, 2, 2), (4, 6, 8)])
def test_corridors_are_as_long_as_they_are_far_from_the_middle(number, length, best):
    settings = {"number": number, "length": length}
    assert envs.make("corridors", **settings).max_steps == 6 * length
    start = make_table("corridors", **settings).start[0]
    assert best_values("corridors", **settings)[start] == -best
    for blocked in range(number):
        way = min(length + 2 * abs(2 * i - (number - 1)) for i in range(number) if i != blocked)
        found = best_values("corridors", blocked=blocked, **settings)[start]
        assert found == -way


@pytest.mark.parametrize("goal,place", [*enumerate([(3, 6), (6, 2), (7, 9), (10, 6)])])
def test_four_rooms_moves_as_in_sutton_precup_and_singh(goal, place):
    walls = np.zeros((13, 13), bool)
    walls[[0, -1]], walls[:, [0, -1]] = True, True
    walls[:, 6], walls[6, :6], walls[7, 7:] = True, True, True
    for hallway in [(3, 6), (6, 2), (7, 9), (10, 6)]:
        walls[hallway] = False
    free = [tuple(x) for x in np.argwhere(~walls)]
    assert len(free) == 104
    table = make_table("four_rooms", goal=goal)
    end = free.index(place)
    for s, (row, column) in enumerate(free):
        if s == end:
            continue
        for a in range(4):
            expected = {}
            for b, (dr, dc) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
                to = (row + dr, column + dc)
                to = free.index(to) if to in free else s
                key = (to, float(to == end), to == end)
                expected[key] = expected.get(key, 0.0) + (2 / 3 if a == b else 1 / 9)
            mine = outcomes(table, s, a)
            assert mine.keys() == expected.keys()
            np.testing.assert_allclose([mine[k] for k in expected], list(expected.values()))
    assert sorted(table.start) == [s for s in range(104) if s != end]


def test_baird_diverges_as_it_should():
    table = make_table("baird")
    transition, reward = dense(table)
    assert not np.any(reward) and not np.any(table.terminal)
    np.testing.assert_allclose(transition[:, 0], np.tile([*[1 / 6] * 6, 0], (7, 1)), atol=1e-6)
    np.testing.assert_array_equal(transition[:, 1], np.eye(7)[np.full(7, 6)])
    weights = np.array(linear.BAIRD_WEIGHTS)
    np.testing.assert_array_equal(table.features @ weights, [3, 3, 3, 3, 3, 3, 12])
    # The behavior policy visits all states equally; expected semi-gradient TD then grows.
    behavior = np.einsum("a,sat->st", linear.BAIRD_BEHAVIOR, transition)
    np.testing.assert_allclose(np.full(7, 1 / 7) @ behavior, 1 / 7, atol=1e-6)
    target = np.einsum("a,sat->st", linear.BAIRD_TARGET, transition)
    error = (linear.BAIRD_DISCOUNT * target - np.eye(7)) @ table.features
    step = np.eye(8) + 0.01 * table.features.T @ error / 7
    assert np.abs(np.linalg.eigvals(step)).max() > 1.0
    grown = np.linalg.matrix_power(step, 20_000) @ weights
    assert np.abs(grown).max() > 100 * np.abs(weights).max()


def test_boyans_values_are_linear_in_its_features():
    table = make_table("boyan_chain")
    found = values(table, np.ones((13, 1)), 1.0)
    np.testing.assert_allclose(found, -2.0 * (12 - np.arange(13)), atol=1e-4)
    np.testing.assert_allclose(table.features @ [-24, -16, -8, 0], found, atol=1e-4)
    np.testing.assert_allclose(table.features[1], [0.75, 0.25, 0, 0])
    assert outcomes(table, 11, 0) == {(12, -2.0, True): 1.0}
    assert outcomes(table, 3, 0) == {(4, -3.0, False): 0.5, (5, -3.0, False): 0.5}


def test_garnets_are_random_and_reproducible():
    table, other = (make_table("random_mdp", num_states=30, branching=4, seed=s) for s in (1, 2))
    assert not np.array_equal(table.successor, other.successor)
    again = envs.make("random_mdp", num_states=30, branching=4, seed=1).params
    np.testing.assert_array_equal(table.probability, again.probability)
    assert all(len(set(x)) == 4 for x in table.successor.reshape(-1, 4))
    np.testing.assert_allclose(table.probability.sum(-1), 1.0)
    # Spacings of the unit interval: means of 1 / b, variance (b - 1) / (b^2 (b + 1)).
    np.testing.assert_allclose(table.probability.mean((0, 1)), 0.25, atol=0.06)
    np.testing.assert_allclose(table.probability.var((0, 1)), 3 / 80, rtol=0.4)
    np.testing.assert_allclose(table.reward.std(), 1.0, atol=0.2)


def test_only_the_combination_opens_the_lock():
    length = 6
    table = make_table("combination_lock", length=length, num_actions=3, seed=5)
    right = [[a for a in range(3) if (s + 1) in table.successor[s, a]] for s in range(length)]
    assert all(len(x) == 1 for x in right) and len({x[0] for x in right}) > 1
    for s, a in np.ndindex(length, 3):
        on = a == right[s][0]
        last = s == length - 1
        expected = (s + 1, float(last), last) if on else (0, 0.0, False)
        assert outcomes(table, s, a) == {expected: 1.0}
    np.testing.assert_allclose(
        best_values("combination_lock", 0.99, length=length)[0], 0.99 ** (length - 1), rtol=1e-5
    )


def test_the_diabolical_lock_is_homers():
    horizon, actions = 5, 4
    table = make_table("diabolical_lock", horizon=horizon, num_actions=actions)
    good, dead = (0, 1), 2

    def number(time, kind):
        return 3 * time + kind

    for time, kind in np.ndindex(horizon, 3):
        s, last = number(time, kind), time == horizon - 1
        right = []
        for a in range(actions):
            mine = outcomes(table, s, a)
            pay = 5.0 if last else -1 / (horizon - 1)
            on = {(number(time + 1, k), pay, last): 0.5 for k in good}
            off = number(time + 1, dead)
            if kind == dead:
                assert mine == {(off, 0.0, last): 1.0}
            elif mine == on:
                right.append(a)
            else:
                assert mine == {(off, 0.1, last): 0.5, (off, 0.0, last): 0.5}
        assert len(right) == (kind != dead)
    best = best_values("diabolical_lock", horizon=horizon, num_actions=actions)
    np.testing.assert_allclose(best[:2], 4.0, atol=1e-5)
    success = np.flatnonzero(table.success)
    np.testing.assert_array_equal(success, [number(horizon, k) for k in good])


def test_rich_observations_hide_kind_and_step_behind_noise_and_a_rotation():
    horizon = 10  # 3 + 11 = 14 numbers, rotated into 16
    env = envs.make("diabolical_lock", horizon=horizon, observation="rich")
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (16,))
    hadamard = np.array([[(-1) ** bin(i & j).count("1") for j in range(16)] for i in range(16)])

    @jax.jit
    def play(key):
        state, first = env.reset(key, env.params)
        later, timestep = env.step(jax.random.fold_in(key, 1), state, 0, env.params)
        return (state.index, later.index), (first.observation, timestep.observation)

    keys = jax.random.split(jax.random.key(0), 4000)
    indices, observations = jax.vmap(play)(keys)
    for index, observation in zip(indices, observations, strict=True):
        back = np.asarray(observation) @ hadamard / 16
        time, kind = np.divmod(np.asarray(index), 3)
        clean = np.concatenate([np.eye(3)[kind], np.eye(horizon + 1)[time]], 1)
        noise = back[:, :14] - clean
        np.testing.assert_allclose(back[:, 14:], 0.0, atol=1e-5)
        np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.01)
        np.testing.assert_allclose(noise.std(0), combination_lock.RICH_NOISE, rtol=0.1)


@pytest.mark.slow
def test_the_expert_delivers_the_passenger_and_a_random_policy_does_not():
    env = envs.make("taxi")

    def episode(key, expert):
        key, reset_key = jax.random.split(key)

        def step(carry, key):
            state, total, success, alive = carry
            act_key, step_key = jax.random.split(key)
            random = jax.random.randint(act_key, (), 0, env.action_space.n)
            action = jnp.where(expert, env.expert(state, env.params), random)
            state, timestep = env.step(step_key, state, action, env.params)
            total += alive * timestep.reward
            success += alive * timestep.done * timestep.metrics["success"]
            return (state, total, success, alive & ~timestep.done), None

        start = (env.reset(reset_key, env.params)[0], 0.0, 0.0, jnp.array(True))
        return jax.lax.scan(step, start, jax.random.split(key, env.max_steps))[0][1:3]

    keys = jax.random.split(jax.random.key(0), (2, 500))
    play = jax.jit(jax.vmap(jax.vmap(episode, (0, None))))
    total, success = (np.asarray(x) for x in play(keys, np.array([True, False])))
    assert np.all(success[0] == 1) and success[1].mean() < 0.2
    table = make_table("taxi")
    mean = best_values("taxi")[table.start].mean()  # undiscounted
    np.testing.assert_allclose(total[0].mean(), mean, atol=0.6)
    assert total[1].mean() < -100
