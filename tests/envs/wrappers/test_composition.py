"""Wrappers around wrappers: the rules, parameters by name, and environments that cannot be
wrapped."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.envs import wrappers as w
from jaxrl.envs.check_structure import check_description, check_structure
from jaxrl.envs.goals import relabel
from jaxrl.envs.policies import expert_policy
from tests.envs.wrappers import environments


def _nest(env, *functions):
    return functools.reduce(lambda env, function: function(env), functions, env)


def _draw(key, params):
    name = "gravity" if hasattr(params, "gravity") else "end"
    value = jax.random.uniform(key, minval=4.0, maxval=9.0)
    return dataclasses.replace(params, **{name: value})


def _sum(timestep, action, next_timestep):
    return jnp.abs(next_timestep.reward) * 2


PARTS = {"sum": _sum, "paid": lambda t, a, n: n.reward}


def _place(observation):
    return observation["place"] if isinstance(observation, dict) else observation[..., :1]


def _draw_goal(key, params):
    return jax.random.uniform(key, (1,))


def _near(achieved, goal, params):
    there = jnp.abs(achieved - goal)[0] < 0.1
    return -1.0 + there, there


def cartpole():
    return envs.make("cartpole")


def pendulum():
    return envs.make("pendulum")


def sums():
    return envs.make("addition", digits=1)


def image():
    return environments.walk(observe="image")


def legal():
    return environments.walk(legal=True)


ONE = {  # every wrapper: a call of it, and environments that it can wrap
    "action_delay": (lambda e: w.action_delay(e, 3, 2), (cartpole, pendulum, environments.walk)),
    "action_noise": (w.action_noise, (pendulum, environments.arm)),
    "action_repeat": (lambda e: w.action_repeat(e, 2), (cartpole, pendulum, environments.walk)),
    "continuing": (w.continuing, (cartpole, pendulum, legal)),
    "cost": (lambda e: w.cost(e, _sum), (cartpole, pendulum, legal)),
    "cost_budget": (lambda e: w.cost(e, _sum, 9.0), (cartpole, pendulum, legal)),
    "discretized_actions": (w.discretized_actions, (pendulum, environments.arm)),
    "distractors": (w.distractors, (cartpole, pendulum, legal, image)),
    "early_truncation": (w.early_truncation, (cartpole, pendulum, legal)),
    "expert_channel": (w.expert_channel, (legal, environments.crane, environments.arm)),
    "expert_prefix": (lambda e: w.expert_prefix(e, 2), (sums,)),
    "flat_actions": (w.flat_actions, (environments.crane,)),
    "flat_observations": (w.flat_observations, (cartpole, legal, image)),
    "forced_text": (lambda e: w.forced_text(e, 2), (sums,)),
    "frame_stack": (w.frame_stack, (cartpole, pendulum, legal, image)),
    "goal_conditioned": (
        lambda e: w.goal_conditioned(e, _place, _draw_goal, _near),
        (cartpole, pendulum, legal),
    ),
    "image_distractors": (w.image_distractors, (image,)),
    "observation_delay": (lambda e: w.observation_delay(e, 2), (cartpole, pendulum, legal)),
    "observation_noise": (w.observation_noise, (cartpole, pendulum, legal, image)),
    "random_actions": (w.random_actions, (cartpole, legal, environments.crane)),
    "domain_randomization": (
        lambda e: w.domain_randomization(e, _draw),
        (cartpole, pendulum, legal),
    ),
    "reward_components": (lambda e: w.reward_components(e, PARTS), (cartpole, pendulum, legal)),
    "reward_weights": (
        lambda e: w.reward_components(e, PARTS, {"sum": 1.0, "paid": 0.5}),
        (cartpole, pendulum, legal),
    ),
    "skills": (lambda e: w.skills(e, 3), (cartpole, pendulum, legal)),
    "start_key": (w.start_key, (cartpole, pendulum, legal)),
    "sticky_actions": (w.sticky_actions, (cartpole, pendulum, legal, environments.crane)),
    "time_limit": (lambda e: w.time_limit(e, 9), (cartpole, pendulum, legal)),
}


@pytest.mark.parametrize("name", ONE)
def test_resets_and_steps_have_one_structure_around_any_environment(name):
    # Only what the check finds without running; the whole check runs on the nests below: compiling
    # each pair here would take minutes.
    wrap, makes = ONE[name]
    for make in makes:
        env = wrap(make())
        check_description(env)
        check_structure(env)
        assert env.name == make().name
        assert env is wrap(make())


def test_every_wrapper_is_among_them():
    assert set(w.__all__) <= set(ONE)


NESTS = {
    "walk": lambda: _nest(
        environments.walk(legal=True, observe="vector"),
        lambda e: w.domain_randomization(e, _draw),
        w.sticky_actions,
        lambda e: w.goal_conditioned(e, _place, _draw_goal, _near),
        lambda e: w.time_limit(e, 7),
        lambda e: w.frame_stack(e, 2),
        w.flat_observations,
    ),
    "image": lambda: _nest(
        image(),
        w.random_actions,
        lambda e: w.reward_components(e, PARTS),
        w.early_truncation,
        lambda e: w.time_limit(e, 9),
        lambda e: w.image_distractors(e, 2),
        lambda e: w.observation_delay(e, 2),
        w.expert_channel,
    ),
    "arm": lambda: _nest(
        environments.arm(),
        w.action_noise,
        lambda e: w.action_repeat(e, 3),
        lambda e: w.action_delay(e, 2),
        lambda e: w.cost(e, _sum, 30.0),
        w.continuing,
        lambda e: w.time_limit(e, 10),
        lambda e: w.discretized_actions(e, 5),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTS)
def test_nested_wrappers_keep_every_rule(name):
    env = NESTS[name]()
    # Jitted first: otherwise hundreds of operations would be compiled one by one.
    env = dataclasses.replace(env, reset=jax.jit(env.reset), step=jax.jit(env.step))
    envs.check_environment(env, steps=24)


@pytest.mark.parametrize("name", NESTS)
def test_the_same_arguments_give_the_same_object(name):
    assert NESTS[name]() is NESTS[name]()


def test_fields_that_are_passed_on_reach_the_wrapped_environment():
    walk = environments.walk(observe="vector")
    env = _nest(
        walk,
        lambda e: w.observation_noise(e, 0.0),
        w.sticky_actions,
        lambda e: w.frame_stack(e, 2),
        lambda e: w.observation_delay(e, 1),
        lambda e: w.time_limit(e, 9),
    )
    assert (env.name, env.max_steps, env.action_space) == ("walk", 9, walk.action_space)
    states, _ = environments.play(env, jnp.ones(4, jnp.int32))
    state = jax.tree.map(lambda x: x[3], states)
    np.testing.assert_array_equal(env.render(state, env.params), np.full((2, 3, 3), 3))
    assert int(env.expert(state, env.params)) == 1
    late = dataclasses.replace(env.params.inner.inner, inner=environments.Params(end=1.0))
    inner = dataclasses.replace(env.params.inner, inner=late)
    assert int(env.expert(state, dataclasses.replace(env.params, inner=inner))) == 0


@pytest.mark.parametrize(
    "wrapper",
    [
        w.continuing,
        w.flat_observations,
        w.sticky_actions,
        lambda env: w.domain_randomization(env, lambda key, params: params),
        lambda env: w.time_limit(env, 2),
    ],
)
def test_a_wrapped_game_is_another_one(wrapper):
    game = envs.make("kuhn_poker")
    assert game.rules is not None and wrapper(game).rules is None


def test_a_clock_inside_and_a_clock_outside():
    ends = {}
    for place, functions in {
        "inside": (lambda e: w.time_limit(e, 4), lambda e: w.action_repeat(e, 2)),
        "outside": (lambda e: w.action_repeat(e, 2), lambda e: w.time_limit(e, 4)),
    }.items():
        got = environments.timesteps_of(
            _nest(environments.walk(observe="vector"), *functions), jnp.zeros(4, jnp.int32)
        )
        ends[place] = int(np.argmax(got.truncated))
    assert ends == {"inside": 2, "outside": 4}


# ------------------------------------------------------------------------------- parameters by name

noisy_walk = w.observation_noise(
    w.action_delay(w.time_limit(environments.walk(observe="vector"), 9), 3), (0.1, 0.2)
)
twice_noisy = w.observation_noise(noisy_walk, 0.5)
bare = w.sticky_actions(environments.crane())
HERE = __name__


def test_make_finds_parameters_at_any_depth():
    env = envs.make(f"{HERE}:noisy_walk", end=3, action_delay=2, observation_noise=[1, 2])
    np.testing.assert_array_equal(env.params.observation_noise, np.float32([1, 2]))
    assert env.params.inner.action_delay == 2
    assert dataclasses.astuple(env.params.inner.inner) == (3.0, 1.0)
    assert env is envs.make(f"{HERE}:noisy_walk", observation_noise=(1.0, 2), action_delay=2, end=3)
    assert envs.make(f"{HERE}:noisy_walk") is noisy_walk
    assert dataclasses.astuple(noisy_walk.params.inner.inner) == (5.0, 1.0)
    assert envs.make(f"{HERE}:twice_noisy", slope=2).params.inner.inner.inner.slope == 2.0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("noisy_walk", {"slop": 1}, "Unknown parameter of 'walk' 'slop'; did you mean 'slope'?"),
        ("noisy_walk", {"inner": 1}, "Unknown parameter of 'walk' 'inner'"),
        ("noisy_walk", {"action_delay": 1.5}, "it must be an integer, such as 3"),
        ("twice_noisy", {"observation_noise": 1.0}, "2 parts of 'walk' have a parameter 'obs"),
        ("bare", {"stickines": 1.0}, "did you mean 'stickiness'?"),
    ],
)
def test_settings_that_cannot_be_set_are_one_sentence(name, settings, message):
    with pytest.raises(UserError) as error:
        envs.make(f"{HERE}:{name}", **settings)
    assert message in str(error.value)


# ----------------------------------------------------------------------------------- bad arguments

walk, crane, arm = environments.walk, environments.crane, environments.arm


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: w.observation_noise(walk(), -1), "'walk' is -1; it must be a finite number of at"),
        (lambda: w.observation_noise(walk(), {"a": 1}), "have the structure of the observation"),
        (lambda: w.observation_noise(arm(), (1, 2, 3)), "array of such numbers for the shape (2,)"),
        (lambda: w.observation_noise(arm(), "loud"), "'loud'; it must be a finite number"),
        (lambda: w.observation_noise(arm(), [[1, 2], [3]]), "[[1, 2], [3]]; it must be a finite"),
        (lambda: w.action_noise(walk()), "'walk' is Discrete(n=3); action noise needs one Box"),
        (lambda: w.action_noise(arm(), 1, 1.5), "is 1.5; it must be a number from 0 to 1"),
        (lambda: w.random_actions(arm()), "random actions need a Discrete"),
        (lambda: w.random_actions(walk(), float("nan")), "is nan; it must be a number from 0"),
        (
            lambda: w.action_delay(walk(), 0),
            "longest action delay of 'walk' is 0; it must be a pos",
        ),
        (lambda: w.action_delay(walk(), 2, 3), "'walk' is 3; it must be an integer from 0 to 2"),
        (lambda: w.action_delay(walk(True)), "without the channel legal_actions"),
        (lambda: w.observation_delay(walk(), 2, -1), "is -1; it must be an integer from 0 to 2"),
        (lambda: w.sticky_actions(walk(), True), "'walk' is True; it must be a number from 0 to 1"),
        (lambda: w.action_repeat(walk(), 1.5), "'walk' is 1.5; it must be a positive integer"),
        (lambda: w.action_repeat(crane(), 2), "'crane', whose legal actions change"),
        (lambda: w.frame_stack(walk(), 0), "'walk' is 0; it must be a positive integer"),
        (lambda: w.distractors(walk(), 0), "number of distractors of 'walk' is 0"),
        (lambda: w.distractors(walk(), 2, (0.1, 0.2, 0.3)), "for the shape (2,)"),
        (lambda: w.distractors(w.distractors(walk())), "has 'distractors' already"),
        (lambda: w.image_distractors(walk()), "need one Box [H, W, C] with finite bounds"),
        (lambda: w.image_distractors(walk(observe="image"), 1, 2.0), "number from 0 to 1"),
        (
            lambda: w.domain_randomization(walk(), lambda key, p: 3.0),
            "it must match its params, {'.end'",
        ),
        (lambda: w.reward_components(walk(), {}), "must be functions by name, at least one"),
        (lambda: w.reward_components(walk(), PARTS, {"sum": 1.0}), "for its components, ['paid',"),
        (lambda: w.cost(crane()), "'crane' has no costs; cost needs a function"),
        (lambda: w.cost(walk(), budget=-1.0), "cost budget of 'walk' is -1.0"),
        (lambda: w.early_truncation(walk(), 2), "is 2; it must be a number from 0 to 1"),
        (
            lambda: w.goal_conditioned(
                w.goal_conditioned(arm(), _place, _draw_goal, _near), _place, _draw_goal, _near
            ),
            "'arm' has goals already",
        ),
        (lambda: w.goal_conditioned(arm(), lambda x: x, _draw_goal, _near), "arrays of one shape"),
        (lambda: w.discretized_actions(walk()), "only one Box of floats with finite bounds"),
        (
            lambda: w.discretized_actions(
                dataclasses.replace(arm(), action_space=Box(-1.0, (1.0, float("inf")), (2,)))
            ),
            "only one Box of floats with finite bounds",
        ),
        (lambda: w.discretized_actions(arm(), (3, 4, 5)), "are (3, 4, 5); they must be an integer"),
        (lambda: w.discretized_actions(arm(), 1), "an integer of at least 2, or 2 of them"),
        (lambda: w.discretized_actions(arm(), 2000), "have 4000000 combinations"),
        (lambda: w.flat_actions(arm()), "flat_actions needs a MultiDiscrete space"),
        (
            lambda: w.expert_channel(dataclasses.replace(cartpole(), expert=None)),
            "'cartpole' has no expert",
        ),
        (lambda: expert_policy(arm()), "it must be wrapped in expert_channel"),
        (
            lambda: expert_policy(w.discretized_actions(w.expert_channel(arm()))),
            "expert_channel must be outside of wrappers that change actions",
        ),
        (lambda: relabel(arm(), None, None), "'arm' has no goals"),  # pyright: ignore
    ],
)
def test_environments_that_cannot_be_wrapped_are_one_sentence(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
