"""Bootstrapped DQN: its loss against NumPy, who acts, what stays fixed, and a treasure that DQN
does not find."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.bootstrapped_dqn import Config, bootstrapped_dqn, q_loss
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core import metrics, random
from jaxrl.core.settings import Static
from jaxrl.core.settings import replace as with_settings
from jaxrl.core.train import start, train
from jaxrl.core.types import TimeStep
from tests.kit.stub import mask_actions, stub, transitions

K, N, A = 3, 32, 2
RNG = np.random.default_rng(0)
Q, TARGET, PRIOR = RNG.normal(size=(3, K, 2 * N, A)).astype(np.float32)


def network(table):
    return lambda s: jnp.asarray(table[:, s.observation][..., None])


@pytest.mark.parametrize("legal", [False, True])
def test_each_network_learns_from_its_own_target_with_its_prior_where_its_mask_is(legal):
    mask = RNG.random((N, K)) < 0.5
    x = transitions(N, mask=mask)
    x = mask_actions(x) if legal else x
    if legal:  # the action that was taken was legal
        allowed = x.timestep.legal_actions.copy()
        allowed[np.arange(N), x.action] = True
        x = replace(x, timestep=replace(x.timestep, legal_actions=allowed))
    hyper = {"discount": 0.9, "prior_scale": 2.0}
    net = stub(q=network(Q), prior=network(PRIOR), target={"q": network(TARGET)}, hyper=hyper)
    following = (TARGET + 2 * PRIOR)[:, N:]
    if legal:
        following = np.where(x.next_timestep.legal_actions, following, -np.inf)
    target = x.reward + 0.9 * ~x.terminated * following.max(-1)  # a truncated step bootstraps
    taken = (Q + 2 * PRIOR)[:, np.arange(N), x.action]
    error = (mask.T * (taken - target) ** 2 / 2).sum(0)
    np.testing.assert_allclose(q_loss(net, x), error, rtol=1e-4, atol=1e-5)


def test_one_network_acts_for_an_episode_and_all_of_them_vote_when_greedy():
    changes = {"members": K, "num_envs": N, "mask_probability": 0.25}
    recipe = bootstrapped_dqn.recipe(
        envs.make("deep_sea"), Static(with_settings(Config(), changes))
    )
    hyper = {"prior_scale": 1.0, "mask_probability": 0.25}
    net = stub(q=network(Q), prior=network(PRIOR), hyper=hyper)
    best = (Q + PRIOR).argmax(-1)[:, :N]
    no = np.zeros(N, bool)
    step = lambda first: TimeStep(np.arange(N), np.zeros(N, np.float32), no, no, first)
    act = jax.jit(
        lambda first, memory, key, greedy: recipe.act(net, step(first), memory, key, greedy),
        static_argnums=3,
    )
    _, member, extras = act(~no, recipe.memory(N), random.key(0), False)
    assert set(np.unique(member)) == set(range(K))
    begins = np.arange(N) < N // 2
    action, later, _ = act(begins, member, random.key(1), False)
    np.testing.assert_array_equal(later[N // 2 :], member[N // 2 :])
    assert (later[: N // 2] != member[: N // 2]).any()
    np.testing.assert_array_equal(action, best[later, np.arange(N)])
    assert extras["mask"].shape == (N, K) and 0.1 < np.mean(extras["mask"]) < 0.4
    voted, _, _ = act(no, member, random.key(2), True)
    np.testing.assert_array_equal(voted, best.sum(0) > K / 2)


@pytest.mark.slow
def test_priors_stay_as_they_are_and_the_networks_differ():
    settings = {"members": 2, "hidden": (8,), "capacity": 64, "warmup": 16, "batch_size": 8}
    algorithm = bootstrapped_dqn(envs.make("deep_sea", size=3), settings)
    before = jax.jit(lambda key: start(algorithm, key))(random.key(0))
    after, _ = jax.jit(lambda run: train(algorithm, run, 20))(before)
    parts = lambda run: run.state.agent.parts
    same = lambda name: jax.tree.map(np.array_equal, parts(before)[name], parts(after)[name])
    assert jax.tree.all(same("prior")) and not jax.tree.all(same("q"))
    for kernel in jax.tree.leaves(parts(after)["q"].params):
        assert kernel.shape[0] == 2 and (kernel.ndim < 3 or not np.array_equal(*kernel))


@pytest.mark.slow
def test_it_finds_a_treasure_that_dqn_does_not():
    """A random episode of DeepSea with size 10 finds the treasure with probability 1 / 1024."""
    same = {"num_envs": 1, "num_steps": 1, "updates": 1, "batch_size": 32, "warmup": 100}
    same |= {"capacity": 4000, "hidden": (32, 32), "learning_rate": 1e-3, "target.period": 4}

    def earn(algorithm, **changes):
        algorithm = algorithm(envs.make("deep_sea", size=10, seed=1), same | changes)
        run = start(algorithm, random.key(0))
        _, row = jax.jit(lambda run: train(algorithm, run, 4000))(run)  # 400 episodes
        return metrics.values(row)["episode_return"]

    explore = {"exploration.start": 0.05, "exploration.end": 0.05}
    assert earn(bootstrapped_dqn, members=10) > 0.5
    assert earn(dqn, **explore, **{"optimizer.name": "adam", "eps": 1e-8}) < 0.01
