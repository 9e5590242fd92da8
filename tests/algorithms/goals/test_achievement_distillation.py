"""Achievement distillation: episodes, matches and both contrastive losses, against NumPy."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.goals import achievement_distillation as ad
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, TimeStep, Transition
from tests.kit.stub import stub

T, B, D, A, K = 24, 5, 3, 4, 3
RNG = np.random.default_rng(0)
LATENT = RNG.normal(size=(2 * T * B, D)).astype(np.float32)
LOGITS, OLD = np.asarray(jax.nn.log_softmax(RNG.normal(size=(2, 2 * T * B, A)).astype(np.float32)))
VALUE = RNG.normal(size=2 * T * B).astype(np.float32)
PREDICTION = RNG.normal(size=(T * B, D)).astype(np.float32)
PREDICTION /= np.linalg.norm(PREDICTION, axis=-1, keepdims=True)
HYPER = {"temperature": 0.3, "policy_weight": 2.0, "old_value_weight": 0.5, "regularization": 0.05}


def window():
    """Steps [T, B] whose observations are their numbers; their successors' are T * B more."""
    number = np.arange(T * B).reshape(T, B)
    done = RNG.random((T, B)) < 0.2
    first = np.concatenate([RNG.random((1, B)) < 0.5, done[:-1]])
    reward = (RNG.random((T, B)) < 0.4).astype(np.float32)
    no, nothing = np.zeros((T, B), bool), np.zeros((T, B), np.float32)
    before = TimeStep(number, nothing, no, no, first)
    after = TimeStep(number + T * B, reward, done, no, no)
    achievement = RNG.normal(size=(T, B, D)).astype(np.float32)
    x = Transition(before, number % A, after, (), {"achievement": achievement})
    return jax.tree.map(jnp.asarray, x)


def episodes_of(x, mask):
    """Return (stream, first step, last step, achievements) of the complete episodes."""
    found = []
    for b in range(B):
        begun = None
        for t in range(T):
            if not mask[t, b]:
                continue
            begun = t if x.first[t, b] else begun
            if x.done[t, b]:
                if begun is not None:
                    times = [i for i in range(begun, t + 1) if x.reward[i, b] > 0.1]
                    found.append((b, begun, t, times))
                begun = None
    return found


X = window()
FIND, MATCH = jax.jit(ad.find_episodes), jax.jit(ad.match)
DRAW = jax.jit(ad.draw_pairs, static_argnums=(4, 5))
MASK = np.arange(T)[:, None] >= np.full(B, 2)  # the first two rows were never collected
EPISODES = [e for e in episodes_of(X, MASK) if e[3]]


def test_episodes_are_complete_and_each_step_knows_what_is_achieved_next():
    trail = jax.device_get(FIND(X, jnp.asarray(MASK), 0.1))
    kept, unlocked = np.zeros((2, T, B), bool)
    for b, start, last, times in EPISODES:
        kept[start : last + 1, b] = True
        unlocked[times, b] = True
        for t in range(start, last + 1):
            later = [i for i in times if i >= t]
            assert trail.following[t, b] == (later[0] if later else -1)
            assert (trail.start[t, b], trail.last[t, b]) == (start, last)
    assert 3 < len(EPISODES) < len(episodes_of(X, MASK)) and kept.any() and not kept.all()
    np.testing.assert_array_equal(trail.kept, kept)
    np.testing.assert_array_equal(trail.unlocked, unlocked)


def test_pairs_are_different_episodes_with_their_first_achievements():
    trail = FIND(X, jnp.asarray(MASK), 0.1)
    target = jnp.arange(T * B, dtype=jnp.float32).reshape(T, B)
    drawn = jax.device_get(DRAW(random.key(1), X, target, trail, 300, K))
    assert drawn.mask.all()
    known = {}
    for b, start, last, times in EPISODES:
        own = tuple(t * B + b for t in times[:K])
        known[own] = {t * B + b for t in range(start, last + 1)}
    d, seen, negatives = drawn.x, set(), set()
    for n in range(300):
        sides = []
        for steps, exists in ((d.own, d.own_exists), (d.other, d.other_exists)):
            sides.append(tuple(int(i) for i in steps.timestep.observation[n][exists[n]]))
        assert sides[0] in known and sides[1] in known and sides[0] != sides[1]
        assert set(d.x.timestep.observation[n]) <= known[sides[0]]
        np.testing.assert_array_equal(d.target[n], d.x.timestep.observation[n])
        assert (d.negative[n] < len(sides[1])).all()
        seen.add(sides[0])
        negatives.update(d.negative[n])
    assert seen == set(known) and negatives == set(range(K))
    alone = dataclasses.replace(trail, kept=trail.kept & False)
    assert not DRAW(random.key(1), X, target, alone, 300, K).mask.any()


