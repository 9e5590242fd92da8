"""V-MPO's loss, against NumPy."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient import v_mpo
from tests.kit.stub import stub

T, B, A = 4, 3, 5
RNG = np.random.default_rng(0)
NEW, OLD = RNG.normal(size=(2, T, B, A)).astype(np.float32)
VALUE, TARGET, ADVANTAGE = RNG.normal(size=(3, T, B)).astype(np.float32)
TEMPERATURE, MULTIPLIER = 0.7, 3.0
HYPER = {"bound": 0.1, "policy_bound": 0.2, "mean_bound": 0.3, "deviation_bound": 0.4}
ACTION = RNG.integers(0, A, (T, B))


def loss_of(policies, action, temperature=TEMPERATURE, mask=None):
    new, old = policies
    one = lambda policy: lambda timestep, memory, method: (policy, VALUE, memory)
    multiplier = lambda: jnp.float32(MULTIPLIER)
    net = stub(
        actor_critic=one(new),
        target={"actor_critic": one(old)},
        temperature=lambda: temperature,
        hyper=HYPER | {"value_weight": 2.0},
        **{f"{name}_multiplier": multiplier for name in ("policy", "mean", "deviation")},
    )
    sample = v_mpo.Window(None, action, None, None, ADVANTAGE, TARGET, (), mask)
    return v_mpo.v_mpo_loss(net, sample)


def categoricals(new=NEW):
    return distrax.Categorical(new), distrax.Categorical(OLD)


def test_only_the_better_half_is_imitated_by_weights_that_sum_to_one():
    of = lambda new: loss_of(categoricals(new), ACTION).metrics["policy_loss"].mean()
    pushed = -np.asarray(jax.grad(of)(NEW))
    # The gradient by the logit of the action taken is weight * (1 - p).
    p = np.exp(NEW) / np.exp(NEW).sum(-1, keepdims=True)
    own = lambda x: np.take_along_axis(x, ACTION[..., None], -1)[..., 0]
    weight = own(pushed) / (1 - own(p))
    top = np.median(ADVANTAGE) <= ADVANTAGE
    assert top.sum() == T * B // 2
    np.testing.assert_allclose(weight[~top], 0, atol=1e-7)
    np.testing.assert_allclose(weight.sum(), 1, rtol=1e-5)
    expected = np.exp(ADVANTAGE[top] / TEMPERATURE)
    np.testing.assert_allclose(weight[top], expected / expected.sum(), rtol=1e-4)


def test_the_total_includes_the_temperatures_dual_loss():
    output = loss_of(categoricals(), ACTION)
    total, metrics = output.value, output.metrics
    best = np.sort(ADVANTAGE.ravel())[-T * B // 2 :]
    dual = TEMPERATURE * (0.1 + np.log(np.exp(best / TEMPERATURE).mean()))
    # The penalty of a bound and the loss of its multiplier cancel.
    rest = metrics["policy_loss"] + (VALUE - TARGET) ** 2
    np.testing.assert_allclose(total, rest + dual, rtol=1e-4)
    slope = jax.grad(lambda t: loss_of(categoricals(), ACTION, t).value.mean())
    tried = np.geomspace(0.05, 20, 20_001)
    duals = tried * (0.1 + np.log(np.exp(best / tried[:, None]).mean(-1)))
    assert abs(slope(tried[duals.argmin()])) < 1e-3


def test_steps_that_do_not_count_are_in_no_half():
    mask = (RNG.random((T, B)) < 0.6).astype(bool)
    output = loss_of(categoricals(), ACTION, mask=jnp.asarray(mask))
    better = np.sort(ADVANTAGE[mask])[-(mask.sum() // 2) :]
    top = mask & (better[0] <= ADVANTAGE)
    weight = np.where(top, np.exp(ADVANTAGE / TEMPERATURE), 0)
    log_prob = np.take_along_axis(jax.nn.log_softmax(NEW), ACTION[..., None], -1)[..., 0]
    expected = -(weight / weight.sum() * log_prob).sum()
    masked_mean = output.metrics["policy_loss"][mask].sum() / mask.sum()
    np.testing.assert_allclose(masked_mean, expected, rtol=1e-4)
    dual = TEMPERATURE * (0.1 + np.log(np.exp(better / TEMPERATURE).mean()))
    rest = output.metrics["policy_loss"] + (VALUE - TARGET) ** 2
    np.testing.assert_allclose(output.value[mask], (rest + dual)[mask], rtol=1e-4)


@pytest.mark.parametrize("kind", ["choices", "box"])
def test_the_divergence_is_that_from_the_behavior_policy(kind):
    if kind == "choices":
        log = lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))
        expected = {"policy": (np.exp(log(OLD)) * (log(OLD) - log(NEW))).sum(-1)}
        policies, action = categoricals(), ACTION
    else:
        normal = lambda x: distrax.Independent(distrax.Normal(x[..., :2], np.exp(x[..., 2:4])), 1)
        shift, ratio = NEW[..., :2] - OLD[..., :2], np.exp(OLD[..., 2:4] - NEW[..., 2:4])
        expected = {
            "mean": ((shift / np.exp(OLD[..., 2:4])) ** 2 / 2).sum(-1),
            "deviation": ((ratio**2 - 1) / 2 - np.log(ratio)).sum(-1),
        }
        policies, action = (normal(NEW), normal(OLD)), NEW[..., :2]
    metrics = loss_of(policies, action).metrics
    assert {name for name in metrics if name.endswith("_kl")} == {f"{name}_kl" for name in expected}
    for name, kl in expected.items():
        np.testing.assert_allclose(metrics[f"{name}_kl"], kl, rtol=1e-3, atol=1e-5)
