"""The learned policy gradient: the rule and its inputs, the learner's update, rules in files."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.meta import lpg
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start
from jaxrl.networks.learned_rules import BackwardRule
from tests.contracts.structure import check_structure

T, B, M = 5, 3, 4
CONFIG = lpg.Config(num_envs=B, num_steps=T, bootstrap=M, rule_width=6)
ENV = envs.make("random_mdp", num_states=4, num_actions=3)


@functools.cache
def rule():
    network = BackwardRule(M, 6, embedding=5)
    return network, jax.jit(network.init)(random.key(1), **arguments())


def arguments(**changes):
    rng = np.random.default_rng(0)
    simplex = lambda: rng.dirichlet(np.ones(M), (T, B)).astype(np.float32)
    values = {
        "reward": rng.normal(size=(T, B)).astype(np.float32),
        "terminated": np.zeros((T, B), bool),
        "done": np.zeros((T, B), bool),
        "discount": np.float32(0.9),
        "probability": rng.uniform(size=(T, B)).astype(np.float32),
        "prediction": simplex(),
        "next_prediction": simplex(),
        "clock": np.array([0.25, 3.0], np.float32),
    }
    return {k: jnp.asarray(v) for k, v in (values | changes).items()}


@functools.cache
def jitted_rule():
    network, params = rule()  # before the trace, whose tracers must not be cached
    return jax.jit(lambda args: network.apply(params, **args))


def apply(args):
    return jitted_rule()(args)


def at(t, b=0, shape=(T, B)):
    flags = np.zeros(shape, bool)
    flags[t, b] = True
    return flags


def numpy_rule(params, args):
    """Apply the rule in NumPy: one LSTM step after the other, from the last to the first."""
    p = jax.tree.map(np.asarray, params["params"])
    layer = lambda x, d: x @ d["kernel"] + d.get("bias", 0)
    phi = lambda y: layer(np.maximum(layer(y, p["embed"]["Dense_0"]), 0), p["embedded"])[..., 0]
    a = {k: np.asarray(v) for k, v in args.items()}
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    signals, targets = np.zeros((T, B)), np.zeros((T, B, M))
    for b in range(B):
        c, h = np.zeros(6), np.zeros(6)
        for t in reversed(range(T)):
            if a["done"][t, b]:
                c, h = np.zeros(6), np.zeros(6)
            later = 0.0 if a["terminated"][t, b] else phi(a["next_prediction"][t, b])
            x = np.array([a["reward"][t, b], a["terminated"][t, b], a["discount"],
                          a["probability"][t, b], phi(a["prediction"][t, b]), later,
                          *a["clock"]])  # fmt: skip
            gate = {g: x @ p["cell"][f"i{g}"]["kernel"] + layer(h, p["cell"][f"h{g}"])
                    for g in "ifgo"}  # fmt: skip
            c = sigmoid(gate["f"]) * c + sigmoid(gate["i"]) * np.tanh(gate["g"])
            h = sigmoid(gate["o"]) * np.tanh(c)
            signals[t, b] = layer(np.maximum(h, 0), p["signal_head"])[0]
            targets[t, b] = layer(np.maximum(h, 0), p["target_head"])
    return signals, targets


def test_the_rule_is_a_backward_lstm():
    args = arguments(terminated=at(2), done=at(2) | at(3, 1))
    for ours, theirs in zip(apply(args), numpy_rule(rule()[1], args), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_rule_sees_to_the_end_of_the_episode_and_no_further():
    later = arguments()["reward"].at[4, 0].add(1.0)
    for done, first in ((at(2), 3), (np.zeros((T, B), bool), 0)):
        change = [np.abs(x - y).reshape(T, B, -1).max(-1) for x, y in zip(
            apply(arguments(done=done)), apply(arguments(done=done, reward=later)), strict=True
        )]  # fmt: skip
        for x in change:
            assert (x[first:, 0] > 0).all() and (x[:first, 0] == 0).all()
            assert (x[:, 1:] == 0).all()  # streams are independent


def test_a_truncated_step_has_a_successor_and_a_terminated_one_has_none():
    other = arguments()["next_prediction"].at[2, 0].set(jnp.eye(M)[1])
    for flags, sees in (({"done": at(2)}, True), ({"done": at(2), "terminated": at(2)}, False)):
        signal, _ = apply(arguments(**flags))
        changed, _ = apply(arguments(next_prediction=other, **flags))
        assert (signal[2, 0] != changed[2, 0]) == sees


# ------------------------------------------------------------------------------- the learner


@functools.cache
def algorithm():
    return lpg.on_rollouts(ENV, CONFIG)


def test_structure():
    check_structure(algorithm())


def test_an_update_is_equation_1():
    """The gradients of tables have closed forms: pi_hat (1_a - pi) for the policy's logits, and
    y (log y - log y_hat - KL) for the prediction's."""
    a = algorithm()
    run = start(a, random.key(0))
    state = run.state.agent
    policy = a.policy(run.state)
    _, batch, _ = a.source.collect(run.state.source, policy, random.key(3))
    hyper = state.hyper | {"learning_rate": jnp.float32(0.7)}
    after, _ = jax.jit(a.agent.update)(
        dataclasses.replace(state, hyper=hyper), batch, random.key(0)
    )
    network = lpg.network(ENV, CONFIG)
    forward = jax.jit(network.apply)
    old = lambda x: jax.tree.map(np.asarray, forward(state.params, x))
    transitions = batch.transitions
    pi, y = old(transitions.timestep)
    softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    pi, y_prob = softmax(np.asarray(pi.logits)), softmax(y)
    taken = np.eye(3)[np.asarray(transitions.action)]
    args = (transitions.reward, transitions.terminated, transitions.done, hyper["discount"],
            (pi * taken).sum(-1), y_prob, softmax(old(transitions.next_timestep)[1]),
            np.array([0.0, np.log(hyper["lifetime"] / (T * B))]))  # fmt: skip
    signal, target = jax.jit(BackwardRule(M, 6).apply)(state.rule, *map(jnp.asarray, args))
    log_ratio = np.log(y_prob) - np.log(softmax(np.asarray(target)))
    divergence = (y_prob * log_ratio).sum(-1, keepdims=True)
    x = np.asarray(transitions.observation).reshape(-1, 4)
    steps = {
        "head": np.asarray(signal)[..., None] * (taken - pi),
        "prediction": -0.5 * y_prob * (log_ratio - divergence),
    }
    for name, step in steps.items():
        step = 0.7 / (T * B) * step.reshape(T * B, -1)
        before, now = state.params["params"][name], after.params["params"][name]
        before, now = (p.get("linear", p) for p in (before, now))
        np.testing.assert_allclose(now["kernel"] - before["kernel"], x.T @ step, atol=1e-6)
        np.testing.assert_allclose(now["bias"] - before["bias"], step.sum(0), atol=1e-6)


