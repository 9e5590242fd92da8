"""PPO in environments: it is on-policy, masks illegal actions, is differentiable, and rejects
invalid settings. Its losses are tested in test_losses.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import replace_hyper
from jaxrl.core.settings import replace
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.train import advance, start, train
from jaxrl.kit import wrapping
from tests.counting import counting
from tests.learning.probes import PROBES, play, probe

SIZES = {"num_envs": 4, "num_steps": 8, "epochs": 1, "minibatches": 1, "hidden": (8,)}
TINY = replace(ppo.Config(), SIZES | {"learning_rate": 0.01})


def params_of(run):
    return jax.tree.leaves(wrapping.params_of(run.state.agent))


@pytest.mark.slow
def test_a_run_is_differentiable_by_its_learning_rate(monkeypatch):
    """Checks a run without a gradient norm limit, where inf / norm once gave NaN. The losses'
    stop_gradient is disabled, since it also cuts the outer derivative (later advantages depend on
    the rate)."""
    monkeypatch.setattr(jax.lax, "stop_gradient", lambda x: x)
    algorithm = ppo(probe(), replace(TINY, {"num_steps": 4, "epochs": 2, "max_grad_norm": np.inf}))
    float64 = lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x

    def end(rate):
        begin = start(algorithm, random.key(0))
        agent = jax.tree.map(float64, begin.state.agent)
        begin = dataclasses.replace(begin, state=dataclasses.replace(begin.state, agent=agent))
        begin = play(begin, PROBES["reward depends on both"].vector())
        run, _ = train(algorithm, replace_hyper(begin, {"learning_rate": rate}), 3)
        return sum((x**2).sum() for x in params_of(run))

    with jax.enable_x64(True):
        rates = jnp.asarray([1e-2 - 1e-6, 1e-2, 1e-2 + 1e-6])
        (below, _, above), slopes = jax.jit(jax.vmap(jax.value_and_grad(end)))(rates)
    numeric = (above - below) / 2e-6
    assert abs(numeric) > 1e-3
    np.testing.assert_allclose(slopes[1], numeric, rtol=1e-5)


@pytest.mark.slow
def test_the_ratio_is_1_before_the_first_update():
    """Several windows begin in the middle of episodes, with memory and normalizations; no ratio may
    differ from 1 by more than a clip that allows only rounding errors."""
    normalized = {"normalization.observation": True, "normalization.reward": True}
    config = replace(TINY, {"num_steps": 42, "recurrent": 6} | normalized)
    algorithm = ppo(counting(terminates_after=5, truncates_after=7), config)

    @jax.jit
    def run_training(key):
        begin = start(algorithm, key, {"clip": 1e-5})
        begin = jax.tree_util.tree_map_with_path(  # weights large enough to see a difference
            lambda path, x: 3 * x if "params" in str(path) and x.ndim == 2 else x, begin
        )
        return begin, *train(algorithm, begin, 4)

    begin, run, row = run_training(random.key(0))
    assert row["episodes"].total > 100
    assert m.values(row)["clip_fraction"] == 0
    assert any((x != y).any() for x, y in zip(params_of(begin), params_of(run), strict=True))


# ------------------------------------------------------------------------------- spaces


def masked_counting(sizes):
    """Return an environment in which only the action given by the observation is legal."""
    base, sizes = counting(terminates_after=3), np.asarray(sizes)

    def mask(state, timestep):
        right = timestep.observation[0].astype(jnp.int32) % sizes
        legal = np.arange(sizes.max()) == right[:, None]
        return state, dataclasses.replace(timestep, legal_actions=legal)

    def step(key, state, action, params):
        fits = jnp.all(action == state.t % sizes)
        return mask(*base.step(key, state, jnp.where(fits, 0, 1000), params))

    space = MultiDiscrete(tuple(sizes.tolist()))
    reset = lambda key, params: mask(*base.reset(key, params))
    return dataclasses.replace(base, reset=reset, step=step, action_space=space)


@pytest.mark.slow
def test_illegal_actions_are_never_taken_nor_learned():
    algorithm = ppo(masked_counting((2, 3)), replace(TINY, {"epochs": 2, "entropy_weight": 0.1}))
    run, row = jax.jit(lambda key: train(algorithm, start(algorithm, key), 5))(random.key(0))
    values = m.values(row)
    assert np.isnan(values["diverged"])
    assert values["episode_return"] == 10 + 20 + 30  # an illegal action would have cost 1000
    np.testing.assert_allclose(values["entropy"], 0, atol=1e-5)
    assert all(jnp.isfinite(x).all() for x in params_of(run))


@pytest.mark.parametrize("space", [Box(-1.0, 1.0, (2, 2)), Box(0.0, 5.0, ())], ids=str)
def test_action_spaces(space):
    base = counting()
    step = lambda key, state, action, params: base.step(key, state, jnp.int32(0), params)
    algorithm = ppo(dataclasses.replace(base, step=step, action_space=space), TINY)
    run = jax.eval_shape(lambda: start(algorithm, random.key(0)))
    again, _ = jax.eval_shape(lambda run: advance(algorithm, run), run)
    assert jax.tree.structure(run) == jax.tree.structure(again)


# ------------------------------------------------------------------------------- settings


def test_the_same_arguments_give_the_same_object():
    env = counting()
    assert ppo(env) is ppo(env, ppo.Config()) is ppo(env, config=ppo.Config())
    assert ppo(env, TINY) is not ppo(counting(), TINY)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        ({"minibatches": 3}, "minibatches=3"),
        ({"num_shards": 3}, "num_shards=3"),
        ({"recurrent": 4, "minibatches": 8}, "4 sequences"),
        ({"activation": "tan"}, "did you mean 'tanh'"),
        ({"optimizer.name": "adan"}, "did you mean 'adam'"),
        ({"schedule": "linera"}, "did you mean 'linear'"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a number"),
        ({"reset_pool": 0}, "reset_pool"),
        ({"shuffle": "bijektion"}, "did you mean 'bijection'"),
        ({"shuffle": "bijection", "num_steps": 6, "minibatches": 2}, "power of two"),
        ({"chunk_rows": 5}, "chunk"),
        ({"schedule": "exponential"}, "an exponential schedule needs a positive"),
        ({"hidden": (8, 0)}, r"hidden is \[8, 0\]; each entry must be at least 1"),
        ({"initializer": "lecum"}, "did you mean 'lecun'"),
        ({"recurrent": 5, "transformer": 1}, "2 heads cannot be 5 wide"),
    ],
)
def test_invalid_settings_are_rejected_before_tracing(changes, message):
    with pytest.raises(UserError, match=message):
        ppo(counting(), replace(TINY, changes))


def test_unsupported_action_spaces_are_rejected():
    with pytest.raises(UserError, match="ppo cannot act in"):
        ppo(dataclasses.replace(counting(), action_space={"a": Discrete(2)}), TINY)
