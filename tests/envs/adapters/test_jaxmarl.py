"""The adapter of JaxMARL against JaxMARL itself."""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.ippo import ippo
from jaxrl.algorithms.multi_agent.mappo import mappo
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.envs.policies import random_action
from jaxrl.kit.agents import joint, seen_by
from jaxrl.sources.rollouts import rollouts
from tests.envs.adapters.training import CONFIG, SIZES

jaxmarl = pytest.importorskip("jaxmarl", reason="jaxmarl is not installed (the jaxmarl extra)")

from jaxrl.envs.adapters import jaxmarl as adapter  # noqa: E402

SPREAD = "jaxmarl/MPE_simple_spread_v3"
SPEAKER = "jaxmarl/MPE_simple_speaker_listener_v4"
SMAX = "jaxmarl/HeuristicEnemySMAX"


@functools.cache
def compile_env(name, **settings):
    env = envs.make(name, **settings)
    return env, jax.jit(env.reset), jax.jit(env.step)


def play(name, keys, choose=random_action, **settings):
    """Yield the actions and time steps of an episode of random actions, the reset's first."""
    env, reset, step = compile_env(name, **settings)
    draw = jax.jit(functools.partial(choose, env.action_space))
    state, timestep = reset(keys[0], ())
    yield None, None, timestep
    for key in keys[1:]:
        action = draw(jax.random.fold_in(key, 1), timestep)
        state, timestep = step(key, state, action, ())
        yield key, action, timestep
        if timestep.done:
            return


@pytest.mark.parametrize(
    "name",
    [
        "MPE_simple_spread_v3",
        "coin_game",
        pytest.param("MPE_simple_tag_v3", marks=pytest.mark.slow),
        pytest.param("HeuristicEnemySMAX", marks=pytest.mark.slow),
        pytest.param("hanabi", marks=pytest.mark.slow),
        pytest.param("jaxnav", marks=pytest.mark.slow),
        pytest.param("overcooked", marks=pytest.mark.slow),
        pytest.param("overcooked_v2", marks=pytest.mark.slow),
        pytest.param("storm", marks=pytest.mark.slow),
        pytest.param("storm_2p", marks=pytest.mark.slow),
        pytest.param("storm_np", marks=pytest.mark.slow),
        "switch_riddle",
    ],
)
def test_it_is_an_environment(name):
    envs.check_environment(envs.make(f"jaxmarl/{name}"), 8)


@pytest.mark.parametrize(
    "name,ours",
    [
        ("MPE_simple_spread_v3", {}),
        ("MPE_simple_world_comm_v3", {"action_type": "Discrete"}),
        ("switch_riddle", {"num_agents": 4}),
        ("coin_game", {}),
        ("overcooked", {"layout": "coord_ring"}),
        ("hanabi", {"num_agents": 3}),
        ("HeuristicEnemySMAX", {"scenario": "3m"}),
    ],
)
def test_the_same_keys_give_what_jaxmarl_gives(name, ours):
    theirs = jaxmarl.make(name, **adapter._arguments(name, ours))
    raw_step = jax.jit(theirs.step_env)
    first, *rest = jax.random.split(jax.random.key(4), 31)
    observation, raw = jax.jit(theirs.reset)(first)
    reward, done = None, {"__all__": False}
    for key, action, timestep in play(f"jaxmarl/{name}", [first, *rest], **ours):
        names = dict(zip(theirs.agents, envs.make(f"jaxmarl/{name}", **ours).agents, strict=True))
        if key is not None:
            theirs_action = {a: action[own] for a, own in names.items()}
            observation, raw, reward, done, _ = raw_step(key, raw, theirs_action)
        for a, own in names.items():
            np.testing.assert_array_equal(timestep.observation[own], observation[a])
        if reward is not None:
            each = np.asarray([reward[a] for a in names], np.float32)
            np.testing.assert_array_equal(np.broadcast_to(timestep.reward, each.shape), each)
        assert bool(timestep.done) == bool(done["__all__"])


@pytest.mark.parametrize(
    "name,settings,limit",
    [
        ("MPE_simple_spread_v3", {"max_steps": 5}, 6),  # JaxMARL's count starts a step later
        ("overcooked", {"max_steps": 5}, 5),
        ("coin_game", {"num_inner_steps": 3, "num_outer_steps": 2}, 6),
        ("HeuristicEnemySMAX", {"scenario": "3m", "max_steps": 4}, 4),
    ],
)
def test_the_clock_truncates(name, settings, limit):
    env, _, _ = compile_env(f"jaxmarl/{name}", **settings)
    keys = jax.random.split(jax.random.key(1), limit + 2)
    episode = [timestep for _, _, timestep in play(f"jaxmarl/{name}", keys, **settings)]
    assert env.max_steps == limit and len(episode) == limit + 1
    assert episode[-1].truncated and not episode[-1].terminated
    assert episode[-1].alive is None or episode[-1].alive.all()


