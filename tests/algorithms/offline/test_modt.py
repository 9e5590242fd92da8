"""The multi-objective decision transformer: its loss, and what its predictions are of."""

import types

import numpy as np
import pytest

from jaxrl.algorithms.offline import decision_transformer as dt
from jaxrl.algorithms.offline import modt
from jaxrl.core.settings import Static, replace
from jaxrl.networks.heads import normal
from tests.algorithms.offline.test_decision_transformer import ENV, SCALE, SIZES, first_steps
from tests.kit.stub import losses_of, stub

RECIPE = modt.recipe(ENV, Static(replace(modt.Config(), SIZES)))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 2.0), (0.0, 0.0)])
def test_the_loss_adds_the_errors_of_the_next_observation_and_return(weights):
    x, rng = first_steps(6), np.random.default_rng(0)
    mean, features, to_go = (
        rng.normal(size=shape).astype(np.float32) for shape in ((6, 1, 1), (6, 1, 3), (6, 1))
    )
    policy = normal(ENV.action_space, np.tanh(mean), 1.0)
    found = types.SimpleNamespace(policy=policy, features=features, to_go=to_go)
    hyper = {"return_scale": SCALE, "state_weight": weights[0], "return_weight": weights[1]}
    net = stub(sequence=lambda steps, legal_actions: found, hyper=hyper)
    output = losses_of(RECIPE)["sequence_loss"](net, x)
    whole = first_steps(7)  # one step more tells what follows
    action = np.square(np.tanh(mean) - np.asarray(x.action) / 2).mean(-1)
    state = np.square(features - whole.observation[1:]).mean(-1)
    left = np.square(to_go - whole.extras["to_go"][1:] / SCALE)
    expected = action + weights[0] * state + weights[1] * left
    np.testing.assert_allclose(output.value, expected, rtol=2e-4)
    np.testing.assert_allclose(output.metrics["state_error"], state, rtol=1e-4)
    np.testing.assert_allclose(output.metrics["return_error"], left, rtol=2e-4)
    plain = losses_of(dt.recipe(ENV, Static(replace(dt.Config(), SIZES))))["sequence_loss"]
    np.testing.assert_allclose(output.metrics["action_error"], plain(net, x), rtol=1e-5)
