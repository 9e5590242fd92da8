"""Token policies: how answers are judged, the loss of a token, what counts, and the reference.

A net is a few tables here: nothing but the last part is compiled.
"""

import dataclasses
import functools
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms import registry
from jaxrl.algorithms.policy_gradient.shared.actor_critic import estimate_advantages
from jaxrl.algorithms.preferences.rewarded_soups import rewarded_soups
from jaxrl.algorithms.tokens.gpg import gpg
from jaxrl.algorithms.tokens.grpo import grpo
from jaxrl.algorithms.tokens.gspo import gspo
from jaxrl.algorithms.tokens.iw_sft import iw_sft
from jaxrl.algorithms.tokens.pass_at_k import pass_at_k
from jaxrl.algorithms.tokens.ppo_max import ppo_max
from jaxrl.algorithms.tokens.rloo import rloo
from jaxrl.algorithms.tokens.rpg import rpg
from jaxrl.algorithms.tokens.rpg_clipped import rpg_clipped
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.token_ppo import token_ppo
from jaxrl.algorithms.tokens.token_reinforce import token_reinforce
from jaxrl.algorithms.tokens.token_supervised import token_supervised
from jaxrl.core import metrics, random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers, without_hyper
from jaxrl.core.learn import take_over
from jaxrl.core.settings import Static, Values, replace
from jaxrl.core.train import advance, start
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.classic.cartpole import cartpole
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.kit import SEQUENCE, Minibatch
from tests.contracts.structure import check_structure
from tests.kit.stub import losses_of, stub

ENV = envs.make("addition", digits=1)
LONGEST = ENV.max_steps or 0
FROM_GROUPS = (token_reinforce, rloo, gpg, grpo, pass_at_k, rpg, rpg_clipped)
ON_ANSWERS = (*FROM_GROUPS, token_ppo, ppo_max)
BUILDERS = (token_supervised, *ON_ANSWERS)
SIZES = {"recurrent": 8, "transformer": 0}
GROUPS = {"prompts": 3, "answers": 4}
named = pytest.mark.parametrize("builder", ON_ANSWERS, ids=lambda s: s.name)

T, B = 5, 12
LENGTH = np.array([4, 5, 3, 4, 5, 5, 4, 3, 4, 4, 5, 3])  # of episodes, whose first step is a prompt
RUNNING = np.arange(T)[:, None] < LENGTH
DECISION = np.broadcast_to(np.arange(T)[:, None] >= 1, (T, B))
MASK = RUNNING & DECISION
RETURNS = np.array([1.0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])


def table(seed):
    return np.random.default_rng(seed).normal(-1.0, 0.4, (T, B)).astype(np.float32)


BEGUN, LEARNED = {"actor_critic": jnp.zeros(2)}, {"actor_critic": jnp.ones(2)}
NOW, ACTED, REFERENCE, ENTROPY = map(table, range(4))
VALUE = np.broadcast_to(table(4)[0], (T, B))


def policy(log_prob):
    """Policy with known log-probabilities [T, B] of the actions taken."""
    return types.SimpleNamespace(
        log_prob=lambda action: jnp.asarray(log_prob),
        entropy=lambda: jnp.asarray(ENTROPY),
        mode=lambda: jnp.zeros((T, B), jnp.int32),
    )


def speaks(log_prob):
    """A part: policy, value and memory, of a window; T + 1 steps are time steps and successors."""

    def apply(timestep, memory, method="__call__"):
        assert method == "unroll"
        return policy(log_prob), jnp.broadcast_to(VALUE[0], timestep.first.shape), ()

    return apply


def batch():
    """Whole episodes [T, B], and what follows them: rewards that must not count."""
    here = jnp.asarray
    last = np.arange(T)[:, None] == LENGTH - 1
    reward = np.where(last, RETURNS, np.where(RUNNING, 0.0, 100.0)).astype(np.float32)
    none = np.zeros((T, B), bool)
    tokens = {"decision": here(DECISION)}
    step = TimeStep(here(none), here(reward), here(last), here(none), here(none), tokens=tokens)
    action = jnp.zeros((T, B), jnp.int32)
    extras = {"log_prob": here(ACTED)}
    return Batch(Transition(step, action, step, (), extras), jnp.float32(0), mask=here(RUNNING))


