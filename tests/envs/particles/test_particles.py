"""Particle environments: steps as JaxMARL's, both kinds of actions, rewards, and the experts."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.particles import mechanics
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

# One step of each scenario in JaxMARL 0.2.0, from crowded places, with discrete actions.
STEPS = json.loads((Path(__file__).parent / "jaxmarl_steps.json").read_text())
NAMES = ("simple_spread", "simple_tag", "simple_adversary", "simple_speaker_listener")
OURS = {"listener_0": "listener", "speaker_0": "speaker", "adversary_0": "adversary"}


def own_name(theirs, scenario):
    if scenario == "tag":
        return theirs.replace("adversary", "pursuer").replace("agent", "runner")
    return OURS.get(theirs, theirs)


def inner(env, place, velocity, said, target):
    """A state of the environment without its clock's."""
    state = env.reset(random.key(0), env.params)[0]
    begun = mechanics.State(*(jnp.asarray(x) for x in (place, velocity, said)), jnp.int32(target))
    return (
        state.replace(inner=begun) if hasattr(state, "replace") else type(state)(begun, state.steps)
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_rules_of_environments(name):
    check_environment(make(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_jaxmarls(name):
    scenario = name.removeprefix("simple_")
    told = STEPS[scenario]
    each = {} if name in ("simple_tag", "simple_adversary") else {"reward": "each"}
    env = make(name, actions="discrete", **each)
    words = np.zeros(3 if scenario == "speaker_listener" else 0, np.float32)
    state = inner(env, np.float32(told["place"]), np.float32(told["velocity"]), words, 1)
    action = {own_name(a, scenario): jnp.int32(x) for a, x in told["action"].items()}
    assert set(action) == set(env.agents)
    _, timestep = jax.jit(env.step)(random.key(1), state, action, env.params)
    for theirs, seen in told["observation"].items():
        ours = timestep.observation[own_name(theirs, scenario)]
        theirs_without_words = seen[: len(ours)] if scenario == "spread" else seen
        np.testing.assert_allclose(ours, theirs_without_words, atol=2e-5)
    rewards = {own_name(a, scenario): x for a, x in told["reward"].items()}
    np.testing.assert_allclose(timestep.reward, [rewards[a] for a in env.agents], atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_both_kinds_of_actions_push_alike(name):
    envs = {kind: make(name, actions=kind) for kind in mechanics.ACTIONS}
    state, _ = envs["discrete"].reset(random.key(2), envs["discrete"].params)
    chosen = {
        a: jnp.int32(i % s.n) for i, (a, s) in enumerate(envs["discrete"].action_space.items())
    }
    as_force = {
        a: jax.nn.one_hot(x, 3) if a == "speaker" else jnp.asarray(mechanics.PUSHES)[x]
        for a, x in chosen.items()
    }
    both = [
        jax.jit(envs[kind].step)(random.key(3), state, action, envs[kind].params)[1]
        for kind, action in (("discrete", chosen), ("continuous", as_force))
    ]
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_a_shared_reward_is_the_sum():
    each, shared = (make("simple_spread", reward=reward) for reward in ("each", "sum"))
    state, timestep = each.reset(random.key(4), each.params)
    assert timestep.reward.shape == (3,)
    action = {a: jnp.ones(2) for a in each.agents}
    rewards = [
        env.step(random.key(5), state, action, env.params)[1].reward for env in (each, shared)
    ]
    np.testing.assert_allclose(rewards[0].sum(), rewards[1], rtol=1e-6)


# Expert's return against random play's: a figure that the expert must reach, and its metric.
GOOD = {
    "simple_spread": (-50.0, "covered", 0.6),
    "simple_speaker_listener": (-25.0, "success", 0.55),  # discrete pushes shake it
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("actions", mechanics.ACTIONS)
def test_experts_solve_what_is_cooperative(name, actions):
    least, metric, share = GOOD[name]
    env = expert_channel(make(name, actions=actions))
    played = evaluate(env, expert_policy(env), random.key(6), 256)
    chance = evaluate(env, random_policy(env), random.key(7), 256)
    assert float(played.returns.mean()) > least > float(chance.returns.mean()) + 5
    assert float(played.metrics[metric].mean()) > share


def test_experts_hunt_flee_and_deceive():
    def returns(name, players, key):
        """Mean returns by agent where `players` play as experts and the others at random."""
        env = make(name)
        guided = expert_channel(env)
        expert, chance = expert_policy(guided), random_policy(guided)

        def act(state, timestep, memory, key, greedy):
            one = expert.act((), timestep, (), key, greedy)[0]
            other = chance.act((), timestep, (), key, greedy)[0]
            return {a: (one if a in players else other)[a] for a in one}, memory, {}

        policy = type(expert)(act, lambda n: ())
        played = evaluate(guided, policy, random.key(key), 256)
        return dict(zip(env.agents, np.asarray(played.returns).mean(0), strict=True)), played

    hunters = ("pursuer_0", "pursuer_1", "pursuer_2")
    hunted, _ = returns("simple_tag", hunters, 8)
    fled, _ = returns("simple_tag", (*hunters, "runner_0"), 9)
    idle, _ = returns("simple_tag", (), 10)
    assert hunted["pursuer_0"] > 3 * idle["pursuer_0"] > 0
    assert fled["runner_0"] > hunted["runner_0"] + 10
    team = ("agent_0", "agent_1")
    good, played = returns("simple_adversary", (*team, "adversary"), 11)
    watched, _ = returns("simple_adversary", ("adversary",), 12)
    blind, _ = returns("simple_adversary", team, 13)
    assert good["agent_0"] > watched["agent_0"] + 2 and good["adversary"] > blind["adversary"] + 2
    assert float(played.metrics["fooled"].mean()) > 0.9


def test_bad_options_are_refused():
    with pytest.raises(UserError, match="The actions of 'simple_tag' is 'none'"):
        make("simple_tag", actions="none")
    with pytest.raises(UserError, match="The agents of 'simple_spread' is 1"):
        make("simple_spread", agents=1)
    with pytest.raises(UserError, match="The reward of 'simple_spread' is 'mine'"):
        make("simple_spread", reward="mine")
