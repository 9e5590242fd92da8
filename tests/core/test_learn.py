import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import Batch, Info
from tests.toy import NOT, AgentState, toy, toy_agent, toy_source

HYPER = {"rate": jnp.float32(0.25), "breaks_at": jnp.float32(NOT)}


@pytest.mark.parametrize(
    "needs,missing",
    [
        (("memory",), "memory"),
        (("transitions", "tail"), "tail"),
        (("transitions.extras.log_prob",), "transitions.extras.log_prob"),
    ],
)
def test_a_missing_field_is_named_in_one_sentence(needs, missing):
    with pytest.raises(UserError) as error:
        learn(toy_agent(needs), toy_source())
    assert str(error.value) == (
        f"The agent 'toy' needs '{missing}', which batches of the source 'numbers' do not have."
    )


def test_a_missing_extra_is_found_in_a_dict():
    @dataclasses.dataclass
    class Fake:
        extras: dict

    source = dataclasses.replace(
        toy_source(),
        sample=lambda state, fresh, key: jax.tree.map(
            lambda x: x, Batch({"extras": {"a": fresh}}, fresh)
        ),
    )
    learn(toy_agent(("transitions.extras.a",)), source)
    with pytest.raises(UserError, match=r"transitions\.extras\.b"):
        learn(toy_agent(("transitions.extras.b",)), source)


def test_nothing_is_compiled_or_run_by_the_check():
    calls = []

    def init(key, hyper):
        calls.append(key)
        return toy_agent().init(key, hyper)

    learn(dataclasses.replace(toy_agent(), init=init), toy_source())
    assert calls and all(isinstance(key, jax.core.Tracer) for key in calls)


def test_hypers_are_those_of_both_parts_which_share_no_name():
    algorithm = learn(toy_agent(), toy_source(hyper={"alpha": jnp.float32(1)}))
    assert set(algorithm.hyper) == {"rate", "breaks_at", "alpha"}
    with pytest.raises(UserError, match="'rate'"):
        learn(toy_agent(), toy_source(hyper={"rate": jnp.float32(1)}))


def test_two_metrics_of_one_name_are_refused():
    agent = toy_agent()

    def update(state, batch, key):
        state, info = agent.update(state, batch, key)
        return state, Info({**info.metrics, "diverged": jnp.float32(0)}, info.feedback)

    algorithm = learn(dataclasses.replace(agent, update=update), toy_source())
    with pytest.raises(UserError, match="report a metric called 'diverged'"):
        jax.eval_shape(lambda key: advance(algorithm, start(algorithm, key)), random.key(0))


def test_an_extreme_of_nothing_is_no_divergence():
    agent = toy_agent()

    def update(state, batch, key):
        state, info = agent.update(state, batch, key)
        return state, Info({**info.metrics, "best": m.Maximum(-jnp.inf)}, info.feedback)

    algorithm = learn(dataclasses.replace(agent, update=update), toy_source(), 2)
    run, row = train(algorithm, start(algorithm, random.key(0)), 3)
    assert m.values(row)["best"] == -jnp.inf and run.state.diverged == m.NEVER


def test_at_least_one_update():
    with pytest.raises(UserError, match="updates must be at least 1, got 0"):
        learn(toy_agent(), toy_source(), 0)


