"""What the learner does with losses: means, masks, weights, chunks, order, copies, keys, errors."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit import Loss, Net, Part, Recipe, group, hyper
from jaxrl.kit.descent import Descent
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


def made(config=None, parts=None, losses=None, **more):
    parts = parts or {"a": Part(Table([0.0]), ())}
    losses = losses or {"loss": Loss(square, ("a",))}
    return learner("tiny", config or Config(), Recipe(parts, act, losses, **more))


def updated(agent, data, hyper=None, times=1):
    state = agent.init(random.key(0), {**agent.hyper, **(hyper or {})})
    for _ in range(times):
        state, info = jax.jit(agent.update)(state, data, random.key(1))
    return state, info


def weights(state, part="a"):
    return np.asarray(state.parts[part].params["w"])


def test_one_step_down_the_mean():
    state, info = updated(made(), batch([1.0, 3.0]))
    np.testing.assert_allclose(weights(state), 0.5 * 2.0)  # 0 - 0.5 * mean(0 - reward)
    np.testing.assert_allclose(info.metrics["loss"], (1 + 9) / 4)
    np.testing.assert_allclose(info.metrics["a_grad_norm"], 2.0)
    np.testing.assert_allclose(info.metrics["a_norm"], 1.0)
    assert state.updates == 1 and state.env_steps == 7


def test_masked_elements_do_not_count_and_others_count_in_full():
    mask = jnp.asarray([True, True, False])
    state, info = updated(made(), batch([1.0, 3.0, 99.0], mask=mask))
    np.testing.assert_allclose(weights(state), 0.5 * 2.0)
    np.testing.assert_allclose(info.metrics["loss"], (1 + 9) / 4)


def test_weights_weigh_the_loss_and_not_what_is_reported():
    report = lambda net, x: (square(net, x), {"reward": x.reward})
    agent = made(losses={"loss": Loss(report, ("a",))})
    state, info = updated(agent, batch([1.0, 3.0], weight=jnp.asarray([1.0, 0.0])))
    np.testing.assert_allclose(weights(state), 0.5 * 0.5)
    np.testing.assert_allclose(info.metrics["reward"], 2.0)


def test_mask_and_weight_together():
    data = batch([1.0, 3.0, 5.0], mask=jnp.asarray([True, True, False]),
                 weight=jnp.asarray([2.0, 1.0, 9.0]))  # fmt: skip
    state, _ = updated(made(), data)
    np.testing.assert_allclose(weights(state), 0.5 * (2 * 1 + 3) / 2)


@pytest.mark.slow
def test_a_hyper_parameter_is_read_from_the_state():
    agent = made()
    values = jax.vmap(lambda s: agent.init(random.key(0), {**agent.hyper, "scale": s}))
    states = values(jnp.asarray([1.0, 2.0]))
    after, _ = jax.vmap(agent.update, in_axes=(0, None, None))(states, batch([1.0]), random.key(0))
    np.testing.assert_allclose(weights(after)[:, 0], [0.5, 1.0])


def test_the_copy_follows_at_its_rate_and_in_its_period():
    parts = {"a": Part(Table([0.0]), (), config.optimizer, config.target)}
    agent = made(Config(target=Target(rate=0.25, period=2)), parts)
    state, _ = updated(agent, batch([1.0]))
    np.testing.assert_allclose(state.parts["a"].target["w"], 0.0)
    state, _ = updated(agent, batch([1.0]), times=2)
    np.testing.assert_allclose(weights(state), 0.75)
    np.testing.assert_allclose(state.parts["a"].target["w"], 0.25 * 0.75)


def test_no_gradient_flows_into_a_copy_and_it_is_read_as_it_is():
    def bootstrapped(net, x):
        target = x.reward + net.target.a(x.observation)
        return 0.5 * jnp.square(net.a(x.observation) - target)

    parts = {"a": Part(Table([2.0]), (), config.optimizer, config.target)}
    state, _ = updated(made(parts=parts, losses={"loss": Loss(bootstrapped, ("a",))}), batch([1.0]))
    np.testing.assert_allclose(weights(state), 2.5)


def test_losses_are_descended_in_order_each_seeing_the_last():
    second = lambda net, x: 0.5 * jnp.square(net.b(x.observation) - net.a(x.observation))
    parts = {"a": Part(Table([0.0]), ()), "b": Part(Table([0.0]), (), config.other)}
    losses = {"first": Loss(square, ("a",)), "second": Loss(second, ("b",))}
    state, _ = updated(made(parts=parts, losses=losses), batch([1.0]))
    np.testing.assert_allclose(weights(state), 0.5)
    np.testing.assert_allclose(weights(state, "b"), 0.25)  # of the new a


def test_a_delayed_loss_leaves_its_parts_alone():
    def update(net, data):
        return net.descend("loss", data, every=2)

    agent = made(update=update)
    state, info = updated(agent, batch([1.0]))
    np.testing.assert_allclose(weights(state), 0.0)
    np.testing.assert_allclose(info.metrics["a_norm"], 0.0)  # of what was kept
    assert info.metrics["loss"].weight == 0  # nothing was computed
    state, info = updated(agent, batch([1.0]), times=2)
    np.testing.assert_allclose(weights(state), 0.5)
    np.testing.assert_allclose(info.metrics["loss"].value(), 0.5)
    np.testing.assert_allclose(info.metrics["a_grad_norm"].value(), 1.0)


def test_members_that_are_not_due_are_left_alone_and_one_branch_serves_all():
    def update(net, data):
        return net.descend("loss", data, every=2)

    agent = made(update=update)
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
    loss = lambda net, x: (square(net, x), {"priority": x.reward})
    agent = made(
        losses={"loss": Loss(loss, ("a",))},
        update=lambda net, data: net.descend("loss", data, every=2),
    )
    with pytest.raises(UserError, match="no priority in updates that leave it out"):
        updated(agent, batch([1.0]))


def test_parts_of_one_optimizer_are_bounded_together_and_of_two_apart():
    both = lambda net, x: -3 * net.a(x.observation) - 4 * net.b(x.observation)
    short = dataclasses.replace(SGD, learning_rate=1.0, max_grad_norm=1.0)
    for path, expected in (("optimizer", (0.6, 0.8)), ("other", (1.0, 1.0))):
        parts = {"a": Part(Table([0.0]), ()), "b": Part(Table([0.0]), (), path)}
        agent = made(Config(short, short), parts, {"loss": Loss(both, ("a", "b"))})
        state, info = updated(agent, batch([0.0]))
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
        parts = {"a": Part(Table([0.0, 1.0]), ())}
        agent = made(Config(settings), parts, {"loss": Loss(loss, ("a",))})
        after.append(weights(updated(agent, batch([1.0, 2.0]), times=3)[0]))
    np.testing.assert_allclose(*after, rtol=1e-6)


def windows(steps, streams):
    rewards = np.arange(steps * streams, dtype=np.float32).reshape(steps, streams)
    return batch(rewards)


@pytest.mark.parametrize("flat", [False, True])
def test_passes_descend_every_row_of_every_epoch_once(flat):
    def update(net, data):
        seen = lambda net, data: net.descend("loss", data)
        return net.epochs(Passes(epochs=2, minibatches=4), data, seen)

    linear = lambda net, x: -x.reward * net.a(x.observation)
    settings = dataclasses.replace(SGD, learning_rate=1.0, flat=flat)
    agent = made(Config(settings), losses={"loss": Loss(linear, ("a",))}, update=update)
    state, _ = updated(agent, windows(4, 4))
    # Each of 8 steps moves by the mean reward of its minibatch of 4; together 2 * sum / 4.
    np.testing.assert_allclose(weights(state), 2 * np.arange(16).sum() / 4)


def test_chunks_of_a_minibatch_have_the_gradient_of_the_whole():
    results = []
    for rows in (0, 4):
        passes = Passes(epochs=1, minibatches=1, chunk_rows=rows)
        update = lambda net, data, passes=passes: net.epochs(
            passes, data, lambda net, some: net.descend("loss", some)
        )
        mask = jnp.asarray(np.arange(16).reshape(4, 4) % 3 > 0)
        data = dataclasses.replace(windows(4, 4), mask=mask)
        results.append(weights(updated(made(update=update), data)[0]))
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_stopping_early_keeps_what_was_before():
    def update(net, data):
        stop = lambda net: net.metrics["loss"] < 1e9  # always
        return net.epochs(
            Passes(early_stop=True), data, lambda net, some: net.descend("loss", some), stop
        )

    state, info = updated(made(update=update), windows(4, 4))
    np.testing.assert_allclose(weights(state), 0.0)
    assert info.metrics["stopped_early"] == 1


@pytest.mark.slow
def test_keys_differ_by_name_by_loss_by_turn_and_by_update():
    found = []

    def noisy(net, x):
        found.append((net.key("a"), net.key("b"), net.key("a")))
        return square(net, x)

    losses = {"one": Loss(noisy, ("a",)), "two": Loss(noisy, ("a",))}
    agent = made(losses=losses)
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
    judged = lambda net, x: (square(net, x), {"priority": jnp.abs(x.reward)})
    losses = {"loss": Loss(judged, ("a",))}
    _, info = updated(made(losses=losses), batch([1.0, -3.0]))
    np.testing.assert_allclose(info.feedback, [1.0, 3.0])
    np.testing.assert_allclose(info.metrics["priority"], 2.0)
    update = lambda net, data: net.epochs(
        Passes(), data, lambda net, some: net.descend("loss", some)
    )
    with pytest.raises(UserError, match="has no place in a source"):
        updated(made(losses=losses, update=update), windows(4, 4))


def test_what_a_loss_keeps_aside_is_there_after_the_descent():
    loss = lambda net, x: (square(net, x), {}, {"seen": x.reward})
    update = lambda net, data: (after := net.descend("loss", data)).report(
        seen=after.aside["loss"]["seen"].sum()
    )
    agent = made(losses={"loss": Loss(loss, ("a",))}, update=update)
    np.testing.assert_allclose(updated(agent, batch([1.0, 3.0]))[1].metrics["seen"], 4.0)


class Linear(nn.Module):
    @nn.compact
    def __call__(self, index):
        return nn.Dense(1, use_bias=False)(jnp.asarray(index, jnp.float32)[..., None])[..., 0]


def test_a_flax_module_and_an_optax_transformation_of_ones_own():
    parts = {"a": Part(Linear(), (jnp.zeros(1),), transform=optax.scale_by_sign())}
    agent = made(parts=parts)
    state = agent.init(random.key(0), agent.hyper)
    before = np.asarray(jax.tree.leaves(state.parts["a"].params)[0])
    after = agent.update(state, batch([5.0], [1]), random.key(0))[0]
    moved = np.asarray(jax.tree.leaves(after.parts["a"].params)[0]) - before
    np.testing.assert_allclose(moved, 0.5, rtol=1e-6)  # a step of size 0.5, whatever the error


def test_one_part_more_changes_no_other_weights():
    alone = made(parts={"a": Part(Linear(), (jnp.zeros(1),))})
    more = {"z": Part(Linear(), (jnp.zeros(1),)), "a": Part(Linear(), (jnp.zeros(1),))}
    a, b = (x.init(random.key(0), x.hyper).parts["a"].params for x in (alone, made(parts=more)))
    np.testing.assert_array_equal(jax.tree.leaves(a)[0], jax.tree.leaves(b)[0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"losses": {"loss": Loss(lambda net, x: square(net, x).mean(), ("a",))}},
         r"The loss 'loss' gave values \[\]; it must give one for each element"),
        ({"losses": {"loss": Loss(square, ("b",))}}, "Unknown part of the loss 'loss' 'b'"),
        ({"parts": {"a": Part(Table([0.0]), (), config.optimzer)}}, "Unknown setting of Config"),
        ({"parts": {"a": Part(Table([0.0]), (), "")}}, "Unknown part of the loss 'loss' 'a'"),
        ({"parts": {"hyper": Part(Table([0.0]), ())}}, "cannot be called 'hyper'"),
        ({"update": lambda net, data: net.descend("los", data)}, "Unknown loss 'los'"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        updated(made(**change), batch([1.0]))


def test_values_of_another_shape_than_the_mask_are_refused():
    wrong = lambda net, x: square(net, x)[:1]
    agent = made(losses={"loss": Loss(wrong, ("a",))})
    with pytest.raises(UserError, match=r"gave values \[1\]; it must give \[2\]"):
        updated(agent, batch([1.0, 2.0], mask=jnp.ones(2, bool)))


def test_parts_and_copies_that_are_not_there():
    agent = made()
    net_of = {}

    def update(net, data):
        net_of["net"] = net
        return net

    updated(made(update=update), batch([1.0]))
    with pytest.raises(AttributeError, match="Unknown part 'critc'"):
        _ = net_of["net"].critc
    with pytest.raises(AttributeError, match="Unknown copy of a part 'a'"):
        _ = net_of["net"].target.a
    assert isinstance(net_of["net"], Net) and agent.name == "tiny"


@pytest.mark.parametrize(
    ("schedule", "halfway", "end"),
    [("linear", 0.6, 0.2), ("cosine", 0.6, 0.2), ("exponential", 0.2**0.5, 0.2)],
)
def test_the_step_size_follows_its_schedule(schedule, halfway, end):
    settings = Optimizer(learning_rate_end=0.2, schedule=schedule)
    descent = Descent.of(settings, "actor")
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
        return 0.5 * y, {}, None, {"a": state}

    agent = made(
        Config(dataclasses.replace(SGD, weight_decay=0.1)),
        {"a": Part(Stateful(), ())},
        {"loss": Loss(loss, ("a",))},
        update=lambda net, data: net.descend("loss", data, every=2),
    )
    before = updated(agent, batch([4.0, 8.0]))[0].parts["a"].params
    state, info = updated(agent, batch([4.0, 8.0]), times=2)
    after = state.parts["a"].params
    np.testing.assert_allclose(info.metrics["a_grad_norm"].value(), 0.5 * 6.0)  # of `w` alone
    np.testing.assert_allclose(before["batch_stats"]["mean"], 2.0)
    np.testing.assert_allclose(after["batch_stats"]["mean"], 0.5 * (2.0 + 6.0))
    np.testing.assert_allclose(after["params"]["w"], 1.0 - 0.5 * (0.5 * 6.0 + 0.1), rtol=1e-6)
    # Nor does a loss that tells no state, and a decay of weights, move it.
    silent = {"loss": Loss(lambda net, x: 0.5 * net.a(x.reward), ("a",))}
    config = Config(dataclasses.replace(SGD, weight_decay=0.1))
    kept = updated(made(config, {"a": Part(Stateful(), ())}, silent), batch([4.0]))[0]
    np.testing.assert_array_equal(kept.parts["a"].params["batch_stats"]["mean"], 2.0)
