"""HAPPO: one agent after the other, with the ratios of those before it, against gradients by
hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.multi_agent.happo import happo
from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.views import own_view, state_view
from jaxrl.algorithms.policy_gradient.shared.actor_critic import standardize
from jaxrl.core import random
from jaxrl.core.train import start
from tests.algorithms.multi_agent.test_vdn import AGENTS, one_step
from tests.kit.stub import stub

RATE = 0.5
SETTINGS = {
    "num_envs": 32, "num_steps": 2, "epochs": 1, "minibatches": 1, "hidden": (4,),
    "actor.name": "sgd", "actor.learning_rate": RATE, "actor.max_grad_norm": 1e9,
    "critic.learning_rate": 1e-3, "entropy_weight": 0.0, "actor.flat": False,
}  # fmt: skip


def test_each_agent_follows_advantages_times_the_ratios_of_those_before_it():
    env = one_step()
    algorithm = happo(env, SETTINGS)
    agent, source = algorithm.agent, algorithm.source
    run = start(algorithm, random.key(0))
    state = run.state.agent
    policy = algorithm.policy(run.state)
    _, fresh, _ = source.collect(run.state.source, policy, random.key(1))
    batch = source.sample(run.state.source, fresh, random.key(2))
    parts = happo.recipe(env, algorithm.config).parts
    before = {name: state.parts[name].params for name in AGENTS}

    apply = lambda name, params, x: parts[name].apply(params, own_view(x.timestep, name))
    critic = functools.partial(parts["critic"].apply, state.parts["critic"].params)
    hyper = {n: algorithm.config.__dict__[n] for n in ("discount", "gae_lambda")}
    net = stub(hyper=hyper, critic=critic, extra=state.extra)
    sample = standardize(team_policies.estimate_advantages(net, batch, {"critic": state_view})[0])

    def by_hand(order):
        ratio, after = 1.0, {}
        for name in order:
            x, weight = sample, sample.advantage["critic"] * ratio

            def gain(params, name=name, x=x, weight=weight):
                change = apply(name, params, x).log_prob(x.action[name]) - x.log_prob[name][..., 0]
                return (jnp.exp(change) * weight).mean()

            slope = jax.grad(gain)(before[name])
            after[name] = jax.tree.map(lambda p, g: p + RATE * g, before[name], slope)
            change = apply(name, after[name], x).log_prob(x.action[name]) - x.log_prob[name][..., 0]
            ratio = ratio * jnp.exp(change)
        return after

    expected = [by_hand(AGENTS), by_hand(AGENTS[::-1])]
    update = jax.jit(agent.update)
    seen = set()
    for seed in range(8):
        new = update(state, batch, random.key(10 + seed))[0]
        got = {name: new.parts[name].params for name in AGENTS}
        gaps = [
            max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), got, e)))
            for e in expected
        ]
        assert min(gaps) < 1e-5 < 1e-3 < max(gaps), gaps
        seen.add(int(np.argmin(gaps)))
    assert seen == {0, 1}  # both orders
