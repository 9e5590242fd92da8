"""Components against forgetting, on agents small enough for known answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.lifelong.shared import clone as cloning
from jaxrl.algorithms.lifelong.shared import ewc as consolidation
from jaxrl.algorithms.lifelong.shared import infer_task as inference
from jaxrl.algorithms.lifelong.shared.clone import clone
from jaxrl.algorithms.lifelong.shared.ewc import ewc
from jaxrl.algorithms.lifelong.shared.infer_task import add_task_to_goal, infer_task
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Agent, Batch, Info, TimeStep, Transition, struct
from jaxrl.envs import make
from jaxrl.kit.wrapping import params_of, with_params
from jaxrl.networks.actor_critic import ActorCritic
from tests.learning.probes import probe

LOGITS = jnp.array([1.0, 0.0, -1.0])


@struct
class State:
    params: dict
    updates: jax.Array


def table(step=0.0):
    """Return an agent whose logits are its parameters, whatever it sees; updates add `step`."""

    def act(state, timestep, memory, key, greedy):
        n = timestep.first.shape[0]
        logits = jnp.broadcast_to(jax.nn.log_softmax(state.params["logits"]), (n, 3))
        action = logits.argmax(-1) if greedy else jax.random.categorical(key, logits)
        log_prob = jnp.take_along_axis(logits, action[:, None], -1)[:, 0]
        value = jnp.broadcast_to(state.params["value"], n)
        return action, memory, {"log_prob": log_prob, "logits": logits, "value": value}

    def update(state, batch, key):
        params = jax.tree.map(lambda x: x + step, state.params)
        return State(params, state.updates + 1), Info({"columns": batch.transitions.reward.shape[1]
                                                       * jnp.float32(1)})  # fmt: skip

    params = {"logits": LOGITS, "value": jnp.float32(0)}
    return Agent("table", lambda key, hyper: State(params, jnp.int32(0)), act, update)


def window(task, steps=4, streams=2, logits=LOGITS, value=0.0, observation=None):
    """Return a window [T, B] of one task."""
    shape = (steps, streams)
    seen = jnp.zeros((*shape, 2)) if observation is None else observation
    no = jnp.zeros(shape, bool)
    timestep = TimeStep(seen, jnp.zeros(shape), no, no, no)
    extras = {
        "logits": jnp.broadcast_to(logits, (*shape, 3)),
        "value": jnp.full(shape, value),
    }
    ids = jnp.full(shape, task, jnp.int32)
    transitions = Transition(timestep, jnp.zeros(shape, jnp.int32), timestep, ids, extras)
    return Batch(transitions, jnp.float32(0), memory=())


def begin(agent):
    return agent.init(random.key(0), agent.hyper)


# ------------------------------------------------------------------------------- parameters


def test_parameters_are_found_through_wrappers():
    agent = clone(ewc(table()), num_envs=1)
    state = begin(agent)
    other = jax.tree.map(lambda x: x + 5, params_of(state))
    assert params_of(with_params(state, other)) is other
    with pytest.raises(UserError, match="holds no parameters"):
        params_of(3)


def test_hyperparameters_are_named_by_the_given_path():
    settings_at = {"life.ewc.": ("weight", "decay"), "b.": ("rate", "value_weight")}
    agents = {
        "life.ewc.": ewc(table(), path="life.ewc."),
        "b.": clone(table(), num_envs=2, path="b."),
        "": infer_task(table(), probe(), 3, num_envs=2, path=""),
    }
    for path, agent in agents.items():
        names = {path + name for name in settings_at.get(path, ("novelty",))}
        assert set(agent.hyper) == set(begin(agent).hyper) == names
    still = ewc(table(step=1.0), path="life.ewc.")
    state = begin(still)
    own = dataclasses.replace(
        state.own, fisher=jax.tree.map(jnp.ones_like, state.own.fisher), task=jnp.int32(0)
    )
    state = dataclasses.replace(state, own=own, hyper={**state.hyper, "life.ewc.weight": 1e6})
    after = params_of(still.update(state, window(0), random.key(0))[0])
    np.testing.assert_allclose(after["logits"], LOGITS, atol=1e-4)  # by the given weight


# ------------------------------------------------------------------------------- EWC


def test_fisher_information_is_that_of_the_policy():
    agent = table()
    squares = consolidation.squared_scores(agent, begin(agent), window(0), random.key(1), 20_000)
    p = np.asarray(jax.nn.softmax(LOGITS))
    np.testing.assert_allclose(squares["logits"], p * (1 - p), atol=0.01)
    assert squares["value"] == 0  # no action depends on it


def test_consolidation_at_the_end_of_a_task_and_only_there():
    agent = ewc(table(step=1.0), weight=0.0, decay=0.5)
    state = begin(agent)
    update = jax.jit(agent.update)
    key = random.key(2)
    for _ in range(2):
        state, info = update(state, window(7), key)
    assert not any(x.any() for x in jax.tree.leaves(state.own.fisher))  # no task has ended yet
    assert info.metrics["ewc_penalty"] == 0
    first = state.own.running["logits"]
    state, _ = update(state, window(3), key)
    np.testing.assert_allclose(state.own.fisher["logits"], first)
    # The anchor is from before this window's update.
    np.testing.assert_allclose(state.own.anchor["logits"], LOGITS + 2)
    assert state.own.task == 3 and state.own.windows == 1
    second = state.own.running["logits"]
    state, _ = update(state, window(7), key)
    np.testing.assert_allclose(state.own.fisher["logits"], 0.5 * first + second, rtol=1e-6)
    np.testing.assert_allclose(state.own.anchor["logits"], LOGITS + 3)


def test_the_pull_is_the_proximal_step_of_the_penalty():
    agent = ewc(table(step=1.0), weight=3.0)
    state = begin(agent)
    fisher = {"logits": jnp.array([0.0, 0.5, 100.0]), "value": jnp.float32(0)}
    own = dataclasses.replace(state.own, fisher=fisher, task=jnp.int32(0))
    state = dataclasses.replace(state, own=own)
    after = agent.update(state, window(0), random.key(0))[0]
    moved, anchor, f = (np.float64(x) for x in (LOGITS + 1, LOGITS, fisher["logits"]))
    # The minimum of |x - moved|^2 / 2 + 3 / 2 f (x - anchor)^2, found by brute force.
    grid = np.linspace(-2, 4, 600_001)
    for i in range(3):
        cost = (grid - moved[i]) ** 2 / 2 + 1.5 * f[i] * (grid - anchor[i]) ** 2
        np.testing.assert_allclose(params_of(after)["logits"][i], grid[cost.argmin()], atol=2e-5)


def test_ewc_refuses_tasks_without_ids():
    batch = window(0)
    nameless = dataclasses.replace(batch.transitions, task=())
    with pytest.raises(UserError, match="when a task ends"):
        agent = ewc(table())
        agent.update(begin(agent), dataclasses.replace(batch, transitions=nameless), random.key(0))


def test_the_score_of_a_normal_policy():
    # If the gradient of the sampled action were not stopped, that of the mean would be 0.
    env = probe(continuous=True)
    agent = ppo.agent(env, settings.replace(ppo.Config(), {"hidden": (4,)}))
    state = begin(agent)
    timestep = example_timestep(env)

    def log_prob(params):
        changed = with_params(state, params)
        return agent.act(changed, timestep, (), random.key(3), False)[2]["log_prob"].sum()

    score = jax.grad(log_prob)(params_of(state))["actor_critic"]["params"]["head"]["linear"]["bias"]
    action = agent.act(state, timestep, (), random.key(3), False)[0]
    mean = agent.act(state, timestep, (), random.key(3), True)[0]
    np.testing.assert_allclose(score, (action - mean)[0], rtol=1e-5)  # the deviation is 1
    assert abs(score[0]) > 0.01


# ------------------------------------------------------------------------------- cloning


def mixed_window(value=2.0):
    """Return two fresh columns, then three replayed ones of a policy that preferred the last
    action."""
    fresh, old = window(1, streams=2), window(0, streams=3, logits=-LOGITS, value=value)
    join = lambda a, b: jnp.concatenate([a, b], 1)
    joined = jax.tree.map(join, fresh.transitions, old.transitions)
    return dataclasses.replace(fresh, transitions=joined)


def test_cloning_moves_toward_the_replayed_policy_and_hides_replays_from_the_agent():
    agent = clone(table(), num_envs=2, rate=0.1, steps=50)
    state, info = jax.jit(agent.update)(begin(agent), mixed_window(), random.key(0))
    assert info.metrics["columns"] == 2
    p, q = np.asarray(jax.nn.softmax(-LOGITS)), np.asarray(jax.nn.softmax(LOGITS))
    np.testing.assert_allclose(info.metrics["clone_divergence"], (p * np.log(p / q)).sum(), 1e-5)
    after = params_of(state)
    np.testing.assert_allclose(jax.nn.softmax(after["logits"]), p, atol=0.1)
    np.testing.assert_allclose(after["value"], 2.0, atol=0.3)


def test_cloning_at_rate_0_changes_nothing():
    agent = clone(table(), num_envs=2, rate=0.0)
    state, _ = agent.update(begin(agent), mixed_window(), random.key(0))
    np.testing.assert_array_equal(params_of(state)["logits"], LOGITS)


def test_columns_selects_streams():
    assert cloning.columns(mixed_window(), slice(2, None)).transitions.reward.shape == (4, 3)
    assert cloning.columns(mixed_window(), slice(0, 2)).transitions.task.max() == 1


# ------------------------------------------------------------------------------- inference


def observations(mean, key=0, shape=(6, 2)):
    return jnp.asarray(mean) + 0.3 * jax.random.normal(random.key(key), (*shape, 2))


def no_models(tasks=3):
    zero = jnp.zeros((tasks, 2))
    return inference.Models(zero, zero, jnp.zeros(tasks, jnp.int32), jnp.int32(0))


def test_tasks_are_found_and_recognized_up_to_the_maximum():
    models = no_models()
    for number, (mean, known, task) in enumerate(
        [([0, 0], 1, 0), ([0, 0], 1, 0), ([3, 0], 2, 1), ([0, 0], 2, 0), ([0, 3], 3, 2),
         ([0, 3.5], 3, 2), ([9, 9], 3, None)]
    ):  # fmt: skip
        before = models.windows
        models = inference.learn_window(models, observations(mean, number), 5.0)
        assert models.known == known
        if task is not None:
            np.testing.assert_array_equal(models.windows - before, np.arange(3) == task)
    assert np.isfinite(models.mean).all() and models.windows.sum() == 7


def test_surprise_is_the_negative_log_likelihood():
    models = inference.learn_window(no_models(), observations([1, 0]), 5.0)
    x = observations([0, 0], 5)
    variance = np.asarray(models.square[0] - models.mean[0] ** 2 + 0.01, np.float64)
    square = (np.asarray(x, np.float64) - np.asarray(models.mean[0])) ** 2
    expected = (square / variance + np.log(variance)).sum(-1) / 2
    np.testing.assert_allclose(inference.surprises(models, x)[..., 0], expected, rtol=1e-4)


def test_updates_see_the_task_ids_that_acting_saw():
    """Ids along a window that contains the end of an episode equal those of acting step by step."""
    env = probe()
    spy = dataclasses.replace(
        table(),
        act=lambda state, timestep, memory, key, greedy: (timestep.goal, memory, {}),
        update=lambda state, batch, key: (state, Info({"batch": batch})),
    )
    agent = infer_task(spy, env, 3, num_envs=2)
    models = inference.learn_window(no_models(), observations([0, 0]), 3.0)
    models = inference.learn_window(models, observations([1, 0]), 3.0)
    models = dataclasses.replace(models, windows=jnp.full(3, 10**6))
    state = dataclasses.replace(begin(agent), own=models)
    assert models.known == 2
    # Stream 0 looks like one task and, after a reset, like the other; stream 1 never changes.
    means = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], np.float32)[..., None] * [1.0, 0.0]
    batch = window(
        0, observation=jnp.asarray(means, jnp.float32) + observations([0, 0], 9, (4, 2)) / 3
    )
    first = batch.transitions.first.at[3, 0].set(True)
    timestep = dataclasses.replace(batch.transitions.timestep, first=first)
    memory = before = agent.memory(2)
    goals = []
    for t in range(4):
        now = jax.tree.map(lambda x, t=t: x[t], timestep)
        fresh = agent.memory(2)
        memory = jax.tree.map(
            lambda a, b, now=now: jnp.where(now.first[:, None], a, b), fresh, memory
        )
        goal, memory, _ = agent.act(state, now, memory, random.key(0), True)
        goals.append(goal)
    batch = dataclasses.replace(
        batch,
        transitions=dataclasses.replace(batch.transitions, timestep=timestep),
        memory=before,
    )
    slow = dataclasses.replace(state, hyper={"infer.novelty": jnp.float32(1e9)})
    # The moments move by a twentieth, too little to change a task here.
    seen = agent.update(slow, batch, random.key(0))[1].metrics["batch"].transitions
    np.testing.assert_array_equal(seen.timestep.goal, jnp.stack(goals))
    np.testing.assert_array_equal(seen.task, [[0, 0], [0, 0], [0, 0], [1, 0]])
    np.testing.assert_array_equal(seen.next_timestep.goal, seen.timestep.goal)


def test_the_task_follows_the_goal_in_the_goal_channel():
    env = make("corners")
    goal = example_timestep(add_task_to_goal(env, 5)).goal
    assert [g.shape for g in goal] == [(1, 2), (1, 5)]
    assert example_timestep(env).goal.shape == (1, 2)


# ------------------------------------------------------------------------------- heads


def test_a_head_learns_from_its_own_task_only():
    env = add_task_to_goal(make("corners"), 3)
    network = ActorCritic(env.observation_space, env.action_space, (4,), heads=3)
    timestep = example_timestep(env)
    params = network.init(random.key(0), timestep, ())
    with_task = dataclasses.replace(timestep, goal=(timestep.goal[0], jnp.array([[0.0, 1.0, 0.0]])))

    def loss(params):
        policy, value, _ = network.apply(params, with_task, ())
        return policy.logits[0, 0] + value[0]

    gradient = jax.grad(loss)(params)["params"]
    for name in ("head", "value_head"):
        kernel = gradient[name]["linear" if name == "head" else "kernel"]
        kernel = kernel["kernel"] if name == "head" else kernel
        parts = np.abs(np.asarray(kernel)).reshape(3, 5, -1).sum((1, 2))
        assert parts[1] > 0 and parts[0] == parts[2] == 0


def test_heads_need_the_task_in_the_goal():
    with pytest.raises(UserError, match="no time step of 'corners' selects one"):
        ppo.agent(make("corners"), ppo.Config(heads=3))


def test_logits_are_recorded_for_discrete_actions_only():
    with pytest.raises(UserError, match="only discrete actions have"):
        ppo.agent(probe(continuous=True), ppo.Config(record=("logits",)))
    with pytest.raises(UserError, match="did you mean 'value'"):
        ppo.agent(probe(), ppo.Config(record=("values",)))
