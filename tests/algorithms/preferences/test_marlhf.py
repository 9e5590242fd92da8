"""MARLHF: losses and penalties against NumPy, data with deviations, labels of agents, phases."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences import marlhf as of_marlhf
from jaxrl.algorithms.preferences.marlhf import (
    TINY,
    marlhf,
    penalize,
    standardize,
    with_team_reward,
)
from jaxrl.algorithms.preferences.shared.team_segments import (
    PREFERRED,
    TeamSegments,
    mixed_team,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.train import start, train
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import Minibatch
from tests.kit.stub import losses_of, stub

SPREAD = envs.make("simple_spread", agents=2, actions="discrete", reward="each")
TAG = envs.make("simple_tag", actions="discrete")
TALK = envs.make("speaker_listener", size=3)
AGENTS = ("agent_0", "agent_1")
T, SETS, COLUMNS = 4, 3, 3  # a pair, and one segment that nobody compared
B = SETS * COLUMNS
RNG = np.random.default_rng(0)
SMALL = {name: value for name, value in TINY.items() if not name.startswith("env")}
NOBODY = Policy(lambda *given: ((), (), {}), lambda n: ())  # data have players of their own


def logistic(x):
    return np.log1p(np.exp(-x))


def batch(labels):
    """Steps [T, B] whose observations are their numbers, with labels [sets, agents]."""
    no = np.zeros((T, B), bool)
    number = np.arange(T * B).reshape(T, B)
    seen = dict.fromkeys(AGENTS, number)
    timestep = TimeStep(seen, np.zeros((T, B), np.float32), no, no, no)
    label = np.broadcast_to(np.repeat(labels, COLUMNS, 0), (T, B, 2))
    action = {agent: RNG.integers(0, 5, (T, B)) for agent in AGENTS}
    return Transition(timestep, action, timestep, (), {PREFERRED: jnp.asarray(label)})


def test_rewards_fit_each_agents_preferences_and_pay_for_changes():
    config = dataclasses.replace(of_marlhf.Config(), segments=TeamSegments(others=1))
    loss = losses_of(of_marlhf.recipe(SPREAD, Static(config)))["reward"]
    table = RNG.normal(size=(2, T * B, 5)).astype(np.float32)  # of both agents

    def model(i):
        def apply(timestep, action):
            return jnp.asarray(table[i])[timestep.observation, action][None, ..., None]

        return apply

    labels = np.array([[1.0, 0.0], [0.5, 1.0], [0.0, 0.0]], np.float32)
    x = batch(labels)
    net = stub(
        hyper={"reward.smoothness": 0.3},
        **{f"reward_{agent}": model(i) for i, agent in enumerate(AGENTS)},
    )
    output = loss(net, Minibatch(x))
    preference, change, right = np.zeros(SETS), np.zeros(SETS), np.zeros(SETS)
    for i, agent in enumerate(AGENTS):
        paid = table[i][np.arange(T * B).reshape(T, B), x.action[agent]]
        total, moved = paid.sum(0), np.square(np.diff(paid, axis=0)).sum(0)
        for k in range(SETS):
            first, second = COLUMNS * k, COLUMNS * k + 1
            ahead = total[first] - total[second]
            label = labels[k, i]
            preference[k] += label * logistic(ahead) + (1 - label) * logistic(-ahead)
            change[k] += (moved[first] + moved[second]) / 2
            right[k] += 0.25 if label == 0.5 else 0.5 * ((ahead > 0) == (label == 1))
    np.testing.assert_allclose(output.metrics["preference"], preference, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["change"], change, rtol=1e-5)
    np.testing.assert_allclose(output.value, preference + 0.3 * change, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["accuracy"], right, rtol=1e-6)


def test_what_the_data_seldom_do_is_penalized():
    choices = jnp.array([2.0, 5.0])
    log_prob = jnp.log(jnp.array([[0.5, 0.2], [1.0, 1.0], [1e-9, 0.1]]))
    found = penalize(log_prob, choices, 2.0)
    expected = [[0, 0], [1, 1], [-10, 2 * np.log(0.5)]]  # 2 log 2 and 2 log 5 are above 1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not penalize(log_prob, choices, 0.0).any()


def test_rewards_are_standardized_over_all_agents():
    reward = RNG.normal(3, 5, (T, B, 2)).astype(np.float32)
    found = np.asarray(standardize(jnp.asarray(reward)))
    np.testing.assert_allclose(found, (reward - reward.mean()) / reward.std() + 1, atol=1e-5)
    np.testing.assert_allclose(standardize(jnp.full((3, 2), 7.0)), 1)


def test_one_agent_at_most_deviates_from_an_experts_team():
    env, count = expert_channel(TALK), 512
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, env.params)))
    _, timestep = reset(jax.random.split(random.key(0), count))
    player = mixed_team(env, (1.0, 0.25), (0.0, 0.5))
    act = jax.jit(lambda t, memory, key: player.act((), t, memory, key, False))
    action, skill, _ = act(timestep, player.memory(count), random.key(1))
    kinds, counts = np.unique(np.asarray(skill), axis=0, return_counts=True)
    # Both with 1 or 1/4; or either alone with 0 or 1/2.
    assert kinds.tolist() == [[0, 1], [0.25, 0.25], [0.5, 1], [1, 0], [1, 0.5], [1, 1]]
    np.testing.assert_allclose(
        counts / count, [1 / 8, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 4], atol=0.06
    )
    advised = timestep.privileged["expert_action"]
    for i, agent in enumerate(("listener", "speaker")):
        same, able = np.asarray(action[agent] == advised[agent]), np.asarray(skill)[:, i]
        assert same[able == 1].all() and not same[able == 0].all()
    # Within an episode a skill stays.
    later = dataclasses.replace(timestep, first=jnp.zeros(count, bool))
    np.testing.assert_array_equal(act(later, skill, random.key(2))[1], skill)


def sample_batch(env, teacher):
    group = TeamSegments(
        data_size=640, length=5, count=64, batch_size=64, held_out=0, others=1, teacher=teacher
    )
    source = group.source(env)

    def draw(key):
        state = source.init(key, source.hyper, NOBODY)
        state, fresh, _ = source.collect(state, NOBODY, key)
        return source.sample(state, fresh, key)

    return jax.jit(draw)(random.key(3))


def test_each_agent_prefers_the_segment_of_its_own_larger_reward():
    found = sample_batch(TAG, TeamSegments().teacher)
    reward = np.asarray(found.transitions.reward)  # [T, B, agents]
    label = np.asarray(found.transitions.extras[PREFERRED])
    assert reward.shape == label.shape == (5, 64 * 3, 4) and np.asarray(found.mask).all()
    total = reward.sum(0)
    expected = 0.5 * (1 + np.sign(total[::3] - total[1::3]))
    np.testing.assert_array_equal(label, np.broadcast_to(np.repeat(expected, 3, 0), label.shape))
    assert (expected[:, 0] != expected[:, -1]).any() and (expected[:, 0] == 0.5).any()
    assert 0.2 < expected.mean() < 0.8


def test_a_teams_reward_is_that_of_each_agent():
    found = sample_batch(TALK, dataclasses.replace(TeamSegments().teacher, rationality=1.0))
    label = np.asarray(found.transitions.extras[PREFERRED])
    np.testing.assert_array_equal(label[..., 0], label[..., 1])
    assert with_team_reward(TALK) is TALK


def have_moved(before, after):
    """Return whether any parameter differs."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(bool((x != y).any()) for x, y in pairs)