def test_equal_achievements_are_matched_and_each_at_most_once():
    vectors = np.asarray(losses.unit_vector(jax.random.normal(random.key(3), (4, 16))))
    order = np.array([2, 0, 3, 1])
    everything = np.ones(4, bool)
    index, matched = MATCH(vectors, vectors[order], everything, everything, 0.05)
    np.testing.assert_array_equal(order[np.asarray(index)], np.arange(4))
    assert matched.all()
    # The other episode lacks the first and the last, and this one has three.
    index, matched = MATCH(
        vectors, vectors[order], np.array([1, 1, 1, 0], bool), np.array([1, 0, 0, 1], bool), 0.05
    )
    np.testing.assert_array_equal(matched, [False, True, True, False])
    np.testing.assert_array_equal(np.asarray(index)[1:3], [3, 0])


def encode(s, *given, method, **_):
    """Return latents, policy and values, or predictions of tables."""
    at = s.observation
    if method == "encode":
        return jnp.asarray(LATENT)[at]
    if method == "predict":
        return jnp.asarray(PREDICTION)[at] * (1 + given[1][..., None]) + given[0]
    return types.SimpleNamespace(logits=jnp.asarray(LOGITS)[at]), jnp.asarray(VALUE)[at]


def before(s, achievement, method):
    return types.SimpleNamespace(logits=jnp.asarray(OLD)[s.observation]), None


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def closeness(at, target):
    kl = (np.exp(LOGITS[at]) * (LOGITS[at] - OLD[at])).sum(-1)
    return 2.0 * kl + 0.5 * 0.5 * (VALUE[at] - target) ** 2


def as_share(anchor, positive, negative):
    p, n = (np.exp((anchor * x).sum(-1) / 0.3) for x in (positive, negative))
    return -np.log(p / (p + n))


def _prediction(d):
    net = stub(hyper=HYPER, prediction=encode, actor_critic=before)
    output = ad.prediction_loss(net, d)
    return output.value, output.metrics["predicted"]


def test_the_prediction_loss_contrasts_two_steps_of_an_episode():
    n = 40
    one, two, goal = RNG.integers(0, T * B, (3, n))
    flat = jax.tree.map(lambda x: x.reshape(T * B, *x.shape[2:]), X)
    at = lambda i: jax.tree.map(lambda x: x[i], flat)
    exists, targets = RNG.random(n) < 0.6, RNG.normal(size=(2, n)).astype(np.float32)
    d = ad.Prediction(at(one), at(two), *targets, at(goal), exists)
    value, predicted = jax.jit(_prediction)(d)
    after = np.where(exists[:, None], LATENT[goal + T * B], 0)
    anchor = unit(after - LATENT[goal])
    achievement = np.asarray(flat.extras["achievement"])
    predict = lambda i: PREDICTION[i] * (1 + (i % A)[:, None]) + achievement[i]
    expected = as_share(anchor, predict(one), predict(two))
    expected += (closeness(one, targets[0]) + closeness(two, targets[1])) / 2
    np.testing.assert_allclose(value, expected, rtol=2e-4, atol=1e-5)
    right = (anchor * (predict(one) - predict(two))).sum(-1) > 0
    np.testing.assert_array_equal(predicted, right)
    assert ad.prediction_loss.parts == ("prediction",) and ad.matching_loss.parts == ("matching",)


