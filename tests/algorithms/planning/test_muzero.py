"""MuZero: targets along episodes' ends, signs between two players, the update written out again."""

from __future__ import annotations

import dataclasses
import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.planning import muzero as muzero_file
from jaxrl.algorithms.planning.muzero import Config, muzero
from jaxrl.algorithms.planning.shared.search import search
from jaxrl.algorithms.planning.shared.unrolled import targets
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import start_source
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.networks.world_models import ValueEquivalentModel, rescale
from jaxrl.sources import replay, rollouts

K, N, BATCH = 3, 4, 6
SIZES = {"num_envs": 4, "batch_size": BATCH, "capacity": 400, "warmup": 64, "simulations": 0}
SIZES |= {"unroll": K, "n_step": N, "width": 6, "hidden": (5,), "num_atoms": 11, "support": 5.0}
SMALL = replace(Config(), SIZES | {"target.rate": 0.3})


def window(reward, terminated, truncated, role=None) -> Transition:
    """Transitions [T, B] with nothing but what targets depend on."""
    no = np.zeros(terminated.shape, bool)
    step = lambda **x: TimeStep(no, np.zeros_like(reward), no, no, no, role=role)
    following = dataclasses.replace(
        step(), reward=reward, terminated=terminated, truncated=truncated
    )
    return Transition(step(), no, following, no, {})


def by_hand(reward, terminated, truncated, policy, next_value, discount):
    """The targets of one sequence, step by step as the paper's appendix tells them."""
    rows, end = [], None  # end: number of the step after which the episode was over, and how
    for k in range(K + 1):
        if end is None and k > 0 and (terminated[k - 1] or truncated[k - 1]):
            end = (k, bool(terminated[k - 1]))
        if end is None:
            value, factor = 0.0, 1.0
            for j in range(k, k + N):
                value += factor * reward[j]
                factor *= discount
                if terminated[j]:
                    break
                if truncated[j] or j == k + N - 1:
                    value += factor * next_value[j]
                    break
            rows.append((policy[k], value, reward[k - 1] if k else 0.0, True))
        elif k == end[0]:
            value = 0.0 if end[1] else next_value[k - 1]
            rows.append((0 * policy[k], value, reward[k - 1], True))
        else:
            rows.append((0 * policy[k], 0.0, 0.0, end[1]))
    return [np.asarray(x) for x in zip(*rows, strict=True)]


@pytest.mark.parametrize("discount", [0.9, -0.9])
def test_targets_across_every_kind_of_end(discount):
    rng, batch = np.random.default_rng(0), 300
    reward = rng.normal(size=(K + N, batch)).astype(np.float32)
    kind = rng.random((K + N, batch))  # both at once happen: the task's end goes first
    terminated, truncated = kind < 0.25, (kind > 0.15) & (kind < 0.4)
    policy = rng.random((K + 1, batch, 2)).astype(np.float32)
    next_value = rng.normal(size=(K + N, batch)).astype(np.float32)
    moves = jax.tree.map(jnp.asarray, window(reward, terminated, truncated))
    goal = jax.device_get(
        targets(moves, jnp.asarray(policy), jnp.asarray(next_value), K, N, jnp.float32(discount))
    )
    for b in range(batch):
        column = (x[:, b] for x in (reward, terminated, truncated, policy, next_value))
        expected = by_hand(*column, discount)
        found = [x[:, b] for x in (goal.policy, goal.value, goal.reward, goal.known)]
        known = expected[3]
        np.testing.assert_array_equal(found[3], known)
        for x, y in zip(found[:3], expected[:3], strict=True):
            np.testing.assert_allclose(x[known], y[known], rtol=1e-5, atol=1e-6)
        ended = np.cumsum(terminated[:K, b] | truncated[:K, b]) > 0
        np.testing.assert_array_equal(goal.over[:, b], [False, *ended])


