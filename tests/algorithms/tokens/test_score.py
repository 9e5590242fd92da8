"""SCoRe: what the tokens of two attempts are credited with in both stages, against loops."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.score import score
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import Static, Values, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import stub

ENV = envs.make("second_try")
GROUPS, ANSWERS, BONUS, ANCHOR = 3, 4, 2.5, 0.7
# A prompt of three tokens, an attempt of two, a reply, an attempt of two.
TURN = np.array([0, 0, 0, 0, 1, 1, 1])
DECISION = np.array([False, False, True, True, False, True, True])
T, B = len(TURN), GROUPS * ANSWERS
RNG = np.random.default_rng(0)
RIGHT = RNG.integers(0, 2, (2, B)).astype(np.float32)
ACTED, REFERENCE = RNG.normal(-1, 0.3, (2, T, B)).astype(np.float32)


def judge(env_steps, **changes):
    """Advantages [T, B] of a batch, as the recipe's window has them."""
    changes = {"answers": ANSWERS, "prompts": GROUPS, "transformer": 0, "recurrent": 8} | changes
    changes |= {"bonus": BONUS, "anchor": ANCHOR, "first_stage": 100.0}
    config = replace(score.Config(), changes)
    recipe = score.recipe(ENV, Static(config))
    reward, done, none = (
        np.zeros((T, B), np.float32),
        np.zeros((T, B), bool),
        np.zeros((T, B), bool),
    )
    reward[3], reward[6], done[6] = *RIGHT, True
    wide = lambda x: jnp.asarray(np.broadcast_to(x[:, None], (T, B)))
    tokens = {"turn": wide(TURN), "decision": wide(DECISION)}
    step = TimeStep(none, jnp.asarray(reward), jnp.asarray(done), none, none, tokens=tokens)
    extras = {"log_prob": jnp.asarray(ACTED)}
    t = Transition(step, jnp.zeros((T, B), int), step, (), extras)
    found = types.SimpleNamespace()

    def epochs(passes, window, step, unit, max_drift):
        found.window = window
        return types.SimpleNamespace(update_targets=lambda *_: None)

    policy = types.SimpleNamespace(log_prob=lambda action: jnp.asarray(REFERENCE))
    net = stub(
        target={"actor_critic": lambda timestep, memory, method: (policy, None, ())},
        env_steps=jnp.float32(env_steps),
        network=lambda name: types.SimpleNamespace(initial=lambda n: ()),
        epochs=epochs,
    )
    net.hyper = Values({n: jnp.asarray(x) for n, x in hypers(config).items()})
    recipe.update(net, Batch(t, jnp.float32(0), mask=jnp.ones((T, B), bool)))
    return np.asarray(found.window.x.advantage)


def less_others(credit):
    """Less the mean of the group's others, [B]."""
    groups = credit.reshape(GROUPS, ANSWERS)
    others = [[np.delete(g, i).mean() for i in range(ANSWERS)] for g in groups]
    return (groups - others).reshape(-1)


def test_at_first_both_attempts_are_paid_for_the_second_and_for_leaving_the_first():
    left = (ACTED - REFERENCE)[(TURN == 0) & DECISION].sum(0)
    expected = less_others(RIGHT[1] - ANCHOR * left)
    expected = np.where(DECISION[:, None], expected, 0)
    np.testing.assert_allclose(judge(99.0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("credit_first", [False, True])
def test_then_each_is_paid_for_itself_and_the_second_for_what_it_gained(credit_first):
    second = RIGHT[1] + BONUS * (RIGHT[1] - RIGHT[0])
    first = RIGHT[0] + second if credit_first else RIGHT[0]
    advantages = np.stack([less_others(first), less_others(second)])
    expected = np.where(DECISION[:, None], advantages[TURN], 0)
    found = judge(100.0, credit_first=credit_first)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"groups.answers is 1; score needs at least 2"):
        score(ENV, {"answers": 1})
    with pytest.raises(UserError, match="needs the turns of texts"):
        score(dataclasses.replace(envs.make("cartpole"), max_steps=10))
