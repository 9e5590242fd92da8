"""Learning from pairs of segments: losses against NumPy, phases, and the exact optimum of CPL."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences import cpl as of_cpl
from jaxrl.algorithms.preferences import dppo_preference as of_dppo
from jaxrl.algorithms.preferences import rl_vlm_f_offline as of_frames
from jaxrl.algorithms.preferences.cpl import cpl
from jaxrl.algorithms.preferences.dppo_preference import dppo_preference, rank_loss
from jaxrl.algorithms.preferences.preference_iql import preference_iql
from jaxrl.algorithms.preferences.rl_vlm_f_offline import rl_vlm_f_offline
from jaxrl.algorithms.preferences.shared.segment_rewards import (
    correlation,
    model_of,
    predict_rewards,
)
from jaxrl.algorithms.preferences.shared.teachers import optimal_advantages
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from jaxrl.core.types import TimeStep, Transition
from jaxrl.envs.tables import mdp
from jaxrl.kit import Minibatch
from jaxrl.sources import segment_pairs
from jaxrl.sources.segments import Teacher
from tests.kit.stub import losses_of, stub

TABLE = envs.make("random_mdp", num_states=4, num_actions=3)
PENDULUM = envs.make("pendulum")
RNG = np.random.default_rng(0)
T, N = 5, 3
LOG_PROB = -RNG.uniform(0.1, 2.0, (T, 2 * N)).astype(np.float32)


def logistic(x):
    return np.log1p(np.exp(-x))


def train_on(builder, env, config, steps, seed=0):
    """Return the algorithm, its run after `steps` steps, and the last metrics."""
    algorithm = builder(env, config)
    run = jax.jit(functools.partial(start, algorithm))(random.key(seed))
    run, metrics = jax.jit(lambda run: train(algorithm, run, steps))(run)
    return algorithm, run, {k: x.value() for k, x in metrics.items() if hasattr(x, "weight")}


# ------------------------------------------------------------------------------------------- cpl


def test_cpl_clones_at_first_and_contrasts_segments_then():
    loss = losses_of(of_cpl.recipe(TABLE, Static(of_cpl.Config())))["loss"]
    policy = types.SimpleNamespace(log_prob=lambda action: LOG_PROB)
    hyper = {"temperature": 0.3, "bias": 0.6, "discount": 0.9, "pretraining": 5.0, "cloning": 0.2}
    net = lambda updates: stub(actor=lambda t: policy, hyper=hyper, updates=updates)
    x = Minibatch(types.SimpleNamespace(timestep=None, action=np.zeros((T, 2 * N), int)))
    cloning = -0.5 * (LOG_PROB[:, ::2] + LOG_PROB[:, 1::2]).mean(0)
    np.testing.assert_allclose(loss(net(4), x).value, cloning, rtol=1e-5)
    total = 0.3 * (0.9 ** np.arange(T)[:, None] * LOG_PROB).sum(0)
    contrast = logistic(total[::2] - 0.6 * total[1::2])
    output = loss(net(5), x)
    np.testing.assert_allclose(output.value, contrast + 0.2 * cloning, rtol=1e-5)
    np.testing.assert_array_equal(output.metrics["accuracy"], total[::2] > total[1::2])


def test_the_likelihood_of_real_actions_is_a_squared_distance_in_half_widths():
    loss = losses_of(of_cpl.recipe(PENDULUM, Static(of_cpl.Config())))["loss"]
    hyper = {"temperature": 0.3, "bias": 1.0, "discount": 1.0, "pretraining": 9.0, "cloning": 0.0}
    action, own = RNG.uniform(-2, 2, (2, T, 2, 1)).astype(np.float32)
    net = stub(actor=lambda t: own, hyper=hyper, updates=0)
    value = loss(net, Minibatch(types.SimpleNamespace(timestep=None, action=action))).value
    np.testing.assert_allclose(value, [(((action - own) / 2) ** 2).mean()], rtol=1e-5)


EXACT = {
    "segments": {
        "name": "",
        "data_size": 4096,
        "skills": (0.0,),
        "length": 3,
        "count": 8192,
        "batch_size": 256,
        "updates": 50,
        "held_out": 0,
        "teacher": {
            "score": "regret",
            "rationality": 1.0,
            "temperature": 0.5,
            "horizon_discount": 0.9,
            "discount": 0.9,
            "soft": True,
        },
    },
    "torso": {"hidden": (32,)},
    "optimizer": {"learning_rate": 1e-2, "learning_rate_steps": 1500.0, "schedule": "cosine"},
    "temperature": 0.5,
    "discount": 0.9,
    "bias": 1.0,
    "pretraining": 100.0,
}


@pytest.mark.slow
def test_cpl_finds_the_optimal_maximum_entropy_policy_from_regrets():
    """No reward is seen, and no value is learned: preferences by regret are enough."""
    algorithm, run, _ = train_on(cpl, TABLE, EXACT, 30)
    assert algorithm.measure(run.state, random.key(1))["distance_to_optimum"] < 0.01
    algorithm, run, _ = train_on(cpl, TABLE, EXACT, 2)  # still a clone of random actions
    assert algorithm.measure(run.state, random.key(1))["distance_to_optimum"] > 0.2


def test_advantages_are_those_of_the_soft_bellman_equation():
    found, alpha, discount = mdp.tensors(TABLE.params), 0.5, 0.9
    advantage = np.asarray(optimal_advantages(TABLE.params, alpha, discount))
    np.testing.assert_allclose(np.exp(advantage / alpha).sum(-1), 1, rtol=1e-5)
    transition, reward = map(np.asarray, (found.transition, found.reward))
    value = np.zeros(4)
    for _ in range(500):
        q = reward + discount * transition @ value
        value = alpha * np.log(np.exp(q / alpha).sum(-1))
    np.testing.assert_allclose(advantage, q - value[:, None], atol=1e-4)


def test_regret_needs_a_table():
    config = of_cpl.Config().segments
    teacher = dataclasses.replace(config.teacher, score="regret")
    with pytest.raises(UserError, match="The regret of 'pendulum' is not known"):
        teacher.teacher(PENDULUM)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"length": 201}, "segments.length is 201, but episodes of 'pendulum' have at most 200"),
        ({"length": 4, "held_out": 1}, "segments.held_out is 1"),
    ],
)
def test_own_data_without_a_segment_are_refused(settings, match):
    segments = replace(of_cpl.Config().segments, {"name": "", **settings})
    with pytest.raises(UserError, match=match):
        segments.data(PENDULUM)


# ------------------------------------------------------------------------------------------ dppo


def test_dppo_compares_all_segments_by_their_predicted_scores():
    distance, score = RNG.uniform(0, 1, 6).astype(np.float32), RNG.permutation(6) / 6
    found = rank_loss(jnp.asarray(distance), jnp.asarray(score), 0.2, 0.5).value()
    pairs = [(i, j) for i in range(6) for j in range(6) if score[i] > score[j]]
    gap = lambda i, j: (-distance[i] + 0.5 * distance[j]) / 0.2
    assert len(pairs) == 15
    np.testing.assert_allclose(found, np.mean([logistic(gap(*p)) for p in pairs]), rtol=1e-5)


def test_the_predictor_learns_from_pairs_and_from_moved_segments():
    config = of_dppo.Config(segments=of_dppo.Moved(others=2))
    loss = losses_of(of_dppo.recipe(PENDULUM, Static(config)))["predictor_loss"]
    score = RNG.normal(size=2 * 6).astype(np.float32)  # a pair, and two with their moved ones
    net = stub(predictor=lambda t, a: score, hyper={"smoothness": 0.3})
    x = Minibatch(types.SimpleNamespace(timestep=None, action=None))
    by_set = score.reshape(2, 6)
    rough = ((by_set[:, 2::2] - by_set[:, 3::2]) ** 2).mean(-1)
    expected = logistic(by_set[:, 0] - by_set[:, 1]) + 0.3 * rough
    np.testing.assert_allclose(loss(net, x).value, expected, rtol=1e-5)


# ------------------------------------------------------------------------------- what is learned

LENGTH, EPISODES = 4, 64


def pushes():
    """Episodes that push by one torque each, of which the largest is worth most."""
    rng = np.random.default_rng(1)
    size = LENGTH * EPISODES
    torque = np.repeat(rng.uniform(-2, 2, EPISODES), LENGTH).astype(np.float32)[:, None]
    seen = rng.normal(size=(size, 3)).astype(np.float32)
    zero, no = np.zeros(size, np.float32), np.zeros(size, bool)
    first = np.arange(size) % LENGTH == 0
    last = np.roll(first, -1)
    before = TimeStep(seen, zero, no, no, first)
    after = TimeStep(np.roll(seen, -1, 0), torque[:, 0], no, last, no)
    return Transition(before, torque, after, (), {})


def on_pushes(builder, **options):
    source = lambda env, config: segment_pairs(
        pushes(), Teacher(), length=LENGTH, count=512, batch_size=32, updates=50, **options
    )
    return builder.variant(builder.name, source=source, updates=lambda config: 50)


def torque(algorithm, run):
    """Return the mean greedy action in some states."""
    policy = algorithm.policy(run.state)
    timestep = jax.tree.map(lambda x: x[:32], pushes().timestep)
    return float(policy.act(policy.state, timestep, (), random.key(0), True)[0].mean())


SMALL = {"torso.hidden": (16,), "held_out": 0, "segments.length": LENGTH}


@pytest.mark.slow
def test_cpl_and_dppo_act_as_in_preferred_segments():
    config = SMALL | {"optimizer.learning_rate": 3e-3, "pretraining": 200.0, "bias": 1.0}
    algorithm, run, _ = train_on(on_pushes(cpl), PENDULUM, config, 4)
    assert abs(torque(algorithm, run)) < 0.4  # a clone
    algorithm, run, late = train_on(on_pushes(cpl), PENDULUM, config, 16)
    assert torque(algorithm, run) > 1.5 and late["accuracy"] > 0.75  # cloning included

    config = SMALL | {
        "optimizer.learning_rate": 3e-3,
        "predictor_steps": 200.0,
        "predictor.width": 16,
        "others": 2,
        "smoothness": 0.0,
    }
    builder = on_pushes(dppo_preference, others=2, shift=1.0)
    algorithm, run, metrics = train_on(builder, PENDULUM, config, 4)
    assert metrics["accuracy"] > 0.9 and abs(torque(algorithm, run)) < 0.3  # not learned yet
    predictor = jax.tree.map(np.asarray, run.state.agent.parts["predictor"].params)
    run, _ = jax.jit(lambda run: train(algorithm, run, 8))(run)
    assert torque(algorithm, run) > 1.0
    after = run.state.agent.parts["predictor"].params
    jax.tree.map(np.testing.assert_array_equal, predictor, after)  # frozen


@pytest.mark.slow
def test_a_reward_model_replaces_rewards():
    config = SMALL | {
        "reward.torso.hidden": (32,),
        "reward.optimizer.learning_rate": 3e-3,
        "reward.steps": 500.0,
        "critic.learning_rate": 3e-3,
        "actor.learning_rate": 3e-3,
        "discount": 0.0,
        "target.rate": 0.05,
        "temperature": 0.5,
    }
    algorithm, run, metrics = train_on(on_pushes(preference_iql), PENDULUM, config, 20)
    assert metrics["reward_correlation"] > 0.95
    assert torque(algorithm, run) > 0.7


def test_frames_are_paid_for_by_the_observation_that_a_step_led_to():
    config = of_frames.Config()
    _, inputs = model_of(PENDULUM, config.reward)
    assert len(inputs) == 1 and config.reward.members == 3 and config.segments.length == 1
    assert rl_vlm_f_offline.Config is of_frames.Config
    t = pushes()
    look = lambda timestep: timestep.observation.sum(-1)[None]
    paid = predict_rewards(look, config.reward.reads, t)
    np.testing.assert_array_equal(paid[0], t.next_observation.sum(-1))
    both = lambda timestep, action: (timestep.observation.sum(-1) + action[..., 0])[None, :, None]
    paid = predict_rewards(both, "action", t)
    np.testing.assert_array_equal(paid[0], t.observation.sum(-1) + t.action[:, 0])


def test_correlation():
    x, y = RNG.normal(size=(2, 7, 3))
    expected = np.corrcoef(x.ravel(), y.ravel())[0, 1]
    np.testing.assert_allclose(correlation(jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-4)
    assert correlation(jnp.ones(4), jnp.arange(4.0)) == 0


def test_correlation_is_the_weighted_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 4))
    weight = rng.integers(0, 4, (3, 4))
    repeated = [np.repeat(np.ravel(z), np.ravel(weight)) for z in (x, y)]
    found = correlation(*map(jnp.asarray, (x, y, weight.astype(np.float32))))
    np.testing.assert_allclose(found, np.corrcoef(*repeated)[0, 1], rtol=1e-5)
    assert correlation(jnp.ones(3), jnp.arange(3.0), jnp.ones(3)) == 0
