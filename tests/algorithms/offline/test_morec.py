"""MOREC: which transitions its discriminators keep, judge and cut."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import dynamics_model as dynamics_module
from jaxrl.algorithms.offline import morec, morec_judge
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start
from jaxrl.networks.rewarded_dynamics import StepPrediction
from tests.datasets.stand_in import no_training
from tests.kit.stub import stub
from tests.networks.pendulum import make_timestep

__all__ = ["no_training"]

ENV = envs.make("pendulum")
B, E, D, N = 4, 3, 3, 2000
SIZES = {k: v for k, v in morec_judge.TINY.items() if k != "env"}
# Each member says another change of the observation, without noise, and member 1 says the end.
CHANGE = np.arange(E, dtype=np.float32)[:, None, None] + np.zeros((E, B, D + 1), np.float32)
ENDED = np.where(np.arange(E)[:, None] == 1, 1.0, -1.0) + np.zeros((E, B))
PREDICTION = StepPrediction(*map(jnp.float32, (CHANGE, CHANGE * 0 - 60, ENDED)))
ODDS = np.array([-1.0, 0.0, 0.5])  # log-odds of what the members say


def draw(elites, **settings):
    """Draw `N` times what follows; one discriminator knows `ODDS` and another says 0."""
    config = replace(morec.Config(), settings)
    judge = lambda seen, action: jnp.stack(
        [jnp.asarray(ODDS)[seen.goal[1][:, 0].astype(int)], jnp.zeros(B)], -1
    )
    net = stub(
        judge=judge,
        hyper={
            "choice_temperature": config.choice_temperature,
            "least_reward": config.least_reward,
        },
    )
    timestep, action = make_timestep(np.zeros((B, D)), [False] * B), jnp.zeros((B, 1))
    one = lambda key: morec.draw_by_judgment(Static(config))(
        net, timestep, action, PREDICTION, jnp.array(elites), key
    )
    return jax.tree.map(np.asarray, jax.vmap(one)(jax.random.split(random.key(0), N)))


REWARD = -np.log(1 - (1 / (1 + np.exp(-ODDS)) + 0.5) / 2)


def test_candidates_are_chosen_by_their_dynamics_reward():
    drawn, ended = draw([0, 1, 2], choice_temperature=0.3, least_reward=0.0)
    weights = np.exp(REWARD / 0.3)
    share = np.bincount(drawn[..., 0].round().astype(int).ravel(), minlength=E) / (N * B)
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.02)
    np.testing.assert_array_equal(ended, drawn[..., 0].round() == 1)
    best, _ = draw([0, 1], choice="best", least_reward=0.0)
    np.testing.assert_allclose(best, 1.0, atol=1e-4)


def test_a_rollout_ends_where_the_chosen_transition_has_too_low_a_reward():
    between = float(REWARD[[0, 2]].mean())
    drawn, ended = draw([0, 2], choice_temperature=1.0, least_reward=between)
    np.testing.assert_array_equal(ended, drawn[..., 0].round() == 0)
    assert 0.1 < ended.mean() < 0.6


def test_log_odds_are_bounded_and_rescaled():
    network = morec_judge.network(ENV, Static(morec_judge.Judge()), 2)
    module, inputs = morec_judge.Discriminators(network), morec_judge.seen_by_judges(ENV)
    params = module.init(random.key(0), *inputs)
    raw = network.apply({"params": params["params"]["values"]}, *inputs)
    low, high = raw[0] + jnp.array([-1.0, 1.0]), raw[0] + jnp.array([3.0, 2.0])
    odds = module.apply({"params": {**params["params"], "low": low, "high": high}}, *inputs)
    np.testing.assert_allclose(odds, [[-0.5, -1.0]], rtol=1e-4)


@pytest.mark.slow
def test_the_phases_hand_on_the_model_and_the_last_discriminators(no_training):
    """Every second discriminator is kept, and what judges and the model are then frozen."""
    tiny = lambda module: {k: v for k, v in module.TINY.items() if k != "env"}
    first = dynamics_module.dynamics_model(ENV, tiny(dynamics_module))
    second = morec_judge.morec_judge(ENV, SIZES | {"kept": 3, "data.updates": 1})
    third = morec.morec(ENV, tiny(morec) | {"kept": 3})

    @jax.jit
    def run(key):
        model = first.step(start(first, key).state, key)[0]
        begun = start(second, key).state
        judges = [take_over(begun, second.agent.adopt(begun.agent, model.agent))]
        for _ in range(8):
            judges.append(second.step(judges[-1], key)[0])
        own = start(third, key).state
        taken = take_over(own, third.agent.adopt(own.agent, judges[-1].agent))
        after, metrics = third.step(taken, key)
        return model.agent, [x.agent for x in judges], taken.agent, after.agent, metrics

    model, judges, taken, after, metrics = run(random.key(0))
    params = lambda state, part: state.parts[part].params
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    # After 2, 4, 6 and 8 gradient steps one is kept, the last three in all; the fourth has the
    # place of the first.
    current = lambda i: params(judges[i], "discriminator")["params"]
    held = lambda i: params(judges[i], "judge")["params"]["values"]
    for i, kept in {2: (2, 2, 2), 4: (2, 4, 4), 8: (8, 4, 6)}.items():
        for place, step in enumerate(kept):
            mine = jax.tree.map(lambda a, place=place: a[place], held(i))
            same(mine, jax.tree.map(lambda a: a[0], current(step)))
    for state in (judges[-1], taken, after):
        same(params(state, "model"), params(model, "model"))
        same(state.extra, model.extra)
    for state in (taken, after):
        same(params(state, "judge"), params(judges[-1], "judge"))
    assert np.isfinite(metrics["imagined_reward"].total)


@dataclasses.dataclass
class Saved:
    """A part or a state, as far as a warm start reads it."""

    params: Any = None
    parts: Any = None
    extra: Any = None


def test_the_model_is_taken_over_and_the_generator_is_not():
    recipe = morec_judge.recipe(ENV, Static(replace(morec_judge.Config(), SIZES)))
    own = Saved(parts={"model": Saved(), "generator": Saved("own")})
    taken: Any = recipe.adopt(own, Saved(parts={"model": Saved("model")}, extra="fit"))  # type: ignore[misc]
    assert taken.parts["model"].params == "model" and taken.parts["generator"].params == "own"
    assert taken.extra == "fit"


def test_rollouts_that_could_not_be_cut_are_refused():
    settings = {k: v for k, v in morec.TINY.items() if k != "env"}
    with pytest.raises(UserError, match=r"^branches.ends is 'known', but morec also ends rollouts"):
        morec.morec.agent(ENV, replace(morec.Config(), settings | {"branches.ends": "known"}))
