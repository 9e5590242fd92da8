"""Kit of finite environments: steps against tensors by enumeration, and rejected arguments."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.envs.tables import mdp, random_mdp

SAMPLES = 150  # samples of each state and action
# Every environment that is a table, padded to one shape so that one program plays them all.
ENVIRONMENTS = {
    "baird": {},
    "boyan_chain": {},
    "chain": {},
    "cliff_walking": {"slippery": True},
    "combination_lock": {},
    "corridors": {"blocked": 0},
    "deep_sea": {"size": 6, "stochastic": True},
    "diabolical_lock": {},
    "four_rooms": {},
    "frozen_lake": {},
    "random_mdp": {"reward_noise": 0.5},
    "river_swim": {},
}
STATES, ACTIONS, OUTCOMES = 104, 10, 7


def make_table(name: str, **settings) -> mdp.Table:
    return envs.make(name, **settings).params


def _pad(table: mdp.Table) -> mdp.Table:
    """Pad `table` with states (terminal, never reached), actions (like the first one) and outcomes
    (of probability 0)."""
    states, actions, outcomes = table.successor.shape

    def pad(x):
        x = np.pad(
            x, [(0, STATES - states), (0, ACTIONS - actions), *[(0, 0)] * (x.ndim - 2)], "edge"
        )
        return np.pad(x, [(0, 0), (0, 0), (0, OUTCOMES - outcomes)]) if x.ndim == 3 else x

    one_hot = np.pad(_initial(table), (0, STATES - states))
    return mdp.Table(
        successor=pad(table.successor),
        probability=pad(table.probability),
        reward=pad(table.reward),
        start=np.arange(STATES),
        start_probability=one_hot,
        terminal=np.pad(table.terminal, (0, STATES - states), constant_values=True),
        optimal=np.pad(table.optimal, (0, STATES - states)),
        noise=pad(np.zeros((states, actions)) if table.noise is None else table.noise),
    )


def _initial(table: mdp.Table) -> np.ndarray:
    initial = np.zeros(len(table.successor))
    np.add.at(initial, table.start, table.start_probability)
    return initial


def dense(table: mdp.Table) -> tuple[np.ndarray, np.ndarray]:
    """Compute transition [S, A, S] and expected reward [S, A], entry by entry."""
    states, actions, outcomes = table.successor.shape
    transition, reward = np.zeros((states, actions, states)), np.zeros((states, actions))
    for s, a, k in np.ndindex(states, actions, outcomes):
        if not table.terminal[s]:
            transition[s, a, table.successor[s, a, k]] += table.probability[s, a, k]
            reward[s, a] += table.probability[s, a, k] * table.reward[s, a, k]
    return transition, reward


@functools.cache
def sample_steps() -> tuple[dict, mdp.Tensors]:
    """Take SAMPLES steps from every state by every action in every environment; return them and the
    tensors."""
    tables = [_pad(make_table(name, **settings)) for name, settings in ENVIRONMENTS.items()]
    stacked = jax.tree.map(lambda *x: np.stack(x), *tables)
    env = mdp.environment("padded", tables[0])
    s, a = (x.ravel() for x in np.indices((STATES, ACTIONS)))

    def sample(key, table):
        def one(key, s, a):
            state, timestep = env.step(key, mdp.State(s), a, table)
            return state.index, timestep.reward, timestep.terminated

        key, start_key = jax.random.split(key)
        starts = jax.vmap(env.reset, (0, None))(jax.random.split(start_key, 2000), table)[0].index
        keys = jax.random.split(key, (SAMPLES, len(s)))
        steps = jax.vmap(jax.vmap(one, (0, 0, 0)), (0, None, None))(keys, s.astype(np.int32), a)
        return *steps, starts

    keys = jax.random.split(jax.random.key(0), len(tables))
    every = jax.jit(lambda k, t: jax.lax.map(lambda x: sample(*x), (k, t)))(keys, stacked)
    index, reward, terminated, starts = (np.asarray(x) for x in every)
    result = {
        "frequency": np.array([_counts(s * ACTIONS + a, x) for x in index]) / SAMPLES,
        "reward": reward.mean(1).reshape(-1, STATES, ACTIONS),
        "spread": reward.std(1).reshape(-1, STATES, ACTIONS),
        "wrong_end": [
            np.sum(e != t.terminal[i]) for e, t, i in zip(terminated, tables, index, strict=True)
        ],
        "starts": np.array([np.bincount(x, minlength=STATES) for x in starts]) / 2000,
    }
    tensors = jax.jit(jax.vmap(mdp.tensors))(stacked)
    return result, jax.tree.map(np.asarray, tensors)


def _counts(pair: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return how often each state [S, A, S] followed; index: [SAMPLES, S * A]."""
    counts = np.bincount((pair * STATES + index).ravel(), minlength=STATES * ACTIONS * STATES)
    return counts.reshape(STATES, ACTIONS, STATES)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_steps_are_drawn_from_the_tensors(name):
    table = make_table(name, **ENVIRONMENTS[name])
    states, actions, _ = table.successor.shape
    at = list(ENVIRONMENTS).index(name)
    result = {k: v[at] for k, v in sample_steps()[0].items()}
    tensors = jax.tree.map(lambda x: x[at], sample_steps()[1])
    transition, reward = dense(table)
    np.testing.assert_allclose(
        tensors.transition[:states, :actions, :states], transition, atol=1e-6
    )
    np.testing.assert_allclose(tensors.reward[:states, :actions], reward, atol=1e-5)
    np.testing.assert_allclose(tensors.initial[:states], _initial(table), atol=1e-6)
    np.testing.assert_array_equal(tensors.terminal[:states], table.terminal)

    live = ~table.terminal
    frequency = result["frequency"][:states, :actions, :states][live]
    expected = transition[live]
    assert not np.any(frequency[expected == 0])  # nothing impossible happens
    deviation = np.sqrt(expected * (1 - expected) / SAMPLES) + 1e-9
    assert np.all(np.abs(frequency - expected) < 5.5 * deviation + 1e-6)
    second = (table.probability * table.reward**2).sum(-1)[live]
    noise = 0.0 if table.noise is None else table.noise[live]
    spread = np.sqrt(np.maximum(second - reward[live] ** 2, 0) + np.square(noise))
    error = np.abs(result["reward"][:states, :actions][live] - reward[live])
    assert np.all(error < 5.5 * spread / np.sqrt(SAMPLES) + 1e-4 * (1 + np.abs(reward[live])))
    observed = result["spread"][:states, :actions][live]
    np.testing.assert_allclose(observed.mean(), spread.mean(), rtol=0.1, atol=1e-4)
    assert result["wrong_end"] == 0

    initial = _initial(table)
    error = np.abs(result["starts"][:states] - initial)
    assert np.all(error < 5.5 * np.sqrt(initial * (1 - initial) / 2000) + 1e-6)


