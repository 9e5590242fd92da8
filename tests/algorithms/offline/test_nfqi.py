"""Nested FQI: losses on tables, its two phases, and whose dynamics the groups' data obey."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import nfqi
from jaxrl.algorithms.offline.shared.variation import Variation, make_variant
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch
from tests.kit.stub import stub, transitions

ENV = envs.make("cartpole")
N, A = 32, 3
RNG = np.random.default_rng(3)
SHARED, ADDED, SHARED_TARGET, ADDED_TARGET = RNG.normal(size=(4, 2 * N, A)).astype(np.float32)
X = transitions(N, A)
table = lambda values: lambda s: values[s.observation][..., None]
NET = stub(
    shared=table(SHARED),
    foreground=table(ADDED),
    target={"shared": table(SHARED_TARGET), "foreground": table(ADDED_TARGET)},
    hyper={"discount": 0.9, "bound": 1.2},
)
ROWS = np.arange(N), X.action


def test_shared_values_learn_from_their_own_targets():
    best = SHARED_TARGET[N:].max(-1)
    target = np.clip(X.reward + 0.9 * ~X.terminated * best, -1.2, 1.2)
    assert (np.abs(target) < 1.2).any() and (target == 1.2).any()
    expected = 0.5 * (SHARED[ROWS] - target) ** 2
    np.testing.assert_allclose(nfqi.shared_loss(NET, X).value, expected, rtol=1e-5)


def test_the_foreground_learns_what_it_adds_to_the_frozen_values():
    best = (SHARED[N:] + ADDED_TARGET[N:]).max(-1)
    target = np.clip(X.reward + 0.9 * ~X.terminated * best, -1.2, 1.2)
    expected = 0.5 * (SHARED[ROWS] + ADDED[ROWS] - target) ** 2
    np.testing.assert_allclose(nfqi.foreground_loss(NET, X).value, expected, rtol=1e-5)


# ------------------------------------------------------------------------------------------ phases


SETTINGS = {k: v for k, v in nfqi.TINY.items() if k != "env"}
SETTINGS |= {"normalization.observation": False, "num_shards": 1, "period": 1}
SETTINGS |= {"hidden": (16, 16)}
CONFIG = replace(nfqi.Config(), SETTINGS)
OWN = np.arange(N) % 2 == 0


def with_rewards(batch, reward):
    x = batch.transitions
    after = dataclasses.replace(x.next_timestep, reward=reward)
    return dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=after))


def batch(reward):
    seen = 3 * RNG.normal(size=(2 * N, 4)).astype(np.float32)
    x = transitions(N, 2, foreground=OWN)
    before = dataclasses.replace(x.timestep, observation=seen[:N])
    after = dataclasses.replace(x.next_timestep, observation=seen[N:], reward=reward)
    x = dataclasses.replace(x, timestep=before, next_timestep=after)
    return Batch(jax.tree.map(jnp.asarray, x), env_steps=jnp.float32(1))


@pytest.fixture(scope="module")
def learn():
    agents = {
        plays: nfqi.nfqi.agent(ENV, replace(CONFIG, {"plays": plays}))
        for plays in ("foreground", "background")
    }

    @jax.jit
    def run(batch, steps):
        """Return the parts before and after an update, the best actions, and what counts."""
        hyper = {k: jnp.float32(v) for k, v in (hypers(CONFIG) | {"shared_steps": steps}).items()}
        agent = agents["foreground"]
        begun = agent.init(random.key(0), hyper)
        state = agent.update(begun, batch, random.key(1))[0]
        seen = batch.transitions.timestep
        acts = {
            plays: agent.act(state, seen, agent.memory(N), random.key(2), True)[0]
            for plays, agent in agents.items()
        }
        return begun.parts, state.parts, acts, state.extra

    return lambda batch, steps: jax.device_get(run(batch, steps))


@pytest.mark.parametrize(("steps", "learned", "frozen"), [
    (1.0, "shared", "foreground"), (0.0, "foreground", "shared"),
])  # fmt: skip
def test_a_phase_learns_one_part_from_one_group(learn, steps, learned, frozen):
    given = batch(np.ones(N, np.float32))
    begun, after, _, extra = learn(given, steps)
    jax.tree.map(np.testing.assert_array_equal, begun[frozen], after[frozen])
    changed = jax.tree.map(
        lambda a, b: (a != b).any(), begun[learned].params, after[learned].params
    )
    assert any(jax.tree.leaves(changed))
    for group, same in ((OWN, learned == "shared"), (~OWN, learned == "foreground")):
        lower = with_rewards(given, np.where(group, -9.0, 1.0).astype(np.float32))
        found = learn(lower, steps)[1][learned].params
        equal = jax.tree.map(np.array_equal, found, after[learned].params)
        assert all(jax.tree.leaves(equal)) == same
    copied = functools.partial(np.testing.assert_array_equal)
    jax.tree.map(copied, after[learned].target, after[learned].params)  # period 1
    assert extra == (learned == "foreground")


def test_added_values_count_for_the_foreground_alone_and_once_they_learn(learn):
    given = batch(np.ones(N, np.float32))
    begun = learn(given, 0.0)
    network = nfqi.recipe(ENV, CONFIG).parts["shared"].network
    seen = given.transitions.timestep
    shared, added = (
        network.apply(begun[1][n].params, seen)[..., 0] for n in ("shared", "foreground")
    )
    np.testing.assert_array_equal(begun[2]["background"], shared.argmax(-1))
    np.testing.assert_array_equal(begun[2]["foreground"], (shared + added).argmax(-1))
    assert (shared.argmax(-1) != (shared + added).argmax(-1)).any()
    first = learn(given, 1.0)[2]
    np.testing.assert_array_equal(first["foreground"], first["background"])


@pytest.mark.slow
def test_each_group_has_steps_of_its_own_dynamics():
    config = {k: v for k, v in nfqi.TINY.items() if k != "env"} | {"background.value": 40.0}
    algorithm = nfqi.nfqi(ENV, config)
    source = algorithm.source

    @jax.jit
    def draw(key):
        policy = algorithm.policy(algorithm.init(key, algorithm.hyper))
        state, fresh, _ = source.collect(source.init(key, algorithm.hyper, policy), policy, key)
        return source.sample(state, fresh, key).transitions

    x = draw(random.key(0))
    own = x.extras["foreground"]
    assert own.sum() == 4 and len(own) == 8
    change = np.abs(x.next_timestep.observation[:, 1] - x.timestep.observation[:, 1])
    assert make_variant(ENV, Variation("force", 40.0)).params.force == 40.0
    # The cart of 1.1 kg gains about 0.2 m/s from 10 N in 0.02 s, and 0.8 m/s from 40 N.
    assert (change[own] < 0.3).all() and (change[~own] > 0.5).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"groups.batch_size": 7}, r"^groups.batch_size is 7; twice groups.num_shards=1"),
        ({"background.vary": "weather"}, r"weather"),
    ],
)
def test_what_does_not_fit_is_refused(settings, said):
    with pytest.raises(UserError, match=said):
        nfqi.nfqi.agent(ENV, replace(nfqi.Config(), settings))