@pytest.mark.slow
def test_values_are_learned_after_the_rewards():
    algorithm = marlhf(SPREAD, SMALL | {"segments.updates": 1, "reward.steps": 1.0})
    run = jax.jit(functools.partial(start, algorithm))(random.key(0))
    step = jax.jit(lambda run: train(algorithm, run, 1))
    names = ("reward_agent_1", "reference_agent_0", "agent_0")
    moves = []
    for _ in range(3):
        before = run.state.agent.parts
        run, metrics = step(run)
        after = run.state.agent.parts
        moves.append([have_moved(before[name].params, after[name].params) for name in names])
    assert moves == [[True, True, False], [False, False, True], [False, False, True]]
    assert np.isfinite(metrics["team_loss"].value())
    measured = jax.jit(algorithm.measure)(run.state, random.key(1))
    assert 0 <= measured["held_out_accuracy"] <= 1


def test_the_teams_reward_is_the_sum_of_its_agents():
    team = with_team_reward(SPREAD)
    key, still = random.key(4), dict.fromkeys(AGENTS, jnp.int32(0))
    state, timestep = SPREAD.reset(key, SPREAD.params)
    assert timestep.reward.shape == (2,) and team.reset(key, team.params)[1].reward.shape == ()
    each = SPREAD.step(key, state, still, SPREAD.params)[1].reward
    whole = team.step(key, state, still, team.params)[1].reward
    np.testing.assert_allclose(whole, each.sum(), rtol=1e-6)


def test_bad_settings_are_refused():
    for env, config, said in (
        (envs.make("cartpole"), {}, "needs agents that act at the same time"),
        (dataclasses.replace(SPREAD, expert=None), {}, "which 'simple_spread' lacks"),
        (SPREAD, {"segments.name": "medium"}, "it must be empty"),
        (SPREAD, {"teacher.score": "goal"}, "it must be 'reward'"),
        (SPREAD, {"teacher.skip_ties": True}, "a tie for one agent is none for another"),
        (SPREAD, {"skills": (), "deviations": ()}, "needs a way to play"),
    ):
        with pytest.raises(UserError, match=said):
            marlhf(env, config)
