import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

PARAMETERS = {
    losses.cvar_distortion: {"tail": 0.25},
    losses.wang_distortion: {"shift": -0.75},
    losses.power_distortion: {"exponent": -2.0},
    losses.cpw_distortion: {"curvature": 0.71},
}
CASES = [
    Case(
        function,
        lambda rng, parameter=parameter: {"tau": rng.uniform(0.1, 0.9, (3, 4)), **parameter},
        gradient=("tau",),
        extremes=lambda rng: [{"tau": np.zeros((3, 4))}, {"tau": np.ones((3, 4))}],
    )
    for function, parameter in PARAMETERS.items()
]
test_contract = contract(CASES)
TAU = np.linspace(0.01, 0.99, 25)


def test_distortions_by_their_definitions():
    tau = jnp.float32(TAU)
    normal = scipy.stats.norm
    for ours, expected in [
        (losses.cvar_distortion(tau, 0.1), 0.1 * TAU),
        (losses.wang_distortion(tau, 0.75), normal.cdf(normal.ppf(TAU) + 0.75)),
        (losses.power_distortion(tau, 2.0), TAU ** (1 / 3)),
        (losses.power_distortion(tau, -2.0), 1 - (1 - TAU) ** (1 / 3)),
        (
            losses.cpw_distortion(tau, 0.5),
            np.sqrt(TAU) / (np.sqrt(TAU) + np.sqrt(1 - TAU)) ** 2,
        ),
    ]:
        np.testing.assert_allclose(ours, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "function,neutral",
    [
        (losses.cvar_distortion, 1.0),
        (losses.wang_distortion, 0.0),
        (losses.power_distortion, 0.0),
        (losses.cpw_distortion, 1.0),
    ],
)
def test_a_neutral_parameter_changes_nothing(function, neutral):
    np.testing.assert_allclose(function(jnp.float32(TAU), neutral), TAU, rtol=1e-4)


def test_signs_decide_between_averse_and_seeking():
    """Risk-averse distortions look at lower quantiles."""
    tau = jnp.float32(TAU)
    assert (losses.wang_distortion(tau, -0.5) < tau).all()
    assert (losses.wang_distortion(tau, 0.5) > tau).all()
    assert (losses.power_distortion(tau, -0.5) < tau).all()
    assert (losses.power_distortion(tau, 0.5) > tau).all()
    assert (losses.cvar_distortion(tau, 0.5) < tau).all()


def test_a_distorted_mean_is_the_risk_measure():
    """Gaussian returns: the CVaR in closed form; Wang's transform shifts the mean."""
    normal = scipy.stats.norm(2.0, 3.0)
    tau = jnp.float32((np.arange(20_000) + 0.5) / 20_000)

    def mean(distorted):
        return normal.ppf(np.float64(distorted)).mean()

    tail = 0.2
    closed = 2 - 3 * scipy.stats.norm.pdf(scipy.stats.norm.ppf(tail)) / tail
    np.testing.assert_allclose(mean(losses.cvar_distortion(tau, tail)), closed, atol=2e-3)
    np.testing.assert_allclose(mean(losses.wang_distortion(tau, -0.5)), 2 - 0.5 * 3, atol=2e-2)