@functools.cache
def sample_batch(env_name: str):
    """The small agent without search on `env_name`, its state, and one batch of replay."""
    env = envs.make(env_name)
    learner = muzero.agent(env, SMALL)
    hyper = {k: jnp.asarray(v) for k, v in learner.hyper.items()}
    state = jax.jit(learner.init)(random.key(1), hyper)
    # Heads begin at 0, so that all predictions would be alike.
    noise = lambda x: x + 0.3 * np.random.default_rng(x.size).normal(size=x.shape).astype("float32")
    params = jax.tree.map(noise, state.parts["model"].params)
    model = dataclasses.replace(state.parts["model"], params=params, target=params)
    state = dataclasses.replace(state, parts={"model": model})
    source = replay(rollouts(env, 4, 1), 400, 6, K + N + 1, warmup=64)

    @jax.jit
    def draw(state):
        policy = Policy(learner.act, learner.memory, state)
        held = start_source(source, random.key(2), {}, policy)
        held, fresh, _ = source.collect(held, policy, random.key(3))
        return source.sample(held, fresh, random.key(4))

    return learner, state, draw(state)


def network(env_name: str) -> ValueEquivalentModel:
    env = envs.make(env_name)
    return ValueEquivalentModel(
        env.observation_space, env.action_space.n, SMALL.num_atoms, SMALL.width, SMALL.torso.hidden
    )


ATOMS = jnp.linspace(-SMALL.support, SMALL.support, SMALL.num_atoms)


def value_of(logits):
    return losses.signed_parabolic(losses.categorical_mean(logits, ATOMS))


@pytest.mark.slow
def test_what_search_said_is_stored_with_the_step_that_it_was_asked_at():
    _, state, batch = sample_batch("cartpole")
    net, moves = network("cartpole"), batch.transitions

    @jax.jit
    def see(step):
        latent = net.apply(state.parts["model"].params, step, method="represent")
        return net.apply(state.parts["model"].params, latent, method="predict")

    policy, value = see(moves.timestep)
    np.testing.assert_allclose(moves.extras["search"], jax.nn.softmax(policy), rtol=1e-4)
    np.testing.assert_allclose(moves.extras["value"], value_of(value), rtol=1e-4, atol=1e-5)
    assert not np.allclose(
        moves.extras["search"], jax.nn.softmax(see(moves.next_timestep)[0]), rtol=1e-4
    )


@pytest.mark.slow
def test_update_is_the_papers_loss_written_out():
    """The loss and its gradient by a loop over sequences and steps."""
    learner, state, batch = sample_batch("cartpole")
    hyper, net = state.hyper, network("cartpole")
    # Ends where they matter: a terminal and a truncated step within the unroll, each in a sequence.
    over = np.zeros(batch.transitions.terminated.shape, bool)
    terminated, truncated = over.copy(), over.copy()
    terminated[1, 0], truncated[1, 1], truncated[K + 1, 2] = True, True, True
    following = dataclasses.replace(
        batch.transitions.next_timestep,
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
    )
    moves = dataclasses.replace(batch.transitions, next_timestep=following)
    weight = jnp.linspace(0.2, 1.0, BATCH)
    batch = dataclasses.replace(batch, transitions=moves, weight=weight)
    key = random.key(9)
    new, info = jax.jit(learner.update)(state, batch, key)

    # Targets by the loop over sequences, in NumPy; what follows is over steps, for all sequences.
    net_apply = jax.jit(net.apply, static_argnames="method")
    following = net_apply(state.parts["model"].params, moves.next_timestep, method="represent")
    bootstrap = value_of(net_apply(state.parts["model"].params, following, method="predict")[1])
    done = terminated | truncated
    next_value = np.where(done[:-1], bootstrap[:-1], moves.extras["value"][1:])
    columns = [
        by_hand(
            np.asarray(moves.reward)[:-1, b], terminated[:-1, b], truncated[:-1, b],
            np.asarray(moves.extras["search"])[: K + 1, b], next_value[:, b],
            float(hyper["discount"]),
        )
        for b in range(BATCH)
    ]  # fmt: skip
    policy, value, reward, known = (np.stack(x, 1) for x in zip(*columns, strict=True))
    action_key = jax.random.fold_in(key, zlib.crc32(b"actions"))
    anything = jax.random.randint(action_key, (K, BATCH), 0, 2, jnp.int32)
    gone = np.concatenate([over[:1], np.cumsum(done[: K - 1], 0) > 0])
    action = jnp.where(gone, anything, moves.action[:K])

    def half(x):  # the value of x with half its gradient
        return x / 2 + jax.lax.stop_gradient(x / 2)

    def regression(logits, target):
        target = losses.two_hot(losses.signed_hyperbolic(jnp.float32(target)), ATOMS)
        return -(target * jax.nn.log_softmax(logits)).sum(-1)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        first = jax.tree.map(lambda x: x[0], moves.timestep)
        latent, total = net.apply(params, first, method="represent"), 0.0
        for k in range(K + 1):
            error, scale = 0.0, 1.0
            if k > 0:
                latent, logits = net.apply(params, half(latent), action[k - 1], method="dynamics")
                error, scale = regression(logits, reward[k]), 1 / K
            policy_logits, value_logits = net.apply(params, latent, method="predict")
            error += hyper["value_weight"] * regression(value_logits, value[k])
            error -= (policy[k] * jax.nn.log_softmax(policy_logits)).sum(-1)
            # Gradients are scaled, the number that is reported is not.
            error = scale * error + (1 - scale) * jax.lax.stop_gradient(error)
            total += (weight * known[k] * error).mean()
            if k == 0:
                priority = jnp.abs(value_of(value_logits) - value[0])
        return total, priority

    (expected, priority), gradient = jax.jit(loss)(state.parts["model"].params)
    decayed = lambda g, p: g + 2 * hyper["weight_decay"] * p
    decay = jax.tree.map(decayed, gradient, state.parts["model"].params)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(decay)))
    np.testing.assert_allclose(info.metrics["prediction_loss"], expected, rtol=1e-4)
    np.testing.assert_allclose(info.metrics["model_grad_norm"], norm, rtol=1e-3)
    np.testing.assert_allclose(info.feedback["priority"], priority, rtol=1e-3, atol=1e-4)
    moved = hyper["target.rate"]
    old, latest = state.parts["model"], new.parts["model"]
    for before, target, after in zip(
        *(jax.tree.leaves(x) for x in (old.target, latest.target, latest.params)), strict=True
    ):
        np.testing.assert_allclose(target, (1 - moved) * before + moved * after, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "turn"), [("cartpole", 1.0), ("tic_tac_toe", -1.0)])
