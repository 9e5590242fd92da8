"""Losses, masks, weights, chunks, order, target networks, optimizers, keys and errors."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, Values, path_of
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit import Loss, LossOutput, Net, Part, Recipe, group, hyper
from jaxrl.kit.descent import OwnDescent
from jaxrl.kit.groups import Optimizer, Passes, Target
from jaxrl.kit.learner import learner

SGD = Optimizer("sgd", learning_rate=0.5)


@group
class Config:
    optimizer: Optimizer = SGD
    other: Optimizer = SGD
    target: Target = Target(rate=0.25)
    passes: Passes = Passes(epochs=1, minibatches=1)
    scale: float = hyper(1.0)


class Table:
    """A vector of parameters as a network: f(x) = w[x]."""

    def __init__(self, values):
        self.values = jnp.asarray(values, jnp.float32)

    def init(self, key):
        return {"w": self.values}

    def apply(self, params, index):
        return params["w"][index]


def batch(reward, index=None, **more):
    """Transitions [n] (or [T, B]) whose observations are indices and whose rewards are given."""
    reward = jnp.asarray(reward, jnp.float32)
    index = jnp.zeros(reward.shape, int) if index is None else jnp.asarray(index)
    no = jnp.zeros(reward.shape, bool)
    step = TimeStep(index, reward, no, no, no)
    return Batch(Transition(step, index, step, (), {}), jnp.float32(7), **more)


def act(net, timestep, memory, key, greedy):
    return timestep.observation, memory, {}


def square(net, x):
    return 0.5 * net.hyper.scale * jnp.square(net.a(x.observation) - x.reward)


STATIC = Static(Config())
SQUARE = Loss(square, ("a",), "loss")


def make(config=None, parts=None, losses=None, **more):
    config = config or Config()
    parts = parts or {"a": Part(Table([0.0]), (), STATIC.optimizer)}
    # The settings are those of this config, whatever group of the default one a part was given.
    static = Static(config)
    own = {"optimizer": static.optimizer, "other": static.other}
    parts = {
        name: dataclasses.replace(part, optimizer=own.get(_path(part.optimizer), part.optimizer),
                                  target=part.target and static.target)
        for name, part in parts.items()
    }  # fmt: skip
    return learner("tiny", config, Recipe(parts, act, losses or (SQUARE,), **more))


def _path(group):
    return path_of(group) if isinstance(group, Static) else None


def update_once(agent, data, hyper=None, times=1):
    state = agent.init(random.key(0), {**agent.hyper, **(hyper or {})})
    for _ in range(times):
        state, info = jax.jit(agent.update)(state, data, random.key(1))
    return state, info


def weights(state, part="a"):
    return np.asarray(state.parts[part].params["w"])


def test_one_step_down_the_mean():
    state, info = update_once(make(), batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state), 0.5 * 2.0)  # 0 - 0.5 * mean(0 - reward)
    np.testing.assert_allclose(info.metrics["loss"], (1 + 9) / 4)
    np.testing.assert_allclose(info.metrics["a_grad_norm"], 2.0)
    np.testing.assert_allclose(info.metrics["a_norm"], 1.0)
    assert state.updates == 1 and state.env_steps == 7


def test_masked_elements_do_not_count_and_others_count_in_full():
    mask = jnp.asarray([True, True, False])
    state, info = update_once(make(), batch([1.0, 3.0, 99.0], mask=mask))
    np.testing.assert_allclose(weights(state), 0.5 * 2.0)
    np.testing.assert_allclose(info.metrics["loss"], (1 + 9) / 4)


def test_weights_weigh_the_loss_and_not_what_is_reported():
    report = lambda net, x: LossOutput(square(net, x), {"reward": x.reward})
    agent = make(losses=(Loss(report, ("a",), "loss"),))
    state, info = update_once(agent, batch([1.0, 3.0], weight=jnp.asarray([1.0, 0.0])))
    np.testing.assert_allclose(weights(state), 0.5 * 0.5)
    np.testing.assert_allclose(info.metrics["reward"], 2.0)


def test_mask_and_weight_together():
    data = batch([1.0, 3.0, 5.0], mask=jnp.asarray([True, True, False]),
                 weight=jnp.asarray([2.0, 1.0, 9.0]))  # fmt: skip
    state, _ = update_once(make(), data)
    np.testing.assert_allclose(weights(state), 0.5 * (2 * 1 + 3) / 2)


@pytest.mark.slow
def test_a_hyper_parameter_is_read_from_the_state():
    agent = make()
    values = jax.vmap(lambda s: agent.init(random.key(0), {**agent.hyper, "scale": s}))
    states = values(jnp.asarray([1.0, 2.0]))
    after, _ = jax.vmap(agent.update, in_axes=(0, None, None))(states, batch([1.0]), random.key(0))
    np.testing.assert_allclose(weights(after)[:, 0], [0.5, 1.0])


def test_the_copy_follows_at_its_rate_and_in_its_period():
    parts = {"a": Part(Table([0.0]), (), STATIC.optimizer, STATIC.target)}
    agent = make(Config(target=Target(rate=0.25, period=2)), parts)
    state, _ = update_once(agent, batch([1.0]))
    np.testing.assert_allclose(state.parts["a"].target["w"], 0.0)
    state, _ = update_once(agent, batch([1.0]), times=2)
    np.testing.assert_allclose(weights(state), 0.75)
    np.testing.assert_allclose(state.parts["a"].target["w"], 0.25 * 0.75)


def test_no_gradient_flows_into_a_copy_and_it_is_read_as_it_is():
    def bootstrap(net, x):
        target = x.reward + net.target.a(x.observation)
        return 0.5 * jnp.square(net.a(x.observation) - target)

    parts = {"a": Part(Table([2.0]), (), STATIC.optimizer, STATIC.target)}
    state, _ = update_once(
        make(parts=parts, losses=(Loss(bootstrap, ("a",), "loss"),)), batch([1.0])
    )
    np.testing.assert_allclose(weights(state), 2.5)


def test_losses_are_descended_in_order_each_seeing_the_last():
    second = lambda net, x: 0.5 * jnp.square(net.b(x.observation) - net.a(x.observation))
    parts = {
        "a": Part(Table([0.0]), (), STATIC.optimizer),
        "b": Part(Table([0.0]), (), STATIC.other),
    }
    losses = Loss(square, ("a",), "first"), Loss(second, ("b",), "second")
    state, _ = update_once(make(parts=parts, losses=losses), batch([1.0]))
    np.testing.assert_allclose(weights(state), 0.5)
    np.testing.assert_allclose(weights(state, "b"), 0.25)  # of the new a


def test_a_delayed_loss_leaves_its_parts_alone():
    def update(net, data):
        return net.descend(SQUARE, data, every=2)

    agent = make(update=update)
    state, info = update_once(agent, batch([1.0]))
    np.testing.assert_allclose(weights(state), 0.0)
    np.testing.assert_allclose(info.metrics["a_norm"], 0.0)  # of what was kept
    assert info.metrics["loss"].weight == 0  # nothing was computed
    state, info = update_once(agent, batch([1.0]), times=2)
    np.testing.assert_allclose(weights(state), 0.5)
    np.testing.assert_allclose(info.metrics["loss"].value(), 0.5)
    np.testing.assert_allclose(info.metrics["a_grad_norm"].value(), 1.0)


def test_members_that_are_not_due_are_left_alone_and_one_branch_serves_all():
    def update(net, data):
        return net.descend(SQUARE, data, every=2)

    agent = make(update=update)
    early = agent.init(random.key(0), agent.hyper)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), early)
    both = dataclasses.replace(both, updates=jnp.int32([0, 1]))
    step = jax.jit(jax.vmap(lambda state: agent.update(state, batch([1.0]), random.key(1))))
    program = step.lower(both).compile()
    assert " conditional(" in program.as_text()
    state, info = program(both)
    np.testing.assert_allclose(weights(state), [[0.0], [0.5]])
    np.testing.assert_array_equal(info.metrics["loss"].weight, [0.0, 1.0])


def test_a_delayed_loss_has_no_priority():
    judged = Loss(lambda net, x: LossOutput(square(net, x), priority=x.reward), ("a",), "loss")
    agent = make(losses=(judged,), update=lambda net, data: net.descend(judged, data, every=2))
    with pytest.raises(UserError, match="no priority in updates that leave it out"):
        update_once(agent, batch([1.0]))


def test_parts_of_one_optimizer_are_bounded_together_and_of_two_apart():
    both = lambda net, x: -3 * net.a(x.observation) - 4 * net.b(x.observation)
    short = dataclasses.replace(SGD, learning_rate=1.0, max_grad_norm=1.0)
    for path, expected in (("optimizer", (0.6, 0.8)), ("other", (1.0, 1.0))):
        second = STATIC.optimizer if path == "optimizer" else STATIC.other
        parts = {"a": Part(Table([0.0]), (), STATIC.optimizer), "b": Part(Table([0.0]), (), second)}
        agent = make(Config(short, short), parts, (Loss(both, ("a", "b"), "loss"),))
        state, info = update_once(agent, batch([0.0]))
        np.testing.assert_allclose([weights(state)[0], weights(state, "b")[0]], expected)
        if path == "other":
            np.testing.assert_allclose(info.metrics["a_grad_norm"], 3.0)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_a_flat_vector_is_descended_as_a_tree_is(name):
    def loss(net, x):
        return square(net, x) + jnp.square(net.a(x.observation + 1) - 2 * x.reward)

    after = []
    for flat in (False, True):
        settings = Optimizer(name, learning_rate=0.1, max_grad_norm=0.5, flat=flat)
        parts = {"a": Part(Table([0.0, 1.0]), (), STATIC.optimizer)}
        agent = make(Config(settings), parts, (Loss(loss, ("a",), "loss"),))
        after.append(weights(update_once(agent, batch([1.0, 2.0]), times=3)[0]))
    np.testing.assert_allclose(*after, rtol=1e-6)


def windows(steps, streams):
    rewards = np.arange(steps * streams, dtype=np.float32).reshape(steps, streams)
    return batch(rewards)


@pytest.mark.parametrize("flat", [False, True])
def test_passes_descend_every_row_of_every_epoch_once(flat):
    linear = Loss(lambda net, x: -x.reward * net.a(x.observation), ("a",), "loss")

    def update(net, data):
        step = lambda net, minibatch: net.descend(linear, minibatch)
        return net.epochs(Passes(epochs=2, minibatches=4), data, step)

    settings = dataclasses.replace(SGD, learning_rate=1.0, flat=flat)
    agent = make(Config(settings), losses=(linear,), update=update)
    state, _ = update_once(agent, windows(4, 4))
    # Each of 8 steps moves by the mean reward of its minibatch of 4; together 2 * sum / 4.
    np.testing.assert_allclose(weights(state), 2 * np.arange(16).sum() / 4)


def test_chunks_of_a_minibatch_have_the_gradient_of_the_whole():
    results = []
    for rows in (0, 4):
        passes = Passes(epochs=1, minibatches=1, chunk_rows=rows)
        update = lambda net, data, passes=passes: net.epochs(
            passes, data, lambda net, some: net.descend(SQUARE, some)
        )
        mask = jnp.asarray(np.arange(16).reshape(4, 4) % 3 > 0)
        data = dataclasses.replace(windows(4, 4), mask=mask)
        results.append(weights(update_once(make(update=update), data)[0]))
    np.testing.assert_allclose(*results, rtol=1e-6)


def drifting(net, x):
    return LossOutput(square(net, x), {"distance": x.reward}, drift=x.reward)


DRIFTING = Loss(drifting, ("a",), "loss")


@pytest.mark.parametrize(("limit", "stops"), [(-1.0, True), (100.0, False)])
def test_stopping_early_reads_the_drift_and_keeps_what_was_before(limit, stops):
    def update(net, data):
        step = lambda net, some: net.descend(DRIFTING, some)
        return net.epochs(Passes(early_stop=True), data, step, max_drift=jnp.float32(limit))

    state, info = update_once(make(losses=(DRIFTING,), update=update), windows(4, 4))
    assert (weights(state) == 0.0).all() == stops
    assert info.metrics["stopped_early"] == stops


def test_stopping_early_needs_a_loss_that_says_a_drift():
    step = lambda net, some: net.descend(SQUARE, some)
    update = lambda net, data: net.epochs(Passes(early_stop=True), data, step, max_drift=1.0)
    with pytest.raises(UserError, match="no loss of this update says a drift"):
        update_once(make(update=update), windows(4, 4))


@pytest.mark.slow
def test_keys_differ_by_name_by_loss_by_turn_and_by_update():
    found = []

    def noisy(net, x):
        found.append((net.key("a"), net.key("b"), net.key("a")))
        return square(net, x)

    losses = Loss(noisy, ("a",), "one"), Loss(noisy, ("a",), "two")
    agent = make(losses=losses)
    state = agent.init(random.key(0), agent.hyper)
    with jax.disable_jit():
        for key in (random.key(1), random.key(2)):
            agent.update(state, batch([1.0]), key)
    data = [tuple(np.asarray(jax.random.key_data(k)).tolist() for k in row) for row in found]
    assert all(row[0] == row[2] for row in data)  # the same name, the same key
    names = [str(k) for row in data for k in row[:2]]
    # A loss may be traced more than once; what is different is different.
    assert len(set(names)) == 2 * 2 * 2


def test_a_priority_is_fed_back_and_no_minibatch_has_one():
    judged = Loss(
        lambda net, x: LossOutput(square(net, x), priority=jnp.abs(x.reward)), ("a",), "loss"
    )
    _, info = update_once(make(losses=(judged,)), batch([1.0, -3.0]))
    np.testing.assert_allclose(info.feedback["priority"], [1.0, 3.0])
    np.testing.assert_allclose(info.metrics["priority"], 2.0)
    update = lambda net, data: net.epochs(
        Passes(), data, lambda net, some: net.descend(judged, some)
    )
    with pytest.raises(UserError, match="a minibatch has no replay index"):
        update_once(make(losses=(judged,), update=update), windows(4, 4))


def test_feedback_has_names():
    update = lambda net, data: net.feed(score=data.transitions.reward).feed(keep=jnp.bool_(True))
    _, info = update_once(make(update=update), batch([1.0, 3.0]))
    np.testing.assert_allclose(info.feedback["score"], [1.0, 3.0])
    assert info.feedback["keep"] and info.feedback.keys() == {"score", "keep"}


def test_auxiliary_outputs_are_there_after_the_descent():
    kept = Loss(lambda net, x: LossOutput(square(net, x), aux={"seen": x.reward}), ("a",), "loss")
    update = lambda net, data: (after := net.descend(kept, data)).report(
        seen=after.aux[kept]["seen"].sum()
    )
    agent = make(losses=(kept,), update=update)
    np.testing.assert_allclose(update_once(agent, batch([1.0, 3.0]))[1].metrics["seen"], 4.0)


def test_terms_that_are_no_mean_over_elements_add_to_the_loss():
    """d/dw of mean(0.5 (w - r)^2) + 0.1 w^2 + (sum of w over 2 elements) / 4, at 0, is -2 + 0.5."""

    def regularize(net, x):
        w = net.a(x.observation)
        terms = {"decay": 0.1 * jnp.square(w[0]), "own_count": m.Mean(w.sum(), jnp.float32(4.0))}
        return LossOutput(square(net, x), terms=terms)

    agent = make(losses=(Loss(regularize, ("a",), "loss"),))
    state, info = update_once(agent, batch([1.0, 3.0], mask=jnp.asarray([True, True])))
    np.testing.assert_allclose(weights(state), 0.5 * (2.0 - 0.5))
    np.testing.assert_allclose(info.metrics["loss"], (1 + 9) / 4)
    np.testing.assert_allclose(info.metrics["decay"], 0.0)


def test_a_loss_may_be_a_sum_with_a_count_of_its_own():
    counted = lambda net, x: m.Mean(square(net, x).sum(), jnp.float32(4.0))
    loss = Loss(lambda net, x: LossOutput(counted(net, x)), ("a",), "loss")
    state, info = update_once(make(losses=(loss,)), batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state), 0.5 * (1 + 3) / 4)
    np.testing.assert_allclose(info.metrics["loss"], (0.5 + 4.5) / 4)
    passes = Passes(epochs=1, minibatches=1, chunk_rows=4)
    update = lambda net, data: net.epochs(passes, data, lambda net, x: net.descend(loss, x))
    with pytest.raises(UserError, match="chunks of a minibatch would average wrongly"):
        update_once(make(losses=(loss,), update=update), windows(4, 4))


@pytest.mark.parametrize("rows", [0, 4])
def test_every_row_has_noise_of_its_own_in_chunks_too(rows):
    """The mean over rows of noise times a weight has the mean noise as its gradient; so many rows
    that four draws, repeated, would have twice its deviation."""
    noisy = lambda net, x: (
        net.a(0 * x.observation) * jax.random.normal(net.key("n"), x.reward.shape)
    )
    loss = Loss(noisy, ("a",), "loss")
    passes = Passes(epochs=1, minibatches=1, chunk_rows=rows)
    update = lambda net, data: net.epochs(passes, data, lambda net, x: net.descend(loss, x))
    state, _ = update_once(make(losses=(loss,), update=update), windows(64, 64))
    assert abs(float(weights(state)[0])) < 0.5 * 4 / 64  # 4 deviations; 4 draws: a quarter


def test_chunks_that_would_lose_what_a_loss_returns_are_refused():
    loss = Loss(lambda net, x: LossOutput(square(net, x), aux=x.reward), ("a",), "loss")
    passes = Passes(epochs=1, minibatches=1, chunk_rows=4)
    update = lambda net, data: net.epochs(passes, data, lambda net, x: net.descend(loss, x))
    with pytest.raises(UserError, match="has a priority, aux or a state, which the chunks"):
        update_once(make(losses=(loss,), update=update), windows(4, 4))


def test_a_gradient_step_sees_what_it_is_given_with_its_own_mask():
    """Two values for a batch of three: pairs, whose mask is theirs."""
    paired = Loss(lambda net, x: 0.5 * jnp.square(net.a(jnp.zeros(2, int)) - x), ("a",), "loss")
    update = lambda net, data: net.descend(
        paired, jnp.float32([4.0, 9.0]), mask=jnp.asarray([True, False])
    )
    state, _ = update_once(make(losses=(paired,), update=update), batch([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(weights(state), 0.5 * 4.0)


class Linear(nn.Module):
    @nn.compact
    def __call__(self, index):
        return nn.Dense(1, use_bias=False)(jnp.asarray(index, jnp.float32)[..., None])[..., 0]


def test_a_flax_module_with_an_optax_optimizer():
    parts = {"a": Part(Linear(), (jnp.zeros(1),), optax.sign_sgd(0.25))}
    agent = make(parts=parts)
    state = agent.init(random.key(0), agent.hyper)
    before = np.asarray(jax.tree.leaves(state.parts["a"].params)[0])
    after = agent.update(state, batch([5.0], [1]), random.key(0))[0]
    moved = np.asarray(jax.tree.leaves(after.parts["a"].params)[0]) - before
    np.testing.assert_allclose(moved, 0.25, rtol=1e-6)  # a step of size 0.25, whatever the error


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(0.1), optax.sgd(0.1, momentum=0.9), optax.adamw(optax.linear_schedule(0.1, 0, 9))],
)
def test_an_optax_optimizer_is_used_whole_and_descends(optimizer):
    """Against optax by hand, with its own sign, step size and schedule."""
    agent = make(parts={"a": Part(Table([0.0]), (), optimizer)})
    state, info = update_once(agent, batch([1.0, 3.0]), times=4)
    w, held = jnp.zeros(1), optimizer.init(jnp.zeros(1))
    for _ in range(4):
        updates, held = optimizer.update(w - 2.0, held, w)
        w = optax.apply_updates(w, updates)
    np.testing.assert_allclose(weights(state), w, rtol=1e-5)
    assert 0 < weights(state)[0] < 2 and info.metrics["loss"] < (1 + 9) / 4  # it goes down


@pytest.mark.parametrize("optimizer", [optax.scale_by_adam(), optax.identity(), optax.trace(0.9)])
def test_an_optax_optimizer_that_would_climb_is_refused(optimizer):
    with pytest.raises(UserError, match=r"The optimizer of 'a' climbs.*optax.scale"):
        make(parts={"a": Part(Table([0.0]), (), optimizer)})
    ended = optax.chain(optimizer, optax.scale(-0.1))
    update_once(make(parts={"a": Part(Table([0.0]), (), ended)}), batch([1.0]))


def test_members_of_an_ensemble_have_inputs_of_their_own():
    class Scale:
        init = staticmethod(lambda key, x: {"w": jnp.float32(2.0)})
        apply = staticmethod(lambda params, x: params["w"] * x)

    inputs = jnp.arange(6.0).reshape(3, 2)
    shared = Part(Scale, (jnp.zeros(2),), members=3)
    params = shared.init(random.key(0))
    assert shared.apply(params, inputs).shape == (3, 3, 2)
    own = dataclasses.replace(shared, own_inputs=True)
    np.testing.assert_allclose(own.apply(params, inputs), 2 * inputs)


def test_a_part_begins_as_a_copy_of_another():
    parts = {
        "a": Part(Linear(), (jnp.zeros(1),), STATIC.optimizer),
        "b": Part(Linear(), (jnp.zeros(1),), None, begins_as="a"),
    }
    agent = make(parts=parts)
    state = agent.init(random.key(0), agent.hyper)
    first, second = (jax.tree.leaves(state.parts[n].params)[0] for n in "ab")
    np.testing.assert_array_equal(first, second)
    after, _ = update_once(agent, batch([5.0], [1]))
    np.testing.assert_array_equal(jax.tree.leaves(after.parts["b"].params)[0], second)
    assert (jax.tree.leaves(after.parts["a"].params)[0] != first).any()


def test_one_part_more_changes_no_other_weights():
    alone = make(parts={"a": Part(Linear(), (jnp.zeros(1),), STATIC.optimizer)})
    more = {
        "z": Part(Linear(), (jnp.zeros(1),), STATIC.optimizer),
        "a": Part(Linear(), (jnp.zeros(1),), STATIC.optimizer),
    }
    a, b = (x.init(random.key(0), x.hyper).parts["a"].params for x in (alone, make(parts=more)))
    np.testing.assert_array_equal(jax.tree.leaves(a)[0], jax.tree.leaves(b)[0])


OTHER = Loss(square, ("a",), "los")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"losses": (Loss(lambda net, x: square(net, x).mean(), ("a",), "loss"),)},
         r"The loss 'loss' gave values \[\]; it must give one for each element"),
        ({"losses": (Loss(square, ("b",), "loss"),)}, "Unknown part of the loss 'loss' 'b'"),
        ({"parts": {"a": Part(Table([0.0]), (), None)}}, "Unknown part of the loss 'loss' 'a'"),
        ({"parts": {"a": Part(Table([0.0]), (), "adam")}}, "must be an optax optimizer or a group"),
        ({"parts": {"hyper": Part(Table([0.0]), ())}}, "'hyper' is reserved"),
        ({"parts": {"descend": Part(Table([0.0]), ())}}, "'descend' is reserved"),
        ({"losses": (SQUARE, Loss(square, ("a",), "loss"))}, "Two losses of 'tiny' are called"),
        ({"update": lambda net, data: net.descend(OTHER, data)}, "Unknown loss 'los'"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        update_once(make(**change), batch([1.0]))


def test_values_of_another_shape_than_the_mask_are_refused():
    wrong = lambda net, x: square(net, x)[:1]
    agent = make(losses=(Loss(wrong, ("a",), "loss"),))
    with pytest.raises(UserError, match=r"gave values \[1\]; it must give \[2\]"):
        update_once(agent, batch([1.0, 2.0], mask=jnp.ones(2, bool)))


def test_parts_and_copies_that_are_not_there():
    agent = make()
    net_of = {}

    def update(net, data):
        net_of["net"] = net
        return net

    update_once(make(update=update), batch([1.0]))
    with pytest.raises(AttributeError, match="Unknown part 'critc'"):
        _ = net_of["net"].critc
    with pytest.raises(AttributeError, match="Unknown target network 'a'"):
        _ = net_of["net"].target.a
    assert isinstance(net_of["net"], Net) and agent.name == "tiny"


@pytest.mark.parametrize(
    ("schedule", "halfway", "end"),
    [("linear", 0.6, 0.2), ("cosine", 0.6, 0.2), ("exponential", 0.2**0.5, 0.2)],
)
def test_the_step_size_follows_its_schedule(schedule, halfway, end):
    settings = Optimizer(learning_rate_end=0.2, schedule=schedule)
    descent = OwnDescent(settings, "actor")
    start = {"actor.learning_rate": 1.0, "actor.learning_rate_end": 0.2}
    hyper = Values(
        {k: jnp.float32(v) for k, v in start.items()} | {"actor.learning_rate_steps": 100.0}
    )
    at = [descent.learning_rate(hyper, jnp.float32(n)) for n in (0, 50, 100, 1e6)]
    np.testing.assert_allclose(at, [1.0, halfway, end, end], rtol=1e-5)


class Stateful:
    """f(x) = (w + mean) x, and the running mean of what it saw when it was trained."""

    def init(self, key):
        return {"params": {"w": jnp.float32([1.0])}, "batch_stats": {"mean": jnp.float32([2.0])}}

    def apply(self, variables, x, train=False):
        w, mean = variables["params"]["w"], variables["batch_stats"]["mean"]
        y = (w + mean) * x
        return (y, {"batch_stats": {"mean": 0.5 * (mean + x.mean())}}) if train else y


def test_state_of_a_part_moves_with_it_and_is_no_parameter():
    def loss(net, x):
        y, state = net.a(x.reward, train=True)
        return LossOutput(0.5 * y, state={"a": state})

    stateful = Loss(loss, ("a",), "loss")
    agent = make(
        Config(dataclasses.replace(SGD, weight_decay=0.1)),
        {"a": Part(Stateful(), (), STATIC.optimizer)},
        (stateful,),
        update=lambda net, data: net.descend(stateful, data, every=2),
    )
    before = update_once(agent, batch([4.0, 8.0]))[0].parts["a"].params
    state, info = update_once(agent, batch([4.0, 8.0]), times=2)
    after = state.parts["a"].params
    np.testing.assert_allclose(info.metrics["a_grad_norm"].value(), 0.5 * 6.0)  # of `w` alone
    np.testing.assert_allclose(before["batch_stats"]["mean"], 2.0)
    np.testing.assert_allclose(after["batch_stats"]["mean"], 0.5 * (2.0 + 6.0))
    np.testing.assert_allclose(after["params"]["w"], 1.0 - 0.5 * (0.5 * 6.0 + 0.1), rtol=1e-6)
    # Nor does a loss that tells no state, and a decay of weights, move it.
    silent = (Loss(lambda net, x: 0.5 * net.a(x.reward), ("a",), "loss"),)
    config = Config(dataclasses.replace(SGD, weight_decay=0.1))
    kept = update_once(
        make(config, {"a": Part(Stateful(), (), STATIC.optimizer)}, silent), batch([4.0])
    )[0]
    np.testing.assert_array_equal(kept.parts["a"].params["batch_stats"]["mean"], 2.0)
