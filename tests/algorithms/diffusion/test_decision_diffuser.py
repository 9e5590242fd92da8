"""Decision diffuser: what the model is told, its losses, and the laws of composed plans."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import decision_diffuser as module
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep, Transition
from jaxrl.diffusion import VariancePreserving
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

ENV = envs.make("pendulum")
LEVELS, HORIZON = 6, 4
SETTINGS = {"horizon": HORIZON, "execute": 2, "levels": LEVELS, "width": 8, "blocks": 1}
REGIONS = {"condition": "regions", "regions": (0, -0.5, 0.5, 2, 0, 9)}
PROCESS = VariancePreserving(LEVELS, "cosine", axes=2)
RNG = np.random.default_rng(0)


def config(**changes):
    return replace(module.Config(), SETTINGS | changes)


def steps(n=12):
    """Steps [n] of three episodes, of 5, 4 and (cut off) 3 steps."""
    no, ended = np.zeros(n, bool), np.zeros(n, bool)
    ended[[4, 8]] = True
    first = np.roll(ended, 1)
    first[0] = True
    draw = lambda *shape: RNG.normal(size=(n, *shape)).astype(np.float32)
    before = TimeStep(draw(3), draw(), no, no, first)
    after = TimeStep(draw(3), draw(), ended, no, no)
    return Transition(before, draw(1), after, (), {})


def window(known):
    """Two windows [4, 2]; the episode of the first ends with its second step."""
    no, ended = np.zeros((4, 2), bool), np.zeros((4, 2), bool)
    ended[1, 0] = True
    draw = lambda *shape: RNG.normal(size=(4, 2, *shape)).astype(np.float32)
    before = TimeStep(draw(3), draw(), no, no, no)
    after = TimeStep(draw(3), draw(), ended, no, no)
    extras = {module.CONDITION: np.float32(known)}
    return jax.tree.map(jnp.asarray, Transition(before, draw(1), after, (), extras))


def test_returns_are_those_of_the_rest_of_the_episode_or_of_the_plan():
    x, rate = steps(), 0.9
    ends = np.array([5] * 5 + [9] * 4 + [12] * 3)
    raw = {"episode": [], "plan": []}
    for i in range(12):
        reward = np.asarray(x.reward)[i : ends[i]]
        weight = rate ** np.arange(len(reward))
        raw["episode"].append((weight * reward).sum())
        raw["plan"].append(np.average(reward[:HORIZON], weights=weight[:HORIZON]))
    for kind, found in raw.items():
        found = np.array(found)
        expected = (found - found.min()) / (found.max() - found.min())
        scaled = module.scaled_returns(x, config(returns=kind, discount=rate))
        np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=1e-6)


def test_what_the_model_is_told():
    """A return with a flag; of the satisfied regions one, each as likely; or nothing."""
    n = 4000
    known = jnp.linspace(0, 1, n)[:, None]
    said = np.asarray(module.training_conditions(random.key(0), known, jnp.float32(0.25), "return"))
    kept = said[:, 1] == 1
    assert abs(kept.mean() - 0.75) < 0.03 and (said[~kept] == 0).all()
    np.testing.assert_allclose(said[kept, 0], np.asarray(known)[kept, 0])
    held = jnp.tile(jnp.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), (n // 2, 1))
    said = np.asarray(module.training_conditions(random.key(0), held, jnp.float32(0.25), "regions"))
    assert (said[1::2] == 0).all() and set(said[::2].sum(-1)) == {0.0, 1.0}
    np.testing.assert_allclose(said[::2].mean(0), [0.375, 0, 0.375], atol=0.03)
    inside = module.within_regions(steps(), config(**REGIONS))
    seen = np.asarray(steps().observation)
    assert inside.shape == (12, 2) and seen.shape == (12, 3)


def test_regions_hold_where_the_observation_lies_between_their_ends():
    x = steps()
    seen = np.asarray(x.observation)
    expected = [np.abs(seen[:, 0]) <= 0.5, (seen[:, 2] >= 0) & (seen[:, 2] <= 9)]
    np.testing.assert_array_equal(
        module.within_regions(x, config(**REGIONS)), np.stack(expected, -1)
    )
    np.testing.assert_array_equal(module.wanted_conditions(config(**REGIONS), None), np.eye(2))
    np.testing.assert_array_equal(
        module.wanted_conditions(config(**REGIONS, satisfy=(1,)), None), [[0, 1]]
    )


@pytest.mark.parametrize("kind", ["return", "regions"])
def test_the_losses(kind):
    settings = REGIONS if kind == "regions" else {}
    known = RNG.random((4, 2, 1)) if kind == "return" else RNG.random((4, 2, 2)) < 0.7
    x = window(known)
    denoiser = lambda noisy, level, said: 0.5 * noisy + (level + said.sum(-1))[:, None, None]
    inverse = lambda both: stub(mode=lambda: 2 * both[..., :1] - both[..., 3:4])
    net = stub(denoiser=denoiser, inverse=inverse, key=bandit.key, hyper={"drop": 0.3})
    found = losses_of(module.recipe(ENV, Static(config(**settings))))
    rows = np.array([[0, 1, 1, 1], [0, 1, 2, 3]]).T
    clean = np.take_along_axis(np.asarray(x.observation), rows[..., None], 0).swapaxes(0, 1)
    each = np.take_along_axis(np.asarray(x.extras[module.CONDITION]), rows[..., None], 0)
    held = each[0] if kind == "return" else each.all(0)
    said = module.training_conditions(bandit.key("told"), jnp.float32(held), 0.3, kind)
    noised = PROCESS.add_noise(bandit.key("noise"), jnp.asarray(clean))
    noisy = np.asarray(noised.noisy).copy()
    noisy[:, 0] = clean[:, 0]
    error = np.asarray(denoiser(noisy, noised.level, said) - noised.target)[:, 1:]
    expected = np.broadcast_to((error**2).mean((1, 2)), (4, 2))
    np.testing.assert_allclose(found["denoiser_loss"](net, x), expected, rtol=1e-4)
    guess = 2 * np.asarray(x.observation)[..., :1] - np.asarray(x.next_observation)[..., :1]
    expected = np.square((guess - np.asarray(x.action)) / 2).mean(-1)  # in half-widths
    np.testing.assert_allclose(found["inverse_loss"](net, x), expected, rtol=1e-4, atol=1e-6)


def law(mean, spread, temperature):
    """Mean and variance of samples with exact predictions of N(mean, spread^2), by recursion."""
    bars = np.asarray(PROCESS.alpha_bars(), np.float64)
    center, variance = 0.0, temperature**2
    for k in range(LEVELS, 0, -1):
        now, after = bars[k], bars[k - 1]
        slope = spread**2 * np.sqrt(now) / (spread**2 * now + 1 - now)
        share, alpha = (1 - after) / (1 - now), now / after
        of_clean, of_noisy = np.sqrt(after) * (1 - alpha) / (1 - now), np.sqrt(alpha) * share
        factor = of_clean * slope + of_noisy
        center = factor * center + of_clean * (mean - slope * np.sqrt(now) * mean)
        variance = factor**2 * variance + temperature**2 * (1 - alpha) * share
    return center, variance


@pytest.mark.parametrize(
    ("weight", "temperature", "satisfy"), [(1.2, 0.5, ()), (1.0, 1.0, (1,)), (0.0, 1.0, ())]
)
def test_plans_have_the_law_of_composed_gaussians(weight, temperature, satisfy):
    """Observations are N(0.1, 0.3^2) without a condition, and each condition shifts their mean: by
    composition the shifts add up. Temperature lowers the noise, as a recursion says."""
    n, spread, shifts = 4000, 0.3, jnp.array([0.5, -0.2])

    def denoiser(noisy, level, said):
        mean = (0.1 + said @ shifts)[..., None, None]
        bar = PROCESS.alpha_bars()[jnp.round(level * LEVELS).astype(int)][..., None, None]
        signal = jnp.sqrt(bar)
        slope = spread**2 * signal / (spread**2 * bar + 1 - bar)
        clean = mean + slope * (noisy - signal * mean)
        return (noisy - signal * clean) / jnp.sqrt(1 - bar)

    inverse = lambda both: stub(mode=lambda: 2 * (both[..., :1] * 0 + both[..., 3:4]) / 10)
    net = stub(
        target={"denoiser": denoiser, "inverse": inverse},
        hyper={"guidance": weight, "temperature": temperature, "wanted_return": 0.9},
    )
    no = jnp.zeros(n, bool)
    seen = TimeStep(jnp.full((n, 3), 2.0), jnp.zeros(n), no, no, ~no)
    recipe = module.recipe(ENV, Static(config(**REGIONS, satisfy=satisfy)))
    act = jax.jit(lambda key: recipe.act(net, seen, recipe.memory(n), key, True))
    action, memory, _ = act(random.key(0))
    plan = 10 * np.asarray(memory.steps)  # of the first number of the observation after each action
    assert plan.shape == (n, HORIZON - 1, 1)
    np.testing.assert_allclose(action, 2 * memory.steps[:, 0], rtol=1e-5)
    shift = weight * float(sum(shifts[i] for i in satisfy or (0, 1)))
    mean, variance = law(0.1 + shift, spread, temperature)
    tolerance = 5 * np.sqrt(variance / plan.size)
    np.testing.assert_allclose(plan.mean(), mean, atol=tolerance)
    np.testing.assert_allclose(plan.var(), variance, rtol=5 * np.sqrt(2 / plan.size))


def test_plans_begin_at_the_present_observation():
    """The denoiser sees it at each step, without and with the wanted return."""
    inputs = []

    def denoiser(noisy, level, said):
        inputs.append((noisy, said))
        return 0.3 * noisy

    inverse = lambda both: stub(mode=lambda: both[..., :1] - both[..., 3:4])
    net = stub(
        target={"denoiser": denoiser, "inverse": inverse},
        hyper={"guidance": 1.2, "temperature": 0.5, "wanted_return": np.float32(0.8)},
    )
    no = jnp.zeros(2, bool)
    observation = jnp.arange(6.0).reshape(2, 3)
    recipe = module.recipe(ENV, Static(config()))
    seen = TimeStep(observation, jnp.zeros(2), no, no, ~no)
    with jax.disable_jit():
        recipe.act(net, seen, recipe.memory(2), random.key(3), True)
    assert len(inputs) == LEVELS
    for noisy, said in inputs:
        np.testing.assert_array_equal(noisy[:, :, 0], jnp.stack([observation] * 2))
        np.testing.assert_allclose(said, [[[0, 0]] * 2, [[0.8, 1]] * 2])


def test_what_does_not_fit_is_refused():
    for more, text in (
        ({"execute": 4}, "a plan of 4 observations"),
        ({"condition": "regions"}, "regions has 0 numbers"),
        ({"condition": "regions", "regions": (0, 1)}, "regions has 2 numbers"),
        ({"condition": "regions", "regions": (3, 0, 1)}, "dimensions 0 to 2"),
        ({"condition": "regions", "regions": (0, 1, 1)}, "must be below its largest"),
        (REGIONS | {"satisfy": (2,)}, "satisfy has 2; regions are 0 to 1"),
    ):
        with pytest.raises(UserError, match=text):
            module.decision_diffuser.agent(ENV, config(**more))
