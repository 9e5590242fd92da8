"""DPPO: likelihoods of denoising steps, advantages of plans, its loss, and what is trained."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import diffusion_policy, dppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.diffusion import VariancePreserving
from tests.kit.stub import losses_of, stub

ENV = envs.make("pendulum")
SETTINGS = {"horizon": 4, "execute": 2, "observations": 2, "levels": 6, "steps": 3}
CONFIG = replace(dppo.Config(), SETTINGS | {"fine_tuned": 2, "width": 8, "blocks": 1})
RECIPE = dppo.recipe(ENV, Static(CONFIG))
HYPER = {"eta": 1.0, "least_scale": 0.2, "clip": 0.2, "first_clip": 0.05}
HYPER |= {"denoising_discount": 0.5, "discount": 0.9, "gae_lambda": 0.8}


def network(level_slope, offset):
    """A denoiser that is a linear function of its inputs."""

    def predict(noisy, level, condition):
        return 0.3 * noisy + level_slope * level[..., None, None] + offset * condition.mean()

    return predict


def test_likelihoods_are_those_of_the_executed_part():
    rng = np.random.default_rng(0)
    chain, mean = rng.normal(size=(3, 5, 4, 2)), rng.normal(size=(2, 5, 4, 2))
    scale = np.array([0.5, 0.05])
    found = dppo.step_log_probs(*map(jnp.float32, (chain, mean, scale)), 3, 0.1)
    wide = np.array([0.5, 0.1]).reshape(2, 1, 1, 1)
    z = (chain[1:] - mean)[:, :, :3] / wide
    density = -0.5 * z**2 - np.log(wide) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, density.mean((2, 3)), rtol=1e-4)


def test_plans_that_a_window_cuts_off_are_left_out():
    made = np.array([[0, 1, 0, 0, 1, 0, 0, 1], [1, 0, 0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 0, 1, 0]])
    done = np.array([[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0]])
    whole, before_cut = dppo.whole_plans(jnp.bool_(made.T), jnp.bool_(done.T), 3)
    np.testing.assert_array_equal(
        np.asarray(whole).T,
        [[0, 1, 0, 0, 1, 0, 0, 0], [1, 0, 0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 0, 0, 0]],
    )
    np.testing.assert_array_equal(
        np.asarray(before_cut).T,
        [[0, 0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]],
    )


def test_advantages_of_plans_against_a_loop():
    """Rewards within a plan are summed, discounts are per plan, and a plan that the window cuts off
    only lends its value."""
    length, gamma, lam = 9, 0.9, 0.8
    rng = np.random.default_rng(1)
    reward = rng.normal(size=(length, 1)).astype(np.float32)
    seen = rng.normal(size=(length + 1, 1, 3)).astype(np.float32)
    past = rng.normal(size=(length, 1, 1, 3)).astype(np.float32)
    terminated = np.zeros((length, 1), bool)
    terminated[4] = True
    made = np.zeros((length, 1), bool)
    made[[0, 3, 5, 8]] = True  # 0-2, 3-4 (ended), 5-7, 8- (cut off)
    no = np.zeros((length, 1), bool)
    zero = np.zeros((length, 1), np.float32)
    before = TimeStep(seen[:-1], zero, no, no, no)
    after = TimeStep(seen[1:], reward, terminated, no, no)
    extras = {"made": made, "past": past, "chain": zero, "log_prob": zero}
    x = jax.tree.map(jnp.asarray, Transition(before, zero, after, (), extras))
    value = lambda condition: condition @ jnp.arange(1.0, 7.0)
    net = stub(critic=value, hyper=HYPER)
    see = lambda timestep: timestep.observation
    sample, mask = dppo.plan_advantages(net, Batch(x, jnp.float32(0)), see, 3)
    np.testing.assert_array_equal(mask[:, 0], [1, 0, 0, 1, 0, 1, 0, 0, 0])
    weights = np.arange(1.0, 7.0)
    of = lambda t: np.concatenate([past[t, 0, 0], seen[t, 0]]) @ weights
    # The observation after row 7, with what is remembered there.
    at_cut = np.concatenate([seen[7, 0], seen[8, 0]]) @ weights
    delta = {
        0: reward[0:3].sum() + gamma * np.concatenate([seen[2, 0], seen[3, 0]]) @ weights - of(0),
        3: reward[3:5].sum() - of(3),
        5: reward[5:8].sum() + gamma * at_cut - of(5),
    }
    expected = {3: delta[3], 5: delta[5], 0: delta[0] + gamma * lam * delta[3]}
    for t, advantage in expected.items():
        np.testing.assert_allclose(sample.advantage[t, 0], advantage, rtol=1e-4)
        np.testing.assert_allclose(sample.target[t, 0], advantage + of(t), rtol=1e-4)


def test_the_loss_against_numpy():
    rng = np.random.default_rng(2)
    chain = jnp.float32(rng.normal(size=(5, 3, 4, 1)))
    condition = jnp.float32(rng.normal(size=(5, 6)))
    advantage = np.float32(rng.normal(size=5))
    old = np.float32(rng.normal(size=(5, 2)))
    net = stub(denoiser=network(0.4, 0.1), hyper=HYPER)
    x = dppo.Sample(chain, condition, jnp.asarray(old), jnp.asarray(advantage), None)
    output = losses_of(RECIPE)["denoiser_loss"](net, x)
    process = VariancePreserving(6, "cosine", axes=2)
    hooks = dataclasses.replace(dppo.WITHIN_BOUNDS, least_scale=0.2, noisy_end=True)
    predict = lambda noisy, level: network(0.4, 0.1)(noisy, level, condition)
    mean, scale = process.rerun(predict, jnp.moveaxis(chain, 1, 0), steps=3, hooks=hooks)
    new = dppo.step_log_probs(jnp.moveaxis(chain, 1, 0), mean, scale, 2, 0.2)
    ratio = np.exp(np.asarray(new) - old.T)
    clip = np.array([[0.05], [0.2]])  # of the first trained step, and of the last
    discounted = np.array([[0.5], [1.0]]) * advantage
    surrogate = np.minimum(ratio * discounted, np.clip(ratio, 1 - clip, 1 + clip) * discounted)
    np.testing.assert_allclose(output.value, -surrogate.mean(0), rtol=1e-4)


@pytest.mark.parametrize("greedy", [False, True])
def test_the_base_denoises_first_and_what_is_recorded_is_what_was_done(greedy):
    tuned, base = network(0.4, 0.1), network(-0.6, 0.0)
    net = stub(denoiser=tuned, base=base, hyper=HYPER)
    no = jnp.zeros(2, bool)
    seen = TimeStep(jnp.ones((2, 3)), jnp.zeros(2), no, no, ~no)
    action, memory, extras = RECIPE.act(net, seen, RECIPE.memory(2), random.key(0), greedy)
    assert extras["made"].all() and extras["past"].shape == (2, 1, 3)
    np.testing.assert_array_equal(extras["past"][:, 0], seen.observation)
    chain = jnp.moveaxis(extras["chain"], 1, 0)
    np.testing.assert_allclose(action[:, 0], 2 * np.clip(chain[-1, :, 0, 0], -1, 1), rtol=1e-5)
    process = VariancePreserving(6, "cosine", axes=2)
    noise = {} if greedy else {"least_scale": 0.2, "noisy_end": True}
    hooks = dataclasses.replace(dppo.WITHIN_BOUNDS, **noise)
    condition = jnp.ones((2, 6))
    of_tuned = lambda noisy, level: tuned(noisy, level, condition)
    mean, scale = process.rerun(of_tuned, chain, steps=3, hooks=hooks)
    log_prob = dppo.step_log_probs(chain, mean, scale, 2, 0.2)
    np.testing.assert_allclose(extras["log_prob"], log_prob.T, rtol=1e-3, atol=1e-3)
    if greedy:  # whose last step has no noise
        np.testing.assert_allclose(chain[-1], np.clip(mean[-1], -1, 1), atol=1e-5)
    # With another base the first trained step begins elsewhere, with the same noise.
    other = stub(denoiser=tuned, base=tuned, hyper=HYPER)
    changed = RECIPE.act(other, seen, RECIPE.memory(2), random.key(0), greedy)[2]
    assert (jnp.abs(changed["chain"][:, 0] - extras["chain"][:, 0]) > 1e-3).any()
    # On the plan's second step nothing is made.
    later = dataclasses.replace(seen, first=no)
    _, _, after = RECIPE.act(net, later, memory, random.key(1), greedy)
    assert not after["made"].any() and (after["chain"] == extras["chain"]).all()


def test_it_begins_as_the_running_average_of_the_clone():
    clone = diffusion_policy.diffusion_policy.agent(
        ENV, replace(diffusion_policy.Config(), SETTINGS | {"width": 8, "blocks": 1})
    )
    agent = dppo.dppo.agent(ENV, CONFIG)
    cloned = jax.eval_shape(lambda: clone.init(random.key(0), clone.hyper))
    fill = lambda value: lambda x: jnp.full(x.shape, value, x.dtype)
    part = cloned.parts["denoiser"]
    part = dataclasses.replace(
        part,
        params=jax.tree.map(fill(1), part.params),
        target=jax.tree.map(fill(2), part.target),
    )
    cloned = dataclasses.replace(cloned, parts={"denoiser": part})
    own = jax.eval_shape(lambda: agent.init(random.key(1), agent.hyper))
    begun = agent.adopt(own, cloned)
    for name in ("denoiser", "base"):
        assert all((x == 2).all() for x in jax.tree.leaves(begun.parts[name].params))
    assert begun.parts["critic"] is own.parts["critic"]
    assert jax.tree.structure(begun) == jax.tree.structure(own)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"execute": 5}, "execute is 5; a plan of 4 actions"),
        ({"fine_tuned": 4}, "fine_tuned is 4; a plan has only 3 denoising steps"),
        ({"steps": 7}, "steps is 7; there are only 6 levels"),
        ({"num_steps": 1, "num_envs": 64}, "num_steps is 1; a window must hold the 2 steps"),
    ],
)
def test_what_does_not_fit_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        dppo.dppo.agent(ENV, replace(CONFIG, changes))
