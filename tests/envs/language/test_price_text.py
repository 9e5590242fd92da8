"""Trading by texts: what is told, gains and costs against an account in plain Python."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.price_text import BUY, CASH, DAY, FELL, HOLD, ROSE, SELL, STOCK

W, DAYS = 4, 6
ENV = envs.make("price_text", window=W, steps=DAYS)
RESET, STEP = jax.jit(ENV.reset), jax.jit(ENV.step)


def play(words, seed=0, **params):
    """Play one episode; what was read each day, what was legal, and the time steps of decisions."""
    params = dataclasses.replace(ENV.params, **params)
    state, t = RESET(jax.random.key(seed), params)
    days, legal, after, left = [[]], [], [], list(words)
    for i in range(ENV.max_steps):
        decision = bool(t.tokens["decision"])
        if decision and not bool(t.tokens["restart"]):
            legal.append(np.flatnonzero(t.legal_actions).tolist())
        action = left.pop(0) if decision else 0
        days[-1].append(int(t.observation))
        state, t = STEP(jax.random.key(100 + i), state, action, params)
        if decision:
            after.append(t)
            days.append([])
        if bool(t.done):
            break
    assert bool(t.done) and not left
    return days[:DAYS], legal, after, state


def test_texts_gains_and_costs():
    words = [HOLD, BUY, HOLD, SELL, BUY, SELL]
    days, legal, after, state = play(words, move=0.1, cost=0.01)
    # A day begins with the token that was said the day before, which its reader does not see.
    texts = [days[0], *(day[1:] for day in days[1:])]
    moves = [*texts[0][1 : 1 + W], *(text[W] for text in texts[1:]), int(state.memory.moves[-1])]
    holds, total, market, turnover, gains = False, 0.0, 0.0, 0, []
    for day, (text, word, t) in enumerate(zip(texts, words, after, strict=True)):
        assert text == [DAY, *moves[day : day + W], STOCK if holds else CASH]
        assert legal[day] == [SELL if holds else HOLD, HOLD if holds else BUY]
        trades = word != HOLD
        holds = word == BUY or (holds and word != SELL)
        change = 0.1 if moves[day + W] == ROSE else -0.1
        gains.append(change * holds + trades * np.log(0.99))
        assert float(t.reward) == pytest.approx(gains[-1], abs=1e-6)
        total, market, turnover = total + gains[-1], market + change, turnover + trades
    m = after[-1].metrics
    assert float(m["market"]) == pytest.approx(market, abs=1e-6)
    assert float(m["turnover"]) == turnover == 4
    assert float(m["sharpe"]) == pytest.approx(np.mean(gains) / np.std(gains), abs=1e-4)
    assert {FELL, ROSE} == set(moves)


def test_times_are_good_and_bad():
    params = dataclasses.replace(ENV.params, edge=0.5, switch=0.0)
    state, _ = jax.jit(jax.vmap(ENV.reset, in_axes=(0, None)))(
        jax.random.split(jax.random.key(0), 400), params
    )
    moves, good = np.asarray(state.memory.moves), np.asarray(state.memory.good)
    assert (moves == np.where(good, ROSE, FELL)[:, None]).all() and 0.4 < good.mean() < 0.6
    params = dataclasses.replace(params, edge=0.3, switch=0.1)
    moves = np.asarray(
        jax.jit(jax.vmap(ENV.reset, in_axes=(0, None)))(
            jax.random.split(jax.random.key(1), 4000), params
        )[0].memory.moves
    )
    # Two neighbors agree if times stay and both are typical or both are not, or if they change.
    same = 0.9 * (0.8**2 + 0.2**2) + 0.1 * 2 * 0.8 * 0.2
    assert (moves[:, 1:] == moves[:, :-1]).mean() == pytest.approx(same, abs=0.02)


def follow_trend(number):
    """Return the time steps [T, N] of episodes of the expert."""

    @jax.jit
    def play(key):
        first, key = jax.random.split(key)
        state, _ = jax.vmap(ENV.reset, in_axes=(0, None))(
            jax.random.split(first, number), ENV.params
        )

        def step(state, key):
            action = jax.vmap(ENV.expert, in_axes=(0, None))(state, ENV.params)
            keys = jax.random.split(key, number)
            return jax.vmap(ENV.step, in_axes=(0, 0, 0, None))(keys, state, action, ENV.params)

        return jax.lax.scan(step, state, jax.random.split(key, ENV.max_steps))[1]

    return play(jax.random.key(0))


def test_the_trend_pays():
    t = follow_trend(2000)
    done = np.asarray(t.done)
    assert (done.sum(0) == 1).all() and done[-1].all()
    earned = np.asarray(t.reward).sum(0).mean()
    market = np.asarray(t.metrics["market"])[-1].mean()
    assert earned > 0.01 and abs(market) < 0.01


def test_readers_begin_anew_every_day():
    t = follow_trend(3)
    restarts = np.asarray(t.tokens["restart"])
    assert (restarts.sum(0) == DAYS - 1).all()  # and at the beginning
    assert (np.asarray(t.observation)[restarts] == DAY).all()


@pytest.mark.parametrize("settings", [{"window": 2}, {"steps": 0}])
def test_sizes_are_checked(settings):
    with pytest.raises(UserError):
        envs.make("price_text", **settings)


def test_buying_twice_is_not_legal():
    _, legal, _, _ = play([BUY, HOLD, HOLD, HOLD, HOLD, HOLD])
    assert legal[0] == [HOLD, BUY] and legal[1:] == [[SELL, HOLD]] * (DAYS - 1)