def test_the_clock_runs_from_zero_and_can_be_hidden():
    hyper = {"lifetime": jnp.float32(100.0), "clock": jnp.float32(1.0)}
    for env_steps, age in ((10.0, 0.0), (60.0, 0.5), (100.0, 0.9), (500.0, 1.0)):
        inputs = lpg.clock(jnp.float32(env_steps), 10, hyper)
        np.testing.assert_allclose(inputs, [age, np.log(10.0)], rtol=1e-6)
    assert (lpg.clock(jnp.float32(60.0), 10, hyper | {"clock": jnp.float32(0.0)}) == 0).all()


def test_the_lifetime_matters_only_if_the_rule_sees_the_clock():
    def after(**hyper):
        run = start(algorithm(), random.key(0), hyper)
        return jax.tree.leaves(advance(algorithm(), run)[0].state.agent.params)

    same = lambda a, b: all((x == y).all() for x, y in zip(a, b, strict=True))
    assert same(after(clock=0.0, lifetime=100.0), after(clock=0.0, lifetime=1e6))
    assert not same(after(lifetime=100.0), after(lifetime=1e6))


# ------------------------------------------------------------------------------- files


def test_a_rule_is_saved_and_loaded(tmp_path):
    found = start(algorithm(), random.key(5)).state.agent.rule
    lpg.save_rule(tmp_path / "rule.npz", found)
    config = dataclasses.replace(CONFIG, rule=str(tmp_path / "rule.npz"))
    again = lpg.lpg(ENV, config)
    assert again is lpg.lpg(ENV, config)
    loaded = jax.jit(again.agent.init)(random.key(6), again.hyper).rule
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(x, y)
    with pytest.raises(UserError, match="other sizes"):
        lpg.lpg(ENV, dataclasses.replace(config, rule_width=7))


@pytest.mark.parametrize(
    "changes,message",
    [
        ({}, "needs a rule"),
        ({"rule": "nowhere.npz"}, "not a readable rule"),
        ({"rule": "pyproject.toml"}, "not a readable rule"),
        ({"rule": "x", "bootstrap": 0}, "bootstrap is 0; it must be at least 1"),
        ({"rule": "x", "hidden": (0,)}, "hidden is"),
        ({"rule": "x", "activation": "sine"}, "sine"),
    ],
)
def test_invalid_settings_are_rejected(changes, message):
    with pytest.raises(UserError, match=message):
        lpg.lpg(ENV, lpg.Config(**changes))


def test_continuous_actions_are_rejected():
    with pytest.raises(UserError, match="Discrete"):
        lpg.lpg(envs.make("pendulum"), lpg.Config(rule="x"))
