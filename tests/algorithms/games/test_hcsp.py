"""HCSP: decisions, advantages over them, what each stage trains, and play of both teams."""

from __future__ import annotations

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms import registry
from jaxrl.algorithms.games import hcsp as h
from jaxrl.algorithms.games.shared.team_play import blank_team, both_teams
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.envs.particles.soccer_players import soccer_team
from jaxrl.networks.heads import categorical

RNG = np.random.default_rng(0)
T, B, N, K = 9, 5, 2, 3
ENV = envs.make("soccer", actions="discrete")
TINY = {name: value for name, value in h.TINY.items() if not name.startswith("env")}


def test_advantages_are_those_of_decisions():
    """Against a loop over decisions, each with the sum of rewards to the next one."""
    discount, lambda_ = 0.9, 0.7
    done = RNG.random((T, B)) < 0.2
    terminated = done & (RNG.random((T, B)) < 0.5)
    decides = RNG.random((T, B)) < 0.4
    decides[1:] |= done[:-1]  # an episode begins with a decision
    reward, value = RNG.normal(size=(2, T, B))
    # Values of true successors: those of the next step unless the episode ended.
    following = np.where(done, RNG.normal(size=(T, B)), np.roll(value, -1, 0))
    following[-1] = RNG.normal(size=B)
    by_step = h.discounts_of_decisions(jnp.asarray(decides), discount, lambda_)
    found = losses.gae(reward, value, following, terminated, done, *by_step)
    for b in range(B):
        later = 0.0  # advantage of the next decision in this episode
        for t in reversed(range(T)):
            if not decides[t, b]:
                continue
            total, u = 0.0, t
            while True:
                total += reward[u, b]
                if done[u, b] or u == T - 1 or decides[u + 1, b]:
                    break
                u += 1
            goes_on = not done[u, b] and u < T - 1
            bootstrap = 0.0 if terminated[u, b] else following[u, b]
            later = (
                total
                + discount * bootstrap
                - value[t, b]
                + (discount * lambda_ * later if goes_on else 0.0)
            )
            np.testing.assert_allclose(found[t, b], later, rtol=1e-4, atol=1e-5)


def test_skills_end_where_they_change_and_with_episodes():
    skill = np.array([[0, 1], [0, 2], [0, 2], [1, 2]])[:, None]
    done = np.array([False, False, False, True])[:, None]
    ends = h.ends_of_skills(jnp.asarray(skill), jnp.asarray(done))
    np.testing.assert_array_equal(ends[:, 0], [[0, 1], [0, 0], [1, 0], [1, 1]])


def test_advantages_are_standardized_within_groups():
    advantage, groups = RNG.normal(size=(T, B, N)), RNG.integers(0, K, (T, B, N))
    found = np.asarray(h.standardize_groups(jnp.asarray(advantage), jnp.asarray(groups), K + 1))
    for k in range(K):
        mine = advantage[groups == k]
        np.testing.assert_allclose(
            found[groups == k], (mine - mine.mean()) / mine.std(), rtol=1e-4, atol=1e-5
        )


def test_the_low_level_is_paid_by_both_levels_in_the_third_stage():
    shaped, apart = RNG.normal(size=(T, B, N)), RNG.random((T, B, N))
    game = RNG.normal(size=(T, B))
    weights = types.SimpleNamespace(skill_weight=0.5, game_weight=2.0, anchor_weight=0.1)
    paid = h.co_play_reward(weights, shaped, game, apart)
    np.testing.assert_allclose(
        paid[3, 2, 1], 0.5 * shaped[3, 2, 1] + 2 * game[3, 2] - 0.1 * apart[3, 2, 1]
    )


def recipe(stage, **changes):
    config = dataclasses.replace(h.Config(), **changes)
    return h.recipe(blank_team(ENV), Static(config), stage)


def test_each_stage_trains_its_levels_alone():
    low, high = {"worker", "worker_critic"}, {"chooser", "chooser_critic"}
    for stage, learned in (("skills", low), ("strategy", high), ("both", low | high)):
        built = recipe(stage)
        assert {part for loss in built.losses for part in loss.parts} == learned
        assert {n for n, part in built.parts.items() if part.optimizer is not None} == learned
        assert built.parts["anchor"].begins_as == "worker"


