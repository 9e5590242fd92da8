"""SPC: the offline loss against NumPy, what each role is paid, and whose rounds are learned."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import spc as module
from jaxrl.algorithms.multi_agent.spc import Config, Games, offline_loss, spc
from jaxrl.algorithms.tokens.shared.answers import Evaluation, Sample
from jaxrl.algorithms.tokens.shared.proposing import join_windows
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy, TimeStep
from jaxrl.kit import Minibatch

ENV = envs.make("edited_steps", steps=1, base=3)


def test_loss_of_texts(monkeypatch):
    rng, (length, texts) = np.random.default_rng(0), (7, 40)
    log_prob, reference = (-rng.exponential(size=(length, texts)) for _ in range(2))
    log_prob = reference + 0.3 * rng.normal(size=(length, texts))
    reader = np.sort(rng.integers(0, 2, (length, texts)), 0)
    paid = rng.choice([-1.0, 1.0], (2, texts))
    advantage = np.take_along_axis(paid, reader, 0)
    shown, mask = rng.random(texts) < 0.3, rng.random((length, texts)) < 0.8
    mask[:, 0] = False
    entropy = np.zeros((length, texts))
    monkeypatch.setattr(
        module,
        "evaluate",
        lambda net, x: Evaluation(*(jnp.float32(y) for y in (log_prob, entropy)), None, None),
    )
    step = TimeStep(mask, mask, mask, mask, mask, tokens={"reader": jnp.asarray(reader)})
    sample = Sample(
        step,
        reader,
        reference=jnp.float32(reference),
        advantage=jnp.float32(advantage),
        target=jnp.broadcast_to(jnp.float32(shown), (length, texts)),
    )
    config = replace(Config(), {"imitation_weight": 0.4})
    net = type("Net", (), {"hyper": config})
    found = offline_loss(net, Minibatch(sample, jnp.asarray(mask))).value
    clipped = set()
    for b in range(texts):
        expected = 0.0
        for role in (0, 1):
            here = mask[:, b] & (reader[:, b] == role)
            if not here.any():
                continue
            mean, before = log_prob[here, b].mean(), reference[here, b].mean()
            s, a = np.exp(mean - before), paid[role, b]
            gain = min(s * a, np.clip(s, 0.8, 1.2) * a)
            clipped.add(bool(gain != s * a))
            expected += -0.4 * mean if shown[b] else -gain
        assert float(found[b]) == pytest.approx(expected, abs=1e-5)
    assert clipped == {True, False}


def test_windows_become_more_texts():
    rounds, length, texts = 3, 4, 5
    x = np.arange(rounds * length * texts * 2).reshape(rounds, length, texts, 2)
    batch = jax.tree.map(lambda y: y, play(Games(games=4, shown=0)))
    flat = jnp.asarray(x.reshape(rounds * length, texts, 2))
    batch = dataclasses.replace(batch, transitions=flat, mask=flat[..., 0] > 7)
    found = join_windows(batch, rounds)
    for r, b in np.ndindex(rounds, texts):
        np.testing.assert_array_equal(found.transitions[:, b * rounds + r], x[r, :, b])
    np.testing.assert_array_equal(found.mask, found.transitions[..., 0] > 7)


def play(games):
    """Play a round by the expert, some of whose edits and many of whose verdicts are random."""

    def act(state, timestep, memory, key, greedy):
        random_key, any_key = jax.random.split(key)
        chance = jnp.where(timestep.tokens["reader"] == 1, 0.7, 0.06)
        said = jax.random.categorical(any_key, jnp.where(timestep.legal_actions, 0.0, -jnp.inf))
        noisy = jax.random.bernoulli(random_key, chance)
        return jnp.where(noisy, said, timestep.privileged["expert_action"]), memory, {}

    policy, source = Policy(act, lambda n: (), ()), games.source(ENV)
    return jax.jit(lambda key: source.collect(source.init(key, {}, policy), policy, key)[1])(
        random.key(0)
    )


def test_shown_texts_are_the_experts():
    t = play(Games(games=48, shown=16, num_shards=4)).transitions
    shown = np.asarray(t.extras["shown"])
    assert (shown == (np.arange(64) % 16 >= 12)).all()
    right = np.asarray(jnp.where(t.done, t.next_timestep.metrics["success"], 0)).max(0)
    assert right[shown[0]].all() and not right[~shown[0]].all()


def test_each_role_is_paid_its_own(monkeypatch):
    judges = []
    real = module.on_answers

    def keep(env, config, judge, losses, network):
        judges.append(judge)
        return real(env, config, judge, losses, network=network)

    monkeypatch.setattr(module, "on_answers", keep)
    config = replace(Config(), {"recurrent": 8, "transformer": 1})
    module.recipe(ENV, config)
    batch = play(Games(games=60, shown=4))
    judged = judges[0](None, batch)
    t, mask = batch.transitions, np.asarray(batch.mask)
    reader, done = np.asarray(t.timestep.tokens["reader"]), np.asarray(t.done) & mask
    paid = {k: np.asarray(v)[done] for k, v in t.next_timestep.reward_components.items()}
    columns = np.argmax(done, 0)
    assert len(columns) == done.sum()
    order = np.argsort(np.nonzero(done)[1])
    editor, critic = (paid[k][order] for k in ("editor", "critic"))
    assert {-1.0, 0.0, 1.0} == set(critic.tolist()) and 1.0 in editor
    np.testing.assert_array_equal(judged["advantage"], np.where(reader == 0, editor, critic))
    np.testing.assert_array_equal(judged["target"], np.asarray(t.extras["shown"]))


@pytest.mark.parametrize("from_reference", [True, False])
def test_rounds_begin_at_the_reference_or_go_on(from_reference):
    sizes = {"games": 6, "shown": 2, "recurrent": 8, "transformer": 1, "minibatches": 1}
    sizes |= {"rounds": 1, "epochs": 1, "learning_rate": 0.5, "from_reference": from_reference}
    algorithm = spc(ENV, sizes)
    state = algorithm.init(random.key(0), algorithm.hyper)
    distance = []
    step = jax.jit(algorithm.step)
    for i in range(4):
        state, _ = step(state, random.key(i))[:2]
        part = state.agent.parts["actor_critic"]
        gap = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), part.params, part.target)
        distance.append(max(float(x) for x in jax.tree.leaves(gap)))
    # A step of Adam from the reference moves each weight by the learning rate at most.
    assert (max(distance) <= 0.5 + 1e-3) == from_reference
    assert distance[0] > 0.1


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(UserError, match="restart"):
        spc(envs.make("lookup"), Config())
    with pytest.raises(UserError, match=r"reward_components\['critic'\]"):
        spc(envs.make("posed_sums"), Config())
    for setting in ("passes.early_stop", "sampling.nucleus"):
        with pytest.raises(UserError, match="shown texts"):
            spc(ENV, {setting: True})
