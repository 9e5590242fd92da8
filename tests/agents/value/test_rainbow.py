"""DQN, Rainbow and what lies between them, against NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.agents.value import rainbow as module
from jaxrl.agents.value.n_step import n_step
from jaxrl.agents.value.rainbow import C51Config, Config, DQNConfig, c51, dqn, rainbow
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.networks.noisy import NoisyDense
from jaxrl.networks.q_network import QNetwork

N, B, GAMMA = 3, 64, 0.9
SMALL = {"num_envs": 4, "num_steps": 2, "updates": 2, "batch_size": 8, "capacity": 64}
SMALL |= {"hidden": (5, 4), "warmup": 16, "target_period": 3, "discount": GAMMA}


def window(key, legal=False):
    """A window [N, B] of CartPole-like experience in which episodes end in all places."""
    keys = jax.random.split(key, 9)
    observation = jax.random.normal(keys[0], (N + 1, B, 4))
    terminated = jax.random.bernoulli(keys[1], 0.3, (N, B))
    truncated = jax.random.bernoulli(keys[2], 0.3, (N, B)) & ~terminated
    mask = jax.random.bernoulli(keys[3], 0.6, (N, B, 2)).at[..., 0].set(True) if legal else None
    step = lambda observation, **more: TimeStep(
        observation,
        more.get("reward", jnp.zeros((N, B))),
        more.get("terminated", jnp.zeros((N, B), bool)),
        more.get("truncated", jnp.zeros((N, B), bool)),
        jnp.zeros((N, B), bool),
        legal_actions=mask,
    )
    after = step(
        jax.random.normal(keys[4], (N, B, 4)),  # not observation[1:]: the true successors
        reward=jax.random.normal(keys[5], (N, B)),
        terminated=terminated,
        truncated=truncated,
    )
    action = jax.random.randint(keys[6], (N, B), 0, 2)
    return Transition(step(observation[:-1]), action, after, (), {})


def test_n_step_transitions_are_those_of_a_loop():
    x = window(random.key(0))
    transition = jax.jit(n_step)(Batch(x, jnp.float32(0)), jnp.float32(GAMMA)).transitions
    discount = transition.extras["discount"]
    ends = set()
    for b in range(B):
        total, m = 0.0, 0
        while True:
            total += GAMMA**m * float(x.reward[m, b])
            m += 1
            if m == N or x.terminated[m - 1, b] or x.truncated[m - 1, b]:
                break
        ends.add((m, bool(x.terminated[m - 1, b]), bool(x.truncated[m - 1, b])))
        np.testing.assert_allclose(transition.reward[b], total, rtol=1e-5)
        np.testing.assert_allclose(discount[b], GAMMA**m, rtol=1e-6)
        assert transition.terminated[b] == x.terminated[m - 1, b]
        assert transition.truncated[b] == x.truncated[m - 1, b]
        np.testing.assert_array_equal(transition.next_observation[b], x.next_observation[m - 1, b])
        np.testing.assert_array_equal(transition.observation[b], x.observation[0, b])
        assert transition.action[b] == x.action[0, b]
    assert len(ends) == 7  # every length and every way to end


@functools.cache
def cartpole():
    return envs.make("cartpole")


def learner(**changes):
    """An agent without noise, and a state whose target is another network."""
    config = Config(**SMALL | {"noisy": False, "n_step": N, "hidden": (32, 32)} | changes)
    agent = module.agent(cartpole(), config)
    hyper = {**agent.hyper, "lowest_return": -3.0, "highest_return": 4.0}
    state, other = agent.init(random.key(1), hyper), agent.init(random.key(2), hyper)
    state = dataclasses.replace(state, target=other.params)
    network = QNetwork(
        cartpole().observation_space, 2, config.num_atoms, (), config.hidden, "relu", config.dueling
    )
    return (
        agent,
        state,
        lambda params, timestep: np.asarray(network.apply(params, timestep), np.float64),
    )


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def expected(state, outputs, x, double, atoms):
    """Loss and priority of each of B windows, in NumPy."""
    transition = n_step(Batch(x, jnp.float32(0)), jnp.float32(GAMMA)).transitions
    discount = transition.extras["discount"]
    following = transition.next_timestep
    now, target = outputs(state.params, transition.timestep), outputs(state.target, following)
    chooser = outputs(state.params, following) if double else target
    support = np.linspace(-3, 4, atoms)
    mean = (lambda y: softmax(y) @ support) if atoms > 1 else (lambda y: y[..., 0])
    losses, priorities = [], []
    for b in range(B):
        q = mean(chooser[b])
        if following.legal_actions is not None:
            q = np.where(following.legal_actions[b], q, -np.inf)
        best, gamma = q.argmax(), float(discount[b]) * (not following.terminated[b])
        reward, taken = float(transition.reward[b]), now[b, int(transition.action[b])]
        if atoms == 1:
            error = abs(taken[0] - reward - gamma * target[b, best, 0])
            losses.append(error**2 / 2 if error < 1 else error - 0.5)
            priorities.append(error)
            continue
        goal = np.zeros(atoms)  # Bellemare et al., 2017, algorithm 1
        for p, z in zip(softmax(target[b, best]), support, strict=True):
            place = (np.clip(reward + gamma * z, -3, 4) + 3) / 7 * (atoms - 1)
            low, high = int(np.floor(place)), int(np.ceil(place))
            goal[low] += p * (high - place) if high > low else p
            goal[high] += p * (place - low) if high > low else 0.0
        cross = -(goal * np.log(softmax(taken))).sum()
        losses.append(cross)
        kept = goal > 0
        priorities.append(cross + (goal[kept] * np.log(goal[kept])).sum())
    return np.asarray(losses), np.asarray(priorities)


@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize("atoms", [1, 7])
@pytest.mark.parametrize("double", [False, True])
def test_loss_and_priorities_are_those_of_the_papers(double, atoms, legal):
    agent, state, outputs = learner(double=double, num_atoms=atoms)
    x, weight = window(random.key(3), legal), jax.random.uniform(random.key(4), (B,))
    batch = Batch(x, frames=jnp.float32(64), weight=weight)
    after, info = jax.jit(agent.update)(state, batch, random.key(5))
    loss, priority = expected(state, outputs, x, double, atoms)
    np.testing.assert_allclose(info.feedback, priority, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(info.metrics["loss"], (loss * weight).mean(), rtol=1e-4)
    assert after.frames == 64 and after.updates == 1


def test_double_learning_and_the_mask_change_the_target():
    """What the test above tells apart."""
    x = window(random.key(3))
    _, state, outputs = learner(num_atoms=7)
    single, double = (expected(state, outputs, x, d, 7)[0] for d in (False, True))
    assert np.abs(single - double).max() > 0.01
    masked = expected(state, outputs, window(random.key(3), legal=True), True, 7)[0]
    assert np.abs(masked - double).max() > 0.01


def test_the_target_network_moves_every_few_updates():
    agent, state, _ = learner()
    batch = Batch(window(random.key(3)), frames=jnp.float32(0))
    update = jax.jit(agent.update)
    for step in range(1, 7):
        before = state
        state, _ = update(state, batch, random.key(step))
        same = lambda a, b: all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))
        assert not same(state.params, before.params)
        assert same(state.target, state.params if step % 3 == 0 else before.target)


def test_a_dueling_head_adds_a_value_to_advantages_of_mean_zero():
    space = cartpole().observation_space
    network = QNetwork(space, 3, 4, (), (5,), dueling=True)
    timestep = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (6, *x.shape[1:])), example_timestep(cartpole())
    )
    timestep = dataclasses.replace(timestep, observation=jax.random.normal(random.key(0), (6, 4)))
    params = network.init(random.key(1), timestep)
    layers = params["params"]
    stream = lambda a, b: (
        np.maximum(timestep.observation @ layers[a]["kernel"] + layers[a]["bias"], 0)
        @ layers[b]["kernel"]
        + layers[b]["bias"]
    )
    advantage = stream("Dense_0", "Dense_1").reshape(6, 3, 4)
    value = stream("Dense_2", "Dense_3").reshape(6, 1, 4)
    q = value + advantage - advantage.mean(1, keepdims=True)
    np.testing.assert_allclose(network.apply(params, timestep), q, atol=1e-5)


def test_noisy_layers_have_the_noise_of_the_paper():
    layer = NoisyDense(3)
    x = jax.random.normal(random.key(0), (5, 4))
    params = layer.init(random.key(1), x)
    p = {k: np.asarray(v, np.float64) for k, v in params["params"].items()}
    np.testing.assert_allclose(layer.apply(params, x), x @ p["weight"] + p["bias"], atol=1e-5)
    np.testing.assert_allclose(p["weight_scale"], 0.5 / 2)
    assert (np.abs(p["weight"]) <= 1 / 2).all()
    draw = jax.vmap(lambda key: layer.apply(params, x, rngs={"noise": key}))
    y = np.asarray(draw(jax.random.split(random.key(2), 40_000)), np.float64)
    # f(e) f(e') has variance (E |e|)^2 = 2 / pi, f(e') alone E |e| = sqrt(2 / pi).
    square = np.asarray(x, np.float64) ** 2
    variance = square @ p["weight_scale"] ** 2 * 2 / np.pi
    variance = variance + p["bias_scale"] ** 2 * np.sqrt(2 / np.pi)
    np.testing.assert_allclose(y.mean(0), x @ p["weight"] + p["bias"], atol=0.02)
    np.testing.assert_allclose(y.var(0), variance, rtol=0.06)


@pytest.mark.parametrize("config", [DQNConfig(**SMALL), Config(**SMALL)], ids=["dqn", "rainbow"])
def test_only_legal_actions_are_chosen(config):
    agent = module.agent(cartpole(), config)
    state = agent.init(random.key(0), agent.hyper)
    timestep = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (256, *x.shape[1:])), example_timestep(cartpole())
    )
    only = jax.random.randint(random.key(1), (256,), 0, 2)
    timestep = dataclasses.replace(timestep, legal_actions=jax.nn.one_hot(only, 2) > 0)
    for greedy in (False, True):
        action = agent.act(state, timestep, (), random.key(2), greedy)[0]
        np.testing.assert_array_equal(action, only)


def test_epsilon_falls_with_the_steps():
    agent = module.agent(cartpole(), DQNConfig(**SMALL, epsilon_steps=100.0, epsilon_end=0.2))
    state = agent.init(random.key(0), agent.hyper)
    timestep = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (4000, *x.shape[1:])), example_timestep(cartpole())
    )
    act = jax.jit(agent.act, static_argnums=4)
    greedy = act(state, timestep, (), random.key(1), True)[0]
    for frames, epsilon in ((0, 1.0), (50, 0.6), (100, 0.2), (1000, 0.2)):
        at = dataclasses.replace(state, frames=jnp.float32(frames))
        other = (act(at, timestep, (), random.key(1), False)[0] != greedy).mean()
        np.testing.assert_allclose(other, epsilon / 2, atol=0.03)


def test_priorities_flow_back_to_the_replay():
    """After a step, what was drawn has the priority that the update gave it."""
    algorithm = rainbow(cartpole(), Config(**SMALL))
    run = start(algorithm, random.key(0))
    before = run.state.source.sampler.mass
    run, row = jax.jit(train, static_argnums=(0, 2))(algorithm, run, 3)
    after = run.state.source.sampler.mass
    assert (np.asarray(before)[before > 0] == 1).all()
    judged = (after > 0) & (after != run.state.source.sampler.largest)
    assert 4 <= judged.sum() <= 3 * 2 * 8
    assert np.isfinite(row["priority"].value()) and row["episodes"].value() >= 0


def test_names_are_presets_of_one_agent():
    env = cartpole()
    assert dqn(env, DQNConfig(**SMALL)) is dqn(env, DQNConfig(**SMALL))
    assert "priorities.importance" in rainbow(env, Config(**SMALL)).hyper
    assert "priorities.importance" not in c51(env, C51Config(**SMALL)).hyper


@pytest.mark.parametrize(
    ("env", "changes", "sentence"),
    [
        ("pendulum", {}, "rainbow cannot act in Box.*; it needs Discrete actions"),
        ("cartpole", {"channels": (16,)}, "convolutions need images"),
        ("cartpole", {"hidden": ()}, r"hidden is \[\]; it must have at least one entry"),
        ("cartpole", {"n_step": 0}, "n_step is 0; it must be at least 1"),
        ("cartpole", {"updates": 0}, "updates is 0; it must be at least 1"),
        ("cartpole", {"highest_return": -10.0}, "the atoms lie between them"),
        ("cartpole", {"activation": "rleu"}, "did you mean 'relu'"),
        ("cartpole", {"capacity": 4}, "capacity is 4; .* needs at least"),
        ("cartpole", {"learning_rate": float("nan")}, "learning_rate is nan; it must be a number"),
    ],
)
def test_bad_settings_are_one_sentence(env, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        rainbow(envs.make(env), Config(**SMALL | changes))
