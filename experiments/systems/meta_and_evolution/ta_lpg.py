"""A discovered update rule that is told the time, at lifetimes it has not seen, in other worlds."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import tune
from jaxrl import envs
from jaxrl.core import metrics as m
from jaxrl.core.learn import learn
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.systems.meta import lifetimes, lpg, ta_lpg, worlds
from jaxrl.systems.policy_gradient.a2c import a2c
from jaxrl.tasks.basic import drawn

PAPER = {
    "title": "Discovering Temporally-Aware Reinforcement Learning Algorithms",
    "authors": "Jackson, Lu, Kirsch, Lange, Whiteson and Foerster",
    "year": 2024,
    "arxiv": "2402.05828",
}
CLAIM = (
    "A discovered rule that is told the time leads to higher returns than one that is not, at "
    "lifetimes and in worlds that neither has seen."
)
PARTS = (
    "jaxrl/systems/meta/",
    "jaxrl/systems/meta/lpg.py",
    "jaxrl/networks/learned_rules.py",
)

METRIC = "return of 16 steps at a life's end, mean of 4 unseen lifetimes and of unseen worlds"
MARGIN = 0.0
LIFETIMES = (6, 12, 24, 48)  # updates; the rules are learnt on 4, 8, 16 and 32
BLOCK = 2  # updates at the end of a life in which its return is measured
LEARNING_RATES = (0.03, 0.1, 0.3, 1.0)
META = ta_lpg.Config(
    outer="evolution",
    lifetimes=(4, 8, 16, 32),
    updates=4,
    pairs=8,
    num_envs=8,
    num_steps=16,
    rule_width=8,
    meta_learning_rate=0.1,
    sigma=0.1,
)
SIZES = {"num_envs": 8, "num_steps": 16, "hidden": ()}
A2C = replace(a2c.Config(discount=META.discount), SIZES | {"optimizer.name": "adam"})
NOTES = (
    "Rules: evolution strategies, 8 mirrored pairs, random MDPs of 10 states, the same keys, "
    "settings and steps with the clock and without. Test: MDPs of 15 states. Off: the rule with "
    "the clock, told the lifetime of another learner. A2C: the same table and experience, Adam's "
    "constant step size the best of 4 on worlds and seeds of its own; the rules were searched for "
    "on far more experience than that. Settings were chosen by the rules' returns in training, on "
    "another seed."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Search rules with the clock and without, then let each lead new lives in new worlds."""
    search_key, test_key, tuning_key = jax.random.split(key, 3)
    seeds, count = budget.num_seeds(2, 5, 16), budget.choose(2, 8, 32)
    config = budget.choose(dataclasses.replace(META, pairs=2, lifetimes=(4, 8)), META)
    rules = search(config, jax.random.split(search_key, seeds), budget.choose(1, 80, 400))
    keys = jax.random.split(test_key, (seeds, count))
    told, wrong = np.asarray(LIFETIMES, np.float32), np.asarray(LIFETIMES[::-1], np.float32)
    returns = {
        "TA-LPG": play(rules[1], keys, 1.0, told),
        "LPG": play(rules[0], keys, 0.0, told),
        "TA-LPG told another lifetime": play(rules[1], keys, 1.0, wrong),
    }
    score = lambda keys, hyper: play_a2c(keys, hyper["learning_rate"]).mean(1)
    grid = budget.choose(LEARNING_RATES[:2], LEARNING_RATES)
    rate = tune(score, tuning_key, "learning_rate", grid, budget.choose(2, 32))
    returns["A2C"] = play_a2c(keys.reshape(-1), jnp.full(keys.size, rate)).reshape(*keys.shape, -1)
    figures = {name: figure(name, x.mean((1, 2))) for name, x in returns.items()}
    details = [dataclasses.replace(figures["A2C"], name=f"A2C, learning rate {rate:g}")]
    for name, x in returns.items():
        for i, lifetime in enumerate(LIFETIMES):
            details.append(figure(f"{name}, {lifetime} updates", x[:, :, i].mean(1)))
    return compare(
        CLAIM,
        METRIC,
        figures["TA-LPG"],
        figures["LPG"],
        budget,
        MARGIN,
        figures["TA-LPG told another lifetime"],
        details,
        NOTES,
    )


@functools.cache
def world(num_states: int) -> Environment:
    return time_limit(envs.make("random_mdp", num_states=num_states, num_actions=4), 16)


def search(config: ta_lpg.Config, keys: jax.Array, num_steps: int):
    """The rules, each leaf [seeds], found without and with the clock, from the same keys."""
    algorithm = ta_lpg.ta_lpg(world(10), config)

    @jax.jit
    def find(keys):
        def one(clock, key):
            run = start(algorithm, key, {"clock": clock})
            return train(algorithm, run, num_steps)[0].state.rule

        clocks = jnp.repeat(jnp.array([0.0, 1.0]), len(keys))
        return jax.vmap(one)(clocks, jnp.concatenate([keys, keys]))

    found, seeds = find(keys), len(keys)
    without, informed = slice(seeds), slice(seeds, None)
    part = lambda which: jax.tree.map(lambda x: x[which], found)
    return part(without), part(informed)


def play(rules, keys: jax.Array, clock: float, told) -> np.ndarray:
    """Returns [seeds, worlds, lifetimes] of new learners; `told` are the lifetimes that the rule
    believes, in updates."""
    return np.asarray(_play(rules, keys, jnp.float32(clock), jnp.asarray(told)), np.float64)


@jax.jit
def _play(rules, keys, clock, told):
    env, config = world(15), ta_lpg.inner_config(META)
    algorithm = lpg.on_rollouts(env, config, drawn(worlds.around(env, 1.0)))

    def one(rule, key, horizon, told):
        hyper = {"clock": clock, "lifetime": told * algorithm.frames}
        run = lifetimes.with_rule(start(algorithm, key, hyper), rule)
        return _ends(algorithm, run, horizon)

    over_lifetimes = jax.vmap(one, in_axes=(None, None, 0, 0))
    over_worlds = jax.vmap(over_lifetimes, in_axes=(None, 0, None, None))
    over_seeds = jax.vmap(over_worlds, in_axes=(0, 0, None, None))
    return over_seeds(rules, keys, jnp.array(LIFETIMES), told)


def play_a2c(keys: jax.Array, rates) -> np.ndarray:
    """Returns [runs, lifetimes] of A2C with the step sizes [runs], in the worlds of these keys."""
    return np.asarray(_play_a2c(keys, rates), np.float64)


@jax.jit
def _play_a2c(keys, rates):
    env = world(15)
    source = A2C.rollouts.source(env, drawn(worlds.around(env, 1.0)))
    algorithm = learn(a2c.agent(env, A2C), source)

    def one(key, rate):
        run = start(algorithm, key, {"learning_rate": rate})
        return _ends(algorithm, run, jnp.array(LIFETIMES))

    return jax.vmap(one)(keys, rates)


def _ends(algorithm, run, horizon):
    """The mean return in the `BLOCK` updates up to each `horizon` of one run."""

    def block(run, _):
        run, row = train(algorithm, run, BLOCK)
        returns = m.values(row)["episode_return"]
        return run, jnp.where(run.step == horizon, returns, 0.0)

    return jax.lax.scan(block, run, None, max(LIFETIMES) // BLOCK)[1].sum(0)