@pytest.mark.parametrize("updates", [1, 5])
def test_a_step_is_collect_then_sample_update_feedback(updates):
    """The same calls in plain Python give the same state, without noise, which depends on keys."""
    source = dataclasses.replace(
        toy_source(),
        sample=lambda state, fresh, key: Batch(fresh + 0.5 * state.sampled_from, jnp.float32(0)),
    )
    algorithm = learn(toy_agent(), source, updates)
    state = algorithm.init(random.key(0), HYPER)
    weight, fed_back = np.float64(state.agent.weight), 0.0
    for i in range(3):
        state, metrics = algorithm.step(state, random.key(i))
        number, losses = metrics["number"].value(), []
        for _ in range(updates):
            error = weight - (np.float64(number) + 0.5 * fed_back)
            weight -= 0.25 * error
            fed_back = weight
            losses.append(0.5 * error**2)
        np.testing.assert_allclose(state.agent.weight, weight, rtol=1e-5)
        np.testing.assert_allclose(state.source.sampled_from, weight, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss"].value(), np.mean(losses), rtol=1e-5)
        assert metrics["loss"].weight == updates
        assert state.agent.updates == updates * (i + 1)
        assert state.source.collected == state.steps == i + 1
        assert jnp.isnan(metrics["diverged"].value())


def test_every_update_and_collect_has_its_own_random_numbers():
    seen = []

    def record(x):
        seen.append(float(x))

    def update(state, batch, key):
        jax.debug.callback(record, batch.transitions)
        jax.debug.callback(record, jax.random.normal(key))
        return state, Info({}, {"weight": jnp.float32(0)})

    algorithm = learn(toy_agent(update=update), toy_source(), 3)
    run, _ = train(algorithm, start(algorithm, random.key(0)), 4)
    jax.block_until_ready(run)
    jax.effects_barrier()
    assert len(seen) == 24 and len(set(seen)) == 24


def reference(hyper, steps):
    """Return the states before each step, and the last one."""
    algorithm = toy()
    run = start(algorithm, random.key(7), hyper)
    states, step = [run.state], jax.jit(lambda run: advance(algorithm, run)[0])
    for _ in range(steps):
        run = step(run)
        states.append(run.state)
    return states


def test_a_diverged_agent_keeps_the_state_before_that_step():
    healthy = reference({}, 6)
    broken = reference({"breaks_at": 3.0}, 6)
    for state, before in zip(broken[:4], healthy[:4], strict=True):
        assert state.agent.weight == before.agent.weight
        assert state.diverged == m.NEVER
    for state in broken[4:]:
        assert state.agent.weight == healthy[3].agent.weight
        assert state.agent.updates == 3
        assert state.diverged == 3
    assert [state.source.collected for state in broken] == list(range(7))
    assert [state.steps for state in broken] == list(range(7))


def test_a_diverged_agent_stays_frozen_when_the_numbers_are_finite_again():
    """Only the batch of step 2 is bad."""
    source = dataclasses.replace(
        toy_source(),
        sample=lambda state, fresh, key: Batch(
            jnp.where(state.collected == 3, jnp.nan, fresh), jnp.float32(0)
        ),
    )
    algorithm = learn(toy_agent(), source)
    two, _ = train(algorithm, start(algorithm, random.key(0)), 2)
    six, row = train(algorithm, start(algorithm, random.key(0)), 6)
    assert six.state.agent.weight == two.state.agent.weight
    assert six.state.agent.updates == 2
    assert m.values(row)["diverged"] == six.state.diverged == 2


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_every_metric_that_is_not_finite_counts(bad):
    def update(state, batch, key):
        return state, Info(
            {"fine": jnp.float32(1), "bad": jnp.float32(bad)}, {"weight": jnp.float32(0)}
        )

    algorithm = learn(toy_agent(update=update), toy_source())
    assert start(algorithm, random.key(0)).state.diverged == m.NEVER
    assert advance(algorithm, start(algorithm, random.key(0)))[0].state.diverged == 0


def test_an_update_in_the_middle_of_a_step_that_breaks_undoes_the_step():
    algorithm = toy(updates=4)
    run = start(algorithm, random.key(0), {"breaks_at": 6.0})
    one, _ = train(algorithm, run, 1)
    two, row = train(algorithm, run, 3)
    assert two.state.agent.weight == one.state.agent.weight
    assert two.state.agent.updates == 4
    assert m.values(row)["diverged"] == 1


def test_weights_that_overflow_under_a_finite_loss_are_undone_too():
    """The last update of a step may break weights that no loss sees anymore; their norm does."""

    def update(state, batch, key):
        weight = jnp.where(state.updates == 2, jnp.inf, state.weight + 1)
        metrics = {"loss": jnp.nan_to_num(state.weight), "weight_norm": jnp.abs(weight)}
        state = AgentState(weight, state.updates + 1, state.hyper)
        return state, Info(metrics, {"weight": jnp.float32(0)})

    algorithm = learn(toy_agent(update=update), toy_source())
    run, row = train(algorithm, start(algorithm, random.key(0)), 6)
    assert jnp.isfinite(run.state.agent.weight)
    assert m.values(row)["diverged"] == 2


def test_vmapped_only_the_broken_member_freezes():
    algorithm = toy()
    breaks_at = jnp.array([NOT, 2.0, NOT, 0.0])
    runs = jax.vmap(lambda b: start(algorithm, random.key(7), {"breaks_at": b}))(breaks_at)
    runs, rows = jax.jit(jax.vmap(lambda run: train(algorithm, run, 6)))(runs)
    healthy = reference({}, 6)
    np.testing.assert_array_equal(rows["diverged"].step, [m.NEVER, 2, m.NEVER, 0])
    np.testing.assert_array_equal(runs.state.agent.updates, [6, 2, 6, 0])
    expected = [healthy[k].agent.weight for k in (6, 2, 6, 0)]
    np.testing.assert_allclose(runs.state.agent.weight, expected, rtol=1e-6)
    np.testing.assert_array_equal(runs.state.source.collected, [6, 6, 6, 6])
    assert jnp.isfinite(runs.state.agent.weight).all()


def test_policy_acts_with_the_agents_state():
    algorithm = toy()
    run, _ = train(algorithm, start(algorithm, random.key(0)), 3)
    policy = algorithm.policy(run.state)
    assert policy.act(policy.state, None, (), None, True)[0] == run.state.agent.weight
    again = algorithm.policy(start(algorithm, random.key(1)).state)
    assert jax.tree.structure(policy) == jax.tree.structure(again)  # the same program
