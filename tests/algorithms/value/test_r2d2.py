"""R2D2's loss against a loop in NumPy, and exploration in its environments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.r2d2 import Sequences, epsilons, r2d2
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep, Transition
from tests.kit.stub import stub

BURN_IN, UNROLL, B, STEPS = 3, 7, 5, 3
HYPER = {"discount": 0.9, "max_weight": 0.8}
RNG = np.random.default_rng(5)


def window():
    """Draw steps whose observations are numbers, some of which end an episode."""
    shape = (BURN_IN + UNROLL, B)
    number = lambda: RNG.normal(size=shape).astype(np.float32)
    terminated, truncated = RNG.random((2, *shape)) < 0.2
    truncated &= ~terminated
    done = terminated | truncated
    first = np.concatenate([RNG.random((1, B)) < 0.5, done[:-1]])
    no = np.zeros(shape, bool)
    before = TimeStep(number(), number(), no, no, first)
    legal = np.stack([RNG.random(shape) < 0.7, np.ones(shape, bool)], -1)
    after = TimeStep(number(), number(), terminated, truncated, no, legal)
    return Transition(before, RNG.integers(0, 2, shape), after, (), {})


def network(weight):
    """Make a network whose memory is a number, m' = tanh(w (m + observation + reward + last
    action)), which is also the first action's value; the second's is -m'."""

    def step(timestep, last_action, memory):
        seen = timestep.observation + timestep.reward + last_action
        return jnp.tanh(weight * (memory + seen))

    def q(timestep, last_action, memory, unroll=False):
        if not unroll:
            memory = step(timestep, last_action, memory)
        else:
            rows = []
            for t in range(len(last_action)):
                reset = jnp.where(timestep.first[t], 0.0, memory)
                memory = step(jax.tree.map(lambda x: x[t], timestep), last_action[t], reset)  # noqa: B023
                rows.append(memory)
            memory = jnp.stack(rows)
        return jnp.stack([memory, -memory], -1)[..., None], memory

    return q


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def inverse(x):
    root = np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3))
    return np.sign(x) * (((root - 1) / 2e-3) ** 2 - 1)


def predictions_and_targets(x, b, weight, target_weight, burn_in):
    """Return predictions and targets of one sequence's steps after the burn-in."""
    column = lambda a: np.asarray(a)[:, b].astype(np.float64)
    s, n, action = x.window.timestep, x.window.next_timestep, x.window.action[:, b]
    seen, following = (
        column(s.observation) + column(s.reward),
        column(n.observation) + column(n.reward),
    )
    m = {w: float(x.memory[0][b]) for w in (weight, target_weight)}
    last, predicted, values = int(x.memory[1][b]), [], []
    for t in range(BURN_IN + UNROLL):
        if s.first[t, b]:
            m, last = dict.fromkeys(m, 0.0), -1
        m = {w: np.tanh(w * (m[w] + seen[t] + last)) for w in m}
        predicted.append((m[weight], -m[weight])[action[t]])
        last = int(action[t])
        after = {w: np.tanh(w * (m[w] + following[t] + last)) for w in m}
        # The online network chooses; the second action is always legal.
        up = after[weight] >= 0 and n.legal_actions[t, b, 0]
        values.append(inverse(after[target_weight] if up else -after[target_weight]))
    targets = []
    for t in range(burn_in, BURN_IN + UNROLL):
        total, discount = 0.0, 1.0
        for k in range(t, min(t + STEPS, BURN_IN + UNROLL)):
            total += discount * float(n.reward[k, b])
            discount *= HYPER["discount"]
            if n.terminated[k, b] or n.truncated[k, b]:
                break
        targets.append(h(total + (0 if n.terminated[k, b] else discount * values[k])))
    return np.array(predicted[burn_in:]), np.array(targets)


def loss_of(x, weight, target_weight, burn_in=BURN_IN):
    config = replace(
        r2d2.Config(), {"burn_in": burn_in, "unroll": UNROLL, "n_step": STEPS, "recurrent": 1}
    )
    (q_loss,) = r2d2.recipe(envs.make("t_maze"), Static(config)).losses
    net = stub(q=network(weight), target={"q": network(target_weight)}, hyper=HYPER)
    return q_loss(net, x)


@pytest.mark.slow
@pytest.mark.parametrize("burn_in", [BURN_IN, 0])
def test_the_loss_is_that_of_a_loop(burn_in):
    memory = RNG.normal(size=B).astype(np.float32), RNG.integers(-1, 2, B).astype(np.int32)
    x = Sequences(window(), memory)
    output = loss_of(x, 0.7, -0.4, burn_in)
    for b in range(B):
        predicted, target = predictions_and_targets(x, b, 0.7, -0.4, burn_in)
        error = np.abs(predicted - target)
        np.testing.assert_allclose(output.value[b], (error**2).sum() / 2, rtol=1e-4)
        priority = 0.8 * error.max() + 0.2 * error.mean()
        np.testing.assert_allclose(output.priority[b], priority, rtol=1e-4)
    late = jax.tree.map(lambda a: a[burn_in:], x.window)
    assert late.first.any() and late.terminated.any() and late.truncated.any()


@pytest.mark.slow
def test_no_gradient_flows_into_the_burn_in():
    x = window()
    unbroken = dataclasses.replace(
        x, timestep=dataclasses.replace(x.timestep, first=x.first & False)
    )

    def total(observation, target_weight):
        timestep = dataclasses.replace(unbroken.timestep, observation=observation)
        memory = jnp.zeros(B), jnp.full(B, -1)
        x = Sequences(dataclasses.replace(unbroken, timestep=timestep), memory)
        return loss_of(x, 0.7, target_weight).value.sum()

    gradient = jax.grad(total)(unbroken.timestep.observation, 0.4)
    assert (gradient[:BURN_IN] == 0).all() and (gradient[BURN_IN:] != 0).all()


def test_environments_explore_as_in_ape_x():
    net = stub(hyper={"epsilon": 0.4, "epsilon_spread": 7.0})
    np.testing.assert_allclose(epsilons(net, 8), 0.4 ** np.linspace(1, 8, 8), rtol=1e-5)
    np.testing.assert_allclose(epsilons(net, 1), [0.4], rtol=1e-6)
