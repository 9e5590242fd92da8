"""Dreamer 4: who learns in which phase, from what, and what it never sees."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.algorithms.planning import dreamer4_imagination as imagination
from jaxrl.algorithms.planning import dreamer4_world_model as world_model
from jaxrl.algorithms.planning.shared import dreamer4
from jaxrl.algorithms.planning.shared.imagination import Dreams
from jaxrl.core import random, train, trees
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.classic import pendulum
from jaxrl.envs.pixels.catch import catch
from jaxrl.kit.wrapping import Wrapped, params_of
from tests.kit.stub import stub

ENV = catch(rows=4, columns=3)
T, B = 3, 4
SIZES = {"width": 8, "layers": 1, "hidden": (8,), "levels": 4, "context": 3, "horizon": 2}
SIZES |= {"bins": 5}
DATA = {"data.episodes": 8, "data.batch_size": 4}
WORLD_MODEL = replace(world_model.Config(), SIZES | DATA)
IMAGINATION = replace(imagination.Config(), SIZES | DATA | {"steps": 2})


@functools.cache
def batch():
    """Episodes of random frames; the first ends after two steps; two tell their actions."""
    keys = jax.random.split(random.key(0), 4)
    frames = jax.random.bernoulli(keys[0], 0.5, (T + 1, B, 4, 3, 1))
    mask = jnp.ones((T, B), bool).at[2, 0].set(False)
    ends = jnp.zeros((T, B), bool).at[1, 0].set(True).at[2, 1:].set(True)
    no = jnp.zeros((T, B), bool)
    reward = jax.random.normal(keys[1], (T, B))
    step = lambda x, ended, first: TimeStep(x, reward, ended, no, first)
    told = jnp.broadcast_to(jnp.arange(B) < 2, (T, B))
    transitions = Transition(
        step(frames[:-1], no, no.at[0].set(True)),
        jax.random.randint(keys[2], (T, B), 0, 3),
        step(frames[1:], ends, no),
        (),
        {"labeled": told},
    )
    return Batch(transitions, jnp.float32(0), mask=mask)


@functools.cache
def programs():
    """The first phase's state, the update of the world model, and the one that improves the
    policy."""
    first = world_model.dreamer4_world_model.agent(ENV, WORLD_MODEL)
    second = imagination.dreamer4_imagination.agent(ENV, IMAGINATION)
    fresh = trees.zeros(jax.eval_shape(second.init, random.key(0), second.hyper))
    improve = jax.jit(second.update)

    def go_on(state, batch, key):
        held = {n: jnp.float32(state.hyper.get(n, v)) for n, v in second.hyper.items()}
        taken = take_over(Wrapped(fresh, (), {}), state).agent
        return improve(dataclasses.replace(taken, hyper=held), batch, key)

    return jax.jit(first.init)(random.key(1), first.hyper), jax.jit(first.update), go_on


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


def replace_fields(**changes):
    b = batch()
    return dataclasses.replace(b, transitions=dataclasses.replace(b.transitions, **changes))


@pytest.mark.slow
def test_each_phase_learns_its_own():
    state, learn_model, improve = programs()
    learned, info = learn_model(state, batch(), random.key(2))
    before, after = params_of(state), params_of(learned)
    assert not same(before["model"], after["model"])
    assert not same(before["policy"], after["policy"])
    assert same(before["value"], after["value"]) and same(after["prior"], after["policy"])
    terms = [abs(float(info.metrics[name])) for name in dreamer4.TERMS]
    np.testing.assert_allclose(learned.extra.root, terms, rtol=1e-4)
    assert all(np.isfinite(x) for x in info.metrics.values())
    improved, info = improve(learned, batch(), random.key(3))
    before, after = after, params_of(improved)
    assert same(before["model"], after["model"]) and same(before["prior"], after["prior"])
    assert not same(before["policy"], after["policy"])
    assert not same(before["value"], after["value"])
    assert all(np.isfinite(x) for x in info.metrics.values())
    assert info.metrics["prior_kl"] == 0  # where the policy is the prior still
    # Each is trained with the averages of its own phase.
    count = lambda state, name: int(state.parts[name].optimizer.count)
    steps = {name: (count(learned, name), count(improved, name)) for name in after}
    assert steps == {"model": (1, 1), "prior": (1, 1), "policy": (0, 1), "value": (0, 1)}


@pytest.mark.slow
def test_actions_that_nobody_told_are_never_seen():
    state, learn_model, improve = programs()
    action = batch().transitions.action
    hidden, told = action.at[:, 2:].add(1) % 3, action.at[:, :2].add(1) % 3
    # Imagination may begin in a first frame, to which no action led: hence two keys.
    for update in (learn_model, improve):
        run = lambda batch, update=update: [update(state, batch, random.key(k)) for k in (2, 3)]
        plain = run(batch())
        assert same(plain, run(replace_fields(action=hidden)))
        assert not same(plain, run(replace_fields(action=told)))
    # With `conditioned` off the model is not told them either, while cloning is.
    off = dataclasses.replace(state, hyper={**state.hyper, "conditioned": jnp.float32(0)})
    _, info = learn_model(off, batch(), random.key(2))
    _, other = learn_model(off, replace_fields(action=told), random.key(2))
    assert info.metrics["frame_loss"] == other.metrics["frame_loss"]
    assert info.metrics["cloning_loss"] != other.metrics["cloning_loss"]


@pytest.mark.slow
def test_nothing_after_an_episodes_end_is_learned_from():
    state, learn_model, improve = programs()
    t = batch().transitions
    put = lambda timestep: dataclasses.replace(
        timestep,
        observation=timestep.observation.at[2, 0].set(True),
        reward=timestep.reward.at[2, 0].set(50.0),
    )
    changed = replace_fields(next_timestep=put(t.next_timestep), action=t.action.at[2, 0].set(2))
    for update in (learn_model, improve):
        assert same(update(state, batch(), random.key(2)), update(state, changed, random.key(2)))


@pytest.mark.slow
def test_outcomes_belong_to_the_successor_and_cloning_does_not_see_it():
    state, learn_model, _ = programs()
    jolt = lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape)
    model = state.parts["model"]
    model = dataclasses.replace(model, params=jax.tree.map(jolt, model.params))
    state = dataclasses.replace(state, parts=state.parts | {"model": model})
    metrics = lambda b: learn_model(state, b, random.key(2))[1].metrics
    plain, t = metrics(batch()), batch().transitions
    before = dataclasses.replace(t.timestep, reward=t.timestep.reward + 1)
    assert metrics(replace_fields(timestep=before)) == plain
    # The last frame of an episode shows how it ended, and comes after all that was done.
    cells = t.next_timestep.observation
    after = dataclasses.replace(t.next_timestep, observation=cells.at[-1].set(~cells[-1]))
    changed = metrics(replace_fields(next_timestep=after))
    assert all(changed[name] != plain[name] for name in ("reward_loss", "continue_loss"))
    assert changed["cloning_loss"] == plain["cloning_loss"]


@pytest.mark.slow
def test_a_policy_that_acts_remembers_the_frames_of_its_episode():
    agent = world_model.dreamer4_world_model.agent(ENV, WORLD_MODEL)
    state, *_ = programs()
    act = jax.jit(agent.act, static_argnums=4)
    memory, key = agent.memory(B), random.key(4)
    np.testing.assert_array_equal(memory.action, 3)
    for t in range(2):
        timestep = jax.tree.map(lambda x, t=t: x[t], batch().transitions.timestep)
        action, memory, _ = act(state, timestep, memory, key, False)
        np.testing.assert_array_equal(memory.action, action)
        np.testing.assert_array_equal(memory.cache.position, t + 1)


def test_what_does_not_fit_is_refused():
    build, go_on = world_model.dreamer4_world_model, imagination.dreamer4_imagination
    for builder, config, changes, what in (
        (build, WORLD_MODEL, {"levels": 6}, "levels must be a power of two, got 6"),
        (build, WORLD_MODEL, {"context": 4}, "context must be below levels=4, got 4"),
        (build, WORLD_MODEL, {"width": 9}, "does not divide"),
        (go_on, IMAGINATION, {"steps": 3}, "steps must be a power of two, got 3"),
        (go_on, IMAGINATION, {"steps": 8}, "steps must be at most levels=4, got 8"),
    ):
        with pytest.raises(UserError, match=what):
            builder(ENV, replace(config, changes))
    with pytest.raises(UserError, match="dreamer4_world_model cannot act in Box"):
        build(pendulum.pendulum(), WORLD_MODEL)


def test_imagination_takes_the_state_of_the_world_model_over():
    first = world_model.dreamer4_world_model(ENV, WORLD_MODEL)
    second = imagination.dreamer4_imagination
    begin = lambda algorithm: jax.eval_shape(
        lambda key: train.start(algorithm, key).state, random.key(0)
    )
    old, new = begin(first), begin(second(ENV, IMAGINATION))
    taken = jax.eval_shape(lambda new, old: take_over(new, old.agent), new, old)
    assert jax.tree.structure(taken) == jax.tree.structure(new)
    wider = begin(second(ENV, replace(IMAGINATION, {"width": 16})))
    with pytest.raises(UserError, match="does not fit"):
        jax.eval_shape(lambda new, old: take_over(new, old.agent), wider, old)


@pytest.mark.slow
def test_both_phases_learn_from_the_same_episodes():
    key, hyper = random.key(0), {"data.labeled": jnp.float32(0.5)}
    algorithms = (
        world_model.dreamer4_world_model(ENV, WORLD_MODEL),
        imagination.dreamer4_imagination(ENV, IMAGINATION),
    )
    start = lambda a: jax.jit(lambda: train.start(a, key, hyper).state.source.whole)()
    found = [start(a) for a in algorithms]
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        assert (x == y).all()
    assert found[0].transitions.extras["labeled"][0].sum() == 4


# ------------------------------------------------------------- the losses, of a net that is a table


def table(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def policy_of(logits):
    """A policy on rows of logits, as far as the losses know one."""
    logits = jax.nn.log_softmax(logits)
    return SimpleNamespace(logits=logits, log_prob=lambda a: losses.at_action(logits, a))


@pytest.mark.slow
def test_the_mean_of_the_world_models_loss_is_the_sum_of_means_over_frames_steps_and_clones(
    monkeypatch,
):
    """Terms are divided by their running root mean squares; only relevant episodes are cloned."""
    rng = np.random.default_rng(0)
    error, features = table(rng, T + 1, B) ** 2, table(rng, T + 1, B, 3)
    monkeypatch.setattr(world_model, "frame_loss", lambda *_: (jnp.asarray(error), features))
    reward, ends, atoms = table(rng, T, B, 5), table(rng, T, B), jnp.linspace(-2, 2, 5)

    def outcome(x, method):
        assert method == "outcome" and (x == features[1:]).all()
        return reward, ends

    mean = np.array([4.0, 9.0, 0.25, 1.0], np.float32)
    net = stub(
        hyper={"conditioned": 1.0, "bootstrap": 1.0},
        key=lambda: None,
        model=outcome,
        prior=policy_of,
        extra=dreamer4.Squares(0.5 * mean, np.float32(0.5)),
    )
    returns = np.where(batch().mask, batch().transitions.reward, 0).sum(0)
    told_returns = np.sort(returns[:2])
    assert told_returns[0] < told_returns[1]
    episodes = world_model.prepare_episodes(net, batch(), ENV, 1.0, float(told_returns.mean()))
    output = world_model.model_loss(net, episodes, None, atoms)
    values, reports = output.value, output.metrics
    t, there = batch().transitions, np.asarray(batch().mask)
    frames = np.concatenate([np.ones((1, B), bool), there])
    told = there & np.asarray(t.extras["labeled"]) & (returns >= told_returns.mean())
    cloning = -np.asarray(policy_of(features[:-1]).log_prob(t.action))
    expected = {
        "frame_loss": error[frames].mean(),
        "reward_loss": np.asarray(losses.two_hot_cross_entropy(reward, t.reward, atoms))[
            there
        ].mean(),
        "continue_loss": np.logaddexp(0, np.where(t.terminated, ends, -ends))[there].mean(),
        "cloning_loss": cloning[told].mean(),
    }
    assert frames.sum() == T * B + B - 1 and told.any(0).sum() == 1
    assert values.shape == there.shape and set(reports) == set(expected)
    for name, x in expected.items():
        np.testing.assert_allclose(np.asarray(reports[name])[there].mean(), x, rtol=1e-5)
    total = sum(x / root for x, root in zip(expected.values(), np.sqrt(mean), strict=True))
    np.testing.assert_allclose(np.asarray(values)[there].mean(), total, rtol=1e-5)


def test_losses_are_divided_by_what_their_squares_were_of_late():
    seen = [np.float32([1, 2, 3, 4]), np.float32([5, 0, 1, 2])]
    squares = dreamer4.Squares(np.zeros(4, np.float32), np.float32(0))
    np.testing.assert_array_equal(squares.root, 1)
    for terms in seen:
        squares = squares.add(terms, 0.9)
    weights = np.array([0.9, 1.0])  # of the older and of the newer
    expected = np.sqrt(weights @ np.square(seen) / weights.sum())
    np.testing.assert_allclose(squares.root, expected, rtol=1e-5)


@pytest.mark.slow
def test_the_policy_follows_signs_of_advantages_near_the_prior_before_an_imagined_end():
    rng, atoms = np.random.default_rng(1), jnp.linspace(-2, 2, 5)
    dreams = Dreams(
        table(rng, T + 1, B, 3), rng.integers(0, 3, (T, B)), table(rng, T, B), np.ones((T, B))
    )
    there = np.arange(T)[:, None] <= np.arange(B)
    turned = lambda x: 1 - 2 * x
    value = table(rng, T, B, 5)
    net = stub(
        hyper={"alpha": 0.4, "beta": 0.3},
        policy=policy_of,
        prior=lambda x: policy_of(turned(x)),
        value=lambda x: value,
    )
    output = imagination.behavior_loss(net, (dreams, there), atoms)
    values, reports = output.value, output.metrics
    log, prior = (policy_of(f(dreams.features[:-1])).logits for f in (lambda x: x, turned))
    kl = (np.exp(log) * (log - prior)).sum(-1)
    taken = np.take_along_axis(np.asarray(log), dreams.action[..., None], -1)[..., 0]
    better = dreams.returns >= np.asarray(jax.nn.softmax(value) @ atoms)
    good, bad = there & better, there & ~better
    assert good.any() and bad.any()
    policy_loss = 0.6 * taken[bad].mean() - 0.4 * taken[good].mean() + 0.3 * kl[there].mean()
    value_loss = losses.two_hot_cross_entropy(value, dreams.returns, atoms)
    mean = lambda x: np.asarray(x)[there].mean()
    np.testing.assert_allclose(mean(reports["policy_loss"]), policy_loss, rtol=1e-5)
    np.testing.assert_allclose(mean(values), policy_loss + mean(value_loss), rtol=1e-5)
    np.testing.assert_allclose(mean(reports["prior_kl"]), kl[there].mean(), rtol=1e-5)
