"""SMFRL: losses by hand, who learns when, what followers clone, and what a deviator gains."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.games import smfg as smfg_module
from jaxrl.algorithms.games.smfg import TINY, smfg
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.envs import make
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION
from jaxrl.evaluation.evaluate import evaluate
from tests.kit.stub import stub

module: Any = smfg_module
ENV = make("tax_economy", households=10, years=6)
SETTINGS = {k: v for k, v in TINY.items() if not k.startswith("env")} | {"num_shards": 1}
B, N = 5, 3  # transitions, and followers


def transitions():
    """Transitions [B] with one number for the leader to see and two for each follower."""
    rng = np.random.default_rng(0)
    normal: Any = lambda *shape: rng.normal(size=shape).astype(np.float32)
    no: Any = np.zeros(B, bool)
    ended = np.arange(B) == 1

    def timestep(ended):
        seen = {"government": normal(B, 1), "households": normal(B, N, 2)}
        expert = {"government": normal(B, 1), "households": normal(B, N, 1)}
        privileged = {"rewards": normal(B, N), EXPERT_ACTION: expert}
        return TimeStep(seen, normal(B, 2), ended, no, no, privileged=privileged)

    action = {"government": normal(B, 1), "households": normal(B, N, 1)}
    return Transition(timestep(no), action, timestep(ended), (), {})


def linear(*weights):
    """A network that is linear in what it sees, with a bend, and its NumPy twin."""
    weights = np.asarray(weights, np.float32)
    return lambda x: (np.tanh if isinstance(x, np.ndarray) else jnp.tanh)(x @ weights)


LEAD, LEAD_TARGET, FOLLOW, FOLLOW_TARGET = (
    linear(0.3), linear(-0.8), linear(0.5, -0.2, 0.9), linear(0.1, 0.6, -0.4)
)  # fmt: skip
VALUE, VALUE_TARGET = linear(*np.arange(1, 8) / 10), linear(*np.arange(7, 0, -1) / 10)
GAIN, GAIN_TARGET = linear(0.2, 0.3, -0.4, 0.5, 0.6), linear(0.9, -0.3, 0.2, 0.1, -0.7)


def net():
    policy = lambda f: lambda timestep: f(timestep.observation)[..., None]
    value = lambda f: lambda timestep: f(timestep.observation)
    parts = lambda lead, follow, q, g: {
        "government": policy(lead), "households": policy(follow),
        "households_critic": value(q), "government_critic": value(g),
    }  # fmt: skip
    target = parts(LEAD_TARGET, FOLLOW_TARGET, VALUE_TARGET, GAIN_TARGET)
    own = parts(LEAD, FOLLOW, VALUE, GAIN)
    return stub(target=target, hyper={"discount": 0.9}, **own)


def by_hand(x):
    """The four losses [B], one transition and one follower after the other."""
    found = {name: np.zeros(B) for name in ("q", "g", "pi", "lead")}
    join = lambda *xs: np.concatenate([np.atleast_1d(v) for v in xs])
    for b in range(B):
        now, after = (
            {k: np.asarray(v[b]) for k, v in t.observation.items()}
            for t in (x.timestep, x.next_timestep)
        )
        did, all_did = np.asarray(x.action["government"][b]), np.asarray(x.action["households"][b])
        on = 0.9 * (1 - x.next_timestep.terminated[b])

        def values(f, seen, action, answers):
            own = seen["households"]
            mean = own.mean(0), answers.mean(0)
            return np.array([f(join(own[i], action, answers[i], *mean)) for i in range(N)])

        def respond(f, seen, action):
            return np.array([[f(join(o, action))] for o in seen["households"]])

        def gain(f, seen, action, answers):
            return f(join(seen["government"], action, seen["households"].mean(0), answers.mean(0)))

        action = LEAD(after["government"])
        answers = respond(FOLLOW_TARGET, after, action)
        reward = np.asarray(x.next_timestep.privileged["rewards"][b])
        target = reward + on * values(VALUE_TARGET, after, action, answers)
        found["q"][b] = np.mean((values(VALUE, now, did, all_did) - target) ** 2) / 2
        found["pi"][b] = -values(VALUE, now, did, respond(FOLLOW, now, did)).mean()
        action = LEAD_TARGET(after["government"])
        answers = respond(FOLLOW, after, action)
        target = x.next_timestep.reward[b, 0] + on * gain(GAIN_TARGET, after, action, answers)
        found["g"][b] = (gain(GAIN, now, did, all_did) - target) ** 2 / 2
        action = LEAD(now["government"])
        found["lead"][b] = -gain(GAIN, now, action, respond(FOLLOW, now, action))
    return found


def test_losses_are_those_by_hand():
    x, known = transitions(), by_hand(transitions())
    as_jax = jax.tree.map(jnp.asarray, x)
    close = lambda found, name: np.testing.assert_allclose(found, known[name], rtol=1e-4, atol=1e-5)
    close(module.follower_critic_loss(net(), as_jax).value, "q")
    close(module.leader_critic_loss(net(), as_jax).value, "g")
    close(module.follower_loss(net(), as_jax), "pi")
    close(module.leader_loss(net(), as_jax), "lead")


def test_a_follower_may_take_the_mean_as_given():
    """A critic that values the mean action alone leaves only the gradient through it."""
    x = jax.tree.map(jnp.asarray, transitions())

    def gradient(through):
        def total(shift):
            moved = net()
            moved.households = lambda timestep: timestep.observation[..., :1] + shift
            moved.households_critic = lambda timestep: timestep.observation[..., -1]
            return module.follower_loss(moved, x, through_mean=through).mean()

        return float(jax.grad(total)(0.0))

    assert gradient(True) == pytest.approx(-1) and gradient(False) == 0


def test_no_gradient_of_the_leader_goes_through_the_answer():
    x = jax.tree.map(jnp.asarray, transitions())

    def total(shift):
        moved = net()
        moved.government = lambda timestep: timestep.observation + shift
        moved.government_critic = lambda timestep: timestep.observation[..., -1]
        return module.leader_loss(moved, x).mean()

    assert float(jax.grad(total)(0.0)) == 0


def parts_that_differ(before, after):
    """Return the parts whose parameters differ."""
    same = lambda a, b: all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))
    return {n for n, p in before.parts.items() if not same(p.params, after.parts[n].params)}


def test_followers_clone_at_first_and_then_all_learn():
    """Windows have 8 steps after 16 steps of warm-up: two of cloning, then all learn."""
    algorithm = smfg(ENV, SETTINGS | {"shifts": 0, "cloning_steps": 33})
    state = jax.jit(algorithm.init)(random.key(0), algorithm.hyper)
    step, moved = jax.jit(algorithm.step), []
    for i in range(4):
        after, _ = step(state, random.key(i))
        moved.append(parts_that_differ(state.agent, after.agent))
        state = after
    everybody = {"government", "households", "government_critic", "households_critic"}
    assert moved == [{"households"}, {"households"}, everybody, everybody]


def test_a_follower_that_works_too_little_gains_by_a_shift():
    """All households laze and save half; the first gains by working more, as measured by hand."""
    config = smfg.complete_config(SETTINGS | {"shifts": 3, "shifted": 16})
    lazy = jnp.broadcast_to(jnp.array([0.0, -0.9]), (10, 2))

    def act(shift, timestep, memory, key, greedy):
        count = timestep.first.shape
        answers = jnp.broadcast_to(lazy.at[0].add(shift), (*count, 10, 2))
        action = {"government": jnp.full((*count, 4), -1.0), "households": answers}
        return action, memory, {}

    policy = lambda shift: Policy(act, lambda *shape: (), jnp.array(shift))
    key, first = random.key(5), module.of_first(ENV)
    gain = smfg.measure(ENV, config, policy([0.0, 0.0]), key)["follower_gain"]
    shifts = [(a, b) for a in (-0.5, 0.0, 0.5) for b in (-0.5, 0.0, 0.5)]
    returns = [float(evaluate(first, policy(s), key, 16).returns.mean()) for s in shifts]
    assert float(gain) == pytest.approx(max(returns) - returns[4], rel=1e-4) and gain > 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="smfg cannot act in 'speaker_listener'"):
        smfg(make("speaker_listener"), SETTINGS)
    with pytest.raises(UserError, match="smfg clones an expert"):
        smfg(dataclasses.replace(ENV, expert=None), SETTINGS)
