"""Token policies: judging groups, what counts, the reference, and the cache in rollouts."""

import dataclasses
import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.agents.policy_gradient import ppo
from jaxrl.agents.tokens.agent import Config, agent, group_advantages, tokens
from jaxrl.agents.tokens.methods import METHODS
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import Policy
from jaxrl.envs.classic.cartpole import cartpole
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.runtime import checkpoints
from jaxrl.sources import rollouts
from tests.contracts.structure import check_structure

SIZES = {"width": 8, "layers": 1, "prompts": 4, "answers": 4}
ENV = envs.make("addition", digits=1)


def algorithm(**changes):
    return tokens(ENV, Config(**(SIZES | changes)))


def test_advantages_of_groups_by_hand():
    returns = jnp.array([1.0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])
    judge = lambda method, k=2: np.asarray(group_advantages(method, returns, 4, k)).reshape(3, 4)
    np.testing.assert_allclose(judge("reinforce"), np.asarray(returns).reshape(3, 4))
    third = 1 / 3
    rloo = [[2 * third, -2 * third, -2 * third, 2 * third], [0] * 4, [-third] * 3 + [1]]
    np.testing.assert_allclose(judge("rloo"), rloo, atol=1e-6)
    np.testing.assert_allclose(judge("rpg"), rloo, atol=1e-6)
    spread = np.sqrt(3) / 4
    grpo = [[1, -1, -1, 1], [0] * 4, [-0.25 / spread] * 3 + [0.75 / spread]]
    np.testing.assert_allclose(judge("grpo"), grpo, atol=1e-5)
    # Two of three groups tell right from wrong: their gradients count one and a half times.
    gpg = [[0.75, -0.75, -0.75, 0.75], [0] * 4, [-0.375] * 3 + [1.125]]
    np.testing.assert_allclose(judge("gpg"), gpg, atol=1e-6)


def test_the_pass_at_k_advantage_is_the_mean_over_all_groups_of_k():
    returns = np.array([0.0, 1, 0, 0, 0, 1, 0, 0])
    subsets = list(itertools.combinations(range(8), 3))
    best = np.array([returns[list(s)].max() for s in subsets])
    scores = (best - best.mean()) / best.std()
    expected = [
        np.mean([a for a, s in zip(scores, subsets, strict=True) if i in s]) for i in range(8)
    ]
    found = group_advantages("pass_at_k", jnp.asarray(returns, jnp.float32), 8, 3)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("method", ["supervised", "ppo", "rpg"])  # the others differ in a formula
def test_structure(method):
    a = algorithm(method=method)
    check_structure(a)
    assert a is algorithm(method=method)


def test_the_ordinary_ppo_can_have_a_transformer_for_its_memory():
    sizes = {"num_envs": 4, "num_steps": 8, "minibatches": 2, "recurrent": 8, "transformer": 1}
    check_structure(ppo.ppo(ENV, ppo.Config(**sizes)))
    with pytest.raises(UserError, match="0 wide"):
        ppo.ppo(ENV, ppo.Config(**sizes | {"recurrent": 0}))
    endless = dataclasses.replace(ENV, max_steps=None)
    with pytest.raises(UserError, match="no time limit"):
        ppo.ppo(endless, ppo.Config(**sizes))


def test_no_minibatch_is_taken_from_a_constant_cache():
    """XLA would compute the gather while it compiles: on an episode of 500 steps for minutes."""
    env = time_limit(cartpole(), 40)
    a = tokens(env, Config(**(SIZES | {"epochs": 2})))
    run = jax.eval_shape(lambda key: start(a, key), random.key(0))
    program = jax.jit(lambda run: advance(a, run)).lower(run).as_text()
    gathered = re.findall(r'"stablehlo.gather".*-> tensor<((?:\d+x)+)', program)
    assert len(gathered) > 5  # of what was sampled
    cache = SIZES["layers"] * (40 + 1) * SIZES["width"]  # keys of one episode
    episodes = SIZES["prompts"] * SIZES["answers"]
    sizes = [math.prod(map(int, shape.rstrip("x").split("x"))) for shape in gathered]
    assert max(sizes) < episodes * cache


def test_every_method_has_the_same_state():
    learners = [agent(ENV, Config(method=method, **SIZES)) for method in METHODS]
    states = [jax.eval_shape(a.init, jax.random.key(0), a.hyper) for a in learners]
    assert all(jax.tree.structure(s) == jax.tree.structure(states[0]) for s in states)


