"""The decision transformer: its loss, what it remembers while it acts, and that asking for a return
gives that return."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import decision_transformer as dt
from jaxrl.algorithms.offline.shared import making, sequences
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import replace_hyper
from jaxrl.core.settings import Static, replace
from jaxrl.core.spaces import Box
from jaxrl.core.train import start, train
from jaxrl.envs.policies import random_policy
from jaxrl.envs.tables import mdp
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.networks.heads import categorical, normal
from jaxrl.sources.played import played_dataset, record, windows
from tests.kit.stub import losses_of, stub

ENV = envs.make("pendulum")
SIZES = {"context": 4, "width": 8, "layers": 2, "heads": 2}
CONFIG = replace(dt.Config(), SIZES)
SCALE = 10.0


def first_steps(rows=40):
    """Steps [rows, 1] of the first recorded episode, with their times and returns-to-go."""
    steps = making.record(ENV, PLAYER, KEY, 200)
    data = record(jax.tree.map(lambda x: jnp.asarray(x)[:, None], steps))
    x = jax.tree.map(lambda x: x[:rows, None], data.transitions)
    extras = {"time": data.time[:rows, None], "to_go": data.to_go[:rows, None]}
    return dataclasses.replace(x, extras=extras)


PLAYER, KEY = random_policy(ENV), random.key(0)


def test_the_error_of_actions():
    mean = jnp.array([[0.5, -0.25]])
    policy = normal(Box(0.0, 4.0, (2,)), mean, 1.0)
    found = sequences.action_error(Box(0.0, 4.0, (2,)), policy, jnp.array([[4.0, 1.0]]))
    np.testing.assert_allclose(found, [((0.5 - 1) ** 2 + (-0.25 + 0.5) ** 2) / 2], rtol=1e-6)
    logits = jnp.log(jnp.array([[0.2, 0.8]]))
    space = mdp_of_ones().action_space
    found = sequences.action_error(space, categorical(logits), jnp.array([1]))
    np.testing.assert_allclose(found, -np.log([0.8]), rtol=1e-6)


def test_the_loss_sees_returns_to_go_and_times():
    x, seen = first_steps(6), {}

    def sequence(steps, legal_actions):
        seen.update(steps=steps)
        mean = jnp.zeros((6, 1, 1))
        return dataclasses.make_dataclass("P", ["policy"])(normal(ENV.action_space, mean, 1.0))

    recipe = dt.recipe(ENV, Static(CONFIG))
    net = stub(sequence=sequence, hyper={"return_scale": SCALE})
    found = losses_of(recipe)["sequence_loss"](net, x)
    np.testing.assert_allclose(found, (x.action[..., 0] / 2) ** 2, rtol=1e-5)
    steps = seen["steps"]
    rewards = np.asarray(making.record(ENV, PLAYER, KEY, 200).reward, np.float64)
    expected = [rewards[i:].sum() / SCALE for i in range(6)]
    np.testing.assert_allclose(steps.to_go[:, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(steps.time[:, 0], np.arange(6))
    np.testing.assert_allclose(steps.action[:, 0], x.action[:, 0] / 2, rtol=1e-6)
    assert steps.exists.all()


@pytest.mark.slow
def test_acting_remembers_a_sliding_window():
    """Whoever acts step by step, with the data's actions in place of its own, has the policy of the
    window of the last steps of the data; also in the next episode."""
    agent = dt.decision_transformer.agent(ENV, CONFIG)
    x = first_steps(7)
    asked = {"target_return": x.extras["to_go"][0, 0], "return_scale": jnp.float32(SCALE)}
    state = jax.jit(agent.init)(random.key(1), agent.hyper | asked)
    noise = lambda a: a + 0.3 * jax.random.normal(random.key(2), a.shape)
    params = jax.tree.map(noise, state.parts["sequence"].params)
    part = dataclasses.replace(state.parts["sequence"], params=params)
    state = dataclasses.replace(state, parts=state.parts | {"sequence": part})
    act = jax.jit(lambda timestep, memory: agent.act(state, timestep, memory, KEY, True))
    network = CONFIG.sequence.network(ENV)
    steps = sequences.read_window(ENV, x, x.extras["to_go"] / SCALE)
    apply = jax.jit(lambda steps: network.apply(params, steps).policy.mode())

    def play():
        memory, found = agent.memory(1), []
        for i in range(7):
            timestep = jax.tree.map(lambda x: jnp.asarray(x)[i], x.timestep)  # noqa: B023
            action, memory, _ = act(timestep, memory)
            taken = memory.action.at[:, -1].set(steps.action[i])
            memory = dataclasses.replace(memory, action=taken)
            found.append(action[0])
        return np.stack(found), memory

    found, memory = play()
    for i in range(7):
        window = jax.tree.map(lambda a: a[max(0, i - 3) : i + 1], steps)  # noqa: B023
        np.testing.assert_allclose(found[i], apply(window)[-1, 0], atol=1e-4)
    np.testing.assert_array_equal(memory.time, [[3, 4, 5, 6]])
    np.testing.assert_allclose(memory.to_go, steps.to_go[3:].T, rtol=1e-4)
    np.testing.assert_allclose(play()[0], found, atol=1e-6)


def mdp_of_ones(steps=5):
    """One state, in which action 1 pays 1 and action 0 nothing, for so many steps."""
    table = mdp.from_tensors(np.ones((1, 2, 1)), np.array([[0.0, 1.0]]))
    return mdp.environment("ones", table, max_steps=steps)


@pytest.mark.slow
def test_asking_for_a_return_gives_that_return():
    """Random play of 5 steps is worth 0 to 5. What is asked for is reached only by whoever counts
    what is left of it, since neither the observation nor the data's frequencies tell."""
    env = mdp_of_ones()

    def source(env, config):
        return played_dataset(env, random_policy(env), 2000, 64, windows(3, pad=True), streams=8)

    algorithm = dt.decision_transformer.variant("ones", source=source)
    settings = {"context": 3, "width": 16, "layers": 1, "learning_rate": 0.01}
    algorithm = algorithm(env, settings | {"return_scale": 5.0, "normalization.observation": False})
    run, _ = train(algorithm, start(algorithm, random.key(0)), 300)
    for asked in range(6):
        state = replace_hyper(run.state, {"target_return": jnp.float32(asked)})
        played = evaluate(env, algorithm.policy(state), random.key(3), 2)
        np.testing.assert_array_equal(played.returns, asked)


def test_what_does_not_fit_is_refused():
    build = lambda env, changes: dt.decision_transformer.agent(env, replace(CONFIG, changes))
    with pytest.raises(UserError, match=r"^decision_transformer learns from a dataset alone"):
        build(ENV, {"num_envs": 2})
    with pytest.raises(UserError, match="must be a multiple of its number of heads"):
        build(ENV, {"width": 9})
    with pytest.raises(UserError, match="no time limit"):
        build(dataclasses.replace(ENV, max_steps=None), {})
