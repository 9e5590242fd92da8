"""Hierarchical diffuser: what subgoals and segments hold, the losses, and where plans pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import hierarchical_diffuser as module
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep, Transition
from jaxrl.diffusion import VariancePreserving
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

ENV = envs.make("point_maze", dt=0.05)
SETTINGS = {
    "horizon": 4, "jump": 2, "execute": 2, "levels": 3, "width": 8, "blocks": 1, "dense": True,
    "guided": True,
}  # fmt: skip
RECIPE = module.recipe(ENV, Static(replace(module.Config(), SETTINGS)))
LOSSES = losses_of(RECIPE)
PROCESS = VariancePreserving(3, "cosine", prediction="clean", axes=2)
RNG = np.random.default_rng(0)


def window():
    """Two windows [5, 2]; the episode of the first ends with its second step."""
    no, ended = np.zeros((5, 2), bool), np.zeros((5, 2), bool)
    ended[1, 0] = True
    draw = lambda *shape: RNG.normal(size=(5, 2, *shape)).astype(np.float32)
    before = TimeStep(draw(4), draw(), no, no, no, goal=draw(2))
    after = TimeStep(draw(4), draw(), ended, no, no, goal=draw(2))
    return jax.tree.map(jnp.asarray, Transition(before, draw(2), after, (), {"achieved": draw(2)}))


def repeat_ends(x):
    """Observation, achieved goal and action of the windows [2, 5, .], the end of the first episode
    repeated."""
    found = []
    for part in (x.observation, x.extras["achieved"], x.action):
        part = np.asarray(part).swapaxes(0, 1).copy()
        part[0, 2:] = part[0, 1]
        found.append(part)
    return found


def subgoals(x):
    """Trajectories [2, 3, 10]: of every second step observation, goal and two actions."""
    seen, achieved, action = repeat_ends(x)
    moves = np.zeros((2, 3, 4), np.float32)
    for j in range(2):
        moves[:, j] = action[:, 2 * j : 2 * j + 2].reshape(2, 4)
    return np.concatenate([seen[:, ::2], achieved[:, ::2], moves], -1)


def segments(x):
    """Segments [2, 2, 3, 6] from one subgoal to the next."""
    seen, _, action = repeat_ends(x)
    both = np.concatenate([seen, action], -1)
    return np.stack([both[:, 0:3], both[:, 2:5]], 1)


KNOWN_HIGH = np.zeros((3, 10), bool)
KNOWN_HIGH[0, :4] = KNOWN_HIGH[2, 4:6] = True
KNOWN_LOW = np.zeros((3, 6), bool)
KNOWN_LOW[0, :4] = KNOWN_LOW[2, :4] = True


def test_the_losses():
    x = window()
    denoiser = lambda noisy, level: 0.5 * noisy + level[..., None, None]
    guide = lambda noisy, level: noisy[..., :1] + level[..., None, None]
    net = stub(
        planner=denoiser, filler=denoiser, guide=guide, key=bandit.key, hyper={"discount": 0.5}
    )
    for name, clean, known in (
        ("planner", subgoals(x), KNOWN_HIGH),
        ("filler", segments(x), KNOWN_LOW),
    ):
        noised = PROCESS.add_noise(bandit.key(name), jnp.asarray(clean))
        noisy = np.where(known, clean, noised.noisy)
        error = np.where(known, 0, np.asarray(denoiser(noisy, noised.level)) - clean)
        expected = (error**2).reshape(2, -1).mean(-1)
        expected = np.broadcast_to(expected, (5, 2))
        found = LOSSES[f"{name}_loss"](net, x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=name)
    clean = subgoals(x)
    noised = PROCESS.add_noise(bandit.key(), jnp.asarray(clean))
    noisy = np.where(KNOWN_HIGH, clean, noised.noisy)
    reward = np.asarray(x.reward)
    earned = [reward[0, 0] + 0.5 * reward[1, 0], (0.5 ** np.arange(4) * reward[:4, 1]).sum()]
    said = (noisy[..., 0] + np.asarray(noised.level)[:, None]).mean(-1)
    expected = np.broadcast_to(0.5 * (said - earned) ** 2, (5, 2))
    np.testing.assert_allclose(LOSSES["guide_loss"](net, x), expected, rtol=1e-4, atol=1e-5)


def test_plans_begin_here_end_at_the_goal_and_pass_the_first_subgoal():
    """The planner sees both ends at each step, and the filler the observation and the subgoal."""
    high, low = [], []

    def planner(noisy, level):
        high.append(noisy)
        return 0.3 * noisy + 0.1

    def filler(noisy, level):
        low.append(noisy)
        return 0.3 * noisy

    n = 3
    no = jnp.zeros(n, bool)
    goal = jnp.arange(6.0).reshape(n, 2)
    observation = 10 + jnp.arange(12.0).reshape(n, 4)
    seen = TimeStep(observation, jnp.zeros(n), no, no, ~no, goal=goal)
    pulls = []

    def guide(noisy, level):
        pulls.append(level)
        return 3 * noisy[..., 6:7]  # of the first action

    def plan(strength):
        net = stub(
            target={"planner": planner, "filler": filler},
            guide=guide,
            hyper={"guidance": np.float32(strength)},
        )
        high.clear(), low.clear()
        with jax.disable_jit():
            return RECIPE.act(net, seen, RECIPE.memory(n), random.key(3), True)

    action, memory, _ = plan(0.0)
    assert len(high) == len(low) == 3
    for noisy in high:
        np.testing.assert_array_equal(noisy[:, 0, :4], observation)
        np.testing.assert_array_equal(noisy[:, -1, 4:6], goal)
    # The last clean sample is the plan but for what is known of it.
    subgoal = 0.3 * np.asarray(high[-1][:, 1, :4]) + 0.1
    for noisy in low:
        np.testing.assert_array_equal(noisy[:, 0, :4], observation)
        np.testing.assert_allclose(noisy[:, -1, :4], subgoal, rtol=1e-5)
    expected = np.clip(0.3 * np.asarray(low[-1][:, :-1, 4:]), -1, 1)
    np.testing.assert_allclose(memory.steps, expected, rtol=1e-5)
    np.testing.assert_allclose(action, expected[:, 0], rtol=1e-5)
    unguided = high[-1][:, :, 6]
    plan(0.7)
    assert (high[-1][:, :, 6] > unguided + 0.01).all() and len(pulls) == 6


def test_goals_actions_and_returns_are_optional():
    config = replace(module.Config(), SETTINGS | {"guided": False, "dense": False})
    plain = module.recipe(envs.make("pendulum"), Static(config))
    assert set(plain.parts) == {"planner", "filler"} and not plain.needs
    assert plain.parts["planner"].inputs[0].shape == (1, 3, 3)
    assert plain.memory(2).steps.shape == (2, 2, 1)


def test_what_does_not_fit_is_refused():
    for more, text in (
        ({"jump": 3}, "jump is 3; it must divide the horizon of 4 steps"),
        ({"jump": 1}, "execute is 2; a segment .jump. has only 1 steps"),
        ({"num_envs": 2}, "learns from a dataset alone"),
    ):
        with pytest.raises(UserError, match=text):
            config = replace(module.Config(), SETTINGS | more)
            module.hierarchical_diffuser.agent(ENV, config)
