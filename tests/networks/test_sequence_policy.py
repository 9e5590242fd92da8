"""The sequence policy: what each of its tokens sees."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.networks.sequence_policy import SequencePolicy, Steps

SPACE = Box(-2.0, 2.0, (2,))
LENGTH = 5
NETWORK = SequencePolicy(SPACE, longest=9, width=8, layers=2, heads=2, predicts=3)


def steps(seed=0, length=LENGTH):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(length, 2, *shape)), jnp.float32)
    time = jnp.broadcast_to(jnp.arange(length)[:, None] + 2, (length, 2))
    return Steps(draw(), draw(3), draw(2), time, jnp.ones((length, 2), bool))


PARAMS = NETWORK.init(jax.random.key(0), steps())
# Weights of the last layers begin near 0, where nothing would be seen to change.
PARAMS = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(1), x.shape), PARAMS)


@jax.jit
def outputs(x):
    found = NETWORK.apply(PARAMS, x)
    return {"policy": found.policy.mode(), "features": found.features, "to_go": found.to_go}


def changed_at(name, other):
    """First steps at which the outputs change with `name` of step 2."""
    x = steps()
    value = getattr(x, name)
    altered = dataclasses.replace(x, **{name: value.at[2].set(other(value[2]))})
    before, after = outputs(x), outputs(altered)
    rows = {}
    for key in before:
        same = np.isclose(before[key], after[key], atol=1e-6).reshape(LENGTH, -1).all(-1)
        rows[key] = int(np.argmin(same)) if not same.all() else LENGTH
        assert not same[rows[key] :].any()
    return rows


def test_the_policy_sees_what_comes_before_its_action_and_predictions_see_it_too():
    for name in ("to_go", "features"):
        assert changed_at(name, lambda v: v + 1) == {"policy": 2, "features": 2, "to_go": 2}
    assert changed_at("time", lambda v: v + 1) == {"policy": 2, "features": 2, "to_go": 2}
    assert changed_at("action", lambda v: v + 1) == {"policy": 3, "features": 2, "to_go": 2}


def test_steps_that_do_not_exist_are_not_seen_and_places_do_not_matter():
    """A window of 3 steps is the same behind 2 steps that do not exist, whatever these contain."""
    x = steps()
    late = jax.tree.map(lambda a: a[2:], x)
    exists = x.exists.at[:2].set(False)
    found = outputs(dataclasses.replace(x, exists=exists))
    alone = outputs(late)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[2:], b, atol=1e-5), found, alone)
    assert (jnp.abs(outputs(x)["policy"][2:] - alone["policy"]) > 1e-4).any()


def test_the_mean_lies_within_bounds():
    x = steps()
    far = dataclasses.replace(x, features=100 * x.features)
    assert (jnp.abs(outputs(far)["policy"]) <= 2).all()