def build(builder, **changes):
    config = replace(
        builder.Config(), SIZES | (GROUPS if builder is not token_supervised else {}) | changes
    )
    return config, builder.recipe(ENV, Static(config))


def record_update(builder, **changes):
    """Record the arguments of an update's epochs: a net (which notes what it descends), settings,
    data, step and largest drift; and the parts whose targets were updated afterwards."""
    config, recipe = build(builder, **changes)
    found = types.SimpleNamespace(followed=(), recipe=recipe, descended={})

    def update_targets(*parts):
        found.followed, found.parts = parts, LEARNED
        return types.SimpleNamespace(parts=LEARNED, replace=put)

    def put(parts):
        found.parts = parts
        return types.SimpleNamespace(report=lambda **reports: types.SimpleNamespace(feed=feed))

    def feed(keep):
        found.waits = keep

    def epochs(settings, data, step, unit, max_drift):
        assert unit == SEQUENCE
        found.data, found.step, found.max_drift = data, step, max_drift
        return types.SimpleNamespace(update_targets=update_targets)

    def descend(loss, x, mask, weight, used=None):
        found.descended[loss.name] = Minibatch(x, mask, weight)
        return found.net

    def replace_in_net(**changes):
        vars(found.net).update(changes)
        return found.net

    found.net = types.SimpleNamespace(
        parts=BEGUN,
        hyper=Values({n: jnp.asarray(v) for n, v in hypers(config).items()}),
        target=types.SimpleNamespace(actor_critic=speaks(REFERENCE)),
        actor_critic=speaks(NOW),
        critic=speaks(NOW),
        network=lambda name: types.SimpleNamespace(initial=lambda n: ()),
        extra=recipe.extra,
        env_steps=jnp.float32(0),
        epochs=epochs,
        descend=descend,
        replace=replace_in_net,
    )
    found.learned = recipe.update(found.net, batch())
    return found


def step(found, minibatch=None):
    """The minibatch that all losses descend, of the window or of a part of it."""
    found.step(found.net, minibatch or found.data)
    assert list(found.descended) == list(losses_of(found.recipe))
    first, *others = found.descended.values()
    assert all(other.x is first.x and other.weight is first.weight for other in others)
    return first


def loss_of(builder, **changes):
    """Values [T, B] of the loss of all tokens, its reports, and what it saw."""
    found = record_update(builder, **changes)
    minibatch = step(found)
    output = losses_of(found.recipe)["loss"](found.net, minibatch.x)
    np.testing.assert_array_equal(minibatch.mask, MASK)
    assert builder is token_supervised or output.drift is output.metrics["approximate_kl"]
    values, metrics = output.value, output.metrics
    return (
        np.where(MASK, values, 0),
        {n: np.where(MASK, v, 0) for n, v in metrics.items()},
        minibatch.x,
    )


THIRD, SPREAD = 1 / 3, np.sqrt(3) / 4
JUDGED = {
    token_reinforce: RETURNS,
    rloo: [2 * THIRD, -2 * THIRD, -2 * THIRD, 2 * THIRD, 0, 0, 0, 0, -THIRD, -THIRD, -THIRD, 1],
    # Two of three groups tell right from wrong: their gradients count one and a half times.
    gpg: [0.75, -0.75, -0.75, 0.75, 0, 0, 0, 0, -0.375, -0.375, -0.375, 1.125],
    grpo: [1, -1, -1, 1, 0, 0, 0, 0, *[-0.25 / SPREAD] * 3, 0.75 / SPREAD],
}
JUDGED |= {rpg: JUDGED[rloo], rpg_clipped: JUDGED[rloo]}


