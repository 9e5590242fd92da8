"""PPO for teams: whose reward and view is whose, its losses by hand, play among experts."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.multi_agent import team_ppo as module
from jaxrl.algorithms.multi_agent.shared import team_policies as policies
from jaxrl.algorithms.multi_agent.shared.views import teams_of
from jaxrl.algorithms.multi_agent.team_ppo import team_ppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, Environment, TimeStep, Transition
from jaxrl.envs import make
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import Minibatch
from jaxrl.kit.normalization import no_moments
from jaxrl.kit.wrapping import params_of
from tests.kit.stub import stub

NAMES = ("cat_0", "mouse_0", "cat_1")  # teams side by side in neither order
SETTINGS = {"num_envs": 32, "num_steps": 4, "epochs": 4, "minibatches": 1, "hidden": (8,)}
SETTINGS |= {"scripted": 0, "actor.learning_rate": 0.02, "critic.learning_rate": 0.02}


def signals(alive=None):
    """Games of one step: a cat earns 1 for saying what it sees, 0 or 1, and the mouse for saying
    the opposite of what it sees; all see something else."""

    def reset(key, params):
        bits = jax.random.bernoulli(key, 0.5, (3,)).astype(jnp.float32)
        return bits, output(bits, jnp.zeros(3), jnp.bool_(True))

    def output(bits, reward, first):
        seen = {n: jax.nn.one_hot(bits[i], 2) for i, n in enumerate(NAMES)}
        more = {} if alive is None else {"alive": jnp.ones(3, bool)}
        return TimeStep(seen, reward, ~first, ~first & False, first,
                        privileged={"state": bits}, **more)  # fmt: skip

    def step(key, state, action, params):
        said = jnp.stack([action[n] for n in NAMES])
        right = (said == state) == jnp.array([True, False, True])
        return state, output(state, right.astype(jnp.float32), jnp.bool_(False))

    box, two = Box(0.0, 1.0, (2,)), Discrete(2)
    spaces = dict.fromkeys(NAMES, box), dict.fromkeys(NAMES, two)
    expert = lambda state, params: {n: state[i].astype(jnp.int32) for i, n in enumerate(NAMES)}
    return Environment("signals", reset, step, (), *spaces, max_steps=1, agents=NAMES,
                       expert=expert)  # fmt: skip


def test_teams_are_named_alike():
    assert teams_of(signals()) == {"cat": ("cat_0", "cat_1"), "mouse": ("mouse_0",)}


def test_every_team_learns_for_its_own_reward_and_is_judged_among_experts():
    env = signals()
    algorithm = team_ppo(env, SETTINGS | {"scripted": 64})
    run, _ = train(algorithm, start(algorithm, random.key(0)), 30)
    policy = algorithm.policy(run.state)
    returns = np.asarray(evaluate(env, policy, random.key(1), 256).returns).mean(0)
    assert (returns > 0.95).all()
    # The expert says what it sees, which is wrong for the mouse.
    judged = algorithm.measure(run.state, random.key(2))
    assert judged["cat_among_experts"] > 0.95 and judged["mouse_among_experts"] > 0.95
    guided = module.expert_channel(env)
    among = evaluate(guided, module.among_experts(policy, ("cat_0",)), random.key(3), 64).returns
    np.testing.assert_allclose(np.asarray(among)[:, 1], 0.0)
    assert float(among[:, 0].mean()) > 0.95


def test_views_losses_and_advantages_are_those_of_each_agent():
    rng = np.random.default_rng(0)
    shape = (3, 2)  # T, B
    observation = {n: rng.normal(size=(*shape, 2)).astype(np.float32) for n in NAMES}
    no = np.zeros(shape, bool)
    state = rng.normal(size=(*shape, 3)).astype(np.float32)
    timestep = TimeStep(observation, np.zeros((*shape, 3)), no, no, no,
                        privileged={"state": state})  # fmt: skip
    cats = ("cat_0", "cat_1")
    seen = module.team_view(timestep, cats).observation
    whole = module.critic_view(timestep, cats, Box(-9.0, 9.0, (2,))).observation
    for i, name in enumerate(cats):
        np.testing.assert_array_equal(seen[:, :, i], observation[name])
        both = np.concatenate([state, observation[name]], -1)
        np.testing.assert_array_equal(whole[:, :, i], both)

    class Policy:
        def __init__(self, log_prob):
            self.log_prob = lambda action: log_prob
            self.entropy = lambda: jnp.full(log_prob.shape, 0.5)

    new, old, gain = (rng.normal(size=(5, 2)).astype(np.float32) for _ in range(3))
    numbers, same = np.array([0, 2]), lambda timestep: timestep
    living = np.array([[1, 1], [1, 0], [0, 1], [0, 0], [1, 1]], bool)
    all_alive = np.ones((5, 2), bool)
    value, target = (rng.normal(size=(5, 2)).astype(np.float32) for _ in range(2))
    for counts, alive in (
        (all_alive, None), (living, np.insert(living, 1, rng.random(5) < 0.5, axis=1)),
    ):  # fmt: skip
        mean = lambda x, counts=counts: (x * counts).sum(1) / np.maximum(counts.sum(1), 1)
        step = dataclasses.replace(timestep, alive=None if alive is None else jnp.asarray(alive))
        x = policies.Sample(step, {"cat": 0}, {"cat": old}, {}, {"cat_critic": gain}, {})
        net = stub(cat=lambda view: Policy(new), hyper={"clip": 0.2, "entropy_weight": 0.1})
        out = policies.policy_loss(net, x, "cat", "cat_critic", same, numbers)
        ratio = np.exp(new - old)
        plain = np.minimum(ratio * gain, np.clip(ratio, 0.8, 1.2) * gain)
        np.testing.assert_allclose(out.value, mean(-plain - 0.05), rtol=1e-5, atol=1e-7)
        clipped = mean(np.abs(ratio - 1) > 0.2)
        np.testing.assert_allclose(out.metrics["cat_clip_fraction"], clipped, rtol=1e-6)

        x = dataclasses.replace(x, value={"cat_critic": value}, target={"cat_critic": target})
        net = stub(cat_critic=lambda view: value + 0.1, hyper={"value_clip": 0.2, "huber": 10.0})
        out = policies.value_loss(net, x, "cat_critic", same, numbers)
        expected = mean(np.square(value + 0.1 - target) / 2)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)
        # A minibatch's mean is that over all steps of living agents.
        rows = policies.living(Minibatch(x, jnp.arange(5) < 4), numbers)
        if alive is not None:
            found = (rows.weight * rows.mask * expected).sum() / rows.mask.sum()
            each = (np.square(value + 0.1 - target) / 2)[:4][living[:4]]
            np.testing.assert_allclose(found, each.mean(), rtol=1e-5)
            np.testing.assert_array_equal(rows.mask, [True, True, True, False, False])


def test_advantages_end_with_the_episode_of_all():
    """Values are 0, so targets are discounted rewards of each agent until the end."""
    rng = np.random.default_rng(1)
    reward = rng.normal(size=(4, 2, 3)).astype(np.float32)
    ended = np.array([[0, 0], [1, 0], [0, 0], [0, 1]], bool)
    step = TimeStep({}, reward, ended, ended & False, ended & False)
    batch = stub(transitions=Transition(step, {}, step, (), {"log_prob": {}}))
    zero = lambda timestep: jnp.zeros((4, 2, 2))
    net = stub(
        cat_critic=zero,
        extra={"cat_critic": no_moments(())},
        hyper={"discount": 0.9, "gae_lambda": 1.0},
    )
    cats = reward[..., [0, 2]]
    views = {"cat_critic": lambda timestep: timestep}
    sample, _ = policies.estimate_advantages(net, batch, views, {"cat_critic": cats})
    expected, after = np.zeros_like(cats), np.zeros((2, 2))
    for t in reversed(range(4)):
        after = expected[t] = cats[t] + 0.9 * after * ~ended[t][:, None]
    np.testing.assert_allclose(sample.advantage["cat_critic"], expected, rtol=1e-5)


def test_the_dead_neither_learn_nor_count():
    """A cat that has died may see, do and be paid anything."""
    env, rng, shape = signals(alive=True), np.random.default_rng(2), (4, 6)
    agent = team_ppo.agent(env, SETTINGS | {"num_envs": 6, "epochs": 2})
    living = np.arange(4)[:, None] < 1 + np.arange(6) % 3
    alive = jnp.stack([jnp.ones(shape, bool)] * 2 + [jnp.asarray(living)], -1)
    after = jnp.concatenate([alive[1:], alive[-1:]])
    no = jnp.zeros(shape, bool)
    draw = lambda *more: jnp.asarray(rng.normal(size=(*shape, *more)), jnp.float32)
    seen, state, reward = {n: draw(2) for n in NAMES}, draw(3), 3 + draw(3)
    log_prob = {"cat": -jnp.abs(draw(2)), "mouse": -jnp.abs(draw(1))}

    def update(noise):
        changed = lambda x, y: jnp.where(living.reshape(*shape, *[1] * (x.ndim - 2)), x, y)
        before = TimeStep(seen | {"cat_1": changed(seen["cat_1"], noise)}, jnp.zeros((*shape, 3)),
                          no, no, no, alive=alive, privileged={"state": state})  # fmt: skip
        paid = reward.at[..., 2].set(changed(reward[..., 2], 100 * noise))
        following = TimeStep(seen, paid, no, no, no, alive=after, privileged={"state": state})
        action = {n: jnp.zeros(shape, int) for n in NAMES}
        action["cat_1"] = changed(action["cat_1"], (noise > 0).astype(int))
        said = log_prob["cat"].at[..., 1].set(changed(log_prob["cat"][..., 1], -noise))
        x = Transition(before, action, following, (), {"log_prob": log_prob | {"cat": said}})
        began = agent.init(random.key(0), agent.hyper)
        after_update, _ = agent.update(began, Batch(x, jnp.float32(0)), random.key(1))
        return params_of(began), params_of(after_update), after_update.extra

    update = jax.jit(update)
    begun, params, moments = update(0.0)
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    jax.tree.map(near, (params, moments), update(3.0)[1:])
    assert float(moments["cat_critic"].count) == 24 + living.sum()
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), begun, params)
    assert all(x > 1e-4 for name in params for x in jax.tree.leaves(moved[name])[:1])


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="share one; mappo is for that"):
        team_ppo(make("foraging"), SETTINGS)
    with pytest.raises(UserError, match="gives the agents agent_0, agent_1 of"):
        odd = dataclasses.replace(
            make("foraging", reward="each"),
            action_space={"agent_0": Discrete(6), "agent_1": Discrete(7)},
        )
        team_ppo(odd, SETTINGS)
