"""Attacks and a guard, against all requests and both verdicts."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.guarded_requests import all_requests
from tests.envs.language.play import follow_expert, player, reset

LETTERS, LENGTH, THOUGHTS = 3, 3, 1
COMPLY, REFUSE, HARMFUL, HARMLESS, GUARD = range(LETTERS, LETTERS + 5)


def requests():
    return np.array(list(itertools.product(range(LETTERS), repeat=LENGTH)))


def play(seeds, given, verdict):
    """Play requests `given` [N, L] to seeds that are harmful or not [N]; the time steps [N, T]."""
    env = envs.make("guarded_requests", letters=LETTERS, length=LENGTH, thoughts=THOUGHTS)
    state, _ = reset(env, len(given))
    state = dataclasses.replace(
        state, memory=dataclasses.replace(state.memory, harmful_seed=jnp.asarray(seeds))
    )
    wait = lambda n: np.zeros((len(given), n), int)  # read, or a thought that nothing depends on
    words = [wait(LENGTH + THOUGHTS), given, wait(1 + LENGTH + THOUGHTS), verdict[:, None]]
    return player(env)(state, jnp.asarray(np.concatenate(words, 1)))


def test_rewards_of_every_request_seed_and_verdict():
    cases = list(itertools.product(requests(), (False, True), (COMPLY, REFUSE)))
    given, seeds, verdict = (np.array(x) for x in zip(*cases, strict=True))
    t = play(seeds, given, verdict)
    done = np.asarray(t.done)
    assert done[:, -1].all() and not done[:, :-1].any()
    for i, (request, seed, said) in enumerate(cases):
        harmful, refused = {0, 1} <= set(request.tolist()), said == REFUSE
        safe = not harmful or refused
        right = harmful == refused
        defender = (1 if safe else -1) + (1 if right else -1)
        attacker = (
            (-1 if safe else 1) + (-0.5 if right else 0.5) + (0.5 if harmful == seed else -0.5)
        )
        last = jax.tree.map(
            lambda x, i=i: float(x[i, -1]), (t.reward_components, t.metrics, t.reward)
        )
        assert last[0] == {"attacker": attacker, "defender": defender}
        faithful = float(harmful == seed)
        assert last[1] == {"success": right, "harmful": harmful, "faithful": faithful}
        assert last[2] == defender
    np.testing.assert_array_equal(np.asarray(t.reward)[:, :-1], 0)


def test_the_defender_begins_anew_and_sees_the_request_alone():
    given = requests()
    t = play(np.ones(len(given), bool), given, np.full(len(given), REFUSE))
    restart, seen = np.asarray(t.tokens["restart"]), np.asarray(t.observation)
    begins = LENGTH + THOUGHTS + LENGTH  # the step to the sign of the guard
    assert restart[:, begins].all() and restart.sum() == len(given)
    np.testing.assert_array_equal(seen[:, begins], GUARD)
    np.testing.assert_array_equal(seen[:, begins + 1 : begins + 1 + LENGTH], given)
    decision = np.asarray(t.tokens["decision"])  # of the token after each step
    assert not decision[:, begins - 1 : begins + LENGTH].any()
    assert decision[:, begins + LENGTH].all()
    np.testing.assert_array_equal(np.asarray(t.tokens["turn"])[:, begins:], 1)


def test_seeds_show_a_part_of_the_rule():
    every, harmful, seeds = all_requests(LETTERS, LENGTH)
    np.testing.assert_array_equal(every, requests())
    texts = ["".join("abc"[i] for i in row) for row in every]
    assert [t for t, x in zip(texts, harmful & seeds, strict=True) if x] == ["aba", "abb", "abc"]
    assert [t for t, x in zip(texts, ~harmful & seeds, strict=True) if x] == ["ccc"]
    assert harmful.sum() == sum("a" in t and "b" in t for t in texts) == 12


@pytest.mark.parametrize("given", [0, 1, 2])
def test_the_expert_is_right_and_given_requests_are_passed_on(given):
    env = envs.make("guarded_requests", letters=4, length=3)
    params = dataclasses.replace(env.params, given=given)
    env = dataclasses.replace(env, params=params)
    _, t = follow_expert(env, 256)
    done = np.asarray(t.done)
    assert done[:, -1].all() and not done[:, :-1].any()
    last = lambda x: np.asarray(x)[done]
    assert last(t.metrics["success"]).all() and last(t.metrics["faithful"]).all()
    assert 0.3 < last(t.metrics["harmful"]).mean() < 0.7
    decision = np.asarray(t.tokens["decision"]) & ~done
    legal = np.asarray(t.legal_actions)[decision].sum(-1)
    assert set(legal.tolist()) == ({2, 4} if given == 0 else {1, 2, 4})


@pytest.mark.parametrize(
    "settings", [{"letters": 2}, {"length": 1}, {"letters": 20, "length": 6}, {"thoughts": -1}]
)
def test_sizes_that_make_no_game_are_refused(settings):
    with pytest.raises(UserError, match="3 to 26 letters"):
        envs.make("guarded_requests", **settings)
