"""Losses of sequences, pairs and groups: their values, what counts, and what must stay whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit import LossOutput, Part, Recipe, Unit, loss
from jaxrl.kit.composing import plus
from jaxrl.kit.groups import Passes
from jaxrl.kit.learner import learner
from tests.kit.test_learner import STATIC, Config, Table, act

T, B = 3, 8
PAIRS, ANSWERS = Unit(sequences=True, columns=2), Unit(sequences=True)
NUMBER = np.arange(T * B, dtype=np.float32).reshape(T, B) ** 1.5
LENGTH = np.array([3, 1, 2, 0, 0, 0, 1, 2])  # the third pair has no step that counts
MASK = np.arange(T)[:, None] < LENGTH


def batch(**more):
    no = jnp.zeros((T, B), bool)
    step = TimeStep(jnp.zeros((T, B), int), jnp.asarray(NUMBER), no, no, no)
    return Batch(Transition(step, no, step, (), {}), jnp.float32(0), **more)


def total(x):
    """Sum of each sequence's steps that count, times the one weight."""
    return jnp.where(x.mask, x.x.reward, 0).sum(0)


@loss("a", name="loss", unit=PAIRS)
def pair_loss(net, x):
    first, second = total(x).reshape(-1, 2).T
    value = net.a(jnp.zeros((), int)) * (first - second) ** 2
    return LossOutput(value, {"first": first})


@loss("a", name="loss", unit=ANSWERS)
def answer_loss(net, x):
    return net.a(jnp.zeros((), int)) * total(x)


def update_once(one, update=None, data=None, **more):
    """Return the step that the only weight took (its gradient) and the metrics."""
    parts = {"a": Part(Table([0.0]), (), STATIC.optimizer)}
    recipe = Recipe(parts, act, (one,), update, **more)
    agent = learner("tiny", Config(), recipe)
    state = agent.init(random.key(0), agent.hyper)
    data = batch(mask=jnp.asarray(MASK)) if data is None else data
    state, info = jax.jit(agent.update)(state, data, random.key(1))
    return -float(state.parts["a"].params["w"][0]) / 0.5, info.metrics


def sums():
    return np.where(MASK, NUMBER, 0).sum(0)


def differences():
    """Squared difference of each pair that counts."""
    first, second = sums().reshape(-1, 2).T
    return ((first - second) ** 2)[[0, 1, 3]]


def test_a_pair_counts_once_and_not_if_none_of_its_steps_does():
    step, metrics = update_once(pair_loss)
    np.testing.assert_allclose(step, differences().mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["first"], sums()[[0, 2, 6]].mean(), rtol=1e-5)


def test_answers_count_alike_whatever_their_length():
    step, _ = update_once(answer_loss)
    np.testing.assert_allclose(step, sums()[LENGTH > 0].mean(), rtol=1e-5)


def test_weights_are_those_of_pairs():
    weight = jnp.asarray([1.0, 0.0, 5.0, 2.0])
    update = lambda net, data: net.descend(pair_loss, data, weight=weight)
    step, _ = update_once(pair_loss, update)
    np.testing.assert_allclose(step, (differences() * [1, 0, 2]).mean(), rtol=1e-5)


def test_without_a_mask_all_pairs_count():
    whole = loss("a", name="loss", unit=PAIRS)(
        lambda net, x: net.a(0) * (x.x.reward.sum(0).reshape(-1, 2) @ jnp.array([1.0, -1.0])) ** 2
    )
    assert update_once(whole, data=batch())[0] == pytest.approx(
        ((NUMBER.sum(0).reshape(-1, 2) @ [1, -1]) ** 2).mean(), rel=1e-5
    )


