"""SPaR: the search against loops, with a policy that is known, and what each part learns."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.spar import spar
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.language.instructed_words import follow
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import episodes, refined_pairs
from jaxrl.sources.refinements import best_refinement
from tests.kit.stub import stub

ENV = envs.make("instructed_words", letters=4, length=3)
YES, NO = 7, 8
PROMPT, L = 5, 3


def test_the_search_ends_at_the_first_level_with_a_good_refinement():
    value = np.random.default_rng(0).integers(0, 6, (200, 3, 4)) / 6
    place, good = best_refinement(jnp.asarray(value), 0.7)
    for each, p, g in zip(value, np.asarray(place), np.asarray(good), strict=True):
        levels = [k for k in range(3) if each[k].max() > 0.7]
        assert g == bool(levels)
        level = levels[0] if levels else 0
        assert divmod(p, 4) == (level, each[level].argmax())


@functools.cache
def search(noise, enough=0.5):
    """A batch by the expert with noise, and its statistics."""
    env = expert_channel(ENV)
    writer = add_noise(env, expert_policy(env), noise) if noise else expert_policy(env)
    source = refined_pairs(
        episodes(env, 256, keep_states=True), env,
        branch=2, beams=2, depth=2, votes=5, yes=YES, no=NO, enough=enough,
    )  # fmt: skip
    state = source.init(random.key(0), {}, writer)
    _, batch, metrics = jax.jit(functools.partial(source.collect, policy=writer))(
        state, key=random.key(1)
    )
    assert float(batch.env_steps) == source.env_steps == 256 * (5 + 5 + 8 * 6) * ENV.max_steps
    return jax.tree.map(np.asarray, (batch.transitions, batch.mask, metrics))


def texts_of(t):
    """Words and judgments [4, B], and instructions [B], of the four texts of each answer."""
    seen = np.concatenate([t.timestep.observation[:1], t.next_timestep.observation])
    by_kind = lambda x: np.moveaxis(x.reshape(*x.shape[:-1], -1, 4), -1, 0)
    first, judged, second = (by_kind(seen[i:j]) for i, j in ((5, 8), (8, 9), (9, 12)))
    prompt = by_kind(seen[:5])
    assert (prompt == prompt[:1]).all()
    return first.swapaxes(1, 2), judged[:, 0], second.swapaxes(1, 2), prompt[0, 1], prompt[0, 3]


def test_an_expert_refines_every_wrong_answer_by_its_nearest_word():
    t, mask, metrics = search(0.0)
    first, judged, second, wanted, banned = texts_of(t)
    ok = lambda words: np.asarray(follow(words, wanted[:, None], banned[:, None]))
    right = ok(first[1])
    learned = np.moveaxis(t.extras["learned"].reshape(len(mask), -1, 4), -1, 0)
    assert 0.3 < right.mean() < 0.7
    for kind in range(3):
        np.testing.assert_array_equal(learned[kind].any(0), ~right)
    assert not learned[3].any()  # the expert's votes agree
    assert ok(first[0])[~right].all()
    np.testing.assert_array_equal(first[2][~right], first[1][~right])
    np.testing.assert_array_equal(second[2][~right], first[0][~right])
    assert (judged[2] == NO).all()
    step = np.arange(len(mask))[:, None]
    answer, judgment = (step >= 4) & (step < 7), step == 7
    refinement = step > 7
    np.testing.assert_array_equal(learned[0], answer & ~right)
    np.testing.assert_array_equal(learned[1], answer & ~right)
    np.testing.assert_array_equal(learned[2], (judgment | refinement) & ~right)
    np.testing.assert_allclose(metrics["judged_wrong"].value(), 1 - right.mean(), rtol=1e-5)
    assert metrics["refined"].value() == 1
    same = (first[0] == first[1])[~right].mean()
    np.testing.assert_allclose(metrics["kept_letters"].value(), same, rtol=1e-5)


def test_votes_that_disagree_teach_the_majority():
    t, mask, metrics = search(0.25)
    first, judged, _, wanted, banned = texts_of(t)
    learned = np.moveaxis(t.extras["learned"].reshape(len(mask), -1, 4), -1, 0)
    taught = learned[3].any(0)
    np.testing.assert_array_equal(learned[3], (np.arange(len(mask))[:, None] == 7) & taught)
    right = np.asarray(follow(first[3], wanted[:, None], banned[:, None]))
    agrees = (judged[3] == YES) == right
    # A vote is wrong with a probability of 0.25 or less; three of five with 0.104.
    assert taught.mean() > 0.5 and agrees[taught].mean() > 0.75
    assert {YES, NO} == set(judged[3][taught])
    assert metrics["refined"].value() > 0.8


def test_actor_and_refiner_learn_their_own_texts():
    steps, answers = 11, 3
    rng = np.random.default_rng(0)
    learned, mask, decision = rng.random((3, steps, 4 * answers)) < 0.7
    config = replace(spar.Config(), {"recurrent": 8, "transformer": 0})
    recipe, windows = spar.recipe(ENV, Static(config)), []
    none = np.zeros((steps, 4 * answers))
    step = TimeStep(*[none] * 5, tokens={"decision": jnp.asarray(decision)})
    place = np.broadcast_to(np.arange(4 * answers), none.shape)
    policy = types.SimpleNamespace(log_prob=lambda action: jnp.zeros(action.shape))

    def epochs(passes, window, step, unit):
        windows.append(window)
        return net

    net = stub(
        target={"actor_critic": lambda timestep, memory, method: (policy, None, ())},
        network=lambda name: types.SimpleNamespace(initial=lambda n: ()),
        epochs=epochs,
        update_targets=lambda *_: net,
    )
    t = Transition(step, jnp.asarray(place), step, (), {"learned": jnp.asarray(learned)})
    recipe.update(net, Batch(t, jnp.float32(0), mask=jnp.asarray(mask)))
    own = learned & mask & decision
    for window, kinds in zip(windows, ((0, 1), (2, 3)), strict=True):
        columns = [4 * i + k for i in range(answers) for k in kinds]
        np.testing.assert_array_equal(window.x.action[0], columns)
        np.testing.assert_array_equal(window.mask, own[:, columns])


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="has no turns; use instructed_words"):
        spar(envs.make("judged_words"), {"recurrent": 8, "transformer": 0})
    with pytest.raises(UserError, match="aot_unpaired ranks all pairs"):
        spar(ENV, {"recurrent": 8, "transformer": 0, "loss": "aot_unpaired"})
    with pytest.raises(UserError, match="beams 0"):
        played = episodes(ENV, 4, keep_states=True)
        refined_pairs(played, ENV, branch=1, beams=0, depth=1, votes=1, yes=YES, no=NO)
