"""Checks of the arguments of `jaxrl.losses`, over all cases of their contract."""

import functools
import importlib
import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.core.checks import DISCRETE, Stated, stated_shapes
from jaxrl.core.errors import UserError
from tests.losses.contract import Case, cast, is_float, split

HERE = pathlib.Path(__file__).parents[1] / "losses"
PUBLIC = {
    name: x
    for name, x in vars(losses).items()
    if inspect.isfunction(x) and not name.startswith("_")
}
# Arguments that have no shape of their own to check: functions, numbers, arrays of their own shape.
UNSTATED = {
    "best_of_n_kl": {"n"},
    "cosine_similarity": {"x", "y"},
    "deviation_payoff": {"payoff"},
    "euclidean_distance": {"x"},
    "expected_shortfall_score": {"threshold", "cost"},
    "hybrid_critic": {"offline_value", "offline_target", "mask", "offline_mask"},
    "mapped_q_target": {"forward", "inverse"},
    "nash_loss": {"payoff"},
    "reverse_recurrence": {"step"},
    "reward_gap": {"expert_reward", "mask", "expert_mask"},
    "segment_mean": {"mask"},
    "truncation_schedule": {"discount"},
    "utility_reward": {"utility"},
    "vmpo_temperature": {"temperature"},
}


@functools.cache
def cases() -> dict[str, Case]:
    """Return the first case of each function."""
    found: dict[str, Case] = {}
    alone = [HERE / f"test_{name}.py" for name in ("continual", "distances", "reductions")]
    for path in (*sorted(HERE.glob("*/**/test_*.py")), *alone):
        name = ".".join(path.relative_to(HERE).with_suffix("").parts)
        module = importlib.import_module(f"tests.losses.{name}")
        for case in getattr(module, "CASES", ()):
            found.setdefault(case.function.__name__, case)
    return {name: case for name, case in found.items() if name in PUBLIC}


def example(name, dtype=np.float32):
    arrays, static = split(cast(cases()[name].example(), dtype))
    return arrays, functools.partial(PUBLIC[name], **static)


SCORES = ("reward", "return", "cost", "fitness", "score", "advantage")


def is_score(name):
    return any(word in name for word in SCORES)


def as_integers(arrays, kind, is_chosen=lambda name: True):
    """Return the chosen ones of the floats as 0 and 1, of type `kind`."""
    real = {k: x for k, x in arrays.items() if is_float(x) and is_chosen(k)}
    return arrays | {k: (x > np.median(x)).astype(kind) for k, x in real.items()}


def functions_of_scores():
    return [
        k for k, x in sorted(PUBLIC.items()) if any(map(is_score, inspect.signature(x).parameters))
    ]


def test_every_function_states_the_shapes_of_its_arrays():
    for name, function in PUBLIC.items():
        stated = stated_shapes(inspect.getdoc(function) or "")
        parameters = inspect.signature(function).parameters
        arrays = {
            k
            for k, x in parameters.items()
            if "Array" in str(x.annotation) and "float" not in str(x.annotation)
        }
        assert stated.keys() <= parameters.keys(), name
        assert arrays - stated.keys() == UNSTATED.get(name, set()), name
        checks = getattr(function, "checks", None)
        assert checks == stated or name == "reverse_recurrence", f"{name} is not @check_arguments"


def test_shapes_are_read_from_a_docstring():
    text = (
        "A loss.\n\nArgs:\n"
        "  value, target: [...], of a critic\n    that goes on: here.\n"
        "  q_values (of both): [T, ..., E]; mask: broadcasts to [..., E], true.\n"
        "  discount: a scalar, [...] or [T, ...].\n"
        "  first, second: [..., N] and [..., N'].\n"
        "  size: a number.\nReturns: [...].\n"
    )
    assert {k: str(x) for k, x in stated_shapes(text).items()} == {
        "value": "[...]",
        "target": "[...]",
        "q_values": "[T, ..., E]",
        "mask": "[..., E]",
        "discount": "[T, ...]",
        "first": "[..., N]",
        "second": "[..., N']",
    }
    assert stated_shapes(text)["q_values"] == Stated(("T",), ("E",), True, True)
    assert not stated_shapes(text)["mask"].exact