@functools.cache
def trained():
    """A warm-up, a GRPO run that begins from it, and what that run was after an update."""
    warm, grpo = algorithm(method="supervised"), algorithm(method="grpo", kl_weight=0.1)
    go = jax.jit(train, static_argnums=(0, 2))
    warmed, _ = go(warm, start(warm, random.key(0)), 3)
    run = start(grpo, random.key(1))
    run = dataclasses.replace(run, state=take_over(run.state, warmed.state.agent))
    half, row = go(grpo, run, 1)
    return warm, warmed, run, half, m.values(row), lambda run: go(grpo, run, 1)


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_the_reference_is_the_warmed_up_policy_and_stays_it(tmp_path):
    warm, warmed, run, half, row, go = trained()
    begun = start(warm, random.key(0)).state.agent
    assert same(begun.reference, begun.params)
    assert same(warmed.state.agent.reference, warmed.state.agent.params)
    assert not same(warmed.state.agent.params, begun.params)
    assert float(run.state.agent.hyper["kl_weight"]) == np.float32(0.1)  # of the run that goes on
    # It was compared with the policy that it still was when the answers were written.
    assert abs(float(row["kl_to_reference"])) < 1e-6
    path = checkpoints.save(tmp_path, 1, half, {})
    restored, _ = checkpoints.restore(path, half)
    resumed, later = go(restored)
    straight, _ = go(half)
    assert same(resumed.state.agent, straight.state.agent)
    assert same(resumed.state.agent.reference, warmed.state.agent.params)
    assert not same(resumed.state.agent.params, resumed.state.agent.reference)
    assert float(m.values(later)["kl_to_reference"]) > 1e-6


def test_prompts_are_no_decisions():
    """Over a window of rollouts, in which episodes begin and end anywhere: what was acted on with
    the cache is what is computed at once, and a forced token has probability 1."""
    config = Config(**SIZES)
    learner = agent(ENV, config)
    source = rollouts(ENV, 8, 10)
    state = learner.init(random.key(0), learner.hyper)
    policy = Policy(learner.act, learner.memory, state)
    network = ActorCritic(
        ENV.observation_space,
        ENV.action_space,
        widths=(),
        recurrent=8,
        layers=1,
        context=ENV.max_steps + 1,
    )

    @jax.jit
    def play(key):
        state, _, _ = source.collect(source.init(key, {}, policy), policy, key)
        _, batch, _ = source.collect(state, policy, jax.random.fold_in(key, 1))
        transitions = batch.transitions
        distribution, _, _ = network.apply(
            policy.state.params, transitions.timestep, batch.memory, method="unroll"
        )
        return batch, distribution.log_prob(transitions.action), distribution.entropy()

    batch, log_prob, entropy = play(random.key(1))
    transitions = batch.transitions
    first = np.asarray(transitions.first)
    assert first[1:].any() and (np.asarray(batch.memory.position)[~first[0]] > 0).any()
    np.testing.assert_allclose(log_prob, transitions.extras["log_prob"], atol=1e-5)
    forced = ~np.asarray(transitions.timestep.tokens["decision"])
    assert forced.any() and not forced.all()
    np.testing.assert_allclose(np.asarray(log_prob)[forced], 0, atol=1e-6)
    np.testing.assert_allclose(np.asarray(entropy)[forced], 0, atol=1e-6)
    assert (np.asarray(log_prob)[~forced] < -1e-3).all()
    following = np.asarray(transitions.next_timestep.observation)
    np.testing.assert_array_equal(np.asarray(transitions.action)[forced], following[forced])


def test_an_update_counts_decisions_alone():
    """Its entropy is that of the tokens which the policy chose, forced ones left out."""
    grpo = algorithm(method="grpo", epochs=1, minibatches=1)
    network = ActorCritic(
        ENV.observation_space,
        ENV.action_space,
        widths=(),
        recurrent=8,
        layers=grpo.config.layers,
        context=ENV.max_steps + 1,
    )

    @jax.jit
    def update(key):
        state = start(grpo, key).state
        policy = grpo.policy(state)
        source, fresh, _ = grpo.source.collect(state.source, policy, key)
        batch = grpo.source.sample(source, fresh, key)
        _, info = grpo.agent.update(state.agent, batch, key)
        timesteps = batch.transitions.timestep
        played, _, _ = network.apply(
            state.agent.params, timesteps, network.initial(16), method="unroll"
        )
        return info.metrics["entropy"], played.entropy(), timesteps.tokens["decision"], batch.mask

    reported, entropy, decision, mask = map(np.asarray, update(random.key(0)))
    assert (mask & ~decision).any()
    np.testing.assert_allclose(reported, entropy[mask & decision].mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "dpo"}, "method"),
        ({"method": "pass_at_k", "k": 5}, "k is 5; it must be at most answers=4"),
        ({"kl_estimate": "k1"}, "kl_estimate"),
        ({"width": 9}, "9 wide"),
        ({"prompts": 0}, "prompts is 0; it must be at least 1"),
        ({"minibatches": 3}, "minibatches=3"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(UserError, match=message):
        algorithm(**changes)
