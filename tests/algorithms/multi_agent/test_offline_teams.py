"""Datasets of teams and their baselines: the losses against NumPy, the dead, and the qualities."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.maicq import maicq
from jaxrl.algorithms.multi_agent.qmix_cql import Config, qmix_cql
from jaxrl.algorithms.multi_agent.shared import team_datasets
from jaxrl.algorithms.multi_agent.shared.team_datasets import SHARES, first_above
from jaxrl.algorithms.multi_agent.team_bc import team_bc
from jaxrl.core import random
from jaxrl.core import settings as core_settings
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.datasets.transitions import from_streams, returns
from jaxrl.kit.acting import ILLEGAL
from jaxrl.networks.heads import categorical
from jaxrl.networks.mixing import MonotonicMixer
from tests.datasets.stand_in import no_training
from tests.kit.stub import losses_of, stub

__all__ = ["no_training"]

RNG = np.random.default_rng(0)
N, ENV = 24, envs.make("skirmish", agents=2, enemies=1, size=5)
NAMES = ENV.agents


def batch():
    """Transitions whose observations are numbers of rows; agent 1 is dead in every third row."""
    no = np.zeros(N, bool)
    alive = np.stack([~no, np.arange(N) % 3 > 0], -1)
    legal = RNG.random((N, 2, 6)) < 0.6
    legal[..., 0] = True
    of = lambda x: {n: jnp.asarray(x[:, i]) for i, n in enumerate(NAMES)}
    rows = np.arange(N)[:, None] + np.array([0, N])
    at = lambda shift, reward: TimeStep(
        of(rows + shift), reward, no, no, no, legal_actions=of(legal), alive=jnp.asarray(alive),
        privileged={"state": jnp.ones((N, 1))},
    )  # fmt: skip
    reward = RNG.normal(size=N).astype(np.float32)
    action = np.zeros((N, 2), int)
    return Transition(at(0, 0 * reward), of(action), at(2 * N, reward), (), {}), legal, alive


def test_cql_is_logsumexp_over_drawn_joint_actions_minus_the_datas():
    """Gives all legal actions one value, so that the penalty is log(samples + 1) whatever is drawn;
    else it is at least that of the data's action alone."""
    x, legal, alive = batch()
    config = core_settings.replace(Config(), {"decomposition": "vdn", "samples": 7})
    loss = losses_of(qmix_cql.recipe(ENV, config))["team_loss"]
    worth = RNG.normal(size=(4 * N, 1)).astype(np.float32)

    def output(table, alpha):
        look = lambda timestep: jnp.asarray(table)[timestep.observation][..., None]
        parts = dict.fromkeys(NAMES, look)
        hyper = {"discount": 0.9, "alpha": alpha}
        return loss(stub(parts, hyper, key=lambda name: random.key(3), **parts), x)

    equal = np.broadcast_to(worth, (4 * N, 6))
    result = output(equal, 2.0)
    np.testing.assert_allclose(result.metrics["gap"], np.log(8), rtol=1e-5)
    value = (alive * worth[np.arange(N)[:, None] + [0, N], 0]).sum(-1)
    following = (alive * worth[np.arange(N)[:, None] + [2 * N, 3 * N], 0]).sum(-1)
    error = 0.5 * (value - x.reward - 0.9 * following) ** 2
    np.testing.assert_allclose(result.value, error + 2 * np.log(8), rtol=1e-4, atol=1e-4)
    # Values of illegal actions, and of the dead, are never drawn.
    moved = equal.copy()
    for i in range(2):
        moved[i * N : (i + 1) * N] += 50.0 * ~legal[:, i]
    moved[N : 2 * N] += 50.0 * ~alive[:, 1:]
    np.testing.assert_allclose(output(moved, 2.0).metrics["gap"], np.log(8), rtol=1e-5)
    assert ILLEGAL < -1e6  # so that 50 more does not make one legal
    other = RNG.normal(size=(4 * N, 6)).astype(np.float32)
    gap = np.asarray(output(other, 1.0).metrics["gap"])
    assert (gap > 0).all() and gap.std() > 0.1


