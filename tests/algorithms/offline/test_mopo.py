"""Learning from rollouts of a model: what the policy says of it, its source, and variants."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import combo, cql, edac, mopo, ravl
from jaxrl.algorithms.offline import dynamics_model as dynamics_module
from jaxrl.algorithms.offline import offline_mbrl_design as design
from jaxrl.algorithms.offline.shared import model_rollouts as shared
from jaxrl.algorithms.offline.shared.model_rollouts import ENDS, PENALTIES, STEP
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start
from jaxrl.core.types import Policy
from jaxrl.kit.normalization import add, no_moments
from jaxrl.kit.state import State
from jaxrl.networks.rewarded_dynamics import StepPrediction
from jaxrl.sources import imagined_rollouts
from tests.algorithms.offline import test_cql as cql_tests
from tests.datasets.stand_in import no_training
from tests.kit.stub import losses_of, stub
from tests.networks.pendulum import make_timestep

__all__ = ["no_training"]

ENV = envs.make("pendulum")
B, E, D = 6, 4, 3
RNG = np.random.default_rng(2)
OBSERVATION = RNG.normal(size=(B, D)).astype(np.float32)
SCALE = add(no_moments((D + 1,)), jnp.asarray(RNG.normal(3.0, 2.0, (50, D + 1))))
MEAN, SPREAD = RNG.normal(size=(E, B, D + 1)), np.exp(RNG.normal(size=(E, B, D + 1)))
PREDICTION = StepPrediction(
    *map(jnp.float32, (MEAN, 2 * np.log(SPREAD), [[-1.0] * B, [1.0] * B, [-1.0] * B, [1.0] * B]))
)
ERROR = jnp.array([0.3, 0.1, 0.4, 0.2])
SETTINGS = {k: v for k, v in mopo.TINY.items() if k != "env"}


def say(penalty, weight=0.5, elites=1, draws=1):
    """Return where the model would lead, for `draws` keys."""
    settings = SETTINGS | {"penalty": penalty, "elites": elites, "members": E}
    recipe = mopo.recipe(ENV, Static(replace(mopo.Config(), settings)))
    policy = lambda timestep: stub(sample=lambda seed: jnp.zeros((B, 1)), mode=lambda: jnp.zeros(1))
    net = stub(
        actor=policy,
        model=lambda timestep, action: PREDICTION,
        extra=shared.Fit(SCALE, ERROR),
        hyper={"penalty_weight": weight},
    )
    act = lambda key: recipe.act(net, make_timestep(OBSERVATION, [False] * B), (), key, False)
    return jax.vmap(lambda key: act(key)[2][STEP])(jax.random.split(random.key(0), draws))


def test_rewards_of_rollouts_are_less_the_uncertainty_in_the_environments_units():
    led = jax.tree.map(np.asarray, say("max_aleatoric", draws=4000))
    doubt = np.linalg.norm(SPREAD, axis=-1).max(0)
    np.testing.assert_allclose(led.penalty[0], doubt, rtol=1e-4)
    best = 1  # the member with the smallest error draws alone
    assert led.ended.all()
    deviation, center = np.asarray(SCALE.deviation), np.asarray(SCALE.mean)
    np.testing.assert_allclose(led.change.mean(0), deviation[:D] * MEAN[best][:, :D], atol=1.0)
    shift = (led.reward - center[D] + 0.5 * doubt) / deviation[D]
    noise = SPREAD[best][:, D]
    np.testing.assert_allclose((shift.mean(0) - MEAN[best][:, D]) / noise, 0, atol=0.06)
    np.testing.assert_allclose(shift.std(0) / noise, 1, atol=0.06)
    spread = led.change.std(0) / deviation[:D]
    np.testing.assert_allclose(spread / SPREAD[best][:, :D], 1, atol=0.06)


def test_elites_are_the_members_with_the_smallest_errors():
    assert say("none", elites=2, draws=50).ended.all()  # members 1 and 3
    ended = np.asarray(say("none", elites=3, draws=2000).ended)  # and 0
    np.testing.assert_allclose(ended.mean(), 2 / 3, atol=0.03)
    plain, penalized = say("none"), say("max_aleatoric", weight=0.0)
    np.testing.assert_allclose(plain.reward, penalized.reward, rtol=1e-6)


def test_penalties_by_name_are_those_of_all_members():
    last = lambda x: np.moveaxis(x, 0, -1)
    mean, scale = last(MEAN), last(SPREAD)
    found = {n: np.asarray(f(jnp.float32(mean), jnp.float32(scale))) for n, f in PENALTIES.items()}
    apart = np.linalg.norm(MEAN[:, None] - MEAN[None], axis=-1).max((0, 1))
    np.testing.assert_allclose(found["max_pairwise_difference"], apart, rtol=1e-4)
    variance = ((scale**2).mean(-1) + mean.var(-1)).sum(-1)
    np.testing.assert_allclose(found["ensemble_variance"], variance, rtol=1e-4)
    np.testing.assert_allclose(found["ensemble_deviation"], np.sqrt(variance), rtol=1e-4)
    assert (found["none"] == 0).all() and (found["leave_one_out_kl"] > 0).all()
    assert all(x.shape == (B,) for x in found.values())


def test_known_ends_are_those_of_the_environments():
    low, high = (np.asarray(x) for x in (ENV.observation_space.low, ENV.observation_space.high))
    assert not ENDS["pendulum"](RNG.uniform(low, high, (50, D)), ENV.params).any()
    x = np.zeros((4, 11), np.float32)
    x[:, 0] = [1.2, 0.69, 1.2, 1.2]
    x[:, 1] = [0.1, 0.1, -0.21, 0.21]
    hopper = envs.make("hopper")
    np.testing.assert_array_equal(ENDS["hopper"](x, hopper.params), [False, True, True, True])
    lower = envs.make("hopper", min_height=0.5, max_tilt=0.4)
    assert not ENDS["hopper"](x, lower.params).any()


@pytest.mark.slow
def test_the_second_phase_takes_the_model_over_and_leaves_it_as_it_is(no_training):
    """Only the model and its fit: all else begins. Batches have rows of both kinds."""
    first = dynamics_module.dynamics_model(
        ENV, {k: v for k, v in dynamics_module.TINY.items() if k != "env"}
    )
    second = mopo.mopo(ENV, SETTINGS)

    @jax.jit
    def run(key):
        learned, begun = start(first, key).state, start(second, key).state
        learned = first.step(learned, key)[0]
        taken = take_over(begun, second.agent.adopt(begun.agent, learned.agent))
        after, metrics = second.step(taken, key)
        batch = second.source.sample(
            after.source, second.source.collect(after.source, second.policy(after), key)[1], key
        )
        return learned.agent, begun.agent, taken.agent, after.agent, metrics, batch

    learned, begun, taken, after, metrics, batch = run(random.key(0))
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    for state in (taken, after):
        same(state.parts["model"].params, learned.parts["model"].params)
        same(state.extra, learned.extra)
    same(taken.parts["actor"], begun.parts["actor"])
    assert (after.extra.error > 0).all() and after.extra.scale.count > 0
    changed = jax.tree.map(lambda a, b: (a != b).any(), after.parts["actor"], taken.parts["actor"])
    assert any(jax.tree.leaves(changed.params))
    assert batch.transitions.extras["real"].sum() == 4 and len(batch.transitions.reward) == 8
    assert np.isfinite(metrics["imagined_reward"].total)


def test_a_true_model_makes_the_rollouts_of_the_environment(no_training):
    """True dynamics stand in for the model: both kinds of steps then make the same rollouts."""

    def act(state, timestep, memory, key, greedy):
        action = 2 * timestep.observation[:, :1]
        states = jax.vmap(ENV.state_of)(timestep)
        step = jax.vmap(ENV.step, in_axes=(None, 0, 0, None))
        after = step(key, states, action, ENV.params)[1]
        change, no = after.observation - timestep.observation, jnp.zeros(len(action))
        led = shared.Imagined(change, after.reward, after.terminated, no, no, no)
        return action, memory, {STEP: led}

    policy = Policy(act, lambda n: (), ())
    data = replace(mopo.Config(), SETTINGS).data.dataset(ENV, 8)

    @jax.jit
    def run(key):
        steps = shared.model_step(ENV, "learned"), shared.true_step(ENV)
        sources = [imagined_rollouts(data, step, 6, 1) for step in steps]
        begun = [source.init(key, {}, policy) for source in sources]
        return [
            s.collect(x, policy, key)[1].transitions for s, x in zip(sources, begun, strict=True)
        ]

    learned, true = run(random.key(0))
    np.testing.assert_allclose(learned.observation, true.observation, atol=1e-4)
    np.testing.assert_allclose(learned.next_observation, true.next_observation, atol=1e-4)
    np.testing.assert_allclose(learned.reward, true.reward, atol=1e-4)
    assert mopo.mopo(ENV, SETTINGS | {"dynamics": "true", "real_share": 0.0, "ends": "known"})


def test_what_does_not_fit_is_refused(no_training):
    for builder, more, text in (
        (mopo.mopo, {"elites": 3}, "elites is 3; the model has only 2 members"),
        (mopo.mopo, {"num_envs": 2}, "mopo learns from a dataset alone"),
        (mopo.mopo, {"normalization.observation": True}, "standardizes observations by the data's"),
        (mopo.mopo, {"real_share": 0.99}, "at least one transition must be from a rollout"),
        (ravl.ravl, {"num_critics": 1}, "ravl compares critics"),
        (
            mopo.mopo,
            {"members": 1, "penalty": "leave_one_out_kl"},
            "leave_one_out_kl, which needs a model of at",
        ),
        (
            mopo.mopo,
            {"members": 1, "elites": 1, "penalty": "max_pairwise_difference"},
            "max_pairwise_difference, which needs a model of at",
        ),
        (
            mopo.mopo,
            {"branches.ends": "known", "branches.dynamics": "true"},
            "branches.ends is 'known', but with branches.dynamics 'true'",
        ),
        (design.offline_mbrl_design, {"members": 1}, "compares the members of a model"),
        (combo.combo, {"real_share": 0.0}, "combo raises the values of the data"),
    ):
        with pytest.raises(UserError, match=text):
            builder.agent(ENV, replace(builder.Config(), SETTINGS | more))
    reacher = envs.make("reacher")
    for more, text in (
        ({"ends": "known"}, "there is no rule for 'reacher', only for hopper, pendulum"),
        ({"dynamics": "true"}, "does not tell the state"),
    ):
        with pytest.raises(UserError, match=text):
            mopo.mopo.agent(reacher, replace(mopo.Config(), SETTINGS | more))


def test_ravl_has_the_losses_of_edac_and_no_penalty():
    config = Static(replace(ravl.Config(), SETTINGS | {"num_critics": 3}))
    found = losses_of(ravl.recipe(ENV, config))
    assert found.keys() == losses_of(edac.recipe(ENV, config)).keys()
    assert ravl.Config().num_critics == 10 and not hasattr(ravl.Config(), "penalty")


@pytest.mark.parametrize("lowered", ["mix", "model"])
def test_combo_raises_the_values_of_the_data_alone(lowered):
    """The mean of the term is alpha times (soft maximum, over the batch or its rollouts, less the
    values of the data), which CQL's own term gives row by row."""
    real = np.arange(cql_tests.N) % 4 == 0  # a quarter
    x = dataclasses.replace(cql_tests.X, extras={"real": real})
    settings = {"num_samples": 4, "next_samples": 1, "real_share": 0.25, "lowered": lowered}
    config = Static(replace(combo.Config(), settings | {"data.batch_size": 8}))
    net = cql_tests.net(extra=shared.first_fit(ENV, shared.Ensemble()))
    found = losses_of(combo.recipe(ENV, config))["critic_loss"](net, x)
    plain = losses_of(cql.recipe(ENV, config))["critic_loss"](net, x)
    own = np.asarray(cql_tests.values(x.timestep, x.action)).mean(-1)
    soft = np.asarray(plain.metrics["gap"]) + own
    lower = soft.mean() if lowered == "mix" else soft[~real].mean()
    expected = lower - own[real].mean()
    np.testing.assert_allclose(found.metrics["gap"].mean(), expected, rtol=1e-4)
    alpha, members = cql_tests.HYPER["alpha"], cql_tests.E
    difference = np.asarray(found.value - plain.value).mean()
    shift = alpha * members * (expected - np.asarray(plain.metrics["gap"]).mean())
    np.testing.assert_allclose(difference, shift, rtol=1e-3, atol=1e-5)