def test_one_simulation_backs_up_what_the_model_says_of_a_legal_action(name, turn):
    """The root's value is then the mean of its own and of the one child's, which belongs to the
    other player in a game."""
    _, state, batch = sample_batch(name)
    searcher = muzero.agent(envs.make(name), dataclasses.replace(SMALL, simulations=1))
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.transitions.timestep)
    act = jax.jit(searcher.act, static_argnums=4)
    action, _, said = jax.device_get(act(state, rows, (), random.key(3), True))

    @jax.jit
    def see(step, action):
        call = functools.partial(network(name).apply, state.parts["model"].params)
        latent = call(step, method="represent")
        after, reward = call(latent, action, method="dynamics")
        policy, value = call(latent, method="predict")
        child = value_of(call(after, method="predict")[1])
        return policy, value_of(value), value_of(reward), child

    policy, value, reward, child = jax.device_get(see(rows, action))
    found = reward + turn * float(state.hyper["discount"]) * child
    np.testing.assert_allclose(said["value"], (value + found) / 2, rtol=1e-4, atol=1e-5)
    if rows.legal_actions is not None:
        legal = np.asarray(rows.legal_actions)
        assert not legal[np.arange(len(legal)), policy.argmax(1)].all()  # it needs the mask
        assert legal[np.arange(len(legal)), action].all() and not said["search"][~legal].any()


@pytest.mark.slow
def test_reanalysed_sequences_forget_what_was_stored():
    _, state, batch = sample_batch("cartpole")
    renew = muzero.agent(envs.make("cartpole"), dataclasses.replace(SMALL, reanalyse=1.0))
    moves = batch.transitions
    other = dataclasses.replace(moves, extras=jax.tree.map(lambda x: x * 0 + 7, moves.extras))

    @jax.jit
    def report(moves):  # compiles no gradient
        info = renew.update(state, dataclasses.replace(batch, transitions=moves), random.key(0))[1]
        return info.metrics["prediction_loss"], info.feedback

    jax.tree.map(np.testing.assert_array_equal, report(moves), report(other))


