"""Several learners in one run, in a game of two who chase and flee on a ring, and one who dies."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import algorithms, envs
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, Environment, Info, TimeStep, Transition
from jaxrl.kit.agents import agent_names, joint, seen_by
from jaxrl.kit.normalization import normalize_observation
from jaxrl.kit.wrapping import params_of
from jaxrl.sources.rollouts import rollouts

NAMES = ("hunter", "bird")  # not in the order of the alphabet, and rewards are in this one
PPO = {"num_envs": 8, "num_steps": 8, "hidden": (8,), "minibatches": 1, "learning_rate": 0.03}


def ring(deaths=False):
    """Let both agents say 0 or 1: the hunter earns 1 if they say the same, the bird if they differ.

    An episode has one step; or three, and the bird dies after the first.
    """

    def observations(time, reward, first, done):
        alive = jnp.stack([jnp.bool_(True), (time == 0) | ~jnp.bool_(deaths)]) if deaths else None
        no = jnp.bool_(False)
        observation = {n: jnp.ones(2) * time for n in NAMES}
        return TimeStep(observation, reward, done, no, first, alive=alive)

    def reset(key, params):
        return jnp.int32(0), observations(
            jnp.int32(0), jnp.zeros(2), jnp.bool_(True), jnp.bool_(False)
        )

    def step(key, state, action, params):
        same = jnp.equal(action["hunter"], action["bird"])
        reward = jnp.stack([same, ~same]).astype(jnp.float32)
        done = state + 1 == (3 if deaths else 1)
        return state + 1, observations(state + 1, reward, jnp.bool_(False), done)

    box, two = Box(0.0, 3.0, (2,)), Discrete(2)
    spaces = (dict.fromkeys(NAMES, box), dict.fromkeys(NAMES, two))
    return Environment("ring", reset, step, (), *spaces, max_steps=3, agents=NAMES)


def learners(env, **changes):
    return {n: algorithms.ppo.agent(seen_by(env, n), PPO | changes) for n in NAMES}


def algorithm(env, agents):
    return learn(joint(env, agents), rollouts(env, PPO["num_envs"], PPO["num_steps"]))


def test_each_learns_from_its_own_reward_and_neither_wins():
    """Matching pennies: rewards that are swapped would make both want the same."""
    both = algorithm(ring(), learners(ring()))
    _, row = train(both, start(both, random.key(0)), 1)
    values = m.values(row)
    np.testing.assert_allclose(
        values["episode_return_0"] + values["episode_return_1"], 1.0, rtol=1e-6
    )
    assert {"hunter_loss", "bird_loss", "hunter_actor_critic_norm"} <= values.keys()
    assert {"hunter.discount", "bird.discount"} <= both.hyper.keys()


@pytest.mark.slow
@pytest.mark.parametrize("learning", NAMES)
def test_who_learns_alone_exploits_one_who_always_says_the_same(learning):
    """The other says 1."""
    other, agents = NAMES[1 - NAMES.index(learning)], learners(ring())

    def act(state, timestep, memory, key, greedy):
        n = timestep.reward.shape[0]
        return jnp.ones(n, int), memory, {"log_prob": jnp.zeros(n)}

    agents[other] = dataclasses.replace(agents[other], act=act)
    both = algorithm(ring(), agents)
    run, _ = train(both, start(both, random.key(0)), 20)
    _, row = train(both, run, 5)
    assert m.values(row)[f"episode_return_{NAMES.index(learning)}"] > 0.9


def test_the_view_of_an_agent_is_its_own():
    env = ring()
    own = seen_by(env, "bird")
    assert own.action_space == Discrete(2) and own.observation_space == Box(0.0, 3.0, (2,))
    state, _ = env.reset(random.key(0), ())
    _, both = env.step(random.key(0), state, {"hunter": 0, "bird": 1}, ())
    assert both.reward.tolist() == [0.0, 1.0]
    seen = []

    def update(state, batch, key):
        seen.append((batch.transitions, batch.memory))
        return state, Info({})

    agent = learners(env)["bird"]
    watching = dataclasses.replace(agent, update=update)
    together = joint(env, {"bird": watching, "hunter": learners(env)["hunter"]})
    number = jnp.arange(6.0).reshape(3, 2)
    no = jnp.zeros((3, 2), bool)
    step = TimeStep(
        {"hunter": number[..., None] + jnp.zeros(2), "bird": -number[..., None] + jnp.zeros(2)},
        jnp.stack([number, 10 * number], -1), no, no, no,
    )  # fmt: skip
    extras = {n: {"log_prob": number} for n in NAMES}
    action = {"hunter": jnp.zeros((3, 2), int), "bird": jnp.ones((3, 2), int)}
    batch = Batch(Transition(step, action, step, (), extras), jnp.float32(0),
                  memory=dict.fromkeys(NAMES, ()))  # fmt: skip
    state = together.init(random.key(0), together.hyper)
    together.update(state, batch, random.key(0))
    x, _ = seen[0]
    np.testing.assert_array_equal(x.reward, 10 * number)
    np.testing.assert_array_equal(x.observation[..., 0], -number)
    np.testing.assert_array_equal(x.action, 1)


@pytest.mark.slow
def test_memory_normalization_and_a_policy_that_is_shared():
    env = ring()
    for agents in (
        {n: normalize_observation(a, seen_by(env, n)) for n, a in learners(env).items()},
        learners(env, recurrent=4),
        {NAMES: algorithms.ppo.agent(seen_by(env, "bird"), PPO | {"recurrent": 4})},
    ):
        both = algorithm(env, agents)
        run, row = train(both, start(both, random.key(0)), 2)
        assert (np.asarray(row["diverged"].step) == m.NEVER).all()
        learned = run.state.agent.agents
        assert len(learned) == len(agents)
        assert all(
            np.isfinite(x).all() for n in learned for x in jax.tree.leaves(params_of(learned[n]))
        )


def test_one_agent_in_the_place_of_several_has_their_streams_side_by_side():
    env, seen = ring(), []
    agent = algorithms.ppo.agent(seen_by(env, "bird"), PPO)

    def act(state, timestep, memory, key, greedy):
        seen.append(timestep)
        count = timestep.reward.shape[0]
        return jnp.arange(count), memory, {"log_prob": jnp.zeros(count)}

    together = joint(env, {NAMES: dataclasses.replace(agent, act=act)})
    no, three = jnp.zeros(3, bool), jnp.arange(3.0)
    observation = {"hunter": three[:, None] + jnp.zeros(2), "bird": -three[:, None] + jnp.zeros(2)}
    step = TimeStep(observation, jnp.stack([three, 10 * three], -1), no, no, no)
    state = together.init(random.key(0), together.hyper)
    action, _, extras = together.act(state, step, {"hunter": ()}, random.key(0), False)
    np.testing.assert_array_equal(seen[0].reward, [0, 0, 1, 10, 2, 20])
    np.testing.assert_array_equal(seen[0].observation[:, 0], [0, 0, 1, -1, 2, -2])
    np.testing.assert_array_equal(action["hunter"], [0, 2, 4])
    np.testing.assert_array_equal(action["bird"], [1, 3, 5])
    assert extras["hunter"]["log_prob"].shape == (6,)


def test_the_dead_do_not_learn_and_their_episode_has_ended():
    env, seen = ring(deaths=True), {}

    def watch(name, agent):
        def update(state, batch, key):
            seen[name] = batch
            return agent.update(state, batch, key)

        return dataclasses.replace(agent, update=update)

    agents = {n: watch(n, a) for n, a in learners(env).items()}
    both = algorithm(env, agents)
    jax.eval_shape(lambda: train(both, start(both, random.key(0)), 1))
    assert seen["bird"].mask is not None
    # By hand: alive at time 0, dead afterwards.
    together = joint(env, agents)
    time = jnp.arange(3)[:, None] + jnp.zeros((3, 1), int)
    alive = jnp.stack([jnp.ones((3, 1), bool), time == 0], -1)
    no = jnp.zeros((3, 1), bool)
    obs = {n: jnp.zeros((3, 1, 2)) for n in NAMES}
    before = TimeStep(obs, jnp.zeros((3, 1, 2)), no, no, no, alive=alive)
    after = dataclasses.replace(before, alive=alive.at[0, 0, 1].set(False))
    extras = {n: {"log_prob": jnp.zeros((3, 1))} for n in NAMES}
    x = Transition(before, {n: jnp.zeros((3, 1), int) for n in NAMES}, after, (), extras)
    seen.clear()
    state = together.init(random.key(0), together.hyper)
    together.update(state, Batch(x, jnp.float32(0), memory=dict.fromkeys(NAMES, ())), random.key(0))
    np.testing.assert_array_equal(seen["bird"].mask[:, 0], [True, False, False])
    np.testing.assert_array_equal(seen["hunter"].mask[:, 0], [True, True, True])
    np.testing.assert_array_equal(seen["bird"].transitions.terminated[:, 0], [True, True, True])
    assert not seen["hunter"].transitions.terminated.any()


@pytest.mark.parametrize("name", ["ppo", "trpo"])
def test_what_the_dead_see_and_do_changes_nothing(name):
    env, rng, shape = ring(deaths=True), np.random.default_rng(0), (4, 8)
    builder = getattr(algorithms, name)
    known = {"num_envs": shape[1], "num_steps": shape[0], "hidden": (4,)}
    known |= {"minibatches": 1, "epochs": 1}
    together = joint(env, {n: builder.agent(seen_by(env, n), known) for n in NAMES})
    living = np.arange(4)[:, None] < 1 + np.arange(8) % 3
    alive = jnp.stack([jnp.ones(shape, bool), jnp.asarray(living)], -1)
    after = jnp.concatenate([alive[1:], alive[-1:]])
    no = jnp.zeros(shape, bool)
    draw = lambda *more: jnp.asarray(rng.normal(size=(*shape, *more)), jnp.float32)
    seen, number, reward = ({n: draw(2) for n in NAMES}, draw(), 5 + draw(2))

    def update(noise):
        """Update with other observations, rewards and actions of the dead bird."""
        changed = lambda x, y: jnp.where(living.reshape(*shape, *[1] * (x.ndim - 2)), x, y)
        obs = seen | {"bird": changed(seen["bird"], noise)}
        paid = jnp.stack([reward[..., 0], changed(reward[..., 1], 100 * noise)], -1)
        before = TimeStep(obs, jnp.zeros((*shape, 2)), no, no, no, alive=alive)
        following = TimeStep(seen, paid, no, no, no, alive=after)
        said = jnp.zeros(shape, int)
        action = {"hunter": said, "bird": changed(said, said + (noise > 0))}
        extras = {n: {"log_prob": number} for n in NAMES}
        extras["bird"] = {"log_prob": changed(number, noise)}
        x = Transition(before, action, following, (), extras)
        batch = Batch(x, jnp.float32(0), memory=dict.fromkeys(NAMES, ()))
        state = together.init(random.key(0), together.hyper)
        state, _ = together.update(state, batch, random.key(1))
        return params_of(state.agents["bird"])

    update = jax.jit(update)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
        update(0.0), update(3.0),
    )  # fmt: skip


def test_evaluations_of_each_agent_have_its_own_hyperparameters():
    env, own = ring(), {"optimizer.learning_rate": "clip"}
    agents = {n: dataclasses.replace(x, in_evaluation=own) for n, x in learners(env).items()}
    found = joint(env, agents).in_evaluation
    assert found == {f"{n}.optimizer.learning_rate": f"{n}.clip" for n in NAMES}


def test_what_does_not_fit_is_said_in_one_sentence():
    env = ring()
    with pytest.raises(UserError, match="does not say whose reward is whose"):
        agent_names(dataclasses.replace(env, agents=()))
    with pytest.raises(UserError, match="both of its spaces must be dicts with these names"):
        dataclasses.replace(env, agents=("hunter", "fish"))
    with pytest.raises(UserError, match="The actions of 'cartpole' are those of one agent"):
        agent_names(envs.make("cartpole"))
    with pytest.raises(UserError, match="'fish'"):
        seen_by(env, "fish")
    with pytest.raises(UserError, match="The agent 'bird' of 'ring' has 0 learners"):
        joint(env, {"hunter": learners(env)["hunter"]})
    assert agent_names(envs.make("speaker_listener")) == ("listener", "speaker")