def test_rank_correlation_is_spearmans():
    x = RNG.normal(size=30).astype(np.float32)
    y = x + RNG.normal(size=30).astype(np.float32)
    rank = lambda z: np.argsort(np.argsort(z))
    expected = np.corrcoef(rank(x), rank(y))[0, 1]
    found = lambda a, b: float(design.rank_correlation(jnp.asarray(a), jnp.asarray(b)))
    np.testing.assert_allclose(found(x, y), expected, rtol=1e-4)
    np.testing.assert_allclose(found(x, np.exp(x)), 1, rtol=1e-5)
    np.testing.assert_allclose(found(x, -(x**3)), -1, rtol=1e-5)
    assert found(x, np.ones(30)) == 0


@pytest.mark.slow
def test_penalties_are_compared_with_the_true_error_where_the_policy_goes():
    """A model whose spread is by how much it errs: its noise says where, its disagreement not."""
    wrong = lambda timestep: 1.1 + timestep.observation[:, 0]  # by the angle

    def act(state, timestep, memory, key, greedy):
        action = jax.random.uniform(key, (len(timestep.reward), 1), minval=-2, maxval=2)
        after = shared.true_step(ENV)(
            Policy(lambda *_: (action, (), {}), lambda n: (), ()), timestep, key
        )[1]
        truth = shared.standardized_change(SCALE, timestep, after)
        size = wrong(timestep)[:, None]
        mean = jnp.repeat((truth + size)[..., None], 2, -1)
        scale = jnp.repeat(jnp.repeat(size, 4, -1)[..., None], 2, -1)
        none = jnp.zeros(len(action))
        led = shared.Imagined(truth[:, :3], none, none > 0, none, mean, scale)
        return action, memory, {STEP: led}

    state = State({}, shared.Fit(SCALE, ERROR), jnp.int32(0), jnp.float32(0), {})
    found = design.measure(ENV, None, Policy(act, lambda n: (), state), random.key(0))
    assert found["max_aleatoric_correlation"] > 0.99
    assert found["ensemble_deviation_correlation"] > 0.99
    assert abs(found["max_pairwise_difference_correlation"]) < 0.2
    assert found["model_error"] > 0