@pytest.mark.slow
def test_in_a_game_every_value_is_that_of_whoever_moves():
    """Whole random games, among them many that end within the window: the value of a position is
    what its mover gets in the end, whoever makes the last move and whoever begins the next game."""
    _, _, batch = sample_batch("tic_tac_toe")
    moves = jax.tree.map(np.asarray, batch.transitions)
    length = moves.done.shape[0]
    unroll = length - 1  # returns up to the window's end
    policy = jnp.zeros((unroll + 1, BATCH, 9))
    goal = targets(
        batch.transitions, policy, jnp.zeros(moves.done.shape), unroll, 9, jnp.float32(-1.0)
    )
    seen = {-1.0: 0, 1.0: 0}
    for b in range(BATCH):
        ends = np.flatnonzero(moves.done[:, b])
        if len(ends) == 0:
            continue
        for k in range(ends[0] + 1):
            role = moves.timestep.role[k, b]
            assert role == (moves.timestep.role[0, b] + k) % 2
            outcome = moves.reward[ends[0], b, role]
            assert goal.value[k, b] == outcome
            seen[float(outcome)] = seen.get(float(outcome), 0) + 1
        last = ends[0]
        if last < unroll:  # what the last move paid, to whoever made it, and then nothing more
            mover = moves.timestep.role[last, b]
            assert goal.reward[last + 1, b] == moves.reward[last, b, mover]
            assert not np.any(goal.value[last + 1 :, b]) and not np.any(goal.reward[last + 2 :, b])
            assert np.all(goal.known[:, b])
    assert min(seen[1.0], seen[-1.0]) > 3


@pytest.mark.slow
def test_in_a_game_the_update_changes_the_sign_with_every_step():
    learner, state, batch = sample_batch("tic_tac_toe")
    update = lambda state: learner.update(state, batch, random.key(0))[1].metrics["target_value"]
    found = jax.jit(update)(state)  # compiles no gradient
    moves, said = jax.tree.map(lambda x: x[:-1], batch.transitions), batch.transitions.extras
    value = lambda turn: targets(
        moves, said["search"][: K + 1], said["value"][1:], K, N, turn * state.hyper["discount"]
    ).value[0].mean()  # fmt: skip
    np.testing.assert_allclose(found, value(-1.0), rtol=1e-4)
    assert abs(value(1.0) - value(-1.0)) > 1e-3


def test_latents_fill_zero_to_one():
    x = jnp.asarray([[-3.0, 1.0, 5.0], [2.0, 2.0, 2.0]])
    np.testing.assert_allclose(rescale(x), [[0, 0.5, 1], [0, 0, 0]])


def test_acting_becomes_colder_as_training_goes_on(monkeypatch):
    """The factors are those of the pseudocode for Atari: 1, 0.5 from 1/2 on, 0.25 from 3/4 on."""
    seen = []

    def record_temperature(*args):
        seen.append(float(args[8]))
        return search(*args)

    _, state, batch = sample_batch("cartpole")
    agent = muzero.agent(envs.make("cartpole"), SMALL)
    monkeypatch.setattr(muzero_file, "search", record_temperature)
    first = jax.tree.map(lambda x: x[0], batch.transitions.timestep)
    for env_steps in (0, 499, 500, 749, 750, 5000):
        hyper = {**state.hyper, "temperature": jnp.float32(2), "temperature_steps": 1000.0}
        now = dataclasses.replace(state, env_steps=jnp.float32(env_steps), hyper=hyper)
        agent.act(now, first, (), random.key(0), False)
    assert seen == [2.0, 2.0, 1.0, 1.0, 0.5, 0.5]


def test_what_does_not_fit_is_refused():
    environment = envs.make("cartpole")

    def of_three(key, params):
        state, timestep = environment.reset(key, params)
        return state, dataclasses.replace(timestep, reward=jnp.zeros(3))

    with pytest.raises(UserError, match="num_atoms is 10; it must be odd"):
        muzero(environment, replace(SMALL, {"num_atoms": 10}))
    with pytest.raises(UserError, match="rewards 3 agents; muzero plays alone, or in games of two"):
        muzero(dataclasses.replace(environment, reset=of_three), SMALL)