@pytest.mark.parametrize("name", [*ENVIRONMENTS, "taxi"])
def test_the_expert_is_optimal(name):
    """Check Bellman's optimality equation for its values at the discount that the environment is
    built with."""
    table = make_table(name, **ENVIRONMENTS.get(name, {}))
    discount = {
        "four_rooms": 0.9,
        "frozen_lake": 0.999,
        **dict.fromkeys(["deep_sea", "diabolical_lock", "cliff_walking", "boyan_chain"], 1.0),
    }.get(name, 0.99)
    transition, reward = dense(table)
    rows = np.arange(len(reward))
    chosen, gained = transition[rows, table.optimal], reward[rows, table.optimal]
    values = np.linalg.solve(np.eye(len(rows)) - discount * chosen, gained)
    q = reward + discount * transition @ values
    assert np.all(q.max(-1) <= values + 1e-6 * (1 + np.abs(values)))
    if name != "baird":  # whose rewards are all 0
        assert np.ptp(q, axis=-1).max() > 1e-3 or q.shape[1] == 1


def test_the_largest_uniform_number_chooses_no_impossible_outcome():
    """Check 1 - 2^-24, which could lie beyond a sum of float32 probabilities."""
    probability = jnp.array([0.1] * 3 + [0.7 - 3e-8] + [0.0] * 4, jnp.float32)

    @jax.jit
    def choices(keys):
        return jax.vmap(mdp.choose, (0, None))(keys, probability)

    chosen = np.asarray(choices(jax.random.split(jax.random.key(0), 200_000)))
    assert set(np.unique(chosen)) == {0, 1, 2, 3}


