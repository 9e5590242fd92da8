"""The metrics of lifelong learning, on histories written by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.evaluation import lifelong as worth

# Three tasks A, B, C. Row 0 precedes learning; then come A twice, B twice, A once; never C.
TASK = [-1, 0, 0, 1, 1, 0]
RETURNS = [
    [0.1, 0.2, 0.9],
    [0.5, 0.3, 0.8],
    [0.8, 0.4, 0.7],
    [0.6, 0.5, 0.6],
    [0.2, 1.0, 0.5],
    [0.7, 0.9, 0.4],
]


ROWS = 8  # those that are not recorded contain values that must never be read
EXPERTS = np.array([[0.4, 1.0], [0.0, 0.8], [0.5, 0.5]], np.float32)
METRICS = ("performance", "forgetting", "backward_transfer", "forward_transfer")
METRICS += ("performance_maintenance", "transfers")
COMPARED = ("relative_performance", "forward_transfer_area", "sample_efficiency")


def life(returns=RETURNS, task=TASK):
    """Make a history [ROWS, 3]."""
    rows = len(task)
    padded = np.full((ROWS, 3), np.nan, np.float32)
    padded[:rows] = returns
    return worth.History(padded, np.int32(list(task) + [1] * (ROWS - rows)), np.arange(ROWS) < rows)


@jax.jit  # one program for all tests
def everything(history, experts):
    found = {name: getattr(worth, name)(history) for name in METRICS}
    found |= {name: getattr(worth, name)(history, experts) for name in COMPARED}
    return found, {name: x.mean() for name, x in found.items() if name != "transfers"}


def of(history, experts=EXPERTS):
    return everything(history, experts)


def expect(found, **expected):
    """Assert metrics by name; None stands for a masked value, which is 0 and not in the mean."""
    values, means = found
    for name, wanted in expected.items():
        np.testing.assert_array_equal(values[name].exists, [v is not None for v in wanted], name)
        np.testing.assert_allclose(values[name].value, [v or 0.0 for v in wanted], atol=1e-6)
        known = [v for v in wanted if v is not None]
        assert float(means[name].weight) == len(known)
        np.testing.assert_allclose(means[name].total, sum(known), atol=1e-5)


def test_one_life():
    expect(
        of(life()),
        performance=[0.7, 0.9, None],
        forgetting=[None, 0.1, None],  # A was learned last and has not been left
        backward_transfer=[0.7 - 0.8, 0.9 - 1.0, None],  # compared with the first block
        forward_transfer=[None, 0.4 - 0.2, None],
        # A in rows 3 and 4 compared with row 2; B in row 5 compared with row 4.
        performance_maintenance=[(-0.2 - 0.6) / 2, -0.1, None],
    )


NOT_ONE = [None, None, None]


def test_a_life_cut_short_knows_less():
    nothing = dict.fromkeys(METRICS[1:5], NOT_ONE)
    expect(of(life(RETURNS[:3], TASK[:3])), performance=[0.8, None, None], **nothing)
    expect(of(life(RETURNS[:1], TASK[:1])), performance=NOT_ONE, **nothing)
    expect(of(life(np.zeros((0, 3)), [])), performance=NOT_ONE, **nothing)


def test_a_task_never_learned_changes_nothing_whatever_it_returns():
    others = np.array(RETURNS)
    others[:, 2] = np.nan
    (a, mean_a), (b, mean_b) = of(life()), of(life(others))
    a.pop("transfers"), b.pop("transfers")  # they also exist to tasks that are never learned
    for x, y in zip(jax.tree.leaves((a, mean_a)), jax.tree.leaves((b, mean_b)), strict=True):
        np.testing.assert_array_equal(x, y)
        assert not np.isnan(x).any()


def test_transfer_as_a_contrast():
    forward, backward = of(life())[0]["transfers"]
    # A's first block, rows 1 and 2: B goes from 0.2 to 0.4 and C from 0.9 to 0.7; neither has been
    # learned yet. A's second block, row 5: B, now learned, goes from 1.0 to 0.9, and C from 0.5 to
    # 0.4. B's block, rows 3 and 4: A goes from 0.8 to 0.2, C from 0.7 to 0.5.
    contrast = lambda before, after: (after - before) / (after + before)
    a_c = (contrast(0.9, 0.7) + contrast(0.5, 0.4)) / 2
    np.testing.assert_allclose(
        forward.value, [[0, contrast(0.2, 0.4), a_c], [0, 0, contrast(0.7, 0.5)], [0, 0, 0]],
        atol=1e-6,
    )  # fmt: skip
    np.testing.assert_array_equal(forward.exists, [[0, 1, 1], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_allclose(
        backward.value, [[0, contrast(1.0, 0.9), 0], [contrast(0.8, 0.2), 0, 0], [0, 0, 0]],
        atol=1e-6,
    )  # fmt: skip
    np.testing.assert_array_equal(backward.exists, [[0, 1, 0], [1, 0, 0], [0, 0, 0]])


def test_transfer_from_nothing_to_nothing_does_not_exist():
    forward, _ = of(life([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [-1, 0]))[0]["transfers"]
    assert not forward.exists.any() and not np.isnan(forward.value).any()


def test_against_experts():
    # A's rows 1 and 2 (its third has no counterpart) and B's rows 3 and 4.
    expect(
        of(life()),
        relative_performance=[1.3 / 1.4, 1.5 / 0.8, None],
        forward_transfer_area=[(0.65 - 0.7) / 0.3, (0.75 - 0.4) / 0.6, None],
        sample_efficiency=[0.8 / 1.0, 1.0 / 0.8, None],
    )
    # It saturates at once, while the expert takes two periods, so it is twice as efficient.
    soon = life([[0, 0, 0], [1, 0, 0], [1, 0, 0]], [-1, 0, 0])
    expect(of(soon), sample_efficiency=[2.0, None, None])


def test_an_expert_that_gets_nothing_is_no_measure():
    h = life([[0.0, 0, 0], [0.5, 0, 0]], [-1, 0])
    nothing = np.zeros((3, 2), np.float32)
    expect(of(h, nothing), relative_performance=NOT_ONE, sample_efficiency=NOT_ONE)
    expect(of(h, nothing + 1), forward_transfer_area=NOT_ONE)


def test_recording():
    h = worth.empty_history(2, 3)
    for row in range(3):
        h = worth.record(h, jnp.int32(row), jnp.full(3, float(row)), row - 1)
    # Evaluations after the last row are dropped.
    np.testing.assert_array_equal(h.returns, [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(h.task, [-1, 0])
    assert h.recorded.all()