def test_an_answer_terminates_the_riddle():
    tell = lambda space, key, timestep: {name: jnp.int32(adapter.TELL) for name in space}
    keys = jax.random.split(jax.random.key(1), 4)
    *_, (_, _, last) = play("jaxmarl/switch_riddle", keys, tell)
    assert last.terminated and not last.truncated and last.reward == -1


def test_a_battle_terminates_when_a_side_is_dead():
    """Allies that run into the wall die, are marked, and can only stand still."""
    run = lambda space, key, timestep: {
        name: jnp.where(timestep.legal_actions[name][0], 0, 4).astype(jnp.int32) for name in space
    }
    keys = jax.random.split(jax.random.key(2), 100)
    episode = [x for _, _, x in play(SMAX, keys, run, scenario="3m", enemy_shoots=False)]
    last = episode[-1]
    assert last.terminated and not last.truncated and len(episode) < 100
    assert not last.alive.any() and last.metrics["success"] == 0
    partly = [x for x in episode if x.alive.any() and not x.alive.all()]
    for timestep in [*partly, last]:
        for own, alive in zip(envs.make(SMAX, scenario="3m").agents, timestep.alive, strict=True):
            assert timestep.legal_actions[own].sum() == 1 or alive


def test_hanabi_offers_moves_to_one_player():
    keys = jax.random.split(jax.random.key(3), 100)
    turns, last = [], None
    for _, _, last in play("jaxmarl/hanabi", keys):
        waiting = [bool(own[-1]) for own in last.legal_actions.values()]
        turns.append(waiting.index(False))
        assert waiting.count(False) == 1
    assert turns == [i % 2 for i in range(len(turns))]
    assert last is not None and last.terminated and not last.truncated


def test_rewards_are_in_the_order_of_the_agents():
    keys = jax.random.split(jax.random.key(5), 20)
    own = list(play("jaxmarl/MPE_simple_tag_v3", keys))
    assert envs.make("jaxmarl/MPE_simple_tag_v3").agents[-1] == "agent_0"
    for (_, _, each), (_, _, total), (_, _, mean) in zip(
        own,
        play("jaxmarl/MPE_simple_tag_v3", keys, reward="sum"),
        play("jaxmarl/MPE_simple_tag_v3", keys, reward="mean"),
        strict=True,
    ):
        assert each.reward.shape == (4,) and total.reward.shape == mean.reward.shape == ()
        np.testing.assert_allclose(each.reward.sum(), total.reward, rtol=1e-5)
        np.testing.assert_allclose(each.reward.mean(), mean.reward, rtol=1e-5)
    assert envs.make(SPEAKER).reset(jax.random.key(0), ())[1].reward.shape == ()


def test_shaping_rewards_each_cook_for_preparations():
    keys = jax.random.split(jax.random.key(6), 200)
    shaped = [x for _, _, x in play("jaxmarl/overcooked", keys, shaping=0.5)]
    plain = [x for _, _, x in play("jaxmarl/overcooked", keys)]
    assert plain[0].reward.shape == () and plain[0].true_reward is None
    extra = [np.asarray(x.reward - x.true_reward) for x in shaped]
    assert np.shape(extra[0]) == (2,) and set(np.unique(extra)) >= {0.0, 1.5}  # an onion in a pot
    np.testing.assert_array_equal([x.true_reward for x in shaped], [x.reward for x in plain])


def test_the_state_is_all_observations_side_by_side():
    for name in (SPREAD, SPEAKER):
        env, reset, _ = compile_env(name)
        timestep = reset(jax.random.key(0), ())[1]
        parts = [timestep.observation[own] for own in env.agents]
        np.testing.assert_array_equal(timestep.privileged["state"], np.concatenate(parts))


@pytest.mark.parametrize("algorithm", [mappo, ippo])
@pytest.mark.parametrize("name,settings", [(SPREAD, {"reward": "sum"}), (SPEAKER, {})])
def test_agents_train_for_one_reward(algorithm, name, settings):
    runs(algorithm(envs.make(name, **settings), replace(algorithm.Config(), SIZES)))