def test_dense_tensors_and_lists_of_outcomes_are_the_same_environment():
    table = make_table("random_mdp")
    transition, reward = dense(table)
    again = mdp.from_tensors(transition, reward, np.arange(len(reward)))
    for ours, theirs in zip(dense(again), (transition, reward), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    np.testing.assert_array_equal(again.optimal, table.optimal)
    with jax.enable_x64(True):  # exact to the last digits, not only to float32's
        np.testing.assert_allclose(jax.jit(mdp.tensors)(table).transition, transition, atol=1e-15)


def test_other_tables_are_other_params_of_the_same_program():
    env = envs.make("random_mdp", num_states=6, seed=0)
    other = envs.make("random_mdp", num_states=6, seed=1)
    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.params)
    rewards = [float(step(jax.random.key(1), state, 0, x.params)[1].reward) for x in (env, other)]
    index = int(state.inner.index)
    expected = [x.params.reward[index, 0, 0] for x in (env, other)]
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)
    assert step._cache_size() == 1 and rewards[0] != rewards[1]


def test_a_state_is_observed_as_one_hot_index_or_features():
    table = make_table("boyan_chain")
    seen = {}
    for kind in mdp.OBSERVATIONS:
        env = envs.make("boyan_chain", observation=kind)
        state = mdp.State(np.int32(2))
        step = jax.jit(env.step)
        state, timestep = step(jax.random.key(0), state, 0, env.params)
        assert spaces.contains(env.observation_space, timestep.observation)
        seen[kind] = np.asarray(timestep.observation)
    index = int(seen["index"])
    assert index in (3, 4) and env.observation_space.shape == (4,)
    np.testing.assert_array_equal(seen["one_hot"], np.arange(13) == index)
    np.testing.assert_allclose(seen["features"], table.features[index])


@functools.cache
def garnets() -> mdp.Table:
    """Draw 200 Garnets of 8 states, 2 actions and 3 outcomes inside a program."""
    keys = jax.random.split(jax.random.key(0), 200)
    tables = jax.jit(jax.vmap(lambda key: random_mdp.draw(key, 8, 2, 3)))(keys)
    return jax.tree.map(np.asarray, tables)


