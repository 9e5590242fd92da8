"""A life of tasks: its components combine, its history is right, and it resumes in mid-task."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.lifelong.lifelong_ppo import Config, lifelong_ppo
from jaxrl.algorithms.lifelong.shared import components
from jaxrl.algorithms.lifelong.shared.components import Component
from jaxrl.core import hyper, random, settings
from jaxrl.core import metrics as m
from jaxrl.core.divergence import forgive
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start
from jaxrl.core.types import Info
from jaxrl.envs import make
from jaxrl.envs.registry import vary
from tests.contracts.structure import check_structure

SMALL = settings.replace(
    Config(values=(0, 2), windows=2, periods=2, episodes=2, max_tasks=3, measure="success"),
    {
        "num_envs": 4, "num_steps": 8, "epochs": 1, "minibatches": 1, "hidden": (4,),
        "ewc.samples": 2, "replay.capacity": 8, "replays": 2, "clone.steps": 1,
    },
)  # fmt: skip
NAMES = tuple(components.BUILT_IN)


def counting(agent, env, config):
    """Count the updates of an agent in a metric, as a user might write it."""

    def update(state, batch, key):
        state, info = agent.update(state, batch, key)
        return state, Info(info.metrics | {"updates": jnp.float32(1)}, info.feedback)

    return dataclasses.replace(agent, name=f"counting({agent.name})", update=update)


COUNTING = Component("counting", agent=counting)
MINE = "tests.algorithms.lifelong.test_lifelong_ppo:COUNTING"


def life(*names, **changes):
    return lifelong_ppo(make("corners"), dataclasses.replace(SMALL, components=names, **changes))


def subsets():
    """Yield all combinations of components; heads need an inferred task."""
    for size in range(len(NAMES) + 1):
        for names in itertools.combinations(NAMES, size):
            if "heads" not in names or "infer" in names:
                yield names


@pytest.mark.parametrize("names", list(subsets()), ids="+".join)
def test_all_combinations_of_components_make_a_life(names):
    a = life(*names)
    assert a is life(*names)
    key = jax.eval_shape(lambda: random.key(0))
    run = jax.eval_shape(functools.partial(start, a), key)
    after, metrics = jax.eval_shape(functools.partial(advance, a), run)
    assert jax.tree.structure(run) == jax.tree.structure(after)
    for part, metric in {"ewc": "ewc_penalty", "replay": "clone_divergence"}.items():
        assert (metric in metrics) == (part in names)
    named = {"ewc.weight": "ewc", "replay.clone.rate": "replay", "infer.novelty": "infer"}
    for name, part in named.items():
        assert (name in a.hyper) == (part in names)
    assert "ppo.clip" in a.hyper
    assert a.env_steps == 4 * 8 * SMALL.windows


def test_structure_of_all_components_with_a_users_own():
    a = life("infer", MINE, "replay", "heads", "ewc")  # another order
    check_structure(a)
    key = jax.eval_shape(lambda: random.key(0))
    run = jax.eval_shape(functools.partial(start, a), key)
    assert "updates" in jax.eval_shape(functools.partial(advance, a), run)[1]


ALL = ("ewc", "replay", "heads", "infer")


@functools.cache
def run_life():
    """Run six periods, one by one, of a life whose history has room for four; return the step, the
    runs and the rows."""
    a = life(*ALL)
    run = start(a, random.key(3))
    step = jax.jit(functools.partial(advance, a))
    runs, rows = [run], []
    for _ in range(6):
        run, row = step(run)
        runs.append(run)
        rows.append(m.values(row))
    return step, runs, rows


def test_the_history_records_tasks_and_returns():
    _, runs, rows = run_life()
    history = runs[4].state.history
    np.testing.assert_array_equal(history.task, [-1, 0, 0, 1, 1])
    assert history.recorded.all() and not runs[3].state.history.recorded[4]
    assert [int(row["task"]) for row in rows] == [0, 0, 1, 1, 0, 0]
    for number, run in enumerate(runs):
        schedule = run.state.inner.source.source.tasks
        assert schedule.windows == number * SMALL.windows
        # Beyond the history's room the life continues and the history stays.
        if number >= 4:
            np.testing.assert_array_equal(run.state.history.returns, history.returns)
    for row, number in zip(rows, range(1, 5), strict=False):
        now = [row["return_task_0"], row["return_task_1"]]
        np.testing.assert_array_equal(history.returns[number], now)
    assert ((history.returns >= 0) & (history.returns <= 1)).all()


def test_metrics_exclude_tasks_never_seen():
    _, _, rows = run_life()
    assert rows[0]["performance"] == rows[0]["return_task_0"]
    for name in ("forgetting", "backward_transfer", "forward_transfer"):
        assert np.isnan(rows[1][name]) and np.isfinite(rows[2][name])  # a mean of no weight
    np.testing.assert_allclose(
        rows[3]["performance"], (rows[3]["return_task_0"] + rows[3]["return_task_1"]) / 2
    )


def test_resuming_in_the_middle_of_a_task_is_exact():
    step, runs, _ = run_life()

    def round_trip(x):
        """Copy `x` through the host, as a checkpoint does, with keys as numbers."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = np.asarray(jax.random.key_data(x)).copy()
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        return jnp.asarray(np.asarray(x).copy())

    run = jax.tree.map(round_trip, runs[3])  # after one of two periods of task 1
    for _ in range(2):
        run, _ = step(run)
    for a, b in zip(jax.tree.leaves(run), jax.tree.leaves(runs[5]), strict=True):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)
    assert step._cache_size() == 1