@pytest.mark.parametrize("builder", JUDGED, ids=lambda s: s.name)
def test_answers_are_judged_by_their_group_before_any_gradient_step(builder):
    x = record_update(builder).data.x
    expected = np.broadcast_to(JUDGED[builder], (T, B))
    np.testing.assert_allclose(x.advantage, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_pass_at_k_judges_by_its_k():
    x = record_update(pass_at_k, k=2).data.x
    judge = losses.pass_at_k_advantage
    expected = np.asarray(judge(jnp.asarray(RETURNS.reshape(3, 4) > 0), 2)).reshape(-1)
    np.testing.assert_allclose(x.advantage, np.broadcast_to(expected, (T, B)), rtol=1e-6)
    assert not np.allclose(expected, judge(jnp.asarray(RETURNS.reshape(3, 4) > 0), 3).reshape(-1))


@pytest.mark.parametrize(("threshold", "waits"), [(0.0, False), (0.66, False), (0.67, True)])
def test_gpg_waits_for_enough_groups_with_a_signal(threshold, waits):
    """Two of three have one; what comes after their ends is none."""
    found = record_update(gpg, informative=threshold)
    assert bool(found.waits) == waits
    expected = BEGUN if waits else LEARNED
    np.testing.assert_array_equal(found.parts["actor_critic"], expected["actor_critic"])


@pytest.mark.slow
def test_a_critic_judges_tokens_of_all_answers_together():
    """Undiscounted, with lambda 1: the return to go, less the value."""
    x = record_update(token_ppo).data.x
    np.testing.assert_allclose(
        np.where(MASK, x.target, 0), np.where(MASK, RETURNS, 0), rtol=1e-5, atol=1e-6
    )
    advantage = (RETURNS - VALUE)[MASK]
    advantage = (advantage - advantage.mean()) / advantage.std()
    np.testing.assert_allclose(np.asarray(x.advantage)[MASK], advantage, rtol=1e-4, atol=1e-5)


def on_a_scale(returns, clip):
    return np.clip((returns - returns.mean()) / returns.std(), -clip, clip)


@pytest.mark.parametrize("clip", [10.0, 1.0])
def test_ppo_max_judges_returns_on_a_known_scale(clip):
    """The scale is that of all returns so far: of the first batch alone, then of both. The critic's
    own values are kept."""
    changes = {"gae_lambda": 1.0, "kl.weight": 0.3, "score_clip": clip}
    found = record_update(ppo_max, **changes)
    x = found.data.x
    to_go = np.where(MASK, on_a_scale(RETURNS, clip) - COST, 0)
    np.testing.assert_allclose(np.where(MASK, x.target, 0), to_go, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(x.value, VALUE)
    np.testing.assert_allclose(x.advantage, x.target - VALUE, rtol=1e-4, atol=1e-5)
    again = batch()
    more = dataclasses.replace(again.transitions.timestep, reward=3 * again.transitions.reward)
    again = dataclasses.replace(
        again, transitions=dataclasses.replace(again.transitions, next_timestep=more)
    )
    found.recipe.update(found.net, again)
    both = on_a_scale(np.concatenate([RETURNS, 3 * RETURNS]), clip)[B:]
    x = found.data.x
    to_go = np.where(MASK, both - COST, 0)
    np.testing.assert_allclose(np.where(MASK, x.target, 0), to_go, rtol=1e-4, atol=1e-5)


def test_the_critic_of_ppo_max_stays_near_its_old_values():
    found = record_update(ppo_max, value_clip=0.1)
    x, losses = step(found).x, losses_of(found.recipe)
    loss = losses["critic_loss"]
    assert loss.parts == ("critic",) and losses["loss"].parts == ("actor_critic",)
    moved = VALUE + np.linspace(-0.3, 0.3, B, dtype=np.float32)
    spoken = lambda timestep, memory, method: (None, jnp.asarray(moved), ())
    found.net.critic = spoken
    near, target = np.clip(moved, VALUE - 0.1, VALUE + 0.1), np.asarray(x.target)
    expected = np.maximum(np.square(moved - target), np.square(near - target)) / 2
    np.testing.assert_allclose(loss(found.net, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("steps", "stays"), [(0.0, False), (1.0, True)])
def test_at_first_the_critic_of_ppo_max_learns_alone(steps, stays):
    found = record_update(ppo_max, critic_steps=steps)
    expected = BEGUN if stays else LEARNED
    np.testing.assert_array_equal(found.parts["actor_critic"], expected["actor_critic"])


def test_a_divergence_in_the_reward_is_judged_with_it():
    """The divergence is summed over whole answers, or from each token on; other methods have it in
    their loss."""
    returns = (RETURNS - COST[0]).reshape(3, 4)
    x = record_update(rloo, **{"kl.weight": 0.3}).data.x
    others = (returns.sum(1, keepdims=True) - returns) / 3
    np.testing.assert_allclose(x.advantage[0], (returns - others).reshape(-1), rtol=1e-4, atol=1e-5)
    x = record_update(token_reinforce, **{"kl.weight": 0.3}).data.x
    np.testing.assert_allclose(x.advantage[0], returns.reshape(-1), rtol=1e-4, atol=1e-5)
    x = record_update(token_ppo, **{"kl.weight": 0.3}).data.x
    to_go = np.where(MASK, RETURNS - COST, 0)
    np.testing.assert_allclose(np.where(MASK, x.target, 0), to_go, rtol=1e-4, atol=1e-5)
    for builder in (gpg, grpo, rpg):
        with_it, without = (record_update(builder, **{"kl.weight": w}).data for w in (0.3, 0.0))
        np.testing.assert_array_equal(with_it.x.advantage, without.x.advantage)


@named
def test_what_the_loss_sees_of_an_answer(builder):
    found = record_update(builder)
    x = found.data.x
    np.testing.assert_array_equal(found.data.mask, MASK)
    np.testing.assert_array_equal(x.log_prob, ACTED)
    np.testing.assert_array_equal(x.reference, REFERENCE)
    assert found.max_drift == found.net.hyper.passes.target_kl
    assert found.followed == ("actor_critic",)


def surrogate(advantage, low, high=0.2):
    ratio = np.exp(NOW - ACTED)
    return -np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def k3(log_prob, other):
    return np.exp(other - log_prob) - 1 - (other - log_prob)


# What leaving the reference costs from a token on, at a weight of 0.3.
COST = 0.3 * np.flip(np.flip(np.where(MASK, ACTED - REFERENCE, 0), 0).cumsum(0), 0)
# Loss of a token, from its advantage.
RATIO, LOG_RATIO = np.exp(NOW - ACTED), NOW - REFERENCE
LOSSES = {
    token_reinforce: lambda a: -a * NOW,
    rloo: lambda a: -a * NOW,
    gpg: lambda a: -a * NOW + 0.3 * k3(NOW, REFERENCE),
    grpo: lambda a: surrogate(a, 0.2) + 0.3 * k3(NOW, REFERENCE),
    pass_at_k: lambda a: surrogate(a, 0.2, 0.28) + 0.3 * k3(NOW, REFERENCE),
    token_ppo: lambda a: surrogate(a, 0.2) + 0.5 * np.square(VALUE - RETURNS + COST) / 2,
    ppo_max: lambda a: surrogate(a, 0.2),
    rpg: lambda a: -RATIO * a + 0.3 * (RATIO * LOG_RATIO - RATIO + np.exp(REFERENCE - ACTED)),
    rpg_clipped: lambda a: surrogate(a - 0.3 * LOG_RATIO, 0.2, 0.28),
}


@named
def test_the_loss_of_a_token(builder):
    """Less an entropy bonus."""
    changes = {"kl.weight": 0.3, "entropy_weight": 0.1}
    changes |= {"k": 2} if builder is pass_at_k else {}
    values, reports, x = loss_of(builder, **changes)
    expected = LOSSES[builder](np.asarray(x.advantage)) - 0.1 * ENTROPY
    np.testing.assert_allclose(values, np.where(MASK, expected, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(reports["entropy"], np.where(MASK, ENTROPY, 0))
    to_reference = np.where(MASK, k3(NOW, REFERENCE), 0)
    np.testing.assert_allclose(reports["kl_to_reference"], to_reference, rtol=1e-3, atol=1e-5)
    moved = np.where(MASK, k3(ACTED, NOW), 0)  # what an early stop looks at
    np.testing.assert_allclose(reports["approximate_kl"], moved, rtol=1e-3, atol=1e-5)


def test_another_estimate_of_the_divergence():
    values, _, x = loss_of(gpg, **{"kl.weight": 0.3, "estimate": "k2"})
    expected = -np.asarray(x.advantage) * NOW + 0.3 * LOG_RATIO**2 / 2
    np.testing.assert_allclose(values, np.where(MASK, expected, 0), rtol=1e-4, atol=1e-5)


def test_other_divergences_of_rpg():
    changes = {"kl.weight": 0.3, "direction": "forward", "normalized": True}
    values, _, x = loss_of(rpg, **changes)
    reference = np.exp(REFERENCE - ACTED)
    expected = -RATIO * np.asarray(x.advantage) - 0.3 * reference * LOG_RATIO
    np.testing.assert_allclose(values, np.where(MASK, expected, 0), rtol=1e-4, atol=1e-5)
    values, _, x = loss_of(rpg, reinforce=True, **changes)
    weight = RATIO * np.asarray(x.advantage) + 0.3 * reference
    np.testing.assert_allclose(values, np.where(MASK, -weight * NOW, 0), rtol=1e-4, atol=1e-5)


def test_cloning_learns_the_experts_tokens():
    values, reports, x = loss_of(token_supervised, entropy_weight=0.1)
    np.testing.assert_allclose(values, np.where(MASK, -NOW - 0.1 * ENTROPY, 0), rtol=1e-5)
    np.testing.assert_array_equal(reports["token_accuracy"], MASK)
    assert x.advantage is None and x.reference is None


PAPERS = dict.fromkeys(BUILDERS, "token") | {grpo: "sequence", rloo: "constant"}
PAPERS |= {token_reinforce: "constant"}


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda s: s.name)
def test_what_counts_alike_in_its_paper(builder):
    found = record_update(builder)
    descended = step(found)
    expected = losses.token_weights(jnp.asarray(MASK), PAPERS[builder])
    np.testing.assert_array_equal(descended.weight, expected)


def test_the_average_is_that_of_a_minibatch():
    """Weights come from the minibatch's own lengths."""
    found = record_update(grpo, average="sequence")
    whole = found.data
    x, mask = jax.tree.map(lambda x: x[:, :3], (whole.x, whole.mask))
    descended = step(found, Minibatch(x, mask))
    np.testing.assert_array_equal(descended.weight, losses.token_weights(mask, "sequence"))
    assert not np.allclose(descended.weight, losses.token_weights(whole.mask, "sequence")[:, :3])


@pytest.mark.parametrize(
    ("builder", "changes", "message"),
    [
        (pass_at_k, {"k": 5}, "k is 5; it must be at most groups.answers=4"),
        (grpo, {"recurrent": 0, "transformer": 1}, "0 wide"),
        (grpo, {"recurrent": 9, "transformer": 1}, "9 wide"),
        (grpo, {"recurrent": 9, "transformer": 1, "attention_heads": 4}, "4 heads"),
        (grpo, {"minibatches": 5}, "minibatches=5"),
        (grpo, {"chunk_rows": 5 * LONGEST}, "does not divide a minibatch of 12 rows"),
        (token_supervised, {"minibatches": 3}, "minibatches=3"),
        (token_supervised, {"early_stop": True}, "cannot stop early"),
    ],
)
def test_bad_settings(builder, changes, message):
    config, _ = build(builder)
    with pytest.raises(UserError, match=message):
        builder(ENV, replace(config, changes))


GROUPED = (
    *("bnpo", "cispo", "dapo", "difficulty_prior", "dr_grpo", "gmpo", "gpg", "grpo", "gspo"),
    *("kimi_k1_5", "mt_grpo", "nft", "opo", "reinforce_plus_plus_baseline", "rloo"),
    *("rpg", "sapo", "spear", "spectral_po"),
)


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_one_answer_are_refused(name):
    env, config = registry.tiny(name)
    with pytest.raises(UserError, match=r"groups\.answers is 1"):
        registry.builder(name)[0](env, replace(config, {"groups.prompts": 16, "groups.answers": 1}))


@pytest.mark.parametrize("builder", [gspo, iw_sft, rewarded_soups], ids=lambda b: b.name)
def test_averages_of_tokens_are_refused_where_answers_have_losses(builder):
    env = envs.make("ruled_words") if builder is rewarded_soups else ENV
    with pytest.raises(UserError, match="average is 'constant', but losses are of whole answers"):
        builder(env, {"average": "constant", "transformer": 0, "recurrent": 8})


def test_environments_that_do_not_fit():
    with pytest.raises(UserError, match="time limit"):
        grpo(dataclasses.replace(ENV, max_steps=None), replace(grpo.Config(), SIZES))
    with pytest.raises(UserError, match="expert"):
        token_supervised(dataclasses.replace(ENV, expert=None))


def test_a_transformer_has_the_heads_that_it_is_told():
    _, recipe = build(grpo, transformer=3, attention_heads=4)
    assert [keys.shape for keys in recipe.memory(2).keys] == [(2, 4, LONGEST + 1, 2)] * 3


def test_a_policy_without_memory():
    config, _ = build(grpo, recurrent=0)
    check_structure(grpo(ENV, config))


@pytest.mark.slow
def test_no_minibatch_is_taken_from_a_constant_cache():
    """XLA would compute the gather while it compiles: on an episode of 500 steps for minutes."""
    config, _ = build(grpo, transformer=1, epochs=2)
    algorithm = grpo(time_limit(cartpole(), 40), config)
    run = jax.eval_shape(lambda key: start(algorithm, key), random.key(0))
    program = jax.jit(lambda run: advance(algorithm, run)).lower(run).as_text()
    gathered = re.findall(r'"stablehlo.gather".*-> tensor<((?:\d+x)+)', program)
    assert len(gathered) > 5  # of what was sampled
    cache = (40 + 1) * config.memory.recurrent  # keys of one episode
    sizes = [math.prod(map(int, shape.rstrip("x").split("x"))) for shape in gathered]
    assert max(sizes) < config.groups.num_envs * cache


@functools.cache
def critic_case():
    """A critic with a cache of keys, and whole episodes of different lengths."""
    config, recipe = build(token_ppo, transformer=2, recurrent=16)
    algorithm = token_ppo(ENV, config)
    state = start(algorithm, random.key(0)).state
    network = recipe.parts["actor_critic"].network
    params = jax.tree.map(lambda x: 3 * x, state.agent.parts["actor_critic"].params)
    critic = lambda *x, method="__call__": network.apply(params, *x, method=method)
    hyper = {"discount": 0.9, "gae_lambda": 0.8}
    net = stub(actor_critic=critic, network=lambda name: network, hyper=hyper)
    policy = algorithm.policy(state)
    _, batch, _ = jax.jit(algorithm.source.collect)(state.source, policy, random.key(1))
    reward = jax.random.normal(random.key(2), batch.mask.shape) * batch.mask
    t = batch.transitions
    t = dataclasses.replace(t, next_timestep=dataclasses.replace(t.next_timestep, reward=reward))
    return net, network, dataclasses.replace(batch, transitions=t)


@pytest.mark.slow
def test_whole_episodes_are_judged_as_windows_are():
    """One text of T + 1 steps gives the same as a cache after each step."""
    net, network, batch = critic_case()
    assert len(set(batch.mask.sum(0).tolist())) > 1  # some end early
    found = answers.estimate_advantages(net, batch)
    memory = network.initial(batch.mask.shape[1])
    expected = estimate_advantages(net, dataclasses.replace(batch, memory=memory))
    assert float(jnp.abs(expected.value).max()) > 0.1
    for name in ("value", "advantage", "target"):
        ours, theirs = (np.asarray(getattr(x, name))[batch.mask] for x in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_critic_keeps_no_cache_for_every_step():
    net, network, batch = critic_case()
    steps, episodes = batch.mask.shape
    caches = steps * network.initial(episodes).keys[0].size
    compiled = jax.jit(lambda batch: answers.estimate_advantages(net, batch)).lower(batch).compile()
    sizes = [
        math.prod(map(int, shape.split(",")))
        for shape in re.findall(r"f32\[([\d,]+)\]", compiled.as_text())
    ]
    assert max(sizes) < caches


@functools.cache
def clone_once():
    """A warm-up's agent before and after an update."""
    config, _ = build(token_supervised, transformer=1, num_envs=4, learning_rate=0.1)
    return one_update(token_supervised(ENV, config))[:2]


def one_update(algorithm, agent=None):
    """The states of an agent before and after a step of the algorithm, and what it reports; it
    begins from `agent`."""
    state = start(algorithm, random.key(0)).state
    state = state if agent is None else take_over(state, agent)
    after, row = jax.jit(algorithm.step)(state, random.key(1))
    return state.agent, after.agent, metrics.values(row)


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@named
def test_any_method_goes_on_from_a_warm_up(builder):
    def initialize(builder):
        config, _ = build(builder, transformer=1)
        agent = builder.agent(ENV, config)
        return agent, jax.eval_shape(agent.init, jax.random.key(0), agent.hyper)

    agent, state = initialize(builder)
    adopted = jax.eval_shape(agent.adopt, state, initialize(token_supervised)[1])
    assert without_hyper(adopted) == without_hyper(state)


@pytest.mark.slow
def test_the_critic_of_ppo_max_begins_as_the_cloned_policy():
    """A state with a critic of its own keeps it. A policy with other weights raises an error."""
    config, _ = build(ppo_max, transformer=1)
    algorithm = ppo_max(ENV, config)
    state = start(algorithm, random.key(0)).state
    adopt = algorithm.agent.adopt
    parts = take_over(state, adopt(state.agent, clone_once()[1])).agent.parts
    policy = clone_once()[1].parts["actor_critic"].params
    assert same(parts["critic"].params, policy) and same(parts["actor_critic"].params, policy)
    pairs = zip(*(jax.tree.leaves(part.params) for part in parts.values()), strict=True)
    assert all(a is not b for a, b in pairs)  # one buffer cannot be given away twice
    assert same(parts["critic"].optimizer, state.agent.parts["critic"].optimizer)
    assert adopt(state.agent, state.agent) is state.agent
    with pytest.raises(UserError, match="other parts"):
        take_over(state, adopt(state.agent, {"params": jnp.zeros(2)}))


@pytest.mark.slow
def test_the_reference_is_the_cloned_policy_and_stays_it():
    before, after = (x.parts["actor_critic"] for x in clone_once())
    assert same(before.target, before.params)
    assert same(after.target, after.params)
    assert not same(after.params, before.params)
    config, _ = build(grpo, **{"transformer": 1, "entropy_weight": 0.1, "learning_rate": 0.1})
    begun, later, row = one_update(grpo(ENV, config), clone_once()[1])
    # What was written token by token, with a cache, is what is computed at once.
    assert abs(float(row["approximate_kl"])) < 1e-6
    assert abs(float(row["kl_to_reference"])) < 1e-6
    begun, later = begun.parts["actor_critic"], later.parts["actor_critic"]
    assert same(begun.params, after.params) and same(begun.target, after.params)
    assert not same(later.params, after.params)
    assert same(later.target, after.params)
