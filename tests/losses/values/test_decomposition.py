import itertools

import jax
import jax.numpy as jnp
import numpy as np

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example


def mixing(rng):
    return {
        "q_value": rng.normal(size=(5, 3)),
        "weight": rng.normal(size=(5, 3, 4)),
        "bias": rng.normal(size=(5, 4)),
        "output_weight": rng.normal(size=(5, 4)),
        "output_bias": rng.normal(size=5),
    }


MASK = np.array([True, False, True])
CASES = [
    Case(
        losses.vdn,
        lambda rng: {"q_value": rng.normal(size=(5, 3)), "mask": MASK},
        gradient=("q_value",),
        time=("q_value",),
        extremes=lambda rng: [{"q_value": np.where(MASK, np.ones((5, 3)), np.nan)}],
    ),
    Case(
        losses.qmix,
        mixing,
        gradient=("q_value", "weight", "bias", "output_weight", "output_bias"),
        extremes=lambda rng: [
            {"q_value": np.full((5, 3), -1e10)},
            {"q_value": np.full((5, 3), 1e10)},
            {"weight": np.zeros((5, 3, 4))},
        ],
    ),
    Case(
        losses.dueling_q_values,
        lambda rng: {"value": rng.normal(size=5), "advantage": rng.normal(size=(5, 4))},
        gradient=("value", "advantage"),
        time=("value", "advantage"),
        extremes=lambda rng: [{"advantage": np.full((5, 4), 1e15)}],
    ),
]
test_contract = contract(CASES)


def test_absent_agents_do_not_count():
    q_value = jnp.array([[1.0, 2.0, 4.0]])
    assert losses.vdn(q_value)[0] == 7
    assert losses.vdn(q_value, jnp.asarray(MASK))[0] == 5


def test_qmix_equals_a_loop():
    x = mixing(np.random.default_rng(0))
    expected = x["output_bias"].copy()
    for i in range(5):
        for h in range(4):
            total = x["bias"][i, h]
            for n in range(3):
                total += x["q_value"][i, n] * abs(x["weight"][i, n, h])
            expected[i] += abs(x["output_weight"][i, h]) * (total if total > 0 else np.expm1(total))
    np.testing.assert_allclose(losses.qmix(**x), expected, rtol=1e-4, atol=1e-5)


def test_each_agents_best_action_is_the_teams():
    """Enumerate all joint actions of three agents with four actions each."""
    rng = np.random.default_rng(1)
    x = {k: jnp.asarray(v[0]) for k, v in mixing(rng).items()}
    q_values = rng.normal(size=(3, 4))
    joint = list(itertools.product(range(4), repeat=3))
    chosen = jnp.asarray([[q_values[n, a] for n, a in enumerate(actions)] for actions in joint])
    del x["q_value"]
    team = jax.vmap(lambda q: losses.qmix(q, **x))(chosen)
    assert joint[int(team.argmax())] == tuple(q_values.argmax(-1))


def test_dueling_advantages_are_centered():
    x = example(CASES, losses.dueling_q_values)
    q_values = losses.dueling_q_values(**x)
    np.testing.assert_allclose(q_values.mean(-1), x["value"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        q_values[:, 1] - q_values[:, 0], x["advantage"][:, 1] - x["advantage"][:, 0], rtol=1e-4
    )