@pytest.mark.parametrize("rows", [0, 2 * T])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_minibatches_and_chunks_keep_pairs_whole(minibatches, rows):
    """Steps add up to the mean where minibatches have equally many pairs that count."""
    passes = Passes(epochs=1, minibatches=minibatches, chunk_rows=rows)
    data = batch(mask=jnp.ones((T, B), bool))
    update = lambda net, data: net.epochs(
        passes, data, lambda net, some: net.descend(pair_loss, some), unit=PAIRS
    )
    step, _ = update_once(pair_loss, update, data)
    expected = (NUMBER.sum(0).reshape(-1, 2) @ [1, -1]) ** 2
    np.testing.assert_allclose(step, minibatches * expected.mean(), rtol=1e-5)


def test_chunks_with_a_mask_have_the_gradient_of_the_whole():
    passes = Passes(epochs=1, minibatches=1, chunk_rows=2 * T)
    update = lambda net, data: net.epochs(
        passes, data, lambda net, some: net.descend(pair_loss, some), unit=PAIRS
    )
    np.testing.assert_allclose(update_once(pair_loss, update)[0], differences().mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("one", "unit", "message"),
    [
        (
            pair_loss,
            ANSWERS,
            "'loss' is of groups of 2 sequences, and these minibatches are of seq",
        ),
        (pair_loss, Unit(), "these minibatches are of steps, which tear them apart"),
        (pair_loss, Unit(columns=2), "are of groups of 2 steps, which tear them apart"),
        (answer_loss, Unit(), "'loss' is of sequences, and these minibatches are of steps"),
    ],
)
def test_minibatches_that_tear_units_apart_are_refused(one, unit, message):
    step = lambda net, some: net.descend(one, some)
    update = lambda net, data: net.epochs(Passes(minibatches=2), data, step, unit=unit)
    with pytest.raises(UserError, match=message):
        update_once(one, update)


def test_larger_groups_keep_pairs_and_answers_whole():
    for one in (pair_loss, answer_loss):
        step = lambda net, some, one=one: net.descend(one, some)
        passes = Passes(epochs=1, minibatches=2, chunk_rows=0)
        update = lambda net, data, step=step, passes=passes: net.epochs(
            passes, data, step, unit=Unit(sequences=True, columns=4)
        )
        assert np.isfinite(update_once(one, update)[0])


def test_consecutive_minibatches_of_rows_have_no_sequences():
    update = lambda net, data: net.minibatches(
        3, data, lambda net, some: net.descend(pair_loss, some)
    )
    with pytest.raises(UserError, match="these minibatches are of steps"):
        update_once(pair_loss, update)


def test_shapes_that_do_not_fit_are_refused():
    wrong = loss("a", name="loss", unit=PAIRS)(lambda net, x: net.a(0) * total(x))
    with pytest.raises(UserError, match=r"gave values \[8\]; it must give \[4\]"):
        update_once(wrong)
    report = loss("a", name="loss", unit=PAIRS)(
        lambda net, x: LossOutput(total(x)[::2] * net.a(0), {"each": total(x)})
    )
    with pytest.raises(UserError, match=r"reports 'each' \[8\]; it must have one value for each"):
        update_once(report)
    thirds = loss("a", name="loss", unit=Unit(True, 3))(lambda net, x: net.a(0) * total(x)[::3])
    with pytest.raises(UserError, match="into which 8 columns do not divide"):
        update_once(thirds)


def test_a_metric_of_the_loss_s_own_name_is_refused():
    """A metric of that name would take the place of the loss, and be descended."""
    own = loss("a", name="loss", unit=PAIRS)(
        lambda net, x: LossOutput(total(x)[::2] * net.a(0), {"loss": total(x)[::2]})
    )
    with pytest.raises(UserError, match="'loss' has a metric or a term of its own name"):
        update_once(own)


def test_losses_of_different_units_cannot_be_added():
    with pytest.raises(UserError, match="of groups of 2 sequences and 'loss' one of sequences"):
        plus(pair_loss, answer_loss)
    both = plus(pair_loss, loss("a", name="other", unit=PAIRS)(pair_loss.function), 2.0)
    np.testing.assert_allclose(update_once(both)[0], 3 * differences().mean(), rtol=1e-5)