B = jnp.arange(4.0)
COLUMN = B[:, None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: losses.squared_error(B, COLUMN),
            "`squared_error` needs value [...] and target [...] with the same axes [...], not of "
            "shapes [4] and [4, 1].",
        ),
        (lambda: losses.huber(COLUMN, B), "value [...] and target [...] with the same axes"),
        (lambda: losses.expectile_error(B, COLUMN, 0.7), "shapes [4] and [4, 1]"),
        (lambda: losses.clipped_surrogate(B, B, COLUMN, 0.2), "advantage [...]"),
        (lambda: losses.dpo(B, COLUMN, B, B, 0.1), "rejected_log_prob [...]"),
        (lambda: losses.awr(B, COLUMN, 1.0), "advantage [...]"),
        (lambda: losses.td_target(B, B > 1, 0.9, COLUMN), "next_value [...]"),
        (
            lambda: losses.sac_target(B, B > 9, 0.9, B, B, 0.1),
            "`sac_target` needs reward [...] and next_q_values [..., E] with the same axes [...], "
            "not of shapes [4] and [4].",
        ),
        (lambda: losses.sac_actor(B, B, 0.1), "q_values [..., E]"),
        (lambda: losses.td3_target(B, B > 9, 0.9, B), "next_q_values [..., E]"),
        (
            lambda: losses.expectile_error(B, B, COLUMN / 9),
            "`expectile_error` needs expectile",
        ),
        (lambda: losses.huber(B, B, COLUMN), "needs threshold that broadcasts to [...], here [4]"),
        (lambda: losses.discrete_sac_actor(jnp.ones((4, 3)), jnp.ones((4, 2)), 1.0), "the same A"),
        (lambda: losses.categorical_mean(jnp.ones((4, 3)), jnp.ones((4, 3))), "atoms of shape [K]"),
    ],
)
def test_an_accidental_broadcast_is_refused_in_one_sentence(call, message):
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError):
        jax.eval_shape(call)


def test_scalars_ensembles_time_and_vmap_still_broadcast():
    critics, one = jnp.ones((4, 2)), jnp.float32(1)
    assert losses.squared_error(critics, COLUMN).shape == (4, 2)
    assert losses.squared_error(B, one).shape == (4,)
    assert losses.sac_target(B, B > 9, 0.9, critics, B, one).shape == (4,)
    assert losses.sac_target(one, one > 2, 0.9, critics[0], one, 0.1).shape == ()
    assert losses.clipped_surrogate(jnp.ones((5, 4)), jnp.ones((5, 4)), B, 0.2).shape == (5, 4)
    assert losses.squared_error(COLUMN, B[None]).shape == (4, 4)
    assert jax.vmap(losses.squared_error)(critics, COLUMN[:, 0]).shape == (4, 2)


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - {"reverse_recurrence"}))
def test_shapes_that_do_not_fit_are_refused(name):
    arrays, function = example(name)
    stated = stated_shapes(inspect.getdoc(PUBLIC[name]) or "")
    exact = {k: x for k, x in stated.items() if x.exact and x.dots and k in arrays}
    plain = [k for k, x in exact.items() if not x.front and not x.back]
    for k in plain:
        alike = [other for other in plain if arrays[other].shape == arrays[k].shape != ()]
        if len(alike) > 1 and arrays[k].shape[-1] > 1:
            column = arrays | {k: arrays[k][..., None]}
            with pytest.raises(UserError, match=f"{name}.*{k}"):
                jax.eval_shape(lambda arrays: function(**arrays), column)
    most = max((arrays[k].ndim for k in plain), default=0)
    for k, x in exact.items():
        fixed = len(x.front) + len(x.back)
        if x.back and not x.front and most and arrays[k].ndim - fixed == most:
            alike = [other for other, y in exact.items() if y == x]
            row = arrays | {other: arrays[other][0] for other in alike}
            with pytest.raises(UserError, match=name):
                jax.eval_shape(lambda arrays: function(**arrays), row)


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - {"reverse_recurrence"}))
def test_integers_and_booleans_give_the_types_of_floats(name):
    arrays, function = example(name)
    assert {k for k, x in arrays.items() if x.dtype == bool} <= {
        k for k in arrays if k in DISCRETE or k.endswith("mask")
    }
    types = lambda arrays: jax.tree.map(
        lambda x: x.dtype, jax.eval_shape(lambda arrays: function(**arrays), arrays)
    )
    assert types(as_integers(arrays, np.int32)) == types(arrays)
    assert types(as_integers(arrays, bool)) == types(arrays)


@pytest.mark.parametrize("name", functions_of_scores())
def test_integers_and_booleans_give_the_values_of_floats(name):
    arrays, function = example(name)
    program = jax.jit(lambda arrays: function(**arrays))
    floats = program(as_integers(arrays, np.float32, is_score))
    for kind in (bool, np.int32):
        ours = program(as_integers(arrays, kind, is_score))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, floats)


def test_boolean_rewards_of_a_group_give_grpo_and_rloo():
    reward = jnp.array([True, False, False, True])
    np.testing.assert_allclose(losses.group_relative(reward), [1, -1, -1, 1], rtol=1e-4)
    np.testing.assert_allclose(losses.leave_one_out(reward), np.array([2, -2, -2, 2]) / 3, 1e-6)
    np.testing.assert_allclose(losses.leave_one_out(reward * 1), np.array([2, -2, -2, 2]) / 3, 1e-6)
    weight = jnp.ones(4, jnp.bfloat16)
    assert losses.squared_error(weight, reward).dtype == jnp.bfloat16
