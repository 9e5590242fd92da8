"""HNPG: the critic's loss, its targets, and what the policy is improved on, against NumPy."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.offline import hnpg
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.networks.heads import categorical
from tests.kit.stub import stub, transitions

T, B, A = 5, 3, 4
N = T * B
KEY = random.key(5)
RNG = np.random.default_rng(6)
Q, TARGET, LOGITS = RNG.normal(size=(3, 4 * N, A)).astype(np.float32)
HYPER = {"discount": 0.9, "gae_lambda": 0.7, "weight": 0.3}


def key(name=""):
    return jax.random.fold_in(KEY, zlib.crc32(name.encode()))


table = lambda values: lambda s: jnp.asarray(values)[s.observation][..., None]
NET = stub(
    actor=lambda s: categorical(jnp.asarray(LOGITS)[s.observation]),
    critic=table(Q),
    target={"critic": table(TARGET)},
    key=key,
    hyper=HYPER,
)


def window(seed, first, **extras):
    """Steps [T, B] whose observations are numbers from `first` on."""
    x = transitions(N, A, seed, **extras)
    shift = lambda t: dataclasses.replace(t, observation=first + t.observation)
    x = dataclasses.replace(x, timestep=shift(x.timestep), next_timestep=shift(x.next_timestep))
    return jax.tree.map(lambda a: a.reshape(T, B, *a.shape[1:]), x)


LOG_PROB = RNG.normal(size=(T, B)).astype(np.float32)
DATA = window(1, 2 * N)
OWN = dataclasses.replace(window(0, 0), extras={"log_prob": LOG_PROB, "data": DATA})
BATCH = Batch(OWN, env_steps=jnp.float32(0), memory=())
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
V, TARGET_V = (PROBS * Q).sum(-1), (PROBS * TARGET).sum(-1)


def at_actions(values, x):
    return np.take_along_axis(values[x.observation], x.action[..., None], -1)[..., 0]


def advantages(lambda_):
    """Generalized advantages of the steps, by a loop."""
    found, later = np.zeros((T, B)), np.zeros(B)
    now, after = V[OWN.observation], V[OWN.next_timestep.observation]
    for t in reversed(range(T)):
        delta = OWN.reward[t] + 0.9 * ~OWN.terminated[t] * after[t] - now[t]
        later = found[t] = delta + 0.9 * lambda_ * ~OWN.done[t] * later
    return found


def test_the_critic_regresses_on_returns_and_on_bellman_targets():
    x = hnpg.make_targets(NET, BATCH)
    returns = advantages(1.0) + V[OWN.observation]
    np.testing.assert_allclose(x.target, returns, rtol=1e-4, atol=1e-5)
    bellman = DATA.reward + 0.9 * ~DATA.terminated * TARGET_V[DATA.next_timestep.observation]
    np.testing.assert_allclose(x.data_target, bellman, rtol=1e-4, atol=1e-5)
    found = hnpg.hybrid_loss(NET, x)
    own, data = (
        0.5 * (at_actions(Q, OWN) - returns) ** 2,
        0.5 * (at_actions(Q, DATA) - bellman) ** 2,
    )
    np.testing.assert_allclose(found.value, 0.3 * own + data, rtol=1e-3, atol=1e-5)
    whole = losses.hybrid_critic(
        at_actions(Q, OWN), x.target, at_actions(Q, DATA), x.data_target, 0.3
    )
    np.testing.assert_allclose(found.value.mean(), whole, rtol=1e-5)


def test_the_policy_is_improved_on_its_steps_and_in_the_datas_states():
    x = hnpg.policy_sample(NET, BATCH)
    np.testing.assert_array_equal(x.timestep.observation[:T], OWN.observation)
    np.testing.assert_array_equal(x.timestep.observation[T:], DATA.observation)
    np.testing.assert_allclose(x.advantage[:T], advantages(0.7), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(x.action[:T], OWN.action)
    np.testing.assert_array_equal(x.log_prob[:T], LOG_PROB)
    action = np.asarray(x.action[T:])
    assert (action != DATA.action).any()  # its own actions, not those of the data
    there = DATA.observation, action
    place = (*np.indices((T, B)), action)
    np.testing.assert_allclose(x.log_prob[T:], np.log(PROBS[DATA.observation])[place], rtol=1e-4)
    np.testing.assert_allclose(
        x.advantage[T:], Q[there] - V[DATA.observation], rtol=1e-3, atol=1e-5
    )


def test_the_line_search_shrinks_steps_as_the_setting_says(monkeypatch):
    seen = []

    def improve(net, sample, iterations, tries, shrinkage=0.5):
        seen.append((iterations, tries, shrinkage))
        return net

    monkeypatch.setattr(hnpg.trpo, "improve_policy", improve)
    settings = {k: v for k, v in hnpg.TINY.items() if k not in ("env", "env_params")}
    settings |= {"iterations": 3, "backtracks": 4, "shrinkage": 0.8}
    algorithm = hnpg.hnpg(envs.make("diabolical_lock", **hnpg.TINY["env_params"]), settings)
    jax.eval_shape(lambda key: algorithm.step(algorithm.init(key, algorithm.hyper), key), KEY)
    assert set(seen) == {(3, 4, 0.8)}


@pytest.mark.slow
def test_the_data_open_a_lock_that_exploration_does_not():
    """One action of the data in ten is random; the best return is 4."""
    env = envs.make("diabolical_lock", horizon=4, num_actions=4)
    settings = {"num_envs": 16, "num_steps": 4, "minibatches": 2, "data.size": 512}
    settings |= {"discount": 1.0, "learning_rate": 3e-3, "max_kl": 0.03, "hidden": (32,)}
    algorithm = hnpg.hnpg(env, settings)

    @jax.jit
    def run(key):
        state = algorithm.init(key, algorithm.hyper)
        state, _ = jax.lax.scan(algorithm.step, state, jax.random.split(key, 60))
        return evaluate(env, algorithm.policy(state), key, 64, True).returns.mean()

    assert float(run(random.key(0))) > 3.5


@pytest.mark.parametrize(
    ("env", "settings", "said"),
    [
        ("pendulum", {}, r"hnpg"),
        ("judged_words", {}, r"expert"),
        ("diabolical_lock", {"normalization.observation": True}, r"the dataset is not normalized"),
    ],
)
def test_what_does_not_fit_is_refused(env, settings, said):
    with pytest.raises(UserError, match=said):
        hnpg.hnpg.agent(envs.make(env), replace(hnpg.Config(), settings))
