"""Agents of a team with a memory and with shared weights: windows are computed as agents acted, and
games that need either are learned with it alone."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.multi_agent.happo import happo
from jaxrl.algorithms.multi_agent.ippo import ippo
from jaxrl.algorithms.multi_agent.mappo import mappo
from jaxrl.algorithms.multi_agent.qmix import qmix
from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.team_values import OwnNetworks, Sequences
from jaxrl.algorithms.multi_agent.shared.views import team_view, view_of
from jaxrl.algorithms.multi_agent.team_ppo import team_ppo
from jaxrl.algorithms.multi_agent.vdn import vdn
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.envs import timesteps
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit.wrapping import params_of
from jaxrl.networks import encoders
from jaxrl.sources import rollouts
from tests.kit.stub import stub

AGENTS = ("agent_0", "agent_1")
LENGTH = 3


def recall(own_rewards: bool = False) -> Environment:
    """A game whose agents see a bit in the first of three steps alone, and are to say in the last
    whether it differs from their own number, which needs a memory, and of agents that share weights
    that they know who they are. With `own_rewards` they are to say the bit."""
    number = jnp.zeros(2) if own_rewards else jnp.arange(2)
    nothing = jnp.zeros(2) if own_rewards else 0.0

    def timestep(build, bits, t, reward, **more):
        seen = {n: jnp.stack([bits[i] * (t == 0), 1.0 * t]) for i, n in enumerate(AGENTS)}
        state = jnp.append(bits, t)
        return build(seen, reward, privileged={"state": state}, **more)

    def reset(key, params):
        bits = jax.random.bernoulli(key, 0.5, (2,)).astype(jnp.float32)
        return (bits, jnp.int32(0)), timestep(timesteps.first, bits, 0, nothing)

    def step(key, state, action, params):
        bits, t = state
        said, last = jnp.stack([action[n] for n in AGENTS]), t == LENGTH - 1
        right = (said == jnp.abs(bits - number)) & last
        reward = 1.0 * right if own_rewards else 1.0 * right.all()
        out = timestep(timesteps.following, bits, t + 1, reward, terminated=last)
        return (bits, t + 1), out

    return Environment(
        "recall",
        reset,
        step,
        (),
        {n: Box(0.0, 3.0, (2,)) for n in AGENTS},
        {n: Discrete(2) for n in AGENTS},
        LENGTH,
        agents=AGENTS,
    )


ON_POLICY = {
    "num_envs": 64, "num_steps": 12, "hidden": (32,), "epochs": 4, "minibatches": 2,
    "actor.learning_rate": 3e-3, "critic.learning_rate": 3e-3, "torso.initializer": "lecun",
}  # fmt: skip
OFF_POLICY = {
    "num_envs": 16, "num_steps": 3, "updates": 4, "batch_size": 64, "warmup": 256, "unroll": 6,
    "hidden": (32, 32), "learning_rate": 2e-3, "exploration.steps": 40_000.0, "period": 50,
    "discount": 1.0, "capacity": 10_000,
}  # fmt: skip


def window(builder, settings, env=None):
    """The recipe of an untrained agent with a memory, its weights by part, and a window that it has
    collected, which begins within episodes and in whose middle others begin."""
    env = env or recall()
    algorithm = builder(env, settings | {"recurrent": 8})
    state = start(algorithm, random.key(0)).state
    source, policy = rollouts(env, 4, 7), algorithm.policy(state)
    played = source.init(random.key(1), {}, policy)
    collect = jax.jit(source.collect)
    for i in range(2):
        played, batch, _ = collect(played, policy, random.key(2 + i))
    first = np.asarray(batch.transitions.first)
    assert not first[0].any() and first.any()
    params = {name: part.params for name, part in state.agent.parts.items()}
    return builder.recipe(env, algorithm.config), params, batch


def step_by_step(part, params, view, x, memory, *more):
    """Outputs at each step of a window, and at its successor, computed one by one: `more` are
    inputs between the time step and the memory, [T, B]."""
    outputs, following = [], []
    at = lambda tree, t: jax.tree.map(lambda a: a[t], tree)
    for t in range(len(x.reward)):
        memory = jnp.where(x.first[t][:, None, None], 0, memory)
        before, after = more or ((), ())
        extra = [before[t]] if more else []
        output, memory = part.apply(params, view(at(x.timestep, t)), *extra, memory)
        extra = [after[t]] if more else []
        following.append(part.apply(params, view(at(x.next_timestep, t)), *extra, memory)[0])
        outputs.append(output)
    return outputs, following


@pytest.mark.parametrize(
    "builder, share",
    [(mappo, True), (mappo, False), (ippo, True), (happo, None), (team_ppo, None)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_windows_are_learned_as_they_were_acted(builder, share):
    settings = ON_POLICY | ({} if share is None else {"share_weights": share})
    env = recall(own_rewards=builder is team_ppo)
    recipe, params, batch = window(builder, settings, env)
    x, players = batch.transitions, {"agent": AGENTS}
    if not share and builder is not team_ppo:
        players = {name: (name,) for name in AGENTS}
    critics = {f"{name}_critic" for name in players} if builder is ippo else set()
    assert set(batch.memory) == set(players) | critics
    for name, agents in players.items():
        part = recipe.parts[name]
        view = view_of(agents)
        if builder is team_ppo:
            view = lambda timestep: team_view(timestep, AGENTS)
        seen, memory = view(x.timestep), batch.memory[name]
        policy, _ = part.apply(params[name], seen, memory, unroll=True)
        action = jnp.stack([x.action[n] for n in agents], -1)
        said = x.extras["log_prob"][name]
        np.testing.assert_allclose(policy.log_prob(action), said, atol=2e-6)
        forgot, _ = part.apply(params[name], seen, 0 * memory, unroll=True)
        assert np.abs(forgot.log_prob(action) - said)[0].max() > 1e-4


def test_the_agents_of_one_network_are_told_apart():
    timestep = example_timestep(recall())
    seen = view_of(AGENTS)(timestep)
    np.testing.assert_array_equal(seen.goal, np.eye(2)[None])
    assert view_of(AGENTS[:1])(timestep).goal is None
    goal = jnp.arange(3.0)[None]
    both = view_of(AGENTS)(dataclasses.replace(timestep, goal=goal)).goal
    np.testing.assert_array_equal(both[0], jnp.stack([goal, goal], 1))
    np.testing.assert_array_equal(both[1], np.eye(2)[None])
    features = encoders.features(Box(0.0, 3.0, (2,)), seen)
    np.testing.assert_array_equal(features[..., 2:], np.eye(2)[None])


def test_values_with_a_memory_are_those_of_each_step():
    recipe, params, batch = window(ippo, ON_POLICY | {"share_weights": True})
    x, part, memory = batch.transitions, recipe.parts["agent_critic"], batch.memory["agent_critic"]
    values, following = step_by_step(part, params["agent_critic"], view_of(AGENTS), x, memory)
    critic = lambda *inputs, **options: part.apply(params["agent_critic"], *inputs, **options)
    seen = (view_of(AGENTS)(t) for t in (x.timestep, x.next_timestep))
    found = team_policies._values(critic, *seen, memory)
    np.testing.assert_allclose(found[0], np.stack(values), atol=1e-5)
    np.testing.assert_allclose(found[1], np.stack(following), atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_action_values_with_a_memory_are_those_of_each_step(share):
    recipe, params, batch = window(vdn, OFF_POLICY | {"share_weights": share})
    x, players = batch.transitions, {"agent": AGENTS} if share else {n: (n,) for n in AGENTS}
    apply = lambda name: lambda *a, **options: recipe.parts[name].apply(params[name], *a, **options)
    net = stub(**{name: apply(name) for name in players})
    own = OwnNetworks(players, 8)
    values, following = own.unroll(net, Sequences(x, batch.memory))
    for name, agents in players.items():
        hidden, last = batch.memory[name]
        action = np.stack([x.action[n] for n in agents], -1)
        before = np.concatenate([last[None], action[:-1]])
        before[np.asarray(x.first)] = -1
        part = recipe.parts[name]
        one, after = step_by_step(part, params[name], view_of(agents), x, hidden, before, action)
        for i, agent in enumerate(agents):
            each = lambda steps, i=i: np.stack(steps)[..., i, :, 0]
            np.testing.assert_allclose(values[agent], each(one), atol=1e-5)
            np.testing.assert_allclose(following[agent], each(after), atol=1e-5)
            # The greedy actions are those of these values.
    step, hidden = own.step(net, jax.tree.map(lambda a: a[0], x.timestep), batch.memory)
    for agent in AGENTS:
        np.testing.assert_allclose(step[agent], values[agent][0], atol=1e-5)
    kept = own.remember(hidden, jax.tree.map(lambda a: a[0], x.action))
    assert all(kept[name][1].shape == (4, len(agents)) for name, agents in players.items())


def return_after(builder, settings, env, updates):
    """The mean greedy return, summed over agents, after some updates."""
    algorithm = builder(env, settings)
    run = start(algorithm, random.key(3))
    run, _ = jax.jit(lambda run: train(algorithm, run, updates))(run)
    played = evaluate(env, algorithm.policy(run.state), random.key(4), 256)
    return float(np.asarray(played.returns).reshape(256, -1).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder", [mappo, ippo, happo, team_ppo, vdn, qmix], ids=lambda builder: builder.name
)
def test_what_was_seen_is_remembered(builder):
    env = recall(own_rewards=builder is team_ppo)
    off = builder in (vdn, qmix)
    settings, updates = (OFF_POLICY, 1200) if off else (ON_POLICY, 80)
    settings = settings | ({} if builder in (happo, team_ppo) else {"share_weights": True})
    assert return_after(builder, settings | {"recurrent": 16}, env, updates) > 0.95
    if off:
        settings = {n: v for n, v in settings.items() if n != "unroll"}
    chance = 0.25 if builder is not team_ppo else 0.5
    assert return_after(builder, settings, env, updates // 3) < chance + 0.12


def test_independent_agents_may_have_rewards_of_their_own():
    agent = ippo.agent(recall(own_rewards=True), ON_POLICY | {"num_envs": 4, "num_steps": 7})
    _, _, batch = window(ippo, ON_POLICY, recall(own_rewards=True))
    x = batch.transitions
    assert x.reward.shape == (7, 4, 2)

    @jax.jit
    def update(other):
        """Parameters after an update in which agent_1 is paid otherwise."""
        after = dataclasses.replace(x.next_timestep, reward=x.reward.at[..., 1].add(other))
        changed = dataclasses.replace(x, next_timestep=after)
        state = agent.init(random.key(0), agent.hyper)
        fresh = dataclasses.replace(batch, transitions=changed, memory=())
        return params_of(agent.update(state, fresh, random.key(1))[0])

    paid = jax.random.normal(random.key(5), x.reward.shape[:2])
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), update(0 * paid), update(paid))
    most = {name: max(jax.tree.leaves(tree)) for name, tree in moved.items()}
    assert most["agent_0"] == most["agent_0_critic"] == 0
    assert min(most["agent_1"], most["agent_1_critic"]) > 1e-4


def test_what_does_not_fit_is_refused():
    odd = dataclasses.replace(
        recall(), action_space={"agent_0": Discrete(2), "agent_1": Discrete(3)}
    )
    for builder, settings in ((mappo, ON_POLICY), (vdn, OFF_POLICY)):
        with pytest.raises(UserError, match="one network, but their spaces differ"):
            builder(odd, settings | {"share_weights": True})
    with pytest.raises(UserError, match="sequences"):
        mappo(recall(), ON_POLICY | {"num_envs": 3, "recurrent": 4})