class Fixed:
    """A network of the high level that always chooses these skills."""

    def __init__(self, skill):
        logits = 100.0 * jax.nn.one_hot(jnp.asarray(skill), K)
        self.policy = categorical(logits)

    def mode(self):
        return self.policy.mode()

    def log_prob(self, action):
        return self.policy.log_prob(action).sum(-1)


def test_skills_hold_until_an_event_or_until_patience_is_over():
    act = recipe("both", patience=3, sight=8).act
    env = blank_team(ENV)
    _, timestep = jax.vmap(env.reset, (0, None))(jax.random.split(random.key(0), 4), env.params)
    event = jnp.asarray([True, False, False, False])
    told = timestep.privileged | {"event": event}
    first = jnp.asarray([False, True, False, False])
    timestep = dataclasses.replace(timestep, privileged=told, first=first)
    memory = h.Kept(jnp.zeros((4, N), jnp.int32), jnp.asarray([1, 1, 3, 2]))
    seen = []

    def worker(timestep):
        """Push as the skill says, if the own part of the observation is all that is seen."""
        seen.append(timestep.observation.shape)
        return categorical(100.0 * jax.nn.one_hot(timestep.goal.argmax(-1) + 1, 5))

    skill = [[2, 1]] * 4
    net = types.SimpleNamespace(
        chooser=lambda timestep: Fixed(skill), worker=worker, key=random.key
    )
    net.key = lambda name: random.key(len(name))
    action, after, extras = act(net, timestep, memory, random.key(0), True)
    chosen = np.array([[2, 1], [2, 1], [2, 1], [0, 0]])  # the last one keeps what it had
    np.testing.assert_array_equal(after.skill, chosen)
    np.testing.assert_array_equal(extras["decides"], [True, True, True, False])
    np.testing.assert_array_equal(after.age, [1, 1, 1, 3])
    np.testing.assert_array_equal(np.stack([action["left_0"], action["left_1"]], 1), chosen + 1)
    assert seen == [(4, N, 8)]


def test_one_policy_plays_both_teams():
    """The scripted team, which the environment's expert is on both sides."""
    env = envs.make("soccer")
    keys = jax.random.split(random.key(1), 3)
    state, timestep = jax.vmap(env.reset, (0, None))(keys, env.params)
    both = both_teams(env, soccer_team("team"))
    action, _, _ = both.act(both.state, timestep, both.memory(3), random.key(2), True)
    expert = jax.vmap(env.expert, (0, None))(state, env.params)
    for name in env.agents:
        np.testing.assert_allclose(action[name], expert[name], atol=1e-6)


@pytest.mark.slow
def test_stages_hand_over_both_levels_and_the_anchor_stays():
    env, config = registry.tiny("hcsp")
    algorithm = h.hcsp(env, config)
    begun = jax.jit(algorithm.init)(random.key(0), algorithm.hyper)
    after, metrics = jax.jit(algorithm.step)(begun, random.key(1))
    params = lambda state, name: jax.tree.leaves(state.agent.parts[name].params)
    same = lambda xs, ys: all(np.array_equal(x, y) for x, y in zip(xs, ys, strict=True))
    assert same(params(begun, "anchor"), params(begun, "worker"))
    assert same(params(after, "anchor"), params(begun, "anchor"))
    for name in ("worker", "worker_critic", "chooser", "chooser_critic"):
        assert not same(params(after, name), params(begun, name))
    members = begun.source.tasks.members
    assert same([x[0] for x in jax.tree.leaves(members["worker"])], params(begun, "worker"))
    assert same([x[0] for x in jax.tree.leaves(members["chooser"])], params(begun, "chooser"))
    assert float(metrics["anchor_kl"].total) == pytest.approx(0.0, abs=1e-6)


def test_other_environments_are_refused():
    with pytest.raises(UserError, match="needs agents in two equal teams"):
        h.hcsp(envs.make("simple_tag"))
    plain = dataclasses.replace(ENV, reset=lambda key, params: without_skills(key, params))
    with pytest.raises(UserError, match="events and rewards of skills"):
        h.hcsp(plain)


def without_skills(key, params):
    state, timestep = ENV.reset(key, params)
    return state, dataclasses.replace(timestep, privileged=None)