def test_agents_with_unlike_spaces_train_for_their_own_rewards():
    env = envs.make("jaxmarl/MPE_simple_tag_v3")
    shapes = {own: space.shape for own, space in env.observation_space.items()}
    assert shapes["adversary_0"] == (16,) and shapes["agent_0"] == (14,)
    hunters, prey = env.agents[:3], env.agents[3]
    agents = {
        hunters: ppo.agent(seen_by(env, hunters[0]), CONFIG),
        prey: ppo.agent(seen_by(env, prey), CONFIG),
    }
    runs(learn(joint(env, agents), rollouts(env, 2, 4)))


def test_agents_that_die_train():
    env = envs.make(SMAX, scenario="3m")
    agents = {env.agents: ppo.agent(seen_by(env, env.agents[0]), CONFIG)}
    runs(learn(joint(env, agents), rollouts(env, 2, 4)))


def runs(algorithm):
    begin = start(algorithm, random.key(0))
    _, row = jax.jit(train, static_argnums=(0, 2))(algorithm, begin, 2)
    values = {k: np.asarray(v) for k, v in m.values(row).items()}
    losses = {k: v for k, v in values.items() if k.endswith("_loss")}
    assert losses and all(np.isfinite(v) for v in losses.values()), values
    assert np.isnan(values["diverged"])


def test_every_name_of_jaxmarl_is_known():
    registered = {x for x in jaxmarl.registered_envs if not x.startswith(adapter.ROBOTARIUM)}
    assert registered == set(adapter.NAMES)


def test_settings_are_those_of_jaxmarl():
    assert envs.settings(SPREAD) == {
        "reward": "own",
        "max_steps": 25,
        "dt": 0.1,
        "num_agents": 3,
        "num_landmarks": 3,
        "local_ratio": 0.5,
        "action_type": "Discrete",
    }
    assert {"scenario", "attack_mode", "max_steps"} <= envs.settings(SMAX).keys()
    assert envs.make(SPREAD, num_agents=4).agents == tuple(f"agent_{i}" for i in range(4))


@pytest.mark.parametrize(
    "name,settings,message",
    [
        ("MPE_simple_sprad_v3", {}, "did you mean 'jaxmarl/MPE_simple_spread_v3'"),
        ("MPE_simple_spread_v3", {"num_agent": 2}, "'num_agent'; did you mean 'num_agents'"),
        ("MPE_simple_spread_v3", {"reward": "team"}, r"reward of .* is 'team'; it must be 'own'"),
        ("HeuristicEnemySMAX", {"scenario": "4m"}, r"Unknown scenario of .* '4m'"),
        ("overcooked", {"layout": "cramped"}, "Unknown layout of 'jaxmarl/overcooked' 'cramped'"),
        ("overcooked_v2", {"layout": "nowhere"}, "Unknown layout of 'jaxmarl/overcooked_v2'"),
        ("switch_riddle", {"num_agents": 1}, r"cannot be made .*minimum number of agents"),
        ("LearnedPolicyEnemySMAX", {}, r"cannot be set by name; call adapt\(name, jaxmarl.make"),
        ("JaxRobotarium_rware", {}, "needs the package 'jaxrobotarium'"),
    ],
)
def test_errors_are_one_sentence(name, settings, message):
    with pytest.raises(UserError, match=message):
        envs.make(f"jaxmarl/{name}", **settings)


def test_a_missing_package_of_a_family_is_one_sentence(monkeypatch):
    monkeypatch.setattr(jaxmarl.registration, "MABRAX_AVAILABLE", False)
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(UserError, match="The package 'brax' is not installed"):
        adapter.builder("ant_4x2")


def test_bodies_are_split_among_agents():
    pytest.importorskip("brax", reason="brax is not installed (the suites extra)")
    env, reset, step = compile_env("jaxmarl/walker2d_2x3", episode_length=3)
    key = jax.random.key(0)
    state, timestep = reset(key, ())
    assert timestep.reward.shape == () and len(env.agents) == 2
    nothing = jax.tree.map(jnp.zeros_like, random_action(env.action_space, key, timestep))
    for _ in range(3):
        assert not timestep.done
        state, timestep = step(key, state, nothing, ())
    assert timestep.truncated and not timestep.terminated


def test_an_environment_that_resets_itself_is_an_error():
    theirs = jaxmarl.make("switch_riddle")
    theirs.auto_reset = True
    with pytest.raises(UserError, match="'riddle' resets itself; make it with auto_reset=False"):
        adapter.adapt("riddle", theirs)