def test_divergence_is_reported_in_periods():
    """Steps of a life are periods of several windows each; a fork may continue after one."""
    step, runs, _ = run_life()
    broken = hyper.replace_hyper(runs[2].state, {"ppo.optimizer.learning_rate": np.inf})
    run, row = step(dataclasses.replace(runs[2], state=broken))
    assert run.state.inner.diverged == 2 * SMALL.windows and row["diverged"].step == 2
    run, row = step(run)
    assert row["diverged"].step == 2
    well = hyper.replace_hyper(forgive(run.state), {"ppo.optimizer.learning_rate": 1e-3})
    run, row = step(dataclasses.replace(run, state=well))
    assert row["diverged"].step == m.NEVER


def test_components_see_the_change_of_task():
    _, runs, _ = run_life()
    # ewc is inside infer here, so its ids are the inferred ones.
    inner = lambda run: run.state.inner.agent.agent
    holding = [any(x.any() for x in jax.tree.leaves(inner(r).agent.own.fisher)) for r in runs]
    assert not any(holding[:3]) and holding[4]
    assert runs[-1].state.inner.agent.own.known == 2


def test_invalid_settings_are_rejected():
    with pytest.raises(UserError, match="no time step of 'corners' selects one"):
        life("heads")
    with pytest.raises(UserError, match="did you mean 'ewc'"):
        life("ewcc")
    with pytest.raises(UserError, match="The component replay clones logits, which only discrete"):
        lifelong_ppo(make("pendulum"), {"components": ("replay",)})
    with pytest.raises(UserError, match="is given twice"):
        life("ewc", "ewc")
    with pytest.raises(UserError, match="must be a Component"):
        life("tests.algorithms.lifelong.test_lifelong_ppo:counting")
    with pytest.raises(UserError, match="no normalization"):
        life(ppo=settings.replace(SMALL.ppo, {"normalization.reward": True}))
    with pytest.raises(UserError, match="did you mean 'task'"):
        life(vary="tusk")
    for name in ("windows", "periods", "rounds", "episodes"):
        with pytest.raises(UserError, match=f"{name} is 0; it must be at least 1"):
            life(**{name: 0})
    with pytest.raises(UserError, match="success"):
        jax.eval_shape(functools.partial(start, life(measure="succes")), random.key(0))


def test_vary():
    params = vary(make("corners"), "task", (2, 0, 3))
    np.testing.assert_array_equal(params.task, [2, 0, 3])
    np.testing.assert_array_equal(params.wrong_reward, [-1, -1, -1])
    with pytest.raises(UserError, match="no values"):
        vary(make("corners"), "task", ())