def test_the_matching_loss_counts_matches_alike_and_moves_only_the_anchor():
    trail = FIND(X, jnp.asarray(MASK), 0.1)
    target = jnp.asarray(RNG.normal(size=(T, B)).astype(np.float32))
    d = DRAW(random.key(2), X, target, trail, 30, K).x

    def total(table):
        net = stub(
            hyper=HYPER,
            matching=lambda s, *given, method: (
                table[s.observation] if method == "encode" else encode(s, *given, method=method)
            ),
            actor_critic=before,
        )
        output = ad.matching_loss(net, d)
        return output.value.mean(), (output.value, output.metrics["matches"])

    (_, (values, matches)), slope = jax.jit(jax.value_and_grad(total, has_aux=True))(
        jnp.asarray(LATENT)
    )
    d = jax.device_get(d)
    embed = lambda s: unit(LATENT[s.next_observation] - LATENT[s.observation])
    own, other = embed(d.own), embed(d.other)
    index, matched = jax.device_get(MATCH(own, other, d.own_exists, d.other_exists, 0.05))
    assert 0 < matched.sum() < matched.size and not (matched & ~np.asarray(d.own_exists)).any()
    pairs = np.arange(30)[:, None]
    each = as_share(own, other[pairs, index], other[pairs, np.asarray(d.negative)])
    expected = (each * matched).sum(-1) * 30 / matched.sum()
    expected += closeness(np.asarray(d.x.observation), np.asarray(d.target)).mean(-1)
    np.testing.assert_allclose(values, expected, rtol=2e-4, atol=1e-5)
    np.testing.assert_array_equal(matches, matched.sum(-1))
    anchors = {
        *np.asarray(d.own.observation)[matched],
        *np.asarray(d.own.next_observation)[matched],
    }
    assert set(np.flatnonzero(np.abs(slope).sum(-1))) <= anchors


ENV = envs.make("catch")
SIZES = {
    "num_envs": 4, "num_steps": 16, "passes.epochs": 1, "passes.minibatches": 2,
    "auxiliary.epochs": 1, "auxiliary.minibatches": 2, "hidden": (8,), "windows": 2, "pairs": 2,
    "most": 2,
}  # fmt: skip


@pytest.mark.slow
def test_the_policy_remembers_the_last_achievement_and_distills_after_every_second_update():
    config = settings.replace(ad.Config(), SIZES)
    agent = ad.achievement_distillation.agent(ENV, config)
    source = ad.achievement_distillation.source(ENV, config)
    policy = lambda state: Policy(agent.act, agent.memory, state)
    state = jax.jit(agent.init)(random.key(0), agent.hyper)

    # Memory: the direction in which the rewarded step moved the latent.
    latent, old = jax.random.normal(random.key(1), (2, 3, 8))
    timestep = jax.tree.map(
        lambda x: jnp.stack([x] * 3), jax.jit(ENV.reset)(random.key(2), ENV.params)[1]
    )
    timestep = dataclasses.replace(timestep, reward=jnp.array([1.0, 0.0, 0.05]))
    _, memory, extras = jax.jit(agent.act, static_argnums=4)(
        state, timestep, ad.Memory(latent, old), random.key(3), False
    )
    expected = np.array(old)
    expected[0] = unit(np.asarray(memory.latent - latent)[0])
    np.testing.assert_allclose(extras["achievement"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(memory.achievement, extras["achievement"])

    x = jax.jit(lambda key: collect(source, policy(state), key))(random.key(4))
    update = jax.jit(agent.update)
    same = lambda a, b: jax.tree.all(jax.tree.map(lambda p, q: (p == q).all(), a, b))
    first, _ = update(state, x, random.key(5))
    assert same(first.parts["matching"].params, state.parts["matching"].params)
    assert not same(first.parts["actor_critic"].params, state.parts["actor_critic"].params)
    assert (first.extra[:16] == 0).all() and (first.extra[16:] != 0).any()
    second, info = update(first, x, random.key(6))
    assert same(second.parts["prediction"].params, second.parts["actor_critic"].params)
    assert not same(second.parts["matching"].params, first.parts["matching"].params)
    np.testing.assert_array_equal(second.extra[:16], first.extra[16:])
    assert info.metrics["matching_drift"].value() >= 0


def collect(source, policy, key):
    state = source.init(key, source.hyper, policy)
    for i in range(2):
        state, batch, _ = source.collect(state, policy, jax.random.fold_in(key, i))
    return batch


def test_chunks_and_actions_that_are_no_choice_are_refused():
    with pytest.raises(UserError, match=r"auxiliary.chunk_rows is 4, but 'achievement_dist"):
        ad.achievement_distillation(ENV, SIZES | {"auxiliary.chunk_rows": 4})
    with pytest.raises(UserError, match="needs Discrete actions"):
        ad.achievement_distillation(envs.make("pendulum"), SIZES)
    with pytest.raises(UserError, match="do not divide into minibatches=3"):
        ad.achievement_distillation(ENV, SIZES | {"auxiliary.minibatches": 3})
