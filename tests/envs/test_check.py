"""`check_environment` accepts environments that keep the rules and names the broken rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import EnvironmentCheckError, check_environment
from jaxrl.envs.wrappers import continuing, frame_stack, observation_delay, sticky_actions
from jaxrl.envs.wrappers.time_limit import time_limit

STEPS = 8


@struct
class State:
    position: Array
    steps: Array
    key: Key  # states may hold typed keys


def _reset(key, params):
    position = jax.random.uniform(key, (), minval=-params["start"], maxval=params["start"])
    state = State(position, jnp.int32(0), key)
    return state, TimeStep(
        observation={"position": position[None], "side": (position > 0).astype(jnp.int32)},
        reward=jnp.float32(0),
        terminated=jnp.asarray(False),
        truncated=jnp.asarray(False),
        first=jnp.asarray(True),
        legal_actions=jnp.array([True, True, False]),
        metrics={"steps": jnp.float32(0)},
    )


def _step(key, state, action, params):
    wind = 0.1 * jax.random.normal(key)
    position = jnp.clip(state.position + (action - 0.5) * params["speed"] + wind, -1.0, 1.0)
    steps = state.steps + 1
    state = State(position, steps, jax.random.fold_in(state.key, 0))
    terminated = (jnp.abs(position) >= 1.0) | (action == 2)  # the third action is illegal
    return state, TimeStep(
        observation={"position": position[None], "side": (position > 0).astype(jnp.int32)},
        reward=position,
        terminated=terminated,
        truncated=(steps >= 20) & ~terminated,
        first=jnp.asarray(False),
        legal_actions=jnp.array([True, True, False]),
        metrics={"steps": steps.astype(jnp.float32)},
    )


line = Environment(
    name="line",
    reset=_reset,
    step=_step,
    params={"speed": 0.2, "start": np.float32(0.1), "lives": 3},
    observation_space={"position": Box(-1.0, 1.0, (1,)), "side": Discrete(2)},
    action_space=Discrete(3),
    max_steps=20,
    render=lambda state, params: np.zeros((4, 6, 3), np.uint8),
)


def _with_step(**changes: Any) -> Environment:
    """Build `line` whose step returns a time step with `changes`: values, or functions of the
    arguments `(timestep, state, params)`."""

    def step(key, state, action, params):
        state, timestep = _step(key, state, action, params)
        return state, dataclasses.replace(
            timestep,
            **{k: v(timestep, state, params) if callable(v) else v for k, v in changes.items()},
        )

    return dataclasses.replace(line, step=step)


def _with_reset(**changes: Any) -> Environment:
    def reset(key, params):
        state, timestep = _reset(key, params)
        return state, dataclasses.replace(timestep, **changes)

    return dataclasses.replace(line, reset=reset)


def _line_with_judge() -> Environment:
    """Build `line` with something to judge."""
    env = _with_step(privileged=lambda timestep, state, params: {"judged": state.position})
    reset = _with_reset(privileged={"judged": jnp.float32(0)}).reset
    return dataclasses.replace(env, reset=reset)


def _step_state(change) -> Environment:
    def step(key, state, action, params):
        state, timestep = _step(key, state, action, params)
        return change(state), timestep

    return dataclasses.replace(line, step=step)


def _step_reward(reward) -> Environment:
    return _with_step(reward=lambda timestep, state, params: reward(timestep.reward, params))


def _branches(key, state, action, params):
    if state.position > 0:
        action = 1 - action
    return _step(key, state, action, params)


def _uses_numpy(key, state, action, params):
    return _step(key, dataclasses.replace(state, position=np.abs(state.position)), action, params)


def _raises(key, state, action, params):
    raise KeyError("wall")


def _counts() -> Environment:
    """Build an environment whose reward counts calls: a trace freezes the count."""
    calls = []

    def reward(value, params):
        calls.append(1)
        return value + len(calls)

    return _step_reward(reward)


def _leaks() -> Environment:
    kept = []

    def reward(value, params):
        kept.append(value)
        return value

    return _step_reward(reward)


def _eager_differs() -> Environment:
    return _step_reward(
        lambda value, params: value if isinstance(value, jax.core.Tracer) else value + 0.5
    )


def _raw_key(key, params):
    return _reset(jax.random.wrap_key_data(key), params)


def _vmap_differs() -> Environment:
    @jax.custom_batching.custom_vmap
    def identity(x):
        return x

    @identity.def_vmap
    def _(size, batched, x):
        return x + 0.5, True

    return _step_reward(lambda value, params: identity(value))


def _no_vmap() -> Environment:
    @jax.custom_batching.custom_vmap
    def identity(x):
        return x

    @identity.def_vmap
    def _(size, batched, x):
        raise NotImplementedError("no batches here")

    return _step_reward(lambda value, params: identity(value))


def _params_not_batched() -> Environment:
    @jax.custom_batching.custom_vmap
    def scale(x, speed):
        return x * speed

    @scale.def_vmap
    def _(size, batched, x, speed):
        return x * speed[0], True

    return _step_reward(lambda value, params: 100 * scale(value, params["speed"]))


def _replace(**changes: Any) -> Environment:
    return dataclasses.replace(line, **changes)


ASKED = {"goal": jnp.zeros(1)}


def _with_goals(achieved, outcome) -> Environment:
    env = _with_step(**ASKED)
    return dataclasses.replace(
        env, reset=_with_reset(**ASKED).reset, goals=Goals(achieved, outcome)
    )


def _state(position):
    return State(position, jnp.int32(0), jax.random.key(0))


def _place(observation):
    return observation["position"]


ZERO = jnp.float32(0)
SAME_RESULT = "it must be a pure function"

BROKEN = {
    # description
    "not an environment": ("line", "is a str; it must be an Environment"),
    "space of another library": (_replace(action_space="Discrete(3)"), "action_space holds 'Disc"),
    "no space": (_replace(observation_space={}), "observation_space is empty"),
    "empty discrete": (_replace(action_space=Discrete(0)), "Discrete(0); it needs at least one"),
    "empty component": (_replace(action_space=MultiDiscrete((2, 0))), "each size must be at least"),
    "bounds of another shape": (
        _replace(action_space=Box((0.0, 0.0), 1.0, (3,))),
        "action_space has bounds that do not fit its shape (3,)",
    ),
    "bounds swapped": (_replace(action_space=Box(1.0, 0.0, (3,))), "low must not exceed high"),
    "params with a string": (
        _replace(params={**line.params, "map": "S..G"}),
        "params['map'] is 'S..G'; every leaf of params must be a number or an array",
    ),
    "no steps allowed": (_replace(max_steps=0), "max_steps is 0; it must be a positive integer"),
    # structure
    "reset returns a time step only": (
        _replace(reset=lambda key, params: _reset(key, params)[1]),
        "reset returns a TimeStep; it must return (state, TimeStep)",
    ),
    "step of another interface": (
        _replace(step=lambda k, s, a, p: (s.position, 0.0, True, False, {})),
        "step returns a tuple of 5 (",
    ),
    "Python branch": (_replace(step=_branches), "step uses a traced value as a Python or NumPy"),
    "NumPy on a tracer": (_replace(step=_uses_numpy), "step uses a traced value as a Python or"),
    "raises": (_replace(step=_raises), "step raises KeyError ('wall') when it is traced"),
    "old-style key": (_replace(reset=_raw_key), "reset raises TypeError"),
    "leaked tracer": (_leaks(), "step keeps a traced value after it returned"),
    "state grows": (
        _step_state(lambda s: dataclasses.replace(s, steps=(s.steps, s.steps))),
        "reset returns state with the structure",
    ),
    "state changes dtype": (
        _step_state(lambda s: dataclasses.replace(s, steps=s.steps.astype(jnp.float32))),
        "reset returns state.steps as int32[] and step as float32[]",
    ),
    "state changes shape": (
        _step_state(lambda s: dataclasses.replace(s, position=s.position[None])),
        "reset returns state.position as float32[] and step as float32[1]",
    ),
    "channel only after steps": (
        _with_step(cost=ZERO),
        "step sets the channel 'cost' and reset leaves it None",
    ),
    "channel only after resets": (_with_step(legal_actions=None), "reset sets the channel 'legal_"),
    "metrics with other names": (
        _with_step(metrics={"success": ZERO}),
        "reset returns metrics with the structure",
    ),
    "observation of another structure": (
        _with_step(observation=jnp.zeros(1)),
        "step returns an observation with the structure PyTreeDef(*)",
    ),
    "observation of another shape": (
        _with_reset(observation={"position": jnp.zeros(2), "side": jnp.int32(0)}),
        "reset returns observation['position'] as float32[2]; observation_space says float32[1]",
    ),
    "observation of another dtype": (
        _with_step(observation={"position": jnp.zeros(1), "side": ZERO}),
        "step returns observation['side'] as float32[]; observation_space says int32[]",
    ),
    "a score that is not a metric": (
        _replace(scores={"laps": "laps"}),
        "scores names 'laps', which reset does not report; it must be one of metrics",
    ),
    "integer reward": (
        _with_step(reward=jnp.int32(1)),
        "step returns a reward as int32[]; it must",
    ),
    "reward matrix": (
        _with_step(reward=jnp.zeros((1, 1))),
        "step returns a reward as float32[1, 1",
    ),
    "float flag": (_with_step(terminated=ZERO), "step returns terminated as float32[]; it must be"),
    "vector flag": (
        _with_reset(first=jnp.ones(1, bool)),
        "reset returns first as bool[1]; it must",
    ),
    # values
    "observation out of bounds": (
        _with_step(observation=lambda t, s, p: {**t.observation, "position": jnp.full(1, 1.5)}),
        "step returns an observation['position'] with the value 1.5",
    ),
    "observation is nan": (
        _with_step(observation=lambda t, s, p: {**t.observation, "position": jnp.full(1, jnp.nan)}),
        "step returns an observation['position'] with the value nan",
    ),
    "observation beyond its discrete": (
        _with_reset(observation={"position": jnp.zeros(1), "side": jnp.int32(2)}),
        "reset returns an observation['side'] with the value 2",
    ),
    "infinite reward": (
        _with_step(reward=jnp.float32(np.inf)),
        "the reward inf; it must be finite",
    ),
    "reset is not first": (_with_reset(first=jnp.asarray(False)), "reset returns first=False"),
    "step is first": (_with_step(first=jnp.asarray(True)), "step returns first=True"),
    "reset is over": (
        _with_reset(truncated=jnp.asarray(True)),
        "reset returns a time step that is",
    ),
    "reset pays": (
        _with_reset(reward=jnp.float32(1)),
        "reset returns the reward 1.0; it must be 0",
    ),
    "both ends": (
        _with_step(terminated=lambda t, s, p: t.done, truncated=lambda t, s, p: t.done),
        "step returns both terminated and truncated as true",
    ),
    "counts its calls": (_counts(), "step returns a different timestep.reward when it is called"),
    "eager differs": (
        _eager_differs(),
        "step returns a different timestep.reward with and without jit",
    ),
    "no vmap": (_no_vmap(), "step raises NotImplementedError (no batches here) under vmap"),
    "vmap differs": (_vmap_differs(), "step returns a different timestep.reward under vmap"),
    "one parameter for a batch": (_params_not_batched(), "step returns a different timestep.rewar"),
    "no end": (
        _with_step(truncated=jnp.asarray(False), terminated=jnp.asarray(False)),
        "step leaves an episode running after 20 steps, which is max_steps",
    ),
    "mask of another size": (
        dataclasses.replace(line, action_space=Discrete(4)),
        "legal_actions are bool[3]; for Discrete(n=4) they must be bool[4]",
    ),
    "nothing is legal": (
        _with_step(legal_actions=lambda t, s, p: t.legal_actions & (s.steps < 2)),
        "step returns legal_actions of which none is legal",
    ),
    "expert of other actions": (
        _replace(expert=lambda state, params: {"push": state.position}),
        "expert returns what has the structure",
    ),
    "expert out of range": (
        _replace(expert=lambda state, params: state.steps + 3),
        "with the value 3; it must be an element of action_space, Discrete(n=3)",
    ),
    "goals of another shape": (
        _with_goals(lambda o: o["side"], lambda a, g, p: (a, a > 0)),
        "goals.achieved returns ['int32[]'] and the channel 'goal' is ['float32[1]']",
    ),
    "outcome for each entry": (
        _with_goals(_place, lambda a, g, p: (a - g, a > g)),
        "goals.outcome returns ['float32[1]', 'bool[1]']; it must return",
    ),
    "goals of one observation only": (
        _with_goals(lambda o: _place(o)[:1], lambda a, g, p: ((a - g)[0], (a > g)[0])),
        "goals.achieved returns ['float32[1, 7, 1]'] for observations with the leading axes [5, 7]",
    ),
    "goals that end other steps": (
        _with_goals(_place, lambda a, g, p: ((a - g)[0], (a > -2)[0])),
        "goals.outcome terminates a step that the environment does not",
    ),
    "a state of another structure": (
        _replace(state_of=lambda timestep: timestep.observation["position"][0]),
        "state_of returns",
    ),
    "a state that goes on in another way": (
        _replace(state_of=lambda timestep: _state(timestep.observation["position"][0] + 0.1)),
        "a step from state_of leads to another observation than the step from the state",
    ),
    "a judge of nothing": (
        _replace(judge=lambda judged, other: judged > other),
        "judge has nothing to compare; time steps need privileged['judged']",
    ),
    "a judge of one word": (
        dataclasses.replace(_line_with_judge(), judge=lambda judged, other: jnp.float32(0.5)),
        "judge must return one probability in [0, 1] for each pair",
    ),
    "a judge with a favorite place": (
        dataclasses.replace(_line_with_judge(), judge=lambda judged, other: 0.4 + 0 * judged),
        "judge prefers one of two and the other with probabilities that do not add to 1",
    ),
    "no time in a step": (
        _replace(step_seconds=lambda state, params: 0.0),
        "step_seconds returns 0.0; it must return a positive number",
    ),
    "float picture": (
        _replace(render=lambda state, params: np.zeros((4, 6, 3))),
        "render returns a float64 array [4, 6, 3]; it must return a uint8 array",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_broken_rule_is_named(case):
    env, message = BROKEN[case]
    with pytest.raises(EnvironmentCheckError) as error:
        check_environment(env, STEPS)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, UserError)


def test_an_environment_that_keeps_every_rule_passes():
    """Check dict spaces, a typed key in the state, legal actions, metrics, integer parameters."""
    check_environment(line, STEPS)


def test_a_wrapped_environment_passes():
    check_environment(time_limit(line, 5), STEPS)


def test_a_judge_passes():
    judge = lambda judged, other: jax.nn.sigmoid(judged - other)
    check_environment(dataclasses.replace(_line_with_judge(), judge=judge), STEPS)


def test_states_of_time_steps_pass():
    """Check one that does not tell the clock, and the typed key of `line`, which nothing reads."""
    env = _replace(state_of=lambda timestep: _state(timestep.observation["position"][0]))
    check_environment(env, STEPS)
    check_environment(time_limit(env, 5), STEPS)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("pendulum", {}),
        ("cartpole", {}),
        ("point_maze", {}),
        ("chain", {}),
        ("frozen_lake", {"observation": "index"}),
    ],
)
def test_built_in_environments_tell_states(name, settings):
    """Check the pendulum beyond a whole turn, where the angle differs and nothing else."""
    env = envs.make(name, **settings)
    assert env.state_of is not None
    check_environment(env, STEPS)


@pytest.mark.parametrize("wrapper", [frame_stack, observation_delay, sticky_actions, continuing])
def test_wrappers_with_another_state_tell_none(wrapper):
    assert wrapper(envs.make("cartpole")).state_of is None


def test_rewards_of_several_agents_pass():
    def reset(key, params):
        state, timestep = _reset(key, params)
        return state, dataclasses.replace(timestep, reward=jnp.zeros(2), legal_actions=None)

    def step(key, state, action, params):
        state, timestep = _step(key, state, action["left"], params)
        reward = timestep.reward * jnp.array([1.0, -1.0])
        return state, dataclasses.replace(timestep, reward=reward, legal_actions=None)

    space = {"left": Discrete(2), "right": MultiDiscrete((2, 3))}
    check_environment(_replace(reset=reset, step=step, action_space=space), STEPS)


def test_an_endless_environment_passes_and_long_episodes_are_not_run():
    endless = _with_step(truncated=jnp.asarray(False), terminated=jnp.asarray(False))
    check_environment(dataclasses.replace(endless, max_steps=None), 4)
    check_environment(dataclasses.replace(endless, max_steps=10_000), 4)


@pytest.mark.slow
def test_illegal_actions_are_never_taken():
    """Check that a rollout of legal actions does not terminate; the third action of `line`
    would."""

    def step(key, state, action, params):
        state, timestep = _step(key, state, action, params)
        return state, dataclasses.replace(
            timestep, reward=jnp.where(action == 2, jnp.nan, timestep.reward)
        )

    check_environment(_replace(step=step), 32)
    everything = {"legal_actions": None}
    illegal = dataclasses.replace(
        _with_reset(**everything),
        step=lambda *a: (lambda r: (r[0], dataclasses.replace(r[1], **everything)))(step(*a)),
    )
    with pytest.raises(EnvironmentCheckError, match="reward nan"):
        check_environment(illegal, 32)


def test_steps_must_be_positive():
    with pytest.raises(UserError, match="steps=0; it must be at least 1"):
        check_environment(line, 0)