def test_garnets_drawn_in_a_program_are_garnets():
    tables = garnets()
    ordered = np.sort(tables.successor, axis=-1)
    assert ordered.min() == 0 and ordered.max() == 7 and np.all(np.diff(ordered) > 0)
    # All subsets of three states are equally likely, as pairs of states show.
    has = (tables.successor[..., None] == np.arange(8)).any(-2).reshape(-1, 8).astype(float)
    together = has.T @ has / len(has)
    np.testing.assert_allclose(np.diag(together), 3 / 8, atol=0.06)
    np.testing.assert_allclose(together[~np.eye(8, dtype=bool)], 3 / 28, atol=0.05)
    # Spacings of the unit interval: means of 1 / b, variance (b - 1) / (b^2 (b + 1)).
    np.testing.assert_allclose(tables.probability.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(tables.probability.mean((0, 1, 2)), 1 / 3, atol=0.02)
    np.testing.assert_allclose(tables.probability.var((0, 1, 2)), 1 / 18, rtol=0.1)
    np.testing.assert_allclose([tables.reward.mean(), tables.reward.std()], [0, 1], atol=0.08)
    assert np.all(tables.reward == tables.reward[..., :1])


def test_a_drawn_table_plays_as_params_of_the_environment_and_is_solved():
    env = envs.make("random_mdp", num_states=8, num_actions=2)
    assert jax.tree.structure(garnets()) == jax.tree.structure(env.params)
    shapes = jax.tree.leaves(
        jax.tree.map(lambda x, y: x.shape[1:] == y.shape, garnets(), env.params)
    )
    assert all(shapes)
    for i in range(10):
        one = jax.tree.map(lambda x, i=i: x[i], garnets())
        built = mdp.build(one.successor, one.probability, one.reward, start=one.start)
        np.testing.assert_array_equal(one.optimal, built.optimal)


def test_solving_a_changed_table_updates_its_expert():
    slow, fast = make_table("river_swim"), make_table("frozen_lake")
    for table, discount in ((slow, 0.99), (fast, 0.999)):
        forgetful = dataclasses.replace(table, optimal=np.zeros_like(table.optimal))
        solved = jax.jit(mdp.solve)(forgetful, discount)
        live = ~table.terminal
        np.testing.assert_array_equal(np.asarray(solved.optimal)[live], table.optimal[live])
    shy = dataclasses.replace(slow, reward=np.where(slow.reward == 1.0, 0.0, slow.reward))
    assert np.all(slow.optimal == 1) and not np.any(jax.jit(mdp.solve)(shy).optimal)


@pytest.mark.parametrize("name", ["deep_sea", "boyan_chain", "diabolical_lock"])
def test_max_steps_bounds_episodes_that_end_by_themselves(name):
    """Check that no path through the table is longer than `max_steps`."""
    env = envs.make(name)
    transition, _ = dense(env.params)
    possible = (transition > 0).any(1)
    reached = _initial(env.params) > 0
    for _ in range(env.max_steps):
        assert np.any(reached)
        reached = possible[reached].any(0) & ~env.params.terminal
    assert not np.any(reached)


@pytest.mark.parametrize(
    "arguments,match",
    [
        ({"successor": [[[2]], [[0]]]}, "successors from 0 to 2; they must lie in 0 .. 1"),
        ({"start": [0, 2]}, "starts from 0 to 2"),
        ({"terminal": [-1]}, "terminal states from -1 to -1"),
        ({"reward": np.inf}, "rewards that are not finite"),
        ({"probability": 0.5}, "sum to 0.5; they must be at least 0 and sum to 1"),
        ({"start_probability": [0.2, 0.7]}, "starts.* sum to 0.9"),
    ],
)
def test_a_table_that_is_not_an_mdp_is_one_sentence(arguments, match):
    right = {"successor": [[[1]], [[0]]], "probability": 1.0, "reward": 0.0, "start": [0, 1]}
    with pytest.raises(UserError, match=match):
        mdp.build(**{**right, **arguments})


@pytest.mark.parametrize(
    "name,settings,match",
    [
        ("deep_sea", {"size": 1}, "size of 'deep_sea' is 1; it must be at least 2"),
        ("chain", {"length": 1}, "length of 'chain' is 1"),
        ("river_swim", {"length": 2}, "length of 'river_swim' is 2"),
        ("frozen_lake", {"size": 5}, "'frozen_lake' is 5; it must be 4 or 8"),
        ("four_rooms", {"goal": 4}, "'four_rooms' is 4; it must be a hallway, 0 to 3"),
        ("boyan_chain", {"length": 6}, "'boyan_chain' is 6; it must be a positive multiple of 4"),
        ("random_mdp", {"branching": 21}, "branching of 21; it needs"),
        ("combination_lock", {"num_actions": 1}, "num_actions=1; they must be at least 1 and 2"),
        ("diabolical_lock", {"horizon": 1}, "horizon=1 and"),
        ("factored_mdp", {"num_parents": 6}, "6 parents for each of 5 factors"),
        ("factored_mdp", {"num_values": 1}, "1 values"),
        ("sysadmin", {"num_machines": 1}, "1 machines; it needs at least 2"),
        ("sysadmin", {"recovery": 2.0}, "factors of 'sysadmin' are as low as -1 and sum to 1"),
        ("chain", {"slip": 1.5}, "as low as -0.5"),
        ("chain", {"observation": "pixels"}, "'pixels'; it must be 'one_hot' or 'index'."),
        ("baird", {"observation": "pixels"}, "'pixels'; it must be .* or 'features'"),
    ],
)
def test_bad_structure_is_one_sentence(name, settings, match):
    with pytest.raises(UserError, match=match):
        envs.make(name, **settings)