def test_maicq_weighs_next_values_and_clones_what_is_better_than_its_policy():
    """Compares the loss of tables with loops in float64, where some steps ended or were cut off and
    some agents are dead."""
    x, legal, alive = batch()
    pick = lambda: np.array([RNG.choice(6, p=row / row.sum()) for row in legal.reshape(-1, 6)])
    action, later = pick().reshape(N, 2), pick().reshape(N, 2)
    ended, cut = np.arange(N) % 5 == 2, np.arange(N) % 5 == 3
    of = lambda x: {n: jnp.asarray(x[:, i]) for i, n in enumerate(NAMES)}
    after = dataclasses.replace(x.next_timestep, terminated=ended, truncated=cut)
    extras = {"next_action": of(later)}
    x = dataclasses.replace(x, action=of(action), next_timestep=after, extras=extras)
    table, frozen, logits = RNG.normal(size=(3, 4 * N, 6)).astype(np.float32)
    share, tau, beta = np.array([0.3, 0.7]), 2.0, 0.5
    look = lambda rows: lambda timestep: jnp.asarray(rows)[timestep.observation]
    values = lambda rows: lambda timestep: look(rows)(timestep)[..., None]
    policy = lambda timestep: categorical(look(logits)(timestep), timestep.legal_actions)

    def mix(state, values, shares=False):
        total = (values * np.array([1.0, 2.0])).sum(-1)
        return (total, jnp.broadcast_to(share, values.shape)) if shares else total

    parts = {n: values(table) for n in NAMES} | {f"{n}_policy": policy for n in NAMES}
    target = {n: values(frozen) for n in NAMES} | {"mixer": mix}
    hyper = {"discount": 0.9, "value_temperature": tau, "policy_temperature": beta}
    loss = losses_of(maicq.recipe(ENV, maicq.Config()))["team_loss"]
    found = loss(stub(target, hyper, mixer=mix, **parts), x)

    rows = np.arange(N)[:, None] + np.array([0, N])  # of agents, before
    taken = np.take_along_axis(table[rows], action[..., None], -1)[..., 0] * alive
    there = np.take_along_axis(frozen[rows + 2 * N], later[..., None], -1)[..., 0] * alive
    value, following = taken @ [1.0, 2.0], there @ [1.0, 2.0]
    goes_on = ~ended & ~cut
    weight = np.where(goes_on, np.exp(following / tau), 0)
    weight *= goes_on.sum() / weight.sum()
    goal = x.reward + 0.9 * np.where(goes_on, weight * following, 0)
    expected = np.where(cut, 0, 0.5 * (value - goal) ** 2)
    for i in range(2):
        shown = np.where(legal[:, i], np.exp(logits[rows[:, i]].astype(float)), 0)
        chance = shown / shown.sum(-1, keepdims=True)
        own = table[rows[:, i]]
        better = own[np.arange(N), action[:, i]] - (chance * own).sum(-1)
        weight = np.where(alive[:, i], np.exp(better / beta), 0)
        weight *= alive[:, i].sum() / weight.sum()
        expected = expected - share[i] * weight * np.log(chance[np.arange(N), action[:, i]]) / 2
    np.testing.assert_allclose(found.value, expected, rtol=1e-3, atol=1e-4)


def test_shares_are_the_slopes_of_a_mixer_whose_hidden_units_are_linear():
    mixer = MonotonicMixer(8)
    state, values = jnp.asarray(RNG.normal(size=(16, 5))), jnp.full((16, 3), 1e4)
    params = mixer.init(random.key(1), state, values)
    total, shares = mixer.apply(params, state, values, shares=True)
    np.testing.assert_array_equal(total, mixer.apply(params, state, values))
    slope = jax.grad(lambda v: mixer.apply(params, state, v).sum())(values)
    np.testing.assert_allclose(shares, slope / slope.sum(-1, keepdims=True), rtol=1e-4)


@pytest.fixture(scope="module")
def small():
    """Datasets of a short run."""
    how = team_datasets.Recipe(
        6_000,
        core_settings.replace(
            team_datasets.RECIPE.agent, {"num_envs": 16, "exploration.steps": 3_000, "updates": 1}
        ),
    )
    return team_datasets.make(ENV, 600, 0, how)


@pytest.mark.slow
def test_datasets_have_four_qualities_and_all_channels(small):
    assert tuple(sorted(small)) == tuple(sorted(team_datasets.NAMES))
    mean = {name: returns(data.transitions).mean() for name, data in small.items()}
    assert mean["good"] > mean["poor"]
    for data in small.values():
        x = data.transitions
        assert 300 <= len(data) <= 1200
        assert x.timestep.alive.shape == (len(data), 2) and not x.timestep.alive.all()
        assert x.timestep.privileged["state"].shape == (len(data), 9)
        dead = ~x.timestep.alive[:, 1]
        legal = x.timestep.legal_actions["agent_1"]
        assert legal[dead].sum() == dead.sum()  # nothing is all that the dead can do


def test_qualities_are_shares_of_the_way():
    scores = [0.1, 0.2, 0.35, 0.3, 0.7, 1.0, 0.9]
    assert first_above(scores, 0.1, SHARES["poor"]) == 4  # 0.1 + 0.9 / 3 = 0.4
    assert first_above(scores, 0.1, SHARES["medium"]) == 4
    assert first_above(scores, -0.2, SHARES["poor"]) == 1


def test_episodes_that_a_recording_begins_within_are_left_out():
    first = np.array([[0, 1], [1, 0], [0, 1], [1, 0]], bool)
    done = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], bool)
    number = np.arange(8).reshape(4, 2)
    at = lambda first, done: TimeStep({}, number, done, 0 * done, first)
    steps = Transition(at(first, 0 * done), {}, at(0 * first, done), (), {})
    assert from_streams(steps).reward.tolist() == [1, 3, 2, 4, 5, 7]


@pytest.mark.usefixtures("no_training")
@pytest.mark.slow
def test_the_dead_are_not_cloned():
    """Replaces the dead agents' actions in the dataset: the update is the same."""
    algorithm = team_bc(ENV, {"data.size": 256, "data.batch_size": 64})
    state = algorithm.agent.init(random.key(0), algorithm.agent.hyper)
    x = team_datasets.load(ENV, "poor", 256, 0).transitions
    dead = ~x.timestep.alive[:, 1]
    assert dead.any()

    def learn(action):
        changed = dataclasses.replace(x, action=x.action | {"agent_1": action})
        new, _ = algorithm.agent.update(state, Batch(changed, jnp.float32(0)), random.key(1))
        return new.parts["agent_1"].params

    plain, other = (learn(a) for a in (x.action["agent_1"], np.where(dead, 3, x.action["agent_1"])))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), plain, other)
    living = learn(np.where(dead, x.action["agent_1"], 0))
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), plain, living)
    assert max(jax.tree.leaves(moved)) > 0


def test_unknown_datasets_are_refused():
    with pytest.raises(UserError, match="dataset"):
        team_datasets.load(ENV, "best", 100, 0)
