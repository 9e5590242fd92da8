"""Advantages and losses of PPO, A2C and REINFORCE against NumPy."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient import a2c, ppo, reinforce
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    Sample,
    estimate_advantages,
    report,
    standardize,
)
from jaxrl.algorithms.policy_gradient.shared.episodes import Step, policy_loss
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit import Minibatch
from tests.kit.stub import stub
from tests.losses.advantages.windows import brute_force_gae, brute_force_returns

T, B = 12, 5
RNG = np.random.default_rng(3)
draw = lambda: RNG.normal(size=(T, B)).astype(np.float32)
VALUES = RNG.normal(size=2 * T * B).astype(np.float32)  # of observations, which are numbers
MEMORY = draw()  # after each step; added to the value
BEFORE, NOW, ENTROPY, ADVANTAGE, TARGET, OLD_VALUE, VALUE = (draw() for _ in range(7))
HYPER = {"clip": 0.2, "value_clip": 0.3, "value_weight": 0.7, "entropy_weight": 0.05}
HYPER |= {"discount": 0.9, "gae_lambda": 0.8, "passes": types.SimpleNamespace(target_kl=0.02)}


def window(mask=None):
    """Return a window [T, B] in which some steps end an episode; with `mask`, whole episodes, which
    the steps after them must not affect."""
    number = np.arange(T * B).reshape(T, B)
    ended = (RNG.random((T, B)) < 0.2) & (mask is None)
    cut = ~ended & (RNG.random((T, B)) < 0.2) & (mask is None)
    no = np.zeros((T, B), bool)
    before = TimeStep(number, np.zeros((T, B), np.float32), no, no, no)
    after = TimeStep(number + T * B, draw(), ended, cut, no)
    transitions = Transition(before, np.zeros((T, B), int), after, (), {"log_prob": BEFORE})
    return Batch(transitions, jnp.float32(0), memory=jnp.zeros(B), mask=mask)


def values(timestep, memory, method="__call__"):
    memory = MEMORY if method == "unroll" else memory
    before = np.concatenate([np.zeros((1, B)), MEMORY[:-1]]) if method == "unroll" else memory
    return None, jnp.asarray(VALUES)[timestep.observation] + before, jnp.asarray(memory)


def fixed_part(log_prob=NOW):
    """Return a part whose policy gives `log_prob` to any action, and whose value is `VALUE`."""
    policy = types.SimpleNamespace(log_prob=lambda action: log_prob, entropy=lambda: ENTROPY)
    return lambda timestep, memory, method="__call__": (policy, VALUE, ())


def sample():
    return Sample(window().transitions.timestep, None, BEFORE, OLD_VALUE, ADVANTAGE, TARGET, ())


def expected_advantages(window):
    """Return advantages [T, B] with the true successors, by definition, and values."""
    x = window.transitions
    value = VALUES[x.timestep.observation] + np.concatenate([np.zeros((1, B)), MEMORY[:-1]])
    next_value = VALUES[x.next_timestep.observation] + MEMORY
    rows = (x.reward, value, next_value, x.terminated, x.done)
    columns = [brute_force_gae(*(r[:, b] for r in rows), 0.9, 0.8) for b in range(B)]
    return np.stack(columns, 1), value


def run_update(builder, config, mask=None):
    """Run an update on a net that records what it descends directly and the arguments of
    `epochs`."""
    found = types.SimpleNamespace(descended=None, hyper=types.SimpleNamespace(**HYPER))
    found.actor_critic, found.learning_rate = values, lambda part: 0.0
    found.report = lambda **metrics: found

    def descend(loss, data, mask=None, weight=None):
        found.descended = data
        return found

    def epochs(settings, data, step, unit, max_drift):
        found.data, found.step, found.max_drift = data, step, max_drift
        return found

    found.descend, found.epochs = descend, epochs
    found.window = window(mask)
    builder.recipe(envs.make("cartpole"), Static(config)).update(found, found.window)
    return found


def test_advantages_use_the_true_successors_and_the_memory():
    data = window()
    found = estimate_advantages(stub(actor_critic=values, hyper=HYPER), data)
    advantage, value = expected_advantages(data)
    np.testing.assert_allclose(found.advantage, advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.target, advantage + value, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.log_prob, BEFORE)


def test_the_loss_of_ppo_is_equation_9():
    output = ppo.ppo_loss(stub(actor_critic=fixed_part(), hyper=HYPER), sample())
    ratio = np.exp(NOW - BEFORE)
    surrogate = np.minimum(ratio * ADVANTAGE, np.clip(ratio, 0.8, 1.2) * ADVANTAGE)
    near = OLD_VALUE + np.clip(VALUE - OLD_VALUE, -0.3, 0.3)
    error = np.maximum((VALUE - TARGET) ** 2, (near - TARGET) ** 2) / 2
    np.testing.assert_allclose(output.value, -surrogate + 0.7 * error - 0.05 * ENTROPY, rtol=1e-4)
    np.testing.assert_array_equal(output.metrics["clip_fraction"], np.abs(ratio - 1) > 0.2)
    divergence = ratio - 1 - (NOW - BEFORE)
    np.testing.assert_allclose(output.metrics["approximate_kl"], divergence, atol=1e-6)
    np.testing.assert_allclose(output.drift, divergence, atol=1e-6)


def test_the_loss_of_a2c_is_the_policy_gradient():
    total = a2c.a2c_loss(stub(actor_critic=fixed_part(), hyper=HYPER), sample()).value
    expected = -ADVANTAGE * NOW + 0.7 * (VALUE - TARGET) ** 2 / 2 - 0.05 * ENTROPY
    np.testing.assert_allclose(total, expected, rtol=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_ppo_standardizes_the_advantages_of_a_minibatch_and_limits_the_drift(normalize):
    found = run_update(ppo.ppo, ppo.Config(normalize_advantage=normalize))
    assert found.descended is None  # nothing before the epochs
    some = found.data.x.advantage[:4]
    part = Sample(found.data.x.timestep, None, None, None, some, None, ())
    found.step(found, Minibatch(part))
    standard = (some - some.mean()) / some.std() if normalize else some
    np.testing.assert_allclose(found.descended.x.advantage, standard, rtol=1e-4)
    assert found.max_drift == 0.02
    # Only steps that count, such as those of an agent that is alive.
    mask = jnp.arange(len(some))[:, None] < 1 + jnp.arange(some.shape[1]) % 2
    found.step(found, Minibatch(part, mask))
    some, kept = some[mask], found.descended.x.advantage[mask]
    standard = (some - some.mean()) / some.std() if normalize else some
    np.testing.assert_allclose(kept, standard, rtol=1e-4)


def test_a2c_descends_whole_windows_without_standardizing():
    found = run_update(a2c.a2c, a2c.Config())
    advantage, _ = expected_advantages(found.window)
    np.testing.assert_allclose(found.descended.advantage, advantage, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------- whole episodes


@pytest.mark.parametrize("baseline", [True, False])
def test_reinforce_weights_actions_by_the_return_minus_that_of_the_other_episodes(baseline):
    config = replace(reinforce.Config(), {"baseline": baseline})
    # All episodes are complete; in the end one runs alone.
    mask = np.arange(T)[:, None] < np.asarray([3, 12, 7, 5, 5])
    found = run_update(reinforce.reinforce, config, mask)
    reward = np.where(mask, found.window.transitions.reward, 0)
    done = np.zeros(T, bool)
    returns = [brute_force_returns(reward[:, b], done, 0.0, 0.9) for b in range(B)]
    expected = np.stack(returns, 1)
    for t, b in np.argwhere(mask) if baseline else ():
        others = [c for c in range(B) if c != b and mask[t, c]]
        expected[t, b] -= np.mean([returns[c][t] for c in others]) if others else 0
    found_advantage = np.where(mask, found.descended.advantage, 0)
    np.testing.assert_allclose(found_advantage, np.where(mask, expected, 0), rtol=1e-3, atol=1e-5)


def test_the_loss_of_whole_episodes_is_the_policy_gradient():
    x = Step(window().transitions.timestep, None, ADVANTAGE)
    total = policy_loss(stub(policy=fixed_part(), hyper=HYPER), x).value
    np.testing.assert_allclose(total, -ADVANTAGE * NOW - 0.05 * ENTROPY, rtol=1e-4)


def test_steps_beyond_an_episode_do_not_count_in_standardized_advantages():
    """Values in them have no influence on steps that count."""
    mask = RNG.random((T, B)) < 0.5
    kept = ADVANTAGE[mask]
    sample = Sample(None, None, None, None, np.where(mask, ADVANTAGE, 0.0), None, ())
    found = np.asarray(standardize(Minibatch(sample, mask)).x.advantage)
    np.testing.assert_allclose(found[mask], (kept - kept.mean()) / kept.std(), rtol=1e-4, atol=1e-6)
    plain = np.asarray(standardize(Minibatch(sample)).x.advantage)
    assert abs(plain[mask].std() - 1) > 0.1


def test_steps_beyond_an_episode_do_not_count_in_the_explained_variance():
    """There targets are the values, which would be explained perfectly."""
    mask = RNG.random((T, B)) < 0.5
    target = np.where(mask, TARGET, VALUE)
    sample = Sample(None, None, None, VALUE, None, target, ())
    seen = []
    net = types.SimpleNamespace(report=lambda **x: seen.append(x), learning_rate=lambda part: 0.0)
    report(net, sample, mask=mask)
    report(net, sample)
    expected = 1 - (TARGET - VALUE)[mask].var() / TARGET[mask].var()
    np.testing.assert_allclose(seen[0]["explained_variance"], expected, rtol=1e-4)
    assert seen[1]["explained_variance"] > expected + 0.1
