"""MaKTO: utterances in a wrong place, the loss of labeled utterances, and labels of tokens."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.makto import label_tokens, makto, makto_loss, swap_utterances
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit import Minibatch
from tests.kit.stub import stub

TOKENS, STEPS, TEXTS, TURNS = 5, 6, 4, 2
RNG = np.random.default_rng(0)
# Each text has two utterances, from step 1 on and from step 4 on; some are longer than others.
TURN = np.array(
    [[-1, 0, -1, -1, 1, -1], [-1, 0, 0, -1, 1, -1], [-1, 0, 0, -1, 1, 1], [-1, 0, -1, -1, -1, -1]]
).T
ACTION = RNG.integers(0, TOKENS, (STEPS, TEXTS))
READ = RNG.integers(0, TOKENS, (STEPS, TEXTS))
LEGAL = np.ones((STEPS, TEXTS, TOKENS), bool)
NOW, FROZEN = np.log(RNG.dirichlet(np.ones(TOKENS), (2, TOKENS))).astype(np.float32)
LABEL = np.array([[1, -1], [-1, 1], [1, 0], [-1, 0]], np.float32)  # of the turns of each text


def timestep(read=READ, legal=LEGAL):
    no = np.zeros(read.shape, bool)
    judged = np.zeros((*read.shape, TURNS), np.float32)
    return TimeStep(
        jnp.asarray(read), jnp.zeros(read.shape), no, no, no,
        legal_actions=jnp.asarray(legal), privileged={"judged": jnp.asarray(judged)},
        tokens={"turn": jnp.asarray(np.maximum(TURN, 0)), "decision": jnp.asarray(TURN >= 0)},
    )  # fmt: skip


def network(table):
    """Return a policy that looks up the token that was read last, and that before it."""

    def part(timestep, memory, method):
        read = timestep.observation
        before = jnp.concatenate([jnp.zeros_like(read[:1]), read[:-1]])
        logits = jnp.asarray(table)[read] + jnp.roll(jnp.asarray(table)[before], 1, -1)
        log_prob = jax.nn.log_softmax(logits)
        find = lambda action: jnp.take_along_axis(log_prob, action[..., None], -1)[..., 0]
        return types.SimpleNamespace(log_prob=find), None, ()

    return part


def net(**hyper):
    initial = types.SimpleNamespace(initial=lambda n: ())
    hyper = {"beta": 0.5, "desirable_weight": 2.0, "undesirable_weight": 0.5} | hyper
    return stub(
        {"actor_critic": network(FROZEN)}, hyper,
        actor_critic=network(NOW), network=lambda name: initial,
    )  # fmt: skip


def log_probs(table, read, action):
    """Return log-probabilities [T] of the actions in one text, by NumPy."""
    before = np.append(0, read[:-1])
    logits = table[read] + np.roll(table[before], 1, -1)
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(len(action)), action]


def splice(text):
    """Return a text whose utterance in its turn of the rotation is the next text's, by hand: what
    is read, actions, and the steps of the utterance."""
    other, turn = (text + 1) % TEXTS, text % TURNS
    own, theirs = (np.flatnonzero(TURN[:, x] == turn) for x in (text, other))
    if not len(own) or not len(theirs):
        return None
    read, action = READ[: own[0] + 1, text], ACTION[: own[0], text]
    read = np.concatenate([read, READ[theirs[1:], other]])
    action = np.concatenate([action, ACTION[theirs, other]])
    return read, action, own[0] + np.arange(len(theirs))


def test_an_utterance_goes_to_the_same_turn_of_the_text_before():
    found = swap_utterances(timestep(), jnp.asarray(ACTION), jnp.asarray(TURN), TURNS)
    known = [splice(i) for i in range(TEXTS)]
    assert [x is not None for x in known] == [True, True, True, False]
    for i, expected in enumerate(known):
        mask = np.asarray(found.mask[:, i])
        if expected is None:
            assert not mask.any()
            continue
        read, action, steps = expected
        np.testing.assert_array_equal(np.flatnonzero(mask), steps)
        np.testing.assert_array_equal(found.timestep.observation[: len(read), i], read)
        np.testing.assert_array_equal(found.action[: len(action), i], action)


def test_what_would_not_be_legal_is_not_tried():
    legal = LEGAL.copy()
    legal[1, 0, ACTION[1, 1]] = False  # what text 1 says first, in text 0
    legal[2, 1, ACTION[2, 1]] = False  # what it says next, after its own words
    turn = jnp.asarray(TURN)
    found = swap_utterances(timestep(legal=legal), jnp.asarray(ACTION), turn, TURNS)
    assert found.mask.any(0).tolist() == [False, True, True, False]
    legal[1, 0] = True
    found = swap_utterances(timestep(legal=legal), jnp.asarray(ACTION), turn, TURNS)
    assert found.mask.any(0).tolist() == [False, True, True, False]


def labels():
    """Return the label of each token, [T, B]."""
    label = np.take_along_axis(LABEL.T, np.maximum(TURN, 0), 0)
    return np.where(TURN >= 0, label, 0).astype(np.float32)


def sample():
    frozen = np.stack([log_probs(FROZEN, READ[:, i], ACTION[:, i]) for i in range(TEXTS)], 1)
    mask = jnp.asarray(TURN >= 0)
    x = Sample(timestep(), jnp.asarray(ACTION), reference=jnp.asarray(frozen))
    return Minibatch(dataclasses.replace(x, advantage=jnp.asarray(labels())), mask)


def loss_by_hand(beta=0.5, weights=(2.0, 0.5)):
    """Return the mean loss of labeled utterances. Unlabeled ones are not swapped either."""
    learned = np.where(labels() != 0, TURN, -1)
    ratios = []
    for i in range(TEXTS):
        turn, other = i % TURNS, (i + 1) % TEXTS
        if (learned[:, i] == turn).any() and (learned[:, other] == turn).any():
            read, action, steps = splice(i)
            both = [log_probs(x, read[: len(action)], action)[steps].sum() for x in (NOW, FROZEN)]
            ratios.append(both[0] - both[1])
    point = max(np.mean(ratios), 0)
    total = []
    for i in range(TEXTS):
        ratio = log_probs(NOW, READ[:, i], ACTION[:, i]) - log_probs(
            FROZEN, READ[:, i], ACTION[:, i]
        )
        for turn in range(TURNS):
            label, steps = LABEL[i, turn], TURN[:, i] == turn
            if label and steps.any():
                gain = label * beta * (ratio[steps].sum() - point)
                total.append(weights[int(label < 0)] / (1 + np.exp(gain)))
    return np.mean(total), point, len(ratios)


def test_the_loss_is_the_mean_over_labeled_utterances():
    expected, point, tried = loss_by_hand()
    found = makto_loss.function(net(), sample())
    assert tried == 2
    np.testing.assert_allclose(found.value.mean(), expected, rtol=1e-5)
    np.testing.assert_allclose(found.metrics["reference_point"], point, atol=1e-6)
    np.testing.assert_allclose(found.metrics["desirable"].mean(), 3 / 6, rtol=1e-6)


def test_labels_reach_the_tokens_of_their_utterances():
    """The labels come at the end, and what follows it means nothing."""
    last = np.array([5, 4, 5, 3])
    done = np.arange(STEPS)[:, None] == last
    judged = np.where(
        done[..., None], LABEL, 9.0 * (np.arange(STEPS)[:, None, None] > last[:, None])
    )
    after = dataclasses.replace(timestep(), terminated=jnp.asarray(done))
    after = dataclasses.replace(after, privileged={"judged": jnp.asarray(judged)})
    mask = jnp.asarray(np.arange(STEPS)[:, None] <= last)
    t = Transition(timestep(), jnp.asarray(ACTION), after, (), {})
    x = Sample(t.timestep, t.action)
    found = label_tokens(net(), Batch(t, jnp.float32(0), mask=mask), x)
    np.testing.assert_array_equal(found.advantage, np.where(mask, labels(), 0))
    frozen = np.stack([log_probs(FROZEN, READ[:, i], ACTION[:, i]) for i in range(TEXTS)], 1)
    np.testing.assert_allclose(found.reference, frozen, rtol=1e-5)


def test_settings_that_do_not_fit_are_refused():
    env = envs.make("werewolf")
    with pytest.raises(UserError, match="at least 2 texts"):
        makto(env, {"num_envs": 4, "minibatches": 4})
    with pytest.raises(UserError, match="chunk_rows must be 0"):
        makto(env, {"chunk_rows": 8})
    with pytest.raises(UserError, match="makto has no entropy bonus"):
        makto(env, {"entropy_weight": 0.1})
    with pytest.raises(UserError, match="needs a label of each turn"):
        makto(envs.make("judged_words"))
    with pytest.raises(UserError, match="needs a label of each turn"):
        makto(envs.make("strategies"))
