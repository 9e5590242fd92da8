"""PQE: the loss by NumPy, pairs that are held out, and that distances of those are learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import pqe
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from tests.algorithms.goals import everything
from tests.kit.stub import stub

SETTINGS = {k: v for k, v in pqe.TINY.items() if k not in ("env", "env_params")}


def test_every_pair_is_shown_or_held_out():
    shown, held_out = pqe.split_pairs(everything.ENV, 0.3, 0)
    n = everything.PLACES
    assert len(shown.steps) == round(0.3 * n**2)
    here, goal = (
        np.concatenate([np.asarray(everything.place(part)) for part in parts])
        for parts in ((shown.here, held_out.here), (shown.goal, held_out.goal))
    )
    assert sorted(here * n + goal) == list(range(n**2))
    steps = np.concatenate([shown.steps, held_out.steps])
    np.testing.assert_array_equal(steps, everything.MAZE.steps[here, goal])
    again, other = (pqe.split_pairs(everything.ENV, 0.3, seed)[0] for seed in (0, 1))
    np.testing.assert_array_equal(shown.here, again.here)
    assert (shown.here != other.here).any()


def test_the_loss_compares_discounted_distances():
    shown, _ = pqe.split_pairs(everything.ENV, 0.3, 0)
    steps = np.where(np.arange(len(shown.steps)) % 5 == 0, np.inf, shown.steps)
    pairs = pqe.Pairs(shown.here, shown.goal, jnp.float32(steps))
    found = np.random.default_rng(0).uniform(0, 9, len(steps)).astype(np.float32)
    net = stub(distance=lambda here, goal: found, hyper={"base": 0.8})
    expected = (0.8**found - np.where(np.isinf(steps), 0.0, 0.8**steps)) ** 2 / 2
    np.testing.assert_allclose(pqe.distance_loss(net, pairs).value, expected, rtol=1e-4, atol=1e-6)
    finite = np.isfinite(steps)
    error = np.abs(found - steps)[finite].mean()
    np.testing.assert_allclose(pqe.absolute_error(net, pairs), error, rtol=1e-5)


@pytest.mark.slow
def test_distances_that_were_not_shown_are_learned():
    changes = SETTINGS | {"hidden": (64,), "components": 16, "pqe_size": 8, "pairs": 128}
    changes |= {"optimizer.learning_rate": 3e-3, "data.updates": 50}
    changes["size"] = changes.pop("pqe_size")
    algorithm = pqe.pqe(everything.ENV, changes)

    @jax.jit
    def run(key):
        begun, first = train(algorithm, start(algorithm, key), 1)
        begun, _ = train(algorithm, begun, 30)
        return first, train(algorithm, begun, 1)[1]

    found = run(random.key(0))
    first, last = (float(x["held_out_error"].value()) for x in found)
    assert last < 0.85 * first, (first, last)
    first, last = (float(x["distance_loss"].value()) for x in found)
    assert last < 0.1 * first, (first, last)


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        (envs.make("point_maze"), {}, "is not a grid"),
        (envs.make("cartpole"), {}, "has none"),
        (everything.ENV, {"shown": 1e-6}, "some must be shown"),
    ],
)
def test_mazes_without_known_distances_are_refused(env, changes, message):
    with pytest.raises(UserError, match=message):
        pqe.pqe.agent(env, SETTINGS | changes)
